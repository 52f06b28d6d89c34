# ruff: noqa: INP001  (a build script beside setup.py, not a package)
"""How ``libfused_norm.so`` is compiled and linked: environment in, command lines out.

Deciding is pure (`parse_capabilities`, `gencode_flags`, `BuildInputs.from_environment`, `plan`) and is
tested without a compiler; only `execute` starts processes. Nothing is taken from an installed torch or
paddle, and nothing is guessed from a GPU of the build host.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ARCH_LIST_VARIABLE = "PADDLE_CUDA_ARCH_LIST"
LIBRARY_NAME = "libfused_norm.so"
KERNEL_SOURCES = ("rms_norm_residual.cu", "swiglu.cu", "topk_softmax.cu")
HOST_SOURCES = ("binding.cc", "cpu.cc")
MINIMUM_CAPABILITY = (8, 0)

_CAPABILITY = re.compile(r"(?P<major>\d{1,2})\.(?P<minor>\d)(?P<suffix>[af]?)(?P<ptx>\+PTX)?")
_LAUNCHERS = ("ccache", "sccache")


class BuildError(Exception):
    """A build that can't go on; the text says what happened, the likely cause and what to do."""


@dataclass(frozen=True, order=True)
class Capability:
    """A CUDA compute capability as declared: 9.0, 9.0a (that GPU only), 10.0f (its family), +PTX."""

    major: int
    minor: int
    suffix: str = ""
    ptx: bool = False

    @property
    def arch(self) -> str:
        """Return the number as nvcc writes it after ``sm_`` and ``compute_``: 90, 90a, 100f."""
        return f"{self.major}{self.minor}{self.suffix}"

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{self.suffix}{'+PTX' if self.ptx else ''}"


def parse_capabilities(text: str | None) -> tuple[Capability, ...]:
    """Parse an architecture list such as ``8.0;9.0a;10.0f;9.0+PTX``, in the order given.

    Raises:
        BuildError: unset or empty, a malformed or unsupported entry, or one architecture twice.

    """
    entries = [entry.strip() for entry in (text or "").split(";")]
    if not any(entries):
        raise BuildError(
            f"{ARCH_LIST_VARIABLE} is not set or empty: the compute capabilities to compile for are "
            "never guessed from the GPU of the build host. Set it, for example "
            f'{ARCH_LIST_VARIABLE}="8.0;9.0", and build again.'
        )
    capabilities = tuple(_parse_capability(entry) for entry in entries if entry)
    seen: dict[str, Capability] = {}
    for capability in capabilities:
        other = seen.setdefault(capability.arch, capability)
        if other is not capability:
            raise BuildError(
                f"{ARCH_LIST_VARIABLE} names {capability.major}.{capability.minor}"
                f"{capability.suffix} twice ({other} and {capability}). Keep one of them; "
                "+PTX adds PTX to the binary code, so it needs no second entry."
            )
    return capabilities


def _parse_capability(entry: str) -> Capability:
    match = _CAPABILITY.fullmatch(entry)
    if match is None:
        raise BuildError(
            f"{ARCH_LIST_VARIABLE} has the entry {entry!r}, which is not a compute capability. "
            "Write entries as 9.0, 9.0a, 10.0f or 9.0+PTX, with ';' between them."
        )
    capability = Capability(
        int(match["major"]), int(match["minor"]), match["suffix"], match["ptx"] is not None
    )
    number = (capability.major, capability.minor)
    if number < MINIMUM_CAPABILITY:
        raise BuildError(
            f"{ARCH_LIST_VARIABLE} has {entry}, but the kernels need capability 8.0 or newer "
            "(bfloat16 conversion and warp reductions). Remove the entry."
        )
    # CUDA programming guide, "Feature availability": `a` begins with 9.0, `f` with 10.0.
    if capability.suffix == "a" and number < (9, 0):
        raise BuildError(
            f"{entry} does not exist: the suffix a begins with 9.0a. Write {entry[:-1]}."
        )
    if capability.suffix == "f" and number < (10, 0):
        raise BuildError(
            f"{entry} does not exist: the suffix f begins with 10.0f. Write {entry[:3]}."
        )
    return capability


def gencode_flags(capabilities: Sequence[Capability]) -> tuple[str, ...]:
    """Return nvcc's options: binary code for each capability, PTX only where +PTX asks for it.

    ``-arch=`` is not used: it also embeds PTX (NVIDIA, CUDA compiler driver, "-arch").
    """
    flags: list[str] = []
    for capability in capabilities:
        kinds = ("sm", "compute") if capability.ptx else ("sm",)
        for kind in kinds:
            code = f"{kind}_{capability.arch}"
            flags += ["-gencode", f"arch=compute_{capability.arch},code={code}"]
    return tuple(flags)


