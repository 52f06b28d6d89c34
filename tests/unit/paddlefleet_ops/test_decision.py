"""The decision is a function of manifest and environment; `packaging` is the other opinion."""

from __future__ import annotations

import itertools

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

CONDITIONS = ["", ">=3.12", ">=9.0", ">=12.9", ">=12.6,<13", "==9.0", "!=9.0", ">8.0,<=10.3", "<13"]
VERSIONS = [
    "3.10",
    "3.12",
    "3.13",
    "8.0",
    "8.9",
    "9.0",
    "10.0",
    "10.3",
    "12.0",
    "12.6",
    "12.9",
    "13.0",
]


@pytest.mark.parametrize(("condition", "found"), list(itertools.product(CONDITIONS, VERSIONS)))
def test_conditions_mean_what_pep_440_says(part, condition, found):
    requires = part("_requires")
    ours = requires.satisfies(requires.parse_version(found), condition)
    assert ours is (Version(found) in SpecifierSet(condition))


@pytest.mark.parametrize("text", ["=>9", "9.0", ">=9.0a", ">= ", "~=3.1", ">=9.*", ">=9.0;<10"])
def test_a_condition_that_cannot_be_read_is_named(part, text):
    with pytest.raises(ValueError, match="write it like"):
        part("_requires").Requires(capability=text)


def test_every_unmet_condition_is_a_reason_with_what_was_found(part, manifest_of, entry):
    manifest = manifest_of(entry("sonic", cuda=">=12.9", python=">=3.12", capability=">=10.0"))
    environment = part("_requires").Environment((3, 11), (12, 6), ((9, 0),))
    assert part("_decision").decide(manifest, environment)["sonic"].reasons == (
        "needs CUDA >=12.9; found 12.6",
        "needs Python >=3.12; found 3.11",
        "needs compute capability >=10.0; found 9.0",
    )


ENVIRONMENTS = {
    "cpu": (None, ()),
    "no device": ((13, 0), ()),
    **{f"{major}.{minor}": ((13, 0), ((major, minor),)) for major, minor in
       [(8, 0), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)]},
}  # fmt: skip
GATES = {
    "none": ({}, set(ENVIRONMENTS)),
    "hopper": ({"capability": ">=9.0"}, {"9.0", "10.0", "10.3", "12.0"}),
    "blackwell": ({"capability": ">=10.0", "cuda": ">=12.9"}, {"10.0", "10.3", "12.0"}),
    "hopper only": ({"capability": ">=9.0,<10"}, {"9.0"}),
    "cuda": ({"cuda": ">=12.9"}, set(ENVIRONMENTS) - {"cpu"}),
    "with cpu path": (
        {"capability": ">=9.0", "cpu_path": True},
        {"cpu", "no device", "9.0", "10.0", "10.3", "12.0"},
    ),
    "newer python": ({"python": ">=3.13"}, set()),
}


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("place", ENVIRONMENTS)
def test_any_host_can_be_simulated(part, manifest_of, entry, gate, place):
    changes, loads_in = GATES[gate]
    cuda, capabilities = ENVIRONMENTS[place]
    environment = part("_requires").Environment((3, 12), cuda, capabilities)
    decision = part("_decision").decide(manifest_of(entry("lib", **changes)), environment)["lib"]
    assert isinstance(decision, part("_decision").Load) is (place in loads_in)


def test_a_library_is_blocked_with_what_it_depends_on(part, manifest_of, entry):
    manifest = manifest_of(
        entry("base", python=">=3.13"),
        entry("user", depends_on=["base"]),
        entry("user-of-user", depends_on=["user"]),
        entry("orphan", depends_on=["nowhere"]),
        entry("of-left-out", depends_on=["gone"]),
        left_out=[
            {"name": "gone", "module": "gone", "availability": "gone", "hint": "", "reasons": ["x"]}
        ],
    )
    decisions = part("_decision").decide(manifest, part("_requires").Environment((3, 12), None))
    assert {name: decision.reasons for name, decision in decisions.items()} == {
        "gone": ("was not built into this wheel: x",),
        "base": ("needs Python >=3.13; found 3.12",),
        "user": ("needs the library base; it needs Python >=3.13; found 3.12",),
        "user-of-user": (
            "needs the library user; it needs the library base; it needs Python >=3.13; found 3.12",
        ),
        "orphan": ("needs the library nowhere; it is not in this wheel",),
        "of-left-out": ("needs the library gone; it was not built into this wheel: x",),
    }


def test_the_capability_is_needed_only_where_a_library_asks_for_it(part, manifest_of, entry):
    needs = part("_decision").needs_capability
    assert not needs(manifest_of(entry("a", cuda=">=12.9")))
    assert needs(manifest_of(entry("a"), entry("b", capability=">=9.0")))
