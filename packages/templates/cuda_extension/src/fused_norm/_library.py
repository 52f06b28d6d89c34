"""Loads ``libfused_norm.so``, which lies beside this file.

``tvm_ffi`` is imported first: it brings ``libtvm_ffi.so`` into the process, and the dynamic loader
then finds that library by its soname. Loading needs neither a GPU nor a CUDA installation.
"""

from __future__ import annotations

from pathlib import Path

import tvm_ffi

LIBRARY = Path(__file__).resolve().parent / "libfused_norm.so"


def _load() -> tvm_ffi.Module:
    if not LIBRARY.is_file():
        raise ImportError(
            f"{LIBRARY.name} is not in {LIBRARY.parent}: this is a source tree, or an incomplete "
            "install. Build it with `pip install . --no-build-isolation` and import the installed "
            "package."
        )
    return tvm_ffi.load_module(str(LIBRARY))


_module = _load()

rms_norm_residual = _module.rms_norm_residual
swiglu = _module.swiglu
topk_softmax = _module.topk_softmax


def built_capabilities() -> tuple[str, ...]:
    """Return the CUDA compute capabilities of the kernels, as they were declared for the build."""
    return tuple(str(_module.built_capabilities()).split(";"))
