"""Seeds of what importing a package does: what it reaches, on what condition, in what order."""

from __future__ import annotations

from tests.unit.integration.static.corpus import Seed

NOT_IMPORTED = (
    Seed(
        "an empty __init__",
        """
== pkg/__init__.py
== pkg/ops.py
import torch
""",
        expected=(("submodule-not-imported", "pkg/__init__.py", 1, "error"),),
    ),
    Seed(
        "one finding for what one import would bring, none for what needs no proxy",
        """
== pkg/__init__.py
from . import plain  «submodule-not-imported»
x = 1
== pkg/plain.py
== pkg/a.py
from . import b
== pkg/b.py
from pkg.c import C
== pkg/c.py
try:
    import torch
except ImportError:
    torch = None
class C: ...
== pkg/unused.py
import numpy
""",
    ),
    Seed(
        "the level where the chain breaks",
        """
== pkg/__init__.py
from pkg.outer import *
== pkg/outer/__init__.py
from .one import *
from . import middle
== pkg/outer/one.py
import torch
== pkg/outer/middle/__init__.py
\"\"\"Nothing here.\"\"\"

import os  «submodule-not-imported»
== pkg/outer/middle/deep.py
from torch import nn
""",
    ),
    Seed(
        "a namespace package of the library",
        """
== pkg/__init__.py
import torch
from .seen import near  «submodule-not-imported»
== pkg/seen/near.py
import torch
== pkg/space/deeper/far.py
import torch
""",
    ),
    Seed(
        "type-checking imports, tests, programs and plug-ins reach nothing and count for nothing",
        """
== pkg/__init__.py
from typing import TYPE_CHECKING
from . import ops  «submodule-not-imported»
if TYPE_CHECKING:
    from . import types_only
if __name__ == "__main__":
    from . import program
== pkg/ops.py
import torch
== pkg/types_only.py
import torch
== pkg/program.py
== pkg/__main__.py
import torch
== pkg/tests/helper.py
import torch
== pkg/ops_test.py
import torch
== pkg/plugin.py
import pytest
import torch
== pkg/setup_ext.py
from setuptools import setup
import torch
setup(name="x")
""",
    ),
    Seed(
        "a fall-back reaches what it names; roots of the declaration too",
        """
== pkg/__init__.py
try:
    from . import fast
except ImportError:
    from . import slow
else:
    from . import extra
finally:
    from . import last
== pkg/fast.py
import torch
== pkg/slow.py
import torch
== pkg/extra.py
import torch
== pkg/last.py
import torch
== pkg/named.py
import torch
""",
        options={"roots": ("pkg.named",)},
    ),
    Seed(
        "a star import of a package brings the submodules that its __all__ names",
        """
== pkg/__init__.py
from pkg.ops import *
== pkg/ops/__init__.py
__all__ = ["scan", "VALUE"]  «submodule-not-imported»
VALUE = 1
== pkg/ops/scan.py
import torch
== pkg/ops/gemm.py
import torch
""",
    ),
    Seed(
        "a package wins over a module of the same name",
        """
== pkg/__init__.py
from . import ops
== pkg/ops/__init__.py
from . import inner
== pkg/ops/inner.py
import torch
== pkg/ops.py
VALUE = 1
""",
    ),
)

