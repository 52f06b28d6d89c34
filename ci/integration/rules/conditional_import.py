"""A module-level import of what needs the proxy that hangs on a condition."""

from __future__ import annotations

from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import TORCH, Analysis, top
from ci.integration.imports import Import
from ci.integration.modules import Module
from ci.integration.rule import Rule

RULE = Rule(
    name="conditional-import",
    summary="whether a module that needs the proxy is initialised inside the guard hangs on a condition",
    guide=guide.EAGER_IMPORT,
    level="warning",
)


def check(analysis: Analysis) -> Iterator[Finding]:
    """Conditional imports of torch, and of modules that no unconditional import reaches."""
    for module in analysis.tree.own():
        for item in module.imports:
            if item.when == "condition" and not item.is_fixed:
                yield from _judge(analysis, module, item)


def _judge(analysis: Analysis, module: Module, item: Import) -> Iterator[Finding]:
    if top(item.module) == TORCH:
        needs = item.module
    else:
        needed = (name for name in analysis.needed(item) if name in analysis.sensitive)
        needs = next((name for name in needed if name not in analysis.definite), "")
    if not needs:
        return
    yield RULE.finding(
        module.place,
        f"`{item.statement}` is executed only if {_shown(item.condition)}; where that does not hold, "
        f"{needs} is not initialised inside the guard, and whoever imports it later does so outside",
        "import it unconditionally, or in try/except ImportError if it may be absent",
        line=item.line,
        column=item.column,
        library=analysis.tree.library,
        subject=f"{module.name}:{item.module}",
    )


def _shown(condition: str) -> str:
    return condition if len(condition) <= 100 else f"{condition[:99]}…"
