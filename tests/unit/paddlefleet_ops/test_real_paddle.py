"""The loader with Paddle itself on the CPU; NumPy says what the numbers are."""

from __future__ import annotations

import importlib.util

import pytest

np = pytest.importorskip("numpy", reason="NumPy comes with Paddle: pip install paddlepaddle==3.3.1")
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("paddle") is None,
    reason="Paddle is not installed here: pip install paddlepaddle==3.3.1",
)

LINEAR = {
    "linear/__init__.py": "from . import chunk\nfrom .chunk import cumulative\n",
    "linear/chunk.py": """
        import torch
        import torch.nn.functional as F
        def cumulative(x):
            return torch.cumsum(F.relu(torch.mul(x, x) - 1.0), dim=0)
        """,
}
PROXY_STATE = """
import sys, warnings
warnings.simplefilter("ignore")
import paddle
from paddle.compat import proxy
def state():
    finder = proxy.TORCH_PROXY_FINDER
    return {
        "finders": sys.meta_path.count(finder),
        "scope": sorted(finder._local_enabled_scope),
        "global": finder._globally_enabled,
        "torch": sorted(n for n in sys.modules if n.partition(".")[0] == "torch"),
        "cache": sorted(proxy.TORCH_MODULES_CACHE),
        "path": list(sys.path),
    }
"""


def test_a_library_written_for_torch_computes_on_paddle(site):
    site.add("linear", LINEAR, public_names=["cumulative", "linear.chunk:cumulative"])
    found = site.result(
        PROXY_STATE
        + """
before = state()
import paddlefleet_ops
after = state()
x = paddle.to_tensor([[1.5, -2.0], [0.25, 3.0], [2.0, 1.0]], dtype="float64")
y = paddlefleet_ops.linear.cumulative(x)
result = [before == after, y.numpy().tolist(), str(y.dtype)]
""",
        stand_in=False,
    )
    x = np.array([[1.5, -2.0], [0.25, 3.0], [2.0, 1.0]])
    expected = np.cumsum(np.maximum(x * x - 1.0, 0.0), axis=0)
    np.testing.assert_allclose(found[1], expected, rtol=0, atol=1e-12)
    assert found[0] is True
    assert found[2] == "paddle.float64"


@pytest.mark.parametrize("mode", ["block", "raise"])
def test_one_broken_library_of_four_leaves_the_proxy_as_it_was(site, mode):
    for name in ("first", "second", "broken", "fourth"):
        site.add(name, {f"{name}.py": "import torch\nrun = torch.add\n"})
    site.write("paddlefleet_ops/broken.py", "import torch\nimport torch.linalg\n1 / 0\n")
    before, after, message, loaded = site.result(
        PROXY_STATE
        + """
before, message = state(), ""
try:
    import paddlefleet_ops
    message = paddlefleet_ops.blocked_import_messages["paddlefleet_ops.broken"]
except ImportError as error:
    message = str(error)
result = [before, state(), message,
          [name for name in ("first", "second", "broken", "fourth") if name in sys.modules]]
""",
        stand_in=False,
        PADDLEFLEET_OPS_ON_ERROR=mode,
    )
    assert before == after
    assert (before["finders"], before["torch"]) == (0, [])
    assert "Python error: ZeroDivisionError: division by zero (at broken.py:3)" in message
    assert loaded == ["first", "second", "fourth"]


FAULTS = {
    "no_function": ("from torch import no_such_function\n", "missing API of Paddle"),
    "no_attribute": ("import torch\ntorch.no_such_function\n", "missing API of Paddle"),
    "no_module": ("import torch.no_such_module\n", "missing API of Paddle"),
    "no_method": ("import torch\ntorch.ones([1]).no_such_method\n", "missing API of Paddle"),
    "left_on": (
        "import paddle\npaddle.enable_compat()\n",
        "compat proxy left on: after its import",
    ),
    "left_on_and_failed": (
        "import paddle\npaddle.enable_compat(scope={'x'})\n1 / 0\n",
        "ZeroDivisionError",
    ),
    "outside": ("import unscoped\n", "add 'unscoped' to compat_scope"),
}


