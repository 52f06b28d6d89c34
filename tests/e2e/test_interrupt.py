"""Ctrl-C while compilers run: they end, nothing is left half-written, and the exit code is 130."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from .conftest import REPOSITORY

pytestmark = [pytest.mark.network, pytest.mark.slow]

SETUP = """
import pathlib, subprocess, sys, time
from setuptools import setup
pathlib.Path({marker!r}).write_text("building")
subprocess.run([sys.executable, "-c", "import time; time.sleep(3600)  # {token}"])
setup(name="sleeper", version="1", packages=["sleeper"])
"""
DECLARATION = """
from build_utils import Artifact, EcosystemLibrary
LIBRARIES = tuple(
    EcosystemLibrary(
        name=name, source_rel_path=name, artifacts=(Artifact("sleeper", name),), module=name,
        kind="python_dsl", hint="none", public_names=("x",), compat_scope=(name,),
        varies_by=frozenset(), build_requires=("setuptools>=77",), library_set="declared",
        needs_cuda_compiler=True,
    )
    for name in ("sleeper_one", "sleeper_two")
)
"""


def running(token: str) -> list[Path]:
    """The folders in which processes run whose command line holds ``token``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it ended in between
                if token in (entry / "cmdline").read_bytes().decode(errors="replace"):
                    found.append((entry / "cwd").readlink())
    return found


def work_folders(places: Iterable[Path], cache_dir: Path) -> set[Path]:
    """The folders of the cache's ``build`` that hold ``places``; another run may work there too."""
    work = cache_dir / "build"
    return {work / place.relative_to(work).parts[0] for place in places}


def wait_until(condition: object, what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_builds_of_all_threads(
    number: signal.Signals, tmp_path: Path, cache_dir: Path
) -> None:
    token = f"sleeper-{os.getpid()}-{number.name}"
    marker = tmp_path / "marker"
    for name in ("sleeper_one", "sleeper_two"):
        (tmp_path / name).mkdir()
        text = SETUP.format(marker=str(marker), token=token)
        (tmp_path / name / "setup.py").write_text(text, "utf-8")
    (tmp_path / "declare.py").write_text(DECLARATION, "utf-8")
    out = tmp_path / "dist"
    process = subprocess.Popen(
        [
            sys.executable, "-m", "ci", "wheel", "--cuda", "13.0", "--set", "templates",
            "--declare", str(tmp_path / "declare.py"), "--libs", "sleeper_one,sleeper_two",
            "--jobs", "2", "--cache-dir", str(cache_dir), "--out-dir", str(out),
        ],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        wait_until(lambda: marker.exists() and running(token), "the build never began")
        folders = work_folders(running(token), cache_dir)
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "interrupted" in said
    wait_until(lambda: not running(token), "a build survived the interrupt")
    assert not list(out.rglob("*.whl"))
    assert folders
    assert not [folder for folder in folders if folder.exists()]
