"""The templates, with their declarations, have no findings; each is really looked at."""

from __future__ import annotations

import pytest

from ci.integration.analysis import Analysis
from ci.integration.kept_exceptions import documented
from ci.integration.rules import static_findings
from ci.integration.subject import Subject, tree_of
from ci.registry import EcosystemLibrary, libraries_of

TEMPLATES = libraries_of("templates")


def _analysis(library: EcosystemLibrary) -> Analysis:
    subject = Subject(library.name, "template", library.source_dir, library)
    return Analysis(tree_of(subject, TEMPLATES))


@pytest.mark.parametrize("library", TEMPLATES, ids=lambda library: library.name)
def test_a_template_has_no_findings(library: EcosystemLibrary) -> None:
    analysis = _analysis(library)
    assert [item.text for item in static_findings(analysis)] == []
    own = {module.name for module in analysis.tree.own()}
    assert own
    assert own & analysis.definite
    assert analysis.tree.tests


def test_there_are_four_templates() -> None:
    assert sorted(library.source_dir.name for library in TEMPLATES) == [
        "cuda_extension",
        "ep_comm",
        "header_only",
        "python_dsl",
    ]


def test_the_kept_exception_of_a_template_is_seen_and_not_overlooked() -> None:
    found = [
        (library.source_dir.name, item.kind, item.opens_guard, item.missing)
        for library in TEMPLATES
        for item in documented(_analysis(library))
    ]
    assert found == [("python_dsl", "kept", True, ())]
