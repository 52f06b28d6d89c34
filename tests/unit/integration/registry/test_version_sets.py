"""Specifier sets against an enumeration of versions by `packaging`."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ci.integration.registry_rules.version_sets import allows_all, can_meet, joined

# Every version that could tell specifiers over numbers 0 to 4 apart: one number more on either side, and a
# fourth place for what lies between two releases of three places.
GRID = [
    Version(".".join(map(str, parts))) for parts in product(range(6), range(6), range(6), (0, 7))
]
NUMBER = st.integers(0, 4)
RELEASE = st.lists(NUMBER, min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))
PLAIN = st.tuples(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), RELEASE).map("".join)
PREFIX = st.tuples(st.sampled_from(["==", "!="]), RELEASE).map(lambda pair: "".join(pair) + ".*")
COMPATIBLE = st.lists(NUMBER, min_size=2, max_size=3).map(lambda p: "~=" + ".".join(map(str, p)))
SETS = st.lists(PLAIN | PREFIX | COMPATIBLE, max_size=3).map(
    lambda parts: SpecifierSet(",".join(parts))
)


@settings(max_examples=150, deadline=None)
@given(st.lists(SETS, min_size=1, max_size=3))
def test_meeting_is_that_of_some_version_of_the_grid(sets: list[SpecifierSet]) -> None:
    expected = any(all(version in one for one in sets) for version in GRID)
    assert can_meet(sets) == expected


@settings(max_examples=150, deadline=None)
@given(SETS, SETS)
def test_allowing_all_is_that_of_every_version_of_the_grid(
    wide: SpecifierSet, narrow: SpecifierSet
) -> None:
    expected = all(version in wide for version in GRID if version in narrow)
    assert allows_all(wide, narrow) == expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("==4.5.2", ">=4.4.1,<=4.4.2", False),  # MoonEP and an older flash-attention
        ("==4.5.2", "==4.4.1", False),
        (">=4.5", "<4.5", False),
        (">=4.5.0", "<=4.5.0", True),
        (">4.5", "<4.5.1", True),
        ("==4.5.*", "<4.5", False),
        ("~=4.4.1", ">=4.5", False),
        ("", "==1.0", True),
        (">=3.4.0.dev20260415", ">=3.3,<3.5", True),
        (">=3.4.0.dev20260415", "<3.4.0", False),  # PEP 440: `<3.4.0` refuses its pre-releases
        ("==1.0.post1", ">1.0", False),  # `>1.0` refuses post-releases of 1.0
        ("==1.0rc1", "<1.0", False),
        ("==1!1.0", "<5", False),  # an epoch outweighs every release
    ],
)
def test_pairs(one: str, other: str, expected: bool) -> None:
    assert can_meet([SpecifierSet(one), SpecifierSet(other)]) == expected
    assert can_meet([SpecifierSet(other), SpecifierSet(one)]) == expected


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("==4.5.*", ">=4.5,<4.7", False),  # 4.6
        ("==4.5.*", ">=4.5,<4.6", True),
        ("~=4.5.1", ">=4.5.1,<4.6", True),
        ("~=4.5.1", ">=4.5.1,<5", False),
        ("!=4.5.*", ">4.6", True),
        ("!=4.5.*", ">4.4,<4.6", False),
        (">1.0", ">=1.0", False),
        (">=1", ">=0", False),
        ("<=2", "", False),
        (">=0.1.9,<0.1.13", ">=0.1.9,<0.1.12", True),
        ("==4.5.2", ">=4.5.2", False),
        ("==2!1.0", "==2!1.0.0", True),
    ],
)
def test_allowing_all(wide: str, narrow: str, expected: bool) -> None:
    assert allows_all(SpecifierSet(wide), SpecifierSet(narrow)) == expected


def test_exclusions_can_take_the_last_version_away() -> None:
    sets = [SpecifierSet(text) for text in (">=2", "<=2", "!=2")]
    assert not can_meet(sets)
    assert can_meet(sets[:2])


def test_joined_admits_what_all_admit() -> None:
    both = joined([SpecifierSet(">=1"), SpecifierSet(""), SpecifierSet("<2")])
    assert both == SpecifierSet(">=1,<2")
