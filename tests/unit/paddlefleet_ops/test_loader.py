"""What ``import paddlefleet_ops`` does, tried on small installed packages with a stand-in for Paddle.

Each test starts a Python of its own, because importing is what is tested.
"""

from __future__ import annotations

import sys
import zipfile

import pytest

EAGER = {
    "alpha/__init__.py": """
        import torch
        from . import sub
        """,
    "alpha/sub.py": """
        import torch
        class Box:
            def __eq__(self, other):
                return type(other) is Box
            __hash__ = None
        def double(x):
            return torch.add(x, x)
        """,
    "alpha/late.py": "value = 7\n",
    "alpha/deep/__init__.py": "",
    "alpha/deep/leaf.py": "value = 8\n",
}
# What a library's import may leave behind; for comparing before and after.
STATE = """
import sys
import paddle
def state():
    own = [name for name in sys.modules if not name.startswith("paddlefleet_ops")]
    return [sorted(own), list(sys.path), [type(finder).__name__ for finder in sys.meta_path[:2]],
            sys.modules.get("torch") is None]
"""


def test_a_library_loads_inside_its_own_guard_and_the_path_stays_as_it_is(site):
    site.add("alpha", EAGER, compat_scope=["alpha", "triton"])
    site.add("beta", {"beta.py": "import torch\n"})
    found = site.result(
        """
        import sys
        before = list(sys.path)
        import paddle, paddlefleet_ops
        paths = [event.pop("path") for event in paddle.events if "path" in event]
        result = [paddle.events, paths == [before] * 2, sys.path == before,
                  paddlefleet_ops.alpha.sub.double(21)]
        """
    )
    assert found == [
        [
            {"open": ["alpha", "triton"], "silent": True},
            {"close": ["alpha", "triton"]},
            {"open": ["beta"], "silent": True},
            {"close": ["beta"]},
        ],
        True,
        True,
        42,
    ]


def test_a_preloaded_module_is_imported_before_the_guard(site):
    site.write(
        "runtime_of_alpha.py",
        "import paddle, sys\npaddle.events.append({'preload': True, 'finders': "
        "[type(finder).__name__ for finder in sys.meta_path].count('TorchProxyMetaFinder')})\n",
    )
    site.add("alpha", EAGER, preload=["runtime_of_alpha"])
    events = site.result("import paddle, paddlefleet_ops\nresult = paddle.events")
    assert [next(iter(event)) for event in events] == ["preload", "open", "close"]
    assert events[0]["finders"] == 0


READS_ENVIRONMENT = {
    "alpha/__init__.py": "import os\nseen = (os.environ.get('ALPHA_A'), os.environ.get('ALPHA_B'))\n"
}


def test_variables_that_an_import_reads_are_set_for_it_unless_the_user_set_them(site):
    site.add("alpha", READS_ENVIRONMENT, load_env={"ALPHA_A": "1", "ALPHA_B": "1"})
    found = site.result(
        """
        import os
        os.environ["ALPHA_B"] = "mine"
        import paddlefleet_ops
        result = [*paddlefleet_ops.alpha.seen, os.environ.get("ALPHA_A"), os.environ["ALPHA_B"]]
        """
    )
    assert found == ["1", "mine", None, "mine"]


def test_a_module_is_one_object_under_both_names(site):
    site.add("alpha", EAGER)
    assert (
        site.result(
            """
        import sys, pickle, paddlefleet_ops
        import alpha.sub
        import paddlefleet_ops.alpha.late as late, alpha.late
        import alpha.deep.leaf
        import paddlefleet_ops.alpha.deep.leaf as leaf
        from paddlefleet_ops.alpha.sub import Box
        result = [
            paddlefleet_ops.alpha is sys.modules["alpha"],
            sys.modules["paddlefleet_ops.alpha.sub"] is alpha.sub,
            late is alpha.late and alpha.late.__spec__.name == "alpha.late",
            leaf is alpha.deep.leaf and leaf.__spec__.name == "alpha.deep.leaf",
            pickle.loads(pickle.dumps(Box())) == Box() and Box.__module__ == "alpha.sub",
        ]
        """
        )
        == [True] * 5
    )


