"""Sequences into microbatches under a token budget."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from expert_placement import _arrays, _core


@dataclass(frozen=True)
class Batches:
    """``n`` sequences in ``B`` batches.

    - ``batch_of``: int64 ``[n]``, the batch of each sequence;
    - ``order``: int64 ``[n]``, sequences batch by batch, in input order within a batch;
    - ``offsets``: int64 ``[B + 1]``, batch ``b`` is ``order[offsets[b]:offsets[b + 1]]``;
    - ``tokens``: int64 ``[B]``, the tokens of each batch, never above the budget;
    - ``lower_bound``: no packing of these lengths needs fewer batches than this.
    """

    batch_of: torch.Tensor
    order: torch.Tensor
    offsets: torch.Tensor
    tokens: torch.Tensor
    lower_bound: int


def pack_sequences(lengths: torch.Tensor, budget: int) -> Batches:
    """Packs sequences of ``lengths`` (integer ``[n]``, in tokens) into few batches.

    Takes the better of first fit and best fit decreasing. Uses at most ``11/9 * OPT + 6/9`` batches
    of ``budget`` tokens (the tight bound of first fit decreasing, Dósa 2007).
    ``len(tokens) == lower_bound`` proves the result optimal.

    Raises:
        ValueError: a length is negative or above the budget, or the budget is below 1.
        TypeError: ``lengths`` is not an integer tensor.

    """
    return _pack(lengths, budget, keep_order=False)


def pack_in_order(lengths: torch.Tensor, budget: int) -> Batches:
    """Like :func:`pack_sequences`, but every batch is a run of consecutive sequences.

    Exact: no other packing into consecutive runs has fewer batches. ``lower_bound`` is that of the
    packing without the order, so it may be smaller than the optimum here.
    """
    return _pack(lengths, budget, keep_order=True)


def _pack(lengths: torch.Tensor, budget: int, *, keep_order: bool) -> Batches:
    values = _arrays.indices(lengths, "lengths", (1,))
    batch_of, tokens, bound = _core.pack_sequences(values, budget, keep_order)
    order, _, _, offsets = _core.group_by(batch_of, max(1, tokens.size))
    return Batches(
        batch_of=_arrays.tensor(batch_of),
        order=_arrays.tensor(order),
        offsets=_arrays.tensor(offsets[: tokens.size + 1]),
        tokens=_arrays.tensor(tokens),
        lower_bound=bound,
    )
