"""A documented late import that opens no compat context where it happens."""

from __future__ import annotations

from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import Analysis
from ci.integration.kept_exceptions import documented
from ci.integration.rule import Rule
from ci.integration.rules._late import finding_at

RULE = Rule(
    name="exception-without-context",
    summary="a kept late import neither opens a compat context nor says that it needs none",
    guide=guide.KEPT_EXCEPTION,
)


def check(analysis: Analysis) -> Iterator[Finding]:
    """The guard of the package import is closed when the import happens: it needs one of its own."""
    for item in documented(analysis):
        if item.kind != "kept" or item.opens_guard or item.says_without_proxy:
            continue
        late, imported = item.late, item.late.imported
        yield finding_at(
            analysis,
            RULE,
            item,
            f"{imported.function} imports {late.target} late and outside any compat context, so its "
            "torch is not the proxy",
            "put the import into `with paddle.use_compat_guard(scope=…, silent=True)`, or say in the "
            "comment that it does not need the proxy",
        )
