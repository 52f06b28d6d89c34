"""A test that uses a library without asking whether it is available."""

from __future__ import annotations

from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.registry_rules.facts import RegistryFacts
from ci.integration.registry_rules.suite_files import SuiteFile, Use
from ci.integration.rule import Rule
from ci.registry import EcosystemLibrary

RULE = Rule(
    name="test-without-guard",
    summary="a test uses a library without a skip guard",
    guide=guide.AVAILABILITY_GUARD,
)


def check(facts: RegistryFacts) -> Iterator[Finding]:
    """One finding for each file and library: the first use that no guard covers."""
    owners = {module: item for item in facts.libraries for module in item.modules}
    for test in facts.suites:
        if test.unreadable:
            yield _unreadable(test)
        seen: set[str] = set()
        for use in test.uses:
            library = owners.get(use.module)
            if library is None or library.name in seen or use.covered & _enough(facts, library):
                continue
            seen.add(library.name)
            yield _finding(test, use, library)


def _enough(facts: RegistryFacts, library: EcosystemLibrary) -> frozenset[str]:
    """The availabilities that imply the library's: its own, and those of libraries that depend on it."""
    return frozenset(
        item.availability for item in facts.libraries if library in facts.with_dependencies(item)
    )


def _finding(test: SuiteFile, use: Use, library: EcosystemLibrary) -> Finding:
    guard = f"is_{library.availability}_available()"
    if library.availability in test.guards and use.at_module_level:
        why = (
            f"{use.module} is imported while the file is collected, which its guard by {guard} does not "
            "reach: where the library is blocked the import raises RuntimeError"
        )
        mend = f"import it in the tests, or first: if not {guard}: pytest.skip(..., allow_module_level=True)"
    elif test.guards:
        found = ", ".join(f"is_{name}_available()" for name in sorted(test.guards))
        why = f"{use.module} is used here without a skip by {guard}; the file's guards are: {found}"
        mend = f"skip by {guard}"
    else:
        why = (
            f"{use.module} is used without a skip by {guard}: the test fails wherever it is blocked"
        )
        mend = f"pytestmark = pytest.mark.skipif(not {guard}, reason=...), or skip in the test"
    return RULE.finding(
        test.place, why, mend, line=use.line, library=library.name, subject=library.name
    )


def _unreadable(test: SuiteFile) -> Finding:
    return RULE.finding(
        test.place,
        f"the file is no Python that can be read: {test.unreadable}",
        f"python -m py_compile {test.place}",
        subject="unreadable",
    )
