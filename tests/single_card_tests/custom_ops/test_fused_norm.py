"""fused_norm against a float64 oracle, on the CPU and, where there is one, on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import paddlefleet_ops
import pytest

pytestmark = pytest.mark.skipif(
    not paddlefleet_ops.is_fused_norm_available(),
    reason=paddlefleet_ops.blocked_import_messages.get("paddlefleet_ops.fused_norm", ""),
)

HAS_GPU = paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0
DEVICES = ("cpu", "gpu:0") if HAS_GPU else ("cpu",)
# Relative: one rounding to the dtype (24, 11, 8 bits), and float32 arithmetic before it.
TOLERANCE = {"float32": 2e-6, "float16": 2.0**-10, "bfloat16": 2.0**-7}
each_device = pytest.mark.parametrize("device", DEVICES)
each_dtype = pytest.mark.parametrize("dtype", TOLERANCE)


def made(values: np.ndarray, dtype: str, device: str) -> tuple[Any, np.ndarray]:
    """A tensor, and in float64 the values that it holds after rounding."""
    tensor = paddle.to_tensor(values.astype(np.float32)).astype(dtype).to(device)
    return tensor, exact(tensor)


def exact(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.cpu().astype("float64").numpy())


@each_device
@each_dtype
@pytest.mark.parametrize("shape", [(1, 1), (5, 96), (3, 4, 1000)])
def test_rms_norm_of_a_sum(shape: tuple[int, ...], dtype: str, device: str) -> None:
    from paddlefleet_ops import fused_norm

    rng = np.random.default_rng(len(shape))
    x, x64 = made(rng.standard_normal(shape), dtype, device)
    residual, residual64 = made(rng.standard_normal(shape), dtype, device)
    weight, weight64 = made(rng.uniform(0.5, 2.0, shape[-1]), dtype, device)
    y, total = fused_norm.rms_norm_residual(x, residual, weight, eps=1e-5)
    rounding = TOLERANCE[dtype]
    np.testing.assert_allclose(exact(total), x64 + residual64, rtol=rounding, atol=1e-6)
    kept = exact(total)  # the norm is that of the sum as it was rounded
    scale = np.sqrt((kept**2).mean(axis=-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(exact(y), kept / scale * weight64, rtol=rounding, atol=1e-6)


@each_device
@each_dtype
def test_swiglu(dtype: str, device: str) -> None:
    from paddlefleet_ops import fused_norm

    rng = np.random.default_rng(3)
    x, x64 = made(rng.standard_normal((7, 130)), dtype, device)
    gate, gate64 = made(4 * rng.standard_normal((7, 130)), dtype, device)
    expected = x64 * gate64 / (1.0 + np.exp(-gate64))
    got = exact(fused_norm.swiglu(x, gate))
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE[dtype], atol=1e-6)


@each_device
@pytest.mark.parametrize("renormalize", [False, True])
def test_top_k_softmax(renormalize: bool, device: str) -> None:
    from paddlefleet_ops import fused_norm

    logits, logits64 = made(np.random.default_rng(4).standard_normal((33, 64)), "float32", device)
    weights, indices = fused_norm.topk_softmax(logits, 6, renormalize)
    order = np.argsort(-logits64, axis=1, kind="stable")[:, :6]
    np.testing.assert_array_equal(indices.cpu().numpy(), order)
    powers = np.exp(logits64 - logits64.max(axis=1, keepdims=True))
    chosen = np.take_along_axis(powers, order, axis=1)
    expected = chosen / (chosen if renormalize else powers).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(exact(weights), expected, rtol=1e-5)
