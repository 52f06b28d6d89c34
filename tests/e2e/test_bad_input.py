"""What cannot be built ends with its exit code, a reason, the next command, and nothing half-written."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from .conftest import REPOSITORY, Farm

pytestmark = [pytest.mark.network, pytest.mark.slow]

TEMPLATES = REPOSITORY / "packages" / "templates"


def wheels_below(folder: Path) -> list[Path]:
    return list(folder.rglob("*.whl"))


@pytest.fixture
def bare_path(tmp_path: Path) -> str:
    """A PATH without any CUDA compiler: only the folders of the system and of this Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("git", "gcc", "g++", "cc", "c++", "ld", "as", "ar", "sh", "make"):
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(found)
    return str(folder)


def test_a_source_that_does_not_compile_names_library_file_and_first_error(
    farm: Farm, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(TEMPLATES / "cuda_extension", broken)
    source = next(iter(sorted((broken / "csrc").glob("*.cu"))))
    source.write_text(source.read_text() + "\nthis_is_not_cpp;\n", "utf-8")
    out = tmp_path / "dist"
    ran = farm.run(
        "wheel", "--cuda", "13.0", "--set", "templates", "--libs", "fused-norm",
        "--source", f"fused-norm=path:{broken}", "--json", "--out-dir", str(out),
    )  # fmt: skip
    assert ran.returncode == 1, ran.stdout + ran.stderr
    error = ran.cell["error"]
    assert "fused-norm" in error["message"]
    assert re.search(rf"{re.escape(source.name)}\(\d+\): error: ", error["cause"])
    assert any("this_is_not_cpp" in line for line in error["details"])
    assert error["next_step"].startswith("read ")
    assert wheels_below(out) == []


def test_two_libraries_with_one_target_are_refused(farm: Farm, tmp_path: Path) -> None:
    declaration = tmp_path / "again.py"
    declaration.write_text(
        "from dataclasses import replace\n"
        "from build_utils import TEMPLATES\n"
        "LIBRARIES = (replace(TEMPLATES[0], name='again', availability_name='again',\n"
        "                     source_rel_path='.', library_set='declared'),)\n",
        "utf-8",
    )
    out = tmp_path / "dist"
    ran = farm.run(
        "wheel", "--cuda", "13.0", "--set", "templates", "--declare", str(declaration),
        "--out-dir", str(out),
    )  # fmt: skip
    assert ran.returncode == 2
    assert "expert-placement and again" in ran.stderr
    assert not out.exists()


def test_a_submodule_that_is_not_there_says_which_command_to_run(
    farm: Farm, tmp_path: Path
) -> None:
    if (REPOSITORY / "packages/paddlefleet_ops/third_party/FlashMLA/.git").exists():
        pytest.skip("the submodule FlashMLA is checked out here")
    out = tmp_path / "dist"
    ran = farm.run("wheel", "--cuda", "13.0", "--libs", "FlashMLA", "--out-dir", str(out))
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert "git submodule update --init --recursive" in ran.stderr
    assert "--set templates" in ran.stderr
    assert not out.exists()


def test_cuda_12_without_a_compiler_is_refused_with_three_ways_to_get_one(
    farm: Farm, tmp_path: Path, bare_path: str
) -> None:
    if any(Path("/usr/local").glob("cuda-12.6*")):
        pytest.skip("this host has a CUDA 12.6 toolkit")
    out = tmp_path / "dist"
    environment = {"PATH": bare_path, "CUDA_HOME": "", "CUDA_PATH": ""}
    ran = farm.run(
        "wheel", "--cuda", "12.6", "--set", "templates", "--out-dir", str(out), env=environment
    )
    assert ran.returncode == 3, ran.stdout + ran.stderr
    for way in ("CUDA_HOME", "--compiler clang", "--executor container"):
        assert way in ran.stderr
    assert not out.exists() or wheels_below(out) == []


def test_a_compiler_cache_that_is_asked_for_and_not_there_is_refused_before_anything_runs(
    farm: Farm, tmp_path: Path, bare_path: str
) -> None:
    ran = farm.run(
        "wheel", "--cuda", "13.0", "--set", "templates", "--executor", "host", "--json",
        "--compiler-cache", "ccache", "--out-dir", str(tmp_path / "dist"),
        env={"PATH": bare_path},
    )  # fmt: skip
    assert ran.returncode == 3, ran.stdout + ran.stderr
    error = ran.document["error"]
    assert "ccache" in error["message"]
    assert error["next_step"]
    assert not (tmp_path / "dist" / "report.json").exists()


def test_everything_wrong_on_one_line_is_told_at_once(farm: Farm, tmp_path: Path) -> None:
    ran = farm.run(
        "wheel", "--cuda", "13.0", "--set", "templates", "--source", "fusednorm=path:x",
        "--source", "fused-norm=svn:x", "--out-dir", str(tmp_path / "dist"),
    )  # fmt: skip
    assert ran.returncode == 2
    assert "nearest: fused-norm" in ran.stderr
    assert "svn:x" in ran.stderr
    assert not (tmp_path / "dist").exists()


def test_a_dry_run_writes_nothing(farm: Farm, tmp_path: Path) -> None:
    out, cache = tmp_path / "dist", tmp_path / "cache"
    ran = Farm(REPOSITORY, cache).run(
        "wheel", "--cuda", "13.0", "--set", "templates", "--dry-run", "--json", "--out-dir", str(out),
        env={"HOME": os.environ.get("HOME", "/")},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert {row["status"] for row in ran.cell["libraries"]} == {"planned"}
    assert not out.exists()
    assert not cache.exists()


def test_a_wheel_whose_import_suite_is_red_is_not_where_wheels_are_published_from(
    farm: Farm, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(TEMPLATES / "python_dsl", broken, ignore=shutil.ignore_patterns("tests"))
    (broken / "src" / "chunk_linear_attention" / "__init__.py").write_text("import no_such_thing\n")
    out = tmp_path / "dist"
    ran = farm.run(
        "wheel", "--cuda", "13.0", "--set", "templates", "--libs", "chunk-linear-attention",
        "--source", f"chunk-linear-attention=path:{broken}", "--json", "--out-dir", str(out),
    )  # fmt: skip
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "no_such_thing" in ran.cell["error"]["cause"]
    (wheel,) = wheels_below(out)
    assert wheel.parent == out / "red"
    record = json.loads(wheel.with_name(f"{wheel.name}.record.json").read_text())
    assert record["import_suite"]["failed"] > 0
    assert record["import_suite"]["libraries"]["chunk-linear-attention"][0] == "failed"
