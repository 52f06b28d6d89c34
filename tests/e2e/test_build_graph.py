"""What the build graph's benchmarks compare is the same work, and what they count is what was built."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from benchmarks import build_graph, harness, mixed_libraries, plain_build, simulated_cuda
from benchmarks.harness import Claim, Farm, own_cache

from .conftest import REPOSITORY, call

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_the_whole_matrix_builds_each_library_as_often_as_it_has_to(
    tmp_path: Path, cache_dir: Path
) -> None:
    """3 CUDA × 4 Python: once for each Python, for each CUDA, or at all, as the templates declare."""
    setting = build_graph.Setting(REPOSITORY, cache_dir, tmp_path, repeats=1)
    result = build_graph.whole_matrix(setting)
    assert result.numbers["by_library"] == {
        "expert-placement": 4,
        "fused-norm": 3,
        "ep-exchange": 1,
        "chunk-linear-attention": 1,
    }
    assert result.numbers["baseline"] == 4 * 12
    sources = list((REPOSITORY / "packages/templates/cuda_extension/csrc").glob("*.cu"))
    assert result.numbers["nvcc_compilations"] == [len(sources)] * 2
    (claim,) = result.claims
    assert claim.value == pytest.approx(100 * 9 / 48)
    assert claim.holds


def test_the_plain_procedure_and_the_farm_make_the_same_package(
    tmp_path: Path, cache_dir: Path
) -> None:
    declaration = mixed_libraries.write_all(
        tmp_path / "declared",
        (
            mixed_libraries.Mixed("same-ninja", 2, "ninja", rich=False),
            mixed_libraries.Mixed("same-serial", 1, "setuptools", rich=False),
            mixed_libraries.Mixed("same-pure", 0, "python"),
        ),
    )
    names = ("same-ninja", "same-serial", "same-pure")
    python = plain_build.newest_python()
    asked = plain_build.Asked(
        python=(python,), libs=names, declarations=(declaration,), cache_dir=cache_dir
    )
    (prepared,) = plain_build.prepare(asked, with_import=False)
    plain = plain_build.build_cell(prepared, tmp_path / "plain")
    farm = Farm(own_cache(tmp_path / "cache", cache_dir))
    run = farm.wheel(
        *build_graph.one_cell(python), "--declare", str(declaration), "--libs", ",".join(names),
        out=tmp_path / "dist",
    )  # fmt: skip
    (cell,) = run.document["cells"]
    assert set(plain.libraries) == set(names)
    assert members(Path(plain.path)) == members(Path(cell["wheel"]))
    for number, wheel in enumerate((plain.path, cell["wheel"])):
        site = tmp_path / f"site-{number}"
        zipfile.ZipFile(wheel).extractall(site)
        code = "import same_ninja, same_serial, same_pure as p; "
        code += "print(same_ninja.run(), same_serial.run(), p.run())"
        path = str(site / "paddlefleet_ops")
        assert call((str(prepared.python), "-c", code), PYTHONPATH=path).split() == ["1", "0", "1"]


def members(wheel: Path) -> set[str]:
    """The files of a wheel's libraries."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    return {name for name in names if name.startswith("paddlefleet_ops/same_")}


def test_a_simulated_home_claims_its_version_and_counts(tmp_path: Path) -> None:
    real = tmp_path / "real"
    (real / "bin").mkdir(parents=True)
    (real / "include").mkdir()
    nvcc = real / "bin" / "nvcc"
    nvcc.write_text('#!/bin/sh\necho "real: $*"\n', "utf-8")
    nvcc.chmod(0o755)
    home = simulated_cuda.simulate(real, "12.6", tmp_path / "roots")
    tool = str(home / "bin" / "nvcc")
    assert "release 12.6, V12.6.0" in call((tool, "--version"))
    assert simulated_cuda.compilations(home) == 0
    assert call((tool, "-c", "a b.cu", "-o", "x.o")) == "real: -c a b.cu -o x.o\n"
    assert call((tool, "-E", "a.cu")) == "real: -E a.cu\n"
    assert simulated_cuda.compilations(home) == 1
    assert (home / "include").resolve() == real / "include"


def test_a_claim_holds_up_to_its_limit() -> None:
    assert Claim("what", 1.5, 1.5, "s").holds
    over = Claim("what", 1.51, 1.5, "s")
    assert not over.holds
    assert str(over).endswith("DOES NOT HOLD")


def test_a_touched_library_differs_in_its_compiled_and_its_python_files(tmp_path: Path) -> None:
    (tmp_path / "csrc").mkdir()
    (tmp_path / "src" / "package").mkdir(parents=True)
    files = [tmp_path / "csrc" / "a.cu", tmp_path / "src" / "package" / "__init__.py"]
    for path in (*files, tmp_path / "csrc" / "b.cu"):
        path.write_text("x\n", "utf-8")
    build_graph.touch(tmp_path, "once")
    assert [path.read_text("utf-8") for path in files] == ["x\n// once\n", "x\n# once\n"]
    assert (tmp_path / "csrc" / "b.cu").read_text("utf-8") == "x\n"


def test_processor_time_of_others_is_told_from_that_of_children() -> None:
    spin = ("python3", "-c", "import time\nt = time.time()\nwhile time.time() < t + 1: pass")
    before = plain_build.children_cpu()
    with harness.watched_load() as load:
        spent = plain_build.run(spin, REPOSITORY, os.environ)
    assert spent.cpu == pytest.approx(plain_build.children_cpu() - before)
    assert 0 < spent.cpu <= spent.wall
    assert 0 <= load.others <= (os.cpu_count() or 1)
