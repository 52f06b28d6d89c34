"""Chunked causal linear attention with per-step decay.

Every submodule is imported here and in the ``__init__`` of its folder, so that all of them are
initialised in the same framework context: ``import torch`` inside this package means PyTorch, or
Paddle when the import happens inside
``paddle.use_compat_guard(scope={"chunk_linear_attention"})``.

One module is left out on purpose, ``chunk_linear_attention.dsl.launch``: ``ops/compiled.py`` says
why, and what takes its place.
"""

from __future__ import annotations

from chunk_linear_attention import dsl, layers, ops, utils
from chunk_linear_attention.layers import LinearAttention
from chunk_linear_attention.ops import (
    chunk_linear_attention,
    compiled_linear_attention,
    linear_attention_step,
    recurrent_linear_attention,
)

__all__ = [
    "LinearAttention",
    "chunk_linear_attention",
    "compiled_linear_attention",
    "dsl",
    "layers",
    "linear_attention_step",
    "ops",
    "recurrent_linear_attention",
    "utils",
]

__version__ = "0.1.0"
