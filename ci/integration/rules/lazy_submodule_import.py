"""An import, in a function body, of a module of the scope that needs the proxy."""

from __future__ import annotations

from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import Analysis
from ci.integration.kept_exceptions import documented
from ci.integration.rule import Rule
from ci.integration.rules._late import late_finding

RULE = Rule(
    name="lazy-submodule-import",
    summary="a module that needs the proxy is imported in a function body",
    guide=guide.NO_LATE_IMPORT,
)


def check(analysis: Analysis) -> Iterator[Finding]:
    """An error where nothing imports the module inside the guard, a warning where something does."""
    for item in documented(analysis):
        imported = item.late.imported
        in_function = imported.when == "call" and imported.is_statement
        if item.kind == "plain" and not item.late.of_torch and in_function:
            yield late_finding(analysis, RULE, item)
