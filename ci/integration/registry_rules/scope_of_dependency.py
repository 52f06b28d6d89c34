"""A compat scope that lacks the module of a library on which the library depends."""

from __future__ import annotations

from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.registry_rules.facts import RegistryFacts
from ci.integration.rule import Rule

RULE = Rule(
    name="scope-of-dependency",
    summary="a compat scope lacks a library that it depends on",
    guide=guide.SCOPE,
)


def check(facts: RegistryFacts) -> Iterator[Finding]:
    """Transitive: a dependency's own dependencies are loaded under the same guard."""
    for library in facts.libraries:
        declared = facts.place_of(library)
        for other in facts.with_dependencies(library)[1:]:
            if other.module not in library.compat_scope:
                yield RULE.finding(
                    declared.place,
                    f"{library.name} depends on {other.name}, whose module {other.module!r} its compat "
                    "scope lacks: the proxy is off for that module if it is imported here first",
                    f"add {other.module!r} to the compat_scope of {library.name}",
                    line=declared.line_of("compat_scope"),
                    library=library.name,
                    subject=other.module,
                )
