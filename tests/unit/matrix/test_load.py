from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from ci.errors import ConfigError
from ci.matrix.capability import Capability
from ci.matrix.load import load, parse
from ci.matrix.places import index_lines, line_of, spell
from ci.matrix.schema import SCHEMA_FILE

VALID = """\
pythons = ["3.10", "3.12"]

[paddle]
gpu = "paddlepaddle-gpu>=3.3"
cpu = "paddlepaddle==3.3.1"

[[cuda]]
version = "12.6"
image = "registry/build:cuda12.6-el8"
capabilities = ["9.0", "8.0"]
paddle_index = "https://example.org/packages/cu126/"

[[cuda]]
version = "13.0"
image = "registry/build:cuda13.0-el8"
capabilities = ["9.0", "10.0"]
paddle_index = "https://example.org/packages/cu130/"
paddle_gpu = "paddlepaddle-gpu>=3.4"

[sets]
hopper = ["9.0a"]
blackwell = ["10.0f"]

[[exclude]]
cuda = ["12.6"]
pythons = ["3.12"]
reason = "for the test"

[tiers.pr]
about = "one cell"
cuda = ["13.0"]
pythons = ["3.12"]
sets = ["default", "hopper"]
"""


def problems_of(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        parse(text)
    assert refused.value.exit_code == 2
    assert refused.value.next_step
    return refused.value.details


def only_problem(old: str, new: str) -> str:
    """The one problem of the valid file after one edit."""
    assert VALID.count(old) == 1, f"{old!r} must be there once"
    problems = problems_of(VALID.replace(old, new))
    assert len(problems) == 1, problems
    return problems[0]


def test_a_valid_file_becomes_values() -> None:
    file = parse(VALID)
    assert file.pythons == ("3.10", "3.12")
    first, second = file.cudas
    assert first.capabilities == (Capability(8, 0), Capability(9, 0))
    assert first.paddle.gpu == "paddlepaddle-gpu>=3.3"
    assert second.paddle.gpu == "paddlepaddle-gpu>=3.4"
    assert second.paddle.index == "https://example.org/packages/cu130/"
    assert second.paddle.cpu == "paddlepaddle==3.3.1"
    assert [item.name for item in file.sets] == ["hopper", "blackwell"]
    assert file.excludes[0].reason == "for the test"
    assert file.tiers[0].match.sets == ("", "hopper")


def test_versions_are_sorted_by_number_whatever_the_order_in_the_file() -> None:
    text = VALID.replace('["3.10", "3.12"]', '["3.12", "3.9", "3.10"]').replace('"3.9", ', "")
    assert parse(text).pythons == ("3.10", "3.12")


def test_a_tier_without_sets_means_the_default_set() -> None:
    text = VALID.replace('sets = ["default", "hopper"]\n', "")
    assert parse(text).tiers[0].match.sets == ("",)


@pytest.mark.parametrize(
    ("old", "new"),
    [("[paddle]", "[padle]"), ('about = "one cell"', 'abuot = "one cell"')],
)
def test_a_misspelt_key_is_also_a_missing_one(old: str, new: str) -> None:
    problems = problems_of(VALID.replace(old, new))
    assert len(problems) == 2
    assert sum("did you mean" in line for line in problems) == 1
    assert sum("is missing" in line for line in problems) == 1


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            'paddle_gpu = "paddlepaddle-gpu>=3.4"',
            'paddle_gpi = "paddlepaddle-gpu>=3.4"',
            "matrix.toml:18: cuda[1].paddle_gpi: unknown key 'paddle_gpi'; "
            "did you mean 'paddle_gpu'?",
        ),
        (
            'capabilities = ["9.0", "8.0"]',
            "capabilities = [9.0]",
            "matrix.toml:10: cuda[0].capabilities[0]: must be a text in quotes, not 9.0",
        ),
        (
            'pythons = ["3.10", "3.12"]\n',
            'pythons = ["3.10", "3.12"]\nhost = 1\n',
            "matrix.toml:2: host: unknown key 'host'; "
            "known are pythons, paddle, cuda, sets, exclude, tiers",
        ),
        (
            'capabilities = ["9.0", "8.0"]',
            'capabilities = "8.0;9.0"',
            "matrix.toml:10: cuda[0].capabilities: must be a list, not '8.0;9.0'",
        ),
        (
            'capabilities = ["9.0", "8.0"]',
            "capabilities = []",
            "matrix.toml:10: cuda[0].capabilities: is empty; it needs at least one entry",
        ),
        (
            'image = "registry/build:cuda12.6-el8"\n',
            "",
            "matrix.toml:7: cuda[0].image: is missing",
        ),
        (
            'image = "registry/build:cuda12.6-el8"',
            'image = " "',
            "matrix.toml:9: cuda[0].image: ' ' must be a text that is not empty",
        ),
        (
            'reason = "for the test"\n',
            "",
            "matrix.toml:24: exclude[0].reason: is missing: every exclude says why, "
            "so that the matrix can print it",
        ),
        (
            'hopper = ["9.0a"]\nblackwell',
            'hopper = ["9.0a"]\nblack_well',
            "matrix.toml:22: sets.black_well: the name 'black_well' must be a lower-case name of "
            'letters and digits, neither "default" nor like sm90',
        ),
        (
            "blackwell = ",
            "sm100 = ",
            "matrix.toml:22: sets.sm100: the name 'sm100' must be a lower-case name of "
            'letters and digits, neither "default" nor like sm90',
        ),
        (
            '"https://example.org/packages/cu126/"',
            '"example.org/packages/cu126"',
            "matrix.toml:11: cuda[0].paddle_index: 'example.org/packages/cu126' must be "
            "an https:// address of a package index",
        ),
    ],
)
def test_a_wrong_shape_is_told_with_its_place(old: str, new: str, expected: str) -> None:
    assert only_problem(old, new) == expected


