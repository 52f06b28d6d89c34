"""One module object under two names: ``quack.softmax`` is ``paddlefleet_ops.quack.softmax``.

Libraries import their own modules by the top-level name, pickles hold that name, and users import
through the package. The files lie in the package's folder, so without this finder an import through
the package would execute them a second time.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

Guard = Callable[[], AbstractContextManager[Any]]


class AliasLoader:
    """Gives an alias the module that already has another name, and leaves that module as it is."""

    def __init__(self, real_name: str) -> None:
        self._real_name = real_name
        self._real_spec: ModuleSpec | None = None

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        """The module under its real name, imported if it was not."""
        module = importlib.import_module(self._real_name)
        self._real_spec = getattr(module, "__spec__", None)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute nothing; take off the alias's spec, which the import system put on the module."""
        module.__spec__ = self._real_spec

    def get_code(self, _fullname: str) -> CodeType | None:
        """The code of the module: ``python -m`` runs that; ``None`` for an extension module."""
        loader: Any = getattr(importlib.util.find_spec(self._real_name), "loader", None)
        code: CodeType | None = loader.get_code(self._real_name) if loader is not None else None
        return code


class GuardedLoader:
    """Executes a module again inside its library's guard: what ``importlib.reload`` needs."""

    def __init__(self, loader: Any, guard: Guard) -> None:
        self._loader = loader
        self._guard = guard

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the wrapped loader does."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """As the wrapped loader does, with the proxy on; that loader is the module's afterwards."""
        _set_loader(module, self._loader)
        with self._guard():
            self._loader.exec_module(module)


class SourceLoader(SourceFileLoader):
    """Python's own, but it gives the code to who asks by the second name: ``python -m`` does."""

    def get_code(self, _fullname: str) -> CodeType | None:
        """The code of the module."""
        return super().get_code(self.name)


def _set_loader(module: ModuleType, loader: Any) -> None:
    if type(loader) is SourceFileLoader:
        loader = SourceLoader(loader.name, loader.path)
    if module.__spec__ is not None:
        module.__spec__.loader = loader
    module.__loader__ = loader


def _restore_loader(name: str, module: ModuleType) -> None:
    """Give a module the loader of its file, in place of the one that Paddle imports a scope with.

    Paddle's knows neither code, source nor data, so that ``inspect``, ``pkgutil.get_data``, tracebacks
    out of a zip archive and ``python -m`` would not work. Source: python/paddle/compat/proxy.py.
    """
    spec = getattr(module, "__spec__", None)
    if spec is None or spec.name != name or isinstance(spec.loader, SourceLoader):
        return
    loader = spec.loader
    if loader is not None and not hasattr(loader, "get_code"):
        origin = spec.origin or ""
        place = [str(Path(origin).parents[int(spec.submodule_search_locations is not None)])]
        found = PathFinder.find_spec(name, place)
        loader = found.loader if found is not None and found.origin == origin else None
    if loader is not None:
        _set_loader(module, loader)


class AliasFinder:
    """A meta-path finder for the libraries of the package.

    ``guards`` maps each top-level module name to the guard of its library, and is read at each
    import: it may change. It finds ``package.NAME…`` as the module ``NAME…``; ``NAME`` itself in
    the package's folder, which is never on ``sys.path``; and it reloads modules of a library inside
    its guard. A submodule that is imported late for the first time is
    found as always, without guard: the library has to import it eagerly if it needs the proxy.
    """

    def __init__(self, package: str, folder: str, guards: dict[str, Guard]) -> None:
        self.package = package
        self.guards = guards
        self._prefix = f"{package}."
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of an alias, of a top-level module, of a module to reload; else ``None``."""
        if fullname.startswith(self._prefix):
            return self._alias_spec(fullname, fullname[len(self._prefix) :])
        top = fullname.partition(".")[0]
        if top not in self.guards or (fullname != top and target is None):
            return None
        spec = PathFinder.find_spec(fullname, [self._folder] if fullname == top else path)
        if spec is None:
            return None
        if fullname == top and spec.loader is None and spec.submodule_search_locations is not None:
            # A namespace package: the search path must not follow sys.path, where the folder is not.
            spec.submodule_search_locations = list(spec.submodule_search_locations)
        if spec.loader is not None and target is not None:
            # Typeshed wants a subclass of Loader; the import system asks for the two methods only.
            spec.loader = GuardedLoader(spec.loader, self.guards[top])  # type: ignore[assignment]
        return spec

    def _alias_spec(self, fullname: str, real_name: str) -> ModuleSpec | None:
        if real_name.partition(".")[0] not in self.guards:
            return None
        module = sys.modules.get(real_name)
        real = getattr(module, "__spec__", None) if module else importlib.util.find_spec(real_name)
        if module is None and real is None:
            return None
        spec = ModuleSpec(fullname, AliasLoader(real_name), origin=getattr(real, "origin", None))  # type: ignore[arg-type]
        locations = getattr(real, "submodule_search_locations", None)
        if locations is not None:
            spec.submodule_search_locations = list(locations)
        return spec


def attach(package: str, tops: Sequence[str]) -> dict[str, ModuleType]:
    """Give every imported module of the libraries ``tops`` its second name below ``package``.

    Each has the loader of its file afterwards. Returns the top-level modules by name, to be set as
    attributes of the package.
    """
    for name, module in list(sys.modules.items()):
        if module is not None and name.partition(".")[0] in tops:
            _restore_loader(name, module)
            sys.modules[f"{package}.{name}"] = module
    return {top: sys.modules[top] for top in tops if sys.modules.get(top) is not None}


def detach(package: str, tops: Sequence[str]) -> None:
    """The inverse of :func:`attach`: forget the second names."""
    prefixes = tuple(f"{package}.{top}" for top in tops)
    for name in list(sys.modules):
        if name in prefixes or name.startswith(tuple(f"{prefix}." for prefix in prefixes)):
            del sys.modules[name]
