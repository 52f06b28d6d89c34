"""A file that is no Python of this interpreter: nothing can be said about it."""

from __future__ import annotations

from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import Analysis
from ci.integration.rule import Rule

RULE = Rule(
    name="unreadable-source",
    summary="a file cannot be parsed, so the other rules are blind to it",
    guide=guide.EAGER_IMPORT,
)


def check(analysis: Analysis) -> Iterator[Finding]:
    """One finding per file."""
    for item in analysis.tree.unreadable:
        yield RULE.finding(
            item.place,
            f"it is no Python source of this interpreter: {item.why}",
            "mend the file, or run the check with the Python that the library needs",
            line=item.line,
            library=analysis.tree.library,
            subject=item.place,
        )
