"""A late import that is kept on purpose, and whose comment does not say all that the guide asks for."""

from __future__ import annotations

from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import Analysis
from ci.integration.kept_exceptions import documented
from ci.integration.rule import Rule
from ci.integration.rules._late import finding_at

RULE = Rule(
    name="undocumented-exception",
    summary="a kept late import lacks its reason, its trigger path or its removal condition",
    guide=guide.KEPT_EXCEPTION,
)


def check(analysis: Analysis) -> Iterator[Finding]:
    """Exceptions by their look (a reason is given, or a guard is opened) with something missing."""
    for item in documented(analysis):
        if item.kind != "incomplete":
            continue
        imported = item.late.imported
        yield finding_at(
            analysis,
            RULE,
            item,
            f"{imported.function} keeps a late `{imported.statement}`, and what is written about it lacks "
            f"{' and '.join(item.missing)}",
            "say in a comment at the import why it fails at module level, what triggers it, and when it "
            "can be removed; or import it at the top of the module",
        )
