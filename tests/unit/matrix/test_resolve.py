from __future__ import annotations

import pytest
from packaging.version import Version

from ci.errors import ConfigError
from ci.matrix.load import parse
from ci.matrix.model import Accepted, Cell, Decision, Rejected
from ci.matrix.resolve import newest_pythons, resolve, select, with_capabilities

TEXT = """\
pythons = ["3.13", "3.9"]
[paddle]
gpu = "paddlepaddle-gpu>=3.3"
cpu = "paddlepaddle==3.3.1"

[[cuda]]
version = "13.0"
image = "registry/build:cuda13.0"
capabilities = ["10.0", "9.0"]
paddle_index = "https://example.org/cu130/"

[[cuda]]
version = "12.6"
image = "registry/build:cuda12.6"
capabilities = ["8.0", "9.0"]
paddle_index = "https://example.org/cu126/"

[sets]
hopper = ["9.0a"]
blackwell = ["10.0a", "10.3a"]

[[exclude]]
cuda = ["12.6"]
pythons = ["3.13"]
sets = ["default"]
reason = "no Paddle for it"

[tiers.pr]
about = "some"
cuda = ["13.0"]
sets = ["default", "hopper"]

[tiers.all]
about = "every fat wheel"
""".replace('"3.9"', '"3.10"')


@pytest.fixture
def decisions() -> tuple[Decision, ...]:
    return resolve(parse(TEXT))


def ids(cells: tuple[Cell, ...]) -> list[str]:
    return [cell.id for cell in cells]


def test_every_combination_is_decided_once_in_ascending_order(
    decisions: tuple[Decision, ...],
) -> None:
    assert [(type(one).__name__, one.id) for one in decisions] == [
        ("Accepted", "cu126-cp310"),
        ("Accepted", "cu126-cp310-hopper"),
        ("Rejected", "cu126-cp310-blackwell"),
        ("Rejected", "cu126-cp313"),
        ("Accepted", "cu126-cp313-hopper"),
        ("Rejected", "cu126-cp313-blackwell"),
        ("Accepted", "cu130-cp310"),
        ("Accepted", "cu130-cp310-hopper"),
        ("Accepted", "cu130-cp310-blackwell"),
        ("Accepted", "cu130-cp313"),
        ("Accepted", "cu130-cp313-hopper"),
        ("Accepted", "cu130-cp313-blackwell"),
    ]


def test_order_in_the_file_does_not_change_the_decisions(
    decisions: tuple[Decision, ...],
) -> None:
    first, second = TEXT.index("[[cuda]]"), TEXT.rindex("[[cuda]]")
    end = TEXT.index("[sets]")
    swapped = TEXT[:first] + TEXT[second:end] + TEXT[first:second] + TEXT[end:]
    assert swapped != TEXT
    assert resolve(parse(swapped)) == decisions


def test_a_cell_has_all_that_a_build_needs(decisions: tuple[Decision, ...]) -> None:
    (cell,) = select(decisions, cuda=["13.0"], python=["3.13"])
    assert cell.id == "cu130-cp313"
    assert (cell.cuda, cell.cuda_label) == ("13.0", "cu130")
    assert (cell.python, cell.python_tag) == ("3.13", "cp313")
    assert cell.capability_set == ""
    assert [str(item) for item in cell.capabilities] == ["9.0", "10.0"]
    assert cell.gencode == ("arch=compute_90,code=sm_90", "arch=compute_100,code=sm_100")
    assert cell.image == "registry/build:cuda13.0"
    assert cell.paddle.index == "https://example.org/cu130/"


def test_a_rejected_combination_keeps_its_reason(decisions: tuple[Decision, ...]) -> None:
    reasons = {one.id: one.reason for one in decisions if isinstance(one, Rejected)}
    assert reasons["cu126-cp313"] == "no Paddle for it"
    assert reasons["cu126-cp310-blackwell"] == (
        "10.0a needs CUDA 12.8 or newer; 10.3a needs CUDA 12.9 or newer"
    )


def test_an_accepted_cell_knows_its_tiers(decisions: tuple[Decision, ...]) -> None:
    tiers = {one.id: one.tiers for one in decisions if isinstance(one, Accepted)}
    assert tiers["cu130-cp313"] == ("pr", "all")
    assert tiers["cu130-cp313-hopper"] == ("pr",)
    assert tiers["cu126-cp310"] == ("all",)
    assert tiers["cu130-cp313-blackwell"] == ()


def test_without_any_choice_all_fat_wheels_are_selected(decisions: tuple[Decision, ...]) -> None:
    assert ids(select(decisions)) == ["cu126-cp310", "cu130-cp310", "cu130-cp313"]


def test_a_tier_brings_its_sets(decisions: tuple[Decision, ...]) -> None:
    assert ids(select(decisions, tier="pr")) == [
        "cu130-cp310",
        "cu130-cp310-hopper",
        "cu130-cp313",
        "cu130-cp313-hopper",
    ]
    assert ids(select(decisions, tier="pr", python=["3.13"], capability_set=["hopper"])) == [
        "cu130-cp313-hopper"
    ]
    assert ids(select(decisions, tier="all")) == ["cu126-cp310", "cu130-cp310", "cu130-cp313"]


def test_labels_are_taken_for_versions(decisions: tuple[Decision, ...]) -> None:
    chosen = select(decisions, cuda=["cu130"], python=["cp310"], capability_set=["hopper"])
    assert ids(chosen) == ["cu130-cp310-hopper"]


