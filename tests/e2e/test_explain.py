"""``explain`` and the kept results: what a run would do, why, and that the next run does just that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from .conftest import Farm, Ran

pytestmark = [pytest.mark.network, pytest.mark.slow]

DECLARATION = """
from build_utils import Artifact, EcosystemLibrary
LIBRARIES = (
    EcosystemLibrary(
        name="explained", source_rel_path="explained", artifacts=(Artifact("explained", "explained"),),
        module="explained", kind="python_dsl", hint="none", public_names=("x",),
        compat_scope=("explained",), varies_by=frozenset(), build_requires=("setuptools>=77",),
        library_set="declared", extra_env={"EXPLAINED_MODE": "%s"},
    ),
)
"""
PROJECT = (
    '[build-system]\nrequires = ["setuptools>=77"]\n[project]\nname = "explained"\nversion = "1"\n'
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    package = tmp_path / "explained" / "explained"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"x = {uuid4().hex!r}\n")
    (package.parent / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "declare.py").write_text(DECLARATION % "one")
    return tmp_path


def options(place: Path) -> tuple[str, ...]:
    return (
        "--cuda", "13.0", "--set", "templates", "--declare", str(place / "declare.py"),
        "--libs", "explained", "--executor", "host", "--json",
    )  # fmt: skip


def explained(farm: Farm, place: Path, *more: str) -> dict[str, dict[str, Any]]:
    """What ``explain`` says of each step, by its last word."""
    cache = ("--cache-dir", str(farm.cache))
    ran = farm.run("explain", *more, *options(place), *cache)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return {item["step"].rpartition("/")[2]: item for item in json.loads(ran.stdout)["steps"]}


def build(farm: Farm, place: Path, *more: str) -> Ran:
    ran = farm.run("wheel", *options(place), "--out-dir", str(place / "dist"), *more)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran


def status(ran: Ran) -> str:
    (row,) = [row for row in ran.cell["libraries"] if row["library"] == "explained"]
    return str(row["status"])


def test_what_explain_says_is_what_a_run_does(farm: Farm, place: Path, cache_dir: Path) -> None:
    before = explained(farm, place)
    assert before["explained"]["would"] == "run"
    assert before["wheel"]["would"] == before["import"]["would"] == "depends"

    first = build(farm, place)
    assert status(first) == "built"
    assert (first.cell["wheel_from"], first.cell["suite_from"]) == ("", "")
    assert {name: item["would"] for name, item in explained(farm, place).items()} == {
        "explained": "take", "wheel": "take", "import": "take",
    }  # fmt: skip

    second = build(farm, place)
    assert status(second) == "cached"
    assert second.cell["wheel_from"]
    assert second.cell["suite_from"]
    assert second.cell["import_passed"] == first.cell["import_passed"] > 0
    assert Path(second.cell["import_log"]).read_text() == Path(first.cell["import_log"]).read_text()

    assert explained(farm, place, "--rerun-import")["import"]["why"] == "--rerun-import asks for it"
    again = build(farm, place, "--rerun-import")
    assert again.cell["wheel_from"]
    assert again.cell["suite_from"] == ""


def test_explain_names_the_input_that_changed_with_its_old_and_its_new_value(
    farm: Farm, place: Path
) -> None:
    build(farm, place, "--no-import")
    (place / "declare.py").write_text(DECLARATION % "two")
    (step,) = explained(farm, place, "explained").values()
    assert (step["would"], step["why"]) == ("run", "changed: environment")
    (change,) = step["changes"]
    assert "one" in change["old"]
    assert "two" in change["new"]

    (place / "declare.py").write_text(DECLARATION % "one")
    (place / "explained" / "untracked.txt").write_text("new")
    (step,) = explained(farm, place, "explained").values()
    assert [change["name"] for change in step["changes"]] == ["source tree"]


def test_a_step_that_there_is_not_is_refused_with_those_that_there_are(
    farm: Farm, place: Path
) -> None:
    ran = farm.run("explain", "explaned", *options(place), "--cache-dir", str(farm.cache))
    assert ran.returncode == 2
    error = json.loads(ran.stdout)["error"]
    assert "explained" in error["cause"]


def test_a_library_that_depends_on_no_python_is_built_once_for_all_cells(
    farm: Farm, place: Path
) -> None:
    ran = farm.run(
        "wheel", *options(place), "--python", "3.10,3.13", "--no-import", "--out-dir", str(place / "dist")
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = {
        cell["cell"]: row
        for cell in ran.document["cells"]
        for row in cell["libraries"]
        if row["library"] == "explained"
    }
    assert sorted(row["status"] for row in rows.values()) == ["built", "cached"]
    (builder,) = [cell for cell, row in rows.items() if row["status"] == "built"]
    (shared,) = [row for row in rows.values() if row["status"] == "cached"]
    assert shared["cached"] == builder
    assert len({row["key"] for row in rows.values()}) == 1
