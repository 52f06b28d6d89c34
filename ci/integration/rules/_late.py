"""What the rules on late imports share: where such a finding is, and how it is told."""

from __future__ import annotations

from ci.findings import Finding, Level
from ci.integration.analysis import Analysis
from ci.integration.kept_exceptions import Documented
from ci.integration.rule import Rule


def finding_at(
    analysis: Analysis,
    rule: Rule,
    item: Documented,
    why: str,
    mend: str,
    level: Level | None = None,
) -> Finding:
    """A finding of ``rule`` at a late import: module, function and target identify it."""
    late, imported = item.late, item.late.imported
    return rule.finding(
        late.module.place,
        why,
        mend,
        line=imported.line,
        column=imported.column,
        level=level,
        library=analysis.tree.library,
        subject=f"{late.module.name}:{imported.function}:{late.target}",
    )


def late_finding(analysis: Analysis, rule: Rule, item: Documented) -> Finding:
    """A finding about a late import that is not a documented exception."""
    late, imported = item.late, item.late.imported
    level = rule.level
    if late.of_torch:
        why = "outside the guard this is no longer Paddle: it fails, or gives the torch installed here"
        if imported.copes:
            why += "; the ImportError is caught, so the fall-back is taken in silence"
            level = "note"
        mend = "import torch at the top of the module"
    else:
        why, mend = _of_submodule(analysis, item)
        level = "warning" if late.reached else rule.level
    if item.circular:
        why += "; its comment gives a circular dependency as the reason, which the guide does not accept"
        mend += ", and break the cycle by the order of imports (# isort: off / # isort: on)"
    where = f"{imported.function} has a late `{imported.statement}`"
    return finding_at(analysis, rule, item, f"{where}: {why}", mend, level)


def _of_submodule(analysis: Analysis, item: Documented) -> tuple[str, str]:
    late = item.late
    way = " → ".join(analysis.way_to_torch(late.target))
    mend = "import it at the top of the module"
    if analysis.imports_back(late.target, late.module.name):
        mend += f"; {late.target} imports this module in turn, so mind the order of imports"
    if late.reached:
        return (
            f"it needs the proxy ({way}); the package imports it before, which hides the fault",
            mend,
        )
    if late.target in analysis.tree.torch_importers:
        known = analysis.tree.torch_importers[late.target]
        return f"{late.target} imports torch while it is loaded ({known}), outside the guard", mend
    if way == late.target:
        return f"the compat scope says that {late.target} needs the proxy", mend
    return f"it needs the proxy ({way}), and nothing imports it inside the guard", mend
