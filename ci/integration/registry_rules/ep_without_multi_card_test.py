"""A communication library that no registered multi-card test exercises."""

from __future__ import annotations

from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.registry_rules.facts import RegistryFacts
from ci.integration.registry_rules.suite_files import MULTI_CARD, SuiteFile
from ci.integration.rule import Rule
from ci.integration.test_table import TABLE, TestTable
from ci.registry import EcosystemLibrary

RULE = Rule(
    name="ep-without-multi-card-test",
    summary="an expert-parallel library has no registered multi-card test",
    guide=guide.MULTI_CARD_TEST,
)
LEAST_GPUS = 2


def check(facts: RegistryFacts) -> Iterator[Finding]:
    """A library of kind ``ep_comm`` needs one test that is guarded by it and gets its GPUs.

    A test may use the library through a layer above it, so that its guard alone tells whose test it is.
    """
    for library in facts.libraries:
        if library.kind != "ep_comm":
            continue
        tests = [item for item in facts.suites if item.multi_card and _uses(item, library)]
        found = [_problem(item, library, facts.table) for item in tests]
        problems = [problem for problem in found if problem]
        if len(problems) < len(tests):
            continue
        declared = facts.place_of(library)
        place, line, why, mend = next(iter(problems), _no_test(library))
        yield RULE.finding(
            place or declared.place,
            why,
            mend,
            line=line if place else declared.line,
            library=library.name,
            subject=library.name,
        )


_Problem = tuple[str, int, str, str]


def _uses(test: SuiteFile, library: EcosystemLibrary) -> bool:
    return library.availability in test.guards or any(
        use.module in library.modules for use in test.uses
    )


def _no_test(library: EcosystemLibrary) -> _Problem:
    return (
        "",
        0,
        f"{library.name} exchanges data between ranks, and no test below {MULTI_CARD} uses it",
        f"add one that is guarded by is_{library.availability}_available(), and register it in {TABLE}",
    )


def _problem(test: SuiteFile, library: EcosystemLibrary, table: TestTable) -> _Problem | None:
    """What keeps ``test`` from being the multi-card test of ``library``, or ``None``."""
    guard = f"is_{library.availability}_available()"
    if library.availability not in test.guards:
        line = next(use.line for use in test.uses if use.module in library.modules)
        why = f"the multi-card test of {library.name} has no guard by {guard}"
        return test.place, line, why, f"skip it with {guard}"
    entry = table.find(test.place)
    if entry is None:
        why = (
            f"{test.place}, the multi-card test of {library.name}, is not registered: it would get the "
            "default number of GPUs, whatever it needs"
        )
        return table.place, 0, why, f"add an entry with test_case: [{test.place}] and num_gpus"
    if entry.num_gpus < LEAST_GPUS:
        why = (
            f"{test.place}, the multi-card test of {library.name}, gets {entry.num_gpus} GPU by "
            f"{entry.pattern!r}, the first pattern that matches: nothing is exchanged"
        )
        mend = f"give it num_gpus: {LEAST_GPUS} or more, before any wider pattern"
        return table.place, entry.line, why, mend
    return None
