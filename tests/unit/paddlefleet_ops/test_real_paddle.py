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


SLOW = {
    "alpha/__init__.py": """
        import builtins, time
        import torch
        builtins.runs = 1 + getattr(builtins, "runs", 0)
        time.sleep(0.05)
        from . import sub
        """,
    "alpha/sub.py": "import time, torch\ntime.sleep(0.05)\nrun = torch.exp\n",
    "alpha/late.py": "value = 7\n",
    "alpha/deep.py": "value = 8\n",
    "beta/__init__.py": "import time, torch\ntime.sleep(0.05)\nrun = torch.exp\n",
}
THREADS = """
import builtins, importlib, threading, time
def import_at_once(names):
    # The first name is imported first, the others as soon as that import has begun.
    found, errors, over = {}, [], threading.Event()
    def begun():
        return over.is_set() or any(type(f).__name__ == "Gate" for f in list(sys.meta_path))
    def run(name):
        while name != names[0] and not begun():
            time.sleep(0)
        try:
            found.setdefault(name, set()).add(id(importlib.import_module(name)))
        except BaseException as error:
            errors.append(f"{name}: {error!r}")
        finally:
            over.set()
    threads = [threading.Thread(target=run, args=(name,)) for name in names]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return errors, {name: len(ids) for name, ids in found.items()}
"""


@pytest.mark.parametrize("first", ["paddlefleet_ops", "paddlefleet_ops.alpha.deep"])
def test_threads_that_import_while_libraries_are_loaded_get_one_module_each(site, first):
    site.add("alpha", SLOW, public_names=["alpha.sub:run"])
    site.add("beta", public_names=["run"])
    names = [first, "paddlefleet_ops", "paddlefleet_ops.alpha", "paddlefleet_ops.alpha.sub",
             "paddlefleet_ops.alpha.late", "paddlefleet_ops.beta"]  # fmt: skip
    errors, counts, runs, same, usable = site.result(
        PROXY_STATE
        + THREADS
        + f"""
before = state()
errors, counts = import_at_once({names * 4})
import paddlefleet_ops as ops
result = [errors, counts, builtins.runs, state() == before,
          [ops.alpha.sub.run(paddle.to_tensor([0.0])).item(), ops.beta.run is ops.alpha.sub.run]]
""",
        stand_in=False,
    )
    assert errors == []
    assert counts == dict.fromkeys(names, 1)
    assert runs == 1
    assert same is True
    assert usable == [1.0, True]


def test_threads_that_import_a_package_that_fails_get_its_error(site):
    """Each that comes after the first failure tries again, as Python does for any package.

    Whoever imports a part in the moment before the package's first statement, or after its last one, has
    passed Python's look into sys.modules: such a thread gets the part's own error (no torch, division by
    zero), or Python's KeyError for the parent that is gone. It must leave nothing behind either.
    """
    site.add("alpha", SLOW)
    site.add("broken", {"broken.py": "import time, torch\ntime.sleep(0.05)\n1 / 0\n"})
    names = ["paddlefleet_ops", "paddlefleet_ops.alpha", "paddlefleet_ops.broken"]
    errors, same = site.result(
        PROXY_STATE
        + THREADS
        + f"""
before = state()
errors, counts = import_at_once({names * 4})
result = [errors, state() == before]
""",
        stand_in=False,
    )
    failed = [error.partition(":")[0] for error in errors]
    assert failed.count("paddlefleet_ops") == 4
    assert any("LibraryLoadError" in error for error in errors)
    own = ("LibraryLoadError", "NotFoundError", "division by zero", "KeyError('paddlefleet_ops')")
    assert [error for error in errors if not any(text in error for text in own)] == []
    assert same is True


@pytest.mark.parametrize("options", [("-X", "importtime"), ("-O",), ("-X", "dev"), ("-I",)])
def test_it_works_with_paddle_under_options_of_the_interpreter(site, options):
    site.add("linear", LINEAR)
    site.add("gated", capability=">=9.0")
    code = (
        f"import sys; sys.path.insert(0, {str(site.folder)!r}); import paddlefleet_ops as ops, paddle; "
        "print(ops.linear.cumulative(paddle.to_tensor([2.0])).item(), ops.is_gated_available())"
    )
    done = site.python(*options, "-c", code, stand_in=False)
    assert done.stdout.splitlines()[-1:] == ["3.0 False"], done.stderr
    if "importtime" in options:
        assert "| linear.chunk" in "\n".join(
            " ".join(line.split()) for line in done.stderr.splitlines()
        )


