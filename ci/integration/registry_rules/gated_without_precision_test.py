"""A library gated by capability whose results no single-card test compares with anything."""

from __future__ import annotations

from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.registry_rules.facts import RegistryFacts
from ci.integration.registry_rules.suite_files import SINGLE_CARD
from ci.integration.rule import Rule

RULE = Rule(
    name="gated-without-precision-test",
    summary="a library gated by capability has no precision test",
    guide=guide.PRECISION_TEST,
)


def check(facts: RegistryFacts) -> Iterator[Finding]:
    """Communication libraries are left to their multi-card test, which compares bits.

    A test may use the library through a layer above it, so that its guard alone tells whose test it is.
    """
    for library in facts.libraries:
        if not library.requires.capability or library.kind == "ep_comm":
            continue
        tests = [
            item
            for item in facts.suites
            if not item.multi_card and library.availability in item.guards
        ]
        if any(item.compares for item in tests):
            continue
        declared = facts.place_of(library)
        lacks = (
            f"{tests[0].place} is guarded by it and compares no numbers"
            if tests
            else f"no test below {SINGLE_CARD} is guarded by it"
        )
        yield RULE.finding(
            tests[0].place if tests else declared.place,
            f"{library.name} is gated by capability {library.requires.capability}, and {lacks}",
            f"add a test, guarded by is_{library.availability}_available(), that compares results with an "
            "independent oracle (numpy.testing.assert_allclose)",
            line=0 if tests else declared.line,
            library=library.name,
            subject=library.name,
        )
