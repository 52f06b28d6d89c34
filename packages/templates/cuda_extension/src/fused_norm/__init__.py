"""Fused operators of a transformer block: RMSNorm with residual, SwiGLU, and top-k gating softmax.

One shared library serves every Python version and framework: tensors go in and out by DLPack through
TVM FFI. Everything is imported here, at import time, so that a compatibility guard around the first
import covers all submodules.
"""

from __future__ import annotations

from . import _checks, _library, activation, normalization, routing  # noqa: F401
from ._library import built_capabilities
from .activation import swiglu
from .normalization import rms_norm_residual
from .routing import MAX_EXPERTS, topk_softmax

__version__ = "0.1.0"

__all__ = [
    "MAX_EXPERTS",
    "built_capabilities",
    "rms_norm_residual",
    "swiglu",
    "topk_softmax",
]