def test_warnings_as_errors_from_the_start_concern_what_comes_after_paddle(site):
    """``-W error`` from the command line: Paddle itself may not import so; the loader adds nothing."""
    site.add("linear", LINEAR)
    alone = site.python("-W", "error", "-c", "import paddle", stand_in=False)
    done = site.python("-W", "error", "-c", "import paddlefleet_ops", stand_in=False)
    assert done.returncode == alone.returncode
    if alone.returncode:
        assert done.stderr.splitlines()[-1] == alone.stderr.splitlines()[-1]


def test_a_module_of_that_name_that_was_imported_before_is_left_alone(site):
    site.write("linear.py", "origin = 'elsewhere'\n")
    site.add("linear", LINEAR)
    site.add("beta", {"beta.py": "import torch\nrun = torch.exp\n"})
    found = site.result(
        PROXY_STATE
        + """
import linear
before = state()
import paddlefleet_ops as ops
import linear as again
result = [again is linear and linear.origin, before == state(), ops.is_beta_available(),
          ops.blocked_import_messages["paddlefleet_ops.linear"]]
""",
        stand_in=False,
        PADDLEFLEET_OPS_ON_ERROR="block",
    )
    assert found[:3] == ["elsewhere", True, True]
    assert "module name taken: another module linear was imported before, from" in found[3]


def test_a_real_torch_that_a_failing_import_brought_along_is_not_half_taken_back(site, tmp_path):
    """An extension module cannot be initialised twice, so a torch that loaded one stays, whole."""
    site.write("torch/__init__.py", "from . import _C\nfrom . import nn\nname = 'the real torch'\n")
    site.write("torch/_C.cpython-of-a-test.so.py", "")
    site.write("torch/_C.py", f"__file__ = {str(site.folder / 'torch/_C.so')!r}\n")
    site.write("torch/nn.py", "")
    site.write("outside.py", "import torch\n")
    site.add("broken", {"broken.py": "import outside\n1 / 0\n"}, compat_scope=["nothing"])
    site.add("linear", LINEAR)
    found = site.result(
        PROXY_STATE
        + """
import paddlefleet_ops as ops
import sys
names = [name for name in sys.modules if name.partition(".")[0] == "torch"]
import torch
result = [sorted(names), torch.name, sys.modules["outside"].torch is torch,
          ops.linear.chunk.torch is not torch,
          ops.linear.cumulative(paddle.to_tensor([2.0])).item()]
""",
        stand_in=False,
        PADDLEFLEET_OPS_ON_ERROR="block",
    )
    assert found == [["torch", "torch._C", "torch.nn"], "the real torch", True, True, 3.0]


def test_it_works_with_paddle_as_an_editable_install(site, tmp_path):
    """A path file in site-packages, and the finder of an editable install that maps names to folders."""
    site.add("linear", LINEAR)
    site.write_manifest()
    other = tmp_path / "other"
    other.mkdir()
    (other / "__editable__.pth").write_text(
        "import __editable___finder; __editable___finder.install()\n"
    )
    (other / "__editable___finder.py").write_text(
        "import sys\nfrom importlib.util import spec_from_file_location\n"
        f"MAPPING = {{'paddlefleet_ops': {str(site.package)!r}}}\n"
        "class Finder:\n    @classmethod\n    def find_spec(cls, name, path=None, target=None):\n"
        "        if name in MAPPING:\n"
        "            return spec_from_file_location(name, MAPPING[name] + '/__init__.py')\n"
        "def install():\n    sys.meta_path.append(Finder)\n"
    )
    found = site.result(
        f"""
        import site, sys
        sys.path[:] = [entry for entry in sys.path if entry not in ("", {str(site.folder)!r})]
        site.addsitedir({str(other)!r})
        import paddle, paddlefleet_ops as ops, linear.chunk
        import paddlefleet_ops.linear.chunk as chunk
        result = [chunk is linear.chunk, ops.__file__ == {str(site.package / "__init__.py")!r},
                  ops.linear.cumulative(paddle.to_tensor([2.0])).item()]
        """,
        stand_in=False,
    )
    assert found == [True, True, 3.0]
