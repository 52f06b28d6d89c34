"""Seeds of late imports: statements, calls, PEP 562, lazy loaders; and what looks like one and is none."""

from __future__ import annotations

from tests.unit.integration.static.corpus import Seed

LAZY_TORCH = (
    Seed(
        "torch in a method",
        """
== pkg/__init__.py
from . import layer
== pkg/layer.py
import torch.nn as nn

class Layer(nn.Module):
    def forward(self, x):
        import torch.nn.functional as F  «lazy-torch-import»
        return F.silu(x)
""",
    ),
    Seed(
        "torch in a nested async function, a loop and a with",
        """
== pkg/__init__.py
async def outer(xs):
    async def inner(x):
        async with x as y:
            from torch import (  «lazy-torch-import»
                float32,
                nn,
            )
            return y.to(float32, nn)
    async for x in xs:
        await inner(x)
""",
    ),
    Seed(
        "torch in a function of a class body in a function, and in match, else and finally",
        """
== pkg/__init__.py
def make(kind):
    class Made:
        import torch as _torch  «lazy-torch-import»

        @staticmethod
        def run():
            match kind:
                case "a":
                    import torch.cuda  «lazy-torch-import»
                case _:
                    pass
            try:
                pass
            except ValueError:
                import torch.linalg  «lazy-torch-import»
            else:
                import torch.fft  «lazy-torch-import»
            finally:
                import torch.special  «lazy-torch-import»
    return Made
""",
    ),
    Seed(
        "a cached loader and a property",
        """
== pkg/__init__.py
import functools

@functools.cache
def _torch():
    import torch  «lazy-torch-import»
    return torch

class Plan:
    @property
    def device(self):
        import torch; return torch.device("cpu")  «lazy-torch-import»
""",
    ),
    Seed(
        "a caught ImportError takes the fall-back in silence, a raised one does not",
        """
== pkg/__init__.py
from contextlib import suppress

def has_torch():
    try:
        import torch  «lazy-torch-import note»
    except ImportError:
        return False
    return True

def version():
    with suppress(ImportError), suppress(ValueError):
        import torch.version  «lazy-torch-import note»
        return torch.version.cuda

def wanted():
    try:
        import torch  «lazy-torch-import»
    except ImportError as error:
        raise RuntimeError("torch is missing") from error
    return torch

def narrow():
    try:
        import torch  «lazy-torch-import»
    except (ValueError, KeyError):
        return None
    return torch
""",
    ),
    Seed(
        "a circular dependency is no reason",
        """
== pkg/__init__.py
def run(x):
    # Import here to avoid a circular import; it is needed because of the way that run is registered.
    # Triggered by the first call, can be removed once the registry is split.
    import torch  «lazy-torch-import»
    return torch.abs(x)
""",
    ),
    Seed(
        "Windows line ends, a byte order mark and a latin-1 cookie",
        "",
        raw={
            "pkg/__init__.py": b"\xef\xbb\xbffrom . import a, b\r\n",
            "pkg/a.py": b"x = 1\r\n\r\ndef f():\r\n    import torch\r\n",
            "pkg/b.py": b"# -*- coding: latin-1 -*-\nNAME = 'caf\xe9'\x0c\ndef f():\n    import torch\n",
        },
        expected=(
            ("lazy-torch-import", "pkg/a.py", 4, "error"),
            ("lazy-torch-import", "pkg/b.py", 4, "error"),
        ),
    ),
    Seed(
        "a function of ten thousand lines",
        "",
        raw={
            "pkg/__init__.py": b"def f(x):\n"
            + b"    x = x + 1\n" * 10_000
            + b"    import torch\n    return torch.abs(x)\n"
        },
        expected=(("lazy-torch-import", "pkg/__init__.py", 10_002, "error"),),
    ),
    Seed(
        "a chain of a thousand elifs",
        "",
        raw={
            "pkg/__init__.py": b"def f(x):\n    if x == 0:\n        pass\n"
            + b"".join(b"    elif x == %d:\n        pass\n" % n for n in range(1, 1000))
            + b"    else:\n        import torch\n"
        },
        expected=(("lazy-torch-import", "pkg/__init__.py", 2003, "error"),),
    ),
    Seed(
        "src layout, and a library of one file",
        """
== src/one/__init__.py
from .deep import run
== src/one/deep/__init__.py
def run():
    import torch  «lazy-torch-import»
== setup.py
def hidden():
    import torch
== tests/test_one.py
def test_it():
    import torch
""",
    ),
    Seed(
        "a library of one file",
        """
== single.py
import numpy

def run(x):
    import torch  «lazy-torch-import»
    return torch.from_numpy(numpy.asarray(x))
== test_single.py
def test_run():
    import torch
== setup.py
from setuptools import setup
setup(name="single", py_modules=["single"])
""",
    ),
    Seed(
        "type checking, programs and constants are told apart",
        """
== pkg/__init__.py
import typing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    def only_for_types():
        import torch.nn
else:
    torch = None

if not typing.TYPE_CHECKING:
    pass
else:
    from torch import Tensor

if TYPE_CHECKING and typing.TYPE_CHECKING:
    import torch.nn

if False:
    import torch.cuda

def f(x: "torch.Tensor"):
    if TYPE_CHECKING:
        from torch import Tensor
    return x

if __name__ == "__main__":
    import torch

    def main():
        import torch.utils
    main()
""",
    ),
    Seed(
        "the other branch of a type-checking test is real",
        """
== pkg/__init__.py
from typing import TYPE_CHECKING

def f():
    if TYPE_CHECKING:
        from torch import Tensor
    else:
        from torch import Tensor  «lazy-torch-import»

def g():
    if not TYPE_CHECKING:
        import torch  «lazy-torch-import»
""",
    ),
    Seed(
        "names like torch are not torch",
        """
== pkg/__init__.py
def f():
    import torchvision_ops
    import mytorch.torch
    from numpy import torch
    text = "import torch"
    from .torch import x
    return text
== pkg/torch.py
x = 1
""",
    ),
    Seed(
        "a function that module level calls, and nobody later, is no late import",
        """
== pkg/__init__.py
def _register():
    import torch
    from . import kernels
    torch.library.define("pkg::f", "() -> ()")

_register()
del _register

def _detect():
    try:
        import torch.version
    except ImportError:
        return None
    return torch.version.cuda

CUDA = _detect()
== pkg/kernels.py
import torch
""",
    ),
    Seed(
        "a function that module level calls and others can call later stays late",
        """
== pkg/__init__.py
from .setup_ops import register

def _twice():
    import torch  «lazy-torch-import»

_twice()

def again():
    _twice()

def _exported():
    import torch  «lazy-torch-import»

_exported()

if 1 > 2:
    def _other():
        import torch  «lazy-torch-import»
== pkg/setup_ops.py
def register():
    import torch  «lazy-torch-import»

register()
== pkg/user.py
from pkg import _exported
""",
    ),
)

