"""Run paths of collected extensions: relative where a package is meant, and nothing of the build host."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ci.registry import PACKAGE_ROOT

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc on PATH")


@pytest.fixture
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hooks", PACKAGE_ROOT / "build_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The packages of a build environment."""
    folder = tmp_path / "env" / "lib" / "site-packages"
    folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    return folder


def link(path: Path, *run_paths: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    options = [f"-Wl,-rpath,{entry}" for entry in run_paths]
    argv = ["gcc", "-shared", "-x", "c", "/dev/null", "-o", str(path), *options]
    subprocess.run(argv, check=True)
    return path


def run_path(path: Path) -> str:
    """What binutils reads."""
    listed = subprocess.run(
        ["readelf", "-d", str(path)], check=True, capture_output=True, text=True
    )
    lines = [
        line for line in listed.stdout.splitlines() if "(RUNPATH)" in line or "(RPATH)" in line
    ]
    return lines[0].split("[", 1)[1].rstrip("]") if lines else ""


def test_folders_of_packages_become_relative_and_others_go(
    hooks: ModuleType, packages: Path, tmp_path: Path
) -> None:
    collected = tmp_path / "collected"
    entries = (
        "/opt/python/lib",
        f"{packages}/paddle/libs",
        "/usr/local/cuda/lib64",
        "$ORIGIN/own",
        f"{packages}/paddle/base",
    )
    top = link(collected / "core.so", *entries)
    inner = link(collected / "pkg" / "deep" / "_c.so", *entries)
    hooks.relocate_run_paths(collected)
    assert run_path(top) == "$ORIGIN/../paddle/libs:$ORIGIN/own:$ORIGIN/../paddle/base"
    assert run_path(inner) == (
        "$ORIGIN/../../../paddle/libs:$ORIGIN/own:$ORIGIN/../../../paddle/base"
    )
    assert str(packages).encode() not in top.read_bytes()


def test_the_loader_finds_a_library_of_a_package_after_a_move(
    hooks: ModuleType, packages: Path, tmp_path: Path
) -> None:
    site = tmp_path / "elsewhere" / "site-packages"
    base = link(packages / "vendor" / "libs" / "libbase.so")
    collected = tmp_path / "collected"
    module = collected / "core.so"
    module.parent.mkdir()
    subprocess.run(
        ["gcc", "-shared", "-x", "c", "/dev/null", "-o", str(module), "-Wl,--no-as-needed",
         f"-L{base.parent}", "-lbase", f"-Wl,-rpath,{base.parent}"],
        check=True,
    )  # fmt: skip
    hooks.relocate_run_paths(collected)
    shutil.copytree(collected, site / "paddlefleet_ops")
    shutil.move(packages / "vendor", site / "vendor")
    load = f"import ctypes; ctypes.CDLL({str(site / 'paddlefleet_ops' / 'core.so')!r})"
    subprocess.run([sys.executable, "-c", load], check=True)


def test_an_extension_without_a_run_path_has_none_afterwards(
    hooks: ModuleType, packages: Path, tmp_path: Path
) -> None:
    module = link(tmp_path / "collected" / "core.so")
    hooks.relocate_run_paths(tmp_path / "collected")
    assert run_path(module) == ""
