"""What importing a library executes, and what of it needs the proxy: the questions that rules ask.

Terms. A module is *sensitive* when executing it imports torch, by itself or through another module of the
scope. A module is *reached* when importing the library's packages (and the modules that its public
names lie in) executes it, so that this happens inside the guard. A late import is one in a function; after
the guard has closed, its torch is no longer Paddle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from ci.integration.imports import Import
from ci.integration.modules import Module
from ci.integration.source_tree import SourceTree

TORCH = "torch"
Answer = TypeVar("Answer")


def top(name: str) -> str:
    """The top-level package of a module's name."""
    return name.partition(".")[0]


@dataclass(frozen=True)
class LateImport:
    """A late import of something that needs the proxy. ``target`` is the module that needs it;
    ``reached`` is true when importing the library imports that module anyway.
    """

    module: Module
    imported: Import
    target: str
    reached: bool

    @property
    def of_torch(self) -> bool:
        """True for torch itself, which no earlier import helps: its proxies go when the guard closes."""
        return top(self.target) == TORCH


@dataclass(frozen=True)
class Analysis:
    """A :class:`~ci.integration.source_tree.SourceTree` with the answers of its import graph."""

    tree: SourceTree
    _answers: dict[object, Any] = field(default_factory=dict, repr=False, compare=False)

    def once(self, question: Callable[[Analysis], Answer]) -> Answer:
        """The answer of ``question`` about this library, which is worked out the first time only."""
        if question not in self._answers:
            self._answers[question] = question(self)
        answer: Answer = self._answers[question]
        return answer

    @cached_property
    def edges(self) -> Mapping[str, tuple[tuple[Import, tuple[str, ...]], ...]]:
        """Module to its imports at init, each with the modules of the tree that it executes."""
        return {
            name: tuple(
                (item, targets)
                for item in module.imports
                if item.at_init and (targets := self.targets(item))
            )
            for name, module in self.tree.modules.items()
        }

    def targets(self, item: Import) -> tuple[str, ...]:
        """The modules of the tree that an import names: the module, and submodules among its names."""
        found = [item.module] if item.module in self.tree.modules else []
        if item.how == "import" and not found:
            found = [name for name in parents(item.module) if name in self.tree.modules][:1]
        names = item.names
        if (
            "*" in names and found
        ):  # PEP 328: a star import brings the submodules that __all__ names
            names = (*names, *(self.tree.modules[item.module].exported or ()))
        submodules = (f"{item.module}.{name}" for name in names)
        found += [name for name in submodules if name in self.tree.modules]
        return tuple(found)

    def needed(self, item: Import) -> tuple[str, ...]:
        """The targets whose own content an import needs: not a package that only leads to submodules."""
        targets = self.targets(item)
        package = self.tree.modules.get(item.module)
        if package is None:
            # `import package.compiled`: of the package nothing but the way is needed
            return targets if item.names else ()
        if not package.is_package or not item.names:
            return targets
        submodules = tuple(name for name in targets if name != item.module)
        of_package = {name for name in item.names if f"{item.module}.{name}" not in submodules}
        known = self.names_of(item.module)
        # A name that the package's text never binds is a compiled submodule.
        return targets if "*" in known or of_package & {*known, "*"} else submodules

    def names_of(self, name: str) -> frozenset[str]:
        """The names that executing a module binds, those of star imports included.

        ``*`` is among them where the module star-imports from one that is not read.
        """
        known = self._names_of.get(name)
        if known is None:
            module = self.tree.modules[name]
            self._names_of[name] = module.names - {"*"}  # also ends a cycle of star imports
            known = self._names_of[name] = self._with_stars(module)
        return known

    @cached_property
    def _names_of(self) -> dict[str, frozenset[str]]:
        return {}

    def _with_stars(self, module: Module) -> frozenset[str]:
        found = set(module.names - {"*"})
        for item in module.statements if "*" in module.names else ():
            if "*" not in item.names or not item.at_init:
                continue
            source = self.tree.modules.get(item.module)
            found |= self.star_of(source, self.names_of(item.module)) if source else {"*"}
        return frozenset(found)

    def star_of(self, module: Module, bound: Iterable[str]) -> set[str]:
        """Those of the names ``bound`` in a module that a star import of it takes."""
        exported = module.exported
        if exported is None:
            return {name for name in bound if not name.startswith("_")}
        return set(bound) & {*exported, "*"}

    @cached_property
    def definite(self) -> frozenset[str]:
        """The modules that importing the library executes whatever holds."""
        return _closure(self._successors(("init",)), self._start)

    @cached_property
    def reached(self) -> frozenset[str]:
        """The modules that importing the library executes, fall-backs and conditions included."""
        return _closure(self._possible, self._start)

    def closure_of(self, names: Iterable[str]) -> frozenset[str]:
        """What importing the modules ``names`` executes, fall-backs and conditions included."""
        asked = tuple(names)
        known = self._closures.get(asked)
        if known is None:
            start = [name for given in asked for name in (given, *parents(given))]
            known = self._closures[asked] = _closure(self._possible, start)
        return known

    def imports_back(self, name: str, module: str) -> bool:
        """True when importing the module ``name`` imports ``module``, which an import at its top would
        then find half executed. The packages around ``module`` are being executed already.
        """
        if module in parents(name):  # importing a submodule imports its package in any case
            return any(module in self._needed_by[step] for step in self.closure_of([name]))
        around = frozenset(parents(module))
        start = [step for step in (name, *parents(name)) if step not in around]
        return module in _closure(self._possible, start, around)

    @cached_property
    def _needed_by(self) -> Mapping[str, frozenset[str]]:
        return {
            name: frozenset(target for item, _ in edges for target in self.needed(item))
            for name, edges in self.edges.items()
        }

    def brings_torch(self, name: str) -> bool:
        """True when importing the module ``name`` late executes an import of torch not executed before."""
        new = self.closure_of([name]) - self.reached
        return any(module in self._importers for module in new)

    @cached_property
    def _importers(self) -> frozenset[str]:
        """The modules that import torch themselves."""
        return frozenset(name for name, step in self.sensitive.items() if top(step) == TORCH)

    @cached_property
    def _closures(self) -> dict[tuple[str, ...], frozenset[str]]:
        return {}

    @cached_property
    def _start(self) -> tuple[str, ...]:
        roots = (*self.tree.packages, *self.tree.roots)
        return tuple(name for root in roots for name in (root, *parents(root)))

    @cached_property
    def _possible(self) -> Mapping[str, frozenset[str]]:
        return self._successors(("init", "condition", "fallback"))

    def _successors(self, kinds: tuple[str, ...]) -> Mapping[str, frozenset[str]]:
        """Module to the modules that its imports of these ``kinds`` execute: targets and their parents."""
        return {
            name: frozenset(
                step
                for item, targets in edges
                if item.when in kinds
                for target in targets
                for step in (target, *parents(target))
                if step in self.tree.modules
            )
            for name, edges in self.edges.items()
        }

    @cached_property
    def external_reached(self) -> frozenset[str]:
        """Names outside the tree that reached modules import at init: ``triton``, ``triton.language``."""
        return frozenset(
            name
            for module in self.reached
            for item in self.tree.modules[module].imports
            if item.at_init
            for name in (item.module, *parents(item.module))
        )

    @cached_property
    def sensitive(self) -> Mapping[str, str]:
        """Every sensitive module, to the next step on its way to torch (``torch`` itself, or a module)."""
        found: dict[str, str] = {}
        users: dict[str, list[str]] = {}
        for name, module in self.tree.modules.items():
            for item in module.imports:
                if not item.at_init:
                    continue
                if top(item.module) == TORCH:
                    found.setdefault(name, item.module)
                for target in self.needed(item):
                    users.setdefault(target, []).append(name)
        pending = list(found)
        while pending:
            target = pending.pop()
            for user in users.get(target, ()):
                if user not in found:
                    found[user] = target
                    pending.append(user)
        return found

    def way_to_torch(self, name: str) -> tuple[str, ...]:
        """The chain of modules from ``name`` to the import of torch: ``("a.b", "a.c", "torch.nn")``."""
        way = [name]
        while way[-1] in self.sensitive and len(way) < 50:
            way.append(self.sensitive[way[-1]])
        return tuple(way)

    @cached_property
    def late_imports(self) -> tuple[LateImport, ...]:
        """Every late import of torch or of something sensitive, in the library's own modules."""
        return tuple(
            LateImport(module, item, target, reached)
            for module in self.tree.own()
            for item in module.imports
            if item.late
            for target, reached in self._sensitive_targets(module, item)
        )

    def _sensitive_targets(self, module: Module, item: Import) -> Iterator[tuple[str, bool]]:
        """The first of what a late import names that needs the proxy; an unreached one comes first.

        The module itself and the packages around it do not count: they are imported already.
        """
        if top(item.module) == TORCH:
            yield item.module, False
            return
        around = {module.name, *parents(module.name)}
        loaded = self.reached | self.closure_of([module.name])
        names = [
            name
            for name in self.needed(item)
            if name in self.sensitive and name not in around
            if name in loaded or self.brings_torch(name)
        ]
        names.sort(key=lambda name: name in loaded)
        if names:
            yield names[0], names[0] in loaded
        elif top(item.module) not in self._read_packages:
            yield from self._outside_target(item)

    def _outside_target(self, item: Import) -> Iterator[tuple[str, bool]]:
        """What needs the proxy of a package whose sources are not here: because the scope says so, or
        because it is known to import torch; unless the library has imported it already.
        """
        package = top(item.module)
        if package in self.tree.scope and package not in self._external_packages:
            yield item.module, False
            return
        for name in self.torch_importers_of(item):
            if name not in self.external_reached:
                yield name, False
                return

    def torch_importers_of(self, item: Import) -> tuple[str, ...]:
        """Those of the modules that an import executes which are known to import torch, its own first."""
        asked = (item.module, *(f"{item.module}.{name}" for name in item.names))
        known = self.tree.torch_importers
        return tuple(name for name in (*asked, *parents(item.module)) if name in known)

    @cached_property
    def _read_packages(self) -> frozenset[str]:
        return frozenset(top(name) for name in self.tree.modules)

    @cached_property
    def _external_packages(self) -> frozenset[str]:
        return frozenset(top(name) for name in self.external_reached)

    def first_import(self, name: str) -> Import | None:
        """The import of torch or of the next module on the way to it, for naming a line."""
        step = self.sensitive.get(name)
        for item in self.tree.modules[name].imports:
            if item.at_init and (item.module == step or step in self.targets(item)):
                return item
        return None


def _closure(
    successors: Mapping[str, frozenset[str]],
    start: Iterable[str],
    without: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """Everything that ``start`` leads to, not by way of ``without``."""
    pending = [name for name in start if name in successors]
    done = {*pending, *without}
    while pending:
        new = successors[pending.pop()] - done
        done |= new
        pending += new
    return frozenset(done - without)


def parents(name: str) -> Iterator[str]:
    """The packages around a module, the nearest first."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name