LAZY_SUBMODULE = (
    Seed(
        "a package that star-imports from what is not read may bind anything",
        """
== pkg/__init__.py
def f():  «submodule-not-imported»
    from .sub import g  «lazy-submodule-import»
    return g
== pkg/sub/__init__.py
from compiled_kernels import *
import torch
""",
    ),
    Seed(
        "a submodule that nothing else imports",
        """
== pkg/__init__.py
def run(x):  «submodule-not-imported»
    from .ops import scan  «lazy-submodule-import»
    return scan(x)
== pkg/ops.py
import torch

def scan(x):
    return torch.cumsum(x, 0)
""",
    ),
    Seed(
        "a submodule that the package imports before is a warning",
        """
== pkg/__init__.py
from pkg import kernels
from pkg.api import run
== pkg/api.py
class Api:
    def run(self, x):
        import pkg.kernels  «lazy-submodule-import warning»
        return pkg.kernels.go(x)

def run(x):
    from . import kernels as k  «lazy-submodule-import warning»
    return k.go(x)
== pkg/kernels.py
from torch import nn
""",
    ),
    Seed(
        "through two modules, a relative import two levels up and a sibling package of the scope",
        """
== pkg/__init__.py
from pkg.a.b import f  «submodule-not-imported»
== pkg/a/__init__.py
== pkg/a/b.py
def f():
    from ..c import g  «lazy-submodule-import»
    from sibling import fast  «lazy-submodule-import»
    return g, fast
== pkg/c.py
from . import d
== pkg/d.py
import torch.nn.functional
""",
        packages=("pkg",),
        options={"scope": ("pkg", "sibling")},
    ),
    Seed(
        "a dependency of the scope with sources",
        """
== pkg/__init__.py
def f():
    import quark.mm  «lazy-submodule-import»
    import quark.names
    return quark
== quark/__init__.py
== quark/mm.py
import torch
== quark/names.py
NAMES = ()
""",
        packages=("pkg",),
        options={"scope": ("pkg", "quark"), "others": ("quark",)},
    ),
    Seed(
        "what does not need the proxy, the packages around, and what a test imports",
        """
== pkg/__init__.py
import torch
from . import sub
VERSION = "1"

def f():
    from . import plain
    from pkg import VERSION
    import numpy
    return plain, numpy, VERSION
== pkg/plain.py
from . import more
== pkg/more.py
x = 1
== pkg/sub/__init__.py
from .. import VERSION

def g():
    import pkg
    from pkg import sub
    return pkg, sub
== pkg/tests/test_all.py
def test_f():
    from pkg.sub import g
    import torch
== pkg/conftest.py
def pytest_configure():
    import torch
""",
    ),
    Seed(
        "a namespace package without __init__",
        """
== pkg/__init__.py
import os  «submodule-not-imported»
def f():
    from .space import fast  «lazy-submodule-import»
    return fast, os
== pkg/space/fast.py
import torch
""",
    ),
    Seed(
        "two libraries in one repository",
        """
== left/__init__.py
import torch
def f():
    import right.core  «lazy-submodule-import warning»
== right/__init__.py
from . import core
== right/core.py
import left
import torch
""",
    ),
)

