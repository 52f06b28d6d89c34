"""What a plain ``pip wheel`` asks of the machine. The farm does not use it: it passes a cell.

The target is never guessed from the GPU of the build host: a wheel must not depend on where it was
built. CUDA comes from the toolkit, capabilities from ``PADDLE_CUDA_ARCH_LIST``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from build_utils import Target, compute_capability


class ProbeError(RuntimeError):
    """The machine does not say what to build for; the message tells how to say it."""


def find_nvcc(environ: Mapping[str, str]) -> Path | None:
    """The nvcc of ``CUDA_HOME`` or ``CUDA_PATH``, else the one on PATH."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(name):
            candidate = Path(environ[name]) / "bin" / "nvcc"
            return candidate if candidate.exists() else None
    found = shutil.which("nvcc", path=environ.get("PATH"))
    return Path(found).resolve() if found else None


def nvcc_release(nvcc: Path) -> str:
    """Major and minor version that ``nvcc --version`` prints, such as ``13.0``."""
    done = subprocess.run((str(nvcc), "--version"), capture_output=True, text=True, check=False)
    match = re.search(r"release (\d+\.\d+)", done.stdout)
    if match is None:
        raise ProbeError(f"{nvcc} --version does not name a release: {done.stdout[:200]!r}")
    return match.group(1)


def _capability_problem(text: str) -> str:
    try:
        compute_capability(text)
    except ValueError as error:
        return f"PADDLE_CUDA_ARCH_LIST: {error}"
    return ""


def probe_target(environ: Mapping[str, str] = os.environ) -> Target:
    """The target of a plain build. Raises :class:`ProbeError` when something is not said."""
    problems = []
    nvcc = find_nvcc(environ)
    if nvcc is None:
        problems.append(
            "no nvcc: set CUDA_HOME to a CUDA toolkit, or build with the farm "
            "(nox -s wheel-cu130), which fetches a compiler"
        )
    listed = environ.get("PADDLE_CUDA_ARCH_LIST", "")
    capabilities = tuple(filter(None, re.split(r"[;, ]+", listed)))
    if not capabilities:
        problems.append("PADDLE_CUDA_ARCH_LIST is not set: write it like '8.0;9.0;10.0'")
    problems += filter(None, map(_capability_problem, capabilities))
    if problems or nvcc is None:
        raise ProbeError("cannot tell what to build for:\n  " + "\n  ".join(problems))
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Target(nvcc_release(nvcc), python, capabilities)