def test_a_submodule_that_is_not_there_is_a_missing_module(site):
    site.add("alpha", EAGER)
    assert (
        site.result(
            """
            import paddlefleet_ops
            try:
                import paddlefleet_ops.alpha.nowhere
            except ModuleNotFoundError as error:
                result = error.name
            """
        )
        == "paddlefleet_ops.alpha.nowhere"
    )


def test_a_module_is_reloaded_inside_the_guard(site):
    site.add("alpha", EAGER)
    assert site.result(
        """
        import importlib, paddlefleet_ops, paddle
        paddle.events.clear()
        same = [importlib.reload(module) is module
                for module in (paddlefleet_ops.alpha.sub, paddlefleet_ops.alpha)]
        result = [same, [next(iter(event)) for event in paddle.events],
                  paddlefleet_ops.alpha.sub.double(2)]
        """
    ) == [[True, True], ["open", "close", "open", "close"], 4]


def test_every_top_level_module_of_a_library_is_attached(site):
    site.add(
        "deep-ep",
        {
            "deep_ep/__init__.py": "import deep_ep_cpp\n",
            "deep_ep_cpp.py": "",
            "deep_ep_extra.py": "",
        },
        module="deep_ep",
        modules=["deep_ep", "deep_ep_cpp", "deep_ep_extra"],
    )
    assert site.result(
        """
        import paddlefleet_ops, deep_ep_cpp
        import paddlefleet_ops.deep_ep_cpp as one
        import deep_ep_extra                       # late, and not by its library
        import paddlefleet_ops.deep_ep_extra as two
        result = [one is deep_ep_cpp, two is deep_ep_extra]
        """
    ) == [True, True]


BLOCKED = {"cuda": ">=12.9", "python": ">=3.99", "capability": ">=9.0"}


def test_a_blocked_library_explains_itself_wherever_it_is_used(site):
    site.add("gated", {"gated/__init__.py": "raise SystemError('must not be run')"}, **BLOCKED)
    found = site.result(
        """
        import paddlefleet_ops
        def told(action):
            try:
                action()
            except RuntimeError as error:
                return str(error)
        result = [
            told(lambda: __import__("paddlefleet_ops.gated")),
            told(lambda: __import__("paddlefleet_ops.gated.sub.leaf")),
            told(lambda: exec("from paddlefleet_ops import gated")),
            told(lambda: paddlefleet_ops.gated),
            paddlefleet_ops.blocked_import_messages["paddlefleet_ops.gated"],
        ]
        """,
        STAND_IN_CUDA="12.6",
        STAND_IN_CAPABILITY="8.0",
    )
    assert len(set(found)) == 1
    python = ".".join(map(str, sys.version_info[:2]))
    for text in (
        "needs CUDA >=12.9; found 12.6",
        f"needs Python >=3.99; found {python}",
        "needs compute capability >=9.0; found 8.0",
        "Hint: use Paddle's own operator instead of gated",
        "paddlefleet_ops.is_gated_available()",
    ):
        assert text in found[0]


def test_introspection_does_not_crash_on_a_blocked_library(site):
    site.add("alpha", EAGER)
    site.add("gated", {"gated/__init__.py": ""}, **BLOCKED)
    site.leave_out("absent", "not pinned yet")
    found = site.result(
        """
        import inspect, pkgutil, paddlefleet_ops as ops
        names = [info.name for info in pkgutil.walk_packages(ops.__path__, "paddlefleet_ops.")]
        stars = {}
        exec("from paddlefleet_ops import *", stars)
        result = {
            "walked": names,
            "members": [name for name, _ in inspect.getmembers(ops)],
            "hasattr": [hasattr(ops, name) for name in ("alpha", "gated", "absent", "other")],
            "available": [ops.is_alpha_available(), ops.is_gated_available(),
                          ops.is_absent_available()],
            "stars": sorted(name for name in stars if not name.startswith("_")),
            "dir": dir(ops),
        }
        """
    )
    assert {"paddlefleet_ops.alpha.sub", "paddlefleet_ops.gated"} <= set(found["walked"])
    assert found["hasattr"] == [True, False, False, False]
    assert found["available"] == [True, False, False]
    assert {"alpha", "libraries", "is_gated_available"} <= set(found["stars"])
    assert {"gated", "absent"}.isdisjoint({*found["stars"], *found["dir"], *found["members"]})


