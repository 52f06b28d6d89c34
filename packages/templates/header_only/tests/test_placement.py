"""Placement against exhaustive search, and its stated guarantees on random loads."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

LOADS = st.floats(0.0, 1e6, allow_subnormal=False)
QUICK = settings(max_examples=150, deadline=None)


def brute_force_packing(weight: list[float], ranks: int) -> float:
    """The smallest possible heaviest rank over all balanced partitions, by recursion on subsets."""
    slots = len(weight) // ranks

    def best(left: frozenset[int]) -> float:
        if not left:
            return 0.0
        first, *rest = sorted(left)
        choices = itertools.combinations(rest, slots - 1)
        return min(
            max(sum(weight[i] for i in (first, *mates)), best(left - {first, *mates}))
            for mates in choices
        )

    return best(frozenset(range(len(weight))))


def brute_force_counts(load: list[float], slots: int) -> float:
    """The smallest possible heaviest replica over all counts >= 1 that sum to ``slots``."""
    choices = itertools.product(range(1, slots + 1), repeat=len(load))
    return min(
        max(value / count for value, count in zip(load, counts, strict=True))
        for counts in choices
        if sum(counts) == slots
    )


@st.composite
def small_packings(draw: st.DrawFn) -> tuple[list[float], int]:
    ranks, slots = draw(st.sampled_from([(1, 4), (2, 2), (2, 4), (3, 3), (4, 2), (5, 1), (3, 2)]))
    return draw(st.lists(LOADS, min_size=ranks * slots, max_size=ranks * slots)), ranks


@QUICK
@given(case=small_packings())
def test_packing_is_within_its_bounds_of_the_optimum(
    fw: SimpleNamespace, case: tuple[list[float], int]
) -> None:
    weight, ranks = case
    packing = fw.lib.pack_balanced(fw.torch.tensor(weight, dtype=fw.torch.float64), ranks)
    optimum = brute_force_packing(weight, ranks)
    heaviest = float(packing.rank_load.max())
    slack = 1e-9 * max(1.0, sum(weight))
    assert packing.lower_bound <= optimum + slack
    assert optimum - slack <= heaviest <= (2 - 1 / ranks) * optimum + slack
    rank_of = packing.rank_of.numpy()
    assert np.bincount(rank_of, minlength=ranks).tolist() == [len(weight) // ranks] * ranks
    sums = np.bincount(rank_of, weights=weight, minlength=ranks)
    np.testing.assert_allclose(packing.rank_load.numpy(), sums, rtol=1e-12)


@QUICK
@given(case=small_packings())
def test_packing_keeps_the_additive_guarantee(
    fw: SimpleNamespace, case: tuple[list[float], int]
) -> None:
    weight, ranks = case
    packing = fw.lib.pack_balanced(fw.torch.tensor(weight, dtype=fw.torch.float64), ranks)
    layers = np.sort(np.array(weight))[::-1].reshape(-1, ranks)
    spread = float((layers.max(axis=1) - layers.min(axis=1)).max())
    limit = sum(weight) / ranks + (1 - 1 / ranks) * spread
    assert float(packing.rank_load.max()) <= limit * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize(("ranks", "slots"), [(1, 7), (7, 1), (4, 3)])
def test_packing_is_exact_where_it_says_so(fw: SimpleNamespace, ranks: int, slots: int) -> None:
    rng = np.random.default_rng(ranks)
    equal = ranks > 1 and slots > 1
    weight = np.full(ranks * slots, 0.5) if equal else rng.integers(1, 100, ranks * slots) * 1.0
    packing = fw.lib.pack_balanced(fw.torch.tensor(weight.tolist()), ranks)
    assert float(packing.rank_load.max()) == packing.lower_bound


def test_the_swaps_reach_an_optimum_that_longest_first_misses(fw: SimpleNamespace) -> None:
    weight = [4.0, 3.0, 3.0, 2.0, 2.0, 2.0]  # longest first: 4+2+2 and 3+3+2, already optimal
    packing = fw.lib.pack_balanced(fw.torch.tensor(weight), 2)
    assert float(packing.rank_load.max()) == 8.0 == brute_force_packing(weight, 2)
    weight = [8.0, 7.0, 6.0, 5.0, 4.0, 0.0]  # greedy: 8+5+4 = 17 / 7+6+0; optimum 15
    packing = fw.lib.pack_balanced(fw.torch.tensor(weight), 2)
    assert float(packing.rank_load.max()) == brute_force_packing(weight, 2)


@QUICK
@given(load=st.lists(LOADS, min_size=1, max_size=4), extra=st.integers(0, 4))
def test_replica_counts_are_optimal(fw: SimpleNamespace, load: list[float], extra: int) -> None:
    slots = len(load) + extra
    counts = fw.lib.replicate(fw.torch.tensor(load, dtype=fw.torch.float64), slots).numpy()
    assert counts.min() >= 1
    assert counts.sum() == slots
    assert float((np.array(load) / counts).max()) == brute_force_counts(load, slots)


@pytest.mark.parametrize("extra", [1, 3, 5])
def test_replica_counts_are_optimal_for_every_small_load(fw: SimpleNamespace, extra: int) -> None:
    for load in itertools.product([1.0, 2.0, 5.0, 11.0, 24.0], repeat=3):
        counts = fw.lib.replicate(fw.torch.tensor(load), 3 + extra).numpy()
        heaviest = float((np.array(load) / counts).max())
        assert heaviest == brute_force_counts(list(load), 3 + extra), (load, counts)


def test_placement_tables_agree_with_each_other(fw: SimpleNamespace) -> None:
    rng = np.random.default_rng(7)
    load = rng.gamma(0.5, 100.0, size=(3, 60)).astype(np.float32)
    placement = fw.lib.place_experts(fw.torch.tensor(load.tolist()), 8, 9)
    slots = placement.physical_to_logical.numpy()
    where = placement.logical_to_physical.numpy()
    counts = placement.replica_count.numpy()
    assert slots.shape == (3, 72)
    assert slots.dtype == where.dtype == counts.dtype == np.int64
    for layer in range(3):
        assert np.array_equal(np.bincount(slots[layer], minlength=60), counts[layer])
        for expert in range(60):
            found = np.flatnonzero(slots[layer] == expert)
            assert where[layer, expert, : found.size].tolist() == found.tolist()
            assert (where[layer, expert, found.size :] == -1).all()
        share = load[layer].astype(np.float64) / counts[layer]
        expected = share[slots[layer]].reshape(8, 9).sum(axis=1)
        np.testing.assert_allclose(placement.rank_load.numpy()[layer], expected, rtol=1e-12)
        assert (np.diff(slots[layer].reshape(8, 9), axis=1) >= 0).all()


def test_placement_is_near_the_bound_on_skewed_loads(fw: SimpleNamespace) -> None:
    """256 experts with Zipf loads on 32 ranks of 9 slots come within 1 % of the bound."""
    load = 1e6 / np.arange(1, 257) ** 0.8
    placement = fw.lib.place_experts(fw.torch.tensor(load.tolist(), dtype=fw.torch.float64), 32, 9)
    heaviest = float(placement.rank_load.max())
    assert float(placement.lower_bound) <= heaviest <= 1.01 * float(placement.lower_bound)
    contiguous = load.reshape(32, 8).sum(axis=1).max()
    assert heaviest < contiguous / 3


def test_a_single_layer_drops_the_layer_dimension(fw: SimpleNamespace) -> None:
    load = fw.torch.tensor([5, 1, 3, 3])
    flat = fw.lib.place_experts(load, 2, 3)
    stacked = fw.lib.place_experts(load.reshape(1, 4), 2, 3)
    for name in ("physical_to_logical", "logical_to_physical", "replica_count", "rank_load"):
        one, many = getattr(flat, name), getattr(stacked, name)
        assert list(many.shape) == [1, *one.shape]
        assert np.array_equal(one.numpy(), many.numpy()[0])
    assert list(flat.lower_bound.shape) == []
    assert float(flat.lower_bound) == float(stacked.lower_bound[0])


def test_loads_of_zero_still_give_every_expert_a_slot(fw: SimpleNamespace) -> None:
    placement = fw.lib.place_experts(fw.torch.zeros(3), 2, 3)
    assert placement.replica_count.numpy().tolist() == [2, 2, 2]
    assert placement.rank_load.numpy().tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("load", "ranks", "slots", "message"),
    [
        ([1.0, -1.0], 2, 1, "expert 1 has load -1"),
        ([1.0, float("nan")], 2, 1, "finite"),
        ([1.0, float("inf")], 2, 1, "finite"),
        ([1.0, 1.0, 1.0], 2, 1, "3 experts do not fit in 2 slots"),
        ([1.0], 0, 1, "at least 1"),
        ([1.0], 2**40, 2**40, "63 bits"),
    ],
)
def test_bad_placements_are_refused_with_the_reason(
    fw: SimpleNamespace, load: list[float], ranks: int, slots: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fw.lib.place_experts(fw.torch.tensor(load), ranks, slots)


def test_bad_tensors_are_refused_with_the_mend(fw: SimpleNamespace) -> None:
    with pytest.raises(TypeError, match="must be a tensor; found list"):
        fw.lib.place_experts([1.0], 1, 1)
    with pytest.raises(TypeError, match="convert it to one of: float32"):
        fw.lib.place_experts(fw.torch.zeros(2, dtype=fw.torch.bool), 1, 2)
    with pytest.raises(ValueError, match="1 or 2 dimensions"):
        fw.lib.place_experts(fw.torch.zeros(1, 1, 2), 1, 2)
    with pytest.raises(ValueError, match="equally many slots"):
        fw.lib.pack_balanced(fw.torch.zeros(3), 2)
    with pytest.raises(ValueError, match="no layers"):
        fw.lib.place_experts(fw.torch.zeros(0, 4), 2, 2)