CONDITIONAL = (
    Seed(
        "either of two submodules of one package",
        """
== pkg/__init__.py
import os
if os.environ.get("X"):
    from .impl import fast  «conditional-import warning»
else:
    from .impl import slow  «conditional-import warning»
== pkg/impl/__init__.py
import torch
== pkg/impl/fast.py
import torch
== pkg/impl/slow.py
import torch
""",
    ),
    Seed(
        "an environment variable",
        """
== pkg/__init__.py
import os
if os.environ.get("USE_TORCH"):
    import torch  «conditional-import warning»
""",
    ),
    Seed(
        "an elif, a nested if, a match",
        """
== pkg/__init__.py
import os
mode = os.environ.get("MODE", "")
if mode == "a":
    x = 1
elif mode == "b":
    if len(mode) > 1:
        from . import b  «conditional-import warning»
match mode:
    case "c":
        from pkg import c  «conditional-import warning»
    case _:
        pass
== pkg/b.py
import torch
== pkg/c.py
import torch
""",
    ),
    Seed(
        "either of two modules",
        """
== pkg/__init__.py
from .cap import NEW
if NEW:
    from .new import f  «conditional-import warning»
else:
    from .old import f  «conditional-import warning»
== pkg/cap.py
NEW = True
== pkg/new.py
import torch
def f(): ...
== pkg/old.py
import torch
def f(): ...
""",
    ),
    Seed(
        "a dynamic import under a condition",
        """
== pkg/__init__.py
import importlib, os
if "NN" in os.environ:
    nn = importlib.import_module("torch.nn")  «conditional-import warning»
""",
    ),
    Seed(
        "torch in both branches, versions, platforms, and what is reached anyway",
        """
== pkg/__init__.py
import os, sys, platform
from . import ops
if os.environ.get("X"):
    import torch.nn as nn
else:
    from torch import nn
if sys.version_info >= (3, 11):
    import torch.export
if platform.machine() == "x86_64":
    import torch.backends.mkl
if sys.platform != "linux":
    import torch.mps
if os.environ.get("Y"):
    from . import ops as fast
    from . import plain
if True:
    import torch.fft
for _ in range(1):
    import torch.linalg
with open(os.devnull) as _:
    import torch.special
while True:
    import torch.sparse
    break
class Namespace:
    import torch.nested
try:
    import torch.version
except ImportError:
    if os.environ.get("Z"):
        import torch.utils
== pkg/ops.py
import torch
== pkg/plain.py
""",
    ),
    Seed(
        "a version that hangs on more than the interpreter",
        """
== pkg/__init__.py
import os, sys
if sys.version_info >= (3, 11) and os.environ.get("X"):
    import torch.export  «conditional-import warning»
if not (sys.version_info < (3, 11)) and os.name == "posix":
    import torch.distributed
""",
    ),
)

UNREADABLE = (
    Seed(
        "Python 2, a null byte, an open bracket, a wrong cookie",
        """
== pkg/__init__.py
import torch
""",
        raw={
            "pkg/old.py": b"import os\nprint 'text'\n",
            "pkg/null.py": b"x = 1\0\n",
            "pkg/open.py": b"x = (1,\n",
            "pkg/cookie.py": b"# -*- coding: no-such-codec -*-\nx = 1\n",
        },
        expected=(
            ("unreadable-source", "pkg/cookie.py", 0, "error"),
            ("unreadable-source", "pkg/null.py", 0, "error"),
            ("unreadable-source", "pkg/old.py", 2, "error"),
            ("unreadable-source", "pkg/open.py", 1, "error"),
        ),
    ),
    Seed(
        "tabs and spaces",
        "",
        raw={
            "pkg/__init__.py": b"import torch\n",
            "pkg/mixed.py": b"def f():\n        x = 1\n\treturn x\n",
        },
        expected=(("unreadable-source", "pkg/mixed.py", 3, "error"),),
    ),
    Seed(
        "a merge conflict",
        "",
        raw={"pkg/__init__.py": b"<<<<<<< HEAD\nimport torch\n=======\n>>>>>>> other\n"},
        expected=(("unreadable-source", "pkg/__init__.py", 1, "error"),),
    ),
    Seed(
        "empty files, escapes that warn, a test that cannot be parsed",
        "",
        raw={
            "pkg/__init__.py": b"",
            "pkg/space.py": b" \n\t\n",
            "pkg/escape.py": b"import re\nx = re.compile('\\d')\n",
            "pkg/test_old.py": b"print 'text'\n",
            "tests/test_old.py": b"print 'text'\n",
        },
    ),
)

