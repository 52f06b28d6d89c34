"""swiglu against the float64 oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest

SHAPES = (
    (1,), (7,), (8,), (3, 5), (4, 1024), (2, 3, 129), (1031, 77), (33, 8193), (64, 11008), (1, 4096),
    (1, 4099), (0,), (0, 8), (5, 0), (2, 0, 3),
)  # fmt: skip

# Below -88.7, exp(-gate) exceeds fp32 and silu is 0; its true value is then less than 3e-37.
SILU_UNDERFLOW = 3e-37


def _check(framework: Any, compare: Any, dtype: str, x: Any, gate: Any) -> None:
    out = framework.operators.swiglu(x, gate)
    assert framework.dtype_name(out) == dtype
    assert tuple(out.shape) == tuple(x.shape)
    arrays = framework.numpy(x), framework.numpy(gate)
    limit = oracle.tolerance(oracle.SWIGLU_ARITHMETIC, dtype, absolute=10 * SILU_UNDERFLOW)
    compare.check("swiglu", dtype, framework.numpy(out), oracle.swiglu(*arrays, dtype), limit)


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(
    framework: Any,
    device: str,
    compare: Any,
    dtype: str,
    random: Any,
    shape: tuple[int, ...],
) -> None:
    x = framework.tensor(random.normal(size=shape), dtype, device)
    gate = framework.tensor(random.normal(0.0, 3.0, shape), dtype, device)
    _check(framework, compare, dtype, x, gate)


@pytest.mark.parametrize(("rows", "cols"), [(5, 64), (5, 65), (1, 2050), (700, 24)])
@pytest.mark.parametrize("offset", [0, 1, 8])
def test_halves_of_one_projection(
    framework: Any,
    device: str,
    compare: Any,
    dtype: str,
    random: Any,
    rows: int,
    cols: int,
    offset: int,
) -> None:
    projection = framework.tensor(random.normal(size=(rows, 2 * cols + offset)), dtype, device)
    gate = projection[:, offset : offset + cols]
    _check(framework, compare, dtype, projection[:, offset + cols :], gate)


def test_one_input_alone_has_rows_that_are_not_aligned(
    framework: Any, device: str, compare: Any, dtype: str, random: Any
) -> None:
    dense = framework.tensor(random.normal(size=(5, 64)), dtype, device)
    rows = framework.tensor(random.normal(size=(5, 67)), dtype, device)[:, :64]
    _check(framework, compare, dtype, rows, dense)
    _check(framework, compare, dtype, dense, rows)


def test_unaligned_and_strided_inputs(
    framework: Any, device: str, compare: Any, dtype: str, random: Any
) -> None:
    flat = framework.tensor(random.normal(size=(1001,)), dtype, device)
    _check(framework, compare, dtype, flat[1:], flat[:-1])
    _check(framework, compare, dtype, flat[:1000:2], flat[1::2])
    square = framework.tensor(random.normal(size=(40, 40)), dtype, device)
    _check(framework, compare, dtype, square, square.t())


def test_extreme_gates(framework: Any, device: str, compare: Any, dtype: str) -> None:
    gates = [0.0, -0.0, 1e-6, 20.0, 88.0, -20.0, -87.0, -88.5, -100.0, 3e4, -3e4]
    gates += [np.inf, -np.inf, np.nan]
    gate = framework.tensor(np.array(gates * 3), dtype, device)
    values = np.repeat([1.0, -2.5, 0.0], len(gates))
    x = framework.tensor(values, dtype, device)
    _check(framework, compare, dtype, x, gate)


def test_wrong_calls_are_refused(framework: Any, device: str) -> None:
    def make(shape: tuple[int, ...], dtype: str = "float32") -> Any:
        return framework.tensor(np.ones(shape), dtype, device)

    swiglu = framework.operators.swiglu
    with pytest.raises(ValueError, match=r"gate must have the shape \(4, 8\), not \(8, 4\)"):
        swiglu(make((4, 8)), make((8, 4)))
    with pytest.raises(TypeError, match="gate must have the dtype of x"):
        swiglu(make((4, 8)), make((4, 8), "float16"))
    with pytest.raises(TypeError, match="x must be float32, float16 or bfloat16, not"):
        swiglu(make((4, 8), "float64"), make((4, 8)))
    with pytest.raises(TypeError, match="gate must be a tensor, not list"):
        swiglu(make((4, 8)), [1.0])
