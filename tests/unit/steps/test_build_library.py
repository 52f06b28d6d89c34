"""Building one library: real projects go in, collected artifacts or a named problem come out."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.registry import build_manifest, build_steps

PYPROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "alpha-ops"
version = "1.2"
[tool.setuptools]
packages = ["alpha"]
[tool.setuptools.package-data]
alpha = ["**/*"]
"""
INIT = {"alpha/__init__.py": "value = 1\n"}
# A setup.py that has no name to give: what setuptools yields is called UNKNOWN.
NAMELESS = {"setup.py": "from setuptools import setup\nsetup(packages=[])\n", **INIT}
DUMP = """\
import json, os
from setuptools import setup
with open("alpha/seen.json", "w") as sink:
    json.dump(dict(os.environ), sink)
setup(name="alpha-ops", version="1.2", packages=["alpha"], package_data={"alpha": ["*.json"]})
"""

Make = Callable[..., build_steps.BuildRequest]


def failed(request: build_steps.BuildRequest) -> build_steps.BuildFailedError:
    with pytest.raises(build_steps.BuildFailedError) as refused:
        build_steps.build_library(request)
    assert refused.value.library == "alpha"
    assert not Path(request.out).exists()
    return refused.value


def said(capfd: pytest.CaptureFixture[str]) -> str:
    """What a step's log would hold: pip prints a failed build's output to stderr."""
    return "".join(capfd.readouterr())