def test_a_library_that_was_left_out_says_so(site):
    site.leave_out("absent", "needs CUDA >=12.9; found 12.6", "not pinned yet")
    message = site.result(
        """
        import paddlefleet_ops
        try:
            import paddlefleet_ops.absent
        except RuntimeError as error:
            result = str(error)
        """
    )
    assert "was not built into this wheel: needs CUDA >=12.9; found 12.6" in message
    assert "was not built into this wheel: not pinned yet" in message
    assert "Hint: build it" in message


def test_an_unknown_availability_function_names_the_known_ones(site):
    site.add("sonicmoe", {"sonicmoe.py": ""}, availability="sonic_moe")
    done = site.python("-c", "import paddlefleet_ops; paddlefleet_ops.is_sonicmoe_available")
    assert "no attribute 'is_sonicmoe_available'; there are is_sonic_moe_available" in done.stderr


def test_states_are_told_for_every_declared_library(site):
    site.add("alpha", EAGER)
    site.add("gated", **BLOCKED)
    site.add("broken", {"broken.py": "1 / 0\n"})
    site.leave_out("absent", "not pinned yet")
    found = site.result(
        """
        import paddlefleet_ops
        result = [[s.name, s.state, len(s.reasons), s.in_wheel, s.availability_function,
                   s.source.revision[:4]] for s in paddlefleet_ops.libraries()]
        """,
        PADDLEFLEET_OPS_ON_ERROR="block",
    )
    assert found == [
        ["alpha", "loaded", 0, True, "is_alpha_available", "0123"],
        ["gated", "blocked", 3, True, "is_gated_available", "0123"],
        ["broken", "failed", 1, True, "is_broken_available", "0123"],
        ["absent", "blocked", 1, False, "is_absent_available", ""],
    ]


@pytest.mark.parametrize(
    ("capability", "asked", "reason"),
    [("", ["device_count"], "no CUDA device was found"),
     ("broken", ["device_count", "capability"], "driver version is insufficient")],
)  # fmt: skip
def test_the_device_is_asked_only_for_a_library_that_needs_it(site, capability, asked, reason):
    code = """
        import paddle, paddlefleet_ops
        result = [[event["asked"] for event in paddle.events if "asked" in event],
                  dict(paddlefleet_ops.blocked_import_messages)]
        """
    options = {"STAND_IN_CUDA": "13.0", "STAND_IN_CAPABILITY": capability}
    site.add("alpha", EAGER)
    assert site.result(code, **options) == [[], {}]
    site.add("gated", capability=">=9.0")
    found = site.result(code, **options)
    assert found[0] == asked
    assert reason in found[1]["paddlefleet_ops.gated"]


BROKEN = {
    "python error": ("import torch, json.tool\n1 / 0\n", "Python error: ZeroDivisionError"),
    "missing module": ("import torch\nimport no_such_module\n", "missing Python module"),
    "missing torch": (
        "import torch\n",
        "broken imports torch and is outside the compat scope (other)",
    ),
    "leaves the process": ("raise SystemExit(3)\n", "Python error: SystemExit: 3"),
    "spoils the path": ("import sys\nsys.path[:] = []\nraise OSError('x')\n", "OSError: x"),
    "spoils the finders": ("import sys\nsys.meta_path.append(object())\n1 / 0\n", "Python error"),
    "half of it": ("from broken import part\n1 / 0\n", "ZeroDivisionError"),
    "a helper with torch": ("import helper\n1 / 0\n", "ZeroDivisionError"),
    "proxy left on": ("import paddle\nrun = 1\npaddle.enable_compat()\n", "compat proxy left on"),
    "names missing": ("wanted = 1\n", "public names missing: run"),
}


