"""A submodule that needs the proxy and that importing the package does not import."""

from __future__ import annotations

from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import Analysis, parents
from ci.integration.kept_exceptions import documented
from ci.integration.rule import Rule

RULE = Rule(
    name="submodule-not-imported",
    summary="a submodule imports torch, and the package's __init__ chain does not import it",
    guide=guide.SUBMODULES_IMPORTED,
)


def check(analysis: Analysis) -> Iterator[Finding]:
    """One finding for each import statement that is missing, not for each module it would bring."""
    # A late import that is kept on purpose has findings of its own where something is missing.
    kept = {item.late.target for item in documented(analysis) if item.kind != "plain"}
    left = {
        module.name
        for module in analysis.tree.own()
        if module.name in analysis.sensitive
        and module.name not in analysis.reached
        and module.name.rpartition(".")[2] != "__main__"
        and analysis.brings_torch(module.name)
    }
    left -= analysis.closure_of(kept) if kept else set()
    for name in _starts(analysis, left):
        yield _finding(analysis, name, left)


def _starts(analysis: Analysis, left: set[str]) -> Iterator[str]:
    """The modules to import so that everything in ``left`` is: outer ones first, then what brings most."""

    def rank(name: str) -> tuple[int, int, str]:
        return name.count("."), -len(analysis.closure_of([name]) & left), name

    covered: set[str] = set()
    for name in sorted(left, key=rank):
        if name not in covered:
            yield name
            covered |= analysis.closure_of([name])


def _finding(analysis: Analysis, name: str, left: set[str]) -> Finding:
    tree = analysis.tree
    holder = next((tree.modules[p] for p in parents(name) if p in tree.modules), tree.modules[name])
    package, _, last = name.removeprefix(f"{holder.name}.").rpartition(".")
    reason = analysis.first_import(name)
    place = f"{tree.modules[name].place}:{reason.line}" if reason else tree.modules[name].place
    way = analysis.way_to_torch(name)
    through = f", through {' → '.join(way[1:-1])}" if len(way) > 2 else ""
    others = len(analysis.closure_of([name]) & left) - 1
    more = f"; {others} more modules that need it come with it" if others else ""
    lines = [item.last_line for item in holder.imports if item.when == "init"]
    return RULE.finding(
        holder.place,
        f"{name} imports {way[-1]} ({place}{through}) and importing {tree.packages[0]} does not import "
        f"it, so its first import comes after the guard{more}",
        f"add `from .{package} import {last}` to {holder.place}, or delete the module",
        line=max(lines, default=1),
        column=1,
        library=tree.library,
        subject=name,
    )
