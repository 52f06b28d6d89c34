"""Top-k routing ids into expert order."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from expert_placement import _arrays, _core


@dataclass(frozen=True)
class Grouping:
    """The stable permutation of (token, choice) pairs into expert order.

    A pair has the flat index ``token * K + choice``; ``kept`` pairs are not dropped.

    - ``order``: int64 ``[kept]``, flat indices, expert by expert, in input order within an expert;
    - ``token_of``: int64 ``[kept]``, ``order // K``: the row to gather for each grouped row;
    - ``inverse``: int64 with the shape of the ids, the grouped row of each pair; -1 if dropped;
    - ``counts``: int64 ``[E]``, rows of each expert;
    - ``offsets``: int64 ``[E + 1]``, expert ``e`` owns rows ``[offsets[e], offsets[e + 1])``.
    """

    order: torch.Tensor
    token_of: torch.Tensor
    inverse: torch.Tensor
    counts: torch.Tensor
    offsets: torch.Tensor


def group_by_expert(topk_ids: torch.Tensor, num_experts: int) -> Grouping:
    """Groups routing ids (integer ``[T, K]`` or ``[T]``; -1 drops a pair) in ``O(T * K + E)`` time.

    Raises:
        ValueError: an id lies outside ``[-1, num_experts)``, or there is no expert.
        TypeError: ``topk_ids`` is not an integer tensor.

    """
    ids = _arrays.indices(topk_ids, "topk_ids", (1, 2))
    choices = ids.shape[1] if ids.ndim == 2 else 1
    order, inverse, counts, offsets = _core.group_by(ids.reshape(-1), num_experts)
    token_of = order // max(1, choices)
    fields = (order, token_of, inverse.reshape(ids.shape), counts, offsets)
    return Grouping(*(_arrays.tensor(field) for field in fields))
