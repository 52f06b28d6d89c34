"""Seeds of state that outlives its place: guards, tables that the process shares, enable_compat."""

from __future__ import annotations

from tests.unit.integration.static.corpus import Seed

LEAKS = (
    Seed(
        "a guard entered by hand",
        """
== pkg/__init__.py
import paddle
guard = paddle.use_compat_guard(scope={"pkg"})  «leaking-state»
guard.__enter__()
import torch
def f():
    paddle.use_compat_guard().__enter__()  «leaking-state»
""",
    ),
    Seed(
        "a guard held over a yield and an await",
        """
== pkg/__init__.py
import paddle
def rows():
    with paddle.use_compat_guard(scope={"pkg"}):
        for row in range(3):
            yield row  «leaking-state»

async def fetch(x):
    with paddle.use_compat_guard(scope={"pkg"}):
        return await x  «leaking-state»
""",
    ),
    Seed(
        "torch in sys.modules",
        """
== pkg/__init__.py
import sys
import sys as _sys
from sys import modules
import paddle
sys.modules["torch"] = paddle  «leaking-state»
def f():
    sys.modules.pop("torch.nn", None)  «leaking-state»
    del _sys.modules["torch.cuda"]  «leaking-state»
def g():
    sys.modules.update({"torch.fft": paddle})  «leaking-state»
    sys.modules |= {"torch.linalg": paddle}  «leaking-state»
    modules["torch.special"] = paddle  «leaking-state»
""",
    ),
    Seed(
        "finders and the tables of the proxy",
        """
== pkg/__init__.py
import sys
from paddle.compat import proxy
from paddle.compat.proxy import GLOBAL_OVERRIDES, extend_torch_proxy_blocked_modules

class Finder: ...

sys.meta_path.insert(0, Finder())  «leaking-state»
sys.meta_path += [Finder()]  «leaking-state»
def f():
    sys.meta_path = [Finder(), *sys.meta_path]  «leaking-state»
    proxy.GLOBAL_OVERRIDES["torch.device"] = object  «leaking-state»
    GLOBAL_OVERRIDES.update(x=1)  «leaking-state»
    proxy.TORCH_MODULES_CACHE.clear()  «leaking-state»
    extend_torch_proxy_blocked_modules({"x"})  «leaking-state»
""",
    ),
    Seed(
        "restored: another table than the one that was changed",
        """
== pkg/__init__.py
import sys
def f(fake, finder):
    sys.modules["torch"] = fake  «leaking-state»
    sys.meta_path.append(finder)
    try:
        return 1
    finally:
        sys.meta_path.remove(finder)
""",
    ),
    Seed(
        "guards that end with their block",
        """
== pkg/__init__.py
import contextlib
import pytest_fixture as pytest
import paddle
from paddle import use_compat_guard

with paddle.use_compat_guard(scope={"pkg"}):
    import torch

guard = paddle.use_compat_guard(scope={"pkg"}, silent=True)
with guard:
    import torch.nn

@use_compat_guard(scope={"pkg"})
def decorated(): ...

@contextlib.contextmanager
def bridge():
    with paddle.use_compat_guard(scope={"pkg"}):
        yield

@pytest.fixture()
def fixture():
    with paddle.use_compat_guard():
        yield

def factory():
    return paddle.use_compat_guard(scope={"pkg"})

make = lambda: use_compat_guard(scope={"pkg"})

def either(needed):
    with use_compat_guard() if needed else contextlib.nullcontext():
        pass
    held = use_compat_guard() if needed else contextlib.nullcontext()
    with held, (other := use_compat_guard()):
        pass
    with contextlib.ExitStack() as stack:
        stack.enter_context(use_compat_guard())

async def inside():
    with use_compat_guard():
        def rows():
            yield 1
        found = list(rows())
    return found

class Held:
    def __init__(self):
        self.guard = use_compat_guard()
    def run(self):
        with self.guard:
            pass
""",
    ),
    Seed(
        "tables that are restored, and changes that are no business of torch",
        """
== pkg/__init__.py
import sys
import types
from unittest.mock import patch
sys.modules["pkg._alias"] = types.ModuleType("pkg._alias")
sys.modules[__name__].__class__ = type("M", (types.ModuleType,), {})
torch = sys.modules.get("torch")
if "torch" in sys.modules:
    pass

kept = sys.modules.pop("torch", None)
try:
    sys.modules["torch"] = None
finally:
    if kept is not None:
        sys.modules["torch"] = kept

def f(fake):
    with patch.dict(sys.modules, {"torch": fake}):
        pass
    before = sys.modules.get("torch")
    sys.modules["torch"] = fake
    try:
        return 1
    finally:
        sys.modules["torch"] = before

class Swapped:
    def __enter__(self):
        self.before = sys.modules.pop("torch")
        sys.meta_path.insert(0, self)
    def __exit__(self, *error):
        sys.modules["torch"] = self.before
        sys.meta_path.remove(self)
""",
    ),
    Seed(
        "an expression of two thousand terms beside a guard",
        "",
        raw={
            "pkg/__init__.py": b"import sys\nx = (" + b" + ".join([b"1"] * 2000) + b")\n"
            b"sys.modules['torch'] = x\n"
        },
        expected=(("leaking-state", "pkg/__init__.py", 3, "error"),),
    ),
)

ENABLE_COMPAT = (
    Seed(
        "paddle.enable_compat",
        """
== pkg/__init__.py
import paddle
paddle.enable_compat(scope={"pkg"})  «enable-compat»
import torch
""",
    ),
    Seed(
        "by other names, in a function, as a decorator's argument",
        """
== pkg/__init__.py
from paddle import enable_compat
from paddle import enable_compat as on
import paddle as pd
import atexit

def f():
    enable_compat()  «enable-compat»
    on()  «enable-compat»
    pd.enable_compat()  «enable-compat»
    pd.compat.enable_torch_proxy(silent=True)  «enable-compat»

atexit.register(pd.enable_compat)  «enable-compat»
""",
    ),
    Seed(
        "by import of what defines it",
        """
== pkg/__init__.py
from paddle.compat import enable_torch_proxy
from paddle.compat.proxy import enable_torch_proxy as proxy_on
try:
    enable_torch_proxy(scope={"pkg"})  «enable-compat»
except RuntimeError:
    proxy_on()  «enable-compat»
""",
    ),
    Seed(
        "mentioned in texts, asked for, in setup.py, and one's own of the same name",
        """
== setup.py
import paddle
paddle.enable_compat()
== pkg/__init__.py
\"\"\"Call paddle.enable_compat() first; enable_torch_proxy is its older name.\"\"\"
import paddle
# paddle.enable_compat(scope={"pkg"})
HINT = "paddle.enable_compat(scope={'pkg'})"
HAS = hasattr(paddle, "enable_compat")

class Settings:
    def enable_compat(self):
        return self

Settings().enable_compat()
settings = Settings()
settings.enable_compat()
with paddle.use_compat_guard(scope={"pkg"}):
    import torch
== pkg/setup_ops.py
import paddle
from setuptools import setup
paddle.enable_compat()
setup()
""",
    ),
)

STATE = (*LEAKS, *ENABLE_COMPAT)
