"""The definition, one step after the other: for decoding, and as the reference of the others."""

from __future__ import annotations

import torch

from chunk_linear_attention.utils.inputs import prepare


def linear_attention_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor | None,
    state: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step: ``state' = exp(g) * state + k v^T``, ``o = scale * q state'``.

    ``q``, ``k``: ``[B, H, K]``. ``v``: ``[B, H, V]``. ``g``: ``[B, H]`` (log decay, at most 0) or
    None. ``state``: ``[B, H, K, V]``, not changed. Returns ``o`` (``[B, H, V]``) and the new state.
    """
    if g is not None:
        state = state * torch.exp(g).unsqueeze(-1).unsqueeze(-1)
    state = state + k.unsqueeze(-1) * v.unsqueeze(-2)
    out = torch.matmul(q.unsqueeze(-2), state).squeeze(-2)
    return out * scale, state


def recurrent_linear_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor | None = None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Causal linear attention by ``T`` steps of :func:`linear_attention_step`.

    Arguments, result and errors are those of
    :func:`chunk_linear_attention.ops.chunk.chunk_linear_attention`.
    """
    x = prepare(q, k, v, g, scale, initial_state)
    state, outs = x.state, []
    for t in range(q.shape[1]):
        gate = None if x.g is None else x.g[:, t]
        out, state = linear_attention_step(x.q[:, t], x.k[:, t], x.v[:, t], gate, state, x.scale)
        outs.append(out)
    return torch.stack(outs, dim=1).to(x.dtype), state if output_final_state else None
