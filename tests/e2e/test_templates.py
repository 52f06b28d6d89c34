"""The templates' own tests, run on what the wheel holds, under Paddle's proxy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import REPOSITORY

pytestmark = [pytest.mark.network, pytest.mark.slow]

# The option that turns a missing Paddle into a failure instead of a skip.
SUITES = {
    "header_only": ("--frameworks", "paddle"),
    "cuda_extension": ("--require", "paddle"),
    "ep_comm": ("--frameworks", "paddle"),
    "python_dsl": ("--frameworks", "paddle"),
}


@pytest.fixture(scope="module")
def collected(
    templates_wheel_for: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The package's folder of a wheel for this Python: the libraries' top-level names are in it."""
    folder = tmp_path_factory.mktemp("templates")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    with zipfile.ZipFile(templates_wheel_for(python)) as archive:
        archive.extractall(folder / "site")
    return folder / "site" / "paddlefleet_ops"


@pytest.mark.parametrize("kind", SUITES)
def test_the_library_passes_its_own_tests(kind: str, collected: Path, tmp_path: Path) -> None:
    suite = REPOSITORY / "packages" / "templates" / kind / "tests"
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", str(suite), "-q", "-p", "no:cacheprovider",
            "--rootdir", str(suite), *SUITES[kind],
        ],
        cwd=tmp_path,
        env=dict(os.environ)
        | {"PYTHONPATH": str(collected), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) >= 40
