"""A documented late import that no test covers, on the way of package init and of the call."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import Analysis
from ci.integration.kept_exceptions import Documented, documented
from ci.integration.rule import Rule
from ci.integration.rules._late import finding_at

RULE = Rule(
    name="untested-exception",
    summary="a kept late import has no test of package init and of its call path",
    guide=guide.KEPT_EXCEPTION,
)


def check(analysis: Analysis) -> Iterator[Finding]:
    """Looks for the late module's name (init path) and the function's (call path) in the tests."""
    kept = [item for item in documented(analysis) if item.kind == "kept"]
    if not kept:
        return
    others = (path for folder in analysis.tree.other_tests for path in folder.rglob("*.py"))
    files = (*analysis.tree.tests.values(), *sorted(others))
    texts = [path.read_text("utf-8", "replace") for path in files]
    for item in kept:
        missing = _missing(item, texts)
        if missing:
            late, imported = item.late, item.late.imported
            yield finding_at(
                analysis,
                RULE,
                item,
                f"{imported.function} keeps a late import of {late.target}, and no test file of the "
                f"library names {' or '.join(missing)}",
                "add a test that the package's import does not trigger it, and one that calls it",
            )


def _missing(item: Documented, texts: list[str]) -> list[str]:
    module = item.late.target
    callers = _public_callers(item)
    missing = []
    if not any(_names(text, module) for text in texts):
        missing.append(module)
    if not any(_names(text, name) for name in callers for text in texts):
        missing.append(" / ".join(callers))
    return missing


def _names(text: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def _public_callers(item: Documented) -> tuple[str, ...]:
    """The function itself, and functions of its module that call it by name, directly or not."""
    callers = [item.function.rpartition(".")[2]]
    for called in callers:  # grows while it is walked
        current = ""
        for line in item.late.module.lines:
            stripped = line.lstrip()
            if stripped.startswith(("def ", "async def ")):
                current = stripped.partition("def ")[2].partition("(")[0].strip()
            elif current and current not in callers and re.search(rf"\b{called}\(", line):
                callers.append(current)
    return tuple(callers)
