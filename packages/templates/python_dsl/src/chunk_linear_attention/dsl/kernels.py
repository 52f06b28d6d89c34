"""The kernels of this package, written in the scan language."""

from __future__ import annotations

from chunk_linear_attention.dsl.language import (
    Carry,
    Constant,
    Output,
    Step,
    Uniform,
    dot,
    exp,
    lift,
    outer,
    scan,
)


@scan
def decayed_attention(
    q: Step, k: Step, v: Step, g: Step, state: Carry, scale: Uniform, gated: Constant
) -> Output:
    """``state' = exp(g) * state + k v^T``; the output is ``scale * q state'``."""
    if gated:
        state *= lift(exp(g))
    state += outer(k, v)
    return dot(q, state) * scale
