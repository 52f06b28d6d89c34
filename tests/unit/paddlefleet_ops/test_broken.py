"""One deliberately broken library out of four, with Paddle itself, in both modes and at every place.

Before and after are compared object by object: ``sys.modules``, ``sys.path``, the finders and hooks, and all
state of Paddle's torch proxy. The three others are then used.
"""

from __future__ import annotations

import importlib.util
import math
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("paddle") is None,
    reason="Paddle is not installed here: pip install paddlepaddle==3.3.1",
)

GOOD = """
import torch
from . import part
def run(x):
    return torch.add(x, part.one(x))
"""
GOOD_PART = "import torch\ndef one(x):\n    return torch.ones_like(x)\n"

# One guard around nothing comes first: Paddle registers its overrides when it is opened the first time.
OBSERVED = """
import csv, importlib.util, json, sys, warnings
warnings.simplefilter("ignore")
import paddle
from paddle.compat import proxy
with paddle.use_compat_guard(scope={"nothing"}, silent=True):
    pass
OWN = ("AliasFinder", "ImportBlocker")
def state():
    finder = proxy.TORCH_PROXY_FINDER
    return {
        "path": list(sys.path),
        "finders": [id(f) for f in sys.meta_path if type(f).__name__ not in OWN],
        "hooks": list(map(id, sys.path_hooks)),
        "proxy is on": finder in sys.meta_path,
        "scope": sorted(finder._local_enabled_scope),
        "global": finder._globally_enabled,
        "cache": {name: id(module) for name, module in proxy.TORCH_MODULES_CACHE.items()},
        "overrides": {name: id(value) for name, value in proxy.GLOBAL_OVERRIDES.items()},
        "blocked": sorted(proxy.TORCH_PROXY_BLOCKED_MODULES),
        "proxies": [n for n, m in sys.modules.items() if type(m) is proxy.ProxyModule],
        "torch": [n for n in sys.modules if n.partition(".")[0] == "torch"],
    }
def modules():
    return {name: id(module) for name, module in sys.modules.items()
            if name.partition(".")[0] != "paddlefleet_ops"}
def aliases():
    return sorted(name for name in sys.modules if name.startswith("paddlefleet_ops.")
                  and not name.startswith("paddlefleet_ops._"))
"""

FAULTS = {
    "import error at the end of a chain": (
        {
            "broken/__init__.py": "from . import outer\n",
            "broken/outer.py": "import torch\nfrom .inner import x\n",
            "broken/inner/__init__.py": "from .leaf import x\n",
            "broken/inner/leaf.py": "import torch.nn.functional as F\nimport broken_dependency\n",
        },
        "missing Python module: No module named 'broken_dependency' (at broken/inner/leaf.py:2)",
    ),
    "undefined symbol": (
        {"broken/__init__.py": "import torch\nimport broken_cpp\n"},
        "undefined symbol: ",
    ),
    "missing shared library": (
        {"broken/__init__.py": "import torch\nimport broken_cpp\n"},
        "missing shared library: libgone.so: cannot open shared object file",
    ),
    "kernel without an image": (
        {"broken/__init__.py": "import torch\nraise OSError('no kernel image is available')\n"},
        "no kernel image: ",
    ),
    "compat left on for a scope": (
        {"broken/__init__.py": "import paddle\npaddle.enable_compat(scope={'x'})\n1 / 0\n"},
        "ZeroDivisionError",
    ),
    "compat left on for all": (
        {"broken/__init__.py": "import paddle, torch\npaddle.enable_compat()\nimport torch.linalg\n"},
        "compat proxy left on",
    ),
    "modules kept out of the proxy": (
        {
            "broken/__init__.py": "from paddle.compat import extend_torch_proxy_blocked_modules as e\n"
            "e(['first', 'second', 'third'])\n1 / 0\n"
        },
        "ZeroDivisionError",
    ),
    "leaves the process": (
        {"broken/__init__.py": "import torch\nraise SystemExit(3)\n"},
        "SystemExit: 3",
    ),
    "other modules replaced": (
        {
            "broken/__init__.py": "import sys, types, torch\nsys.modules['json'] = types.ModuleType('json')\n"
            "del sys.modules['csv']\nimport csv\n1 / 0\n"
        },
        "ZeroDivisionError",
    ),
    "a torch of its own": (
        {
            "broken/__init__.py": "import sys, types\nsys.modules['torch'] = types.ModuleType('torch')\n"
            "from . import part\n1 / 0\n",
            "broken/part.py": "",
        },
        "ZeroDivisionError",
    ),
    "a module that does not like to be looked at": (
        {
            "broken/__init__.py": "import sys\nclass Shy:\n    def __getattr__(self, name):\n"
            "        raise RuntimeError(name)\nsys.modules['broken.shy'] = Shy()\n"
            "sys.modules['broken_shy'] = Shy()\n1 / 0\n"
        },
        "ZeroDivisionError",
    ),
    "finders, hooks and path": (
        {
            "broken/__init__.py": "import sys\nsys.path.append('/nowhere')\n"
            "sys.meta_path.append(object())\nsys.path_hooks.insert(0, lambda entry: 1 / 0)\n"
            "sys.path.insert(0, '/nowhere/else')\nraise OSError('x')\n"
        },
        "OSError: x",
    ),
    "a thread goes on": (
        {
            "broken/__init__.py": "import threading, torch\nfrom . import part\n"
            "threading.Thread(target=part.work, name='of broken', daemon=True).start()\n1 / 0\n",
            "broken/part.py": "import time\ndef work():\n    time.sleep(60)\n",
        },
        "ZeroDivisionError",
    ),
    "what it loads first": (
        {"broken/__init__.py": "import torch\n"},
        "compat proxy left on",
    ),
}  # fmt: skip


