"""Built again exactly when what comes out must change, or may: a C++ library, a real compiler, real git.

The library has two translation units, a header that one of them includes, and a nested submodule. It is
built once; then each test changes one thing in a copy of it in another folder, runs the farm with the same
cache, and says whether it was built again and whether its bytes are others. An input that changes the key
but not the bytes is built again for nothing, which is sound; the wheel is then taken as it was, unless its
own record of the sources changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ci.graph.evidence import read_evidence
from ci.toolchain import resolve_toolchain
from tests.e2e.conftest import REPOSITORY, Farm, Ran
from tests.e2e.test_toolchain import SMALL, device_code

pytestmark = [pytest.mark.slow, pytest.mark.network]

SETUP = """
import os
import subprocess

from setuptools import setup
from setuptools.command.build_py import build_py


class Compile(build_py):
    def run(self):
        super().run()
        flags = [*os.environ["CPPFLAGS"].split(), *os.environ["PROBE_FLAGS"].split()]
        for name in ("one", "two"):
            argv = [os.environ["CXX"], "-c", "-fPIC", *flags, f"csrc/{name}.cpp", "-o", f"{name}.o"]
            subprocess.check_call(argv)
        library = os.path.join(self.build_lib, "probe", "libprobe.so")
        subprocess.check_call([os.environ["CXX"], "-shared", "one.o", "two.o", "-o", library])


setup(cmdclass={"build_py": Compile})
"""
FILES = {
    "setup.py": SETUP,
    "pyproject.toml": '[build-system]\nrequires = ["setuptools>=77"]\n'
    'build-backend = "setuptools.build_meta"\n[project]\nname = "probe"\nversion = "1.0"\n'
    '[tool.setuptools]\npackages = ["probe"]\n',
    "probe/__init__.py": "run = str\n",
    "csrc/one.h": "#define ONE 1\n",
    "csrc/one.cpp": '#include "one.h"\n#include "../extern/inner/inner.h"\n'
    'extern "C" int one() { return ONE + INNER + LEVEL; }\n',
    "csrc/two.cpp": "#include <numeric>\n#include <vector>\n"
    'extern "C" int two(int size) {\n  std::vector<int> numbers(size, LEVEL);\n'
    "  return std::accumulate(numbers.begin(), numbers.end(), 0);\n}\n",
}
DECLARATION = """
from build_utils import Artifact, EcosystemLibrary

LIBRARIES = (
    EcosystemLibrary(
        name="probe",
        source_rel_path="probe-source",
        artifacts=(Artifact("probe", "probe"),),
        module="probe",
        kind="header_only",
        hint="guard the call with is_probe_available()",
        public_names=("run",),
        compat_scope=("probe",),
        varies_by=frozenset(),
        needs_host_compiler=True,
        build_requires=("setuptools>=77",),
        extra_env={"PROBE_FLAGS": "FLAGS"},
        library_set="declared",
    ),
)
"""
FLAGS = "-O2 -O0 -DLEVEL=1"
GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "protocol.file.allow",
    "GIT_CONFIG_VALUE_0": "always",
    **dict.fromkeys(
        ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"),
        "somebody@example.org",
    ),
}


def git(folder: Path, *arguments: str) -> None:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(
        ("git", *arguments), cwd=folder, env=environ | GIT, check=True, capture_output=True
    )


@dataclass(frozen=True)
class Project:
    """A folder with the declaration and the sources, and how the farm is called for them."""

    folder: Path
    farm: Farm
    flags: str = FLAGS
    jobs: str = "2"
    cxx: str = "/usr/bin/g++"

    @property
    def source(self) -> Path:
        return self.folder / "probe-source"

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.source / name).read_text()
        assert old in text
        (self.source / name).write_text(text.replace(old, new))


@dataclass(frozen=True)
class Built:
    """What a run made: whether the library was built, whether the wheel was, and the library's bytes."""

    built: bool
    wheel_made: bool
    sha256: str
    key: str


