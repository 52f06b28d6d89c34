"""Helpers that put off imports: ``lazy_loader.attach``, ``_LazyModule``, ``importlib.util.LazyLoader``."""

from __future__ import annotations

from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import Analysis
from ci.integration.rule import Rule

RULE = Rule(
    name="lazy-loader",
    summary="a lazy-loader helper puts off imports until after the guard has closed",
    guide=guide.NO_LATE_IMPORT,
)


def check(analysis: Analysis) -> Iterator[Finding]:
    """Every call of such a helper in the library's own modules."""
    for module in analysis.tree.own():
        for loader in module.dynamic.loaders:
            yield RULE.finding(
                module.place,
                f"{loader.helper} puts imports of {module.name} off until a name is first read, when the "
                "guard has closed",
                "replace it by plain imports at the top of the module",
                line=loader.line,
                column=loader.column,
                library=analysis.tree.library,
                subject=f"{module.name}:{loader.helper}",
            )