@pytest.mark.parametrize(
    ("old", "new", "place", "says"),
    [
        ('["9.0", "8.0"]', '["9.0", "9.9"]', ":10: cuda[0].capabilities[1]", "toolkit knows 9.9"),
        ('["9.0", "8.0"]', '["9.0", "10.3"]', ":10: cuda[0].capabilities[1]", "12.9 or newer"),
        ('["9.0", "10.0"]', '["7.0", "9.0"]', ":16: cuda[1].capabilities[0]", "removed in CUDA"),
        ('["9.0", "8.0"]', '["9.0", "9.0"]', ":10: cuda[0].capabilities", "9.0 is there 2 times"),
        ('["9.0a"]', '["9.0x"]', ":21: sets.hopper[0]", "nearest: 9.0, 9.0a"),
        ('["9.0a"]', '["10.0", "10.0f"]', ":21: sets.hopper", "exclude each other"),
        ('["9.0a"]', '["9.0a", "9.0a"]', ":21: sets.hopper", "9.0a is there 2 times"),
        ('["10.0f"]', '["10.7"]', ":22: sets.blackwell", "no CUDA of the file can compile it"),
        ('["3.10", "3.12"]', '["3.9", "3.12"]', ":1: pythons[0]", "older than 3.10"),
        ('["3.10", "3.12"]', '["3.12", "3.12"]', ":1: pythons[1]", "there twice"),
        ('cu126/"', 'cu129/"', ":11: cuda[0].paddle_index", "is for cu129, not cu126"),
        ("build:cuda12.6", "build:cuda12.9", ":9: cuda[0].image", "is for CUDA 12.9, not 12.6"),
        ("gpu>=3.3", "gpu>>3.3", ":4: paddle.gpu", "is not a requirement (PEP 508)"),
        ('"paddlepaddle==3.3.1"', '"paddle==3.3.1"', ":5: paddle.cpu", "on paddlepaddle"),
        ("paddlepaddle-gpu>=3.4", "torch", ":18: cuda[1].paddle_gpu", "on paddlepaddle-gpu"),
        ('cuda = ["12.6"]', 'cuda = ["12.7"]', ":25: exclude[0].cuda[0]", "unknown CUDA '12.7'"),
        ('"default", "hopper"]', '"hoper"]', ":33: tiers.pr.sets[0]", "did you mean 'hopper'?"),
        ('cuda = ["13.0"]', 'cuda = ["13.1"]', ":31: tiers.pr.cuda[0]", "did you mean '13.0'?"),
        (
            'cuda = ["12.6"]\npythons = ["3.12"]\n',
            "",
            ":24: exclude[0]",
            "says neither cuda nor pythons nor sets",
        ),
        (
            '[tiers.pr]\nabout = "one cell"\ncuda = ["13.0"]',
            '[tiers.pr]\nabout = "one cell"\ncuda = ["12.6"]',
            ":29: tiers.pr",
            "selects no cell that can be built",
        ),
    ],
)
def test_a_wrong_value_is_told_with_its_place(old: str, new: str, place: str, says: str) -> None:
    problem = only_problem(old, new)
    assert problem.startswith(f"matrix.toml{place}: ")
    assert says in problem


