"""Every form of the operator against the float64 oracles.

Tolerances are relative to the largest entry of the oracle, which gets the inputs as they were
rounded to the type: float64 ``1e-12`` and float32 ``1e-5`` (rounding of sums over a few hundred
terms), float16 ``2 ** -10`` and bfloat16 ``2 ** -7`` (sums are float32; the result is rounded once,
to 11 or 8 bits, with a factor of 2 to spare).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import oracle
import pytest

TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 2.0**-10, "bfloat16": 2.0**-7}
FORMS = ("chunk", "recurrent", "compiled")


def tensors(fw: SimpleNamespace, x: oracle.Arrays, dtype: str) -> dict[str, Any]:
    return {n: fw.torch.tensor(a).to(getattr(fw.torch, dtype)) for n, a in x.items()}


def array(fw: SimpleNamespace, tensor: Any) -> np.ndarray:
    return tensor.detach().to(fw.torch.float64).numpy()


def call(fw: SimpleNamespace, form: str, x: dict[str, Any], **options: Any) -> Any:
    return getattr(fw.lib, f"{form}_linear_attention")(**x, **options)


def assert_close(actual: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()


def test_the_two_oracles_agree() -> None:
    x = oracle.random_inputs((2, 9, 3, 4, 5))
    assert_close(oracle.recurrent(x, 0.7)[0], oracle.quadratic(x, 0.7), 1e-13)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gated", [True, False], ids=["gated", "plain"])
def test_forms_agree_with_the_oracle(
    fw: SimpleNamespace, form: str, dtype: str, gated: bool
) -> None:
    rounded = tensors(fw, oracle.random_inputs((2, 75, 3, 8, 6), gated=gated), dtype)
    out, state = call(fw, form, rounded, output_final_state=True)
    expected, expected_state = oracle.recurrent(
        {n: array(fw, t) for n, t in rounded.items()}, 8**-0.5
    )
    assert out.dtype == getattr(fw.torch, dtype)
    assert_close(array(fw, out), expected, TOLERANCE[dtype])
    assert state.dtype == (fw.torch.float64 if dtype == "float64" else fw.torch.float32)
    assert_close(array(fw, state), expected_state, min(TOLERANCE[dtype], TOLERANCE["float32"]))


@pytest.mark.parametrize("steps", [1, 2, 15, 16, 17, 48, 63])
@pytest.mark.parametrize("chunk_size", [1, 16, 64])
def test_any_length_with_any_chunk(fw: SimpleNamespace, steps: int, chunk_size: int) -> None:
    x = oracle.random_inputs((1, steps, 2, 4, 3), seed=steps)
    out, state = call(
        fw, "chunk", tensors(fw, x, "float64"), chunk_size=chunk_size, output_final_state=True
    )
    assert_close(array(fw, out), oracle.quadratic(x, 0.5), 1e-12)
    assert_close(array(fw, state), oracle.recurrent(x, 0.5)[1], 1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_defaults_are_no_decay_no_state_and_no_final_state(fw: SimpleNamespace, form: str) -> None:
    x = oracle.random_inputs((1, 20, 2, 4, 3), gated=False, with_state=False)
    out, state = call(fw, form, tensors(fw, x, "float64"))
    assert state is None
    assert_close(array(fw, out), oracle.quadratic(x, 0.5), 1e-12)
    scaled, _ = call(fw, form, tensors(fw, x, "float64"), scale=2.0)
    assert_close(array(fw, scaled), 4 * array(fw, out), 1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_a_sequence_in_two_parts_is_the_whole(fw: SimpleNamespace, form: str) -> None:
    x = tensors(fw, oracle.random_inputs((2, 50, 2, 4, 3), with_state=False), "float64")
    whole, _ = call(fw, form, x)
    state, parts = None, []
    for span in (slice(0, 21), slice(21, 50)):
        part = {name: value[:, span] for name, value in x.items()}
        out, state = call(fw, form, part, initial_state=state, output_final_state=True)
        parts.append(array(fw, out))
    assert_close(np.concatenate(parts, axis=1), array(fw, whole), 1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_later_steps_do_not_reach_earlier_ones(fw: SimpleNamespace, form: str) -> None:
    x = oracle.random_inputs((1, 40, 2, 4, 3))
    before = array(fw, call(fw, form, tensors(fw, x, "float64"))[0])
    for value in (x["q"], x["k"], x["v"], x["g"]):
        value[:, 25:] = 0.25
    after = array(fw, call(fw, form, tensors(fw, x, "float64"))[0])
    assert np.array_equal(before[:, :25], after[:, :25])
    assert not np.allclose(before[:, 25:], after[:, 25:])


@pytest.mark.parametrize("form", ["chunk", "recurrent"])
@pytest.mark.parametrize("gated", [True, False], ids=["gated", "plain"])
def test_gradients_are_those_of_finite_differences(
    fw: SimpleNamespace, form: str, gated: bool
) -> None:
    x = oracle.random_inputs((1, 7, 2, 2, 3), gated=gated)
    rng = np.random.default_rng(5)
    weight, weight_state = rng.standard_normal((1, 7, 2, 3)), rng.standard_normal((1, 2, 2, 3))

    def loss(inputs: oracle.Arrays) -> float:
        out, state = oracle.recurrent(inputs, 0.3)
        return float((weight * out).sum() + (weight_state * state).sum())

    leaves = {name: fw.torch.tensor(value).requires_grad_() for name, value in x.items()}
    options = {"chunk_size": 3} if form == "chunk" else {}
    out, state = call(fw, form, leaves, scale=0.3, output_final_state=True, **options)
    total = (fw.torch.tensor(weight) * out).sum() + (fw.torch.tensor(weight_state) * state).sum()
    total.backward()
    for name, expected in oracle.finite_differences(loss, x).items():
        assert_close(array(fw, leaves[name].grad), expected, 1e-7)


def test_strong_decay_stays_finite(fw: SimpleNamespace) -> None:
    """Decays of exp(-300) per step: exp of a positive difference would overflow, even float64."""
    x = oracle.random_inputs((1, 33, 2, 4, 3))
    x["g"] = np.full_like(x["g"], -300.0)
    leaves = {name: fw.torch.tensor(value).requires_grad_() for name, value in x.items()}
    out, _ = call(fw, "chunk", leaves, chunk_size=16)
    out.sum().backward()
    assert_close(array(fw, out), oracle.quadratic(x, 0.5), 1e-12)
    assert all(np.isfinite(array(fw, leaf.grad)).all() for leaf in leaves.values())


def test_the_compiled_form_refuses_what_it_would_lose(fw: SimpleNamespace) -> None:
    x = tensors(fw, oracle.random_inputs((1, 4, 1, 2, 2)), "float32")
    x["k"] = x["k"].requires_grad_()
    with pytest.raises(RuntimeError, match=r"torch.no_grad\(\)"):
        call(fw, "compiled", x)
    with fw.torch.no_grad():
        out, _ = call(fw, "compiled", x)
    assert_close(array(fw, out), array(fw, call(fw, "recurrent", x)[0]), 1e-5)


def test_inputs_are_left_alone(fw: SimpleNamespace) -> None:
    for form in FORMS:
        x = tensors(fw, oracle.random_inputs((1, 9, 2, 4, 3)), "float64")
        before = {name: array(fw, value).copy() for name, value in x.items()}
        call(fw, form, x, output_final_state=True)
        assert all(np.array_equal(before[name], array(fw, x[name])) for name in x)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("q", (1, 4, 2), r"q must be \[B, T, H, K\]"),
        ("q", (1, 0, 2, 3), "without empty dimensions"),
        ("k", (1, 5, 2, 3), r"k must have the shape \[1, 4, 2, 3\]; found \[1, 5, 2, 3\]"),
        ("v", (1, 4, 3, 5), "v must have the shape"),
        ("g", (1, 4), r"g must have the shape \[1, 4, 2\]"),
        ("initial_state", (1, 2, 5, 3), r"initial_state must have the shape \[1, 2, 3, 5\]"),
    ],
)
def test_wrong_shapes_are_named(
    fw: SimpleNamespace, form: str, name: str, shape: tuple[int, ...], message: str
) -> None:
    x = tensors(fw, oracle.random_inputs((1, 4, 2, 3, 5)), "float32")
    x[name] = fw.torch.zeros(shape)
    with pytest.raises(ValueError, match=message):
        call(fw, form, x)


def test_wrong_types_and_chunks_are_named(fw: SimpleNamespace) -> None:
    x = tensors(fw, oracle.random_inputs((1, 4, 2, 3, 5)), "float32")
    with pytest.raises(TypeError, match="one type"):
        call(fw, "chunk", dict(x, k=x["k"].to(fw.torch.float64)))
    with pytest.raises(TypeError, match=r"g must be a floating-point tensor; found .*int64"):
        call(fw, "chunk", dict(x, g=x["g"].to(fw.torch.int64)))
    with pytest.raises(TypeError, match="q must be a floating-point tensor; found list"):
        call(fw, "chunk", dict(x, q=[1.0]))
    with pytest.raises(ValueError, match="chunk_size must be at least 1; found 0"):
        call(fw, "chunk", x, chunk_size=0)
