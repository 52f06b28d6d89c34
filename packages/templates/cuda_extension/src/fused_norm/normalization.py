"""RMSNorm of a sum."""

from __future__ import annotations

import torch

from . import _library
from ._checks import check_no_gradient, check_same, check_shape, check_tensor, rows_of


def rms_norm_residual(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add `residual` to `x` and normalise the sum by its root mean square.

    With ``s = round(x + residual)`` in the dtype of `x`, returns ``(y, s)`` where
    ``y = s / sqrt(mean(s ** 2) + eps) * weight``; the mean runs over the last dimension and is computed
    in fp32 from the rounded sum, so ``y`` is the norm of exactly the ``s`` that is returned.

    Args:
        x: [..., hidden], float32, float16 or bfloat16, CPU or CUDA; hidden is 1 to 2**31 - 1.
        residual: the shape, dtype and device of `x`.
        weight: [hidden], the dtype and device of `x`.
        eps: dimensionless, finite and not negative.

    A NaN makes its whole row of ``y`` NaN. Squares that exceed fp32 (elements beyond about 1.8e19)
    count as infinite: the row becomes 0, and NaN where the element itself is infinite.

    Raises:
        TypeError: not a tensor, or a dtype other than those above.
        ValueError: shape, device or `eps` outside of what is described.
        RuntimeError: an input requires a gradient, or the kernel could not be launched.

    """
    check_tensor("x", x)
    hidden = x.shape[-1]
    if hidden < 1:
        raise ValueError(
            f"the last dimension of x must not be empty: its shape is {tuple(x.shape)}"
        )
    check_same("residual", residual, "x", x)
    check_shape("residual", residual, tuple(x.shape))
    check_same("weight", weight, "x", x)
    check_shape("weight", weight, (hidden,))
    if not 0.0 <= float(eps) < float("inf"):
        raise ValueError(f"eps must be finite and not negative, not {eps}")
    check_no_gradient("rms_norm_residual", x, residual, weight)

    x_rows = rows_of(x)
    y = torch.empty(tuple(x_rows.shape), dtype=x.dtype, device=x.device)
    total = torch.empty(tuple(x_rows.shape), dtype=x.dtype, device=x.device)
    _library.rms_norm_residual(x_rows, rows_of(residual), weight.contiguous(), y, total, float(eps))
    return y.reshape(x.shape), total.reshape(x.shape)
