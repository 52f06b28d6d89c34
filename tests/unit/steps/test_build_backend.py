"""The PEP 517 backend, on a copy of the package: what goes in is what the wheel holds and says."""

from __future__ import annotations

import ast
import email
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.registry import PACKAGE_ROOT, build_manifest, build_utils

CALL = "import build_backend, sys; print('=>', build_backend.{hook}(*sys.argv[1:]))"
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
TAG = f"cp{HERE.replace('.', '')}"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of packages/paddlefleet_ops without submodules and without what builds left in it."""
    root = tmp_path / "packages" / "paddlefleet_ops"
    root.mkdir(parents=True)
    for path in PACKAGE_ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, root)
    source = root / "src" / "paddlefleet_ops"
    source.mkdir(parents=True)
    for path in (PACKAGE_ROOT / "src" / "paddlefleet_ops").glob("*"):
        if path.is_file() and (path.suffix == ".py" or path.name == "py.typed"):
            shutil.copy2(path, source)
    return root


def call(package: Path, hook: str, *arguments: str, **env: str) -> str:
    done = subprocess.run(
        (sys.executable, "-c", CALL.format(hook=hook), *arguments),
        cwd=package,
        env={"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.rpartition("=> ")[2].strip()


def refused(package: Path, hook: str, *arguments: str, **env: str) -> str:
    with pytest.raises(AssertionError) as caught:
        call(package, hook, *arguments, **env)
    return str(caught.value)


def listed(name: str, *run_requires: str) -> dict[str, Any]:
    """As much of a library's entry as the build reads."""
    entry = {"name": name, "module": name, "modules": [name], "availability": name}
    return {**entry, "run_requires": list(run_requires)}


@pytest.fixture
def assembly(tmp_path: Path) -> Callable[..., Path]:
    """What the farm hands to the backend: a manifest, and a folder of targets for each library."""

    def write(files: dict[str, str], **changes: Any) -> Path:
        folder = tmp_path / "collected" / "alpha"
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        manifest = {
            "schema": 1,
            "version": "0.1.0+cu130",
            "publishable": True,
            "not_publishable_because": [],
            "libraries": [
                listed("alpha", "triton>=3.3", "einops>=0.8"),
                listed("beta", "triton>=3.3"),
            ],
            "left_out": [],
            **changes,
        }
        path = tmp_path / "assembly.json"
        path.write_text(json.dumps({"manifest": manifest, "artifacts": {"alpha": str(folder)}}))
        return path

    return write


def built(package: Path, assembly: Path, tmp_path: Path) -> tuple[str, zipfile.ZipFile]:
    out = tmp_path / "dist"
    out.mkdir(exist_ok=True)
    name = call(package, "build_wheel", str(out), PADDLEFLEET_OPS_ASSEMBLY=str(assembly))
    assert [path.name for path in out.iterdir()] == [name]
    return name, zipfile.ZipFile(out / name)


def test_a_wheel_holds_the_targets_the_loader_and_the_manifest(
    package: Path, assembly: Any, tmp_path: Path
) -> None:
    given = assembly(
        {"alpha/__init__.py": "x = 1\n", "alpha/deep/table.bin": "t", "alpha/h.cuh": ""}
    )
    name, wheel = built(package, given, tmp_path)
    assert name == f"paddlefleet_ops-0.1.0+cu130-{TAG}-none-any.whl"
    names = set(wheel.namelist())
    assert names >= {
        "paddlefleet_ops/__init__.py",
        "paddlefleet_ops/_manifest.json",
        "paddlefleet_ops/py.typed",
        "paddlefleet_ops/alpha/__init__.py",
        "paddlefleet_ops/alpha/deep/table.bin",
        "paddlefleet_ops/alpha/h.cuh",
    }
    assert not [item for item in names if "build_" in item or item.endswith("setup.py")]
    manifest = json.loads(wheel.read("paddlefleet_ops/_manifest.json"))
    assert manifest == json.loads(given.read_text())["manifest"]
    stub = wheel.read("paddlefleet_ops/__init__.pyi").decode()
    assert stub == build_manifest.stub_text(manifest)
    assert not (package / "src" / "paddlefleet_ops" / "__init__.pyi").exists()
    metadata = email.message_from_bytes(
        wheel.read("paddlefleet_ops-0.1.0+cu130.dist-info/METADATA")
    )
    required = [text for text in metadata.get_all("Requires-Dist", []) if "extra" not in text]
    assert required == ["einops>=0.8", "triton>=3.3"]
    assert "Private :: Do Not Upload" not in metadata.get_all("Classifier", [])


