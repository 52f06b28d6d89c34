"""A submodule that is not what its pin says: missing, drifted, changed, or without a nested one."""

from __future__ import annotations

from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.registry_rules.facts import RegistryFacts
from ci.integration.rule import Rule
from ci.registry import build_utils

RULE = Rule(
    name="submodule",
    summary="a library's submodule is not checked out as it is pinned",
    guide=guide.SUBMODULE_PINNED,
)


def check(facts: RegistryFacts) -> Iterator[Finding]:
    """One finding for each problem of a pinned submodule."""
    for problem in facts.submodules:
        if problem.problem == build_utils.NOT_PINNED:
            continue
        library = facts.by_name(problem.library)
        if library is None:
            continue
        declared = facts.place_of(library)
        yield RULE.finding(
            declared.place,
            f"{problem.path} of {library.name} is not as pinned: {problem.problem}",
            problem.next_step,
            line=declared.line_of("pin"),
            library=library.name,
            subject=problem.path,
        )
