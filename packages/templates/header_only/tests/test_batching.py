"""Batching against exhaustive search and dynamic programming."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

QUICK = settings(max_examples=150, deadline=None)


def fewest_batches(lengths: list[int], budget: int) -> int:
    """The optimum, by trying every batch for every sequence."""
    best = len(lengths)

    def place(index: int, used: list[int]) -> None:
        nonlocal best
        if len(used) >= best and index < len(lengths):
            return
        if index == len(lengths):
            best = min(best, len(used))
            return
        for batch in range(len(used)):
            if used[batch] + lengths[index] <= budget:
                used[batch] += lengths[index]
                place(index + 1, used)
                used[batch] -= lengths[index]
        place(index + 1, [*used, lengths[index]])

    place(0, [])
    return best


def fewest_runs(lengths: list[int], budget: int) -> int:
    """The fewest consecutive runs within the budget, by dynamic programming."""
    best = [0] + [len(lengths)] * len(lengths)
    for end in range(1, len(lengths) + 1):
        for start in range(end):
            if sum(lengths[start:end]) <= budget:
                best[end] = min(best[end], best[start] + 1)
    return best[-1]


@st.composite
def cases(draw: st.DrawFn, size: int) -> tuple[list[int], int]:
    budget = draw(st.integers(1, 30))
    return draw(st.lists(st.integers(0, budget), max_size=size)), budget


def ids(fw: SimpleNamespace, values: list[int]) -> object:
    return fw.torch.tensor(np.array(values, dtype=np.int64), dtype=fw.torch.int64)


def check_tables(batches: SimpleNamespace, lengths: list[int], budget: int) -> None:
    batch_of, order = batches.batch_of.numpy(), batches.order.numpy()
    offsets, tokens = batches.offsets.numpy(), batches.tokens.numpy()
    assert sorted(order.tolist()) == list(range(len(lengths)))
    assert order.tolist() == np.argsort(batch_of, kind="stable").tolist()
    assert offsets[0] == 0
    assert offsets[-1] == len(lengths)
    for batch, total in enumerate(tokens.tolist()):
        members = order[offsets[batch] : offsets[batch + 1]].tolist()
        assert members
        assert total == sum(lengths[i] for i in members) <= budget


@QUICK
@given(case=cases(size=8))
def test_packing_is_within_its_guarantee(fw: SimpleNamespace, case: tuple[list[int], int]) -> None:
    lengths, budget = case
    batches = fw.lib.pack_sequences(ids(fw, lengths), budget)
    check_tables(batches, lengths, budget)
    optimum, used = fewest_batches(lengths, budget), len(batches.tokens)
    assert batches.lower_bound <= optimum <= used
    assert 9 * used <= 11 * optimum + 6


@QUICK
@given(case=cases(size=12))
def test_runs_are_exact_and_consecutive(fw: SimpleNamespace, case: tuple[list[int], int]) -> None:
    lengths, budget = case
    batches = fw.lib.pack_in_order(ids(fw, lengths), budget)
    check_tables(batches, lengths, budget)
    assert batches.order.numpy().tolist() == list(range(len(lengths)))
    assert len(batches.tokens) == fewest_runs(lengths, budget)


def test_the_lower_bound_sees_more_than_the_mean(fw: SimpleNamespace) -> None:
    """Three sequences of 6 in batches of 10 need 3 batches, though 18 tokens would fit in 2."""
    batches = fw.lib.pack_sequences(ids(fw, [6, 6, 6]), 10)
    assert batches.lower_bound == len(batches.tokens) == 3
    # 11 of 17 and 5 of 6 tokens in batches of 20: L2 with the threshold 6, not the total.
    lengths = [11] * 4 + [7] * 5 + [10] * 3
    batches = fw.lib.pack_sequences(ids(fw, lengths), 20)
    assert batches.lower_bound <= fewest_batches(lengths, 20) <= len(batches.tokens)


def test_many_sequences_fill_their_batches(fw: SimpleNamespace) -> None:
    lengths = np.random.default_rng(3).integers(1, 4096, 20_000)
    batches = fw.lib.pack_sequences(ids(fw, lengths.tolist()), 8192)
    check_tables(batches, lengths.tolist(), 8192)
    assert len(batches.tokens) <= batches.lower_bound + 1
    assert len(fw.lib.pack_in_order(ids(fw, lengths.tolist()), 8192).tokens) > len(batches.tokens)


@pytest.mark.parametrize(
    ("lengths", "budget", "message"),
    [
        ([3, 9], 8, "sequence 1 has 9 tokens"),
        ([-1], 8, "sequence 0 has -1 tokens"),
        ([1], 0, "at least 1"),
        ([2**61, 2**62], 2**62, "62 bits"),
    ],
)
def test_bad_batches_are_refused_with_the_reason(
    fw: SimpleNamespace, lengths: list[int], budget: int, message: str
) -> None:
    for pack in (fw.lib.pack_sequences, fw.lib.pack_in_order):
        with pytest.raises(ValueError, match=message):
            pack(ids(fw, lengths), budget)


def test_float_lengths_are_refused(fw: SimpleNamespace) -> None:
    with pytest.raises(TypeError, match="int32, int64"):
        fw.lib.pack_sequences(fw.torch.ones(3), 4)
