"""Which token goes to which rank: tensor arithmetic on one rank, without communication.

Expert ``e`` lives on rank ``e // (num_experts / world_size)``, as in DeepEP.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Route:
    """Where the tokens of one rank go. Ranks and tokens ascend everywhere.

    tokens: per rank, int64 ``[count]``: the tokens that are sent to it, each once.
    first: per rank, int64 ``[m]``: the positions in ``tokens[rank]`` of the tokens that no lower
        rank has. Their results are the first ones of a sum.
    later: per rank, the other positions.
    shared: int64 ``[s]``: the tokens that more than one rank has.
    num_tokens: how many tokens this rank has.
    """

    tokens: tuple[torch.Tensor, ...]
    first: tuple[torch.Tensor, ...]
    later: tuple[torch.Tensor, ...]
    shared: torch.Tensor
    num_tokens: int

    @property
    def counts(self) -> list[int]:
        """Tokens per destination rank."""
        return [int(part.shape[0]) for part in self.tokens]


def positions(mask: torch.Tensor) -> torch.Tensor:
    """Return the ascending positions of the true elements of ``[n]``, as int64 ``[m]``."""
    return torch.nonzero(mask).reshape([-1])


def plan_route(topk_idx: torch.Tensor, num_local_experts: int, world_size: int) -> Route:
    """Plan the sending of ``[tokens, k]`` global expert numbers; -1 is an unused place."""
    # The sign is tested first: frameworks differ in how they divide negative integers.
    owner = torch.where(topk_idx >= 0, topk_idx // num_local_experts, torch.full_like(topk_idx, -1))
    tokens, first, later = [], [], []
    ranks_so_far = torch.zeros([topk_idx.shape[0]], dtype=torch.int64, device=topk_idx.device)
    for rank in range(world_size):
        here = (owner == rank).any(dim=1)
        selected = positions(here)
        is_first = ranks_so_far[selected] == 0
        tokens.append(selected)
        first.append(positions(is_first))
        later.append(positions(torch.logical_not(is_first)))
        ranks_so_far = ranks_so_far + here.to(torch.int64)
    shared = positions(ranks_so_far > 1)
    return Route(tuple(tokens), tuple(first), tuple(later), shared, int(topk_idx.shape[0]))


def to_local_experts(
    topk_idx: torch.Tensor, topk_weights: torch.Tensor, num_local_experts: int, rank: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``[n, k]`` expert numbers and weights as `rank` sees them.

    Experts of this rank are numbered from 0; the places of others get -1 and the weight 0.
    """
    local = topk_idx - rank * num_local_experts
    elsewhere = torch.logical_or(local < 0, local >= num_local_experts)
    # Not torch.where: on the CPU, Paddle 3.3.1 has no float16 kernel for it.
    return local.masked_fill(elsewhere, -1), topk_weights.masked_fill(elsewhere, 0.0)


def count_per_expert(local_idx: torch.Tensor, num_local_experts: int) -> list[int]:
    """Return how many places of ``[n, k]`` name each local expert (a grouped GEMM's group sizes)."""
    shifted = (local_idx + 1).reshape([-1])
    counts: list[int] = torch.bincount(shifted, minlength=num_local_experts + 1).tolist()
    return counts[1:]
