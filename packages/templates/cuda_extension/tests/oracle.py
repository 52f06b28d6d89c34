"""What the operators must return, in numpy float64, and how far a result may be from it.

The oracle takes the values that the tensor really holds (after rounding to its dtype) as float64. It
shares no code with the library.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

DTYPES = ("float32", "float16", "bfloat16")

# Half a unit in the last place, relative: what rounding a result to the dtype may cost
# (24, 11 and 8 bits of significand).
UNIT_ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# Half of the smallest subnormal number: the same, where a result underflows.
UNDERFLOW = {"float32": 2.0**-150, "float16": 2.0**-25, "bfloat16": 2.0**-134}


@dataclass(frozen=True)
class Tolerance:
    """A result passes where |got - want| <= absolute + relative * |want|."""

    relative: float
    absolute: float


# fp32 arithmetic before the result is rounded, relative:
# the sum of squares as a tree or in lanes: (log2 of the row + elements of a lane) roundoffs, halved by
# the root; rsqrt 2 ulp; two products. 32 roundoffs (2e-6) leave a margin of about two.
RMS_NORM_ARITHMETIC = 32 * 2.0**-24
# exp 2 ulp (CUDA C++ programming guide, "Mathematical functions"), sum, quotient, product.
SWIGLU_ARITHMETIC = 16 * 2.0**-24
# exp of a difference d: d is rounded, so |d| roundoffs (the logits of the tests differ by less than 64);
# exp itself, a sum of up to 1024 positive terms in 16 or 32 lanes, and a quotient: at most 64 more.
SOFTMAX_ARITHMETIC = 128 * 2.0**-24


def tolerance(arithmetic: float, dtype: str, absolute: float = 0.0) -> Tolerance:
    """Return the tolerance of a result computed in fp32 and rounded to `dtype`."""
    return Tolerance(arithmetic + UNIT_ROUNDOFF[dtype], absolute + UNDERFLOW[dtype])


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round fp32 values to `dtype`, to nearest with ties to even; returns float64."""
    with np.errstate(over="ignore"):
        single = np.asarray(values).astype(np.float32)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return single.astype(np.float16).astype(np.float64)
    if dtype == "bfloat16":
        bits = single.view(np.uint32).astype(np.uint64)
        kept = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        rounded_single = kept.astype(np.uint32).view(np.float32)
        return np.where(np.isnan(single), np.nan, rounded_single).astype(np.float64)
    return single.astype(np.float64)


def overflowed(values: np.ndarray, dtype: str) -> np.ndarray:
    """Replace what rounds to infinity in `dtype` by infinity; the rest stays float64."""
    with np.errstate(over="ignore"):
        return np.where(np.isinf(rounded(values, dtype)), np.copysign(np.inf, values), values)


def rms_norm_residual(
    x: np.ndarray, residual: np.ndarray, weight: np.ndarray, eps: float, dtype: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return (y, sum); the sum is exact: an fp32 addition, rounded to `dtype`."""
    with np.errstate(all="ignore"):
        total = rounded(x.astype(np.float32) + residual.astype(np.float32), dtype)
        mean = (total * total).mean(axis=-1, keepdims=True)
        return overflowed(total / np.sqrt(mean + eps) * weight, dtype), total


def swiglu(x: np.ndarray, gate: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return overflowed(x * (gate / (1.0 + np.exp(-gate))), dtype)


def topk_softmax(logits: np.ndarray, k: int, renormalize: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return (weights, indices): NaN first, then by value; of equal values the lower index first."""
    rows = logits.reshape(-1, logits.shape[-1])
    experts = np.broadcast_to(np.arange(rows.shape[-1]), rows.shape)
    nan = np.isnan(rows)
    order = np.lexsort((experts, -np.where(nan, 0.0, rows), ~nan), axis=-1)
    with np.errstate(all="ignore"):
        powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
        chosen = np.take_along_axis(powers, order[:, :k], axis=-1)
        total = (chosen if renormalize else powers).sum(axis=-1, keepdims=True)
        weights = chosen / total
    shape = (*logits.shape[:-1], k)
    return weights.reshape(shape), order[:, :k].reshape(shape)
