"""The registry's file as text: which libraries it declares, and the text with one more or one less."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ci.errors import ConfigError
from ci.registry import EcosystemLibrary, build_utils

REGISTRY = "packages/paddlefleet_ops/build_utils.py"
PACKAGE = "packages/paddlefleet_ops"
_TUPLE = "LIBRARIES"


@dataclass(frozen=True)
class Registry:
    """The text of a registry, and the libraries of every set that it declares."""

    path: Path
    text: str
    libraries: tuple[EcosystemLibrary, ...]
    problems: tuple[str, ...] = ()

    @classmethod
    def read(cls, repository: Path) -> Registry:
        """The registry of a checkout. Raises :class:`~ci.errors.ConfigError` when it cannot be read."""
        path = repository / REGISTRY
        try:
            return cls.of(path.read_text("utf-8"), path)
        except OSError as error:
            raise ConfigError(
                f"there is no registry in {repository}: {error.strerror}",
                cause="the folder is no checkout of the farm",
                next_step="run it in the top folder of the checkout",
            ) from error

    @classmethod
    def of(cls, text: str, path: Path) -> Registry:
        """A registry of which only the text is known. ``problems`` are its contradictions."""
        module = _executed(text, path)
        libraries = tuple(module.all_libs())
        try:
            module.check_registry(libraries)
        except module.RegistryError as error:
            return cls(path, text, libraries, tuple(error.problems))
        return cls(path, text, libraries)

    def find(self, name: str) -> EcosystemLibrary | None:
        """The library ``name``, or ``None``."""
        return next((item for item in self.libraries if item.name == name), None)

    def with_declaration(self, declaration: str) -> str:
        """The text with ``declaration`` (indented, without a trailing comma) as the last of the fleet."""
        last = self._fleet()[-1]
        lines = self.text.splitlines(keepends=True)
        end = last.end_lineno or last.lineno
        if lines[end - 1].strip() != "),":
            raise self._unusual(end)
        return "".join((*lines[:end], f"{declaration},\n", *lines[end:]))

    def without_declaration(self, name: str) -> str:
        """The text without the declaration of ``name``."""
        lines = self.text.splitlines(keepends=True)
        for call in self._fleet():
            if _declared_name(call) == name:
                start, end = call.lineno, call.end_lineno or call.lineno
                first, last = lines[start - 1].strip(), lines[end - 1].strip()
                if not first.startswith("EcosystemLibrary(") or last != "),":
                    raise self._unusual(start)
                return "".join((*lines[: start - 1], *lines[end:]))
        raise ConfigError(
            f"{name} is not declared in {_TUPLE} of {REGISTRY}",
            cause="only libraries of the fleet are integrated and removed",
            next_step="python -m ci libraries",
        )

    def _fleet(self) -> list[ast.Call]:
        """The calls in the tuple of the fleet, in order."""
        for node in ast.parse(self.text).body:
            target = node.target if isinstance(node, ast.AnnAssign) else None
            if isinstance(target, ast.Name) and target.id == _TUPLE:
                value = node.value if isinstance(node, ast.AnnAssign) else None
                if isinstance(value, ast.Tuple) and value.elts:
                    return [item for item in value.elts if isinstance(item, ast.Call)]
        raise self._unusual(0)

    def _unusual(self, line: int) -> ConfigError:
        return ConfigError(
            f"{REGISTRY}:{line}: {_TUPLE} is not laid out as expected",
            cause="it has to be a tuple of EcosystemLibrary(...) calls, each on lines of its own",
            next_step=f"ruff format {REGISTRY}",
        )


def _declared_name(call: ast.Call) -> str:
    for keyword in call.keywords:
        if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    return ""


def _executed(text: str, path: Path) -> ModuleType:
    """The registry's module from its text: data and pure functions, which ask nothing of the machine."""
    module = ModuleType("_registry_of_checkout")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look their module up while it is executed
    try:
        exec(compile(text, str(path), "exec"), vars(module))  # noqa: S102 - the farm's own file
    except Exception as error:
        raise ConfigError(
            f"{REGISTRY} cannot be read: {type(error).__name__}: {error}",
            cause="it was edited, and does not run any more",
            next_step=f"python {REGISTRY}",
        ) from error
    finally:
        del sys.modules[module.__name__]
    return module


def kinds() -> tuple[str, ...]:
    """The kinds of libraries, as the registry's type names them."""
    return tuple(build_utils.Kind.__args__)  # type: ignore[attr-defined]