SCOPE = (
    Seed(
        "a dependency that the scope lacks",
        """
== pkg/__init__.py
import torch
from . import kernels
== pkg/kernels.py
import triton  «scope-incomplete»
import triton.language as tl
""",
        options={"torch_importers": {"triton": "known"}},
    ),
    Seed(
        "one finding for each package, also below; a fall-back copes",
        """
== pkg/__init__.py
try:
    from quark.mm import mm
except ImportError:
    mm = None
if mm:
    import tile.core.deep  «scope-incomplete»
import quark  «scope-incomplete»
""",
        options={"torch_importers": {"quark": "known", "tile": "known"}},
    ),
    Seed(
        "a module below a package that imports torch only there",
        """
== pkg/__init__.py
import cut
from cut import cute
from cut import torch as bridge  «scope-incomplete»
""",
        options={"torch_importers": {"cut.torch": "known"}},
    ),
    Seed(
        "a dependency by import_module",
        """
== pkg/__init__.py
import importlib
triton = importlib.import_module("triton.language")  «scope-incomplete»
""",
        options={"torch_importers": {"triton": "known"}, "scope": ("other",)},
    ),
    Seed(
        "in the scope, late, for types, unreached, of a similar name",
        """
== pkg/__init__.py
from typing import TYPE_CHECKING
import numpy, quark, triton_tools
if TYPE_CHECKING:
    import triton
def f():
    import triton  «lazy-submodule-import»
from . import fine
== pkg/fine.py
from quark import mm
== pkg/unreached.py
import triton
""",
        options={"torch_importers": {"triton": "known", "quark": "known"}, "scope": ("quark",)},
    ),
)

CYCLES = (
    Seed(
        "the fall-back of a caught cycle fails as well",
        """
== pkg/__init__.py
try:
    from .a import f
except ImportError:
    from .slow import f
LATER = 1
== pkg/a.py
from .b import g
def f(): ...
== pkg/b.py
from .a import f  «circular-import»
def g(): ...
== pkg/slow.py
from . import LATER  «circular-import»
def f(): ...
""",
    ),
    Seed(
        "a name that is not bound yet",
        """
== pkg/__init__.py
from .a import f
== pkg/a.py
from .b import g
def f(): ...
== pkg/b.py
from .a import f  «circular-import»
def g(): ...
""",
    ),
    Seed(
        "through the package itself",
        """
== pkg/__init__.py
from . import core
VERSION = "1"
== pkg/core.py
from pkg import VERSION  «circular-import»
""",
    ),
    Seed(
        "three modules, by relative, absolute and star imports",
        """
== pkg/__init__.py
import pkg.a
== pkg/a.py
from pkg.b import *
def f(): ...
== pkg/b.py
from . import c
== pkg/c.py
from pkg.a import f  «circular-import»
""",
    ),
    Seed(
        "a package between that one asks for nothing",
        """
== pkg/__init__.py
from .sub.leaf import f
VALUE = 1
== pkg/sub/__init__.py
from pkg import VALUE  «circular-import»
== pkg/sub/leaf.py
def f(): ...
""",
    ),
    Seed(
        "a name that another module's star import would bring",
        """
== pkg/__init__.py
from . import a
== pkg/a.py
from . import b
from .names import *
== pkg/b.py
from .a import NAME  «circular-import»
== pkg/names.py
NAME = 1
""",
    ),
    Seed(
        "an attribute of a module that is still being executed",
        """
== pkg/__init__.py
from . import a
== pkg/a.py
from . import b
class Base: ...
== pkg/b.py
from . import a
class Derived(a.Base): ...  «circular-import»
""",
    ),
    Seed(
        "the order of imports resolves it",
        """
== pkg/__init__.py
VERSION = "1"
from . import a  «circular-import note»
== pkg/a.py
from pkg import VERSION
def f(): ...
""",
    ),
    Seed(
        "modules that ask each other for nothing at init, and marked order",
        """
== pkg/__init__.py
# isort: off
from . import a
from . import b
# isort: on
== pkg/a.py
from . import b  «circular-import note»
def f():
    return b.g()
== pkg/b.py
import pkg.a as a
def g():
    return a.f()
""",
    ),
    Seed(
        "a caught ImportError of a cycle is a fall-back in silence",
        """
== pkg/__init__.py
try:
    from .a import f
except ImportError:
    f = None
== pkg/a.py
from .b import g
def f(): ...
== pkg/b.py
from .a import f  «circular-import»
def g(): ...
""",
    ),
    Seed(
        "imports for types, late ones, unreached ones and compiled submodules make no cycle",
        """
== pkg/__init__.py
from typing import TYPE_CHECKING
from . import _C
from .a import f
from pkg._C import native
== pkg/a.py
from typing import TYPE_CHECKING
from . import _C
if TYPE_CHECKING:
    from pkg.b import g
def f():
    from .b import g
    return g
== pkg/b.py
from .a import f
def g(): ...
== pkg/x.py
from . import y
== pkg/y.py
from . import x
""",
    ),
)

