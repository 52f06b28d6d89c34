"""Taking back what a failed import of a library did to the process."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any

SCOPE_MARK = "__enable_torch_proxy__"  # set on a module of a scope by python/paddle/compat/proxy.py
_ABSENT = object()


@dataclass(frozen=True)
class ProcessState:
    """``sys.modules``, ``sys.path`` and ``sys.meta_path`` before a library was tried."""

    modules: dict[str, ModuleType]
    path: tuple[str, ...]
    finders: tuple[Any, ...]

    @classmethod
    def capture(cls) -> ProcessState:
        """The present state."""
        return cls(dict(sys.modules), tuple(sys.path), tuple(sys.meta_path))

    def leaked_proxies(self) -> tuple[str, ...]:
        """Paddle's finders that are in ``sys.meta_path`` more often than before, by type name."""
        before = Counter(map(id, self.finders))
        now = Counter(map(id, sys.meta_path))
        finders = {id(finder): finder for finder in sys.meta_path}
        return tuple(
            type(finder).__name__
            for key, finder in finders.items()
            if now[key] > before[key] and _is_of_paddle(type(finder))
        )

    def roll_back(self, folder: Path, tops: tuple[str, ...]) -> None:
        """Restore the state, given the folder of the package and the library's top-level names.

        Modules of the library, its aliases, everything else from the package's folder that is new,
        and every module that was imported with the proxy in it are forgotten. Other modules, such
        as those of the standard library, stay: Python keeps what was imported on the way to an
        import that failed, and an extension module can often not be initialised a second time.
        """
        sys.path[:] = self.path
        sys.meta_path[:] = self.finders
        new = {
            name: module
            for name, module in list(sys.modules.items())
            if self.modules.get(name, _ABSENT) is not module
        }
        kept = _packages_with_extensions(new, folder)
        for name, module in new.items():
            if self._must_go(name, module, folder, tops, kept):
                del sys.modules[name]
        for name, module in self.modules.items():
            if name not in sys.modules and _top(name) in (*tops, "torch"):
                sys.modules[name] = module

    def _must_go(
        self,
        name: str,
        module: ModuleType | None,
        folder: Path,
        tops: tuple[str, ...],
        kept: frozenset[str],
    ) -> bool:
        if _top(name) in (*tops, "torch") or lies_below(module, folder):
            return True
        return _top(name) not in kept and _is_proxied(module)


def _packages_with_extensions(modules: dict[str, ModuleType], folder: Path) -> frozenset[str]:
    """Top-level names, outside the package, that have just loaded an extension module."""
    return frozenset(
        _top(name)
        for name, module in modules.items()
        if str(getattr(module, "__file__", None)).endswith(tuple(EXTENSION_SUFFIXES))
        and not lies_below(module, folder)
    )


def _is_proxied(module: ModuleType | None) -> bool:
    values = dict(getattr(module, "__dict__", None) or {})
    if values.get(SCOPE_MARK):
        return True
    return any(
        isinstance(value, ModuleType)
        and _is_of_paddle(type(value))
        and _top(str(value.__name__)) == "torch"
        for value in values.values()
    )


def lies_below(module: ModuleType | None, folder: Path) -> bool:
    """True when the module's file, or a folder of its package, lies below ``folder``."""
    places = [getattr(module, "__file__", None), *_search_path(module)]
    return any(isinstance(place, str) and _is_below(Path(place), folder) for place in places)


def _search_path(module: ModuleType | None) -> list[str]:
    try:
        return [str(place) for place in getattr(module, "__path__", None) or ()]
    except Exception:  # a namespace path is computed, and may fail after a failed import
        return []


def _is_below(place: Path, folder: Path) -> bool:
    if place.is_relative_to(folder):
        return place != folder
    resolved, root = place.resolve(), folder.resolve()
    return resolved.is_relative_to(root) and resolved != root


@contextmanager
def first_on_path(folder: Path) -> Iterator[None]:
    """``folder`` as the first entry of ``sys.path``, taken away again at the end."""
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


@contextmanager
def without_forbidden_torch() -> Iterator[None]:
    """Take entries of ``sys.modules`` that forbid torch (``None``) away for a while.

    Under the compat guard an unscoped ``import torch`` would else get an empty module out of such
    an entry, because the proxy takes it for a module that was loaded before.
    """
    forbidden = [
        name
        for name, module in list(sys.modules.items())
        if module is None and _top(name) == "torch"
    ]
    for name in forbidden:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in forbidden:
            sys.modules[name] = None  # type: ignore[assignment]


def _is_of_paddle(kind: type) -> bool:
    return _top(kind.__module__) == "paddle"


def _top(name: str) -> str:
    return name.partition(".")[0]


@contextmanager
def default_environment(variables: Iterable[tuple[str, str]]) -> Iterator[None]:
    """Environment variables that a library's import reads; what the user has set stays as it is."""
    added = [(name, value) for name, value in variables if name not in os.environ]
    os.environ.update(added)
    try:
        yield
    finally:
        for name, _ in added:
            os.environ.pop(name, None)
