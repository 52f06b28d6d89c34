"""chunk_linear_attention through the wheel: every form against the recurrence in float64."""

from __future__ import annotations

import numpy as np
import paddle
import paddlefleet_ops
import pytest

pytestmark = pytest.mark.skipif(
    not paddlefleet_ops.is_chunk_linear_attention_available(),
    reason=paddlefleet_ops.blocked_import_messages.get(
        "paddlefleet_ops.chunk_linear_attention", ""
    ),
)

HEADS, KEYS, VALUES = 2, 8, 5


def inputs(steps: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(steps)
    return {
        "q": rng.standard_normal((1, steps, HEADS, KEYS)),
        "k": rng.standard_normal((1, steps, HEADS, KEYS)),
        "v": rng.standard_normal((1, steps, HEADS, VALUES)),
        "g": -rng.exponential(0.3, (1, steps, HEADS)),
    }


def one_step_after_another(x: dict[str, np.ndarray], scale: float) -> np.ndarray:
    """``S = exp(g) S + k v^T`` and ``o = scale q S``, for each head on its own."""
    out = np.zeros_like(x["v"])
    for head in range(HEADS):
        state = np.zeros((KEYS, VALUES))
        for step in range(out.shape[1]):
            q, k, v = (x[name][0, step, head] for name in "qkv")
            state = np.exp(x["g"][0, step, head]) * state + np.outer(k, v)
            out[0, step, head] = scale * q @ state
    return out


@pytest.mark.parametrize(
    "form",
    ["chunk_linear_attention", "recurrent_linear_attention", "compiled_linear_attention"],
)
@pytest.mark.parametrize("steps", [1, 64, 75])
def test_forms_agree_with_the_recurrence(form: str, steps: int) -> None:
    from paddlefleet_ops import chunk_linear_attention

    x = inputs(steps)
    tensors = {name: paddle.to_tensor(value) for name, value in x.items()}
    out, _ = getattr(chunk_linear_attention, form)(**tensors, scale=0.25)
    np.testing.assert_allclose(out.numpy(), one_step_after_another(x, 0.25), rtol=1e-9, atol=1e-10)


def test_gradients_of_the_chunked_form_are_those_of_the_recurrent_one() -> None:
    from paddlefleet_ops import chunk_linear_attention

    gradients = []
    for form in ("chunk_linear_attention", "recurrent_linear_attention"):
        leaves = {
            name: paddle.to_tensor(value, stop_gradient=False) for name, value in inputs(33).items()
        }
        out, _ = getattr(chunk_linear_attention, form)(**leaves)
        (out * out).sum().backward()
        gradients.append({name: leaf.grad.numpy() for name, leaf in leaves.items()})
    for name, value in gradients[0].items():
        np.testing.assert_allclose(value, gradients[1][name], rtol=1e-8, atol=1e-9, err_msg=name)
