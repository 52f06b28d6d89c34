"""A small scan language: one step in Python, compiled to a loop over NumPy arrays.

``language`` and ``kernels`` know no framework and are imported here. ``launch``, which binds
framework values, must not be: see ``chunk_linear_attention.ops.compiled``.
"""

from __future__ import annotations

from chunk_linear_attention.dsl import kernels, language
from chunk_linear_attention.dsl.language import KernelError, Scan, scan

__all__ = ["KernelError", "Scan", "kernels", "language", "scan"]
