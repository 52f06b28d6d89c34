"""A multi-head layer around the operators."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812

from chunk_linear_attention.ops.chunk import chunk_linear_attention
from chunk_linear_attention.ops.recurrent import recurrent_linear_attention


class LinearAttention(nn.Module):
    """Causal multi-head linear attention with a learnt decay, in place of softmax attention.

    ``q``, ``k`` and ``v`` are linear in the input, as is the logit of the decay; the output of each
    head is divided by its root mean square, weighted, and projected back.

    Args:
        hidden_size: width of input and output.
        num_heads: ``H``, a divisor of ``hidden_size``; a head has ``D = hidden_size / H`` channels.
        gated: whether there is a decay; without it the state is a plain sum.
        gate_temperature: the log decay is ``logsigmoid(w x) / gate_temperature``; the larger it is,
            the longer the memory at initialisation.
        chunk_size: steps per chunk.
        eps: added to the mean square before the root.

    Raises:
        ValueError: ``num_heads`` does not divide ``hidden_size``.

    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        gated: bool = True,
        gate_temperature: float = 16.0,
        chunk_size: int = 64,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        if num_heads < 1 or hidden_size % num_heads:
            raise ValueError(f"num_heads = {num_heads} does not divide hidden_size = {hidden_size}")
        self.num_heads = num_heads
        self.head_size = hidden_size // num_heads
        self.gate_temperature = gate_temperature
        self.chunk_size = chunk_size
        self.eps = eps
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.g_proj = nn.Linear(hidden_size, num_heads, bias=True) if gated else None
        self.norm_weight = nn.Parameter(torch.ones(self.head_size))

    def forward(
        self,
        hidden: torch.Tensor,
        initial_state: torch.Tensor | None = None,
        output_final_state: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """``hidden``: ``[B, T, hidden_size]``; the result has the same shape.

        ``initial_state`` and the returned state are ``[B, H, D, D]``: pass the state on to continue
        a sequence. A single step takes the recurrent form.
        """
        q, k, v = (self._heads(p(hidden)) for p in (self.q_proj, self.k_proj, self.v_proj))
        g = None
        if self.g_proj is not None:
            g = F.logsigmoid(self.g_proj(hidden)) / self.gate_temperature
        if hidden.shape[1] == 1:
            out, state = recurrent_linear_attention(
                q, k, v, g, initial_state=initial_state, output_final_state=output_final_state
            )
        else:
            out, state = chunk_linear_attention(
                q,
                k,
                v,
                g,
                initial_state=initial_state,
                output_final_state=output_final_state,
                chunk_size=self.chunk_size,
            )
        return self.o_proj(self._normalise(out).flatten(2)), state

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0], x.shape[1], self.num_heads, self.head_size)

    def _normalise(self, x: torch.Tensor) -> torch.Tensor:
        # Written out: torch.nn.RMSNorm does not exist under Paddle's proxy (3.3.1).
        mean_square = (x * x).mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(mean_square + self.eps) * self.norm_weight
