"""Grouping against NumPy's stable sort."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

QUICK = settings(max_examples=150, deadline=None)


@st.composite
def routings(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    tokens, choices, experts = draw(
        st.tuples(st.integers(0, 9), st.integers(1, 4), st.integers(1, 6))
    )
    flat = draw(
        st.lists(st.integers(-1, experts - 1), min_size=tokens * choices, max_size=tokens * choices)
    )
    return np.array(flat, dtype=np.int64).reshape(tokens, choices), experts


@QUICK
@given(case=routings(), narrow=st.booleans())
def test_grouping_is_a_stable_sort(
    fw: SimpleNamespace, case: tuple[np.ndarray, int], narrow: bool
) -> None:
    ids, experts = case
    dtype = fw.torch.int32 if narrow else fw.torch.int64
    grouping = fw.lib.group_by_expert(fw.torch.tensor(ids, dtype=dtype), experts)
    flat = ids.reshape(-1)
    stable = np.argsort(flat, kind="stable")
    expected = stable[flat[stable] >= 0]
    assert grouping.order.numpy().tolist() == expected.tolist()
    assert grouping.token_of.numpy().tolist() == (expected // ids.shape[1]).tolist()
    counts = np.bincount(flat[flat >= 0], minlength=experts)
    assert grouping.counts.numpy().tolist() == counts.tolist()
    assert grouping.offsets.numpy().tolist() == [0, *np.cumsum(counts).tolist()]
    inverse = grouping.inverse.numpy()
    assert inverse.shape == ids.shape
    assert (inverse.reshape(-1)[expected] == np.arange(expected.size)).all()
    assert ((inverse == -1) == (ids == -1)).all()


def test_gather_and_combine_round_trip(fw: SimpleNamespace) -> None:
    """Rows gathered into expert order come back by ``inverse`` to their tokens."""
    torch = fw.torch
    rng = np.random.default_rng(0)
    ids = np.stack([rng.permutation(8)[:2] for _ in range(32)])
    rows = torch.tensor(rng.standard_normal((32, 5)), dtype=torch.float32)
    grouping = fw.lib.group_by_expert(torch.tensor(ids, dtype=torch.int64), 8)
    grouped = rows[grouping.token_of]
    back = grouped[grouping.inverse.reshape(-1)].reshape(32, 2, 5)
    for choice in range(2):
        assert np.array_equal(back.numpy()[:, choice], rows.numpy())


def test_a_flat_tensor_has_one_choice_per_token(fw: SimpleNamespace) -> None:
    grouping = fw.lib.group_by_expert(fw.torch.tensor([2, 0, 2, -1]), 3)
    assert grouping.order.numpy().tolist() == grouping.token_of.numpy().tolist() == [1, 0, 2]
    assert grouping.inverse.numpy().tolist() == [1, 0, 2, -1]


def test_a_strided_tensor_is_read_by_its_values(fw: SimpleNamespace) -> None:
    ids = fw.torch.tensor([[0, 1, 2], [2, 1, 0]])
    grouping = fw.lib.group_by_expert(ids.transpose(0, 1), 3)
    assert grouping.order.numpy().tolist() == [0, 5, 2, 3, 1, 4]


@pytest.mark.parametrize(("ids", "message"), [([0, 4], "id 4 at flat position 1"), ([-2], "id -2")])
def test_ids_outside_the_experts_are_refused(
    fw: SimpleNamespace, ids: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fw.lib.group_by_expert(fw.torch.tensor(ids), 4)


def test_no_experts_is_refused(fw: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        fw.lib.group_by_expert(fw.torch.tensor([0]), 0)
