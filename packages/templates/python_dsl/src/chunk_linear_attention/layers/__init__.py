"""Layers built on the operators."""

from __future__ import annotations

from chunk_linear_attention.layers import linear_attention
from chunk_linear_attention.layers.linear_attention import LinearAttention

__all__ = ["LinearAttention", "linear_attention"]
