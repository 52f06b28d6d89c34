"""The repository's own matrix.toml keeps its promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.matrix.load import load, parse
from ci.matrix.model import Accepted, Decision, Rejected
from ci.matrix.resolve import newest_pythons, resolve, select
from ci.matrix.schema import SCHEMA_FILE

ROOT = Path(__file__).parents[3]
FILE = ROOT / "matrix.toml"


@pytest.fixture(scope="module")
def decisions() -> tuple[Decision, ...]:
    return resolve(load(FILE))


def test_three_cudas_and_four_pythons_give_twelve_fat_wheels(
    decisions: tuple[Decision, ...],
) -> None:
    assert [cell.id for cell in select(decisions)] == [
        f"{cuda}-{python}"
        for cuda in ("cu126", "cu129", "cu130")
        for python in ("cp310", "cp311", "cp312", "cp313")
    ]


@pytest.mark.parametrize(
    ("cuda", "capabilities"),
    [
        ("12.6", ["8.0", "9.0"]),
        ("12.9", ["8.0", "9.0", "10.0", "10.3"]),
        ("13.0", ["8.0", "9.0", "10.0", "10.3"]),
    ],
)
def test_a_fat_wheel_has_paddlefleets_capabilities(
    decisions: tuple[Decision, ...], cuda: str, capabilities: list[str]
) -> None:
    for cell in select(decisions, cuda=[cuda]):
        assert [str(item) for item in cell.capabilities] == capabilities


def test_only_blackwell_on_cuda_12_6_is_rejected(decisions: tuple[Decision, ...]) -> None:
    rejected = {one.id for one in decisions if isinstance(one, Rejected)}
    assert rejected == {f"cu126-cp3{minor}-blackwell" for minor in (10, 11, 12, 13)}


def test_named_sets_are_off_unless_asked_for(decisions: tuple[Decision, ...]) -> None:
    for tier in ("pr", "nightly", "release"):
        assert {cell.capability_set for cell in select(decisions, tier=tier)} == {""}
    chosen = select(decisions, cuda=["12.9"], python=["3.12"], capability_set=["hopper"])
    assert [cell.id for cell in chosen] == ["cu129-cp312-hopper"]


def test_a_pull_request_builds_oldest_and_newest_python_of_one_cuda(
    decisions: tuple[Decision, ...],
) -> None:
    cells = select(decisions, tier="pr")
    assert [cell.id for cell in cells] == ["cu130-cp310", "cu130-cp313"]
    assert newest_pythons(cells) == cells[1:]


def test_nightly_and_release_build_every_fat_wheel(decisions: tuple[Decision, ...]) -> None:
    assert (
        select(decisions, tier="nightly") == select(decisions) == select(decisions, tier="release")
    )


def test_a_new_cuda_is_one_more_table(decisions: tuple[Decision, ...]) -> None:
    table = """
[[cuda]]
version = "13.2"
capabilities = ["8.0", "9.0", "10.0", "10.3"]
image = "paddlepaddle/paddle_manylinux_devel:cuda13.2-cudnn9.20-trt10.16-gcc11"
paddle_index = "https://www.paddlepaddle.org.cn/packages/stable/cu132/"
"""
    more = resolve(parse(FILE.read_text(encoding="utf-8") + table))
    added = [one for one in more if one not in decisions]
    assert {one.cuda for one in added} == {"13.2"}
    assert all(isinstance(one, Accepted) for one in added)
    assert len(added) == 12
    assert len(select(more, tier="nightly")) == 16


def test_editors_find_the_schema_that_the_file_names() -> None:
    first = FILE.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("#:schema ")
    assert ROOT / first.removeprefix("#:schema ") == SCHEMA_FILE.resolve()
