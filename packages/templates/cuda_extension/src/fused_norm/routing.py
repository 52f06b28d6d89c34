"""Gating of a mixture of experts."""

from __future__ import annotations

import torch

from . import _library
from ._checks import check_no_gradient, check_tensor, rows_of

MAX_EXPERTS = 1024


def topk_softmax(
    logits: torch.Tensor, k: int, renormalize: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the `k` largest logits of each token and return ``(weights, indices)``.

    Args:
        logits: [..., experts], float32, float16 or bfloat16, CPU or CUDA; experts is 1 to 1024.
        k: 1 to experts.
        renormalize: divide by the sum over the chosen experts instead of all experts.

    ``weights`` (float32) and ``indices`` (int32) have the shape [..., k], largest first. Of equal
    logits the lower index comes first (-0 equals +0), on the CPU and on the GPU alike. A NaN counts as
    larger than infinity. A row with a NaN or +infinity, or of -infinity only, has NaN weights; its
    indices are still valid and distinct. A -infinity among finite logits has weight 0.

    Raises:
        TypeError: `logits` is not a tensor of those dtypes, or `k` is not an integer.
        ValueError: the number of experts or `k` is out of range.
        RuntimeError: an input requires a gradient, or the kernel could not be launched.

    """
    check_tensor("logits", logits)
    experts = logits.shape[-1]
    if not 1 <= experts <= MAX_EXPERTS:
        raise ValueError(
            f"the last dimension of logits (experts) must be 1 to {MAX_EXPERTS}, not {experts}"
        )
    if not isinstance(k, int):
        raise TypeError(f"k must be an integer, not {type(k).__name__}")
    if not 1 <= k <= experts:
        raise ValueError(f"k must be 1 to the number of experts, {experts}, not {k}")
    check_no_gradient("topk_softmax", logits)

    rows = rows_of(logits)
    weights = torch.empty((rows.shape[0], k), dtype=torch.float32, device=logits.device)
    indices = torch.empty((rows.shape[0], k), dtype=torch.int32, device=logits.device)
    _library.topk_softmax(rows, weights, indices, k, bool(renormalize))
    shape = (*logits.shape[:-1], k)
    return weights.reshape(shape), indices.reshape(shape)
