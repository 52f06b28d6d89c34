"""Cycles among the modules of a library, and whether the order of imports resolves them.

Python executes a module once, from its top. A cycle is harmless as long as nobody asks a module that is
still being executed for a name that it has not bound yet; that is played through here, starting as
``import PACKAGE`` does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ci.integration.analysis import Analysis
from ci.integration.bindings import events
from ci.integration.imports import Import
from ci.integration.source_tree import Module


@dataclass(frozen=True)
class Unbound:
    """``importer`` asks ``target``, which is still being executed, for a ``name`` it has not bound yet."""

    importer: str
    imported: Import
    target: str
    name: str


@dataclass(frozen=True)
class Cycle:
    """Modules that import one another at init. ``path`` is a shortest way round, its first module again
    at the end; ``unbound`` what goes wrong, empty when the order of imports resolves the cycle.
    """

    modules: tuple[str, ...]
    path: tuple[str, ...]
    unbound: tuple[Unbound, ...]


def cycles(analysis: Analysis) -> tuple[Cycle, ...]:
    """Every cycle (strongly connected part of the import graph) among the library's reached modules."""
    graph = {
        name: tuple(dict.fromkeys(_steps(analysis, name))) for name in sorted(analysis.reached)
    }
    parts = [part for part in components(graph) if len(part) > 1]
    if not parts:
        return ()
    failures = _Play(analysis).run()
    found = []
    for part in parts:
        members = frozenset(part)
        unbound = tuple(f for f in failures if f.importer in members and f.target in members)
        found.append(Cycle(tuple(sorted(part)), _way_round(graph, members), unbound))
    return tuple(sorted(found, key=lambda cycle: cycle.modules))


def _steps(analysis: Analysis, name: str) -> Iterator[str]:
    for item, _ in analysis.edges[name]:
        if item.when != "condition":
            yield from (target for target in analysis.needed(item) if target in analysis.reached)


def components(graph: Mapping[str, tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The strongly connected components of a graph (Tarjan 1972), without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    on_stack: dict[str, None] = {}
    found: list[tuple[str, ...]] = []
    for root in graph:
        if root in index:
            continue
        work: list[tuple[str, Iterator[str]]] = []
        _enter(root, graph, index, low, on_stack, work)
        while work:
            node, targets = work[-1]
            target = next((item for item in targets if item in graph), None)
            if target is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    found.append(_pop(on_stack, node))
            elif target not in index:
                _enter(target, graph, index, low, on_stack, work)
            elif target in on_stack:
                low[node] = min(low[node], index[target])
    return found


def _enter(
    node: str,
    graph: Mapping[str, tuple[str, ...]],
    index: dict[str, int],
    low: dict[str, int],
    on_stack: dict[str, None],
    work: list[tuple[str, Iterator[str]]],
) -> None:
    index[node] = low[node] = len(index)
    on_stack[node] = None
    work.append((node, iter(graph[node])))


def _pop(on_stack: dict[str, None], node: str) -> tuple[str, ...]:
    members = []
    while True:
        last, _ = on_stack.popitem()
        members.append(last)
        if last == node:
            return tuple(members)


def _way_round(graph: Mapping[str, tuple[str, ...]], members: frozenset[str]) -> tuple[str, ...]:
    """A shortest cycle among ``members``."""
    best: tuple[str, ...] = ()
    for start in sorted(members):
        way = _shortest(graph, members, start)
        if way and (not best or len(way) < len(best)):
            best = way
        if len(best) == 2:
            break
    return best


def _shortest(
    graph: Mapping[str, tuple[str, ...]], members: frozenset[str], start: str
) -> tuple[str, ...]:
    came_from: dict[str, str] = {}
    front = [start]
    while front:
        following = []
        for node in front:
            for target in graph[node]:
                if target == start:
                    way = [node]
                    while way[-1] != start:
                        way.append(came_from[way[-1]])
                    return (*reversed(way), start)
                if target in members and target not in came_from:
                    came_from[target] = node
                    following.append(target)
        front = following
    return ()


class _Play:
    """Executes the imports and bindings of the modules, and nothing else of them."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._modules = analysis.tree.modules
        self._bound: dict[str, set[str]] = {}
        self._done: set[str] = set()
        self._failures: dict[tuple[str, str, str], Unbound] = {}

    def run(self) -> tuple[Unbound, ...]:
        for name in (*self._analysis.tree.packages, *self._analysis.tree.roots):
            self._execute(name)
        return tuple(self._failures.values())

    def _execute(self, name: str) -> None:
        parent, _, last = name.rpartition(".")
        if parent and parent in self._modules:
            self._execute(parent)
        if name in self._bound or name not in self._modules:
            return
        module = self._modules[name]
        self._bound[name] = set()
        statements: dict[int, list[Import]] = {}
        for item in module.statements:
            statements.setdefault(item.line, []).append(item)
        for event in events(module.tree.body):
            self._event(event, name, statements)
        for item in module.dynamic.imports:
            if item.when == "init":
                self._execute(item.module)
        self._done.add(name)
        if parent in self._bound:
            self._bound[parent].add(last)

    def _event(
        self, event: ast.stmt | str, name: str, statements: Mapping[int, list[Import]]
    ) -> None:
        if isinstance(event, str):
            self._bound[name].add(event)
            return
        for item in statements.get(event.lineno, ()):
            if item.column == event.col_offset + 1 and item.when in ("init", "fallback"):
                self._import(item, name)

    def _import(self, item: Import, importer: str) -> None:
        self._execute(item.module)
        known = self._bound.get(item.module)
        for name in item.names:
            if known is None or name == "*":
                self._bound[importer] |= known or set()
            elif name not in known and f"{item.module}.{name}" in self._modules:
                self._execute(f"{item.module}.{name}")
            elif name not in known and "__getattr__" not in known:
                self._missing(Unbound(importer, item, item.module, name))

    def _missing(self, unbound: Unbound) -> None:
        running = unbound.target not in self._done
        # A name that its text never binds may be a compiled submodule, or set by code that is not read.
        if (
            running
            and not unbound.imported.copes
            and unbound.name in self._modules[unbound.target].names
        ):
            key = (unbound.importer, unbound.target, unbound.name)
            self._failures.setdefault(key, unbound)


def order_is_marked(module: Module) -> bool:
    """True when the module keeps the order of its imports by hand (``# isort: off``)."""
    return module.holds(b"isort: off", b"isort:skip", b"isort: skip")
