"""Experts onto ranks: replicate the heavy ones, then pack equally many onto each rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from expert_placement import _arrays, _core


@dataclass(frozen=True)
class Packing:
    """Where each of ``n`` items went.

    - ``rank_of``: int64 ``[n]``;
    - ``rank_load``: float64 ``[ranks]``, the sum of the weights of a rank;
    - ``lower_bound``: no packing with equally many items per rank has a lighter heaviest rank, so
      ``rank_load.max() / lower_bound`` certifies how far from the optimum this one can be.
    """

    rank_of: torch.Tensor
    rank_load: torch.Tensor
    lower_bound: float


@dataclass(frozen=True)
class Placement:
    """Which expert sits in which physical slot; rank ``r`` owns slots ``[r * S, (r + 1) * S)``.

    With ``L`` layers, ``E`` experts, ``R`` ranks, ``P = R * S`` slots, and at most ``M`` replicas
    of any expert (the dimension ``L`` is absent if the loads had none):

    - ``physical_to_logical``: int64 ``[L, P]``, the expert in each slot, ascending within a rank;
    - ``logical_to_physical``: int64 ``[L, E, M]``, the slots of each expert, ascending, then -1;
    - ``replica_count``: int64 ``[L, E]``, at least 1;
    - ``rank_load``: float64 ``[L, R]``, in the unit of the loads, an expert's load being shared
      evenly by its replicas;
    - ``lower_bound``: float64 ``[L]``; with these replica counts no heaviest rank can be lighter.
    """

    physical_to_logical: torch.Tensor
    logical_to_physical: torch.Tensor
    replica_count: torch.Tensor
    rank_load: torch.Tensor
    lower_bound: torch.Tensor


def replicate(load: torch.Tensor, num_slots: int) -> torch.Tensor:
    """Replica counts (int64 ``[E]``, summing to ``num_slots``) that minimise the heaviest replica.

    The result is optimal: no other counts make ``max(load / count)`` smaller.

    Raises:
        ValueError: a load is negative or not finite, or there are fewer slots than experts.
        TypeError: ``load`` is not a float or integer tensor.

    """
    return _arrays.tensor(_core.replicate(_arrays.loads(load, "load", (1,)), num_slots))


def pack_balanced(weight: torch.Tensor, num_ranks: int) -> Packing:
    """Packs ``weight`` (``[n]``) onto ranks with exactly ``n / num_ranks`` items each.

    The heaviest rank is at most ``mean + (1 - 1 / num_ranks) * D`` and at most
    ``(2 - 1 / num_ranks)`` times the optimum, ``D`` being the largest difference within one run of
    ``num_ranks`` consecutive weights in descending order. Exact for one rank, for one item per
    rank, and for equal weights. Equal input gives equal output.

    Raises:
        ValueError: a weight is negative or not finite, or ``n`` does not divide evenly.
        TypeError: ``weight`` is not a float or integer tensor.

    """
    rank_of, rank_load, bound = _core.pack_balanced(
        _arrays.loads(weight, "weight", (1,)), num_ranks
    )
    return Packing(_arrays.tensor(rank_of), _arrays.tensor(rank_load), bound)


def place_experts(load: torch.Tensor, num_ranks: int, slots_per_rank: int) -> Placement:
    """Places ``E`` experts onto ``num_ranks * slots_per_rank`` slots, for each layer on its own.

    ``load`` is ``[E]`` or ``[L, E]``: tokens per expert in any unit, float or integer. Slots beyond
    ``E`` hold replicas of the heaviest experts. The heaviest rank is at most
    ``(2 - 1 / num_ranks)`` times the optimum over all replica counts and all placements whose
    replicas share their load evenly.

    Raises:
        ValueError: a load is negative or not finite, or there are fewer slots than experts.
        TypeError: ``load`` is not a float or integer tensor.

    """
    values = _arrays.loads(load, "load", (1, 2))
    layers = np.atleast_2d(values)
    if layers.shape[0] == 0:
        raise ValueError(f"load has no layers: its shape is {list(load.shape)}")
    rows = [_core.place_experts(row, num_ranks, slots_per_rank) for row in layers]
    slots, counts, rank_load = (np.stack([row[k] for row in rows]) for k in range(3))
    bounds = np.array([row[3] for row in rows], dtype=np.float64)
    slots_of = _logical_to_physical(slots, counts)
    fields = (slots, slots_of, counts, rank_load, bounds)
    if values.ndim == 1:
        fields = tuple(field[0:1].reshape(field.shape[1:]) for field in fields)  # type: ignore[assignment]
    return Placement(*(_arrays.tensor(field) for field in fields))


def _logical_to_physical(
    slots: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The inverse of ``slots`` (``[L, P]``), padded with -1 to the largest count."""
    layers, experts = counts.shape
    out = np.full((layers, experts, int(counts.max())), -1, dtype=np.int64)
    for layer in range(layers):
        order, _, _, offsets = _core.group_by(np.ascontiguousarray(slots[layer]), experts)
        owner = slots[layer][order]
        out[layer, owner, np.arange(order.size) - offsets[owner]] = order
    return out