@pytest.mark.parametrize("name", ["default", ""])
def test_the_default_set_may_be_named(decisions: tuple[Decision, ...], name: str) -> None:
    chosen = select(decisions, cuda=["13.0"], capability_set=[name, "blackwell"])
    assert ids(chosen) == [
        "cu130-cp310",
        "cu130-cp310-blackwell",
        "cu130-cp313",
        "cu130-cp313-blackwell",
    ]


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"cuda": ["13.2"]}, "CUDA 13.2 is not in the matrix; nearest: 13.0"),
        ({"cuda": ["12.9"]}, "nearest: 12.6"),
        ({"cuda": ["12"]}, "nearest: 12.6"),
        ({"cuda": ["cu13"]}, "CUDA cu13 is not in the matrix"),
        ({"python": ["3.14"]}, "Python 3.14 is not in the matrix; nearest: 3.13"),
        ({"python": ["3.9"]}, "nearest: 3.10"),
        ({"python": ["3.12.1"]}, "nearest: 3.13"),
        ({"capability_set": ["hoper"]}, "no capability set 'hoper'; did you mean 'hopper'?"),
        ({"tier": "nightlies"}, "no tier 'nightlies'; known are all, pr"),
        ({"tier": "pr", "cuda": ["12.6"]}, "tier pr has no cell of that CUDA, Python and set"),
    ],
)
def test_an_unknown_choice_is_refused_with_the_nearest(
    decisions: tuple[Decision, ...], choice: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        select(decisions, **choice)  # type: ignore[arg-type]
    assert says in refused.value.message
    assert refused.value.exit_code == 2
    assert refused.value.cause
    assert refused.value.next_step


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"cuda": ["12.6"], "python": ["3.13"]}, "cu126-cp313: no Paddle for it"),
        ({"cuda": ["12.6", "13.0"], "python": ["3.10", "3.13"]}, "cu126-cp313: no Paddle for it"),
        ({"cuda": ["12.6"], "capability_set": ["blackwell"]}, "10.0a needs CUDA 12.8 or newer"),
        ({"cuda": ["12.6", "13.0"], "capability_set": ["blackwell"]}, "10.0a needs CUDA 12.8"),
    ],
)
def test_what_was_named_is_never_left_out_without_its_reason(
    decisions: tuple[Decision, ...], choice: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        select(decisions, **choice)  # type: ignore[arg-type]
    assert says in refused.value.message


def test_what_was_not_named_may_be_left_out(decisions: tuple[Decision, ...]) -> None:
    assert ids(select(decisions, capability_set=["blackwell"])) == [
        "cu130-cp310-blackwell",
        "cu130-cp313-blackwell",
    ]
    assert ids(select(decisions, cuda=["12.6"])) == ["cu126-cp310"]


def test_capabilities_replace_those_of_the_chosen_cells(decisions: tuple[Decision, ...]) -> None:
    chosen = select(decisions, cuda=["13.0"], capabilities="10.0f,9.0a")
    assert ids(chosen) == ["cu130-cp310-sm90a.sm100f", "cu130-cp313-sm90a.sm100f"]
    assert chosen[0].gencode == ("arch=compute_90a,code=sm_90a", "arch=compute_100f,code=sm_100f")


def test_cells_that_become_equal_are_built_once(decisions: tuple[Decision, ...]) -> None:
    chosen = select(decisions, tier="pr", capabilities="9.0+PTX")
    assert ids(chosen) == ["cu130-cp310-sm90ptx", "cu130-cp313-sm90ptx"]


def test_capabilities_and_a_set_contradict_each_other(decisions: tuple[Decision, ...]) -> None:
    with pytest.raises(ConfigError, match="both asked for"):
        select(decisions, capability_set=["hopper"], capabilities="9.0")


def test_the_cells_own_capabilities_give_the_same_cell(decisions: tuple[Decision, ...]) -> None:
    cell = select(decisions, cuda=["13.0"])[0]
    assert with_capabilities(cell, "10.0 9.0") is cell


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("10.0", "10.0 needs CUDA 12.8 or newer"),
        ("9.0;10.0f", "10.0f needs CUDA 12.9 or newer"),
        ("9.9", "no CUDA toolkit knows 9.9"),
        ("9.0;9.0", "9.0 is there 2 times"),
    ],
)
def test_capabilities_beyond_the_cuda_are_refused(
    decisions: tuple[Decision, ...], text: str, says: str
) -> None:
    cell = select(decisions, cuda=["12.6"])[0]
    with pytest.raises(ConfigError, match=says):
        with_capabilities(cell, text)


@pytest.mark.parametrize("text", ["9.0a;10.0f", "8.0+PTX", "8.0;8.6;9.0a+PTX;10.3a"])
def test_the_name_of_replaced_capabilities_is_a_local_version_label_as_it_is(
    decisions: tuple[Decision, ...], text: str
) -> None:
    cell = with_capabilities(select(decisions, cuda=["13.0"])[0], text)
    label = f"{cell.cuda_label}.{cell.capability_set}"
    assert Version(f"1.0+{label}").local == label
    assert cell.id == f"cu130-cp310-{cell.capability_set}"


def test_different_capabilities_have_different_names(decisions: tuple[Decision, ...]) -> None:
    cell = select(decisions, cuda=["13.0"])[0]
    texts = ["9.0", "9.0a", "9.0+PTX", "9.0a+PTX", "9.0;9.0a", "9.0+PTX;9.0a", "9.0;9.0a+PTX"]
    assert len({with_capabilities(cell, text).id for text in texts}) == len(texts)


def test_the_newest_python_is_chosen_for_each_cuda_and_set(
    decisions: tuple[Decision, ...],
) -> None:
    cells = select(decisions, capability_set=["default", "hopper"])
    assert ids(newest_pythons(reversed(cells))) == [
        "cu130-cp313-hopper",
        "cu130-cp313",
        "cu126-cp313-hopper",
        "cu126-cp310",
    ]