def run(project: Project) -> Built:
    declaration = project.folder / "declare.py"
    declaration.write_text(DECLARATION.replace('FLAGS"}', f'{project.flags}"}}'))
    done: Ran = project.farm.run(
        "wheel", "--set", "templates", "--declare", str(declaration), "--libs", "probe", "--cuda", "13.0",
        "--no-import", "--compiler-cache", "none", "--executor", "host", "--jobs", project.jobs,
        "--out-dir", str(project.folder / "out"), "--json", env={"CXX": project.cxx},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = (row for row in done.cell["libraries"] if row["library"] == "probe")
    with zipfile.ZipFile(done.cell["wheel"]) as wheel:
        content = wheel.read("paddlefleet_ops/probe/libprobe.so")
    return Built(
        row["status"] == "built",
        not done.cell["wheel_from"],
        hashlib.sha256(content).hexdigest(),
        row["key"],
    )


def own_cache(folder: Path, cache_dir: Path) -> Path:
    """A cache where nothing is built; environments are those of this machine."""
    folder.mkdir()
    for name in ("environments", "locks"):
        (cache_dir / name).mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(cache_dir / name)
    return folder


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Project:
    """The library as it is before any change, in git, with its submodule."""
    folder = tmp_path_factory.mktemp("original")
    inner = folder / "inner"
    inner.mkdir()
    (inner / "inner.h").write_text("#define INNER 1\n")
    for name, text in FILES.items():
        path = folder / "probe-source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for place in (inner, folder / "probe-source"):
        git(place, "init", "-q")
        git(place, "add", ".")
        git(place, "commit", "-q", "-m", "first")
    git(folder / "probe-source", "submodule", "--quiet", "add", str(inner), "extern/inner")
    git(folder / "probe-source", "commit", "-q", "-m", "with its submodule")
    cache = own_cache(folder / "cache", cache_dir)
    return Project(folder, Farm(REPOSITORY, cache))


@pytest.fixture(scope="module")
def first(original: Project) -> Built:
    built = run(original)
    assert built.built
    return built


@pytest.fixture
def project(original: Project, first: Built, tmp_path: Path) -> Project:
    """The same library in another folder, after it was built."""
    shutil.copytree(original.source, tmp_path / "probe-source", symlinks=True)
    return replace(original, folder=tmp_path)


# --- what must build again, and what comes out --------------------------------------------------------


def renamed(project: Project) -> None:
    (project.source / "csrc/one.h").rename(project.source / "csrc/uno.h")
    project.edit("csrc/one.cpp", "one.h", "uno.h")


def committed_below(project: Project) -> None:
    inner = project.source / "extern/inner"
    (inner / "inner.h").write_text("#define INNER 3\n")
    git(inner, "commit", "-q", "-a", "-m", "another")


OTHER_BYTES: dict[str, Callable[[Project], object]] = {
    "a header that one unit includes": lambda it: it.edit("csrc/one.h", "ONE 1", "ONE 2"),
    "a nested submodule, not committed": lambda it: it.edit(
        "extern/inner/inner.h", "INNER 1", "INNER 2"
    ),
    "a nested submodule, committed": committed_below,
}
SAME_BYTES: dict[str, Callable[[Project], object]] = {
    "a comment": lambda it: it.edit("csrc/one.h", "ONE 1", "ONE 1  // as before"),
    "an untracked file": lambda it: (it.source / "csrc/notes.txt").write_text(
        "may be read by a build"
    ),
    "a file's mode": lambda it: (it.source / "csrc/one.cpp").chmod(0o755),
    "a file's name": renamed,
}


@pytest.mark.parametrize("name", OTHER_BYTES)
def test_another_content_is_built_again(project: Project, first: Built, name: str) -> None:
    OTHER_BYTES[name](project)
    now = run(project)
    assert now.built
    assert now.sha256 != first.sha256


@pytest.mark.parametrize("name", SAME_BYTES)
def test_what_may_matter_is_built_again(project: Project, first: Built, name: str) -> None:
    SAME_BYTES[name](project)
    now = run(project)
    assert now.built
    assert now.sha256 == first.sha256


def test_a_macro_of_the_declaration(project: Project, first: Built) -> None:
    now = run(replace(project, flags=FLAGS.replace("LEVEL=1", "LEVEL=2")))
    assert now.built
    assert now.sha256 != first.sha256


def test_the_order_of_flags_that_matters(project: Project, first: Built) -> None:
    now = run(replace(project, flags="-O0 -O2 -DLEVEL=1"))
    assert now.built
    assert now.sha256 != first.sha256


def test_the_order_of_flags_that_does_not_matter_ends_at_the_wheel(
    project: Project, first: Built
) -> None:
    """Nobody can tell but by building: the same bytes come out, and the wheel stays."""
    now = run(replace(project, flags="-DLEVEL=1 -O2 -O0"))
    assert (now.built, now.wheel_made) == (True, False)
    assert now.sha256 == first.sha256


def test_many_changes_at_once_and_back(project: Project, first: Built) -> None:
    """The original content is found again, in whatever way it came back."""
    for change in (*OTHER_BYTES.values(), SAME_BYTES["an untracked file"]):
        if change is not committed_below:
            change(project)
    git(project.source, "checkout", "--quiet", "--", ".")
    git(project.source / "extern/inner", "checkout", "--quiet", "--", ".")
    (project.source / "csrc/notes.txt").unlink()
    now = run(project)
    assert (now.built, now.key, now.sha256) == (False, first.key, first.sha256)


# --- compilers ----------------------------------------------------------------------------------------


def compiler(folder: Path, version: str, options: str = "") -> str:
    """A compiler of another version: gcc behind a script that says so."""
    folder.mkdir(exist_ok=True)
    for name in ("g++", "gcc"):
        answers = f'--version) echo "{name} {version}"; exit;; -dump*) echo {version}; exit;;'
        script = f'case "$1" in {answers} esac'
        (folder / name).write_text(f'#!/bin/sh\n{script}\nexec /usr/bin/{name} {options} "$@"\n')
        (folder / name).chmod(0o755)
    return str(folder / "g++")


def test_another_version_of_the_compiler(project: Project, first: Built) -> None:
    old = run(replace(project, cxx=compiler(project.folder / "old", "12.1.0")))
    new = run(replace(project, cxx=compiler(project.folder / "new", "12.2.9")))
    assert (old.built, new.built) == (True, True)
    assert len({first.key, old.key, new.key}) == 3
    assert (old.wheel_made, new.wheel_made) == (False, False), "its bytes are the same"
    assert first.sha256 == old.sha256 == new.sha256


def test_a_compiler_with_another_content_under_the_same_version(project: Project) -> None:
    plain = run(replace(project, cxx=compiler(project.folder / "cxx", "12.1.0")))
    other = run(replace(project, cxx=compiler(project.folder / "cxx", "12.1.0", "-DNOISE -g0 -Os")))
    assert other.built
    assert other.key != plain.key


def test_another_assembler_behind_the_same_driver(project: Project, first: Built) -> None:
    tools = project.folder / "tools"
    tools.mkdir()
    keys = set()
    for text in ("# one", "# another"):
        (tools / "as").write_text(f'#!/bin/sh\n{text}\nexec /usr/bin/as "$@"\n')
        (tools / "as").chmod(0o755)
        cxx = compiler(project.folder / "cxx", "12.1.0", f"-B{tools}/")
        now = run(replace(project, cxx=cxx))
        assert now.built
        assert now.sha256 == first.sha256
        keys.add(now.key)
    assert len(keys) == 2


# --- what must not build again --------------------------------------------------------------------------


def test_times_a_commit_and_left_overs_are_not_contents(project: Project, first: Built) -> None:
    for path in project.source.rglob("*.[ch]*"):
        os.utime(path, (time.time(), time.time()))
    git(project.source, "commit", "--quiet", "--allow-empty", "-m", "nothing")
    (project.source / "build").mkdir()
    (project.source / "build/old.o").write_text("left behind")
    (project.source / "probe/__pycache__").mkdir()
    (project.source / "probe/__pycache__/x.pyc").write_text("left behind")
    now = run(project)
    assert (now.built, now.wheel_made, now.sha256) == (False, False, first.sha256)


def test_another_folder_and_another_number_of_jobs(project: Project, first: Built) -> None:
    now = run(replace(project, jobs="1"))
    assert (now.built, now.wheel_made, now.key) == (False, False, first.key)


def test_another_cache_yields_the_same_bytes(
    project: Project, first: Built, cache_dir: Path
) -> None:
    cache = own_cache(project.folder / "other-cache", cache_dir)
    now = run(replace(project, farm=Farm(REPOSITORY, cache), jobs="1"))
    assert (now.built, now.key, now.sha256) == (True, first.key, first.sha256)


# --- device code, judged by cuobjdump -------------------------------------------------------------------


def test_the_architectures_of_real_device_code(tmp_path: Path, cache_dir: Path) -> None:
    """What claims are judged by is what cuobjdump sees in the output of a real nvcc."""
    chosen = resolve_toolchain("13.0", "auto", cache_dir, environ=os.environ, progress=print)
    (tmp_path / "k.cu").write_text(SMALL)
    gencode = ("-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90a,code=sm_90a",
               "-gencode=arch=compute_100,code=[sm_100,compute_100]")  # fmt: skip
    environ = {**os.environ, **chosen.environment()}
    outputs = {
        "libk.so": (*gencode, "-shared", "-Xcompiler", "-fPIC"),
        "libz.so": (*gencode, "-shared", "-Xcompiler", "-fPIC", "-Xfatbin", "-compress-all"),
        "k.o": (*gencode, "-dc"),
        "k.fatbin": (*gencode, "-fatbin"),
        "k.cubin": ("-arch=sm_90a", "-cubin"),
        "k.ptx": ("-arch=compute_90", "-ptx"),
    }
    for name, options in outputs.items():
        argv = (str(chosen.nvcc), *options, "-o", name, "k.cu")
        subprocess.run(argv, cwd=tmp_path, env=environ, check=True, capture_output=True)
        shown = read_evidence(name, tmp_path / name)
        assert shown.has_device_code
        if name not in ("k.cubin", "k.ptx"):
            listed = {int(re.findall(r"\d+", text)[0]) for text in device_code(tmp_path / name)}
            assert shown.architectures == listed == {80, 90, 100}
        else:
            assert shown.architectures == {90}
    host_only = ("-shared", "-Xcompiler", "-fPIC", "-x", "cu", "-o", "librt.so", "rt.cu")
    (tmp_path / "rt.cu").write_text("int f(int *n) { return cudaGetDeviceCount(n); }\n")
    subprocess.run((str(chosen.nvcc), *host_only), cwd=tmp_path, env=environ, check=True)
    shown = read_evidence("librt.so", tmp_path / "librt.so")
    assert shown.static_runtime or shown.has_device_code
