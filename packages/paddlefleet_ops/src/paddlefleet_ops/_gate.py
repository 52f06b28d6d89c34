"""Other threads wait for the package before they import a part of it.

Python does not make them: an import of ``package.part`` goes on as soon as ``package`` is in
``sys.modules``, which is long before it is initialised (``importlib._bootstrap._find_and_load_unlocked``).
It would execute a library outside its guard, and perhaps twice. What stays open is the moment between
the entry in ``sys.modules`` and the first statement of the package, which no code of it can close.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType


class WaitingLoader:
    """Loads a module of the package when the package is there: as whoever finds it then says.

    The waiting is done here, because while finders are asked the import system holds the lock that every
    other import needs (``importlib._bootstrap._find_spec``).
    """

    def __init__(self, package: str, path: Sequence[str] | None) -> None:
        self._package = package
        self._path = path
        self._real: ModuleSpec | None = None
        self._is_there = False

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the package, for which Python's own lock is taken; raises what that raises."""
        importlib.import_module(self._package)
        module = sys.modules.get(spec.name)
        if module is not None:
            self._real, self._is_there = getattr(module, "__spec__", None), True
            return module
        self._real = _found(spec.name, self._path)
        return importlib.util.module_from_spec(self._real)

    def exec_module(self, module: ModuleType) -> None:
        """Execute a module that was not there, and take the spec of this loader off again."""
        module.__spec__ = self._real
        loader = self._real.loader if self._real is not None else None
        if loader is not None and not self._is_there:
            loader.exec_module(module)


def _found(name: str, path: Sequence[str] | None) -> ModuleSpec:
    for finder in list(sys.meta_path):
        spec = finder.find_spec(name, path, None)
        if spec is not None:
            return spec
    raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class Gate:
    """A meta-path finder that lets the thread which made it pass, and makes the others wait."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._prefix = f"{package}."
        self._owner = threading.get_ident()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """``None`` for whoever passes, else a spec whose loader waits."""
        if not fullname.startswith(self._prefix) or threading.get_ident() == self._owner:
            return None
        return ModuleSpec(fullname, WaitingLoader(self._package, path))  # type: ignore[arg-type]


@contextmanager
def others_wait(package: str) -> Iterator[None]:
    """Keep other threads from importing parts of ``package`` until it is initialised."""
    gate = Gate(package)
    sys.meta_path.insert(0, gate)
    try:
        yield
    finally:
        if gate in sys.meta_path:
            sys.meta_path.remove(gate)
