"""The chunked form: matrix products inside a chunk, one state update per chunk."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from chunk_linear_attention.utils.inputs import prepare


def chunk_linear_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor | None = None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    chunk_size: int = 64,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Causal linear attention with an optional decay per head and step.

    ``S_t = exp(g_t) * S_{t-1} + k_t v_t^T`` and ``o_t = scale * q_t S_t``, for any ``T >= 1``, also
    one that is no multiple of ``chunk_size``; the chunk size changes speed and rounding only.

    Args:
        q: ``[B, T, H, K]``, float16, bfloat16, float32 or float64.
        k: ``[B, T, H, K]``, of the same type.
        v: ``[B, T, H, V]``, of the same type.
        g: ``[B, T, H]``, natural logarithm of the decay, expected to be at most 0; None: no decay.
        scale: factor of ``q``; None: ``K ** -0.5``.
        initial_state: ``[B, H, K, V]``; None: zeros.
        output_final_state: whether to return the state after the last step.
        chunk_size: steps per chunk; the scores take ``B * H * T * chunk_size`` numbers.

    Returns:
        ``o`` (``[B, T, H, V]``, type of ``v``) and the final state (``[B, H, K, V]``) or None.
        The state and all sums are float64 for float64 input, else float32.

    Raises:
        ValueError: shapes that do not fit, or ``chunk_size`` below 1.
        TypeError: an argument is not a floating-point tensor, or q, k and v differ in type.

    """
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1; found {chunk_size}")
    x = prepare(q, k, v, g, scale, initial_state)
    steps = q.shape[1]
    size = min(chunk_size, steps)
    gate = torch.zeros_like(x.q[..., 0]) if x.g is None else x.g
    qs, ks, vs = (_to_chunks(t, size) for t in (x.q * x.scale, x.k, x.v))
    decay = torch.cumsum(_to_chunks(gate.unsqueeze(-1), size).squeeze(-1), dim=-1)
    entering, final = _scan_states(ks, vs, decay, x.state)
    # What came before the chunk, decayed to each step, and what the chunk itself adds.
    out = torch.matmul(qs * torch.exp(decay).unsqueeze(-1), entering)
    out = out + torch.matmul(_scores(qs, ks, decay), vs)
    return _from_chunks(out, steps).to(x.dtype), final if output_final_state else None


def _to_chunks(x: torch.Tensor, size: int) -> torch.Tensor:
    """``[B, T, H, D]`` to ``[B, H, N, size, D]``; zeros fill the last chunk.

    A padded step has ``k = v = 0`` and no decay, so it leaves the state as it is.
    """
    batch, steps, heads, dim = x.shape
    chunks = -(-steps // size)
    x = F.pad(x.permute(0, 2, 1, 3), (0, 0, 0, chunks * size - steps))
    return x.reshape(batch, heads, chunks, size, dim)


def _from_chunks(x: torch.Tensor, steps: int) -> torch.Tensor:
    batch, heads, chunks, size, dim = x.shape
    return x.reshape(batch, heads, chunks * size, dim)[:, :, :steps].permute(0, 2, 1, 3)


def _scores(q: torch.Tensor, k: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """``(q_i . k_j) * exp(decay_i - decay_j)`` for ``j <= i``, else 0: ``[B, H, N, C, C]``.

    The mask comes before the exponential: above the diagonal the difference is positive and could
    overflow, and an infinity there would turn into NaN in the gradient.
    """
    size = q.shape[-2]
    step = torch.arange(size, device=q.device)
    future = step.unsqueeze(0) > step.unsqueeze(1)
    difference = decay.unsqueeze(-1) - decay.unsqueeze(-2)
    weight = torch.exp(difference.masked_fill(future, float("-inf")))
    return torch.matmul(q, k.transpose(-1, -2)) * weight


def _scan_states(
    k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The state entering each chunk (``[B, H, N, K, V]``) and the one after the last."""
    last = decay[..., -1:]
    remaining = torch.exp(last - decay).unsqueeze(-1)
    updates = torch.matmul((k * remaining).transpose(-1, -2), v)
    whole = torch.exp(last).unsqueeze(-1)
    entering = []
    for n in range(k.shape[2]):
        entering.append(state)
        state = state * whole[:, :, n] + updates[:, :, n]
    return torch.stack(entering, dim=2), state