DYNAMIC = (
    Seed(
        "a parameter hides the loop variable of its name",
        """
== pkg/__init__.py
from importlib import import_module
import torch
for name in ("torch.nn", "torch.cuda"):
    import_module(name)

def load(name):
    return import_module(name)
""",
    ),
    Seed(
        "import_module by an alias, in a function, a default and a lambda",
        """
== pkg/__init__.py
from importlib import import_module as im
import importlib as il
import torch

def f():
    return im("torch.nn")  «dynamic-import»

def g():
    module = il.import_module("torch.cuda")  «dynamic-import»
    return module

h = lambda: __import__("torch")  «dynamic-import»

def default(t=im("torch.fft")):
    return t
""",
    ),
    Seed(
        "relative names, with a package as text, as keyword and as another package",
        """
== pkg/__init__.py
import importlib  «submodule-not-imported»
def f():
    importlib.import_module(".a", __package__)  «dynamic-import»
    importlib.import_module(".sub.b", package=__name__)  «dynamic-import»
    importlib.import_module(name=".c", package="pkg.sub")  «dynamic-import»
    importlib.import_module("..plain", "pkg.sub")
== pkg/a.py
import torch
from .sub import b, c
== pkg/plain.py
== pkg/sub/__init__.py
== pkg/sub/b.py
import torch
== pkg/sub/c.py
import torch
""",
    ),
    Seed(
        "f-strings over a loop, over constants of the module, and a dictionary",
        """
== pkg/__init__.py
import importlib
_TABLE = {"relu": ".act", "mm": ".gemm"}
_FAST = ("act", "gemm")
import pkg.act, pkg.gemm

def load():
    for name in ("act", "gemm"):
        importlib.import_module(f"pkg.{name}")  «dynamic-import warning 2»

def load_all():
    return [importlib.import_module(f".{name}", __name__) for name in _FAST]  «dynamic-import warning 2»

def one(name):
    return importlib.import_module(_TABLE[name], __package__)  «dynamic-import warning 2»
== pkg/act.py
import torch
== pkg/gemm.py
import torch
""",
    ),
    Seed(
        "__import__ with a level and a fromlist, and its other names",
        """
== pkg/__init__.py
import builtins
import importlib
from . import ops

class Loader:
    def run(self):
        __import__("ops", globals(), locals(), ["f"], 1)  «dynamic-import warning»
        __import__("pkg", fromlist=["ops"])  «dynamic-import warning»
        builtins.__import__("torch")  «dynamic-import»
        return importlib.__import__("torch.nn")  «dynamic-import»
== pkg/ops.py
import torch
""",
    ),
    Seed(
        "a helper that module level calls with constants",
        """
== pkg/__init__.py
from importlib import import_module

def _optional(name):
    try:
        return import_module(name)
    except ImportError:
        return None

def _needed(name):
    return import_module(name)

torch = _optional("torch")
nn = _needed("torch.nn")
""",
    ),
    Seed(
        "a caught ImportError, a fall-back at module level, unknown names",
        """
== pkg/__init__.py
import importlib
try:
    torch = importlib.import_module("torch")
except ImportError:
    torch = None

def f():
    try:
        return importlib.import_module("torch.nn")  «dynamic-import note»
    except ImportError:
        return None

def g():
    try:
        return importlib.import_module("torch.nn")  «dynamic-import»
    except ValueError:
        return None

def h(name):
    return importlib.import_module(name)

def i():
    return importlib.import_module("tor" + "ch")

def j():
    return importlib.import_module("json"), __import__("numpy")
""",
    ),
    Seed(
        "import_module of one's own, and of something else, is another function",
        """
== pkg/__init__.py
from .tool import import_module
import registry

def f():
    registry.import_module("torch")
    import_module("torch")
    return "importlib.import_module('torch')"
== pkg/tool.py
def import_module(name):
    return name
""",
    ),
    Seed(
        "modules that a package imports by a loop at init are reached",
        """
== pkg/__init__.py
import importlib
_MODULES = ["a", "b"]
for _name in _MODULES:
    globals()[_name] = importlib.import_module(f".{_name}", __name__)
from . import more, every
== pkg/a.py
import torch
== pkg/b.py
import torch
== pkg/more/__init__.py
import importlib
import pkgutil
for _found in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_found.name}")
== pkg/more/c.py
import torch
== pkg/every/__init__.py
import importlib, pathlib
for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
    if path.stem != "__init__":
        importlib.import_module("." + path.stem, __package__)
== pkg/every/d.py
import torch
""",
    ),
)

