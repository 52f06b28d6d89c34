"""Cycles among the modules of a library, and whether the order of imports resolves them.

Python executes a module once, from its top. A cycle is harmless as long as nobody asks a module that is
still being executed for a name that it has not bound yet; that is played through here, starting as
``import PACKAGE`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ci.integration.analysis import Analysis, parents
from ci.integration.init_order import Unbound, unbound_names
from ci.integration.modules import Module


@dataclass(frozen=True)
class Cycle:
    """Modules that import one another at init. ``path`` is a shortest way round, its first module again
    at the end; ``unbound`` what goes wrong, empty when the order of imports resolves the cycle.
    """

    modules: tuple[str, ...]
    path: tuple[str, ...]
    unbound: tuple[Unbound, ...]


def cycles(analysis: Analysis) -> tuple[Cycle, ...]:
    """Every cycle (strongly connected part of the import graph) among the library's reached modules.

    A package that lies on the way to a submodule is a step only where it makes an import fail: one
    that merely contains what is imported is no reason to speak of a cycle.
    """
    graph = _graph(analysis, _steps)
    parts = [part for part in components(graph) if len(part) > 1]
    failures = unbound_names(analysis)
    found = []
    for part in parts:
        members = frozenset(part)
        inside = tuple(f for f in failures if {f.importer, f.target} <= members)
        found.append(Cycle(tuple(sorted(part)), _way_round(graph, members), inside))
    explained = {item for cycle in found for item in cycle.unbound}
    left = [item for item in failures if item not in explained]
    if left:
        with_ways = _graph(analysis, _steps_and_ways)
        found += [_through_packages(with_ways, item) for item in left]
    return tuple(sorted(found, key=lambda cycle: cycle.modules))


def _through_packages(graph: Mapping[str, tuple[str, ...]], failure: Unbound) -> Cycle:
    way = _shortest(graph, frozenset(graph), failure.target, through=failure.importer)
    way = way or (failure.target, failure.importer, failure.target)
    return Cycle(tuple(sorted(set(way))), way, (failure,))


def _graph(
    analysis: Analysis, steps: Callable[[Analysis, str], Iterator[str]]
) -> dict[str, tuple[str, ...]]:
    return {name: tuple(dict.fromkeys(steps(analysis, name))) for name in sorted(analysis.reached)}


def _steps(analysis: Analysis, name: str) -> Iterator[str]:
    for item, _ in analysis.edges[name]:
        if item.when != "condition":
            yield from (target for target in analysis.needed(item) if target in analysis.reached)


def _steps_and_ways(analysis: Analysis, name: str) -> Iterator[str]:
    around = {name, *parents(name)}
    for item, targets in analysis.edges[name]:
        if item.when != "condition":
            for target in targets:
                ways = (step for step in parents(target) if step not in around)
                yield from (step for step in (target, *ways) if step in analysis.reached)


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


_STARTS = 40  # of a large cycle, looking from everywhere costs more than it tells


def _way_round(graph: Mapping[str, tuple[str, ...]], members: frozenset[str]) -> tuple[str, ...]:
    """A short cycle among ``members``: the shortest through one of the first of them."""
    best: tuple[str, ...] = ()
    for start in sorted(members)[:_STARTS]:
        way = _shortest(graph, members, start)
        if way and (not best or len(way) < len(best)):
            best = way
        if len(best) == 2:
            break
    return best


def _shortest(
    graph: Mapping[str, tuple[str, ...]], members: frozenset[str], start: str, through: str = ""
) -> tuple[str, ...]:
    """A shortest way from ``start`` back to it, ``through`` a module that imports it."""
    came_from: dict[str, str] = {}
    front = [start]
    while front:
        following = []
        for node in front:
            for target in graph[node]:
                if target == start and through in ("", node):
                    way = [node]
                    while way[-1] != start:
                        way.append(came_from[way[-1]])
                    return (*reversed(way), start)
                if target in members and target not in came_from:
                    came_from[target] = node
                    following.append(target)
        front = following
    return ()


def order_is_marked(module: Module) -> bool:
    """True when the module keeps the order of its imports by hand (``# isort: off``)."""
    return module.holds(b"isort: off", b"isort:skip", b"isort: skip")