COLLISIONS = (
    Seed(
        "a top-level name of another library",
        """
== quark/__init__.py
import torch  «name-collision»
""",
        options={"taken": {"quark": "quark-kernels"}},
    ),
    Seed(
        "a top-level name of the standard library, of one file",
        """
== profile.py
VALUE = 1  «name-collision»
""",
    ),
    Seed(
        "an operator twice",
        """
== pkg/__init__.py
import torch
from . import again
@torch.library.custom_op("pkg::f", mutates_args=())
def f(x: torch.Tensor) -> torch.Tensor:
    return x
== pkg/again.py
from torch.library import custom_op
@custom_op("pkg::f", mutates_args=())  «name-collision»
def g(x):
    return x
""",
    ),
    Seed(
        "schemas of one operator",
        """
== pkg/__init__.py
import torch
torch.library.define("pkg::mm(Tensor a, Tensor b) -> Tensor")
torch.library.define("pkg::mm.out(Tensor a, Tensor b, *, Tensor(a!) out) -> Tensor(a!)")
torch.library.define("pkg::mm", "(Tensor a) -> Tensor")  «name-collision»
""",
    ),
    Seed(
        "by a Library object",
        """
== pkg/__init__.py
from torch.library import Library
_lib = Library("pkg", "DEF")
_lib.define("mm(Tensor a) -> Tensor")
_lib.define("silu(Tensor a) -> Tensor")
_lib.impl("mm", print, "CUDA")
from . import more
== pkg/more.py
import torch
lib = torch.library.Library("pkg", "FRAGMENT")
lib.define("mm(Tensor a) -> Tensor")  «name-collision»
other = torch.library.Library("other", "DEF")
other.define("mm(Tensor a) -> Tensor")
""",
    ),
    Seed(
        "operators of different names, of exclusive branches, and names that are not constant",
        """
== pkg/__init__.py
import torch
NAME = "pkg::f"
@torch.library.custom_op("pkg::g", mutates_args=())
def g(x): ...
@torch.library.custom_op("other::g", mutates_args=())
def h(x): ...
@torch.library.custom_op(NAME, mutates_args=())
def i(x): ...
@torch.library.custom_op(NAME, mutates_args=())
def j(x): ...
if hasattr(torch.library, "triton_op"):
    @torch.library.triton_op("pkg::k", mutates_args=())
    def k(x): ...
else:
    @torch.library.custom_op("pkg::k", mutates_args=())
    def k(x): ...
try:
    torch.library.define("pkg::m", "() -> ()")
except RuntimeError:
    torch.library.define("pkg::m", "(int a) -> ()")
""",
    ),
)

INIT = (*NOT_IMPORTED, *CONDITIONAL, *UNREADABLE, *SCOPE, *CYCLES, *COLLISIONS)
