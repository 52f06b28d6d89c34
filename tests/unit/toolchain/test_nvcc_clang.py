"""nvcc's command line, understood and turned into clang's."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.toolchain.nvcc_clang import (
    LISTS,
    NO_EFFECT,
    NO_EFFECT_VALUES,
    Config,
    Host,
    RefusedError,
    Targets,
    commands,
    main,
    parse,
    targets,
    version_text,
)

CONFIG = Config(
    home=Path("/home/cuda"),
    cuda="12.9",
    version="12.9.86",
    clang="/usr/bin/clang++-22",
    clang_version="Debian clang version 22.1.8",
    default_arch="sm_52",
)
HOST = Host("/usr/bin/g++", "/usr/lib/gcc/x86_64-linux-gnu/12")


def made(*arguments: str) -> list[tuple[str, ...]]:
    return list(commands(parse(arguments), CONFIG, HOST, Path("/scratch")))


def only(*arguments: str) -> tuple[str, ...]:
    (command,) = made(*arguments)
    return command


def asked(*arguments: str) -> Targets:
    return targets(parse(arguments), CONFIG.default_arch)


def has(command: tuple[str, ...], *words: str) -> bool:
    """True when ``words`` follow each other in ``command``."""
    return any(command[at : at + len(words)] == words for at in range(len(command)))


# -- device targets ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "binaries", "ptx"),
    [
        (["-gencode", "arch=compute_80,code=sm_80"], ["sm_80"], []),
        (["-gencode=arch=compute_90a,code=sm_90a"], ["sm_90a"], []),
        (["--generate-code", "arch=compute_80,code=[sm_80,compute_80]"], ["sm_80"], ["sm_80"]),
        (["--generate-code=arch=compute_80,code=[compute_80,sm_80]"], ["sm_80"], ["sm_80"]),
        (["-gencode", 'arch=compute_80,code="sm_80,compute_80"'], ["sm_80"], ["sm_80"]),
        (
            [
                "-gencode=arch=compute_80,code=sm_80",
                "-gencode=arch=compute_90,code=sm_90",
                "-gencode=arch=compute_90,code=compute_90",
            ],
            ["sm_80", "sm_90"],
            ["sm_90"],
        ),
        (["-gencode", "arch=compute_80,code=sm_80"] * 2, ["sm_80"], []),
        (["-arch=compute_90a", "-code=sm_90a"], ["sm_90a"], []),
        (["-arch", "sm_80"], ["sm_80"], ["sm_80"]),
        (["--gpu-architecture=compute_80", "--gpu-code=sm_80"], ["sm_80"], []),
        (["-arch=compute_80", "-code=sm_80,compute_80"], ["sm_80"], ["sm_80"]),
        (["-arch=compute_80", "-code=sm_80", "-code=compute_80"], ["sm_80"], ["sm_80"]),
        (
            ["-arch=sm_90", "-gencode", "arch=compute_80,code=sm_80"],
            ["sm_80", "sm_90"],
            ["sm_90"],
        ),
        ([], ["sm_52"], ["sm_52"]),
    ],
)
def test_targets(arguments: list[str], binaries: list[str], ptx: list[str]) -> None:
    assert asked(*arguments) == Targets(tuple(binaries), tuple(ptx))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-gencode", "arch=compute_100f,code=sm_100f"], "sm_100f"),
        (["-gencode", "arch=compute_80,code=sm_86"], "sm_86"),
        (["-gencode", "arch=compute_90,code=compute_90"], "compute_90"),
        (["-arch=compute_90"], "compute_90"),
        (["-gencode", "arch=compute_80,code=lto_80"], "lto_80"),
        (["-gencode", "code=sm_80"], "code=sm_80"),
        (["-arch=native"], "native"),
        (["-arch=sm_80", "-code=sm_80"], "'sm_80'"),
        (["-arch=sm_90a"], "-gencode arch=compute_90a,code=sm_90a"),
        (["-arch=all-major"], "all-major"),
    ],
)
def test_targets_that_clang_cannot_make_are_refused(arguments: list[str], named: str) -> None:
    with pytest.raises(RefusedError) as caught:
        asked(*arguments)
    assert named in str(caught.value)


def test_targets_reach_clang_and_no_other_ptx_does() -> None:
    command = only("-c", "k.cu", "-gencode", "arch=compute_80,code=[sm_80,compute_80]")
    assert "--cuda-gpu-arch=sm_80" in command
    assert has(command, "--no-cuda-include-ptx=all", "--cuda-include-ptx=sm_80")
    without = only("-c", "k.cu", "-gencode", "arch=compute_80,code=sm_80")
    assert not any(word.startswith("--cuda-include-ptx") for word in without)


def test_an_architecture_specific_target_has_nvccs_macros() -> None:
    command = only("-c", "k.cu", "-gencode", "arch=compute_100a,code=sm_100a")
    assert has(command, "-Xarch_sm_100a", "-D__CUDA_ARCH_SPECIFIC__=1000")
    assert has(command, "-Xarch_sm_100a", "-D__CUDA_ARCH_FAMILY_SPECIFIC__=1000")
    plain = only("-c", "k.cu", "-gencode", "arch=compute_100,code=sm_100")
    assert not any("SPECIFIC" in word for word in plain)


# -- compiling -----------------------------------------------------------------------------------


def test_a_cuda_source_is_compiled_by_clang_with_the_gcc_of_the_host() -> None:
    command = only("-c", "dir/k.cu", "-O2", "-std=c++17", "-arch=sm_80")
    assert command[:4] == ("/usr/bin/clang++-22", "-x", "cuda", "--cuda-path=/home/cuda")
    assert "--gcc-install-dir=/usr/lib/gcc/x86_64-linux-gnu/12" in command
    assert has(command, "-Xarch_host", "-O2")
    assert has(command, "-Xarch_device", "-O3")
    assert "-std=c++17" in command
    assert command[-4:] == ("-c", "dir/k.cu", "-o", "k.o")


def test_nvccs_version_is_told_to_the_preprocessor() -> None:
    command = only("-c", "k.cu")
    for name, value in (("MAJOR", 12), ("MINOR", 9), ("BUILD", 86)):
        assert f"-D__CUDACC_VER_{name}__={value}" in command


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-Xcompiler", "-fPIC"], ["-Xarch_host", "-fPIC"]),
        (["-Xcompiler=-fPIC,-Wall"], ["-Xarch_host", "-fPIC", "-Xarch_host", "-Wall"]),
        (["--compiler-options", "'-fPIC'"], ["-Xarch_host", "-fPIC"]),
        (["--compiler-options=-fPIC -Wall"], ["-Xarch_host", "-fPIC", "-Xarch_host", "-Wall"]),
        (["-Xcompiler", "-DA=1\\,2"], ["-Xarch_host", "-DA=1,2"]),
        (["-Xcompiler", "-include,a.h"], ["-include", "a.h"]),
        (["-Xptxas", "-O3,-v"], ["-Xcuda-ptxas", "-O3", "-Xcuda-ptxas", "-v"]),
        (["--ptxas-options=-v"], ["-Xcuda-ptxas", "-v"]),
        (["--resource-usage"], ["-Xcuda-ptxas", "-v"]),
        (["-maxrregcount=64"], ["-Xcuda-ptxas", "--maxrregcount=64"]),
        (["-Xfatbin", "-compress-all"], ["-Xcuda-fatbinary", "-compress-all"]),
        (["--compress-mode=size"], ["-Xcuda-fatbinary", "--compress-mode=size"]),
        (["--no-compress"], ["-Xcuda-fatbinary", "--compress-mode=none"]),
        ([], ["-Xcuda-fatbinary", "--compress-mode=speed"]),
        (["-DNAME=1", "-D", "OTHER", "--define-macro=X=2"], ["-DNAME=1", "-DOTHER", "-DX=2"]),
        (["-DA=1,B=2"], ["-DA=1", "-DB=2"]),
        (["-UNAME"], ["-UNAME"]),
        (["-Ia", "-I", "b", "--include-path=c,d"], ["-Ia", "-Ib", "-Ic", "-Id"]),
        (["-isystem", "a", "-isystem=b"], ["-isystem", "a", "-isystem", "b"]),
        (["-include", "a.h"], ["-include", "a.h"]),
        (["-std", "c++20"], ["-std=c++20"]),
        (["--std=c++14"], ["-std=c++14"]),
        (["-g"], ["-Xarch_host", "-g"]),
        (["-lineinfo"], ["-Xarch_device", "-gline-directives-only"]),
        (["-G"], ["-Xarch_device", "--cuda-noopt-device-debug"]),
        (["-noeh"], ["-Xarch_host", "-fno-exceptions"]),
        (["-w"], ["-w"]),
        (["-Werror", "all-warnings"], ["-Werror"]),
        (["--default-stream=per-thread"], ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM=1"]),
        (["-fmad=false"], ["-Xarch_device", "-ffp-contract=off"]),
        (["--ftz=true"], ["-Xarch_device", "-fgpu-flush-denormals-to-zero"]),
        (["-prec-div=false"], ["-Xarch_device", "-mllvm=-nvptx-prec-divf32=0"]),
        (["-MD", "-MF", "k.d", "-MT", "t"], ["-MD", "-MF", "k.d", "-MT", "t"]),
        (
            ["--generate-dependencies-with-compile", "--dependency-output", "k.d"],
            ["-MD", "-MF", "k.d"],
        ),
        (["-MMD", "-MP"], ["-MMD", "-MP"]),
        (
            ["-forward-unknown-to-host-compiler", "-fvisibility=hidden"],
            ["-Xarch_host", "-fvisibility=hidden"],
        ),
    ],
)
def test_an_option_has_its_counterpart(arguments: list[str], words: list[str]) -> None:
    assert has(only("-c", "k.cu", *arguments), *words)


def test_fast_math_is_what_the_manual_says() -> None:
    command = only("-c", "k.cu", "-use_fast_math")
    for word in (
        "-fgpu-flush-denormals-to-zero",
        "-fgpu-approx-transcendentals",
        "-ffp-contract=fast",
        "-mllvm=-nvptx-prec-divf32=0",
        "-mllvm=-nvptx-prec-sqrtf32=0",
    ):
        assert has(command, "-Xarch_device", word)
    assert "-mllvm=-nvptx-prec-divf32=0" not in only("-c", "k.cu")


@pytest.mark.parametrize("name", sorted(NO_EFFECT))
def test_an_option_without_effect_changes_nothing(name: str) -> None:
    assert made("-c", "k.cu", f"--{name}") == made("-c", "k.cu", f"-{name}") == made("-c", "k.cu")


@pytest.mark.parametrize("name", sorted(NO_EFFECT_VALUES))
def test_a_value_without_effect_changes_nothing(name: str) -> None:
    plain = made("-c", "k.cu")
    assert made("-c", "k.cu", f"--{name}=4") == made("-c", f"--{name}", "4", "k.cu") == plain


def test_threads_may_be_joined() -> None:
    assert made("-c", "k.cu", "-t4") == made("-c", "k.cu")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-foo"], "-foo"),
        (["--no-such-thing=1"], "--no-such-thing=1"),
        (["-Wall"], "-Wall"),
        (["-fPIC"], "-fPIC"),
        (["-dc"], "-dc"),
        (["-dlink"], "-dlink"),
        (["-rdc=true"], "-rdc"),
        (["--relocatable-device-code", "true"], "-rdc"),
        (["-dlto"], "-dlto"),
        (["-fatbin"], "-fatbin"),
        (["-m32"], "'32'"),
        (["--machine=32"], "'32'"),
        (["-c=1"], "-c=1"),
        (["-Xcudafe", "--unsigned_chars"], "--unsigned_chars"),
        (["-Werror", "no-such"], "no-such"),
        (["-static-global-template-stub=true"], "-static-global-template-stub"),
        (["-Xcompiler", "-fopenmp"], "OpenMP"),
        (["-o"], "-o"),
        (["other.cu", "-o", "x.o"], "single input file"),
        (["-x", "fortran"], "fortran"),
        (["k.ptx"], "k.ptx"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(arguments: list[str], named: str) -> None:
    with pytest.raises(RefusedError) as caught:
        made("-c", "k.cu", *arguments)
    assert named in str(caught.value)


def test_no_input_is_refused() -> None:
    with pytest.raises(RefusedError, match="No input files"):
        made("-c")


def test_options_are_read_from_a_file(tmp_path: Path) -> None:
    response = tmp_path / "flags.txt"
    response.write_text('-O3 -DNAME="a b"\n-I inc\n')
    command = only("-c", "k.cu", "--options-file", str(response))
    assert has(command, "-Xarch_host", "-O3")
    assert "-DNAME=a b" in command
    assert "-Iinc" in command
    assert "options-file" in LISTS


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("-ptx", ("--cuda-device-only", "-S", "k.cu", "-o", "k.ptx")),
        ("-cubin", ("--cuda-device-only", "-c", "k.cu", "-o", "k.cubin")),
        ("-E", ("--cuda-host-only", "-E", "k.cu")),
        ("-M", ("--cuda-host-only", "-M", "k.cu")),
        ("-MM", ("--cuda-host-only", "-MM", "k.cu")),
    ],
)
def test_other_phases(phase: str, words: tuple[str, ...]) -> None:
    assert has(only(phase, "k.cu", "-arch=sm_80"), *words)


def test_ptx_of_two_targets_is_refused() -> None:
    with pytest.raises(RefusedError, match="exactly one target"):
        made(
            "-ptx",
            "k.cu",
            "-arch=compute_80",
            "-code=sm_80",
            "-gencode",
            "arch=compute_90,code=sm_90",
        )


def test_a_host_source_is_compiled_by_the_host_compiler() -> None:
    command = only("-c", "a.cpp", "-O2", "-Xcompiler", "-fPIC", "-DX", "-odir", "out")
    assert command[:3] == ("/usr/bin/g++", "-x", "c++")
    assert has(command, "-fPIC", "-O2")
    assert "-I/home/cuda/include" in command
    assert command[-2:] == ("-o", "out/a.o")
    assert only("-x", "cu", "-c", "a.cpp")[0] == "/usr/bin/clang++-22"


# -- linking -------------------------------------------------------------------------------------


def test_sources_are_compiled_and_then_linked_by_the_host_compiler() -> None:
    first, second, link = made(
        *("-shared", "-o", "k.so", "k.cu", "b.cpp", "c.o", "-Ld", "-lcuda", "-Xcompiler", "-fPIC"),
        *("-Xlinker", "-rpath,/r"),
    )
    assert first[-2:] == ("-o", "/scratch/0-k.o")
    assert second[-2:] == ("-o", "/scratch/1-b.o")
    assert link[0] == "/usr/bin/g++"
    assert has(link, "-shared", "-o", "k.so", "/scratch/0-k.o", "/scratch/1-b.o", "c.o")
    assert has(link, "-Xlinker", "-rpath", "-Xlinker", "/r", "-Ld", "-lcuda")
    assert has(link, "-L/home/cuda/lib64/stubs", "-L/home/cuda/lib64", "-lcudart_static", "-lrt")


@pytest.mark.parametrize(
    ("kind", "library"),
    [("static", "-lcudart_static"), ("shared", "-lcudart"), ("none", None)],
)
def test_the_run_time_library_is_the_one_asked_for(kind: str, library: str | None) -> None:
    link = only("a.o", f"-cudart={kind}")
    assert [word for word in link if "cudart" in word] == ([library] if library else [])


def test_an_unknown_kind_of_run_time_library_is_refused() -> None:
    with pytest.raises(RefusedError, match="hybrid"):
        made("a.o", "-cudart", "hybrid")


def test_objects_are_archived() -> None:
    assert only("-lib", "a.o", "b.o", "-o", "x.a") == ("ar", "rcsD", "x.a", "a.o", "b.o")


# -- the program ---------------------------------------------------------------------------------


def test_the_version_is_nvccs_and_names_clang(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"], {}, CONFIG) == 0
    told = capsys.readouterr().out
    assert told == version_text(CONFIG)
    assert "release 12.9, V12.9.86" in told
    assert "clang version 22.1.8" in told


def test_a_dry_run_prints_and_runs_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "k.o"
    environ = {"NVCC_APPEND_FLAGS": "-DLAST", "NVCC_PREPEND_FLAGS": "-DFIRST"}
    arguments = ["--dryrun", "-ccbin", "/usr/bin/g++", "-c", "k.cu", "-DMID", "-o", str(target)]
    assert main(arguments, environ, CONFIG) == 0
    told = capsys.readouterr().err
    assert told.startswith("#$ /usr/bin/clang++-22 -x cuda")
    assert "-DFIRST -DMID -DLAST" in told
    assert not target.exists()


def test_a_missing_host_compiler_is_named() -> None:
    with pytest.raises(RefusedError, match="'/nowhere/g\\+\\+' cannot be run"):
        main(["-c", "k.cu"], {"NVCC_CCBIN": "/nowhere/g++"}, CONFIG)