@dataclass(frozen=True)
class BuildInputs:
    """Everything that the build takes from its environment."""

    cuda_home: Path
    cudart_folder: Path
    capabilities: tuple[Capability, ...]
    cxx: tuple[str, ...]
    cxx_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    jobs: int

    @property
    def nvcc(self) -> Path:
        """Return the CUDA compiler."""
        return self.cuda_home / "bin" / "nvcc"

    @property
    def host_compiler(self) -> str:
        """The compiler itself, without a cache in front of it: what nvcc's ``-ccbin`` takes."""
        return next(word for word in self.cxx if Path(word).name not in _LAUNCHERS)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> BuildInputs:
        """Read and check the variables that README.md lists.

        Raises:
            BuildError: a variable is missing or malformed, or ``CUDA_HOME`` lacks a needed file.

        """
        capabilities = parse_capabilities(environment.get(ARCH_LIST_VARIABLE))
        cuda_home = _cuda_home(environment.get("CUDA_HOME", ""))
        cxx = tuple(shlex.split(environment.get("CXX", ""))) or ("g++",)
        if all(Path(word).name in _LAUNCHERS for word in cxx):
            raise BuildError(
                f"CXX={environment['CXX']!r} names no compiler. Write CXX='ccache g++'."
            )
        return cls(
            cuda_home=cuda_home,
            cudart_folder=_cudart_folder(cuda_home),
            capabilities=capabilities,
            cxx=cxx,
            cxx_flags=_words(environment, "CFLAGS") + _words(environment, "CXXFLAGS"),
            link_flags=_words(environment, "LDFLAGS"),
            jobs=_jobs(environment.get("MAX_JOBS", "")),
        )


