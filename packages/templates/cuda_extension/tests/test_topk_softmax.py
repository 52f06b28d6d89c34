"""topk_softmax against the float64 oracle: indices exactly, weights within the tolerance."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest

EXPERTS = (1, 2, 7, 8, 31, 32, 33, 60, 64, 65, 128, 160, 256, 257, 384, 512, 1000, 1024)
KS = (1, 2, 6, 8, 31, 32, 33, 64, 65)


def _check(
    framework: Any, compare: Any, dtype: str, logits: Any, k: int, renormalize: bool
) -> None:
    weights, indices = framework.operators.topk_softmax(logits, k, renormalize)
    assert framework.dtype_name(weights) == "float32"
    assert framework.dtype_name(indices) == "int32"
    want_weights, want_indices = oracle.topk_softmax(framework.numpy(logits), k, renormalize)
    compare.check_exact("topk indices", dtype, framework.numpy(indices), want_indices)
    # exp underflows gradually below 2^-126, and a weight is at most one such power.
    limit = oracle.tolerance(oracle.SOFTMAX_ARITHMETIC, "float32", absolute=2.0**-126)
    compare.check("topk weights", dtype, framework.numpy(weights), want_weights, limit)


@pytest.mark.parametrize("renormalize", [False, True], ids=["softmax", "renormalized"])
@pytest.mark.parametrize("experts", EXPERTS)
def test_experts_and_k(
    framework: Any,
    device: str,
    compare: Any,
    dtype: str,
    random: Any,
    experts: int,
    renormalize: bool,
) -> None:
    logits = framework.tensor(random.normal(0.0, 4.0, (5, experts)), dtype, device)
    for k in sorted({k for k in (*KS, experts - 1, experts) if 1 <= k <= experts}):
        _check(framework, compare, dtype, logits, k, renormalize)


@pytest.mark.parametrize("shape", [(40,), (1, 40), (2, 3, 40), (1031, 64), (0, 16), (2, 0, 16)])
def test_row_counts_and_ranks(
    framework: Any, device: str, compare: Any, dtype: str, random: Any, shape: tuple[int, ...]
) -> None:
    logits = framework.tensor(random.normal(0.0, 2.0, shape), dtype, device)
    _check(framework, compare, dtype, logits, 6, True)


@pytest.mark.parametrize("experts", [5, 64, 200, 1024])
def test_ties_go_to_the_lower_index(
    framework: Any, device: str, compare: Any, dtype: str, random: Any, experts: int
) -> None:
    few = random.integers(-1, 2, (9, experts)).astype(np.float32)
    few[few == 0] = random.choice([0.0, -0.0], size=int((few == 0).sum()))
    few[0] = 3.0
    logits = framework.tensor(few, dtype, device)
    for k in sorted({1, 2, min(experts, 40), experts}):
        _check(framework, compare, dtype, logits, k, False)


def test_logits_that_lie_apart_and_start_anywhere(
    framework: Any, device: str, compare: Any, dtype: str, random: Any
) -> None:
    wide = framework.tensor(random.normal(size=(7, 150)), dtype, device)
    for offset in (0, 1, 2, 8):
        _check(framework, compare, dtype, wide[:, offset : offset + 128], 8, True)
    _check(framework, compare, dtype, wide[:, ::3], 8, False)


def test_special_values(framework: Any, device: str, compare: Any, dtype: str, random: Any) -> None:
    values = random.normal(0.0, 2.0, (7, 70)).astype(np.float32)
    values[0, [3, 69]] = np.nan
    values[1, 10] = np.inf
    values[2, [5, 6]] = np.inf, -np.inf
    values[3, ::2] = -np.inf
    values[4] = -np.inf
    values[5, [1, 60]] = np.nan, np.inf
    values[6] *= 100.0 / np.abs(values[6]).max()
    logits = framework.tensor(values, dtype, device)
    for k in (1, 4, 33, 70):
        for renormalize in (False, True):
            _check(framework, compare, dtype, logits[:6], k, renormalize)
    weights, _ = framework.operators.topk_softmax(logits[6:], 70, False)
    assert abs(framework.numpy(weights).sum() - 1.0) < 1e-5


def test_negative_nan_counts_as_nan(framework: Any, device: str) -> None:
    values = np.array([[1.0, np.copysign(np.nan, -1.0), 2.0]], dtype=np.float32)
    _, indices = framework.operators.topk_softmax(framework.tensor(values, "float32", device), 3)
    assert framework.numpy(indices).tolist() == [[1, 2, 0]]


@pytest.mark.parametrize(
    ("experts", "k", "error", "message"),
    [
        (1025, 2, ValueError, r"\(experts\) must be 1 to 1024, not 1025"),
        (0, 1, ValueError, r"\(experts\) must be 1 to 1024, not 0"),
        (8, 0, ValueError, "k must be 1 to the number of experts, 8, not 0"),
        (8, 9, ValueError, "k must be 1 to the number of experts, 8, not 9"),
        (8, 2.0, TypeError, "k must be an integer, not float"),
    ],
)
def test_wrong_calls_are_refused(
    framework: Any, device: str, experts: int, k: Any, error: type[Exception], message: str
) -> None:
    logits = framework.tensor(np.zeros((3, experts)), "float32", device)
    with pytest.raises(error, match=message):
        framework.operators.topk_softmax(logits, k)


def test_limit_is_public(framework: Any) -> None:
    assert max(EXPERTS) == framework.operators.MAX_EXPERTS
