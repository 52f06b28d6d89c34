"""Modules that import one another, and whether the order of imports resolves it."""

from __future__ import annotations

from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import Analysis
from ci.integration.cycles import Cycle, cycles, order_is_marked
from ci.integration.init_order import Unbound
from ci.integration.rule import Rule

RULE = Rule(
    name="circular-import",
    summary="modules import one another at init",
    guide=guide.CIRCULAR_IMPORT,
)


def check(analysis: Analysis) -> Iterator[Finding]:
    """An error where a name is not bound yet, a note where the order of imports resolves the cycle."""
    for cycle in cycles(analysis):
        yield _broken(analysis, cycle) if cycle.unbound else _resolved(analysis, cycle)


def _shown(cycle: Cycle) -> str:
    others = len(cycle.modules) + 1 - len(cycle.path)
    return " → ".join(cycle.path) + (f" (and {others} more modules)" if others > 0 else "")


def _broken(analysis: Analysis, cycle: Cycle) -> Finding:
    unbound = min(cycle.unbound, key=lambda item: item.caught)  # the first that stops the import
    return RULE.finding(
        analysis.tree.modules[unbound.importer].place,
        f"{_shown(cycle)}: {unbound.importer} asks for {unbound.name} while {unbound.target} is still being "
        f"executed and has not bound it: {_outcome(unbound)}",
        f"import {unbound.importer} after {unbound.name} is defined (# isort: off / # isort: on), or move "
        "what both need into a module of its own",
        line=unbound.imported.line,
        column=unbound.imported.column,
        library=analysis.tree.library,
        subject=" → ".join(cycle.path),
    )


def _outcome(unbound: Unbound) -> str:
    if unbound.caught:
        return "the import fails, and a fall-back is taken in silence, because the ImportError is caught"
    error = "AttributeError" if unbound.attribute else "ImportError"
    return f"importing the package ends in {error}"


def _resolved(analysis: Analysis, cycle: Cycle) -> Finding:
    first = analysis.tree.modules[cycle.path[0]]
    line = next(
        (item.line for item, _ in analysis.edges[first.name]
         if cycle.path[1] in analysis.needed(item)),
        1,
    )  # fmt: skip
    marked = any(order_is_marked(analysis.tree.modules[name]) for name in cycle.modules)
    kept = (
        "and is marked as kept by hand" if marked else "and nothing keeps a sorter from changing it"
    )
    return RULE.finding(
        first.place,
        f"{_shown(cycle)}: the order of imports resolves it, {kept}",
        "keep the order (# isort: off / # isort: on), or move what both need into a module of its own",
        line=line,
        level="note",
        library=analysis.tree.library,
        subject=" → ".join(cycle.path),
    )
