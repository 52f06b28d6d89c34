"""Seeds of late imports that are kept on purpose: what must be written, done and tested for one."""

from __future__ import annotations

from tests.unit.integration.static.corpus import Seed

_TEST = """
== tests/test_front.py
import sys
import pkg
def test_init():
    assert "pkg.front" not in sys.modules
def test_call():
    assert pkg.launch() == 1
"""
_FRONT = """
== pkg/__init__.py
import torch
from .ops import launch
== pkg/front.py
import torch
def run():
    return 1
"""
_REASON = (
    "Fails at module level: pkg.front reflects torch.device, which is no class under the proxy."
)
_TRIGGER = "Triggered by the first call of launch() only."
_REMOVAL = "Remove once torch.device is a class under the proxy."


def _library(ops: str, tests: str = _TEST) -> str:
    return _FRONT + "== pkg/ops.py\n" + ops.strip("\n") + "\n" + tests


LEGAL = (
    Seed(
        "a legal exception for torch itself",
        """
== pkg/__init__.py
import paddle

def launch():
    # Late import: torch._inductor reflects on types and fails under the proxy at module level.
    # Triggered by the first launch; remove once the proxy gives classes.
    with paddle.use_compat_guard(scope={"pkg"}, silent=True):
        import torch._inductor
    return torch._inductor
== tests/test_launch.py
import sys, pkg
def test_init():
    assert "torch._inductor" not in sys.modules
def test_call():
    pkg.launch()
""",
    ),
    Seed(
        "a legal exception in Chinese above the function, after a form feed",
        _library("""
import paddle
PAGE = 1\x0c\x0c\x0c\x0c\x0c\x0c
PAGE = 2

# 局部的import放在函数里：加载时反射 torch.device，报错。
# 触发路径：首次调用 launch。删除条件：proxy 下 torch.device 成为类。
def launch():
    with paddle.use_compat_guard(scope={"pkg"}, silent=True):
        from . import front
    return front.run()
"""),
    ),
    Seed(
        "the legal exception: a guard at the call site, reason, trigger, removal, both tests",
        _library(f"""
import paddle

def launch():
    # Late import. {_REASON}
    # {_TRIGGER}
    # {_REMOVAL}
    with paddle.use_compat_guard(scope={{"pkg"}}, silent=True):
        from . import front
    return front.run()
"""),
    ),
    Seed(
        "a legal exception in Chinese",
        _library("""
import paddle

def launch():
    # 局部导入：模块顶层import失败，原因是 pkg.front 加载时反射 torch.device。
    # 触发路径：首次调用 launch。
    # 删除条件：proxy 下 torch.device 成为类。
    with paddle.use_compat_guard(scope={"pkg"}, silent=True):
        from . import front
    return front.run()
"""),
    ),
    Seed(
        "a legal exception in a docstring, loaded once, through a helper of the library",
        _library("""
import contextlib
import functools
import paddle

@contextlib.contextmanager
def bridge():
    with paddle.use_compat_guard(scope={"pkg"}):
        yield

@functools.cache
def _front():
    \"\"\"The front end, as a lazy import.

    Cause: it reflects torch.device while it is initialised, which raises TypeError under the proxy.
    Trigger: the first call of launch. To be removed when torch.device is a class.
    \"\"\"
    with bridge():
        from . import front
    return front

def launch():
    return _front().run()
"""),
    ),
    Seed(
        "a legal exception that needs no proxy, with the reason above the function",
        _library(f"""
# This import is put into the function, because it is late by need: {_REASON}
# {_TRIGGER} {_REMOVAL}
# It does not need the proxy when it is called.
def launch():
    from . import front
    return front.run()
"""),
    ),
    Seed(
        "a legal exception under a guard that a variable or an ExitStack holds, or a class enters",
        _library(f"""
import contextlib
import paddle

class Bridge:
    def __enter__(self):
        self.guard = paddle.use_compat_guard(scope={{"pkg"}})
        return self.guard.__enter__()
    def __exit__(self, *error):
        return self.guard.__exit__(*error)

def launch(kind):
    # {_REASON} {_TRIGGER}
    # {_REMOVAL}
    guard = paddle.use_compat_guard(scope={{"pkg"}}) if kind else contextlib.nullcontext()
    with guard:
        from . import front
    return front.run()

def stacked():
    # {_REASON} {_TRIGGER}
    # {_REMOVAL}
    with contextlib.ExitStack() as stack:
        stack.enter_context(paddle.use_compat_guard(scope={{"pkg"}}))
        from . import front
    return front.run()

def entered():
    # {_REASON} {_TRIGGER}
    # {_REMOVAL}
    with Bridge():
        from . import front
    return front.run()

@paddle.use_compat_guard(scope={{"pkg"}})
def decorated():
    # {_REASON} {_TRIGGER}
    # {_REMOVAL}
    from . import front
    return front.run()
""", _TEST + "    pkg.ops.stacked(), pkg.ops.entered(), pkg.ops.decorated()\n"),
    ),
)  # fmt: skip

