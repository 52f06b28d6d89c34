"""The CUDA home of a clang toolchain: headers, libdevice and ptxas of a CUDA, and our ``nvcc``."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from ci.toolchain import delayed_cudart, probe
from ci.toolchain.nvcc_clang import CONFIG
from ci.toolchain.recipes import Recipe
from ci.toolchain.resolve import Assemble

WRAPPER = Path(__file__).with_name("nvcc_clang.py")

# What clang needs of each CUDA 12 package; the other files (curand's library is 90 MB) stay out.
_CUDA12_PARTS = (
    ("cuda_runtime/include", "include"),
    ("cuda_runtime/lib", "lib"),
    ("cuda_cccl/include", "include"),
    ("curand/include", "include"),
    ("cuda_nvcc/include", "include"),
    ("cuda_nvcc/nvvm", "nvvm"),
    ("cuda_nvcc/bin", "bin"),
    ("cu13/bin/fatbinary", "bin/fatbinary"),
)
_CUDA13_PARTS = (
    ("include", "include"),
    ("lib", "lib"),
    ("nvvm/libdevice", "nvvm/libdevice"),
    ("bin/ptxas", "bin/ptxas"),
    ("bin/fatbinary", "bin/fatbinary"),
)
_DEFAULT_ARCH = {"12": "sm_52", "13": "sm_75"}
"""What nvcc of that major compiles for when no target is given ("Options for Steering GPU Code")."""


def wrapper_digest() -> str:
    """SHA-256 of the programs that make this home what it is."""
    return probe.file_digest(WRAPPER) + probe.file_digest(Path(delayed_cudart.__file__))


def lay_out(cuda: str, packages: Path, home: Path) -> None:
    """Move what clang needs from the installed ``packages`` (their ``nvidia`` folder) to ``home``."""
    major = cuda.split(".", 1)[0]
    parts: tuple[tuple[str, str], ...] = _CUDA12_PARTS
    root = packages
    if major != "12":
        parts, root = _CUDA13_PARTS, packages / f"cu{major}"
    for source, target in parts:
        _merge(root / source, home / target)
    for left in [*(home / "lib").glob("libcurand*"), *home.rglob("__init__.py")]:
        left.unlink()
    for left in list(home.rglob("__pycache__")):
        shutil.rmtree(left)


def _merge(source: Path, target: Path) -> None:
    """Move a file or a tree; folders that exist on both sides become one."""
    if source.is_dir() and target.is_dir():
        for child in source.iterdir():
            _merge(child, target / child.name)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    source.replace(target)


def complete(choice: Assemble, home: Path, environ: Mapping[str, str]) -> None:
    """Add ``bin/nvcc`` and, where the packages have none, a ``libcudart_static.a``."""
    assert choice.clang is not None
    cuda = choice.recipe.cuda
    if not (home / "lib" / "libcudart_static.a").exists():
        delayed_cudart.make(home / "lib", choice.host.cc, environ)
    shutil.copyfile(WRAPPER, home / "bin" / WRAPPER.name)
    config = {
        "cuda": cuda,
        "version": compiler_version(choice.recipe),
        "clang": str(choice.clang.path),
        "clang_version": choice.clang.full_version,
        "default_arch": _DEFAULT_ARCH[cuda.split(".", 1)[0]],
    }
    (home / "bin" / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    nvcc = home / "bin" / "nvcc"
    nvcc.write_text(launcher(_interpreter()), encoding="utf-8")
    nvcc.chmod(0o755)


def compiler_version(recipe: Recipe) -> str:
    """The version of the CUDA whose ptxas and libdevice are used, such as ``12.6.85``."""
    names = ("nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvcc")
    pins = dict(package.split("==", 1) for package in recipe.packages())
    return next(pins[name] for name in names if pins.get(name, "").startswith(recipe.cuda))


def _interpreter() -> str:
    """An interpreter that outlives the virtual environment that we may run in."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def launcher(python: str) -> str:
    """``bin/nvcc``: a shell script, since the line of an interpreter is limited and cannot fall back.

    It works with an empty environment, through a symbolic link, and after the home was moved. It uses
    the Python that put the home together, or any ``python3`` once that one is gone.
    """
    return f"""#!/bin/sh
self=$0
if [ -L "$self" ]; then self=$(readlink -f -- "$self"); fi
case $self in */*) here=${{self%/*}} ;; *) here=. ;; esac
for python in {shlex.quote(python)} python3; do
  if command -v "$python" >/dev/null 2>&1; then
    exec "$python" -I -S -B "$here/{WRAPPER.name}" "$@"
  fi
done
echo "nvcc (clang) fatal   : no python3 on PATH, and {python} is gone" >&2
exit 1
"""
