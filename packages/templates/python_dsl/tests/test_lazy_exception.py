"""The one lazy import: needed, not triggered by the package, working when called, leaving nothing.

On the day ``test_it_cannot_be_imported_under_the_proxy`` fails, the exception is no longer needed:
import ``launch`` in ``dsl/__init__.py``; remove the loader in ``ops/compiled.py``, and this file.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

LAUNCH = "chunk_linear_attention.dsl.launch"
EAGER = {
    "chunk_linear_attention",
    *(
        f"chunk_linear_attention.{name}"
        for name in (
            "dsl",
            "dsl.kernels",
            "dsl.language",
            "layers",
            "layers.linear_attention",
            "ops",
            "ops.chunk",
            "ops.compiled",
            "ops.recurrent",
            "utils",
            "utils.compat",
            "utils.inputs",
        )
    ),
}


def state_of_the_process() -> dict[str, Any]:
    """Everything that a compat context may change."""
    proxy = sys.modules.get("paddle.compat.proxy")
    state: dict[str, Any] = {
        "finders": [id(finder) for finder in sys.meta_path],
        "torch": {n: id(m) for n, m in sys.modules.items() if n.partition(".")[0] == "torch"},
    }
    if proxy is not None:
        state["overrides"] = dict(proxy.GLOBAL_OVERRIDES)
        state["cache"] = {n: id(m) for n, m in proxy.TORCH_MODULES_CACHE.items()}
        state["scope"] = set(proxy.TORCH_PROXY_FINDER._local_enabled_scope)
        state["global"] = proxy.TORCH_PROXY_FINDER._globally_enabled
        state["blocked"] = set(proxy.TORCH_PROXY_BLOCKED_MODULES)
    return state


def call(fw: SimpleNamespace) -> None:
    """The call path, with its numbers checked: two steps of one head with one channel."""
    q, v = fw.torch.ones(1, 2, 1, 1), fw.torch.tensor([[[[3.0]], [[5.0]]]])
    g = fw.torch.tensor([[[0.0], [float(np.log(0.5))]]])
    out, state = fw.lib.compiled_linear_attention(q, q, v, g, output_final_state=True)
    assert out.numpy().reshape(-1).tolist() == pytest.approx([3.0, 6.5], rel=1e-6)
    assert state.numpy().reshape(-1).tolist() == pytest.approx([6.5], rel=1e-6)


def test_package_init_imports_all_but_the_exception(fresh: SimpleNamespace) -> None:
    assert set(fresh.modules) == EAGER
    assert LAUNCH not in sys.modules
    fresh.lib.chunk_linear_attention(*(fresh.torch.ones(1, 2, 1, 1) for _ in range(3)))
    assert LAUNCH not in sys.modules


def test_it_cannot_be_imported_under_the_proxy(fresh: SimpleNamespace) -> None:
    with fresh.guard():
        if fresh.name == "torch":  # the control: without the proxy there is nothing to avoid
            assert importlib.import_module(LAUNCH).torch is fresh.torch
        else:
            with pytest.raises(TypeError, match=r"Invalid annotation|must evaluate to types"):
                importlib.import_module(LAUNCH)
            assert LAUNCH not in sys.modules


def test_an_eager_import_would_break_the_package(
    fresh: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "chunk_linear_attention"
    shutil.copytree(Path(fresh.lib.__file__).parent, copy)
    with (copy / "dsl" / "__init__.py").open("a", encoding="utf-8") as init:
        init.write("\nfrom chunk_linear_attention.dsl import launch\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in list(fresh.modules):
        monkeypatch.delitem(sys.modules, name)
    refused = pytest.raises(TypeError, match=r"Invalid annotation|must evaluate to types")
    with fresh.guard(), nullcontext() if fresh.name == "torch" else refused:
        module = importlib.import_module("chunk_linear_attention")
        assert module.dsl.launch.torch is fresh.torch
    for name in [n for n in sys.modules if n.partition(".")[0] == "chunk_linear_attention"]:
        del sys.modules[name]


@pytest.mark.parametrize("context", ["none", "scope", "other scope", "global"])
def test_the_call_works_in_any_context_and_leaves_nothing(
    fresh: SimpleNamespace, context: str
) -> None:
    guards: dict[str, Any] = {}
    if fresh.name == "paddle":
        paddle = importlib.import_module("paddle")
        guards["scope"] = paddle.use_compat_guard(scope={"chunk_linear_attention"}, silent=True)
        guards["other scope"] = paddle.use_compat_guard(scope={"some_library"}, silent=True)
        guards["global"] = paddle.use_compat_guard(silent=True)
    before = state_of_the_process()
    with guards.get(context, nullcontext()):
        inside = state_of_the_process()
        call(fresh)
        after = state_of_the_process()
        assert {n: after[n] for n in after if n != "torch"} == {
            n: inside[n] for n in inside if n != "torch"
        }
    assert state_of_the_process() == before
    assert LAUNCH in sys.modules
    call(fresh)
    assert state_of_the_process() == before


def test_the_cached_module_keeps_its_meaning(fresh: SimpleNamespace) -> None:
    call(fresh)
    launch = sys.modules[LAUNCH]
    assert launch.torch.Tensor is fresh.torch.Tensor
    assert launch.torch.device is type(fresh.torch.zeros(1).device)
    call(fresh)
    assert sys.modules[LAUNCH] is launch


def test_no_later_import_sees_the_replaced_device(fresh: SimpleNamespace) -> None:
    call(fresh)
    with fresh.guard():
        sys.modules.pop("chunk_linear_attention.ops.recurrent")
        again = importlib.import_module("chunk_linear_attention.ops.recurrent")
    assert isinstance(again.torch.device, type) == (fresh.name == "torch")


def test_a_failing_import_leaves_nothing_either(fresh: SimpleNamespace) -> None:
    before = state_of_the_process()
    bridge = fresh.lib.utils.compat.torch_with_device_class
    with pytest.raises(ModuleNotFoundError), bridge("chunk_linear_attention.dsl.absent", object):
        importlib.import_module("chunk_linear_attention.dsl.absent")
    assert state_of_the_process() == before


def test_the_front_end_refuses_what_it_does_not_know(fresh: SimpleNamespace) -> None:
    call(fresh)
    launch = sys.modules[LAUNCH]
    with pytest.raises(TypeError, match="cannot take a str"):
        launch.lower("q")
    assert launch.lower(fresh.torch.float64) == np.float64
    assert launch.lower(fresh.torch.zeros(1).device) == "cpu"
