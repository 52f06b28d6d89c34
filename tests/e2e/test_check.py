"""The checklist as a program, with Paddle: what only the run time sees is found, known, and mended."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from .conftest import Farm, Ran

pytestmark = [pytest.mark.network, pytest.mark.slow]

PACKAGE = '''\
"""Operators in pure Python."""

import torch

from .late import rescale

__all__ = ["double", "rescale"]


def double(x):
    return torch.add(x, x)
'''
# No import statement and no constant name: reading the sources cannot see what this imports.
LATE = """\
import importlib


def rescale(x, factor):
    backend = importlib.import_module("".join(("to", "rch")))
    return backend.multiply(x, factor)
"""
MENDED = """\
import torch


def rescale(x, factor):
    return torch.multiply(x, factor)
"""
EXERCISES = (
    "--exercise", "rescale=paddle.ones([3]), paddle.full([3], 2.0)",
    "--exercise", "double=paddle.ones([3])",
)  # fmt: skip


def check(farm: Farm, *arguments: str) -> Ran:
    return farm.run("check", *arguments, "--cache-dir", str(farm.cache))


def only(document: dict[str, Any]) -> dict[str, Any]:
    (library,) = document["libraries"]
    return dict(library)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    package = tmp_path / "tiny ops" / "tiny_ops"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGE)
    (package / "late.py").write_text(LATE)
    return package.parent


def test_the_templates_are_clean_also_when_they_run(farm: Farm) -> None:
    ran = check(farm, "--set", "templates", "--run-time", "--json", "--notes")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    document = ran.document
    names = {"expert-placement", "fused-norm", "ep-exchange", "chunk-linear-attention"}
    assert {item["name"] for item in document["libraries"]} == names
    for item in document["libraries"]:
        assert (item["findings"], item["known"], item["run_time"]) == ([], [], ""), item
        assert item["modules"] > 0
    assert {"late-torch-import", "proxy-left-on"} <= {rule["name"] for rule in document["rules"]}


def test_reading_alone_does_not_see_a_name_that_is_put_together(farm: Farm, library: Path) -> None:
    ran = check(farm, str(library), "--static", "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert only(ran.document)["findings"] == []


def test_the_run_time_part_sees_it_and_the_baseline_knows_it_until_it_is_mended(
    farm: Farm, library: Path, tmp_path: Path
) -> None:
    sarif, known = tmp_path / "out" / "check.sarif", tmp_path / "known.toml"
    common = (str(library), "--run-time", "--json", *EXERCISES, "--baseline", str(known))
    ran = check(farm, *common, "--write-baseline", "--sarif", str(sarif))
    assert ran.returncode == 1, ran.stdout + ran.stderr
    found = only(ran.document)["findings"]
    (late,) = [item for item in found if item["rule"] == "late-torch-import"]
    line = 1 + LATE.splitlines().index(
        '    backend = importlib.import_module("".join(("to", "rch")))'
    )
    assert (late["place"], late["line"]) == ("tiny_ops/late.py", line)
    assert "rescale" in late["why"]
    assert "static-and-run-time-disagree" in {item["rule"] for item in found}
    assert not [item for item in found if "double" in item["subject"]]

    (run,) = json.loads(sarif.read_text("utf-8"))["runs"]
    assert {item["ruleId"] for item in run["results"]} == {item["rule"] for item in found}
    assert not [item for item in run["results"] if "suppressions" in item]

    refused = check(farm, *common)
    assert refused.returncode == 2
    assert "the reason '' says nothing" in refused.document["error"]["message"]

    reason = "the fork mends it with its next release"
    known.write_text(known.read_text("utf-8").replace('reason = ""', f'reason = "{reason}"'))
    green = check(farm, *common, "--sarif", str(sarif))
    assert green.returncode == 0, green.stdout + green.stderr
    assert only(green.document)["findings"] == []
    assert {item["reason"] for item in only(green.document)["known"]} == {reason}
    (run,) = json.loads(sarif.read_text("utf-8"))["runs"]
    told = {item["suppressions"][0]["justification"] for item in run["results"]}
    assert told == {reason}

    (library / "tiny_ops" / "late.py").write_text(MENDED)
    stale = check(farm, *common)
    assert stale.returncode == 1
    assert only(stale.document)["findings"] == []
    assert {item["rule"] for item in stale.document["stale"]} == {"stale-baseline-entry"}
    assert len(stale.document["stale"]) == len(found)
    assert stale.document["next_command"].startswith("correct known.toml:")
    clean = check(farm, str(library), "--run-time", "--json", *EXERCISES)
    assert (clean.returncode, only(clean.document)["not_exercised"]) == (0, [])


def test_a_library_that_leaves_the_proxy_on_is_found(farm: Farm, tmp_path: Path) -> None:
    """The guide's rule on temporary proxies: their state ends with the call that made it."""
    package = tmp_path / "leaky" / "leaky_ops"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        textwrap.dedent(
            """\
            import torch


            def square(x):
                import paddle

                getattr(paddle, "enable" + "_compat")()
                return torch.square(x)
            """
        )
    )
    ran = check(
        farm, str(package.parent), "--run-time", "--json", "--exercise", "square=paddle.ones([2])"
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "proxy-left-on" in {item["rule"] for item in only(ran.document)["findings"]}


@pytest.mark.parametrize("option", ["--run-time", "--notes"])
def test_a_python_of_no_cell_is_refused_however_much_has_to_run(
    farm: Farm, library: Path, option: str
) -> None:
    ran = check(farm, str(library), "--python", "3.9", option, "--json")
    assert ran.returncode == 2
    assert "Python 3.9 is not in the matrix" in ran.document["error"]["message"]


def test_nothing_is_left_in_the_sources(farm: Farm, library: Path) -> None:
    ran = check(farm, str(library), "--run-time", *EXERCISES)
    assert "late-torch-import" in ran.stdout
    left = [path.name for path in library.rglob("*") if path.is_file()]
    assert sorted(left) == ["__init__.py", "late.py"]