UNDOCUMENTED = (
    Seed(
        "a reason, and nothing more",
        _library("""
import paddle

def launch():
    # Late import, because pkg.front reflects torch.device.
    with paddle.use_compat_guard(scope={"pkg"}):
        from . import front  «undocumented-exception»
    return front.run()
"""),
    ),
    Seed(
        "a guard, and nothing written",
        _library("""
import paddle

def launch():
    with paddle.use_compat_guard(scope={"pkg"}):
        from . import front  «undocumented-exception»
    return front.run()
"""),
    ),
    Seed(
        "no removal condition, in Chinese",
        _library("""
def launch():
    # 延迟导入：模块顶层导入会失败（反射 torch.device），首次调用 launch 时触发。
    from . import front  «undocumented-exception»
    return front.run()
"""),
    ),
    Seed(
        "no trigger; words of another comment do not count",
        _library(f"""
def launch(x):
    # Only when x is given: the kernel is triggered by the first call.
    x = x or 1

    # Late import. {_REASON}
    # {_REMOVAL}
    from . import front  «undocumented-exception»
    return front.run()
"""),
    ),
    Seed(
        "words in a string are no comment",
        _library(f"""
import paddle

def launch(x):
    x = "# import lazily: {_REASON} {_TRIGGER} {_REMOVAL}"
    y = '''
    # import lazily: {_REASON} {_TRIGGER} {_REMOVAL}
    '''
    with paddle.use_compat_guard(scope={{"pkg"}}):
        from . import front  «undocumented-exception»
    return front.run()
"""),
    ),
    Seed(
        "a docstring that speaks of something else is no documentation",
        _library("""
def launch():
    \"\"\"Triggered by the first call; raises an error, and cannot be removed until it has run.\"\"\"
    from . import front  «lazy-submodule-import»
    return front.run()

def other():
    # The buffer is dropped once it is full, because a trigger fails.

    from . import front  «lazy-submodule-import»
    return front.run()
"""),
        expected=(("submodule-not-imported", "pkg/__init__.py", 2, "error"),),
    ),
)

WITHOUT_CONTEXT = (
    Seed(
        "documented, and no guard",
        _library(f"""
def launch():
    # Late import. {_REASON}
    # {_TRIGGER}
    # {_REMOVAL}
    from . import front  «exception-without-context»
    return front.run()
"""),
    ),
    Seed(
        "the guard closes before the import, or is another context",
        _library(f"""
import contextlib
import paddle

def launch():
    with paddle.use_compat_guard(scope={{"pkg"}}):
        pass
    # Late import. {_REASON}
    # {_TRIGGER} {_REMOVAL}
    from . import front  «exception-without-context»
    return front.run()

def stacked():
    # Late import. {_REASON} {_TRIGGER} {_REMOVAL}
    with contextlib.ExitStack() as stack:
        stack.enter_context(open("x"))
        from . import front  «exception-without-context»
    return front.run()
""", _TEST + "    pkg.ops.stacked()\n"),
    ),
    Seed(
        "a guard around a function, not in it",
        _library(f"""
import paddle

with paddle.use_compat_guard(scope={{"pkg"}}):
    def launch():
        \"\"\"Late import. {_REASON} {_TRIGGER} {_REMOVAL}\"\"\"
        import pkg.front  «exception-without-context»
        return pkg.front.run()
"""),
    ),
    Seed(
        "by import_module",
        _library(f"""
import importlib
import threading

def launch():
    # Late import. {_REASON}
    # {_TRIGGER}
    # {_REMOVAL}
    with threading.Lock():
        return importlib.import_module("pkg.front").run()  «exception-without-context»
"""),
    ),
)  # fmt: skip


def _kept(mark: str = "") -> str:
    return f"""
import paddle

def launch():
    # Late import. {_REASON}
    # {_TRIGGER}
    # {_REMOVAL}
    with paddle.use_compat_guard(scope={{"pkg"}}):
        from . import front{mark}
    return front.run()
"""


_TRIGGERED = _kept("  «exception-triggered-by-init»")

TRIGGERED = (
    Seed("called at module level", _library(_TRIGGERED + "\nWARM = launch()\n")),
    Seed(
        "called by a decorator",
        _library(
            _TRIGGERED
            + """
def register(function):
    launch()
    return function

class Ops:
    @register
    def f(self): ...
"""
        ),
    ),
    Seed(
        "called in another module, through a re-export",
        _library(
            _TRIGGERED
            + """
def front():
    return launch()
"""
        )
        + """
== pkg/sub/__init__.py
from ..ops import front as ready
== pkg/sub/use.py
from pkg import sub
if True:
    sub.ready()
""",
        options={"roots": ("pkg.sub.use",)},
    ),
    Seed(
        "called by a constructor and in a match",
        _library(
            _TRIGGERED
            + """
class Plan:
    def __init__(self):
        launch()

match 1:
    case 1:
        PLAN = Plan()
"""
        ),
    ),
    Seed(
        "called by functions, by programs and for types only",
        _library(
            _kept()
            + """
def later():
    return launch()

callback = lambda: launch()
if __name__ == "__main__":
    launch()
"""
        ),
    ),
)

UNTESTED = (
    Seed("no test at all", _library(_kept("  «untested-exception»"), "")),
    Seed(
        "only the call path",
        _library(
            _kept("  «untested-exception»"),
            """
== tests/test_launch.py
import pkg
def test_call():
    assert pkg.launch() == 1
""",
        ),
    ),
    Seed(
        "only the path of package initialisation",
        _library(
            _kept("  «untested-exception»"),
            """
== tests/test_launches.py
import sys, pkg
def test_init():
    assert "pkg.front" not in sys.modules
    assert "relaunched" and "launches"
""",
        ),
    ),
    Seed(
        "a module whose name only begins like it",
        _library(
            _kept("  «untested-exception»"),
            """
== tests/test_launch.py
import sys, pkg
def test_init():
    assert "pkg.frontend" not in sys.modules
    assert pkg.launch()
""",
        ),
    ),
    Seed(
        "tests in the package, that call a function which calls it",
        _library(
            _kept()
            + """
class Plan:
    def replay(self):
        return launch()
""",
            """
== pkg/tests/test_plan.py
import sys, pkg
def test_init():
    assert "pkg.front" not in sys.modules
    assert pkg.ops.Plan().replay()
""",
        ),
    ),
)

EXCEPTIONS = (*LEGAL, *UNDOCUMENTED, *WITHOUT_CONTEXT, *TRIGGERED, *UNTESTED)
