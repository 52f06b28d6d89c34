"""A dotted entry of a compat scope whose package is outside the scope."""

from __future__ import annotations

from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import top
from ci.integration.registry_rules.facts import RegistryFacts
from ci.integration.rule import Rule

RULE = Rule(
    name="dotted-scope",
    summary="a compat scope names a submodule without its package",
    guide=guide.SCOPE,
)


def check(facts: RegistryFacts) -> Iterator[Finding]:
    """Importing ``a.b`` executes ``a`` first, where the proxy is off when the scope holds only ``a.b``."""
    for library in facts.libraries:
        declared = facts.place_of(library)
        for entry in library.compat_scope:
            if top(entry) not in library.compat_scope:
                yield RULE.finding(
                    declared.place,
                    f"the compat scope of {library.name} holds {entry!r} but not {top(entry)!r}, which "
                    "is executed first and finds no torch",
                    f"name {top(entry)!r} instead; it covers its submodules",
                    line=declared.line_of("compat_scope"),
                    library=library.name,
                    subject=entry,
                )