@pytest.fixture(scope="session")
def extensions(tmp_path_factory):
    """Extension modules named ``broken_cpp``: one with an undefined symbol, one whose library is gone."""
    compiler = shutil.which("cc")
    include = Path(sysconfig.get_path("include"))
    if compiler is None or not (include / "Python.h").exists():
        pytest.skip("needs a C compiler and Python.h: apt-get install gcc python3-dev")
    folder = tmp_path_factory.mktemp("extensions")
    (folder / "gone.c").write_text("int gone(void) { return 1; }\n")
    (folder / "cpp.c").write_text(
        "#include <Python.h>\nint gone(void);\n"
        'static PyModuleDef def = {PyModuleDef_HEAD_INIT, "broken_cpp", 0, -1, 0};\n'
        "PyMODINIT_FUNC PyInit_broken_cpp(void) { if (gone()) return PyModule_Create(&def); return 0; }\n"
    )
    base = (compiler, "-shared", "-fPIC", f"-I{include}")
    made = {}
    for kind, tail in {"undefined symbol": (), "missing shared library": ("-L.", "-lgone")}.items():
        name = f"{kind.partition(' ')[0]}.so"
        subprocess.run((*base, "gone.c", "-o", "libgone.so"), cwd=folder, check=True)
        subprocess.run((*base, "cpp.c", "-o", name, *tail), cwd=folder, check=True)
        made[kind] = folder / name
    (folder / "libgone.so").unlink()
    return made


def fill(site, fault, place, request):
    """Four libraries, the broken one at ``place``; the names of the good ones."""
    files, _ = FAULTS[fault]
    good = ["first", "second", "third"]
    names = [*good[:place], "broken", *good[place:]]
    for name in names:
        if name != "broken":
            content = {f"{name}/__init__.py": GOOD, f"{name}/part.py": GOOD_PART}
            site.add(name, content, public_names=["run"])
            continue
        changes = {}
        if fault in ("undefined symbol", "missing shared library"):
            shutil.copy(
                request.getfixturevalue("extensions")[fault], site.package / "broken_cpp.so"
            )
            changes["modules"] = ["broken", "broken_cpp"]
        if fault == "what it loads first":
            site.write("runtime_of_broken.py", "import paddle\npaddle.enable_compat()\n")
            changes["preload"] = ["runtime_of_broken"]
        site.add("broken", files, **changes)
    return good


TRY = (
    OBSERVED
    + """
before, modules_before = state(), modules()
message, used = "", []
try:
    import paddlefleet_ops
except ImportError as error:
    message = f"{type(error).__name__}: {error}"
else:
    message = paddlefleet_ops.blocked_import_messages["paddlefleet_ops.broken"]
    used = [getattr(paddlefleet_ops, name).run(paddle.to_tensor([1.5])).item()
            for name in ("first", "second", "third")]
after, modules_after = state(), modules()
result = {
    "before": before, "after": after, "message": message, "used": used, "aliases": aliases(),
    "own finders": [type(f).__name__ for f in sys.meta_path if type(f).__name__ in OWN],
    "changed": [n for n, i in modules_before.items() if modules_after.get(n) != i],
    "new": sorted(set(modules_after) - set(modules_before)),
    "torch": importlib.util.find_spec("torch") is None,
}
"""
)


