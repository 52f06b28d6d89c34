"""``import torch`` in a function body."""

from __future__ import annotations

from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import Analysis
from ci.integration.kept_exceptions import documented
from ci.integration.rule import Rule
from ci.integration.rules._late import late_finding

RULE = Rule(
    name="lazy-torch-import",
    summary="torch is imported in a function body, which runs after the guard has closed",
    guide=guide.NO_LATE_IMPORT,
)


def check(analysis: Analysis) -> Iterator[Finding]:
    """Every late import statement of torch that is no exception. Those that cope are notes."""
    for item in documented(analysis):
        imported = item.late.imported
        in_function = imported.when == "call" and imported.is_statement
        if item.kind == "plain" and item.late.of_torch and in_function:
            yield late_finding(analysis, RULE, item)