def scope_of(name, fault):
    if name != "broken":
        return [name]
    return {"missing torch": ["other"], "a helper with torch": ["broken", "helper"]}.get(
        fault, [name]
    )


@pytest.mark.parametrize("mode", ["block", "raise"])
@pytest.mark.parametrize("fault", BROKEN)
def test_one_broken_library_of_four_leaves_no_trace(site, fault, mode):
    text, _ = BROKEN[fault]
    site.write("helper.py", "import torch\n")
    code = STATE + (
        "import json.tool\n"
        "before = state()\n"
        "try:\n    import paddlefleet_ops\nexcept ImportError as error:\n    print(error)\n"
        "after = state()\n"
        "result = [before, after, sorted(n for n in sys.modules if n.startswith('paddlefleet_ops.')"
        " and not n.startswith('paddlefleet_ops._'))]"
    )
    for name in ("first", "second", "broken", "fourth"):
        content = {f"{name}/__init__.py": "import torch\nrun = 1\n", f"{name}/part.py": ""}
        if name == "broken":
            content["broken/__init__.py"] = text
        site.add(name, content, compat_scope=scope_of(name, fault), public_names=["run"])
    before, after, aliases = site.result(code, PADDLEFLEET_OPS_ON_ERROR=mode)
    good = ["first", "second", "fourth"]
    assert sorted(set(after[0]) - set(before[0]) - PARTS_OF_PYTHON) == sorted(good)
    assert set(before[0]) <= set(after[0])
    assert after[1] == before[1]
    assert after[3] == before[3]
    if mode == "block":
        assert after[2] == ["AliasFinder", "ImportBlocker"]
        assert aliases == sorted(f"paddlefleet_ops.{name}" for name in good)
    else:
        assert after[2] == before[2]
        assert aliases == []


