"""A library has two names, and the tools that look at modules work by either, with Paddle itself.

Paddle imports the modules of a scope with a loader of its own, which knows neither code nor data; a
stand-in would hide that.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("paddle") is None,
    reason="Paddle is not installed here: pip install paddlepaddle==3.3.1",
)

ALPHA = {
    "alpha/__init__.py": '''
        """What alpha is.

        >>> 1 + 1
        2
        """
        import torch
        from . import program, sub
        from .sub import Box, double
        ''',
    "alpha/program.py": """
        if __name__ == "__main__":
            from alpha.sub import double
            from . import sub
            print(__spec__.name, __package__, double(21), sub.double is double)
        """,
    "alpha/sub.py": '''
        import torch
        class Box:
            """Holds a value."""
            def __init__(self, value):
                self.value = value
            def __eq__(self, other):
                return type(other) is Box and self.value == other.value
            __hash__ = None
        def double(x):
            """Twice x.

            >>> double(2)
            4
            """
            return x + x
        ''',
    "alpha/late.py": "value = 7\n",
    "alpha/deep/__init__.py": "",
    "alpha/deep/leaf.py": "from ..sub import double\nvalue = double(4)\n",
    "alpha/tool.py": "from . import sub\nfrom alpha.sub import double\n"
    "print(__name__, __package__, sub.double is double)\n",
    "alpha/__main__.py": "import sys\nfrom .sub import double\nprint(double(len(sys.argv)))\n",
    "alpha/table.txt": "content\n",
}


@pytest.fixture
def filled(site):
    site.add("alpha", ALPHA, public_names=["double", "alpha.sub:Box"])
    site.add(
        "gated", {"gated/__init__.py": "raise SystemError('must not be run')"}, python=">=3.99"
    )
    site.leave_out("absent", "not pinned yet")
    return site


READS = """
import importlib.resources, inspect, pkgutil, sys
import paddlefleet_ops as ops
import alpha
result = [
    [m.__name__ for m in (ops.alpha, ops.alpha.sub)],
    [m.__spec__.name for m in (ops.alpha, ops.alpha.sub)],
    [m.__package__ for m in (ops.alpha, ops.alpha.sub)],
    "def double" in inspect.getsource(ops.alpha.double),
    inspect.getmodule(ops.alpha.double) is ops.alpha.sub,
    [pkgutil.get_data(name, "table.txt").decode() for name in ("alpha", "paddlefleet_ops.alpha")],
    [importlib.resources.files(name).joinpath("table.txt").read_text()
     for name in ("alpha", "paddlefleet_ops.alpha")],
    "def double" in alpha.sub.__loader__.get_source("alpha.sub"),
    alpha.__spec__.loader.is_package("alpha"),
    [type(m.__spec__.loader).__module__.partition(".")[0] != "paddle"
     and m.__loader__ is m.__spec__.loader for m in (alpha, alpha.sub)],
]
"""
READ = [
    ["alpha", "alpha.sub"],
    ["alpha", "alpha.sub"],
    ["alpha", "alpha"],
    True,
    True,
    ["content\n"] * 2,
    ["content\n"] * 2,
    True,
    True,
    [True, True],
]


def test_sources_and_data_are_read_by_either_name(filled):
    assert filled.result(READS, stand_in=False) == READ


def test_sources_and_data_are_read_from_a_zip_archive(filled, tmp_path):
    filled.write_manifest()
    archive = tmp_path / "site.zip"
    with zipfile.ZipFile(archive, "w") as target:
        for path in filled.folder.rglob("*"):
            target.write(path, path.relative_to(filled.folder))
    shutil.rmtree(filled.package)
    filled.writes_manifest = False
    code = READS + "result.append('.zip' in ops.alpha.__file__)\n"
    assert filled.result(code, stand_in=False, path=(archive,)) == [*READ, True]


@pytest.mark.parametrize(
    ("module", "output"),
    [
        ("paddlefleet_ops.alpha", "2"),
        ("paddlefleet_ops.alpha.tool", "__main__ paddlefleet_ops.alpha True"),
        ("paddlefleet_ops.alpha.program", "alpha.program alpha 42 True"),
    ],
)
def test_a_module_runs_as_a_program(filled, module, output):
    done = filled.python("-W", "ignore", "-m", module, stand_in=False)
    assert (done.returncode, done.stdout.strip()) == (0, output), done.stderr


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("paddlefleet_ops.gated", "needs Python >=3.99"),
        ("paddlefleet_ops.gated.tool", "needs Python >=3.99"),
        ("paddlefleet_ops.absent", "not pinned yet"),
        ("paddlefleet_ops.alpha.nowhere", "No module named paddlefleet_ops.alpha.nowhere"),
        ("paddlefleet_ops.alpha.deep", "cannot be directly executed"),
        # The proxy is on while the package is imported, and not for a program of its own.
        ("paddlefleet_ops.alpha.sub", "ModuleNotFoundError: No module named 'torch'"),
    ],
)
def test_what_cannot_run_as_a_program_says_why(filled, module, words):
    done = filled.python("-W", "ignore", "-m", module, stand_in=False)
    assert done.returncode == 1
    assert words in done.stderr.splitlines()[-1] or words in done.stderr
    assert "AttributeError" not in done.stderr


@pytest.mark.parametrize("written_by", ["alpha.sub", "paddlefleet_ops.alpha.sub"])
@pytest.mark.parametrize("loads", ["", "alpha", "paddlefleet_ops.alpha.sub"])
def test_pickles_travel_between_processes_by_either_name(filled, tmp_path, written_by, loads):
    path = tmp_path / "box.pickle"
    made = filled.result(
        f"""
        import copy, pickle, sys
        from pathlib import Path
        import paddlefleet_ops
        from {written_by} import Box, double
        Path({str(path)!r}).write_bytes(pickle.dumps([Box(3), double, Box], protocol=0))
        box = Box([1])
        result = [copy.copy(box).value is box.value, copy.deepcopy(box) == box,
                  copy.deepcopy(box).value is box.value, Box.__module__]
        """,
        stand_in=False,
    )
    assert made == [True, True, False, "alpha.sub"]
    # Files of a program that named the class by the package: the other name, in the same format.
    other = path.read_bytes().replace(b"calpha.sub\n", b"cpaddlefleet_ops.alpha.sub\n")
    assert other != path.read_bytes()
    (tmp_path / "other.pickle").write_bytes(other)
    assert filled.result(
        f"""
        import pickle
        from pathlib import Path
        import paddlefleet_ops
        {f"import {loads}" if loads else ""}
        found = [pickle.loads(Path(path).read_bytes())
                 for path in ({str(path)!r}, {str(tmp_path / "other.pickle")!r})]
        result = [found[0] == found[1], found[0][2] is paddlefleet_ops.alpha.Box,
                  found[0][1](4), found[1][0].value]
        """,
        stand_in=False,
    ) == [True, True, 8, 3]


def test_a_pickle_by_the_librarys_own_name_needs_the_package_and_says_so(filled):
    done = filled.python(
        "-c", "import pickle; pickle.loads(b'calpha.sub\\nBox\\n.')", stand_in=False
    )
    assert "No module named 'alpha'" in done.stderr
    done = filled.python(
        "-W", "ignore", "-c",
        "import pickle; print(pickle.loads(b'cpaddlefleet_ops.alpha.sub\\nBox\\n.'))",
        stand_in=False,
    )  # fmt: skip
    assert done.stdout == "<class 'alpha.sub.Box'>\n"


def test_objects_reach_the_processes_of_a_pool(filled):
    filled.write(
        "program.py",
        """
        import multiprocessing
        import paddlefleet_ops
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(paddlefleet_ops.alpha.double, [2]), flush=True)
                pool.close()
                pool.join()
        """,
    )
    done = filled.python("-W", "ignore", "program.py", stand_in=False)
    assert done.stdout.strip() == "[4]", done.stderr


def test_tools_that_look_at_modules_do_not_crash(filled):
    found = filled.result(
        """
        import doctest, importlib.util, inspect, pkgutil, pydoc
        import paddlefleet_ops as ops
        failed = []
        walked = [i.name for i in pkgutil.walk_packages(ops.__path__, "paddlefleet_ops.",
                                                        onerror=failed.append)]
        stars = {}
        exec("from paddlefleet_ops import *", stars)
        tests = [t.name for t in doctest.DocTestFinder().find(ops.alpha, "alpha") if t.examples]
        tests += [t.name for t in doctest.DocTestFinder().find(ops.alpha.sub) if t.examples]
        try:
            pydoc.locate("paddlefleet_ops.gated")
            located = "no error"
        except pydoc.ErrorDuringImport as error:
            located = str(error)
        try:
            spec = importlib.util.find_spec("paddlefleet_ops.gated")
        except ImportError as error:
            spec = str(error)
        result = {
            "walked": sorted(name for name in walked if "._" not in name),
            "failed": failed,
            "members": [name for name, _ in inspect.getmembers(ops)],
            "static": hasattr(inspect, "getmembers_static")
                      and [name for name, _ in inspect.getmembers_static(ops)] or [],
            "hasattr": [hasattr(ops, n) for n in ("alpha", "gated", "absent", "nowhere")],
            "dir": dir(ops),
            "stars": sorted(set(stars) & {"alpha", "gated", "absent", "is_gated_available"}),
            "doctests": tests,
            "doctest runs": doctest.testmod(ops.alpha.sub).failed,
            "of the package": len(doctest.DocTestFinder().find(ops)) > 0,
            "help": [pydoc.render_doc(x, renderer=pydoc.plaintext)
                     for x in (ops, ops.alpha, "paddlefleet_ops.alpha.sub", "alpha.sub")],
            "located": located,
            "spec": spec,
            "late": importlib.util.find_spec("paddlefleet_ops.alpha.deep").submodule_search_locations,
        }
        """,
        stand_in=False,
    )
    assert {"paddlefleet_ops.alpha", "paddlefleet_ops.alpha.sub", "paddlefleet_ops.alpha.deep.leaf",
            "paddlefleet_ops.gated"} <= set(found["walked"])  # fmt: skip
    assert found["failed"] == ["paddlefleet_ops.gated"]
    assert found["hasattr"] == [True, False, False, False]
    assert found["stars"] == ["alpha", "is_gated_available"]
    for names in ("members", "dir", *(["static"] if found["static"] else [])):
        assert {"alpha", "is_gated_available"} <= set(found[names])
        assert "gated" not in found[names]
    assert found["doctests"] == ["alpha", "alpha.sub.double"]
    assert found["doctest runs"] == 0
    assert found["of the package"] is True
    assert "is_gated_available() -> " in found["help"][0].replace("-> 'bool'", "-> ")
    assert "What alpha is." in found["help"][1]
    assert all("Twice x." in text for text in found["help"][2:])
    assert found["located"] == "no error"  # pydoc takes it for a module that is not there
    assert "needs Python >=3.99" in found["spec"]
    assert [Path(place).name for place in found["late"]] == ["deep"]


def test_unittest_finds_the_tests_of_a_library_and_goes_on_after_a_blocked_one(filled):
    filled.write("paddlefleet_ops/alpha/test_it.py", """
        import unittest
        from .sub import double
        class Case(unittest.TestCase):
            def test_double(self):
                self.assertEqual(double(2), 4)
        """)  # fmt: skip
    done = filled.python(
        "-W", "ignore", "-m", "unittest", "discover", "-v", "-s", "paddlefleet_ops.alpha",
        stand_in=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Ran 1 test" in done.stderr
    done = filled.python(
        "-W", "ignore", "-m", "unittest", "discover", "-v", "-s", "paddlefleet_ops", "-t", ".",
        stand_in=False,
    )  # fmt: skip
    assert "test_double" in done.stderr
    assert "needs Python >=3.99" in done.stderr  # reported as what it is, and the run goes on


def test_a_submodule_that_is_imported_late_is_one_object_on_one_parent(filled):
    assert filled.result(
        """
        import importlib, sys
        import paddlefleet_ops as ops
        import paddlefleet_ops.alpha.deep.leaf as leaf
        import alpha.deep.leaf
        first = [leaf is alpha.deep.leaf, ops.alpha.deep is alpha.deep, alpha.deep.leaf is leaf,
                 leaf.__name__, leaf.__spec__.name, leaf.__package__,
                 leaf.__spec__.loader.is_package("alpha.deep.leaf")]
        import alpha.late
        second = [sys.modules.get("paddlefleet_ops.alpha.late") is None,
                  importlib.import_module("paddlefleet_ops.alpha.late") is alpha.late,
                  ops.alpha.late is alpha.late]
        third = [importlib.reload(module) is module and sys.modules[f"paddlefleet_ops.{name}"] is module
                 and module.__spec__.name == name
                 for name, module in [("alpha.late", alpha.late), ("alpha.deep.leaf", leaf),
                                      ("alpha.deep", alpha.deep), ("alpha", alpha)]]
        result = [first, second, third]
        """,
        stand_in=False,
    ) == [
        [True, True, True, "alpha.deep.leaf", "alpha.deep.leaf", "alpha.deep", False],
        [True, True, True],
        [True] * 4,
    ]


def test_a_reloaded_module_has_an_ordinary_spec_again(filled):
    assert filled.result(
        """
        import copy, importlib, inspect
        import paddlefleet_ops.alpha.sub as sub
        importlib.reload(sub)
        again = copy.copy(sub.__spec__)
        result = [type(sub.__spec__.loader).__name__ == type(sub.__loader__).__name__,
                  again.name, copy.copy(sub.__spec__.loader).get_source("alpha.sub").split()[0],
                  importlib.reload(sub) is sub]
        """,
        stand_in=False,
    ) == [True, "alpha.sub", "import", True]


def test_a_namespace_package_is_a_library_too(site):
    site.add(
        "spaced",
        {"spaced/one.py": "import torch\nfrom . import two\n", "spaced/two.py": "value = 2\n"},
        public_names=["spaced.one:two"],
    )
    site.write("other/spaced/three.py", "")
    assert site.result(
        """
        import sys
        import paddlefleet_ops as ops
        sys.path.insert(0, "other")
        import spaced.one
        import paddlefleet_ops.spaced.two as two
        try:
            import spaced.three
            mixed = True
        except ModuleNotFoundError:
            mixed = False
        result = [ops.spaced is spaced, ops.spaced.one.two is two, two.value, mixed]
        """,
        stand_in=False,
    ) == [True, True, 2, False]


def test_a_library_may_have_the_name_of_a_standard_module_that_is_not_imported(site):
    site.add("this", {"this.py": "import torch\nvalue = torch.ones([1]).item()\n"})
    assert site.result(
        "import paddlefleet_ops, this\n"
        "result = [this.value, paddlefleet_ops.this is this, 'paddlefleet_ops' in this.__file__]",
        stand_in=False,
    ) == [1.0, True, True]


def test_a_name_that_the_standard_library_has_already_is_refused(site):
    site.add("json", {"json.py": "value = 1\n"})
    found = site.result(
        "import json, paddlefleet_ops\nresult = [json.dumps([1]), "
        "paddlefleet_ops.blocked_import_messages['paddlefleet_ops.json']]",
        stand_in=False,
        PADDLEFLEET_OPS_ON_ERROR="block",
    )
    assert found[0] == "[1]"
    assert "module name taken: another module json" in found[1]


def test_a_relative_import_beyond_the_library_is_an_error_by_either_name(site):
    site.add("alpha", {"alpha/__init__.py": "", "alpha/up.py": "from .. import libraries\n"})
    found = site.result(
        """
        import importlib, paddlefleet_ops
        result = []
        for name in ("alpha.up", "paddlefleet_ops.alpha.up"):
            try:
                importlib.import_module(name)
            except ImportError as error:
                result.append(str(error))
        """,
        stand_in=False,
    )
    assert found == ["attempted relative import beyond top-level package"] * 2


@pytest.fixture(scope="session")
def extension(tmp_path_factory):
    """An extension module ``counted`` with two-phase initialisation that counts how often it runs."""
    compiler = shutil.which("cc")
    include = Path(sysconfig.get_path("include"))
    if compiler is None or not (include / "Python.h").exists():
        pytest.skip("needs a C compiler and Python.h: apt-get install gcc python3-dev")
    folder = tmp_path_factory.mktemp("counted")
    (folder / "counted.c").write_text(
        "#include <Python.h>\nstatic int runs = 0;\n"
        "static int run(PyObject *m) { return PyModule_AddIntConstant(m, \"runs\", ++runs); }\n"
        "static PyModuleDef_Slot slots[] = {{Py_mod_exec, run}, {0, 0}};\n"
        'static PyModuleDef def = {PyModuleDef_HEAD_INIT, "counted", 0, 0, 0, slots};\n'
        "PyMODINIT_FUNC PyInit_counted(void) { return PyModuleDef_Init(&def); }\n"
    )  # fmt: skip
    target = folder / "counted.so"
    argv = (compiler, "-shared", "-fPIC", f"-I{include}", "counted.c", "-o", str(target))
    subprocess.run(argv, cwd=folder, check=True)
    return target


@pytest.mark.parametrize("order", ["import counted", "import paddlefleet_ops.counted as counted"])
@pytest.mark.parametrize("eager", [True, False])
def test_an_extension_module_is_initialised_once_under_both_names(site, extension, order, eager):
    site.add(
        "user",
        {"user/__init__.py": "import counted\n" if eager else ""},
        modules=["user", "counted"],
    )
    site.add("inner", {"inner/__init__.py": "from . import counted\n"})
    shutil.copy(extension, site.package / "counted.so")
    shutil.copy(extension, site.package / "inner" / "counted.so")
    assert site.result(
        f"""
        import sys
        import paddlefleet_ops as ops
        {order}
        import paddlefleet_ops.counted as second, paddlefleet_ops.inner.counted as third
        import inner.counted
        result = [counted.runs, second is counted, sys.modules["counted"] is counted,
                  third is inner.counted, third.runs, third is not counted,
                  third.__spec__.name, type(third.__spec__.loader).__name__]
        """,
        stand_in=False,
    ) == [1, True, True, True, 1, True, "inner.counted", "ExtensionFileLoader"]


def test_the_versions_of_package_and_distribution_agree(filled):
    metadata = "Metadata-Version: 2.1\nName: paddlefleet_ops\nVersion: {}\n"
    filled.write(
        "paddlefleet_ops-0.dist-info/METADATA", metadata.format(filled.manifest()["version"])
    )
    filled.write("paddlefleet_ops-0.dist-info/RECORD", "paddlefleet_ops/__init__.py,,\n")
    assert filled.result(
        """
        import importlib.metadata as metadata
        import paddlefleet_ops as ops
        result = [metadata.version("paddlefleet_ops") == ops.__version__,
                  sorted(set(metadata.packages_distributions()["paddlefleet_ops"]))]
        """,
        stand_in=False,
    ) == [True, ["paddlefleet_ops"]]
