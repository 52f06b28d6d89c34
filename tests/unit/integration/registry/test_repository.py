"""The rules over this repository: the templates are clean, and facts are those of the real files."""

from __future__ import annotations

from importlib import metadata

import pytest
from packaging.requirements import Requirement

from ci.integration.registry_rules import REGISTRY_RULES, registry_findings
from ci.integration.registry_rules.distributions import PADDLE_BRINGS
from ci.integration.registry_rules.facts import DECLARATIONS, gather
from ci.registry import libraries_of


def test_the_templates_have_no_finding() -> None:
    facts = gather(libraries_of("templates"))
    assert facts.metadata.keys() == {library.name for library in facts.libraries}
    assert {use.module for test in facts.suites for use in test.uses} >= {
        library.module for library in facts.libraries
    }
    assert registry_findings(facts) == ()


def test_findings_about_the_fleet_point_at_its_declarations() -> None:
    facts = gather(libraries_of("fleet"))
    found = registry_findings(facts)
    by_library = {(item.rule, item.library) for item in found}
    assert {("not-pinned", library.name) for library in facts.libraries if not library.pin} == {
        pair for pair in by_library if pair[0] == "not-pinned"
    }
    for item in found:
        if item.place == DECLARATIONS:
            assert item.line > 0, item.text


def test_the_declared_requirements_of_the_fleet_can_be_met_together() -> None:
    found = registry_findings(gather(libraries_of("fleet")))
    assert [item.text for item in found if item.subject.startswith("declared: ")] == []


def test_what_paddle_brings_is_what_its_metadata_says() -> None:
    says = {str(Requirement(text)) for text in metadata.requires("paddlepaddle") or ()}
    assert says == {str(Requirement(text)) for text in PADDLE_BRINGS}


def test_every_rule_has_a_name_of_its_own_and_names_the_guide() -> None:
    rules = [item.RULE for item in REGISTRY_RULES]
    assert len({rule.name for rule in rules}) == len(rules)
    assert all(rule.summary and rule.guide for rule in rules)


@pytest.mark.parametrize("library_set", ["fleet", "templates"])
def test_two_looks_give_the_same_findings(library_set: str) -> None:
    libraries = libraries_of(library_set)
    assert registry_findings(gather(libraries)) == registry_findings(gather(libraries))
