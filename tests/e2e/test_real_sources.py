"""A real torch package goes the whole path: declared, fetched, built, loaded under the guard, right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from .conftest import Farm, call

pytestmark = [pytest.mark.network, pytest.mark.slow]

DECLARATION = Path(__file__).with_name("declare_torch_dct.py")
COMPARE = """
import json, sys
import numpy as np, paddle, scipy.fft
import paddlefleet_ops
rng = np.random.default_rng(7)
found = {}
for name, shape, ours, theirs in (
    ("dct", (5, 16), paddlefleet_ops.torch_dct.dct, lambda x: scipy.fft.dct(x)),
    ("idct", (5, 16), paddlefleet_ops.torch_dct.idct, lambda x: scipy.fft.idct(x)),
    ("dct_2d", (4, 8, 12), paddlefleet_ops.torch_dct.dct_2d, lambda x: scipy.fft.dctn(x, axes=(1, 2))),
):
    for dtype in ("float64", "float32"):
        x = rng.standard_normal(shape).astype(dtype)
        got = ours(paddle.to_tensor(x)).numpy().astype("float64")
        want = theirs(x.astype("float64"))
        found[f"{name} {dtype}"] = float(np.abs(got - want).max() / np.abs(want).max())
print(json.dumps(found))
"""
# Relative to the largest coefficient: a few ulps times log2(n) for the FFT in each precision.
TOLERANCE = {"float64": 1e-13, "float32": 5e-6}


@pytest.fixture(scope="module")
def wheel(farm: Farm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    ran = farm.run(
        "wheel", "--cuda", "13.0", "--set", "templates", "--declare", str(DECLARATION),
        "--libs", "torch-dct", "--source", "torch-dct=pypi:torch-dct==0.1.6", "--json",
        "--python", f"{sys.version_info.major}.{sys.version_info.minor}",
        "--out-dir", str(tmp_path_factory.mktemp("dct")),
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = {row["library"]: row for row in ran.cell["libraries"]}
    assert rows["torch-dct"]["imported"] == "loaded"
    assert rows["fused-norm"]["status"] == "left out"
    return Path(ran.cell["wheel"])


def test_the_record_says_where_the_source_is_from_and_refuses_publication(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        manifest = json.loads(archive.read("paddlefleet_ops/_manifest.json"))
    (library,) = manifest["libraries"]
    assert library["source"]["kind"] == "pypi"
    assert library["source"]["origin"] == "pypi:torch-dct==0.1.6"
    assert library["source"]["revision"] == "0.1.6"
    assert ".src" in manifest["version"]
    assert manifest["publishable"] is False
    assert any("torch-dct" in reason for reason in manifest["not_publishable_because"])


def test_it_computes_what_scipy_computes(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "site"
    call(
        [
            sys.executable,
            "-m",
            "uv",
            "pip",
            "install",
            "--no-deps",
            "--target",
            str(installed),
            str(wheel),
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", COMPARE],
        cwd=tmp_path,
        env=dict(os.environ) | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    errors = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(errors) == 6
    for name, error in errors.items():
        assert error <= TOLERANCE[name.split()[1]], f"{name}: {error}"