def test_an_exclude_that_matches_nothing_is_an_error() -> None:
    again = '[[exclude]]\ncuda = ["12.6"]\npythons = ["3.12"]\nreason = "again"\n\n[tiers.pr]'
    problem = only_problem("[tiers.pr]", again)
    assert problem.startswith("matrix.toml:29: exclude[1]: matches nothing")


def test_a_tier_of_a_set_that_its_cuda_cannot_compile_selects_nothing() -> None:
    text = VALID + '\n[tiers.old]\nabout = "x"\ncuda = ["12.6"]\nsets = ["blackwell"]\n'
    assert problems_of(text) == ("matrix.toml:35: tiers.old: selects no cell that can be built",)


def test_what_a_tier_selects_is_told_together_with_other_problems() -> None:
    text = VALID.replace('image = "registry/build:cuda12.6-el8"\n', "")
    text += '\n[tiers.old]\nabout = "x"\ncuda = ["12.6"]\npythons = ["3.12"]\n'
    assert problems_of(text) == (
        "matrix.toml:7: cuda[0].image: is missing",
        "matrix.toml:34: tiers.old: selects no cell that can be built",
    )


def test_a_problem_of_an_axis_is_not_told_again_for_each_exclude_and_tier() -> None:
    (problem,) = problems_of(VALID.replace('["3.10", "3.12"]', '["3.10", 3.12]'))
    assert problem.startswith("matrix.toml:1: pythons[1]: must be a text in quotes, not 3.12")


def test_one_cuda_twice_is_an_error() -> None:
    table = VALID[VALID.index("[[cuda]]") : VALID.index('[[cuda]]\nversion = "13.0"')]
    (problem,) = problems_of(VALID.replace("[sets]", table + "[sets]"))
    assert problem == "matrix.toml:21: cuda[2].version: CUDA 12.6 is there already: cuda[0]"


def test_a_cuda_release_that_the_table_lacks_names_the_table() -> None:
    text = VALID.replace('"13.0"', '"14.9"').replace("cuda13.0", "cuda14.9")
    text = text.replace("cu130", "cu149").replace('cuda = ["13.0"]', 'cuda = ["14.9"]')
    (problem,) = problems_of(text)
    assert "cuda[1].version" in problem
    assert "add a row to ci/matrix/toolkits.py" in problem


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    text = (
        VALID.replace('"9.0", "8.0"', '"9.0", "abc"')
        .replace('"3.10", ', '"3.9", ')
        .replace('reason = "for the test"\n', "")
        .replace('["9.0a"]', "[9.0]")
        .replace('cuda = ["13.0"]', 'cuda = ["13.5"]')
    )
    places = [line.split(": ")[1] for line in problems_of(text)]
    assert places == [
        "pythons[0]",
        "cuda[0].capabilities[1]",
        "sets.hopper[0]",
        "exclude[0].reason",
        "tiers.pr.cuda[0]",
    ]


def test_a_file_that_is_not_toml_names_the_line() -> None:
    with pytest.raises(ConfigError, match=r"not valid TOML.*line 7") as refused:
        parse(VALID.replace("[[cuda]]", "[[cuda", 1))
    assert refused.value.exit_code == 2


def test_a_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read") as refused:
        load(tmp_path / "matrix.toml")
    assert "git checkout" in refused.value.next_step


def test_an_empty_file_names_every_missing_part() -> None:
    assert problems_of("") == (
        "matrix.toml: pythons: is missing",
        "matrix.toml: paddle: is missing",
        "matrix.toml: cuda: is missing",
        "matrix.toml: tiers: is missing",
    )


def test_the_schema_is_itself_valid() -> None:
    Draft202012Validator.check_schema(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))


def test_lines_of_headers_keys_and_list_items() -> None:
    lines = index_lines(VALID)
    assert lines[("cuda", 1)] == 13
    assert line_of(lines, ("cuda", 1, "capabilities", 1)) == 16
    assert line_of(lines, ("tiers", "pr", "nothing")) == 29
    assert line_of(lines, ()) is None
    assert spell(("cuda", 1, "capabilities", 0)) == "cuda[1].capabilities[0]"


def test_lines_of_quoted_and_dotted_keys() -> None:
    lines = index_lines('[a."b.c"]  # note\nd.e = 1\n"f g" = 2\n')
    assert lines == {("a", "b.c"): 1, ("a", "b.c", "d", "e"): 2, ("a", "b.c", "f g"): 3}
