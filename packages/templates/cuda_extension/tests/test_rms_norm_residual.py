"""rms_norm_residual against the float64 oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest

# Sizes on both sides of every boundary of the kernel: one vector, one warp, registers of a block, and
# beyond (16384 for fp32, 32768 for 16-bit types; 4096 where only single elements are aligned).
HIDDEN = (1, 2, 3, 7, 8, 31, 32, 33, 64, 100, 127, 128, 129, 256, 1000, 1024, 1025, 2050, 2880)
HIDDEN_LONG = (4096, 4097, 7168, 8192, 8193, 16384, 16388, 32768, 32776, 40001, 65544)
ROWS = ((1, 4096), (511, 72), (513, 72), (513, 33), (1031, 128), (600, 4096), (600, 1026))


def _inputs(random: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    x = random.normal(0.0, 1.0, shape).astype(np.float32)
    residual = random.normal(0.5, 2.0, shape).astype(np.float32)
    weight = random.normal(1.0, 0.3, shape[-1:]).astype(np.float32)
    return x, residual, weight


def _check(
    framework: Any, compare: Any, dtype: str, x: Any, residual: Any, weight: Any, eps: float
) -> None:
    y, total = framework.operators.rms_norm_residual(x, residual, weight, eps)
    assert framework.dtype_name(y) == framework.dtype_name(total) == dtype
    assert tuple(y.shape) == tuple(total.shape) == tuple(x.shape)
    arrays = [framework.numpy(tensor) for tensor in (x, residual, weight)]
    want_y, want_total = oracle.rms_norm_residual(*arrays, eps, dtype)
    compare.check_exact("rms_norm sum", dtype, framework.numpy(total), want_total)
    limit = oracle.tolerance(oracle.RMS_NORM_ARITHMETIC, dtype)
    compare.check("rms_norm y", dtype, framework.numpy(y), want_y, limit)


@pytest.mark.parametrize("hidden", HIDDEN + HIDDEN_LONG)
def test_hidden_sizes(
    framework: Any, device: str, compare: Any, dtype: str, random: Any, hidden: int
) -> None:
    tensors = [framework.tensor(a, dtype, device) for a in _inputs(random, (3, hidden))]
    _check(framework, compare, dtype, *tensors, 1e-6)


@pytest.mark.parametrize("shape", ROWS)
def test_row_counts(
    framework: Any, device: str, compare: Any, dtype: str, random: Any, shape: tuple[int, int]
) -> None:
    tensors = [framework.tensor(a, dtype, device) for a in _inputs(random, shape)]
    _check(framework, compare, dtype, *tensors, 1e-5)


@pytest.mark.parametrize("shape", [(96,), (2, 3, 96), (1, 1, 1, 5), (0, 96), (3, 0, 96)])
def test_other_ranks_and_no_rows(
    framework: Any, device: str, compare: Any, dtype: str, random: Any, shape: tuple[int, ...]
) -> None:
    tensors = [framework.tensor(a, dtype, device) for a in _inputs(random, shape)]
    _check(framework, compare, dtype, *tensors, 1e-6)


@pytest.mark.parametrize("offset", [0, 1, 2, 8])
@pytest.mark.parametrize("hidden", [64, 96, 65])
def test_rows_that_lie_apart_and_start_anywhere(
    framework: Any, device: str, compare: Any, dtype: str, random: Any, hidden: int, offset: int
) -> None:
    wide = framework.tensor(random.normal(size=(5, 2 * hidden + 9)), dtype, device)
    weights = framework.tensor(random.normal(size=(hidden + offset,)), dtype, device)
    x = wide[:, offset : offset + hidden]
    residual = wide[:, hidden + 1 : 2 * hidden + 1]
    _check(framework, compare, dtype, x, residual, weights[offset:], 1e-6)


@pytest.mark.parametrize("apart", ["x", "residual"])
def test_one_input_alone_has_rows_that_are_not_aligned(
    framework: Any, device: str, compare: Any, dtype: str, random: Any, apart: str
) -> None:
    dense = framework.tensor(random.normal(size=(5, 64)), dtype, device)
    rows = framework.tensor(random.normal(size=(5, 67)), dtype, device)[:, :64]
    weight = framework.tensor(random.normal(size=(64,)), dtype, device)
    x, residual = (rows, dense) if apart == "x" else (dense, rows)
    _check(framework, compare, dtype, x, residual, weight, 1e-6)


def test_strided_and_transposed_inputs(
    framework: Any, device: str, compare: Any, dtype: str, random: Any
) -> None:
    wide = framework.tensor(random.normal(size=(6, 80)), dtype, device)
    tall = framework.tensor(random.normal(size=(40, 6)), dtype, device)
    weight = framework.tensor(random.normal(size=(80,)), dtype, device)
    _check(framework, compare, dtype, wide[:, ::2], tall.t(), weight[::2], 1e-6)


@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-6, 1.0])
def test_eps(
    framework: Any, device: str, compare: Any, dtype: str, random: Any, eps: float
) -> None:
    tensors = [framework.tensor(a, dtype, device) for a in _inputs(random, (4, 160))]
    _check(framework, compare, dtype, *tensors, eps)


def test_zero_rows_are_zero_with_eps_and_nan_without(
    framework: Any, device: str, compare: Any, dtype: str
) -> None:
    zero = framework.tensor(np.zeros((2, 48)), dtype, device)
    weight = framework.tensor(np.ones(48), dtype, device)
    _check(framework, compare, dtype, zero, zero, weight, 1e-6)
    _check(framework, compare, dtype, zero, zero, weight, 0.0)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_stay_in_their_row(
    framework: Any, device: str, compare: Any, dtype: str, random: Any, special: float
) -> None:
    x, residual, weight = _inputs(random, (4, 100))
    x[1, 37] = special
    tensors = [framework.tensor(a, dtype, device) for a in (x, residual, weight)]
    _check(framework, compare, dtype, *tensors, 1e-6)


def test_sum_that_overflows_its_dtype(framework: Any, device: str, compare: Any) -> None:
    x = framework.tensor(np.full((2, 24), 60000.0), "float16", device)
    weight = framework.tensor(np.ones(24), "float16", device)
    _check(framework, compare, "float16", x, x, weight, 1e-6)


@pytest.mark.parametrize("wide_dtype", ["float32", "bfloat16"])
def test_squares_beyond_fp32_count_as_infinite(
    framework: Any, device: str, wide_dtype: str
) -> None:
    x = framework.tensor(np.full((2, 24), 1e20), wide_dtype, device)
    zero = framework.tensor(np.zeros((2, 24)), wide_dtype, device)
    weight = framework.tensor(np.ones(24), wide_dtype, device)
    y, total = framework.operators.rms_norm_residual(x, zero, weight, 1e-6)
    np.testing.assert_array_equal(framework.numpy(y), np.zeros((2, 24)))
    np.testing.assert_array_equal(framework.numpy(total), framework.numpy(x))


def test_inputs_are_left_as_they_are(framework: Any, device: str, dtype: str, random: Any) -> None:
    tensors = [framework.tensor(a, dtype, device) for a in _inputs(random, (3, 72))]
    before = [framework.numpy(tensor) for tensor in tensors]
    framework.operators.rms_norm_residual(*tensors, 1e-6)
    for tensor, values in zip(tensors, before, strict=True):
        np.testing.assert_array_equal(framework.numpy(tensor), values)


def _wrong_calls() -> list[tuple[str, type[Exception], str]]:
    return [
        ("x int", TypeError, "x must be float32, float16 or bfloat16, not"),
        ("x array", TypeError, "x must be a tensor, not ndarray"),
        ("x scalar", ValueError, "x must have at least 1 dimension"),
        ("hidden 0", ValueError, "the last dimension of x must not be empty"),
        ("residual shape", ValueError, r"residual must have the shape \(4, 8\), not \(3, 8\)"),
        ("residual dtype", TypeError, "residual must have the dtype of x"),
        ("weight shape", ValueError, r"weight must have the shape \(8,\), not \(7,\)"),
        ("weight dtype", TypeError, "weight must have the dtype of x"),
        ("eps negative", ValueError, "eps must be finite and not negative"),
        ("eps nan", ValueError, "eps must be finite and not negative"),
    ]


@pytest.mark.parametrize(("case", "error", "message"), _wrong_calls())
def test_wrong_calls_are_refused(
    framework: Any, device: str, case: str, error: type[Exception], message: str
) -> None:
    def make(shape: tuple[int, ...], dtype: str = "float32") -> Any:
        return framework.tensor(np.ones(shape), dtype, device)

    x, residual, weight, eps = make((4, 8)), make((4, 8)), make((8,)), 1e-6
    if case == "x int":
        x = make((4, 8), "int32")
    elif case == "x array":
        x = np.ones((4, 8), np.float32)
    elif case == "x scalar":
        x = make(())
    elif case == "hidden 0":
        x = residual = make((4, 0))
    elif case == "residual shape":
        residual = make((3, 8))
    elif case == "residual dtype":
        residual = make((4, 8), "float16")
    elif case == "weight shape":
        weight = make((7,))
    elif case == "weight dtype":
        weight = make((8,), "bfloat16")
    else:
        eps = -1e-6 if case == "eps negative" else float("nan")
    with pytest.raises(error, match=message):
        framework.operators.rms_norm_residual(x, residual, weight, eps)


def test_weight_on_another_device_is_refused(framework: Any, gpu: str) -> None:
    x = framework.tensor(np.ones((2, 8)), "float32", gpu)
    weight = framework.tensor(np.ones(8), "float32", "cpu")
    with pytest.raises(ValueError, match="weight must be on the device of x"):
        framework.operators.rms_norm_residual(x, x, weight, 1e-6)
