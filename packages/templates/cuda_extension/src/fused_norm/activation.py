"""The gated activation of a feed-forward layer."""

from __future__ import annotations

import torch

from . import _library
from ._checks import check_no_gradient, check_same, check_shape, check_tensor, rows_of


def swiglu(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Return ``x * silu(gate)``, with ``silu(g) = g / (1 + exp(-g))``, computed in fp32.

    Args:
        x: [..., columns], float32, float16 or bfloat16, CPU or CUDA; any size, also empty.
        gate: the shape, dtype and device of `x`.

    Both may be halves of one projection, ``h[:, :n]`` and ``h[:, n:]``: no copy is made of them.
    NaN and infinity follow IEEE arithmetic; silu(-inf) is NaN.

    Raises:
        TypeError: not a tensor, or a dtype other than those above.
        ValueError: shape or device of `gate` differs from those of `x`, or `x` is a scalar.
        RuntimeError: an input requires a gradient, or the kernel could not be launched.

    """
    check_tensor("x", x)
    check_same("gate", gate, "x", x)
    check_shape("gate", gate, tuple(x.shape))
    check_no_gradient("swiglu", x, gate)

    x_rows = rows_of(x)
    out = torch.empty(tuple(x_rows.shape), dtype=x.dtype, device=x.device)
    _library.swiglu(x_rows, rows_of(gate), out)
    return out.reshape(x.shape)
