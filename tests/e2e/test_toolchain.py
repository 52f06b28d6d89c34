"""Toolchains put together from real packages, and what they compile, judged by cuobjdump and readelf."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ci.errors import InfrastructureError, ToolchainError
from ci.toolchain import Toolchain, describe, resolve_toolchain, rows
from ci.toolchain.model import OLDEST_CLANG
from ci.toolchain.probe import CUDA_ROOTS_VARIABLE, find_clangs

pytestmark = [pytest.mark.network, pytest.mark.slow]

REPOSITORY = Path(__file__).resolve().parents[2]

KERNEL = """
#include <cub/cub.cuh>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T> __global__ void total(const T *in, float *out) {
  using Reduce = cub::BlockReduce<float, 128>;
  __shared__ typename Reduce::TempStorage storage;
  float sum = Reduce(storage).Sum(static_cast<float>(in[threadIdx.x]));
  if (threadIdx.x == 0) *out = expf(sum);
}

extern "C" int launch(const void *half, const void *bfloat, float *out, void *space, size_t size) {
  total<<<1, 128>>>(static_cast<const __half *>(half), out);
  total<<<1, 128>>>(static_cast<const __nv_bfloat16 *>(bfloat), out);
  cub::DeviceReduce::Sum(space, size, out, out + 1, 128);
  return static_cast<int>(cudaGetLastError());
}

extern "C" int runtime_version(int *version) {
  return static_cast<int>(cudaRuntimeGetVersion(version));
}
"""
SMALL = "__global__ void k(float *o) { *o = 1; }\nvoid f(float *o) { k<<<1, 1>>>(o); }\n"
NO_DRIVER = 35  # cudaErrorInsufficientDriver, driver_types.h


def bare(**variables: str) -> dict[str, str]:
    """This environment on a machine without any CUDA toolkit."""
    named = ("CUDA_HOME", "CUDA_PATH", "NVCC_CCBIN", "CUDAHOSTCXX", "CXX", "CC")
    kept = {name: value for name, value in os.environ.items() if name not in named}
    folders = kept["PATH"].split(os.pathsep)
    kept["PATH"] = os.pathsep.join(path for path in folders if not Path(path, "nvcc").exists())
    return kept | {CUDA_ROOTS_VARIABLE: ""} | variables


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Path:
    """A cache with no toolchain in it. Downloads are those of the machine's cache."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def downloads(cache_dir: Path) -> str:
    return os.environ.get("UV_CACHE_DIR", str(cache_dir / "uv"))


def resolved(cuda: str, compiler: str, cache: Path, downloads: str) -> Toolchain:
    environ = bare(UV_CACHE_DIR=downloads)
    return resolve_toolchain(cuda, compiler, cache, environ=environ, progress=print)


@pytest.fixture(scope="module")
def nvcc13(cache: Path, downloads: str) -> Toolchain:
    return resolved("13.0", "auto", cache, downloads)


@pytest.fixture(scope="module")
def clang_toolchain(request: pytest.FixtureRequest, cache: Path, downloads: str) -> Toolchain:
    if not any(fact.major >= OLDEST_CLANG for fact in find_clangs(bare())):
        pytest.skip(f"no clang >= {OLDEST_CLANG}: apt-get install clang-{OLDEST_CLANG}")
    return resolved(request.param, "clang", cache, downloads)


def build_environment(toolchain: Toolchain, **variables: str) -> dict[str, str]:
    """What a library's build sees: the toolchain's variables and a short PATH."""
    folders = [*map(str, toolchain.path_entries()), "/usr/bin", "/bin"]
    return toolchain.environment() | {"PATH": os.pathsep.join(folders)} | variables