GETATTR = (
    Seed(
        "PEP 562 with a table",
        """
== pkg/__init__.py
import importlib  «submodule-not-imported 2»
_NAMES = {"scan": ".ops", "gemm": ".mm"}

def __getattr__(name):
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name], __name__), name)  «module-getattr-import 2»
    raise AttributeError(name)
== pkg/ops.py
import torch
== pkg/mm.py
import torch
""",
    ),
    Seed(
        "PEP 562 with statements",
        """
== pkg/__init__.py
from . import ops
def __getattr__(name):
    if name == "nn":
        import torch.nn as nn  «module-getattr-import»
        return nn
    if name == "scan":
        from .ops import scan  «module-getattr-import warning»
        return scan
    raise AttributeError(name)
== pkg/ops.py
import torch
scan = torch.cumsum
""",
    ),
    Seed(
        "PEP 562 with a computed name",
        """
== pkg/__init__.py
import importlib  «submodule-not-imported»
__all__ = ["ops"]

def __getattr__(name):
    if name in __all__:
        return importlib.import_module("." + name, __name__)  «module-getattr-import»
    raise AttributeError(name)
== pkg/ops.py
import torch
""",
    ),
    Seed(
        "PEP 562 through a helper",
        """
== pkg/__init__.py
from importlib import import_module
from . import a

def _load(name):
    return import_module("torch." + name)

def _torch():
    return import_module("torch")  «module-getattr-import»

def __getattr__(name):
    return getattr(_torch(), name, None) or _load(name)
== pkg/a.py
import torch
""",
    ),
    Seed(
        "__getattr__ of a class and of a function are calls; a computed name with nothing left is legal",
        """
== pkg/__init__.py
import importlib
from . import ops

class Lazy:
    def __getattr__(self, name):
        import torch  «lazy-torch-import»
        return getattr(torch, name)

def __getattr__(name):
    return importlib.import_module(f".{name}", __name__)
== pkg/ops.py
import torch
""",
    ),
)

