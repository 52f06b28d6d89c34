"""nvcc and the templates behind a compiler cache: found again elsewhere, with the compiler's own bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci.compiler_cache.model import NVCC_BEHIND_CCACHE, CacheStats, Compilers
from ci.compiler_cache.session import Build, Session
from ci.registry import build_steps
from ci.toolchain import Toolchain, resolve_toolchain
from tests.unit.compiler_cache.bench import GXX, Bench, counted, digest, session, usable

from .conftest import REPOSITORY

pytestmark = [pytest.mark.network, pytest.mark.slow]
TEMPLATES = {"header_only": "expert_placement", "cuda_extension": "fused_norm"}
PARTS = 4  # of one nvcc call for one capability: cudafe++, cicc, ptxas, the host compiler


@pytest.fixture(scope="module")
def nvcc(cache_dir: Path) -> Toolchain:
    return resolve_toolchain("13.0", "nvcc", cache_dir, environ=os.environ, progress=print)


# -- the templates, built as the farm builds them --------------------------------------------------


@dataclass(frozen=True)
class Library:
    """One template, built in a folder."""

    kind: str
    folder: Path
    toolchain: Toolchain

    @property
    def compilers(self) -> Compilers:
        cuda = self.toolchain.cuda_home if self.kind == "cuda_extension" else None
        mapped = (str(self.folder / "source"), sys.prefix)
        return Compilers(
            self.toolchain.cc, self.toolchain.cxx, cuda, self.toolchain.identity(), mapped
        )

    @property
    def variables(self) -> dict[str, str]:
        if self.kind != "cuda_extension":
            return self.toolchain.host.environment()
        return self.toolchain.environment() | {"PADDLE_CUDA_ARCH_LIST": "8.0"}

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(map(str, self.toolchain.path_entries()))

    def build(self, build: Build) -> str:
        """Build it and return the hash of its shared library."""
        module = TEMPLATES[self.kind]
        request = build_steps.BuildRequest(
            library=self.kind,
            source=str(REPOSITORY / "packages" / "templates" / self.kind),
            work=str(self.folder),
            out=str(self.folder / "out"),
            artifacts=((module, module),),
            env={**self.variables, **build.environment},
            path=build.path,
            jobs=2,
        )
        request.write(self.folder / "request.json")
        done = subprocess.run(
            (sys.executable, str(build_steps.__file__), str(self.folder / "request.json")),
            env={"PATH": "/usr/bin:/bin"},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (library,) = (self.folder / "out").rglob("*.so")
        return digest(library)

    def built(self, made: Session | None) -> tuple[str, CacheStats]:
        self.folder.mkdir(parents=True)
        if made is None:
            return self.build(Build(path=self.path)), CacheStats()
        with made.build(self.folder, self.compilers, self.path) as build:
            found = self.build(build)
        return found, build.stats


@pytest.mark.parametrize(
    ("kind", "tool", "calls"),
    [
        ("header_only", "sccache", 1),
        ("header_only", "ccache", 1),
        ("cuda_extension", "sccache", 3 * PARTS + 2),
        ("cuda_extension", "ccache", 2),  # nvcc goes past it
    ],
)
def test_a_template_is_found_again_in_another_folder(
    kind: str, tool: str, calls: int, nvcc: Toolchain, tmp_path: Path
) -> None:
    made, warned = session(tool, tmp_path / "cache")
    alone, _ = Library(kind, tmp_path / "alone", nvcc).built(None)
    first, cold = Library(kind, tmp_path / "one", nvcc).built(made)
    second, warm = Library(kind, tmp_path / "two" / "and deeper".replace(" ", "-"), nvcc).built(
        made
    )
    assert first == second == alone
    assert counted(cold) == (0, calls)
    assert counted(warm) == (calls, 0)
    assert sum(warm.uncacheable.values()) == 1  # the link
    assert warned == []


def test_two_builds_at_once_have_their_own_numbers(nvcc: Toolchain, tmp_path: Path) -> None:
    made, _ = session("sccache", tmp_path / "cache")
    one = Bench(tmp_path / "one").write(a__cc="int a() { return 1; }\n")
    two = Bench(tmp_path / "two").write(
        a__cc="int a() { return 2; }\n", b__cc="int b() { return 3; }\n"
    )
    with one.cached(made) as first, two.cached(made) as second:
        first.compile("a.cc")
        second.compile("a.cc")
        second.compile("b.cc")
    assert counted(first.build.stats) == (0, 1)
    assert counted(second.build.stats) == (0, 2)
    assert counted(made.stats()) == (0, 3)


# -- nvcc ------------------------------------------------------------------------------------------

KERNEL = """
#include "scale.cuh"
#include <cassert>
static __device__ float kept;
__global__ void kernel(float *x) { assert(x); kept = *x; *x = scale(*x) + N + __LINE__; }
const char *file() { return __FILE__; }
#ifndef __CUDA_ARCH__
int answer() { return HOST; }
#endif
void run(float *x) { kernel<<<1, 32>>>(x); }
"""
FILES = {
    "k__cu": KERNEL,
    "scale__cuh": "__device__ inline float scale(float x) { return x * 2; }\n",
}
OPTIONS = ("-O2", "-std=c++17", "-DN=1", "-DHOST=41")


class Cuda:
    """One kernel behind sccache and without it."""

    def __init__(self, toolchain: Toolchain, root: Path) -> None:
        self.toolchain = toolchain
        self.root = root
        self.session, self.warned = session("sccache", root / "cache")

    def compile(
        self,
        files: Mapping[str, str],
        *options: str,
        folder: str = "build",
        env: Mapping[str, str] = {},
    ) -> tuple[int, int]:
        """Hits and misses of one call, whose object is the one that nvcc alone gives there."""
        bench = Bench(
            self.root / folder,
            cuda_home=self.toolchain.cuda_home,
            identity=self.toolchain.identity(),
        ).write(**files)
        with bench.cached(self.session) as cached:
            through = cached.nvcc("k.cu", *options, env=env)
        assert through == bench.nvcc("k.cu", *options, env=env)
        assert self.warned == []
        return counted(cached.build.stats)


@pytest.fixture
def cuda(nvcc: Toolchain, tmp_path: Path) -> Cuda:
    return Cuda(nvcc, tmp_path)


def test_nvcc_hits_in_the_same_folder_and_in_another(cuda: Cuda) -> None:
    assert cuda.compile(FILES, *OPTIONS) == (0, PARTS)
    assert cuda.compile(FILES, *OPTIONS) == (PARTS, 0)
    assert cuda.compile(FILES, *OPTIONS, folder="another") == (PARTS, 0)


def test_threads_and_jobserver_are_not_compared(cuda: Cuda) -> None:
    assert cuda.compile(FILES, *OPTIONS) == (0, PARTS)
    for options in (("-t", "2"), ("--threads", "4"), ("-t4",), ("--threads=2",), ("--jobserver",)):
        assert cuda.compile(FILES, *OPTIONS, *options) == (PARTS, 0), options


def test_the_jobserver_in_a_variable_is_not_compared(cuda: Cuda) -> None:
    assert cuda.compile(FILES, *OPTIONS) == (0, PARTS)
    env = {"NVCC_PREPEND_FLAGS": "--jobserver --threads 2"}
    assert cuda.compile(FILES, *OPTIONS, env=env) == (PARTS, 0)


def test_a_change_of_host_code_only(cuda: Cuda) -> None:
    """What ``nvcc -E`` does not show: a cache that compares that gives the old object."""
    assert cuda.compile(FILES, *OPTIONS) == (0, PARTS)
    changed = {**FILES, "k__cu": KERNEL.replace("HOST", "HOST + 1")}
    assert cuda.compile(changed, *OPTIONS)[1] > 0


def test_a_change_of_a_device_header_a_macro_and_an_option(cuda: Cuda) -> None:
    assert cuda.compile(FILES, *OPTIONS) == (0, PARTS)
    changed = {**FILES, "scale__cuh": FILES["scale__cuh"].replace("2", "3")}
    assert cuda.compile(changed, *OPTIONS)[1] > 0
    assert cuda.compile(FILES, *OPTIONS, "-UN", "-DN=2")[1] > 0
    assert cuda.compile(FILES, *OPTIONS, "-Xptxas", "-O1")[1] > 0
    assert cuda.compile(FILES, *OPTIONS, "--fmad=false")[1] > 0


def test_a_moved_line(cuda: Cuda) -> None:
    assert cuda.compile(FILES, *OPTIONS) == (0, PARTS)
    assert cuda.compile({**FILES, "k__cu": "// moved\n" + KERNEL}, *OPTIONS)[1] > 0


def test_lines_in_device_code_keep_their_folder(cuda: Cuda) -> None:
    """The compiler alone writes the folder into the object, so another folder's is no hit."""
    assert cuda.compile(FILES, *OPTIONS, "-lineinfo") == (0, PARTS)
    assert cuda.compile(FILES, *OPTIONS, "-lineinfo") == (PARTS, 0)
    assert cuda.compile(FILES, *OPTIONS, "-lineinfo", folder="another")[1] > 0


