"""One process: the parts that need no second rank, and the refusals."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import frameworks
import numpy as np
import pytest


class Local:
    """A framework with a group of one, and the library bound to it."""

    def __init__(self, name: str, store: Path) -> None:
        self.framework = frameworks.load(name)
        self.torch = self.framework.torch
        if name == "torch":
            self.framework.dist.init_process_group(
                "gloo", init_method=store.as_uri(), rank=0, world_size=1
            )
        # The library stays bound to the framework of its first import: import it again.
        for module in [module for module in sys.modules if module.split(".")[0] == "ep_exchange"]:
            del sys.modules[module]
        self.ep: Any = self.framework.library()
        self.collectives: Any = sys.modules["ep_exchange._collectives"]

    def floats(self, values: Any, dtype: str = "float32") -> Any:
        return self.framework.tensor(np.array(values, np.float32).view(np.uint32), "float32").to(
            getattr(self.torch, dtype)
        )

    def integers(self, values: Any, dtype: str = "int64") -> Any:
        return self.framework.tensor(np.array(values, dtype), dtype)


@pytest.fixture
def local(framework: str, tmp_path: Path) -> Iterator[Local]:
    made = Local(framework, tmp_path / "store")
    yield made
    if made.framework.dist.is_initialized():
        made.framework.stop()


def test_tournament_pairs_everybody_once(local: Local) -> None:
    for size in range(2, 10):
        turns = size if size % 2 else size - 1
        met = []
        for turn in range(turns):
            partners = [local.collectives.partner(rank, size, turn) for rank in range(size)]
            assert partners.count(None) == size % 2
            for rank, other in enumerate(partners):
                if other is not None:
                    assert partners[other] == rank
                    met.append((rank, other))
        assert sorted(met) == [(a, b) for a in range(size) for b in range(size) if a != b]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int64", "uint8"])
def test_bytes_go_there_and_back(local: Local, dtype: str) -> None:
    size = {"float32": 4, "float64": 8, "int64": 8, "uint8": 1}.get(dtype, 2)
    bits = np.random.default_rng(size).integers(0, 256, (5, 3 * size), np.uint8)
    rows = local.framework.tensor(bits.view(f"uint{8 * size}"), dtype)
    as_bytes = local.ep.to_bytes(rows)
    np.testing.assert_array_equal(local.framework.bits(as_bytes), bits)
    back = local.ep.from_bytes(as_bytes, rows.dtype)
    assert back.dtype == rows.dtype
    np.testing.assert_array_equal(local.framework.bits(back), bits.view(f"uint{8 * size}"))
    empty = local.ep.from_bytes(local.ep.to_bytes(rows[:0]), rows.dtype)
    assert list(empty.shape) == [0, 3]
    assert empty.dtype == rows.dtype


def test_payload_of_integers(local: Local) -> None:
    """Quantised tokens go as they are; their results come back in a floating dtype."""
    x = local.integers([[1, 2], [250, 255]], "uint8")
    buffer = local.ep.Buffer(2)
    got = buffer.dispatch(x, local.integers([[1], [0]]), local.floats([[1.0], [1.0]]))
    assert got.x.tolist() == x.tolist()
    assert got.x.dtype == x.dtype
    out = buffer.combine(local.floats([[0.5], [-3.0]]), got.handle)
    assert out.tolist() == [[0.5], [-3.0]]


@pytest.mark.parametrize(
    ("dtype", "values", "wanted"),
    [
        ("float32", [2.0**24, 1, 1], 2.0**24),  # each 1 is lost: a tie goes to the even number
        ("float32", [1, 1, 2.0**24], 2.0**24 + 2),
        ("bfloat16", [256, 1, 1], 258),  # 256 if the sums were bfloat16
        ("float16", [2048, 1, 1], 2050),  # 2048 if the sums were float16
    ],
)
def test_sum_is_in_rank_order_and_16_bit_dtypes_sum_in_float32(
    local: Local, dtype: str, values: list[float], wanted: float
) -> None:
    route = local.ep.plan_route(local.integers([[2, 0, 1]]), 1, 3)
    rows = local.floats([[value] for value in values], dtype)
    out = local.ep.add_in_rank_order(rows, route)
    assert out.dtype == rows.dtype
    # Through float32: Paddle 3.3.1 lists bfloat16 as raw integers.
    assert out.to(local.torch.float32).tolist() == [[wanted]]


def test_a_single_minus_zero_stays(local: Local) -> None:
    route = local.ep.plan_route(local.integers([[2], [-1]]), 1, 3)
    out = local.ep.add_in_rank_order(local.floats([[-0.0]]), route)
    np.testing.assert_array_equal(local.framework.bits(out), [[0x80000000], [0]])


def _arguments(local: Local) -> dict[str, Any]:
    return {
        "x": local.floats(np.ones((3, 4))),
        "topk_idx": local.integers([[0, 1], [1, -1], [0, 0]]),
        "topk_weights": local.floats(np.ones((3, 2))),
    }


_WRONG = {
    "x must be": lambda local: {"x": local.floats(np.ones(3))},
    "topk_idx must be [3, k]": lambda local: {"topk_idx": local.integers([[0, 1]])},
    "topk_weights must be [3, 2]": lambda local: {"topk_weights": local.floats(np.ones((3, 1)))},
    "topk_idx must be int32 or int64": lambda local: {"topk_idx": local.floats(np.ones((3, 2)))},
    "topk_weights must have a floating dtype": lambda local: {
        "topk_weights": local.integers(np.ones((3, 2)))
    },
    "expert numbers from 0 to 2": lambda local: {
        "topk_idx": local.integers([[0, 1], [2, 1], [0, 0]])
    },
    "expert numbers from -2 to 1": lambda local: {
        "topk_idx": local.integers([[0, 1], [-2, 1], [0, 0]])
    },
}


@pytest.mark.parametrize("message", _WRONG)
def test_dispatch_refuses(local: Local, message: str) -> None:
    arguments = {**_arguments(local), **_WRONG[message](local)}
    with pytest.raises(ValueError, match="dispatch: ") as caught:
        local.ep.Buffer(2).dispatch(**arguments)
    assert message in str(caught.value)


def test_combine_refuses(local: Local) -> None:
    buffer = local.ep.Buffer(2)
    handle = buffer.dispatch(**_arguments(local)).handle
    with pytest.raises(ValueError, match=r"y must be \[3, hidden\]"):
        buffer.combine(local.floats(np.ones((2, 4))), handle)
    with pytest.raises(ValueError, match="y must be float16, bfloat16"):
        buffer.combine(local.integers(np.ones((3, 4))), handle)


def test_gradients_are_refused_unless_off(local: Local) -> None:
    arguments = _arguments(local)
    x = arguments["x"]
    x.stop_gradient = False
    if hasattr(x, "requires_grad_"):
        x.requires_grad_(True)
    buffer = local.ep.Buffer(2)
    with pytest.raises(ValueError, match="there is no backward pass"):
        buffer.dispatch(**arguments)
    with local.torch.no_grad():
        assert list(buffer.dispatch(**arguments).x.shape) == [3, 4]


def test_all_to_all_transport_without_the_function(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = local.ep.Exchange(None, "all_to_all")
    monkeypatch.setattr(local.collectives, "all_to_all_function", lambda: None)
    with pytest.raises(RuntimeError, match="no all-to-all function"):
        exchange._check_choice("all_to_all")


def test_no_process_group(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.collectives, "_declared_world_size", lambda: 4)
    monkeypatch.setattr(local.collectives.dist, "is_initialized", lambda: False)
    with pytest.raises(RuntimeError, match="init_process_group"):
        local.ep.Buffer(4)
