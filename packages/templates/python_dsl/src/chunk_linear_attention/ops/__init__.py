"""The operators; all take ``[B, T, H, ...]`` tensors and compute the same function."""

from __future__ import annotations

from chunk_linear_attention.ops import chunk, compiled, recurrent
from chunk_linear_attention.ops.chunk import chunk_linear_attention
from chunk_linear_attention.ops.compiled import compiled_linear_attention
from chunk_linear_attention.ops.recurrent import linear_attention_step, recurrent_linear_attention

__all__ = [
    "chunk",
    "chunk_linear_attention",
    "compiled",
    "compiled_linear_attention",
    "linear_attention_step",
    "recurrent",
    "recurrent_linear_attention",
]
