"""The inputs of the multi-rank tests, as NumPy arrays made from a seed; used by ranks and oracle."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

# dtype name -> (unsigned integer of the same size, bytes)
BITS = {"float32": np.uint32, "bfloat16": np.uint16, "float16": np.uint16, "float64": np.uint64}
# Expert e multiplies by SCALES[e % 5]; no power of two, so that products round.
SCALES = np.array([1.1, -0.7, 3.3, 0.013, 5.9], dtype=np.float32)


@dataclass(frozen=True)
class Scenario:
    """One dispatch and combine.

    tokens: tokens of rank r are ``tokens[r % len(tokens)]``.
    experts: "identity" sends rows back as they came, "scaled" computes (see `expert_results`).
    places: how expert numbers are drawn: "any" (repeats and -1 happen), "one" (exactly one expert
        per token, anywhere), "last" (all tokens to the last expert), "none" (all -1).
    """

    name: str
    tokens: tuple[int, ...]
    hidden: int = 8
    k: int = 2
    local_experts: int = 3
    dtype: str = "float32"
    index_dtype: str = "int64"
    weight_dtype: str = "float32"
    transport: str = "auto"
    experts: str = "scaled"
    places: str = "any"


@dataclass(frozen=True)
class RankInput:
    """Bits of the payload ``[t, hidden]`` and of the weights ``[t, k]``; expert numbers ``[t, k]``."""

    x_bits: np.ndarray
    idx: np.ndarray
    weight_bits: np.ndarray


def _draw_experts(scenario: Scenario, rng: np.random.Generator, size: int, t: int) -> np.ndarray:
    total = scenario.local_experts * size
    shape = (t, scenario.k)
    if scenario.places == "any":
        return rng.integers(-1, total, shape)
    idx = np.full(shape, -1)
    if scenario.places == "one":
        idx[np.arange(t), rng.integers(0, scenario.k, t)] = rng.integers(0, total, t)
    elif scenario.places == "last":
        idx[:, :] = total - 1
    return idx


def make_input(scenario: Scenario, rank: int, size: int) -> RankInput:
    """Make the input of one rank. Identity payloads are random bits: NaNs and denormals included."""
    rng = np.random.default_rng([zlib.crc32(scenario.name.encode()), rank, size])
    t = scenario.tokens[rank % len(scenario.tokens)]
    unsigned = BITS[scenario.dtype]
    if scenario.experts == "identity":
        high = np.iinfo(unsigned).max
        x_bits = rng.integers(0, high, (t, scenario.hidden), dtype=unsigned, endpoint=True)
        if t:
            x_bits[0, 0] = 1 << (8 * np.dtype(unsigned).itemsize - 1)  # minus zero
    else:
        x_bits = to_bits(rng.standard_normal((t, scenario.hidden)), scenario.dtype)
    idx = _draw_experts(scenario, rng, size, t).astype(scenario.index_dtype)
    weights = to_bits(rng.random((t, scenario.k)), scenario.weight_dtype)
    return RankInput(x_bits, idx, weights)


def to_bits(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round numbers to `dtype` (ties to even) and return the bits."""
    if dtype != "bfloat16":
        return values.astype(dtype).view(BITS[dtype])
    bits = values.astype(np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(is_nan, quiet, rounded >> np.uint32(16)).astype(np.uint16)


def from_bits(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Return bits as float32, or as float64 for float64: exact for every dtype."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    values = bits.view(dtype)
    return values if dtype == "float64" else values.astype(np.float32)


def expert_results(
    scenario: Scenario,
    x_bits: np.ndarray,
    local_idx: np.ndarray,
    weight_bits: np.ndarray,
    rank: int,
) -> np.ndarray:
    """What a rank's experts make of rows: the weighted sum over its places, rounded to the dtype."""
    if scenario.experts == "identity":
        return x_bits
    x = from_bits(x_bits, scenario.dtype)
    weights = from_bits(weight_bits, scenario.weight_dtype)
    total = np.zeros_like(x)
    for place in range(scenario.k):
        expert = local_idx[:, place] + rank * scenario.local_experts
        factor = np.where(local_idx[:, place] >= 0, weights[:, place] * SCALES[expert % 5], 0)
        total = total + x * factor[:, None].astype(x.dtype)
    return to_bits(total, scenario.dtype)


_UNEVEN = (5, 0, 9, 1)
SCENARIOS = {
    scenario.name: scenario
    for scenario in [
        *(
            Scenario(f"identity-{dtype}", (7, 4, 6), dtype=dtype, experts="identity", places="one")
            for dtype in BITS
        ),
        *(Scenario(f"scaled-{dtype}", (7, 4, 6), dtype=dtype, k=4) for dtype in BITS),
        Scenario("uneven", _UNEVEN, k=3),
        Scenario("first-rank-empty", (0, 6)),
        Scenario("no-tokens-at-all", (0,)),
        Scenario("no-expert-for-any-token", (4, 2), places="none"),
        Scenario("all-to-last-expert", (6, 3), places="last"),
        Scenario("odd-widths", (5, 3, 4), hidden=7, k=1, dtype="bfloat16", weight_dtype="float16"),
        Scenario("int32-indices", (5, 3), index_dtype="int32", weight_dtype="bfloat16"),
        Scenario("one-expert-per-rank", (8, 5), local_experts=1, k=2),
        Scenario("many-tokens", (700, 900), hidden=32, k=8, local_experts=8, dtype="bfloat16"),
        Scenario("all_gather-uneven", _UNEVEN, k=3, transport="all_gather"),
        Scenario(
            "all_gather-identity",
            (3, 0, 8),
            dtype="bfloat16",
            transport="all_gather",
            experts="identity",
            places="one",
        ),
        Scenario("p2p-uneven", _UNEVEN, k=3, transport="p2p"),
        Scenario(
            "p2p-identity",
            (3, 0, 8),
            dtype="float16",
            transport="p2p",
            experts="identity",
            places="one",
        ),
    ]
}