def files_below(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


# --- what succeeds --------------------------------------------------------------------------------


def test_a_project_yields_its_artifact_under_the_target_name(make_request: Make) -> None:
    files = {"pyproject.toml": PYPROJECT, **INIT, "alpha/data/table.txt": "1 2 3\n"}
    request = make_request(files, artifacts=(("alpha", "beta"),))
    before = build_manifest.tree_hash(Path(request.source))
    produced = build_steps.build_library(request)
    assert (produced.distribution, produced.version) == ("alpha-ops", "1.2")
    assert produced.files == ("beta/__init__.py", "beta/data/table.txt")
    assert files_below(Path(request.out)) == list(produced.files)
    assert set(produced.ignored) >= {"alpha_ops-1.2.dist-info/METADATA"}
    assert all("metadata" in reason for reason in produced.ignored.values())
    assert build_manifest.tree_hash(Path(request.source)) == before
    assert files_below(Path(request.source)) == sorted(files)


def test_single_files_and_declared_leftovers(make_request: Make) -> None:
    setup = """\
from setuptools import setup
setup(name="alpha-ops", version="1.2", packages=["alpha"], py_modules=["alpha_extra", "wrapper"],
      data_files=[("include/alpha", ["a.h"])], scripts=["tool.py"])
"""
    files = {
        "setup.py": setup, **INIT, "alpha_extra.py": "", "wrapper.py": "", "a.h": "", "tool.py": "#!python\n",
    }  # fmt: skip
    request = make_request(
        files,
        artifacts=(("alpha", "alpha"), ("alpha_extra.py", "alpha_extra.py")),
        ignored={"wrapper.py": "not needed", "include/*": "headers", "bin/*": "a script"},
    )
    produced = build_steps.build_library(request)
    assert produced.files == ("alpha/__init__.py", "alpha_extra.py")
    declared = {name: why for name, why in produced.ignored.items() if "dist-info" not in name}
    assert declared == {
        "wrapper.py": "not needed",
        "include/alpha/a.h": "headers",
        "bin/tool.py": "a script",
    }


def test_leftovers_of_earlier_builds_do_not_enter_and_sources_named_build_do(
    make_request: Make,
) -> None:
    files = {
        "pyproject.toml": PYPROJECT,
        **INIT,
        "alpha/build/kernel.txt": "a source",
        "build/lib/alpha/stale.py": "old",
        "alpha_ops.egg-info/SOURCES.txt": "alpha/stale.py",
        "alpha/__pycache__/x.cpython-39.pyc": "",
    }
    produced = build_steps.build_library(make_request(files))
    assert produced.files == ("alpha/__init__.py", "alpha/build/kernel.txt")


def test_what_is_copied_is_just_what_the_tree_hash_covers(
    make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two builds with one key could differ."""
    names = (
        "pyproject.toml", "alpha/__init__.py", "build/lib/x.py", "alpha/build/x.py",
        "a.egg-info/PKG-INFO", "src/b.egg-info/PKG-INFO", "alpha/x.pyc", ".ruff_cache/x",
        ".mypy_cache/x", ".git/HEAD", "deep/.git", ".hidden/x", "alpha/__pycache__/y",
        ".pytest_cache/x",
    )  # fmt: skip
    files = dict.fromkeys(names, "x")
    request = make_request(files)

    class Stop(Exception):  # noqa: N818
        pass

    def stop(*_: object) -> None:
        raise Stop

    monkeypatch.setattr(build_steps, "_pip_install", stop)
    with pytest.raises(Stop):
        build_steps.build_library(request)
    copied = Path(request.work, "source")
    hashed = [name for name, _ in build_manifest._source_files(Path(request.source))]
    assert files_below(copied) == sorted(hashed)
    assert ".hidden/x" in hashed
    assert "alpha/build/x.py" in hashed
    assert "build/lib/x.py" not in hashed


def test_an_earlier_result_is_replaced_whole(make_request: Make) -> None:
    request = make_request()
    old = Path(request.out, "alpha", "old.py")
    old.parent.mkdir(parents=True)
    old.write_text("old")
    assert build_steps.build_library(request).files == ("alpha/__init__.py",)
    assert not old.exists()


# --- what fails -----------------------------------------------------------------------------------


def test_a_missing_artifact_is_named_with_what_there_is(make_request: Make) -> None:
    error = failed(make_request(artifacts=(("alpha", "alpha"), ("alpha_cpp.so", "alpha_cpp.so"))))
    assert error.stage == "collect"
    assert error.problems[0] == "artifact 'alpha_cpp.so' is missing from what its build yielded"
    assert error.problems[-1] == "its build yielded: alpha, alpha_ops-1.2.dist-info"


def test_an_artifact_is_not_a_prefix_of_a_name(make_request: Make) -> None:
    error = failed(make_request(artifacts=(("alp", "alp"),)))
    assert "artifact 'alp' is missing from what its build yielded" in error.problems
    assert any("'alpha/__init__.py' is neither" in problem for problem in error.problems)


def test_a_file_that_nobody_claims_is_named(make_request: Make) -> None:
    setup = (
        "from setuptools import setup\n"
        "setup(name='alpha-ops', version='1', packages=['alpha', 'tests'])\n"
    )
    error = failed(make_request({"setup.py": setup, **INIT, "tests/__init__.py": ""}))
    assert error.problems[0] == (
        "produced file 'tests/__init__.py' is neither an artifact nor declared as ignored"
    )


def test_many_unclaimed_files_are_counted(make_request: Make) -> None:
    setup = (
        "from setuptools import setup\n"
        "setup(name='alpha-ops', version='1', packages=['alpha', 'more'])\n"
    )
    more = {f"more/m{number:02}.py": "" for number in range(29)}
    error = failed(make_request({"setup.py": setup, **INIT, "more/__init__.py": "", **more}))
    assert len(error.problems) == 22
    assert error.problems[20] == "and 10 more"


def test_a_package_without_a_name_is_refused(make_request: Make) -> None:
    error = failed(make_request(NAMELESS))
    assert error.stage == "collect"
    assert "unnamed distribution (UNKNOWN 0.0.0)" in error.problems[0]
    assert "setuptools" in error.problems[0]


def test_an_empty_package_is_refused(make_request: Make) -> None:
    setup = "from setuptools import setup\nsetup(name='alpha-ops', version='1')\n"
    error = failed(make_request({"setup.py": setup, "notes.txt": "x"}))
    assert error.stage == "collect"
    assert error.problems[-1] == "its build yielded: alpha_ops-1.dist-info"


def test_a_folder_that_is_no_project_is_refused(make_request: Make, tmp_path: Path) -> None:
    request = make_request({"README": "x"})
    error = failed(request)
    assert error.stage == "prepare"
    assert "neither pyproject.toml nor setup.py" in error.problems[0]
    assert str(tmp_path / "source") in error.problems[0]


def test_a_setup_that_raises_fails_in_the_compile_stage_and_its_words_are_in_the_log(
    make_request: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    error = failed(make_request({"setup.py": "raise RuntimeError('no CUDA here')\n", **INIT}))
    assert error.stage == "compile"
    assert "pip install ended with status 1" in error.problems
    log = said(capfd)
    assert build_steps.first_compiler_error(log) == "RuntimeError: no CUDA here"


def test_a_syntax_error_in_c_is_found_in_the_log_by_file_and_line(
    make_request: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    setup = """\
from setuptools import Extension, setup
setup(name="alpha-ops", version="1", ext_modules=[Extension("alpha_c", ["src/broken.c"])])
"""
    error = failed(
        make_request({"setup.py": setup, "src/broken.c": "int f(void) {\n  return 1\n}\n"})
    )
    assert error.stage == "compile"
    found = build_steps.first_compiler_error(said(capfd))
    assert found.startswith("src/broken.c:2:")
    assert "error: expected" in found


def test_after_a_failure_an_earlier_result_is_gone_too(make_request: Make) -> None:
    request = make_request({"setup.py": "raise SystemExit(3)\n"})
    Path(request.out).mkdir()
    Path(request.out, "old.py").write_text("old")
    failed(request)


def test_a_link_to_nothing_is_a_problem(make_request: Make, tmp_path: Path) -> None:
    request = make_request()
    installed = tmp_path / "installed"
    (installed / "alpha").mkdir(parents=True)
    (installed / "alpha" / "lib.so").symlink_to("gone.so")
    with pytest.raises(build_steps.BuildFailedError, match=r"'alpha/lib\.so' is a link to nothing"):
        build_steps._collect(request, installed, tmp_path / "staged")


# --- its environment ------------------------------------------------------------------------------


@pytest.fixture
def seen(make_request: Make, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment that a library's setup.py sees."""
    hostile = {
        "DEPLOY_TOKEN": "not for third parties",
        "PIP_INDEX_URL": "https://example.org/simple",
        "PIP_EXTRA_INDEX_URL": "https://example.org/more",
        "PYTHONPATH": "/nowhere/at/all",
        "CUDA_HOME": "/nowhere/cuda",
        "CFLAGS": "-DHOSTILE",
        "LD_PRELOAD": "",
        "LC_ALL": "C",
        "LANG": "C",
        "PYTHONHASHSEED": "7",
        "SOURCE_DATE_EPOCH": "1",
        "MAX_JOBS": "99",
    }
    for name, value in hostile.items():
        monkeypatch.setenv(name, value)
    request = make_request(
        {"setup.py": DUMP, **INIT},
        env={"PADDLE_CUDA_ARCH_LIST": "9.0;10.0", "CUDA_HOME": "/toolchain"},
        path=("/toolchain/bin",),
        include_dirs=("csrc", "third-party/include"),
        jobs=3,
    )
    build_steps.build_library(request)
    values: dict[str, str] = json.loads(Path(request.out, "alpha", "seen.json").read_text())
    values["_work"] = request.work
    return values


def test_a_build_sees_only_what_is_allowed_and_declared(seen: dict[str, str]) -> None:
    for name in ("DEPLOY_TOKEN", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "LANG"):
        assert name not in seen
    assert "CFLAGS" not in seen
    assert "HOSTILE" not in seen["CPPFLAGS"]
    assert "/nowhere/at/all" not in seen.get("PYTHONPATH", "")
    assert seen["CUDA_HOME"] == "/toolchain"
    assert seen["PADDLE_CUDA_ARCH_LIST"] == "9.0;10.0"
    assert seen["PIP_NO_INDEX"] == "1"
    assert seen["PIP_CONFIG_FILE"] == os.devnull
    assert seen["MAX_JOBS"] == "3"
    assert seen["LC_ALL"] == "C.UTF-8"
    assert seen["PYTHONHASHSEED"] == "0"
    assert seen["SOURCE_DATE_EPOCH"] == "315532800"  # 1980-01-01, the oldest time of a zip archive
    work = Path(seen["_work"])
    for name in ("HOME", "TMPDIR"):
        assert work in Path(seen[name]).parents
    assert seen["CPLUS_INCLUDE_PATH"] == os.pathsep.join(
        str(work / "source" / folder) for folder in ("csrc", "third-party/include")
    )
    folders = seen["PATH"].split(os.pathsep)
    assert folders[0] == "/toolchain/bin"
    assert str(Path(sys.executable).parent) in folders


def test_a_build_cannot_install_packages_behind_the_lock(
    make_request: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    setup = """\
import subprocess, sys
from setuptools import setup
subprocess.run([sys.executable, "-m", "pip", "install", "--target", "x", "six"], check=True)
setup(name="alpha-ops", version="1", packages=["alpha"])
"""
    assert failed(make_request({"setup.py": setup, **INIT})).stage == "compile"
    log = said(capfd)
    assert "No matching distribution found for six" in log
    assert "Retrying" not in log  # no index was even asked


# --- hooks ----------------------------------------------------------------------------------------


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands for build_hooks.py."""

    def add_source(folder: Path) -> None:
        (folder / "alpha" / "added.py").write_text("added = True\n")

    def add_file(folder: Path) -> None:
        assert (folder / "alpha" / "__init__.py").exists()
        (folder / "alpha" / "note.txt").write_text("by the hook")

    def fail(folder: Path) -> None:
        raise FileNotFoundError("third-party/cutlass is not checked out")

    found = SimpleNamespace(add_source=add_source, add_file=add_file, fail=fail)
    monkeypatch.setattr(build_steps, "_load_hooks", lambda: found)
    return found


def test_hooks_change_the_copy_before_and_the_collection_after(
    make_request: Make, hooks: SimpleNamespace
) -> None:
    request = make_request(hooks_before_build=("add_source",), hooks_after_collect=("add_file",))
    produced = build_steps.build_library(request)
    assert produced.files == ("alpha/__init__.py", "alpha/added.py", "alpha/note.txt")
    assert not Path(request.source, "alpha", "added.py").exists()


@pytest.mark.parametrize(
    ("moment", "stage"), [("hooks_before_build", "prepare"), ("hooks_after_collect", "collect")]
)
def test_a_hook_that_fails_is_named_with_its_library_and_its_reason(
    make_request: Make, hooks: SimpleNamespace, moment: str, stage: str
) -> None:
    error = failed(make_request(**{moment: ("fail",)}))
    assert error.stage == stage
    assert error.problems == (
        "hook 'fail': FileNotFoundError: third-party/cutlass is not checked out",
    )


def test_an_unknown_hook_is_refused_before_anything_is_built(
    make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    error = failed(make_request(hooks_before_build=("link_everything",)))
    assert error.problems == ("hook 'link_everything' is not in build_hooks.py",)


def test_cutlass_headers_are_linked_into_the_copy(tmp_path: Path) -> None:
    hook = build_steps._load_hooks().link_cutlass_headers  # type: ignore[attr-defined]
    with pytest.raises(FileNotFoundError, match="third-party/cutlass is not checked out"):
        hook(tmp_path)
    for name in ("cutlass", "cute"):
        header = tmp_path / "third-party" / "cutlass" / "include" / name / f"{name}.h"
        header.parent.mkdir(parents=True)
        header.write_text(name)
    (tmp_path / "deep_gemm" / "include").mkdir(parents=True)
    hook(tmp_path)
    hook(tmp_path)
    for name in ("cutlass", "cute"):
        assert (tmp_path / "deep_gemm" / "include" / name / f"{name}.h").read_text() == name


# --- as a program ---------------------------------------------------------------------------------


def run_program(request: build_steps.BuildRequest, folder: Path) -> tuple[int, str, dict[str, Any]]:
    path = folder / "request.json"
    request.write(path)
    done = subprocess.run(
        (sys.executable, build_steps.__file__, str(path)),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, json.loads(Path(request.work, "outcome.json").read_text())


def test_a_request_survives_its_file(make_request: Make, tmp_path: Path) -> None:
    request = make_request(
        env={"A": "1"}, path=("/x",), include_dirs=("i",), hooks_before_build=("h",),
        hooks_after_collect=("g",), ignored={"x": "y"}, jobs=4, source_date_epoch="5",
    )  # fmt: skip
    request.write(tmp_path / "request.json")
    assert build_steps.BuildRequest.read(tmp_path / "request.json") == request


def test_the_program_writes_its_outcome(make_request: Make, tmp_path: Path) -> None:
    status, _, outcome = run_program(make_request(), tmp_path)
    assert status == 0
    assert outcome["files"] == ["alpha/__init__.py"]
    assert outcome["distribution"] == "alpha-ops"


def test_the_program_fails_with_status_1_and_the_problems(
    make_request: Make, tmp_path: Path
) -> None:
    status, output, outcome = run_program(make_request({"README": "x"}), tmp_path)
    assert status == 1
    assert outcome["stage"] == "prepare"
    assert outcome["problems"][0] in output


def test_sources_that_changed_since_their_hash_was_taken_are_not_built(make_request: Make) -> None:
    request = make_request({"pyproject.toml": PYPROJECT, **INIT})
    taken = build_manifest.tree_hash(Path(request.source))
    good = dataclasses.replace(request, tree=taken)
    assert build_steps.build_library(good).distribution == "alpha-ops"
    Path(request.source, "alpha", "late.py").write_text("x = 1\n")
    error = failed(good)
    assert error.stage == "prepare"
    assert "changed while the run went on" in error.problems[0]
    assert taken in error.problems[0]