# Modules of the standard library that the loader itself imports first; they are no trace of a
# library.
PARTS_OF_PYTHON = set(sys.stdlib_module_names) | {
    name for name in sys.modules if name.partition(".")[0] in sys.stdlib_module_names
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_failure_names_library_cause_and_mend(site, fault):
    text, words = BROKEN[fault]
    site.write("helper.py", "import torch\n")
    site.add("alpha", EAGER)
    files = {"broken/__init__.py": text, "broken/part.py": ""}
    site.add("broken", files, compat_scope=scope_of("broken", fault), public_names=["run"])
    strict = site.python("-c", "import paddlefleet_ops")
    assert strict.returncode == 1
    assert "LibraryLoadError: 1 of 2 libraries that should load here failed" in strict.stderr
    message = site.result(
        """
        import paddlefleet_ops
        assert not paddlefleet_ops.is_broken_available()
        try:
            import paddlefleet_ops.broken
        except RuntimeError as error:
            result = str(error)
        """,
        PADDLEFLEET_OPS_ON_ERROR="block",
    )
    assert "paddlefleet_ops.broken should be available here, but failed to load" in message
    for output in (strict.stderr, message):
        assert words in output
        assert "Mend: " in output


def test_all_failures_are_told_at_once(site):
    site.add("one", {"one.py": "1 / 0\n"})
    site.add("two", {"two.py": ""}, depends_on=["one"])
    site.add("three", {"three.py": "import no_such_module\n"})
    message = site.python("-c", "import paddlefleet_ops").stderr
    assert "3 of 3 libraries" in message
    assert "one.py:1" in message
    assert "dependency failed: it needs the library one, which failed to load" in message
    assert "No module named 'no_such_module'" in message


def test_the_package_can_be_imported_again_after_a_failure(site):
    site.add(
        "alpha", {"alpha.py": "import builtins\nbuiltins.runs = 1 + getattr(builtins, 'runs', 0)"}
    )
    site.add("broken", {"broken.py": "1 / 0\n"})
    assert site.result(
        """
        import builtins, os, sys
        try:
            import paddlefleet_ops
        except ImportError:
            os.environ["PADDLEFLEET_OPS_ON_ERROR"] = "block"
        import paddlefleet_ops
        kinds = [type(finder).__name__ for finder in sys.meta_path]
        result = [builtins.runs, paddlefleet_ops.is_alpha_available(), kinds.count("AliasFinder"),
                  kinds.count("ImportBlocker")]
        """
    ) == [1, True, 1, 1]


@pytest.mark.parametrize("again", ["importlib.reload(paddlefleet_ops)",
                                   "del sys.modules['paddlefleet_ops']; import paddlefleet_ops"])  # fmt: skip
def test_the_package_can_be_imported_twice(site, again):
    site.add("alpha", EAGER)
    site.add("gated", **BLOCKED)
    assert site.result(
        f"""
        import importlib, sys, paddlefleet_ops
        first = paddlefleet_ops.alpha
        {again}
        result = [paddlefleet_ops.alpha is first, paddlefleet_ops.is_gated_available(),
                  [type(finder).__module__ for finder in sys.meta_path].count(
                      "paddlefleet_ops._alias")]
        """
    ) == [True, False, 1]


def test_swallowed_errors_are_found_beneath_missing_names(site):
    site.add(
        "fla",
        {
            "fla/__init__.py": """
                try:
                    from . import ops
                    from .ops import chunk
                except ImportError:
                    pass
                """,
            "fla/ops.py": "import tiles_of_a_compiler\ndef chunk(): pass\n",
        },
        public_names=["chunk", "fla.ops:chunk"],
    )
    message = site.python("-c", "import paddlefleet_ops").stderr
    assert (
        "public names missing: chunk, fla.ops:chunk; underneath: missing Python module" in message
    )
    assert "No module named 'tiles_of_a_compiler' (at fla/ops.py:1)" in message


def test_a_submodule_that_nobody_names_is_tried_for_the_cause(site):
    site.add(
        "fla",
        {
            "fla/__init__.py": "try:\n    from .ops import chunk\nexcept ImportError:\n    pass\n",
            "fla/ops.py": "import tiles_of_a_compiler\ndef chunk(): pass\n",
        },
        public_names=["chunk"],
    )
    message = site.python("-c", "import paddlefleet_ops").stderr
    assert "missing: chunk; underneath: missing Python module" in message
    assert "No module named 'tiles_of_a_compiler' (at fla/ops.py:1)" in message


def test_what_was_looked_for_in_vain_is_told_when_nothing_else_explains(site):
    site.add(
        "fla",
        {"fla.py": "try:\n    import tiles_of_a_compiler\nexcept ImportError:\n    pass\n"},
        public_names=["chunk"],
    )
    message = site.python("-c", "import paddlefleet_ops").stderr
    assert "its import looked in vain for: tiles_of_a_compiler" in message


def test_public_names_of_submodules_are_imported_inside_the_guard(site):
    site.add(
        "quack",
        {
            "quack/__init__.py": "",
            "quack/softmax.py": "import torch\nclass S:\n    run = torch.add\n",
        },
        public_names=["quack.softmax:S.run"],
    )
    assert (
        site.result("import paddlefleet_ops, quack.softmax\nresult = quack.softmax.S.run(1, 2)")
        == 3
    )


def test_an_optional_torch_that_is_not_in_scope_stays_absent(site):
    site.write("other.py", "try:\n    import torch\nexcept ImportError:\n    torch = None\n")
    site.add("alpha", {"alpha.py": "import torch\n"})
    assert site.result("import paddlefleet_ops, other\nresult = other.torch") is None


def test_a_forbidden_torch_is_forbidden_again_afterwards(site):
    site.add("alpha", EAGER)
    assert site.result(
        """
        import sys
        sys.modules["torch"] = None
        import paddlefleet_ops
        result = ["torch" in sys.modules, sys.modules["torch"], paddlefleet_ops.alpha.sub.double(2)]
        """
    ) == [True, None, 4]


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("import alpha", "another module alpha was imported before, from"),
        ("import sys; sys.modules['alpha'] = None", "sys.modules['alpha'] is None"),
        ("import sys, types; sys.modules['alpha.sub'] = types.ModuleType('alpha.sub')",
         "another module alpha.sub was imported before"),
    ],
)  # fmt: skip
def test_a_module_of_that_name_from_elsewhere_is_left_alone(site, before, words):
    site.write("alpha.py", "origin = 'elsewhere'\n")
    site.add("alpha", EAGER)
    found = site.result(
        f"""
        {before}
        import sys
        kept = {{name: sys.modules[name] for name in sys.modules if name[:5] == "alpha"}}
        import paddlefleet_ops
        result = [all(sys.modules[name] is kept[name] for name in kept),
                  paddlefleet_ops.blocked_import_messages["paddlefleet_ops.alpha"]]
        """,
        PADDLEFLEET_OPS_ON_ERROR="block",
    )
    assert found[0] is True
    assert f"module name taken: {words}" in found[1]


