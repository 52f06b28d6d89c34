"""What the tests' own set-up promises when pytest-xdist spreads them over processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ci.registry import REPOSITORY

CONFTEST = """
from tests.conftest import once, pytest_xdist_make_scheduler  # the fixture and the hook under test
"""
TESTS = """
import json, time
from pathlib import Path

LOG = Path({log!r})

def build():
    with LOG.open("a") as log:
        log.write("built\\n")
    time.sleep(0.5)
    return {{"wheel": "a.whl"}}

def failing():
    with LOG.open("a") as log:
        log.write("tried\\n")
    raise RuntimeError("not built")

def test_shared(once):
    assert once("wheel", build) == {{"wheel": "a.whl"}}
    assert once("wheel", build) == {{"wheel": "a.whl"}}

def test_failing(once):
    try:
        once("broken", failing)
    except RuntimeError:
        return
    raise AssertionError("a failure was kept as a value")
"""


def run_parallel(folder: Path, *arguments: str) -> str:
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    (folder / "conftest.py").write_text(CONFTEST)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        (
            sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-v", "-p", "no:cacheprovider",
            "--basetemp", str(folder / "base"), *arguments,
        ),
        cwd=folder, env=kept | {"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def workers(shown: str) -> dict[str, set[str]]:
    """File to the workers that ran its tests, as ``-v`` prints them."""
    found: dict[str, set[str]] = {}
    for worker, file in re.findall(r"^\[(gw\d+)\].*PASSED (\S+?)::", shown, re.MULTILINE):
        found.setdefault(file, set()).add(worker)
    return found


def test_two_workers_make_a_shared_thing_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(TESTS.format(log=str(log)))
    ran = workers(run_parallel(tmp_path))
    assert ran["test_one.py"] != ran["test_two.py"], "the two files ran in different workers"
    assert sorted(log.read_text().split()) == ["built", "tried", "tried"]


@pytest.mark.parametrize(
    ("folder", "together"), [("tests/docker", True), ("tests/docker_like", False)]
)
def test_files_of_the_daemon_share_a_worker(folder: str, together: bool, tmp_path: Path) -> None:
    place = tmp_path / folder
    place.mkdir(parents=True)
    names = [f"test_{index}.py" for index in range(4)]
    for name in names:
        (place / name).write_text("import time\n\ndef test_it():\n    time.sleep(0.2)\n")
    ran = workers(run_parallel(tmp_path))
    assert set(ran) == {f"{folder}/{name}" for name in names}
    assert (len(set().union(*ran.values())) == 1) is together
