"""Libraries that a linker needs and the package index does not have, made on this machine.

``libcuda.so`` is the driver's; hosts that build have no driver. NVIDIA's toolkits bring a stub with
the driver's names and soname, so that programs link; ours is made from the names in ``cuda.h``. It
is never run and never enters a wheel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ci import proc
from ci.errors import ToolchainError

DRIVER_STUB = "libcuda.so"
DRIVER_SONAME = "libcuda.so.1"
STUB_LIBRARY = 34
"""``CUDA_ERROR_STUB_LIBRARY`` of ``cuda.h``: what NVIDIA's own stub answers to every call."""


def driver_functions(preprocessed: str) -> tuple[str, ...]:
    """Names of the driver's functions in ``cuda.h`` after the preprocessor, sorted.

    The preprocessor has to be done first: ``cuda.h`` renames (``cuMemAlloc`` is ``cuMemAlloc_v2``).
    """
    names = re.findall(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(", preprocessed)
    return tuple(sorted(set(names)))


def driver_stub_source(names: tuple[str, ...]) -> str:
    """C text that defines ``names``, each answering :data:`STUB_LIBRARY`."""
    return "".join(f"int {name}(void) {{ return {STUB_LIBRARY}; }}\n" for name in names)


def make_driver_stub(folder: Path, include: Path, cc: Path, environ: Mapping[str, str]) -> Path:
    """Write ``libcuda.so`` into ``folder``; ``include`` holds ``cuda.h``.

    Raises :class:`~ci.errors.ToolchainError` when the C compiler fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = checked(environ, str(cc), "-E", "-P", f"-I{include}", "-x", "c", str(include / "cuda.h"))
    source = folder / "libcuda_stub.c"
    source.write_text(driver_stub_source(driver_functions(text)), encoding="utf-8")
    target = folder / DRIVER_STUB
    soname = f"-Wl,-soname,{DRIVER_SONAME}"
    checked(environ, str(cc), "-shared", "-fPIC", "-O1", soname, "-o", str(target), str(source))
    source.unlink()
    return target


def checked(environ: Mapping[str, str], *argv: str, cwd: Path | None = None) -> str:
    """Run a compiler and return its output, or :class:`~ci.errors.ToolchainError` with the tail."""
    command = proc.Command(argv, env=environ, cwd=cwd, timeout=600)
    answer = proc.run(command)
    if not answer.ok:
        raise ToolchainError(
            f"{Path(argv[0]).name} failed while the toolchain was put together",
            cause="the compiler, or what it includes, does not work on this machine",
            next_step=f"run it by hand: {command.shown}",
            details=answer.tail(20),
        )
    return answer.output