def test_the_librarys_own_files_win_over_an_installed_module_of_that_name(site):
    site.write("alpha.py", "origin = 'elsewhere'\n")
    site.add("alpha", EAGER)
    place = site.result("import paddlefleet_ops\nresult = paddlefleet_ops.alpha.__file__")
    assert place == str(site.package / "alpha/__init__.py")


def test_a_declared_library_without_files_is_not_taken_from_elsewhere(site):
    site.write("alpha.py", "origin = 'elsewhere'\n")
    site.add("alpha")
    message = site.python("-c", "import paddlefleet_ops").stderr
    assert "files missing in the package: the wheel declares the module alpha" in message


def test_an_interrupt_is_passed_on_with_the_state_restored(site):
    site.add("alpha", {"alpha.py": "import torch\nraise KeyboardInterrupt\n"})
    assert site.result(
        STATE
        + """
before = state()
try:
    import paddlefleet_ops
except KeyboardInterrupt:
    after = state()
result = [before[0] == [name for name in after[0] if name in before[0]], "alpha" in after[0],
          before[1] == after[1]]
"""
    ) == [True, False, True]


def test_threads_that_import_at_once_get_one_package(site):
    site.add(
        "alpha",
        {
            "alpha/__init__.py": """
                import builtins, time
                import torch
                builtins.runs = 1 + getattr(builtins, "runs", 0)
                time.sleep(0.05)
                from . import sub
                """,
            "alpha/sub.py": "import torch\n",
        },
    )
    assert site.result(
        """
        import builtins, importlib, sys, threading
        names = ["paddlefleet_ops", "paddlefleet_ops.alpha", "paddlefleet_ops.alpha.sub"] * 8
        start, found, errors = threading.Barrier(len(names)), {}, []
        def run(name):
            start.wait()
            try:
                found.setdefault(name, set()).add(id(importlib.import_module(name)))
            except BaseException as error:
                errors.append(repr(error))
        threads = [threading.Thread(target=run, args=(name,)) for name in names]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        result = [builtins.runs, [len(ids) for ids in found.values()], errors,
                  "torch" in sys.modules]
        """
    ) == [1, [1, 1, 1], [], False]


def test_it_works_from_a_zip_archive(site, tmp_path):
    site.add("alpha", EAGER)
    site.add("gated", **BLOCKED)
    site.write_manifest()
    archive = tmp_path / "site.zip"
    with zipfile.ZipFile(archive, "w") as target:
        for path in site.folder.rglob("*"):
            target.write(path, path.relative_to(site.folder))
    site.package.rename(site.folder / "hidden")
    site.writes_manifest = False
    assert site.result(
        """
        import paddlefleet_ops, alpha.late, paddlefleet_ops.alpha.late as late
        result = [".zip" in paddlefleet_ops.__file__, ".zip" in alpha.__file__,
                  late is alpha.late, paddlefleet_ops.alpha.sub.double(4),
                  paddlefleet_ops.is_gated_available()]
        """,
        path=(archive,),
    ) == [True, True, True, 8, False]


