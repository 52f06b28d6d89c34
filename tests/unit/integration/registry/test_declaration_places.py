"""Lines of declarations, checked against the text of the registry itself."""

from __future__ import annotations

import pytest

from ci.integration.declaration_places import DeclarationPlace, declaration_places
from ci.integration.registry_rules.facts import DECLARATIONS
from ci.registry import REPOSITORY, build_utils


def test_every_library_of_the_registry_is_found_at_its_call() -> None:
    text = (REPOSITORY / DECLARATIONS).read_text("utf-8")
    lines = text.splitlines()
    found = declaration_places(text, DECLARATIONS)
    assert found.keys() == {library.name for library in build_utils.all_libs()}
    for name, place in found.items():
        assert lines[place.line - 1].strip() == "EcosystemLibrary("
        assert f'name="{name}"' in lines[place.line_of("name") - 1]
        assert "compat_scope=" in lines[place.line_of("compat_scope") - 1]


def test_calls_with_a_prefix_or_a_positional_name_count_and_computed_names_do_not() -> None:
    text = (
        'x = registry.EcosystemLibrary(\n    "alpha",\n    pin=None)\n'
        "y = EcosystemLibrary(name=made())\n"
        'z = Other(name="beta")\n'
    )
    found = declaration_places(text, "f.py")
    assert found == {"alpha": DeclarationPlace("f.py", 1, {"pin": 3})}
    assert found["alpha"].line_of("pin") == 3
    assert found["alpha"].line_of("run_requires") == 1


def test_a_text_that_is_no_python_is_refused() -> None:
    with pytest.raises(SyntaxError):
        declaration_places("EcosystemLibrary(", "f.py")
