"""The sum over ranks, in one fixed order."""

from __future__ import annotations

import torch

from ep_exchange._routing import Route


def add_in_rank_order(rows: torch.Tensor, route: Route) -> torch.Tensor:
    """Sum the results of each token, from the lowest rank to the highest.

    Args:
        rows: ``[sum(route.counts), hidden]``, the ranks' results one rank after another.
        route: the route by which the tokens were sent.

    Returns:
        ``[route.num_tokens, hidden]`` of the rows' dtype. A token with one result gets its very
        bits (the sign of zero and NaN payloads included); a token with more gets their sum, taken
        in float32 for 16-bit dtypes and rounded once; a token with none gets zeros.

    """
    # Wider sums are better, and Paddle 3.3.1 has no bfloat16 addition on the CPU anyway.
    accumulate = torch.float32 if rows.dtype in (torch.bfloat16, torch.float16) else rows.dtype
    size = [route.num_tokens, rows.shape[1]]
    out = torch.zeros(size, dtype=rows.dtype, device=rows.device)
    total = torch.zeros(size, dtype=accumulate, device=rows.device)
    start = 0
    for tokens, first, later in zip(route.tokens, route.first, route.later, strict=True):
        part = rows[start : start + tokens.shape[0]]
        start += tokens.shape[0]
        # Tokens are unique within a rank, so an indexed assignment never meets itself.
        if first.shape[0]:
            out[tokens[first]] = part[first]
            total[tokens[first]] = part[first].to(accumulate)
        if later.shape[0]:
            target = tokens[later]
            total[target] = total[target] + part[later].to(accumulate)
    if route.shared.shape[0]:
        out[route.shared] = total[route.shared].to(rows.dtype)
    return out