def _words(environment: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(shlex.split(environment.get(name, "")))


def _cuda_home(value: str) -> Path:
    if not value:
        raise BuildError(
            "CUDA_HOME is not set, so there is no nvcc to compile with. Set it to the folder that "
            "has bin/nvcc, for example CUDA_HOME=/usr/local/cuda, and build again."
        )
    home = Path(value).absolute()
    for needed in ("bin/nvcc", "include/cuda_runtime.h"):
        if not (home / needed).is_file():
            raise BuildError(
                f"CUDA_HOME={value} has no {needed}: it is not a complete CUDA toolkit. Point "
                "CUDA_HOME at the folder that has bin/nvcc, include/ and lib64/ or lib/."
            )
    return home


def _cudart_folder(cuda_home: Path) -> Path:
    folders = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
    for folder in folders:
        if (cuda_home / folder / "libcudart_static.a").is_file():
            return cuda_home / folder
    raise BuildError(
        f"CUDA_HOME={cuda_home} has no libcudart_static.a in {', '.join(folders)}. The CUDA run "
        "time is linked statically: install the development package of the run time "
        "(cuda-cudart-dev, or nvidia-cuda-runtime from PyPI)."
    )


def _jobs(value: str) -> int:
    if not value:
        return len(os.sched_getaffinity(0))
    if not value.isdecimal() or int(value) < 1:
        raise BuildError(
            f"MAX_JOBS={value!r} is not a number of jobs. Set it to 1 or more, or unset it."
        )
    return int(value)


@dataclass(frozen=True)
class Command:
    """One process of the build and the file it yields."""

    argv: tuple[str, ...]
    output: Path


@dataclass(frozen=True)
class BuildPlan:
    """The compilations, which may run at once, and the link step after them."""

    compiles: tuple[Command, ...]
    link: Command


@dataclass(frozen=True)
class TvmFfi:
    """Where the headers and the library of apache-tvm-ffi are."""

    includes: tuple[Path, ...]
    library_folder: Path

    @classmethod
    def installed(cls) -> TvmFfi:
        """Ask the installed package.

        Raises:
            BuildError: it is not installed where this build runs.

        """
        try:
            from tvm_ffi import libinfo
        except ImportError as error:
            raise BuildError(
                f"apache-tvm-ffi can't be imported ({error}); the build needs its headers. With "
                "--no-build-isolation, first run: pip install 'apache-tvm-ffi>=0.1.9,<0.1.13'"
            ) from error
        folders = {Path(libinfo.find_include_path()), Path(libinfo.find_dlpack_include_path())}
        return cls(tuple(sorted(folders)), Path(libinfo.find_libtvm_ffi()).parent)


def plan(
    inputs: BuildInputs, tvm_ffi: TvmFfi, sources: Path, objects: Path, library: Path
) -> BuildPlan:
    """Return the command lines that make `library` from `sources` with objects in `objects`."""
    prefixes = _prefix_maps(inputs, tvm_ffi, sources)
    compiles = [
        _kernel_command(inputs, sources / name, objects, prefixes) for name in KERNEL_SOURCES
    ]
    compiles += [
        _host_command(inputs, tvm_ffi, sources / name, objects, prefixes) for name in HOST_SOURCES
    ]
    return BuildPlan(
        tuple(compiles), _link_command(inputs, tvm_ffi, compiles, sources / "exports.map", library)
    )


def _prefix_maps(inputs: BuildInputs, tvm_ffi: TvmFfi, sources: Path) -> tuple[str, ...]:
    """Keep the folders of the build out of the binary, so that it does not depend on them."""
    folders = {sources: "fused_norm", inputs.cuda_home: "cuda"}
    folders.update((folder, "tvm_ffi") for folder in tvm_ffi.includes)
    return tuple(f"-ffile-prefix-map={folder}={name}" for folder, name in folders.items())


def _kernel_command(
    inputs: BuildInputs, source: Path, objects: Path, prefixes: Sequence[str]
) -> Command:
    output = objects / f"{source.name}.o"
    host_flags = ("-fPIC", "-fvisibility=hidden", *prefixes)
    return Command(
        (
            str(inputs.nvcc),
            "-c",
            "-std=c++17",
            "-O3",
            *("-ccbin", inputs.host_compiler),
            *gencode_flags(inputs.capabilities),
            *(word for flag in host_flags for word in ("-Xcompiler", flag)),
            *("-o", str(output)),
            str(source),
        ),
        output,
    )


def _host_command(
    inputs: BuildInputs, tvm_ffi: TvmFfi, source: Path, objects: Path, prefixes: Sequence[str]
) -> Command:
    output = objects / f"{source.name}.o"
    declared = ";".join(str(capability) for capability in inputs.capabilities)
    includes = (*tvm_ffi.includes, inputs.cuda_home / "include")
    return Command(
        (
            *inputs.cxx,
            "-c",
            "-std=c++17",
            "-O3",
            "-fPIC",
            "-fvisibility=hidden",
            "-Wall",
            *prefixes,
            f'-DFUSED_NORM_CAPABILITIES="{declared}"',
            *(word for folder in includes for word in ("-isystem", str(folder))),
            *inputs.cxx_flags,
            *("-o", str(output)),
            str(source),
        ),
        output,
    )


def _link_command(
    inputs: BuildInputs,
    tvm_ffi: TvmFfi,
    compiles: Sequence[Command],
    exports: Path,
    library: Path,
) -> Command:
    """Link the CUDA run time statically; only the functions for TVM FFI are visible outside.

    There is no RUNPATH: libtvm_ffi.so is in the process before this library is loaded.
    """
    return Command(
        (
            *inputs.cxx,
            "-shared",
            *("-o", str(library)),
            *(str(command.output) for command in compiles),
            f"-Wl,--version-script={exports}",
            "-Wl,--exclude-libs,ALL",
            "-Wl,--gc-sections",
            "-Wl,--strip-all",
            "-Wl,-z,defs",
            f"-Wl,-soname,{LIBRARY_NAME}",
            *inputs.link_flags,
            *("-L", str(inputs.cudart_folder), "-lcudart_static"),
            *("-L", str(tvm_ffi.library_folder), "-ltvm_ffi"),
            *("-ldl", "-lpthread", "-lrt"),
        ),
        library,
    )


def execute(build: BuildPlan, jobs: int) -> None:
    """Run the plan; compiler output goes to this process's own output.

    Raises:
        BuildError: a command failed; its output is above, and the command is in the text.

    """
    for command in (*build.compiles, build.link):
        command.output.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        failures = [failure for failure in pool.map(_run, build.compiles) if failure]
    failures += [] if failures else [failure for failure in (_run(build.link),) if failure]
    if failures:
        raise BuildError("\n".join(failures))


def _run(command: Command) -> str:
    """Run one command, print it with its output in one piece, and say how it failed, if it did."""
    text = shlex.join(command.argv)
    try:
        done = subprocess.run(
            command.argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        return f"can't start {command.argv[0]}: {error.strerror}. Set CXX and CUDA_HOME. ({text})"
    sys.stdout.write(f"{text}\n{done.stdout}")
    sys.stdout.flush()
    if done.returncode == 0:
        return ""
    return (
        f"{command.output.name} could not be made: exit status {done.returncode}; the first error of "
        f"the compiler is in the output above. To repeat it: {text}"
    )
