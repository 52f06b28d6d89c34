"""A module-level ``__getattr__`` (PEP 562) that imports what needs the proxy on first access."""

from __future__ import annotations

from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import Analysis
from ci.integration.imports import Import
from ci.integration.kept_exceptions import documented
from ci.integration.modules import Module
from ci.integration.rule import Rule
from ci.integration.rules._late import late_finding

RULE = Rule(
    name="module-getattr-import",
    summary="a module's __getattr__ imports what needs the proxy when a name is first read",
    guide=guide.NO_LATE_IMPORT,
)


def check(analysis: Analysis) -> Iterator[Finding]:
    """Imports with a known target, and those of a computed name where something is left to import."""
    for item in documented(analysis):
        if item.kind == "plain" and item.late.imported.when == "getattr":
            yield late_finding(analysis, RULE, item)
    for module in analysis.tree.own():
        for unknown in module.dynamic.unknown:
            if unknown.when == "getattr":
                yield from _computed(analysis, module, unknown)


def _computed(analysis: Analysis, module: Module, unknown: Import) -> Iterator[Finding]:
    left = [
        name
        for name in sorted(analysis.sensitive)
        if name.startswith(f"{module.name}.") and name not in analysis.reached
    ]
    if not left:
        return
    yield RULE.finding(
        module.place,
        f"{unknown.function} imports a module by a computed name; {len(left)} modules below "
        f"{module.name} need the proxy and are imported nowhere else, the first is {left[0]}",
        f"import them at the top of {module.place}",
        line=unknown.line,
        column=unknown.column,
        library=analysis.tree.library,
        subject=f"{module.name}:{unknown.function}",
    )
