"""The scan compiler: what it generates, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

KERNELS = """
from chunk_linear_attention.dsl.language import *

def no_role(x, s: Carry): return x
def two_carries(a: Carry, b: Carry): return a
def dynamic_if(x: Step, s: Carry):
    if x:
        s += x
    return s
def loop(x: Step, s: Carry):
    for _ in x:
        s += x
    return s
def unknown(x: Step, s: Carry): return y
def method(x: Step, s: Carry): return x.sum()
def overwrite(x: Step, s: Carry):
    s = x
    return s
def bare(x: Step, s: Carry): return
def builtin(x: Step, s: Carry): return open(x)
def mean(x: Step, s: Carry, rate: Uniform, centred: Constant):
    "An exponential moving average."
    change = rate * (x - s)
    s += change
    if centred:
        return x - s
    else:
        return -(-s)
"""


@pytest.fixture
def kernels(fw: SimpleNamespace, tmp_path: Path) -> SimpleNamespace:
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS, encoding="utf-8")
    namespace: dict[str, object] = {}
    exec(compile(KERNELS, str(path), "exec"), namespace)
    return SimpleNamespace(**namespace)


def test_a_kernel_becomes_a_loop(fw: SimpleNamespace, kernels: SimpleNamespace) -> None:
    scan = fw.lib.dsl.scan(kernels.mean)
    assert scan.source(centred=False) == (
        "def mean(out, x, s, rate):\n"
        "    for t_ in range(out.shape[0]):\n"
        "        change = rate * (x[t_] - s)\n"
        "        s += change\n"
        "        out[t_] = --s"
    )
    x, state, out = np.arange(6.0).reshape(3, 2), np.zeros(2), np.empty((3, 2))
    scan.specialise(centred=True)(out, x, state, 0.5)
    expected = np.zeros(2)
    for t in range(3):
        expected = expected + 0.5 * (x[t] - expected)
        assert np.array_equal(out[t], x[t] - expected)
    assert np.array_equal(state, expected)
    assert scan.specialise(centred=True) is scan.specialise(centred=True)


def test_a_branch_not_taken_needs_no_argument(fw: SimpleNamespace) -> None:
    kernel = fw.lib.dsl.kernels.decayed_attention
    assert "def decayed_attention(out, q, k, v, state, scale)" in kernel.source(gated=False)
    assert "def decayed_attention(out, q, k, v, g, state, scale)" in kernel.source(gated=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_role", "parameter x needs a role"),
        ("two_carries", "exactly one parameter must be a Carry"),
        ("dynamic_if", "line 2: `if` needs a constant"),
        ("loop", "line 2: For is not supported"),
        ("unknown", "line 1: unknown name y"),
        ("method", "line 1: call one of dot, exp, lift, outer"),
        ("overwrite", "line 2: assign to one new name"),
        ("bare", "a step must return its output"),
        ("builtin", "call one of"),
    ],
)
def test_what_is_outside_the_language_is_refused(
    fw: SimpleNamespace, kernels: SimpleNamespace, name: str, message: str
) -> None:
    with pytest.raises(fw.lib.dsl.KernelError, match=message):
        fw.lib.dsl.scan(getattr(kernels, name)).specialise()


def test_the_constants_must_be_those_of_the_kernel(fw: SimpleNamespace) -> None:
    with pytest.raises(fw.lib.dsl.KernelError, match=r"takes the constants \['gated'\]"):
        fw.lib.dsl.kernels.decayed_attention.source()
