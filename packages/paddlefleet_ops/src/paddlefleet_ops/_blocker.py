"""What stands in the place of a library that is not loaded: an explanation.

Importing it raises :class:`LibraryBlockedError`, reading it as an attribute of the package raises
:class:`BlockedAttributeError`. Both are :class:`RuntimeError`, as in PaddleFleet, for code that
guards with ``except (ImportError, RuntimeError)``; the second base of each is what the import
system and ``hasattr`` expect, so that ``pkgutil.walk_packages``, ``inspect.getmembers`` and
``hasattr`` over the package go on instead of crashing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn


class LibraryBlockedError(RuntimeError, ImportError):
    """An import of a library that is blocked here; the message holds every reason and the hint."""


class BlockedAttributeError(AttributeError, RuntimeError):
    """A blocked library was read as an attribute; the message holds every reason and the hint."""


class ImportBlocker:
    """A meta-path finder that refuses the modules in ``messages`` and everything below them.

    ``messages`` maps full module names to texts and is read at each import: it may change.
    """

    def __init__(self, messages: Mapping[str, str]) -> None:
        self.messages = messages

    def find_spec(self, fullname: str, *_: object) -> None:
        """``None`` for any other module. Raises :class:`LibraryBlockedError` for a blocked one."""
        name = fullname
        while name:
            if name in self.messages:
                self._refuse(fullname, self.messages[name])
            name = name.rpartition(".")[0]

    def _refuse(self, fullname: str, message: str) -> NoReturn:
        error = LibraryBlockedError(message)
        error.name = fullname
        raise error


def blocked_message(
    module: str, availability_function: str, reasons: Sequence[str], hint: str, *, failed: bool
) -> str:
    """The text for a library that is not loaded: reasons, hint, and how to guard its use."""
    verb = "should be available here, but failed to load" if failed else "is not available here"
    lines = [f"{module} {verb}:", *(f"  - {reason}" for reason in reasons)]
    if hint:
        lines.append(f"Hint: {hint}")
    lines.append(
        f"Guard its use with {availability_function}(); python -m {module.partition('.')[0]} lists "
        "all libraries."
    )
    return "\n".join(lines)
