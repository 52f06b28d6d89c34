"""What a requirement brings into an environment: all that it needs there, and nothing that others need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ci.environments.closure import needed
from ci.environments.lock import Lock
from ci.environments.venv import Environment

PACKAGES = {
    "Builder": (
        "2.0",
        ["core>=1", "old-only; python_version < '3.11'", "fast[simd]; extra == 'speed'"],
    ),
    "core": ("1.5", ["helper_lib", "builder"]),  # needs its user: a circle
    "helper-lib": ("0.3", ["not-installed; sys_platform == 'win32'", "no requirement at all !"]),
    "old-only": ("1.0", []),
    "fast": ("3.0", ["simd-kernels; extra == 'simd'", "tests; extra == 'test'"]),
    "simd-kernels": ("4.1", []),
    "tests": ("9.9", []),
    "of-another-library": ("7.0", ["core"]),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An environment with the metadata of its packages alone."""
    site = tmp_path / "lib" / "python3.12" / "site-packages"
    for name, (version, requires) in PACKAGES.items():
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = [f"Requires-Dist: {text}" for text in requires]
        head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        (info / "METADATA").write_text("\n".join([*head, *lines, "", "Requires-Dist: text\n"]))
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nversion_info = 3.12.1\n")
    return tmp_path


def of(folder: Path, *requirements: str) -> tuple[str, ...]:
    return needed(Environment(folder, Lock("")), requirements)


def test_what_is_needed_is_followed_to_its_end(folder: Path) -> None:
    assert of(folder, "builder>=1") == ("builder==2.0", "core==1.5", "helper-lib==0.3")


def test_an_extra_brings_what_it_names(folder: Path) -> None:
    found = of(folder, "Builder[speed]>=1,<3")
    assert set(found) == {
        "builder==2.0", "core==1.5", "helper-lib==0.3", "fast==3.0", "simd-kernels==4.1",
    }  # fmt: skip
    assert of(folder, "fast") == ("fast==3.0",)
    assert of(folder, "fast", "fast[test]") == ("fast==3.0", "tests==9.9")


def test_a_marker_is_of_the_environments_python_not_of_ours(folder: Path) -> None:
    other = folder / "older"
    (folder / "lib").rename(folder / "kept")
    (folder / "pyvenv.cfg").rename(folder / "cfg")
    other.mkdir()
    (folder / "kept").rename(other / "lib")
    (other / "pyvenv.cfg").write_text("version = 3.10.13\n")
    assert "old-only==1.0" in of(other, "builder")


def test_what_the_environment_does_not_have_is_left_out(folder: Path) -> None:
    assert of(folder, "absent>=1", "old-only") == ("old-only==1.0",)
    assert of(folder) == ()


def test_a_real_environment_is_read_as_uv_reads_it(folder: Path) -> None:
    """uv's own answer, package by package, for the tools that these tests run with."""
    prefix = Path(sys.prefix)
    found = {text.partition("==")[0] for text in of(prefix, "pytest")}
    pending, expected = ["pytest"], set()
    while pending:
        name = pending.pop()
        argv = [sys.executable, "-m", "uv", "pip", "show", "--python", sys.executable, name]
        told = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
        lines = dict(line.partition(":")[::2] for line in told.splitlines())
        if lines and name not in expected:
            expected.add(name)
            pending += [item.lower() for item in lines["Requires"].strip().split(", ") if item]
    assert found == expected
    assert len(expected) > 3
