"""A late ``importlib.import_module`` or ``__import__`` of torch or of a module that needs the proxy."""

from __future__ import annotations

from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import Analysis
from ci.integration.kept_exceptions import documented
from ci.integration.rule import Rule
from ci.integration.rules._late import late_finding

RULE = Rule(
    name="dynamic-import",
    summary="importlib.import_module or __import__ loads what needs the proxy, late",
    guide=guide.NO_LATE_IMPORT,
)


def check(analysis: Analysis) -> Iterator[Finding]:
    """Those whose name can be worked out; the run-time witness sees the others."""
    for item in documented(analysis):
        imported = item.late.imported
        if item.kind == "plain" and imported.when == "call" and not imported.is_statement:
            yield late_finding(analysis, RULE, item)