@pytest.mark.parametrize("mode", ["block", "raise"])
@pytest.mark.parametrize("fault", FAULTS)
def test_it_is_as_if_the_broken_library_had_not_been_tried(site, request, fault, mode):
    place = list(FAULTS).index(fault) % 4
    good = fill(site, fault, place, request)
    found = site.result(TRY, stand_in=False, PADDLEFLEET_OPS_ON_ERROR=mode)
    assert FAULTS[fault][1] in found["message"]
    check_nothing_is_left(found, good, mode)


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_its_place_among_the_others_does_not_matter(site, request, place):
    good = fill(site, "import error at the end of a chain", place, request)
    found = site.result(TRY, stand_in=False, PADDLEFLEET_OPS_ON_ERROR="block")
    check_nothing_is_left(found, good, "block")


def check_nothing_is_left(found, good, mode):
    assert found["after"] == found["before"]
    assert (found["before"]["proxy is on"], found["before"]["torch"]) == (False, [])
    assert found["changed"] == []
    assert found["torch"] is True
    names = {name for name in found["new"] if not of_python(name)}
    assert names - {"runtime_of_broken"} == {
        *good,
        *(f"{name}.part" for name in good),
    }
    if mode == "block":
        assert found["used"] == [2.5, 2.5, 2.5]
        assert found["own finders"] == ["AliasFinder", "ImportBlocker"]
        assert found["aliases"] == sorted(
            f"paddlefleet_ops.{name}" for name in names - {"runtime_of_broken"}
        )
    else:
        assert found["message"].startswith("LibraryLoadError: 1 of 4 libraries")
        assert found["own finders"] == []
        assert found["aliases"] == []


def of_python(name):
    return name.partition(".")[0] in sys.stdlib_module_names


def test_what_depends_on_it_fails_with_it_and_the_others_are_used(site):
    content = {"broken.py": "import torch\n1 / 0\n"}
    site.add("first", {"first.py": "import torch\nrun = torch.exp\n"})
    site.add("broken", content)
    site.add("user", {"user.py": "import broken\n"}, depends_on=["broken"])
    site.add("user-of-user", {"user_of_user.py": "import user\n"}, depends_on=["user"])
    site.add("last", {"last.py": "import torch\nrun = torch.exp\n"})
    found = site.result(
        OBSERVED
        + """
before = state()
import paddlefleet_ops as ops
result = [before == state(), {s.name: [s.state, *s.reasons] for s in ops.libraries()},
          ops.last.run(ops.first.run(paddle.to_tensor([0.0]))).item(),
          sorted(name for name in sys.modules if "broken" in name or "user" in name)]
""",
        stand_in=False,
        PADDLEFLEET_OPS_ON_ERROR="block",
    )
    same, states, value, left = found
    assert same is True
    assert value == pytest.approx(math.e)
    assert [n for n in left if n.startswith(("broken", "user", "paddlefleet_ops.broken"))] == []
    assert states["first"] == states["last"] == ["loaded"]
    assert states["user"][0] == states["user-of-user"][0] == "failed"
    assert "it needs the library broken, which failed to load" in states["user"][1]
    assert "it needs the library user, which failed to load" in states["user-of-user"][1]


def test_a_blocked_library_cannot_be_had_through_another_one(site):
    """Its files lie beside those of the others, and its gate says that they must not run here."""
    site.add(
        "gated", {"gated/__init__.py": "raise SystemError('must not be run')"}, python=">=3.99"
    )
    site.write(
        "paddlefleet_ops/curious.py",
        "import torch\ntry:\n    import gated\nexcept ImportError as error:\n    told = str(error)\n",
    )
    site.add("curious")
    assert (
        site.result("import paddlefleet_ops\nresult = paddlefleet_ops.curious.told", stand_in=False)
        == "No module named 'gated'"
    )


def test_a_failed_library_is_not_run_again_by_one_that_imports_it(site):
    site.add(
        "broken",
        {"broken.py": "import builtins\nbuiltins.runs = getattr(builtins, 'runs', 0) + 1\n1 / 0"},
    )
    site.add("user", {"user.py": "import broken\n"})
    found = site.result(
        "import builtins, paddlefleet_ops as ops\n"
        "result = [builtins.runs, [s.reasons for s in ops.libraries()]]",
        stand_in=False,
        PADDLEFLEET_OPS_ON_ERROR="block",
    )
    assert found[0] == 1
    assert "No module named 'broken'" in found[1][1][0]


def test_an_interrupt_takes_back_everything(site):
    site.add("first", {"first.py": "import torch\n"})
    site.add("broken", {"broken.py": "import torch\nraise KeyboardInterrupt\n"})
    found = site.result(
        OBSERVED
        + """
before = [state(), [type(f).__name__ for f in sys.meta_path]]
try:
    import paddlefleet_ops
except KeyboardInterrupt:
    interrupted = True
result = [interrupted, before == [state(), [type(f).__name__ for f in sys.meta_path]], aliases(),
          "broken" in sys.modules]
""",
        stand_in=False,
    )
    assert found == [True, True, [], False]
