"""What is installed: eager submodules, the headers, and a binary that says nothing of its build."""

from __future__ import annotations

import importlib.machinery
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SUBMODULES = {"_arrays", "_core", "batching", "placement", "routing"}

TWO_UNITS = """
#include <expert_placement/batching.hpp>
#include <expert_placement/grouping.hpp>
#include <expert_placement/placement.hpp>
#include <cstdio>
double other();
double UNIT() { return expert_placement::place_experts({4, 3, 2, 1}, 2, 2).rank_load[0]; }
#ifdef MAIN
int main() { std::printf("%g %g\\n", UNIT(), other()); }
#endif
"""


def test_importing_the_package_imports_every_submodule(fw: SimpleNamespace) -> None:
    loaded = {name.partition(".")[2] for name in fw.modules}
    assert loaded - {""} == SUBMODULES
    assert all(hasattr(fw.lib, name) for name in fw.lib.__all__)


def test_the_framework_is_the_one_of_the_import(fw: SimpleNamespace) -> None:
    grouping = fw.lib.group_by_expert(fw.torch.tensor([0]), 1)
    assert type(grouping.order).__module__.partition(".")[0] == fw.name
    if fw.name == "paddle":
        assert type(sys.modules.get("torch")).__name__ != "ProxyModule"


def test_the_binary_names_no_path_of_its_build(fw: SimpleNamespace) -> None:
    binary = Path(fw.modules["expert_placement._core"].__file__)
    assert binary.name.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES))
    content = binary.read_bytes()
    source = Path(__file__).resolve().parents[1]
    python = str(Path(sys.base_prefix) / "lib")  # where a run path would point
    found = [p for p in (str(source), python, "/include/", "/csrc/") if p.encode() in content]
    assert found == []


def test_the_headers_stand_alone(fw: SimpleNamespace, tmp_path: Path) -> None:
    """Strict warnings, two translation units (nothing is defined twice), and no Python needed."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler on PATH: set CXX to test the headers")
    source = tmp_path / "unit.cpp"
    source.write_text(TWO_UNITS, encoding="utf-8")
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
    flags += [f"-I{fw.lib.get_include()}"]
    for name, defines in {"a": ["-DUNIT=unit", "-DMAIN"], "b": ["-DUNIT=other"]}.items():
        command = [compiler, *flags, *defines, "-c", str(source), "-o", str(tmp_path / f"{name}.o")]
        subprocess.run(command, check=True)
    objects = [str(tmp_path / "a.o"), str(tmp_path / "b.o")]
    subprocess.run([compiler, *objects, "-o", str(tmp_path / "app")], check=True)
    result = subprocess.run([str(tmp_path / "app")], check=True, capture_output=True, text=True)
    assert result.stdout == "5 5\n"
