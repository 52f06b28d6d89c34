"""CUDA homes that only claim to be another CUDA: for counts of builds, never for times or wheels to use.

Each home is that of a real CUDA, by links, with another ``bin/nvcc``: a script that gives the wanted
version, notes what it is called for, and compiles with the real nvcc. So the farm takes it for a toolkit
of that version, and a wheel "for CUDA 12.6" holds code of the real one.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

SCRIPT = """#!/bin/sh
# Simulated: claims to be nvcc of CUDA {version}, compiles with {real}
for word in "$@"; do
  case "$word" in
    --version|-V)
      echo "nvcc: NVIDIA (R) Cuda compiler driver"
      echo "Cuda compilation tools, release {version}, V{version}.0"
      exit 0 ;;
    -c|--compile) echo "$*" >> {calls} ;;
  esac
done
exec {real} "$@"
"""


def simulate(real_home: Path, version: str, root: Path) -> Path:
    """A home ``root/cuda-VERSION`` (``"12.6"``) that stands on ``real_home``; returns it."""
    home = root / f"cuda-{version}"
    (home / "bin").mkdir(parents=True)
    for entry in real_home.iterdir():
        if entry.name != "bin":
            (home / entry.name).symlink_to(entry)
    for tool in (real_home / "bin").iterdir():
        if tool.name not in ("nvcc", "nvcc.profile"):
            (home / "bin" / tool.name).symlink_to(tool)
    nvcc = home / "bin" / "nvcc"
    text = SCRIPT.format(
        version=version,
        real=shlex.quote(str(real_home / "bin" / "nvcc")),
        calls=shlex.quote(str(calls_file(home))),
    )
    nvcc.write_text(text, "utf-8")
    nvcc.chmod(0o755)
    return home


def calls_file(home: Path) -> Path:
    """Where the nvcc of a simulated home notes each compilation, one line each."""
    return home.parent / f"{home.name}.calls"


def compilations(home: Path) -> int:
    """How many files the nvcc of a simulated home was asked to compile."""
    notes = calls_file(home)
    return len(notes.read_text("utf-8").splitlines()) if notes.exists() else 0


def variables(root: Path, real_home: Path) -> dict[str, str]:
    """What makes the farm find the simulated homes below ``root``, and the real one."""
    path = os.pathsep.join((str(real_home / "bin"), os.environ.get("PATH", os.defpath)))
    return {"PADDLEFLEET_FARM_CUDA_ROOTS": str(root), "PATH": path}
