"""expert_placement through the wheel: placements are complete, balanced and within their bounds."""

from __future__ import annotations

from collections import Counter

import numpy as np
import paddle
import paddlefleet_ops
import pytest

pytestmark = pytest.mark.skipif(
    not paddlefleet_ops.is_expert_placement_available(),
    reason=paddlefleet_ops.blocked_import_messages.get("paddlefleet_ops.expert_placement", ""),
)


@pytest.mark.parametrize(("experts", "ranks", "slots"), [(8, 2, 4), (16, 4, 5), (60, 8, 9)])
def test_every_expert_has_a_slot_and_the_load_is_shared(
    experts: int, ranks: int, slots: int
) -> None:
    from paddlefleet_ops import expert_placement

    load = np.random.default_rng(experts).gamma(1.5, 100.0, experts)
    placed = expert_placement.place_experts(paddle.to_tensor(load), ranks, slots)
    slot_experts = placed.physical_to_logical.numpy()
    counts = Counter(slot_experts.tolist())
    assert set(counts) == set(range(experts))
    assert placed.replica_count.numpy().tolist() == [counts[e] for e in range(experts)]
    share = load / np.array([counts[expert] for expert in range(experts)])
    expected = share[slot_experts].reshape(ranks, slots).sum(axis=1)
    np.testing.assert_allclose(placed.rank_load.numpy(), expected, rtol=1e-12)
    bound = float(placed.lower_bound)
    assert bound - 1e-9 <= expected.max() <= (2 - 1 / ranks) * bound + 1e-9


def test_sequences_are_packed_under_the_budget() -> None:
    from paddlefleet_ops import expert_placement

    lengths = np.random.default_rng(1).integers(1, 400, 200)
    packed = expert_placement.pack_sequences(paddle.to_tensor(lengths), 512)
    tokens = np.bincount(packed.batch_of.numpy(), weights=lengths)
    np.testing.assert_array_equal(packed.tokens.numpy(), tokens)
    assert tokens.max() <= 512
    assert -(-lengths.sum() // 512) <= packed.lower_bound <= len(tokens)


def test_grouping_is_a_stable_sort_by_expert() -> None:
    from paddlefleet_ops import expert_placement

    ids = np.random.default_rng(2).integers(-1, 12, (50, 4))
    grouped = expert_placement.group_by_expert(paddle.to_tensor(ids), 12)
    flat = ids.reshape(-1)
    order = np.argsort(flat, kind="stable")
    np.testing.assert_array_equal(grouped.order.numpy(), order[flat[order] >= 0])
    np.testing.assert_array_equal(
        grouped.counts.numpy(), np.bincount(flat[flat >= 0], minlength=12)
    )
