"""A documented late import that importing the package triggers by itself."""

from __future__ import annotations

from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import Analysis
from ci.integration.init_calls import Function, called_at_init
from ci.integration.kept_exceptions import documented
from ci.integration.rule import Rule
from ci.integration.rules._late import finding_at

RULE = Rule(
    name="exception-triggered-by-init",
    summary="importing the package calls the function of a kept late import",
    guide=guide.KEPT_EXCEPTION,
)


def check(analysis: Analysis) -> Iterator[Finding]:
    """Follows module-level calls and decorators to the function that holds the import."""
    kept = [item for item in documented(analysis) if item.kind in ("kept", "incomplete")]
    for item in kept:
        late, imported = item.late, item.late.imported
        chain = called_at_init(analysis).get((late.module.name, imported.function))
        if chain is None:
            continue
        yield finding_at(
            analysis,
            RULE,
            item,
            f"importing {analysis.tree.packages[0]} calls {imported.function} "
            f"({' → '.join(map(_shown, chain))}), so the late `{imported.statement}` happens at init",
            "take the call out of the module level, or import the module eagerly",
        )


def _shown(function: Function) -> str:
    module, name = function
    return f"{module}.{name}" if name else f"module level of {module}"
