"""The sessions: those of the matrix, listed under plain nox from any folder."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ci.matrix.load import load
from ci.registry import REPOSITORY

NOXFILE = REPOSITORY / "noxfile.py"
CUDAS = {entry.version for entry in load(REPOSITORY / "matrix.toml").cudas}


def sessions(*options: str, cwd: Path) -> dict[str, str]:
    """Name to description of every session, as plain ``nox -l`` prints them."""
    done = subprocess.run(
        (sys.executable, "-m", "nox", "-l", *options),
        cwd=cwd, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(re.findall(r"^[*-] (\S+) -> (.*)$", done.stdout, re.MULTILINE))


@pytest.fixture(scope="module")
def listed() -> dict[str, str]:
    return sessions(cwd=REPOSITORY)


def test_there_is_a_wheel_session_for_each_cuda_of_the_matrix(listed: dict[str, str]) -> None:
    found = {name for name in listed if name.startswith("wheel-")}
    assert found == {f"wheel-cu{cuda.replace('.', '')}" for cuda in CUDAS}


def test_the_other_sessions_are_there(listed: dict[str, str]) -> None:
    assert set(listed) >= {"wheels", "import", "tests", "lint", "matrix", "toolchain"}


def test_the_list_reads_as_documentation(listed: dict[str, str]) -> None:
    for name, description in listed.items():
        assert description, name
        assert description.endswith((".", ")"))
    for cuda in CUDAS:
        assert cuda in listed[f"wheel-cu{cuda.replace('.', '')}"]


def test_another_folder_lists_the_same(listed: dict[str, str], tmp_path: Path) -> None:
    assert sessions("-f", str(NOXFILE), cwd=tmp_path) == listed


def test_a_session_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        (sys.executable, "-m", "nox", "-f", str(NOXFILE), "-s", "wheel-cu99"),
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "wheel-cu99" in done.stderr


def test_nothing_but_nox_and_the_standard_library_is_imported() -> None:
    tree = ast.parse(NOXFILE.read_text("utf-8"))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    assert names - set(sys.stdlib_module_names) == {"nox"}