def test_causes_are_told_apart_and_no_fault_spoils_the_next(site):
    site.write("unscoped.py", "import torch\n")
    for name, (text, _) in FAULTS.items():
        site.add(name, {f"{name}.py": text})
    site.libraries[-1]["compat_scope"] = ["something_else"]
    site.add("linear", LINEAR, public_names=["cumulative"])
    before, after, messages, available, unscoped = site.result(
        PROXY_STATE
        + """
before = state()
import paddlefleet_ops
result = [before, state(), paddlefleet_ops.blocked_import_messages,
          paddlefleet_ops.is_linear_available(), "unscoped" in sys.modules]
""",
        stand_in=False,
        PADDLEFLEET_OPS_ON_ERROR="block",
    )
    assert before == after
    assert available is True
    assert unscoped is False
    for name, (_, words) in FAULTS.items():
        assert words in messages[f"paddlefleet_ops.{name}"]


def test_a_proxy_that_the_user_switched_on_stays_on(site):
    site.add("linear", LINEAR)
    found = site.result(
        PROXY_STATE
        + """
paddle.enable_compat()
before = state()
import paddlefleet_ops
after = state()
import torch
result = [before == after, torch.sin is paddle.sin, before["finders"], before["global"]]
""",
        stand_in=False,
    )
    assert found == [True, True, 1, True]


def test_a_real_torch_that_was_imported_before_stays_what_it_is(site):
    site.write("torch/__init__.py", "name = 'the other torch'\nfrom . import sub\n")
    site.write("torch/sub.py", "")
    site.add("linear", LINEAR)
    found = site.result(
        PROXY_STATE
        + """
import torch
import torch.sub
real, sub = torch, torch.sub
import paddlefleet_ops
import torch as later
result = [later is real, sys.modules["torch.sub"] is sub, later.name,
          paddlefleet_ops.linear.chunk.torch is real,
          paddlefleet_ops.linear.cumulative(paddle.to_tensor([2.0])).item()]
""",
        stand_in=False,
    )
    assert found == [True, True, "the other torch", False, 3.0]


def test_a_torch_that_is_installed_but_not_imported_is_not_taken(site):
    site.write("torch.py", "raise SystemError('must not be imported')\n")
    site.add("linear", LINEAR)
    found = site.result(
        PROXY_STATE
        + "import paddlefleet_ops\nresult = [paddlefleet_ops.is_linear_available(), 'torch' in sys.modules]",
        stand_in=False,
    )
    assert found == [True, False]


def test_a_forbidden_torch_is_absent_for_others_and_forbidden_again(site):
    site.write(
        "optional.py",
        "try:\n    import torch\n    found = torch.__name__\nexcept ImportError:\n    found = None\n",
    )
    site.add(
        "linear", {**LINEAR, "linear/__init__.py": "from . import chunk\n"}, preload=["optional"]
    )
    site.add("plain", {"plain.py": "import optional_too\n"}, compat_scope=["nothing"])
    site.write("optional_too.py", (site.folder / "optional.py").read_text())
    found = site.result(
        PROXY_STATE
        + """
sys.modules["torch"] = None
import paddlefleet_ops, optional, optional_too
result = [sys.modules["torch"], optional.found, optional_too.found,
          paddlefleet_ops.is_linear_available()]
""",
        stand_in=False,
    )
    assert found == [None, None, None, True]


def test_modules_reload_under_paddles_proxy(site):
    site.add("linear", LINEAR)
    found = site.result(
        PROXY_STATE
        + """
import importlib, paddlefleet_ops
before = state()
importlib.reload(paddlefleet_ops.linear.chunk)
importlib.reload(paddlefleet_ops.linear)
result = [before == state(), paddlefleet_ops.linear.cumulative(paddle.to_tensor([2.0])).item()]
""",
        stand_in=False,
    )
    assert found == [True, 3.0]


def test_a_warning_is_no_error_of_the_loader(site):
    site.add("linear", LINEAR)
    site.add("gated", capability=">=9.0")
    found = site.result(
        """
        import paddle, warnings
        warnings.simplefilter("error")
        import paddlefleet_ops
        result = [paddlefleet_ops.is_linear_available(),
                  paddlefleet_ops.blocked_import_messages["paddlefleet_ops.gated"]]
        """,
        stand_in=False,
    )
    assert found[0] is True
    assert "needs compute capability >=9.0; " in found[1]
