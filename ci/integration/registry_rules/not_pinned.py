"""A submodule library without a pin: nobody can say what would be built."""

from __future__ import annotations

from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.registry_rules.facts import RegistryFacts
from ci.integration.rule import Rule
from ci.registry import build_utils

RULE = Rule(
    name="not-pinned",
    summary="a library's submodule has no pinned commit",
    guide=guide.SUBMODULE_PINNED,
    level="warning",
)


def check(facts: RegistryFacts) -> Iterator[Finding]:
    """A warning, because such a library is left out of a wheel, with that reason."""
    for problem in facts.submodules:
        library = facts.by_name(problem.library)
        if problem.problem != build_utils.NOT_PINNED or library is None:
            continue
        declared = facts.place_of(library)
        yield RULE.finding(
            declared.place,
            f"{library.name} has no pin, so a wheel leaves it out",
            f"set pin to the full commit that was verified: git ls-remote {library.url}",
            line=declared.line,
            library=library.name,
            subject=problem.path,
        )
