"""The layer against NumPy, with the same weights on every framework."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import oracle
import pytest

HIDDEN, HEADS = 12, 3


def layer_with_known_weights(
    fw: SimpleNamespace, **options: Any
) -> tuple[Any, dict[str, np.ndarray]]:
    layer = fw.lib.LinearAttention(HIDDEN, HEADS, chunk_size=4, **options)
    rng = np.random.default_rng(11)
    weights = {}
    with fw.torch.no_grad():
        for name, parameter in sorted(layer.named_parameters()):
            value = (rng.standard_normal(list(parameter.shape)) * 0.4).astype(np.float32)
            parameter.copy_(fw.torch.tensor(value))
            weights[name] = value.astype(np.float64)
    return layer, weights


def expected_output(hidden: np.ndarray, w: dict[str, np.ndarray], temperature: float) -> np.ndarray:
    batch, steps, _ = hidden.shape
    heads = {
        name: (hidden @ w[f"{name}_proj.weight"].T).reshape(batch, steps, HEADS, -1)
        for name in ("q", "k", "v")
    }
    if "g_proj.weight" in w:
        logit = hidden @ w["g_proj.weight"].T + w["g_proj.bias"]
        heads["g"] = -np.logaddexp(0.0, -logit) / temperature
    out = oracle.quadratic(heads, (HIDDEN // HEADS) ** -0.5)
    out = out / np.sqrt((out**2).mean(axis=-1, keepdims=True) + 1e-6) * w["norm_weight"]
    return out.reshape(batch, steps, HIDDEN) @ w["o_proj.weight"].T


@pytest.mark.parametrize("gated", [True, False], ids=["gated", "plain"])
def test_the_layer_is_its_formula(fw: SimpleNamespace, gated: bool) -> None:
    layer, weights = layer_with_known_weights(fw, gated=gated, gate_temperature=2.0)
    assert weights["q_proj.weight"].shape == (HIDDEN, HIDDEN)
    assert ("g_proj.weight" in weights) == gated
    if gated:
        assert weights["g_proj.weight"].shape == (HEADS, HIDDEN)  # [out, in], on both frameworks
    hidden = np.random.default_rng(2).standard_normal((2, 10, HIDDEN)).astype(np.float32)
    out, state = layer(fw.torch.tensor(hidden))
    assert state is None
    expected = expected_output(hidden.astype(np.float64), weights, 2.0)
    assert np.abs(out.detach().numpy() - expected).max() <= 2e-5 * np.abs(expected).max()


def test_decoding_step_by_step_is_the_whole_sequence(fw: SimpleNamespace) -> None:
    layer, _ = layer_with_known_weights(fw)
    hidden = fw.torch.tensor(
        np.random.default_rng(3).standard_normal((2, 9, HIDDEN)).astype(np.float32)
    )
    whole, _ = layer(hidden)
    _, state = layer(hidden[:, :5], output_final_state=True)
    for t in range(5, 9):
        out, state = layer(hidden[:, t : t + 1], state, output_final_state=True)
        np.testing.assert_allclose(
            out.detach().numpy()[:, 0], whole.detach().numpy()[:, t], rtol=1e-4, atol=1e-5
        )


def test_every_parameter_gets_a_gradient(fw: SimpleNamespace) -> None:
    layer, weights = layer_with_known_weights(fw)
    hidden = np.random.default_rng(4).standard_normal((2, 10, HIDDEN)).astype(np.float32)
    out, _ = layer(fw.torch.tensor(hidden))
    (out * out).sum().backward()
    grads = {name: p.grad for name, p in layer.named_parameters()}
    assert set(grads) == set(weights)
    assert all(float(abs(grad).max()) > 0 for grad in grads.values())


def test_heads_must_divide_the_width(fw: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="num_heads = 5 does not divide hidden_size = 12"):
        fw.lib.LinearAttention(HIDDEN, 5)
