"""The build helper of the ``cuda_extension`` template: what it decides, without a compiler.

The expected nvcc options are those of NVIDIA's "CUDA Compiler Driver NVCC", section "GPU Compilation".
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TEMPLATE = Path(__file__).resolve().parents[3] / "packages" / "templates" / "cuda_extension"


@pytest.fixture(scope="module")
def helper() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "cuda_extension_build_cuda", TEMPLATE / "build_cuda.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def cuda_home(tmp_path: Path) -> Path:
    home = tmp_path / "cuda"
    for name in ("bin/nvcc", "include/cuda_runtime.h", "lib/libcudart_static.a"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("", encoding="utf-8")
    return home


def _environment(home: Path, **more: str) -> dict[str, str]:
    return {"CUDA_HOME": str(home), "PADDLE_CUDA_ARCH_LIST": "8.0;9.0", **more}


def _plan(helper: ModuleType, home: Path, **more: str) -> Any:
    inputs = helper.BuildInputs.from_environment(_environment(home, **more))
    tvm_ffi = helper.TvmFfi((Path("/site/tvm_ffi/include"),), Path("/site/tvm_ffi/lib"))
    return helper.plan(
        inputs, tvm_ffi, Path("/src/csrc"), Path("/temp"), Path("/lib/fused_norm/libfused_norm.so")
    )


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("9.0", ["arch=compute_90,code=sm_90"]),
        ("9.0a", ["arch=compute_90a,code=sm_90a"]),
        ("10.0f", ["arch=compute_100f,code=sm_100f"]),
        ("12.1", ["arch=compute_121,code=sm_121"]),
        ("9.0+PTX", ["arch=compute_90,code=sm_90", "arch=compute_90,code=compute_90"]),
        (
            "8.0;9.0a;10.0f;10.3+PTX",
            [
                "arch=compute_80,code=sm_80",
                "arch=compute_90a,code=sm_90a",
                "arch=compute_100f,code=sm_100f",
                "arch=compute_103,code=sm_103",
                "arch=compute_103,code=compute_103",
            ],
        ),
        (" 8.0 ; 9.0 ;", ["arch=compute_80,code=sm_80", "arch=compute_90,code=sm_90"]),
        ("9.0;9.0a", ["arch=compute_90,code=sm_90", "arch=compute_90a,code=sm_90a"]),
    ],
)
def test_arch_list_becomes_gencode_options(helper: ModuleType, text: str, flags: list[str]) -> None:
    expected = [word for flag in flags for word in ("-gencode", flag)]
    assert list(helper.gencode_flags(helper.parse_capabilities(text))) == expected


@pytest.mark.parametrize("text", [None, "", "   ", ";", " ; ;"])
def test_no_capabilities_is_an_error_that_guesses_nothing(
    helper: ModuleType, text: str | None
) -> None:
    with pytest.raises(helper.BuildError, match=r"not set or empty.*never guessed.*Set it"):
        helper.parse_capabilities(text)


@pytest.mark.parametrize(
    "entry",
    ["90", "sm_90", "9", "9.", "9.0A", "9.0b", "9.0ptx", "9.0+ptx", "9.0 +PTX", "Hopper", "8.0,9.0",
     "8.0 9.0", "native", "all", "9.0aa", "-9.0", "100.0"],
)  # fmt: skip
def test_malformed_entry_is_named(helper: ModuleType, entry: str) -> None:
    with pytest.raises(helper.BuildError) as caught:
        helper.parse_capabilities(f"8.0;{entry}")
    assert repr(entry) in str(caught.value)
    assert "not a compute capability" in str(caught.value)


@pytest.mark.parametrize("entry", ["7.0", "7.5", "6.1", "7.5+PTX"])
def test_capability_below_8_0_is_refused(helper: ModuleType, entry: str) -> None:
    with pytest.raises(helper.BuildError, match=r"need capability 8\.0 or newer"):
        helper.parse_capabilities(f"{entry};9.0")


@pytest.mark.parametrize("entry", ["8.0a", "8.9a", "8.0f", "9.0f"])
def test_suffix_before_its_first_capability_is_refused(helper: ModuleType, entry: str) -> None:
    with pytest.raises(helper.BuildError, match=f"{entry} does not exist"):
        helper.parse_capabilities(entry)


@pytest.mark.parametrize("text", ["9.0;9.0", "9.0;9.0+PTX", "8.0;10.0f;9.0;10.0f"])
def test_one_architecture_twice_is_refused(helper: ModuleType, text: str) -> None:
    with pytest.raises(helper.BuildError, match="twice"):
        helper.parse_capabilities(text)


def test_text_of_a_capability_is_what_was_declared(helper: ModuleType) -> None:
    text = "8.0;9.0a;10.0f;9.0+PTX"
    assert ";".join(str(entry) for entry in helper.parse_capabilities(text)) == text


def test_environment_is_read(helper: ModuleType, cuda_home: Path) -> None:
    inputs = helper.BuildInputs.from_environment(
        _environment(
            cuda_home, CXX="ccache g++-12", MAX_JOBS="3", CFLAGS="-g", CXXFLAGS="-DA='b c'"
        )
    )
    assert inputs.jobs == 3
    assert inputs.host_compiler == "g++-12"
    assert inputs.cxx_flags == ("-g", "-DA=b c")
    assert inputs.nvcc == cuda_home / "bin" / "nvcc"


def test_run_time_library_is_found_in_lib_or_lib64(helper: ModuleType, cuda_home: Path) -> None:
    assert helper.BuildInputs.from_environment(_environment(cuda_home)).cudart_folder.name == "lib"
    (cuda_home / "lib").rename(cuda_home / "lib64")
    assert (
        helper.BuildInputs.from_environment(_environment(cuda_home)).cudart_folder.name == "lib64"
    )


@pytest.mark.parametrize(
    "missing", ["bin/nvcc", "include/cuda_runtime.h", "lib/libcudart_static.a"]
)
def test_incomplete_toolkit_is_named(helper: ModuleType, cuda_home: Path, missing: str) -> None:
    (cuda_home / missing).unlink()
    with pytest.raises(helper.BuildError, match=Path(missing).name):
        helper.BuildInputs.from_environment(_environment(cuda_home))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("CUDA_HOME", "", "CUDA_HOME is not set"),
        ("PADDLE_CUDA_ARCH_LIST", "", "PADDLE_CUDA_ARCH_LIST is not set"),
        ("MAX_JOBS", "many", "MAX_JOBS='many'"),
        ("MAX_JOBS", "0", "MAX_JOBS='0'"),
        ("CXX", "ccache", "names no compiler"),
    ],
)
def test_wrong_variable_is_named(
    helper: ModuleType, cuda_home: Path, name: str, value: str, message: str
) -> None:
    with pytest.raises(helper.BuildError, match=message):
        helper.BuildInputs.from_environment(_environment(cuda_home, **{name: value}))


def test_every_source_is_compiled(helper: ModuleType, cuda_home: Path) -> None:
    on_disk = {path.name for path in (TEMPLATE / "csrc").iterdir() if path.suffix in (".cu", ".cc")}
    compiled = {Path(command.argv[-1]).name for command in _plan(helper, cuda_home).compiles}
    assert compiled == on_disk


def test_kernels_use_only_options_that_a_clang_behind_nvcc_understands(
    helper: ModuleType, cuda_home: Path
) -> None:
    pairs = {"-ccbin", "-gencode", "-Xcompiler", "-o"}
    alone = {"-c", "-std=c++17", "-O3"}
    kernels = [c for c in _plan(helper, cuda_home).compiles if c.argv[-1].endswith(".cu")]
    assert len(kernels) == 3
    for command in kernels:
        words = list(command.argv[1:-1])
        while words:
            word = words.pop(0)
            assert word in pairs | alone
            if word in pairs:
                words.pop(0)
        assert "arch=compute_80,code=sm_80" in command.argv


def test_no_build_folder_stays_in_the_binary(helper: ModuleType, cuda_home: Path) -> None:
    for command in _plan(helper, cuda_home).compiles:
        for folder in ("/src/csrc", str(cuda_home)):
            assert any(word.startswith(f"-ffile-prefix-map={folder}=") for word in command.argv)


def test_link_is_static_in_cuda_and_free_of_search_paths(
    helper: ModuleType, cuda_home: Path
) -> None:
    link = _plan(helper, cuda_home, LDFLAGS="-Wl,-z,now").link
    assert "-lcudart_static" in link.argv
    assert "-lcudart" not in link.argv
    assert "-lcuda" not in link.argv
    assert "-Wl,-z,now" in link.argv
    assert not [word for word in link.argv if "rpath" in word or "python" in word]


def test_failed_command_is_reported_and_nothing_is_linked(
    helper: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shell = ("/bin/sh", "-c")
    good = helper.Command((*shell, "echo fine"), tmp_path / "good.o")
    bad = helper.Command((*shell, "echo no such operator >&2; exit 3"), tmp_path / "bad.o")
    link = helper.Command((*shell, f"touch {tmp_path / 'linked'}"), tmp_path / "linked")
    with pytest.raises(helper.BuildError, match=r"bad\.o could not be made: exit status 3"):
        helper.execute(helper.BuildPlan((good, bad), link), jobs=2)
    assert "no such operator" in capfd.readouterr().out
    assert not (tmp_path / "linked").exists()
    helper.execute(helper.BuildPlan((good,), link), jobs=2)
    assert (tmp_path / "linked").exists()


def test_missing_compiler_is_reported(helper: ModuleType, tmp_path: Path) -> None:
    command = helper.Command(("/nowhere/nvcc", "-c"), tmp_path / "a.o")
    with pytest.raises(helper.BuildError, match="can't start /nowhere/nvcc"):
        helper.execute(helper.BuildPlan((command,), command), jobs=1)
