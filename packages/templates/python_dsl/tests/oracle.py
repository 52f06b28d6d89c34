"""The operator in NumPy float64, written from its definition in two independent ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


def random_inputs(
    shape: tuple[int, int, int, int, int],
    *,
    gated: bool = True,
    with_state: bool = True,
    seed: int = 0,
) -> Arrays:
    """``q, k, v`` and, if asked for, ``g`` and ``initial_state`` for ``B, T, H, K, V``."""
    batch, steps, heads, keys, values = shape
    rng = np.random.default_rng(seed)
    out = {
        "q": rng.standard_normal((batch, steps, heads, keys)),
        "k": rng.standard_normal((batch, steps, heads, keys)),
        "v": rng.standard_normal((batch, steps, heads, values)),
    }
    if gated:
        out["g"] = np.log(rng.uniform(0.5, 1.0, (batch, steps, heads)))
    if with_state:
        out["initial_state"] = rng.standard_normal((batch, heads, keys, values))
    return out


def quadratic(x: Arrays, scale: float) -> np.ndarray:
    """The output as a sum over all earlier steps, each with its own product of decays: O(T^2)."""
    batch, steps, heads, _ = x["q"].shape
    out = np.zeros_like(x["v"])
    for b in range(batch):
        for h in range(heads):
            for t in range(steps):
                for s in range(t + 1):
                    score = float(x["q"][b, t, h] @ x["k"][b, s, h])
                    if "g" in x:
                        score *= float(np.prod(np.exp(x["g"][b, s + 1 : t + 1, h])))
                    out[b, t, h] += scale * score * x["v"][b, s, h]
                if "initial_state" in x:
                    decay = float(np.prod(np.exp(x["g"][b, : t + 1, h]))) if "g" in x else 1.0
                    out[b, t, h] += scale * decay * (x["q"][b, t, h] @ x["initial_state"][b, h])
    return out


def recurrent(x: Arrays, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Output and final state, step by step with einsum."""
    batch, steps, heads, keys = x["q"].shape
    values = x["v"].shape[-1]
    state = x.get("initial_state", np.zeros((batch, heads, keys, values))).copy()
    out = np.zeros_like(x["v"])
    for t in range(steps):
        if "g" in x:
            state *= np.exp(x["g"][:, t])[:, :, None, None]
        state += np.einsum("bhk,bhv->bhkv", x["k"][:, t], x["v"][:, t])
        out[:, t] = scale * np.einsum("bhk,bhkv->bhv", x["q"][:, t], state)
    return out, state


def finite_differences(loss: Callable[[Arrays], float], x: Arrays, step: float = 1e-6) -> Arrays:
    """The gradient of ``loss`` by central differences in every entry; error about ``1e-9``."""
    grads = {name: np.zeros_like(value) for name, value in x.items()}
    for name, value in x.items():
        for index in np.ndindex(value.shape):
            changed: list[Any] = []
            for sign in (1.0, -1.0):
                moved = dict(x, **{name: value.copy()})
                moved[name][index] += sign * step
                changed.append(loss(moved))
            grads[name][index] = (changed[0] - changed[1]) / (2 * step)
    return grads