def test_device_debugging_goes_past_the_cache(cuda: Cuda) -> None:
    """sccache takes the word behind ``-G`` for its value. No two objects of nvcc are equal with it."""
    bench = Bench(cuda.root / "build", cuda_home=cuda.toolchain.cuda_home).write(**FILES)
    with bench.cached(cuda.session) as cached:
        assert cached.nvcc("k.cu", *OPTIONS, "-G")
    assert counted(cached.build.stats) == (0, 0)
    assert sum(cached.build.stats.uncacheable.values()) == 1


def test_ccache_in_front_of_nvcc_gives_an_old_object(nvcc: Toolchain, tmp_path: Path) -> None:
    """Why ccache is not used for nvcc: this is the fault, with ccache as it comes."""
    ccache = usable("ccache").path
    for value in ("41", "42"):
        (tmp_path / "k.cu").write_text(KERNEL.replace("HOST", value))
        (tmp_path / "scale.cuh").write_text(FILES["scale__cuh"])
        options = ("-c", "-O2", "-DN=1", "-ccbin", str(GXX), "-o", f"{value}.o")
        subprocess.run(
            (str(ccache), str(nvcc.nvcc), *options, "k.cu"),
            cwd=tmp_path,
            env={
                "PATH": "/usr/bin:/bin",
                "CCACHE_DIR": str(tmp_path / "cache"),
                "CCACHE_CONFIGPATH": os.devnull,
            },
            check=True,
        )
    assert (tmp_path / "41.o").read_bytes() == (tmp_path / "42.o").read_bytes()
    assert "old object" in NVCC_BEHIND_CCACHE


def test_errors_of_nvcc_name_the_real_file(nvcc: Toolchain, tmp_path: Path) -> None:
    made, _ = session("sccache", tmp_path / "cache")
    bench = Bench(tmp_path / "build", cuda_home=nvcc.cuda_home).write(
        k__cu="__global__ void k() { y = 1; }\n"
    )
    with bench.cached(made) as cached, pytest.raises(AssertionError) as failed:
        cached.nvcc("k.cu")
    assert f'{bench.source / "k.cu"}(1): error: identifier "y" is undefined' in str(failed.value)
    assert "/_farm/" not in str(failed.value)
