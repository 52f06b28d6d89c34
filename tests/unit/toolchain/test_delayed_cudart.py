"""The run-time library that is found when a library is loaded: built and run with small ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ci.errors import ToolchainError
from ci.toolchain import delayed_cudart

ENVIRON = {"PATH": "/usr/bin:/bin"}
RUNTIME = """
int cudaAnswer(int a, double b) { return a + (int)b; }
int cudaSeven(long a, long b, long c, long d, long e, long f, long g) { return a+b+c+d+e+f+g; }
const char *cudaGetErrorString(int e) { return e ? "bad" : "good"; }
void **__cudaRegisterFatBinary(void *p) { return (void **)p; }
"""
USER = """
int cudaAnswer(int, double);
int cudaSeven(long, long, long, long, long, long, long);
const char *cudaGetErrorString(int);
void **__cudaRegisterFatBinary(void *);
static void **handle;
__attribute__((constructor)) static void module(void) { handle = __cudaRegisterFatBinary(&handle); }
int answer(void) { return cudaAnswer(40, 2.0); }
int seven(void) { return cudaSeven(1, 2, 3, 4, 5, 6, 7); }
const char *text(void) { return cudaGetErrorString(0); }
int registered(void) { return handle == (void **)&handle; }
"""
ASK = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.text.restype = ctypes.c_char_p
print(library.answer(), library.seven(), library.registered(), library.text().decode())
"""


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A shared library that is linked with the archive, and the run-time library it was made from."""
    lib = tmp_path / "lib"
    lib.mkdir()
    compile_shared(lib / "libcudart.so.12", RUNTIME, "-Wl,-soname,libcudart.so.12")
    archive = delayed_cudart.make(lib, Path("/usr/bin/gcc"), ENVIRON)
    assert sorted(path.name for path in lib.iterdir()) == ["libcudart.so.12", archive.name]
    package = tmp_path / "site" / "paddlefleet_ops" / "lib"
    package.mkdir(parents=True)
    compile_shared(package / "user.so", USER, f"-L{lib}", "-lcudart_static", "-ldl")
    return package / "user.so"


def compile_shared(target: Path, text: str, *options: str) -> None:
    source = target.with_name(target.name + ".c")
    source.write_text(text)
    command = ["gcc", "-shared", "-fPIC", "-o", str(target), str(source), *options]
    subprocess.run(command, check=True)
    source.unlink()


def asked(library: Path, **environ: str) -> str:
    command = [sys.executable, "-c", ASK, str(library)]
    ran = subprocess.run(command, env=ENVIRON | environ, capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def test_without_the_library_each_call_answers_as_without_a_driver(user: Path) -> None:
    told = asked(user)
    assert told == "35 35 0 the CUDA run-time library libcudart.so.12 was not found"


def test_the_library_that_the_loader_finds_is_used(user: Path, tmp_path: Path) -> None:
    assert asked(user, LD_LIBRARY_PATH=str(tmp_path / "lib")) == "42 28 1 good"


def test_the_library_of_the_packages_beside_is_used(user: Path, tmp_path: Path) -> None:
    beside = tmp_path / "site" / "nvidia" / "cuda_runtime" / "lib"
    beside.mkdir(parents=True)
    (tmp_path / "lib" / "libcudart.so.12").rename(beside / "libcudart.so.12")
    assert asked(user) == "42 28 1 good"


def test_the_library_that_the_process_already_has_is_used(user: Path, tmp_path: Path) -> None:
    first = tmp_path / "elsewhere"
    first.mkdir()
    (tmp_path / "lib" / "libcudart.so.12").rename(first / "libcudart.so.12")
    preload = f"import ctypes; ctypes.CDLL({str(first / 'libcudart.so.12')!r})\n"
    command = [sys.executable, "-c", preload + ASK, str(user)]
    ran = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "42 28 1 good"


def test_no_name_of_the_run_time_library_is_needed_or_shown(user: Path) -> None:
    def read(option: str) -> str:
        command = ["readelf", option, str(user)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert "libcudart" not in read("-dW")
    symbols = [line.split()[-1] for line in read("--dyn-syms").splitlines() if line.strip()]
    assert not any("cuda" in symbol for symbol in symbols)


def test_only_cudas_functions_are_taken() -> None:
    text = (
        "00024 T cudaMalloc@@libcudart.so.12\n00030 T __cudaX@@V\n00040 T other\n00050 D cudaData\n"
    )
    assert delayed_cudart.functions(text) == ("__cudaX", "cudaMalloc")


def test_packages_without_the_library_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"no usable libcudart\.so"):
        delayed_cudart.make(tmp_path, Path("/usr/bin/gcc"), ENVIRON)
