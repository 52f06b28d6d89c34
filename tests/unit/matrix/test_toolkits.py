"""The table against the tools: what each nvcc and ptxas here says, and what others said once.

``CAPABILITY_TOOLS`` may name more of them, separated by ``:``, such as the ptxas of the
``nvidia-cuda-nvcc`` packages of other releases.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ci.matrix.capability import Capability, check, conflict_reasons, gencode
from ci.matrix.toolkits import RENAMED, TOOLKITS, Toolkit

RELEASE = re.compile(r"release ([0-9]+\.[0-9]+)")
RECORDED = Path(__file__).with_name("ptxas_gpu_names.txt")
GPU_NAME = re.compile(r"'sm_([0-9]+)([0-9])([af]?)'")


def find_tools() -> list[str]:
    folders = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    named = [path for path in os.environ.get("CAPABILITY_TOOLS", "").split(":") if path]
    found = [shutil.which("nvcc"), shutil.which("ptxas")]
    found += [
        str(Path(folder, "bin", name)) for folder in folders if folder for name in ("nvcc", "ptxas")
    ]
    usable = [path for path in found if path and os.access(path, os.X_OK)]
    return sorted({*usable, *named})


TOOLS = find_tools()


def said_by(tool: str, option: str) -> str:
    done = subprocess.run([tool, option], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def known_to(tool: str) -> set[str]:
    """Names as 9.0a that the tool's help allows as real architectures."""
    return {f"{a}.{b}{letter}" for a, b, letter in GPU_NAME.findall(said_by(tool, "--help"))}


def dry_run(values: tuple[str, ...], source: Path) -> tuple[int, str]:
    """Exit status and log of nvcc, which plans the compilation without doing it."""
    flags = [flag for value in values for flag in ("-gencode", value)]
    done = subprocess.run(
        ["nvcc", "--dryrun", "-c", *flags, str(source)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stderr


@pytest.mark.skipif(not TOOLS, reason="no nvcc or ptxas here: PATH, CUDA_HOME, CAPABILITY_TOOLS")
@pytest.mark.parametrize("tool", TOOLS)
def test_a_row_is_what_the_tool_of_that_release_says(tool: str) -> None:
    release = RELEASE.search(said_by(tool, "--version"))
    assert release, f"{tool} does not tell its release"
    assert release[1] in TOOLKITS, f"CUDA {release[1]} lacks a row in ci/matrix/toolkits.py"
    assert set(TOOLKITS[release[1]].names) == known_to(tool)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_nvcc_takes_the_flags_of_every_capability_of_its_row(tmp_path: Path) -> None:
    release = RELEASE.search(said_by("nvcc", "--version"))
    assert release
    source = tmp_path / "empty.cu"
    source.write_text("__global__ void empty() {}\n", encoding="utf-8")
    names = TOOLKITS[release[1]].names
    for target in ("a", "f"):  # nvcc refuses a list with both 10.0 and 10.0f
        other = [name for name in names if name.endswith(target)]
        plain = [name for name in names if name[-1].isdigit() and f"{name}f" not in other]
        capabilities = [Capability.parse(f"{name}+PTX") for name in (*plain, *other)]
        status, log = dry_run(gencode(capabilities), source)
        assert status == 0, log[-2000:]
        assembled = set(re.findall(r"-arch[= ]\"?(sm_[0-9]+[af]?)\b", log))
        assert assembled == {item.sm for item in capabilities}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("10.0", "10.0a"),
        ("10.0", "10.0f"),
        ("10.3", "10.3f"),
        ("10.0a", "10.0f"),
        ("10.0f", "10.3"),
    ],
)
def test_conflicts_in_a_list_are_those_of_nvcc(first: str, second: str, tmp_path: Path) -> None:
    source = tmp_path / "empty.cu"
    source.write_text("__global__ void empty() {}\n", encoding="utf-8")
    capabilities = [Capability.parse(first), Capability.parse(second)]
    release = RELEASE.search(said_by("nvcc", "--version"))
    assert release
    if any(check(item, release[1]) for item in capabilities):
        pytest.skip(f"CUDA {release[1]} lacks {first} or {second}")
    status, log = dry_run(gencode(capabilities), source)
    assert (status == 0) == (not conflict_reasons(capabilities)), log[-2000:]


def test_every_row_is_what_ptxas_of_that_release_said() -> None:
    said: dict[str, set[str]] = {}
    for line in RECORDED.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            build, *names = line.split()
            quoted = " ".join(f"'{name}'" for name in names)
            release = build.rpartition(".")[0]
            said[release] = {f"{a}.{b}{letter}" for a, b, letter in GPU_NAME.findall(quoted)}
    assert said == {cuda: set(row.names) for cuda, row in TOOLKITS.items()}


def test_names_come_in_ascending_order_with_their_targets() -> None:
    row = Toolkit("0.0", "8.0 9.0 10.0", "9.0 10.0", "10.0")
    assert row.names == ("8.0", "9.0", "9.0a", "10.0", "10.0a", "10.0f")


def test_targets_belong_to_capabilities_of_their_row() -> None:
    for row in TOOLKITS.values():
        plain = set(row.plain.split())
        assert set(row.specific.split()) <= plain, row.cuda
        assert set(row.family.split()) <= plain, row.cuda


def test_releases_are_in_ascending_order() -> None:
    versions = [tuple(map(int, cuda.split("."))) for cuda in TOOLKITS]
    assert versions == sorted(versions)


@pytest.mark.parametrize(
    ("capability", "first"),
    [
        ("10.0", "12.8"),
        ("10.1", "12.8"),
        ("12.0", "12.8"),
        ("10.3", "12.9"),
        ("12.1", "12.9"),
        ("10.0f", "12.9"),
        ("12.0f", "12.9"),
        ("8.8", "13.0"),
        ("11.0", "13.0"),
        ("10.7", "13.4"),
    ],
)
def test_first_release_is_that_of_nvidias_release_notes(capability: str, first: str) -> None:
    releases = list(TOOLKITS)
    item = Capability.parse(capability)
    having = [release for release in releases if check(item, release) is None]
    assert having[0] == first


def test_cuda_13_knows_nothing_before_7_5() -> None:
    for release, row in TOOLKITS.items():
        oldest = Capability.parse(row.names[0]).cc
        assert oldest == ((7, 5) if release.startswith("13.") else (5, 0))


def test_a_renamed_capability_is_never_known_under_both_names() -> None:
    for old, new in RENAMED.items():
        for row in TOOLKITS.values():
            assert not {old, new} <= set(row.names)
