"""The PEP 517 back end without the farm: what ``pip wheel packages/paddlefleet_ops`` gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename

from .conftest import REPOSITORY

pytestmark = [pytest.mark.network, pytest.mark.slow]

PACKAGE = REPOSITORY / "packages" / "paddlefleet_ops"


def pip_wheel(out: Path, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """``pip wheel`` of the package, with a toolkit that can only say which one it is."""
    nvcc = home / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    nvcc.chmod(0o755)
    environment = (
        dict(os.environ) | {"CUDA_HOME": str(home), "PADDLEFLEET_OPS_SET": "templates"} | env
    )
    return subprocess.run(
        [sys.executable, "-m", "pip", "wheel", str(PACKAGE), "--no-deps", "--wheel-dir", str(out)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_pip_wheel_builds_the_libraries_and_leaves_the_tree_clean(tmp_path: Path) -> None:
    done = pip_wheel(
        tmp_path / "out",
        tmp_path / "cuda",
        PADDLE_CUDA_ARCH_LIST="9.0",
        PADDLEFLEET_OPS_LIBS="expert-placement,chunk-linear-attention",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tmp_path / "out").glob("*.whl")
    _, version, _, tags = parse_wheel_filename(wheel.name)
    assert version.local is not None
    assert version.local.startswith("cu130.")
    assert version.local.endswith(".local")
    assert {tag.platform for tag in tags} == {"linux_x86_64"}
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        manifest = json.loads(archive.read("paddlefleet_ops/_manifest.json"))
    assert [item["name"] for item in manifest["libraries"]] == [
        "expert-placement",
        "chunk-linear-attention",
    ]
    assert manifest["publishable"] is False
    assert any(name.startswith("paddlefleet_ops/expert_placement/_core.cpython-") for name in names)
    assert not (PACKAGE / "src" / "paddlefleet_ops" / "_manifest.json").exists()
    assert not (PACKAGE / "src" / "paddlefleet_ops" / "expert_placement").exists()


def test_capabilities_are_never_guessed_from_the_build_host(tmp_path: Path) -> None:
    done = pip_wheel(tmp_path / "out", tmp_path / "cuda", PADDLE_CUDA_ARCH_LIST="")
    assert done.returncode != 0
    assert "PADDLE_CUDA_ARCH_LIST is not set" in done.stdout + done.stderr
    assert not list(tmp_path.glob("out/*.whl"))
