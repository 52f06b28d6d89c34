"""Checks and conversions that the operators share."""

from __future__ import annotations

from chunk_linear_attention.utils import compat, inputs
from chunk_linear_attention.utils.inputs import Inputs, prepare

__all__ = ["Inputs", "compat", "inputs", "prepare"]
