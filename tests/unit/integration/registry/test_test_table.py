"""The table of multi-card tests, with bash as the judge of patterns."""

from __future__ import annotations

import subprocess
import textwrap

import pytest

from ci.errors import ConfigError
from ci.integration.test_table import DEFAULT_GPUS, TableEntry, parse_table, read_table
from ci.registry import REPOSITORY

PATHS = (
    "tests/multi_card_tests/pipeline_parallel/test_gpt_pp.py",
    "tests/multi_card_tests/pipeline_parallel/deeper/test_gpt_pp.py",
    "tests/multi_card_tests/moe/test_moonep.py",
    "tests/multi_card_tests/moe/test_moonepX.pyc",
    "tests/multi_card_tests/[odd].py",
)
PATTERNS = (
    "tests/multi_card_tests/pipeline_parallel/*.py",
    "tests/multi_card_tests/*",
    "tests/*/moe/test_moonep.py",
    "tests/multi_card_tests/moe/test_moone?.py",
    "tests/multi_card_tests/moe/test_[a-m]*.py",
    "tests/multi_card_tests/moe/test_[!a-l]*",
    "tests/multi_card_tests/moe/test_moonep.py",
    "moe/test_moonep.py",
    "tests/test/*.py",
    "tests/multi_card_tests/[[]odd].py",
    "tests/multi_card_tests/pipeline_parallel/test_gpt_pp_py",
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_matches_as_in_bash(pattern: str) -> None:
    script = '[[ "$1" == $2 ]]'
    for path in PATHS:
        done = subprocess.run(("bash", "-c", script, "bash", path, pattern), check=False)
        assert TableEntry(pattern, 2, 1).matches(path) == (done.returncode == 0), path


def test_the_first_match_wins_and_nothing_is_eight() -> None:
    table = parse_table(
        textwrap.dedent("""\
        # comment
        tests:
          - test_case: [tests/multi_card_tests/moe/test_a.py, tests/multi_card_tests/moe/test_b.py]
            products:
              - num_gpus: 4
              - num_gpus: 1
          - test_case:
              - tests/multi_card_tests/moe/*.py
            products: [{num_gpus: 2}]
          - {test_case: [tests/multi_card_tests/moe/test_c.py], products: [{num_gpus: 3}]}
        """)
    )
    folder = "tests/multi_card_tests/moe"
    assert [(entry.num_gpus, entry.line) for entry in table.entries] == [
        (4, 3),
        (4, 3),
        (2, 7),
        (3, 10),
    ]
    assert table.num_gpus(f"{folder}/test_b.py") == 4
    assert table.num_gpus(f"{folder}/test_c.py") == 2
    assert table.num_gpus(f"{folder}/deeper/test_a.py") == 2
    assert table.find("tests/multi_card_tests/test_d.py") is None
    assert table.num_gpus("tests/multi_card_tests/test_d.py") == DEFAULT_GPUS == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tests: [", "is no YAML"),
        ("entries: []", "no list `tests`"),
        ("- 1", "no list `tests`"),
        ("tests: {a: 1}", "no list `tests`"),
        ("tests:\n- x", "line 2: not an entry"),
        ("tests:\n- {test_case: a.py, products: [{num_gpus: 2}]}", "no list of patterns"),
        ("tests:\n- {test_case: [], products: [{num_gpus: 2}]}", "is empty"),
        ("tests:\n- {test_case: [a.py]}", "no number of GPUs"),
        ("tests:\n- {test_case: [a.py], products: [{num_gpus: two}]}", "no number of GPUs"),
        ("tests:\n- {test_case: [a.py], products: [{num_gpus: 0}]}", "no number of GPUs"),
        ("tests:\n- {test_case: [a.py], products: [{num_gpus: true}]}", "no number of GPUs"),
        ("tests:\n- {test_case: ['@(a|b).py'], products: [{num_gpus: 2}]}", "is more than"),
        ("tests:\n- {test_case: ['[^a].py'], products: [{num_gpus: 2}]}", "is more than"),
    ],
)
def test_another_format_is_refused_with_its_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_table(text)
    assert words in str(refused.value)
    assert refused.value.next_step


def test_every_wrong_entry_is_told() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_table("tests:\n- 1\n- {test_case: [a.py], products: [{num_gpus: 2}]}\n- 2\n")
    assert [line[:7] for line in refused.value.details] == ["line 2:", "line 4:"]


def test_an_empty_table_and_none_have_no_entry() -> None:
    assert parse_table("").entries == ()
    assert read_table(REPOSITORY / "no such file").entries == ()


def test_the_repository_gives_its_exchange_test_two_gpus() -> None:
    table = read_table(REPOSITORY / "tests" / "test_configs.yaml")
    assert table.num_gpus("tests/multi_card_tests/templates/test_ep_exchange.py") == 2
    for entry in table.entries:
        assert list(REPOSITORY.glob(entry.pattern)), f"{entry.pattern} matches no file"