LOADERS = (
    Seed(
        "lazy_loader.attach",
        """
== pkg/__init__.py
import lazy_loader as lazy  «submodule-not-imported»

__getattr__, __dir__, __all__ = lazy.attach(__name__, submodules=["ops"])  «lazy-loader»
== pkg/ops.py
import torch
""",
    ),
    Seed(
        "_LazyModule in the way of transformers",
        """
== pkg/__init__.py
import sys
from typing import TYPE_CHECKING
from .lazy import _LazyModule  «submodule-not-imported»

_import_structure = {"ops": ["scan"]}
if TYPE_CHECKING:
    from .ops import scan
else:
    sys.modules[__name__] = _LazyModule(  «lazy-loader»
        __name__, globals()["__file__"], _import_structure, module_spec=__spec__
    )
== pkg/lazy.py
import importlib
import types

class _LazyModule(types.ModuleType):
    def __getattr__(self, name):
        return importlib.import_module("." + name, self.__name__)
== pkg/ops.py
import torch
""",
    ),
    Seed(
        "importlib.util.LazyLoader, by both ways to write it",
        """
== pkg/__init__.py
import importlib.util
from importlib.util import LazyLoader as Later

def lazy(name):
    spec = importlib.util.find_spec(name)
    loader = importlib.util.LazyLoader(spec.loader)  «lazy-loader»
    return loader, Later(spec.loader)  «lazy-loader»
""",
    ),
    Seed(
        "other helpers",
        """
== pkg/__init__.py
import apipkg
from lazy_import import lazy_module
from .util import LazyImport, _lazy_import

apipkg.initpkg(__name__, {"scan": ".ops:scan"})  «lazy-loader»
torch = lazy_module("torch")  «lazy-loader»
nn = LazyImport("torch.nn")  «lazy-loader»
cuda = _lazy_import("torch.cuda")  «lazy-loader»
== pkg/util.py
class LazyImport:
    def __init__(self, name):
        self.name = name

def _lazy_import(name):
    return LazyImport(name)  «lazy-loader»
""",
    ),
    Seed(
        "apipkg alone",
        """
== pkg/__init__.py
import apipkg
apipkg.initpkg(__name__, {"path": "os:path"})  «lazy-loader»
""",
    ),
    Seed(
        "lazy words that are no loaders",
        """
== pkg/__init__.py
import torch
from torch.nn import LazyLinear
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from lazy_loader import attach
    attach("x")

class LazyTensor:
    lazy = True

layer = LazyLinear(4)
value = LazyTensor()
lazily_evaluated = [LazyTensor() for _ in range(2)]
text = "lazy_loader.attach(...)"
""",
    ),
)

NEEDS_NOTHING_NEW = (
    Seed(
        "a late module whose torch is imported already needs nothing new",
        """
== pkg/__init__.py
from . import core
def f():
    from . import extra
== pkg/core.py
import torch
== pkg/extra.py
from .core import torch as t
from . import core
""",
    ),
    Seed(
        "a late import of what the module itself imports at its top only hides",
        """
== pkg/__init__.py
def load():
    from . import user  «lazy-submodule-import»
== pkg/user.py
from . import host
def f():
    from .host import run  «lazy-submodule-import warning»
== pkg/host.py
import torch
def run(): ...
""",
        expected=(("submodule-not-imported", "pkg/__init__.py", 1, "error"),),
    ),
    Seed(
        "torch in one branch and Paddle in the other is a switch of back ends",
        """
== pkg/__init__.py
import os
NAME = os.environ.get("BACKEND", "paddle")
if NAME == "torch":
    import torch
elif NAME == "paddle":
    import paddle
def f():
    if NAME == "torch":
        from torch import nn
    else:
        from paddle import nn
    return nn
""",
    ),
)

LATE = (*NEEDS_NOTHING_NEW, *LAZY_TORCH, *LAZY_SUBMODULE, *DYNAMIC, *GETATTR, *LOADERS)
