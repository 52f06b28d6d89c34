"""A dependency that imports torch while the library is loaded, and that the compat scope lacks."""

from __future__ import annotations

from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import Analysis, top
from ci.integration.imports import Import
from ci.integration.modules import Module
from ci.integration.rule import Rule

RULE = Rule(
    name="scope-incomplete",
    summary="the compat scope lacks a package that imports torch while the library is loaded",
    guide=guide.SCOPE,
)


def check(analysis: Analysis) -> Iterator[Finding]:
    """One finding for each package; which ones import torch is known to the tree (``torch_importers``)."""
    tree = analysis.tree
    found: dict[str, tuple[Module, Import]] = {}
    for name in sorted(analysis.reached):
        module = tree.modules[name]
        for item in module.imports:
            known = analysis.torch_importers_of(item)
            if item.when in ("init", "condition") and known:  # a fall-back copes with its absence
                found.setdefault(known[0], (module, item))
    for package, (module, item) in sorted(found.items()):
        if top(package) not in tree.scope:
            yield RULE.finding(
                module.place,
                f"{module.name} imports {package}, which imports torch while it is loaded "
                f"({tree.torch_importers[package]}), and the compat scope lacks it: its torch is not Paddle",
                f"add {top(package)!r} to compat_scope in the declaration of {tree.library}",
                line=item.line,
                column=item.column,
                library=tree.library,
                subject=package,
            )
