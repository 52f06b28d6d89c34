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
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
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
        """As the wrapped loader does, with the proxy on."""
        with self._guard():
            self._loader.exec_module(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


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
        if spec is not None and spec.loader is not None and target is not None:
            # Typeshed wants a subclass of Loader; the import system asks for the two methods only.
            spec.loader = GuardedLoader(spec.loader, self.guards[top])  # type: ignore[assignment]
        return spec

    def _alias_spec(self, fullname: str, real_name: str) -> ModuleSpec | None:
        if real_name.partition(".")[0] not in self.guards or not _exists(real_name):
            return None
        return importlib.util.spec_from_loader(fullname, AliasLoader(real_name))  # type: ignore[arg-type]


def _exists(name: str) -> bool:
    return sys.modules.get(name) is not None or importlib.util.find_spec(name) is not None


def attach(package: str, tops: Sequence[str]) -> dict[str, ModuleType]:
    """Give every imported module of the libraries ``tops`` its second name below ``package``.

    Returns the top-level modules by name, to be set as attributes of the package.
    """
    for name, module in list(sys.modules.items()):
        if module is not None and name.partition(".")[0] in tops:
            sys.modules[f"{package}.{name}"] = module
    return {top: sys.modules[top] for top in tops if sys.modules.get(top) is not None}


def detach(package: str, tops: Sequence[str]) -> None:
    """The inverse of :func:`attach`: forget the second names."""
    prefixes = tuple(f"{package}.{top}" for top in tops)
    for name in list(sys.modules):
        if name in prefixes or name.startswith(tuple(f"{prefix}." for prefix in prefixes)):
            del sys.modules[name]