@pytest.mark.parametrize(
    ("library", "abi"), [("lib.so", "none"), (f"_core.cpython-{TAG[2:]}-x86_64-linux-gnu.so", TAG)]
)
def test_the_tag_is_that_of_what_is_inside(
    package: Path, assembly: Any, tmp_path: Path, library: str, abi: str
) -> None:
    name, wheel = built(package, assembly({f"alpha/{library}": "\x7fELF"}), tmp_path)
    python, found, platform = name.removesuffix(".whl").split("-")[2:]
    assert (python, found) == (TAG, abi)
    assert platform.startswith("linux_")
    content = wheel.read("paddlefleet_ops-0.1.0+cu130.dist-info/WHEEL").decode()
    assert "Root-Is-Purelib: false" in content


def test_a_wheel_that_must_not_be_published_cannot_be_uploaded(
    package: Path, assembly: Any, tmp_path: Path
) -> None:
    given = assembly({"alpha/__init__.py": ""}, publishable=False)
    _, wheel = built(package, given, tmp_path)
    metadata = wheel.read("paddlefleet_ops-0.1.0+cu130.dist-info/METADATA").decode()
    assert "\nClassifier: Private :: Do Not Upload\n" in metadata


def test_what_an_earlier_build_collected_does_not_stay(
    package: Path, assembly: Any, tmp_path: Path
) -> None:
    source = package / "src" / "paddlefleet_ops"
    for target in ("fused_norm/old.py", "quack/old.py"):
        (source / target).parent.mkdir()
        (source / target).write_text("old")
    (source / "deep_ep_cpp.so").write_text("old")
    stale = package / "build" / "lib" / "paddlefleet_ops" / "old.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("old")
    _, wheel = built(package, assembly({"fused_norm/__init__.py": ""}), tmp_path)
    assert not [name for name in wheel.namelist() if "old" in name or "deep_ep" in name]
    assert "paddlefleet_ops/fused_norm/__init__.py" in wheel.namelist()


def test_the_farm_needs_no_further_build_requirement(package: Path, assembly: Any) -> None:
    given = str(assembly({"alpha/__init__.py": ""}))
    assert call(package, "get_requires_for_build_wheel", PADDLEFLEET_OPS_ASSEMBLY=given) == "[]"


def fake_nvcc(folder: Path, release: str = "13.0") -> Path:
    nvcc = folder / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.88'\n")
    nvcc.chmod(0o755)
    return folder


def test_a_plain_build_asks_for_what_its_libraries_declare(package: Path, tmp_path: Path) -> None:
    asked = ("expert-placement", "chunk-linear-attention")
    found = call(
        package,
        "get_requires_for_build_wheel",
        CUDA_HOME=str(fake_nvcc(tmp_path / "cuda")),
        PADDLE_CUDA_ARCH_LIST="9.0;10.0",
        PADDLEFLEET_OPS_SET="templates",
        PADDLEFLEET_OPS_LIBS=", ".join(asked),
    )
    declared = {
        text
        for library in build_utils.get_libs("templates")
        if library.name in asked
        for text in library.build_requires
    }
    assert ast.literal_eval(found) == sorted({"pip", *declared})


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({}, ["no nvcc", "nox -s wheel-cu130", "PADDLE_CUDA_ARCH_LIST is not set"]),
        ({"CUDA_HOME": "/no/such/toolkit", "PADDLE_CUDA_ARCH_LIST": "9.0"}, ["no nvcc"]),
        ({"PADDLE_CUDA_ARCH_LIST": "9.0;sm_90"}, ["not a capability: 'sm_90'"]),
    ],
)
def test_a_plain_build_that_cannot_tell_its_target_says_how_to_tell_it(
    package: Path, tmp_path: Path, env: dict[str, str], words: list[str]
) -> None:
    error = refused(package, "get_requires_for_build_wheel", **{"PATH": str(tmp_path), **env})
    assert "cannot tell what to build for" in error
    for word in words:
        assert word in error


def test_a_source_distribution_is_refused_with_what_to_do(package: Path, tmp_path: Path) -> None:
    assert "python -m build --wheel" in refused(package, "build_sdist", str(tmp_path))


def test_setuptools_alone_says_that_the_manifest_is_missing(package: Path) -> None:
    done = subprocess.run(
        (sys.executable, "setup.py", "--version"),
        cwd=package, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "build through the backend" in done.stderr