def compiled(toolchain: Toolchain, folder: Path, *options: str, text: str = SMALL) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "k.cu").write_text(text)
    argv = ["nvcc", "-Xcompiler", "-fPIC", "-shared", "-o", "k.so", "k.cu", *options]
    ran = subprocess.run(
        argv,
        cwd=folder,
        env=build_environment(toolchain),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder / "k.so"


def device_code(library: Path) -> list[str]:
    """What cuobjdump sees: ``sm_90a`` for a binary, ``compute_90`` for PTX, sorted, each once.

    NVIDIA's nvcc adds an empty binary per target when it links.
    """
    files = importlib.metadata.files("nvidia-cuda-cuobjdump") or []
    program = next(file for file in files if file.name == "cuobjdump").locate()
    found: set[str] = set()
    for option, kind in (("--list-elf", "sm"), ("--list-ptx", "compute")):
        ran = subprocess.run(
            [str(program), option, str(library)], capture_output=True, text=True, check=False
        )
        listed = re.findall(r"\.sm_(\w+)\.(?:cubin|ptx)", ran.stdout)
        found |= {f"{kind}_{arch}" for arch in listed}
    return sorted(found)


def needed(library: Path) -> list[str]:
    ran = subprocess.run(
        ["readelf", "-dW", str(library)], capture_output=True, text=True, check=True
    )
    return re.findall(r"\(NEEDED\).*\[(.+)\]", ran.stdout)


def called(library: Path, **environ: str) -> list[str]:
    """Load the library in a fresh process and call it: status of a launch, then of a question."""
    code = (
        "import ctypes, sys; library = ctypes.CDLL(sys.argv[1]); version = ctypes.c_int(-1)\n"
        "print(library.launch(None, None, None, None, ctypes.c_size_t(0)),"
        " library.runtime_version(ctypes.byref(version)), version.value)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(library)],
        env={"PATH": "/usr/bin:/bin"} | environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.split()


def gencode(*arches: str) -> list[str]:
    return [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in arches]


# -- nvcc from packages --------------------------------------------------------------------------


def test_cuda_13_is_complete(nvcc13: Toolchain, tmp_path: Path) -> None:
    assert nvcc13.origin == "cache"
    assert nvcc13.publishable
    home = nvcc13.cuda_home
    for name in ("lib64/libcudart.so", "lib64/libcudart_static.a", "lib64/stubs/libcuda.so"):
        assert (home / name).exists(), name
    arches = ("80", "90a", "103a")
    library = compiled(nvcc13, tmp_path, *gencode(*arches), "-lcuda", text=KERNEL)
    assert device_code(library) == sorted(f"sm_{arch}" for arch in arches)
    assert not any(name.startswith(("libcuda.", "libcudart")) for name in needed(library))


def test_a_program_links_with_the_drivers_stub(nvcc13: Toolchain, tmp_path: Path) -> None:
    (tmp_path / "main.cpp").write_text(
        "#include <cuda.h>\nint main() { return cuInit(0) + cuCtxSynchronize(); }\n"
    )
    subprocess.run(
        ["nvcc", "main.cpp", "-o", "main", "-lcuda"],
        cwd=tmp_path,
        env=build_environment(nvcc13),
        check=True,
    )
    assert "libcuda.so.1" in needed(tmp_path / "main")


def test_another_place_has_the_same_identity(
    nvcc13: Toolchain, downloads: str, tmp_path: Path
) -> None:
    other = resolved("13.0", "nvcc", tmp_path, downloads)
    assert other.cuda_home != nvcc13.cuda_home
    assert other.identity() == nvcc13.identity()
    assert str(tmp_path) not in other.identity()
    taken = {"CUDA_HOME": str(nvcc13.cuda_home)}
    environ = bare(**taken)
    installed = resolve_toolchain("13.0", "auto", tmp_path, environ=environ, progress=print)
    assert installed.origin == "CUDA_HOME"
    assert installed.identity() == nvcc13.identity()


def test_two_processes_make_one_home(downloads: str, tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from ci.toolchain import resolve_toolchain\n"
        "toolchain = resolve_toolchain('13.0', 'nvcc', Path(sys.argv[1]), environ=os.environ,"
        " progress=lambda text: print('SAID', text))\n"
        "print('HOME', toolchain.cuda_home)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "cache")]
    environ = bare(UV_CACHE_DIR=downloads)
    both = [
        subprocess.Popen(command, cwd=REPOSITORY, env=environ, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    told = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    homes = {line for text in told for line in text.splitlines() if line.startswith("HOME")}
    assert len(homes) == 1
    assert sum("fetching" in text for text in told) == 1
    folders = [path for path in (tmp_path / "cache" / "toolchains").iterdir() if path.is_dir()]
    assert len(folders) == 1


def test_without_a_network_the_run_ends_with_infrastructure(tmp_path: Path) -> None:
    environ = bare(
        UV_CACHE_DIR=str(tmp_path / "downloads"),
        UV_DEFAULT_INDEX="http://127.0.0.1:9/simple",
        UV_HTTP_RETRIES="0",
    )
    with pytest.raises(InfrastructureError) as caught:
        resolve_toolchain("13.0", "auto", tmp_path / "c", environ=environ, progress=print)
    assert caught.value.exit_code == 4
    assert "cannot be reached" in caught.value.cause
    assert caught.value.next_step
    left = [path for path in (tmp_path / "c" / "toolchains").iterdir() if path.is_dir()]
    assert left == []


def test_cuda_12_is_refused_and_described(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError) as caught:
        resolve_toolchain("12.6", "auto", tmp_path, environ=bare(), progress=print)
    assert caught.value.exit_code == 3
    document = describe(["12.6", "13.0"], "auto", tmp_path, bare())
    lines = "\n".join(rows(document))
    assert caught.value.next_step in lines
    assert "13.0  nvcc of CUDA 13.0, packages, to be fetched" in lines
    assert list(tmp_path.iterdir()) == []


# -- clang ---------------------------------------------------------------------------------------

TARGETS = {
    "12.6": ("80", "90a"),
    "12.9": ("80", "90a", "100", "100a", "103", "103a"),
    "13.0": ("80", "100a"),
}


@pytest.mark.parametrize("clang_toolchain", sorted(TARGETS), indirect=True)
def test_clang_makes_exactly_the_targets(clang_toolchain: Toolchain, tmp_path: Path) -> None:
    toolchain = clang_toolchain
    assert not toolchain.publishable
    assert "clang" in toolchain.not_publishable_because
    assert toolchain.ptxas_version.startswith(toolchain.cuda + ".")
    arches = TARGETS[toolchain.cuda]
    library = compiled(
        toolchain, tmp_path, "-O3", "-std=c++17", *gencode(*arches), "-lcuda", text=KERNEL
    )
    assert device_code(library) == sorted(f"sm_{arch}" for arch in arches)
    assert not any("cuda" in name for name in needed(library))
    status, *_ = called(library)
    assert int(status) == NO_DRIVER or Path("/dev/nvidiactl").exists()


@pytest.mark.parametrize("clang_toolchain", ["12.6"], indirect=True)
def test_the_run_time_library_is_found_where_packages_have_no_static_one(
    clang_toolchain: Toolchain, tmp_path: Path
) -> None:
    library = compiled(clang_toolchain, tmp_path, *gencode("80"), text=KERNEL)
    assert called(library)[1:] == [str(NO_DRIVER), "-1"]
    found = called(library, LD_LIBRARY_PATH=str(clang_toolchain.cuda_home / "lib"))
    assert found[1:] == ["0", "12060"]


@pytest.mark.parametrize("clang_toolchain", ["12.9", "13.0"], indirect=True)
def test_the_run_time_library_of_the_packages_is_linked(
    clang_toolchain: Toolchain, tmp_path: Path
) -> None:
    library = compiled(clang_toolchain, tmp_path, *gencode("80"), text=KERNEL)
    major, minor = clang_toolchain.cuda.split(".")
    assert called(library)[1:] == ["0", f"{major}0{minor}0"]


@pytest.mark.parametrize("clang_toolchain", ["13.0"], indirect=True)
@pytest.mark.parametrize(
    "options",
    [
        ["-arch=sm_80"],
        ["-arch=compute_90a", "-code=sm_90a"],
        ["-gencode=arch=compute_90a,code=[sm_90a,compute_90a]"],
        ["-arch=compute_90", "-code=sm_90,compute_90"],
        [
            "-gencode",
            "arch=compute_80,code=[sm_80,compute_80]",
            "-gencode=arch=compute_90,code=sm_90",
        ],
        [],
    ],
    ids=" ".join,
)
def test_targets_are_read_as_nvidias_nvcc_reads_them(
    nvcc13: Toolchain, clang_toolchain: Toolchain, tmp_path: Path, options: list[str]
) -> None:
    real = device_code(compiled(nvcc13, tmp_path / "nvcc", *options))
    ours = device_code(compiled(clang_toolchain, tmp_path / "clang", *options))
    assert real
    assert ours == real


@pytest.mark.parametrize("clang_toolchain", ["12.6"], indirect=True)
def test_clang_takes_the_options_of_extension_builds(
    clang_toolchain: Toolchain, tmp_path: Path
) -> None:
    (tmp_path / "k.cu").write_text('#include "k.h"\n' + KERNEL)
    (tmp_path / "k.h").write_text("static_assert(NAME == 3 && __CUDACC_VER_MAJOR__ == 12);\n")
    argv = ["nvcc", "-c", "k.cu", "-o", "k.o", "-DNAME=3", "--compiler-options", "'-fPIC'"]
    argv += [f"-I{clang_toolchain.cuda_home / 'include'}", "-D__CUDA_NO_HALF_OPERATORS__"]
    argv += ["--expt-relaxed-constexpr", "--expt-extended-lambda", "-use_fast_math", "-lineinfo"]
    argv += ["-gencode=arch=compute_80,code=sm_80", "-std=c++17", "--threads=2", "-Xptxas=-v"]
    argv += ["--generate-dependencies-with-compile", "--dependency-output", "k.d"]
    environ = build_environment(clang_toolchain)
    subprocess.run(argv, cwd=tmp_path, env=environ, check=True)
    assert device_code(tmp_path / "k.o") == ["sm_80"]
    dependencies = (tmp_path / "k.d").read_text()
    assert dependencies.startswith("k.o:")
    assert " k.h" in dependencies
    first = (tmp_path / "k.o").read_bytes()
    subprocess.run(argv, cwd=tmp_path, env=environ, check=True)
    assert (tmp_path / "k.o").read_bytes() == first


@pytest.mark.parametrize("clang_toolchain", ["12.6"], indirect=True)
def test_what_clang_cannot_do_is_said(clang_toolchain: Toolchain, tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(SMALL)
    (tmp_path / "bad.cu").write_text("__global__ void k() { undeclared = 1; }\n")
    for options, said in (
        (["k.cu", "-gencode=arch=compute_100f,code=sm_100f"], "sm_100f"),
        (["k.cu", "-gencode=arch=compute_100,code=sm_100"], "sm_100"),
        (["k.cu", "-rdc=true"], "-rdc"),
        (["k.cu", "--no-such-option"], "--no-such-option"),
        (["bad.cu"], "use of undeclared identifier 'undeclared'"),
    ):
        ran = subprocess.run(
            ["nvcc", "-c", *options],
            cwd=tmp_path,
            env=build_environment(clang_toolchain),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode != 0, options
        assert said in ran.stderr
    assert list(tmp_path.glob("*.o")) == []
