"""What the environment of a build gives a compiler: headers of installed packages, no place of the build."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ci.registry import build_steps

EXTENSION = """\
from setuptools import Extension, setup
setup(name="alpha-ops", version="1", packages=["alpha"], ext_modules=[
    Extension("alpha.core", ["src/core.{suffix}"], extra_compile_args=["-g"])])
"""
CORE = """\
#include <Python.h>
#include "inner.h"
static struct PyModuleDef definition = {{PyModuleDef_HEAD_INIT, "core", PLACE, -1, NULL}};
{linkage} PyMODINIT_FUNC PyInit_core(void) {{ return PyModule_Create(&definition); }}
"""
HEADER = "#define PLACE __FILE__\n"


def compiled(make_request: object, suffix: str, **changes: object) -> bytes:
    """The extension module of a project whose code holds the path of its own file."""
    linkage = 'extern "C"' if suffix == "cc" else ""
    request = make_request(  # type: ignore[operator]
        {
            "setup.py": EXTENSION.format(suffix=suffix),
            "alpha/__init__.py": "",
            f"src/core.{suffix}": CORE.format(linkage=linkage),
            "src/inner.h": HEADER,
        },
        **changes,
    )
    build_steps.build_library(request)
    (module,) = Path(request.out).rglob("core*.so")
    return module.read_bytes()


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on PATH")
@pytest.mark.parametrize("suffix", ["c", "cc"])
def test_neither_code_nor_debug_information_holds_the_place_of_the_build(
    make_request: object, tmp_path: Path, suffix: str
) -> None:
    content = compiled(make_request, suffix)
    assert str(tmp_path).encode() not in content
    assert b"src/core." in content


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on PATH")
@pytest.mark.parametrize("suffix", ["c", "cc"])
def test_python_s_own_flags_stay(make_request: object, suffix: str) -> None:
    """A variable that took their place would cost the optimiser, and leave Python's assertions in."""
    probe = '#ifdef NDEBUG\n#define PLACE "optimised"\n#else\n#define PLACE "debug"\n#endif\n'
    linkage = 'extern "C"' if suffix == "cc" else ""
    request = make_request(  # type: ignore[operator]
        {
            "setup.py": EXTENSION.format(suffix=suffix),
            "alpha/__init__.py": "",
            f"src/core.{suffix}": CORE.format(linkage=linkage),
            "src/inner.h": probe,
        }
    )
    build_steps.build_library(request)
    (module,) = Path(request.out).rglob("core*.so")
    assert b"optimised" in module.read_bytes()


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on PATH")
def test_a_declaration_s_own_flags_win(make_request: object, tmp_path: Path) -> None:
    content = compiled(make_request, "c", env={"CPPFLAGS": "-DOWN"})
    assert str(tmp_path).encode() in content


def environment(tmp_path: Path, **changes: object) -> dict[str, str]:
    request = build_steps.BuildRequest(
        library="alpha", source="s", work=str(tmp_path), out="o", artifacts=(), **changes
    )  # type: ignore[arg-type]
    return build_steps.build_environment(request, tmp_path)


def test_the_environment_and_the_toolkit_are_named_too(tmp_path: Path) -> None:
    seen = environment(tmp_path, env={"CUDA_HOME": "/somewhere/cuda-13.0"})
    assert f"-ffile-prefix-map={sys.prefix}=environment" in seen["CPPFLAGS"].split()
    assert "-ffile-prefix-map=/somewhere/cuda-13.0=cuda" in seen["CPPFLAGS"].split()
    assert all(word.startswith("-Xcompiler=-f") for word in seen["NVCC_APPEND_FLAGS"].split())


def test_a_linked_folder_is_named_under_both_of_its_names(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    flags = environment(tmp_path / "link")["CPPFLAGS"]
    assert f"={tmp_path}/link/source=." in flags
    assert f"={tmp_path}/real/source=." in flags


@pytest.mark.parametrize("name", ["with space", "with,comma", "with=sign"])
def test_a_folder_that_a_flag_cannot_hold_is_left_out(tmp_path: Path, name: str) -> None:
    assert name not in environment(tmp_path / name)["CPPFLAGS"]


# --- headers of installed packages ----------------------------------------------------------------


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that this interpreter sees, with two that bring headers."""
    folder = tmp_path / "overlay" / "site-packages"
    for name in ("first", "second"):
        (folder / "vendor" / name / "include").mkdir(parents=True)
    (folder / "vendor" / "third" / "lib").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    return folder


def test_a_pattern_names_the_include_folders_of_packages(packages: Path, tmp_path: Path) -> None:
    wanted = ("csrc", "{site-packages}/vendor/*/include")
    seen = environment(tmp_path, include_dirs=wanted)["CPLUS_INCLUDE_PATH"].split(os.pathsep)
    assert seen == [
        str(tmp_path / "source" / "csrc"),
        str(packages / "vendor" / "first" / "include"),
        str(packages / "vendor" / "second" / "include"),
    ]


def test_a_pattern_without_a_package_fails_the_build_and_says_what_lacks(
    packages: Path, tmp_path: Path
) -> None:
    with pytest.raises(build_steps.BuildFailedError, match="build_requires") as caught:
        environment(tmp_path, include_dirs=("{site-packages}/absent/*/include",))
    assert caught.value.stage == "prepare"
    assert "'absent/*/include'" in caught.value.problems[0]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on PATH")
def test_the_compiler_finds_a_header_there(packages: Path, tmp_path: Path) -> None:
    (packages / "vendor" / "first" / "include" / "only_there.h").write_text("#define ANSWER 42\n")
    source = tmp_path / "main.cc"
    source.write_text("#include <only_there.h>\nstatic_assert(ANSWER == 42);\n")
    for wanted, status in ((("{site-packages}/vendor/*/include",), 0), ((), 1)):
        done = subprocess.run(
            ["g++", "-std=c++17", "-fsyntax-only", str(source)],
            env=environment(tmp_path, include_dirs=wanted), capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
