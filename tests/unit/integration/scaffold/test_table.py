"""The table of GPUs as text: what was there stays, and what was put in goes out again."""

from __future__ import annotations

import pytest
import yaml

from ci.errors import ConfigError
from ci.integration.scaffold.table import names, with_entry, without_entry
from ci.integration.test_table import parse_table

TEST = "tests/multi_card_tests/moe/test_ring_dispatch_round_trip.py"
PLAIN = """\
# how many GPUs
tests:
  # exact ones first
  - test_case: [tests/multi_card_tests/moe/test_other.py]   # two are enough
    products:
      - num_gpus: 4
"""
GLOB = PLAIN + (
    "\n  - test_case: [tests/multi_card_tests/moe/*.py]\n    products:\n      - num_gpus: 8\n"
    "  - test_case: [tests/multi_card_tests/pp/*.py]\n    products:\n      - num_gpus: 2\n"
)
NOT_INDENTED = "tests:\n- test_case: [a.py]\n  products:\n    - num_gpus: 4\n"


@pytest.mark.parametrize("text", [PLAIN, GLOB, NOT_INDENTED])
def test_yaml_reads_the_new_entry_and_the_old_ones(text: str) -> None:
    data = yaml.safe_load(with_entry(text, TEST, 2))
    added = {"test_case": [TEST], "products": [{"num_gpus": 2}]}
    assert added in data["tests"]
    data["tests"].remove(added)
    assert data == yaml.safe_load(text)


@pytest.mark.parametrize("text", [PLAIN, GLOB, NOT_INDENTED])
def test_the_first_match_is_the_new_entry(text: str) -> None:
    assert parse_table(text).num_gpus(TEST) == 8
    assert parse_table(with_entry(text, TEST, 2)).num_gpus(TEST) == 2


def test_every_line_that_was_there_is_there_in_its_order() -> None:
    lines = with_entry(GLOB, TEST, 2).splitlines()
    kept = [line for line in lines if line in GLOB.splitlines()]
    assert [line for line in GLOB.splitlines() if line not in kept] == []
    assert lines.index(f"  - test_case: [{TEST}]") < lines.index(
        "  - test_case: [tests/multi_card_tests/moe/*.py]"
    )


@pytest.mark.parametrize("text", [PLAIN, GLOB, NOT_INDENTED, None])
def test_taking_it_out_gives_the_text_back(text: str | None) -> None:
    assert without_entry(with_entry(text, TEST, 2), TEST, 2) == text


def test_a_file_without_an_end_of_line_gets_one() -> None:
    text = PLAIN.rstrip("\n")
    assert with_entry(text, TEST, 2) == with_entry(PLAIN, TEST, 2)


def test_a_new_file_is_a_table() -> None:
    assert parse_table(with_entry(None, TEST, 2)).num_gpus(TEST) == 2


def test_an_edited_entry_is_found_and_left() -> None:
    edited = with_entry(PLAIN, TEST, 2).replace("num_gpus: 2", "num_gpus: 6")
    assert without_entry(edited, TEST, 2) == edited
    assert names(edited, TEST)
    assert not names(PLAIN, TEST)


def test_a_file_that_is_no_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="tests"):
        with_entry("other: []\n", TEST, 2)
