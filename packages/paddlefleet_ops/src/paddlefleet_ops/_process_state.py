"""Taking back what a failed import of a library did to the process."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any

SCOPE_MARK = "__enable_torch_proxy__"  # set on a module of a scope by python/paddle/compat/proxy.py
PROXY_MODULE = "paddle.compat.proxy"


@dataclass(frozen=True)
class ProxyState:
    """What Paddle's torch proxy remembers: the finder's scope and switch, the modules that it never
    serves, and the real torch modules that it put aside. Source: python/paddle/compat/proxy.py.

    Empty where Paddle keeps none of it under these names.
    """

    finder: dict[str, Any]
    kept_out: frozenset[str]
    put_aside: dict[str, ModuleType]

    @classmethod
    def capture(cls) -> ProxyState:
        """The present state."""
        proxy = _module_values(sys.modules.get(PROXY_MODULE))
        finder = getattr(proxy.get("TORCH_PROXY_FINDER"), "__dict__", {})
        copies = {
            name: set(value) if isinstance(value, set) else value for name, value in finder.items()
        }
        return cls(
            copies,
            frozenset(proxy.get("TORCH_PROXY_BLOCKED_MODULES", ())),
            dict(proxy.get("TORCH_MODULES_CACHE", {})),
        )

    def restore(self) -> None:
        """Make it the state again."""
        proxy = _module_values(sys.modules.get(PROXY_MODULE))
        if "TORCH_PROXY_FINDER" in proxy:
            vars(proxy["TORCH_PROXY_FINDER"]).update(self.finder)
        if "TORCH_PROXY_BLOCKED_MODULES" in proxy:
            proxy["TORCH_PROXY_BLOCKED_MODULES"].intersection_update(self.kept_out)
        if "TORCH_MODULES_CACHE" in proxy:
            cache = proxy["TORCH_MODULES_CACHE"]
            cache.clear()
            cache.update(self.put_aside)


@dataclass(frozen=True)
class ProcessState:
    """The state of Python's imports, and of Paddle's torch proxy, before a library was tried."""

    modules: dict[str, ModuleType]
    path: tuple[str, ...]
    finders: tuple[Any, ...]
    path_hooks: tuple[Any, ...]
    proxy: ProxyState

    @classmethod
    def capture(cls) -> ProcessState:
        """The present state."""
        return cls(
            dict(sys.modules),
            tuple(sys.path),
            tuple(sys.meta_path),
            tuple(sys.path_hooks),
            ProxyState.capture(),
        )

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

        Every entry of ``sys.modules`` that was there is there again. Of the new ones, modules of the
        library, its aliases, everything else from the package's folder, torch, and every module that
        was imported with the proxy in it are forgotten. Other new modules, such as those of the
        standard library, stay: Python keeps what was imported on the way to an import that failed, and
        an extension module (so also a real torch) can often not be initialised a second time. Threads
        that the library started go on.
        """
        sys.path[:] = self.path
        sys.meta_path[:] = self.finders
        if tuple(sys.path_hooks) != self.path_hooks:
            sys.path_hooks[:] = self.path_hooks
            sys.path_importer_cache.clear()  # it holds finders that a hook of the library made
        new = {
            name: module for name, module in list(sys.modules.items()) if name not in self.modules
        }
        kept = _packages_with_extensions(new, folder)
        for name, module in new.items():
            if self._must_go(name, module, folder, tops, kept):
                del sys.modules[name]
        for name, module in self.modules.items():
            if name not in sys.modules or sys.modules[name] is not module:
                sys.modules[name] = module
        self.proxy.restore()

    def _must_go(
        self,
        name: str,
        module: object,
        folder: Path,
        tops: tuple[str, ...],
        kept: frozenset[str],
    ) -> bool:
        if _top(name) in tops or _top(type(module).__module__) in tops:
            return True
        if lies_below(module, folder) or _is_proxy(module):
            return True
        return _top(name) not in kept and (_top(name) == "torch" or _is_proxied(module))


def _packages_with_extensions(modules: Mapping[str, object], folder: Path) -> frozenset[str]:
    """Top-level names, outside the package, that have just loaded an extension module."""
    return frozenset(
        _top(name)
        for name, module in modules.items()
        if str(_module_values(module).get("__file__")).endswith(tuple(EXTENSION_SUFFIXES))
        and not lies_below(module, folder)
    )


def _is_proxied(module: object) -> bool:
    values = _module_values(module)
    return bool(values.get(SCOPE_MARK)) or any(map(_is_proxy, list(values.values())))


def _is_proxy(value: object) -> bool:
    """True for what Paddle gives in place of torch or of a part of it."""
    if not (issubclass(type(value), ModuleType) and _is_of_paddle(type(value))):
        return False
    return _top(str(_module_values(value).get("__name__"))) == "torch"


def lies_below(module: object, folder: Path) -> bool:
    """True when the module's file, or a folder of its package, lies below ``folder``."""
    places = [_module_values(module).get("__file__"), *_search_path(module)]
    return any(isinstance(place, str) and _is_below(Path(place), folder) for place in places)


def _search_path(module: object) -> list[str]:
    try:
        return [str(place) for place in _module_values(module).get("__path__") or ()]
    except Exception:  # a namespace path is computed, and may fail after a failed import
        return []


def _module_values(module: object) -> dict[str, Any]:
    """The names of a module, as they are: anything may be in ``sys.modules``, and asking for an
    attribute runs the module's ``__getattr__``, which may import, or raise what it likes.
    """
    if not issubclass(type(module), ModuleType):
        return {}
    values: dict[str, Any] = ModuleType.__getattribute__(module, "__dict__")
    return values


def _is_below(place: Path, folder: Path) -> bool:
    if place.is_relative_to(folder):
        return place != folder
    resolved, root = place.resolve(), folder.resolve()
    return resolved.is_relative_to(root) and resolved != root


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