def test_it_works_through_a_path_file_as_an_editable_install_leaves_one(site, tmp_path):
    site.add("alpha", EAGER)
    site.write_manifest()
    other = tmp_path / "other"
    other.mkdir()
    (other / "editable.pth").write_text(f"{site.folder}\n")
    site.writes_manifest = False
    assert (
        site.result(
            f"""
            import site, sys
            sys.path.remove({str(site.folder)!r})
            site.addsitedir({str(other)!r})
            import paddlefleet_ops
            result = paddlefleet_ops.alpha.sub.double(1)
            """
        )
        == 2
    )


@pytest.mark.parametrize("options", [("-X", "importtime"), ("-W", "error"), ("-O",), ("-B", "-s")])
def test_it_works_under_options_of_the_interpreter(site, options):
    site.add("alpha", EAGER)
    site.add("gated", **BLOCKED)
    done = site.python(*options, "-c", "import paddlefleet_ops as p; print(p.alpha.sub.double(3))")
    assert done.stdout == "6\n", done.stderr


def test_it_starts_no_process_and_writes_no_file(site):
    site.add("alpha", EAGER)
    site.add("gated", **BLOCKED)
    site.add("broken", {"broken.py": "1 / 0\n"})
    assert (
        site.result(
            """
            import os, sys, paddle
            seen = []
            def hook(event, arguments):
                if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork"):
                    seen.append(event)
                if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                    seen.append([event, str(arguments[0])])
                if event in ("os.mkdir", "os.remove", "os.rename"):
                    seen.append(event)
            sys.addaudithook(hook)
            import paddlefleet_ops
            result = list(seen)
            """,
            PADDLEFLEET_OPS_ON_ERROR="block",
        )
        == []
    )


def test_a_source_tree_says_that_the_wheel_has_to_be_built(site):
    site.writes_manifest = False
    done = site.python("-c", "import paddlefleet_ops")
    assert (
        "ManifestError: paddlefleet_ops has no _manifest.json: this is its source tree"
        in done.stderr
    )
    assert "nox -s wheel-cu130" in done.stderr


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"paddle.py": "raise ModuleNotFoundError(\"No module named 'paddle'\", name='paddle')"},
         "needs PaddlePaddle, and there is no module named paddle"),
        ({"paddle.py": "__version__ = '2.6.2'"}, "needs paddle.use_compat_guard, which this Paddle (2.6.2"),
        ({"paddle.py": "import no_such_module"}, "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)  # fmt: skip
def test_a_paddle_that_is_absent_or_too_old_is_named(site, files, words):
    for path, content in files.items():
        site.write(path, content)
    done = site.python("-c", "import paddlefleet_ops", stand_in=False)
    assert done.returncode == 1
    assert words in done.stderr


def test_an_unknown_value_of_the_variable_stops_the_import(site):
    site.add("alpha", EAGER)
    done = site.python("-c", "import paddlefleet_ops", PADDLEFLEET_OPS_ON_ERROR="warn")
    assert "ValueError: PADDLEFLEET_OPS_ON_ERROR is 'warn'" in done.stderr


def test_no_library_is_named_in_the_code(site):
    names = {"quack", "sonicmoe", "deep_ep", "deep_gemm", "flash_mla", "fla", "cudnn", "moonep"}
    for source in site.package.glob("*.py"):
        code = compile(source.read_text(), str(source), "exec")
        assert names.isdisjoint(_constants(code)), source.name


def _constants(code):
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif hasattr(constant, "co_consts"):
            yield from _constants(constant)
