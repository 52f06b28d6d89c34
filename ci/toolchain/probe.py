"""Asks the machine which compilers and Pythons it has. Decides nothing.

Everything is looked up through the ``environ`` that is handed in, so a caller can hide or show a
compiler. Candidates that cannot be used stay in the answer with the reason.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Literal

from ci import proc
from ci.errors import ToolchainError
from ci.toolchain.model import (
    ClangFact,
    HostCompilerFact,
    MachineFacts,
    NvccFact,
    Origin,
    PythonFact,
    PythonSearch,
)

CUDA_ROOTS_VARIABLE = "PADDLEFLEET_FARM_CUDA_ROOTS"
"""Folders (separated as in PATH) that hold ``cuda`` or ``cuda-X.Y``; empty: look in none."""

DEFAULT_CUDA_ROOTS = "/usr/local"
_ASK_SECONDS = 60.0
AT_ONCE = 4  # questions that are asked at the same time
LIKELY = 2  # Pythons that are asked ahead: a shim may refuse, and what is behind it be the next
_WRAPPERS = ("ccache", "sccache")
_RELEASE = re.compile(r"release (\d+\.\d+), V([\d.]+)")
_CLANG_VERSION = re.compile(r"clang version (\d+(?:\.\d+)*)")


def probe(environ: Mapping[str, str]) -> MachineFacts:
    """All compilers that this machine shows through ``environ``."""
    return MachineFacts(
        nvccs=tuple(find_nvccs(environ)),
        hosts=tuple(find_hosts(environ)),
        clangs=tuple(find_clangs(environ)),
        machine=platform.machine(),
    )


def ask(environ: Mapping[str, str], *argv: str, shown: str = "") -> tuple[str, str]:
    """Run a short question. Returns (output, ""), or ("", why it could not be answered).

    An answer is remembered in this process for as long as the program's file stays as it is: several cells
    ask the same compilers and Pythons.
    """
    try:
        stat = Path(os.path.realpath(argv[0])).stat()
    except OSError:
        return _ask(environ, argv, shown)
    known = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    question = (argv, shown, tuple(sorted(environ.items())), known)
    if question not in _ANSWERS:
        _ANSWERS[question] = _ask(environ, argv, shown)
    return _ANSWERS[question]


def ask_ahead(pythons: Sequence[str], environ: Mapping[str, str]) -> None:
    """Ask the Pythons and compilers that a run is going to ask, all at once: answers are remembered."""
    candidates = {
        path: (wanted, origin, path, environ)
        for wanted in pythons
        for origin, path in islice(
            (item for item in _local_pythons(wanted, environ) if _executable(item[1])), LIKELY
        )
    }
    with ThreadPoolExecutor(max_workers=AT_ONCE) as threads:
        threads.submit(probe, environ)
        for question in candidates.values():
            threads.submit(_ask_python, *question)


_ANSWERS: dict[object, tuple[str, str]] = {}


def _ask(environ: Mapping[str, str], argv: tuple[str, ...], shown: str) -> tuple[str, str]:
    command = proc.Command(argv, env=environ, timeout=_ASK_SECONDS)
    shown = shown or command.shown
    try:
        answer = proc.run(command)
    except ToolchainError as error:
        return "", error.message
    except OSError as error:
        return "", f"{shown} cannot be run: {error.strerror or error}"
    if answer.timed_out:
        return "", f"{shown} did not answer in {_ASK_SECONDS:g} s"
    if not answer.ok:
        said = next((line for line in answer.output.splitlines() if line.strip()), "")
        return "", f"{shown} failed with status {answer.returncode}: {said.strip()}"
    return answer.output, ""


def path_folders(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The folders of PATH, absolute ones only, each once."""
    parts = environ.get("PATH", "").split(os.pathsep)
    return tuple(dict.fromkeys(path for part in parts if (path := Path(part)).is_absolute()))


# -- nvcc ------------------------------------------------------------------------------------------


def find_nvccs(environ: Mapping[str, str]) -> Iterator[NvccFact]:
    """Every nvcc: of CUDA_HOME, CUDA_PATH, PATH, then ``/usr/local/cuda*``; each file once."""
    seen: set[Path] = set()
    for origin, text, path in _nvcc_candidates(environ):
        real = Path(os.path.realpath(path))
        if real not in seen:
            seen.add(real)
            yield _ask_nvcc(environ, origin, text, path)


def _nvcc_candidates(environ: Mapping[str, str]) -> Iterator[tuple[Origin, str, Path]]:
    named: tuple[Origin, ...] = ("CUDA_HOME", "CUDA_PATH")
    for name in named:
        if environ.get(name):
            yield name, f"{name}={environ[name]}", Path(environ[name]) / "bin" / "nvcc"
    for folder in path_folders(environ):
        if _executable(folder / "nvcc"):
            yield "PATH", "PATH", folder / "nvcc"
    roots = environ.get(CUDA_ROOTS_VARIABLE, DEFAULT_CUDA_ROOTS).split(os.pathsep)
    for root in filter(None, roots):
        for home in (Path(root, "cuda"), *sorted(Path(root).glob("cuda-[0-9]*"), reverse=True)):
            if _executable(home / "bin" / "nvcc"):
                yield "folder", str(home), home / "bin" / "nvcc"


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _ask_nvcc(environ: Mapping[str, str], origin: Origin, text: str, path: Path) -> NvccFact:
    home = path.parent.parent
    if not path.exists():
        return NvccFact(path, home, origin, text, problem="there is no such file")
    answer, problem = ask(environ, str(path), "--version")
    match = _RELEASE.search(answer)
    if not problem and match is None:
        problem = "its --version is not nvcc's"
    if match is None:
        return NvccFact(path, home, origin, text, problem=problem)
    if "clang" in answer:
        problem = "it is clang behind nvcc's name, put together by an earlier run"
    found = _cuda_home(environ, path)
    if found is None:
        problem = problem or "its CUDA folder (include/cuda_runtime.h) cannot be found"
    home = found or home
    gcc, clang = newest_host_compilers(home)
    return NvccFact(path, home, origin, text, match[1], match[2], gcc, clang, problem)


def _cuda_home(environ: Mapping[str, str], nvcc: Path) -> Path | None:
    """The folder with ``bin``, ``include``…: beside nvcc, or what nvcc (perhaps a script) says."""
    for candidate in (nvcc.parent.parent, Path(os.path.realpath(nvcc)).parent.parent):
        if _is_cuda_home(candidate):
            return candidate
    answer, _ = ask(environ, str(nvcc), "--dryrun", "-x", "cu", "-E", os.devnull)
    match = re.search(r"^#\$ TOP=(.+)$", answer, re.MULTILINE)
    if match:
        candidate = Path(os.path.normpath(match[1]))
        if _is_cuda_home(candidate):
            return candidate
    return None


def _is_cuda_home(folder: Path) -> bool:
    return (folder / "include" / "cuda_runtime.h").is_file() and (folder / "bin" / "nvcc").exists()


def newest_host_compilers(home: Path) -> tuple[int, int]:
    """Newest (gcc, clang) majors that this CUDA's ``crt/host_config.h`` accepts; 0 when unknown."""
    try:
        text = (home / "include" / "crt" / "host_config.h").read_text(encoding="utf-8")
    except OSError:
        return 0, 0
    gcc = re.search(r"#if __GNUC__ > (\d+)", text)
    clang = re.search(r"#if \(__clang_major__ >= (\d+)\)", text)
    return int(gcc[1]) if gcc else 0, int(clang[1]) - 1 if clang else 0


# -- host compilers and clang ----------------------------------------------------------------------


def find_hosts(environ: Mapping[str, str]) -> Iterator[HostCompilerFact]:
    """The compiler that a variable asks for alone, else those of PATH: ``g++``, then newest first.

    nvcc reads ``NVCC_CCBIN``, CMake ``CUDAHOSTCXX``, and everything else ``CXX``.
    """
    for variable in ("NVCC_CCBIN", "CUDAHOSTCXX", "CXX"):
        if environ.get(variable):
            yield _asked_host(environ, variable)
            return
    seen: set[Path] = set()
    for path in _host_candidates(environ):
        real = Path(os.path.realpath(path))
        if real not in seen:
            seen.add(real)
            yield _ask_host(environ, path)


def _asked_host(environ: Mapping[str, str], variable: str) -> HostCompilerFact:
    try:
        words = shlex.split(environ[variable])
    except ValueError as error:
        words, problem = [], f"its value cannot be read: {error}"
    else:
        problem = ""
    if words and Path(words[0]).name in _WRAPPERS:
        words = words[1:]
    if len(words) != 1:
        path = Path(environ[variable])
        problem = problem or "its value is more than the name of a compiler"
        return HostCompilerFact(path, path, "", asked_by=variable, problem=problem)
    found = which(words[0], environ)
    if found is not None and found.is_dir():
        found = found / "g++"
    if found is None or not _executable(found):
        path = Path(words[0])
        return HostCompilerFact(
            path, path, "", asked_by=variable, problem="there is no such program"
        )
    return _ask_host(environ, found, variable)


def which(name: str, environ: Mapping[str, str]) -> Path | None:
    """The program that ``name`` stands for: a path as it is, else the first on PATH."""
    if os.sep in name:
        return Path(name).absolute()
    return next((path / name for path in path_folders(environ) if _executable(path / name)), None)


def _host_candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    folders = path_folders(environ)
    yield from (folder / "g++" for folder in folders if _executable(folder / "g++"))
    versioned = _versioned(folders, "g++")
    yield from (path for _, path in versioned)


def _versioned(folders: Iterable[Path], stem: str) -> list[tuple[int, Path]]:
    """``stem-<N>`` in ``folders``, newest first."""
    found = []
    for folder in folders:
        for path in folder.glob(f"{stem}-[0-9]*"):
            number = path.name.rpartition("-")[2]
            if number.isdigit() and _executable(path):
                found.append((int(number), path))
    return sorted(found, key=lambda item: -item[0])


def _ask_host(environ: Mapping[str, str], cxx: Path, asked_by: str = "") -> HostCompilerFact:
    first, problem = ask(environ, str(cxx), "--version")
    clang = _CLANG_VERSION.search(first)
    family: Literal["gcc", "clang"] = "clang" if clang else "gcc"
    version = clang[1] if clang else ""
    if not problem and not clang:
        answer, problem = ask(environ, str(cxx), "-dumpfullversion", "-dumpversion")
        version = answer.strip()
    cc = _c_compiler(cxx)
    if not problem and cc is None:
        problem = f"the C compiler that belongs to it is not in {cxx.parent}"
    return HostCompilerFact(cxx, cc or cxx, family, version, asked_by, problem)


def _c_compiler(cxx: Path) -> Path | None:
    for plus, plain in (("clang++", "clang"), ("g++", "gcc"), ("c++", "cc")):
        if plus in cxx.name:
            cc = cxx.with_name(cxx.name.replace(plus, plain))
            return cc if _executable(cc) else None
    return None


def find_clangs(environ: Mapping[str, str]) -> Iterator[ClangFact]:
    """Every ``clang++`` and ``clang++-N`` on PATH and in ``/usr/lib/llvm-N/bin``, newest first."""
    folders = path_folders(environ)
    paths = [folder / "clang++" for folder in folders if _executable(folder / "clang++")]
    paths += [path for _, path in _versioned(folders, "clang++")]
    seen: set[Path] = set()
    facts = []
    for path in paths:
        real = Path(os.path.realpath(path))
        if real not in seen:
            seen.add(real)
            facts.append(_ask_clang(environ, path))
    yield from sorted(facts, key=lambda fact: -fact.major)


def _ask_clang(environ: Mapping[str, str], path: Path) -> ClangFact:
    answer, problem = ask(environ, str(path), "--version")
    match = _CLANG_VERSION.search(answer)
    if match is None:
        return ClangFact(path, problem=problem or "its --version is not clang's")
    return ClangFact(path, match[1], answer.splitlines()[0].strip())


# -- what decides the output of a compiler ---------------------------------------------------------

_DECIDING_FILES = (
    "bin/nvcc_clang.py",
    "bin/cudafe++",
    "bin/ptxas",
    "bin/fatbinary",
    "bin/nvlink",
    "nvvm/bin/cicc",
    "nvvm/libdevice/libdevice.10.bc",
    "lib64/libcudart_static.a",
    "lib64/libcudadevrt.a",
)
_DECIDING_HEADERS = (
    ("include/cuda_runtime_api.h", "CUDART_VERSION"),
    ("include/cub/version.cuh", "CUB_VERSION"),
    ("include/cccl/cub/version.cuh", "CUB_VERSION"),
)


def cuda_digests(
    home: Path, hashed: Callable[[Path], str] | None = None
) -> tuple[tuple[str, str], ...]:
    """Name and SHA-256 of each file of a CUDA home that decides what comes out of it.

    ``hashed`` gives the SHA-256 of a file, :func:`file_digest` unless given.
    """
    hashed = hashed or file_digest
    names: tuple[str, ...] = _DECIDING_FILES
    if not (home / "bin" / "nvcc_clang.py").exists():
        names = ("bin/nvcc", *names)
    found = [(name, hashed(home / name)) for name in names if (home / name).is_file()]
    found += [
        (macro, _text_digest(value))
        for name, macro in _DECIDING_HEADERS
        if (value := _macro(home / name, macro))
    ]
    return tuple(found)


def _macro(header: Path, name: str) -> str:
    try:
        text = header.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    match = re.search(rf"^#define\s+{name}\s+(\d+)", text, re.MULTILINE)
    return match[1] if match else ""


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file; remembered for as long as its size and time stamp stay."""
    status = path.stat()
    return _file_digest(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _file_digest(path: Path, _size: int, _mtime: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while block := source.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def ptxas_version(environ: Mapping[str, str], home: Path) -> str:
    """The version of ``ptxas`` (``13.0.88``), or an empty text when it does not say."""
    answer, _ = ask(environ, str(home / "bin" / "ptxas"), "--version")
    match = _RELEASE.search(answer)
    return match[2] if match else ""


# -- Python ----------------------------------------------------------------------------------------

_PYTHON_QUESTION = """
import hashlib, json, os, platform, sys, sysconfig
try:
    import venv
    has_venv = True
except ImportError:
    has_venv = False
include = sysconfig.get_paths()["include"]
names = ("OPT", "CFLAGS", "CCSHARED", "LDSHARED", "LDCXXSHARED", "LDFLAGS", "EXT_SUFFIX", "MULTIARCH")
flags = json.dumps([sysconfig.get_config_var(name) for name in names])
print(json.dumps({
    "implementation": platform.python_implementation(),
    "version": ".".join(map(str, sys.version_info[:2])),
    "full": platform.python_version(),
    "has_venv": has_venv,
    "header": os.path.isfile(os.path.join(include, "Python.h")),
    "include": include,
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "flags": hashlib.sha256(flags.encode()).hexdigest(),
}))
"""


def find_python(wanted: str, environ: Mapping[str, str] | None = None) -> PythonSearch:
    """The interpreter for ``wanted`` (``"3.12"``), and why others were passed over.

    Looked at, in this order: this interpreter, PATH, pyenv's versions, ``/opt/python`` (the
    manylinux images), and those that uv manages. Each is run: it must be CPython of that version,
    with ``venv`` and ``Python.h``. A pyenv shim that has no such version selected refuses, and is
    passed over.
    """
    environ = os.environ if environ is None else environ
    rejected: list[PythonFact] = []
    seen: set[Path] = set()
    for origin, path in _python_candidates(wanted, environ):
        if path in seen or not _executable(path):
            continue
        seen.add(path)
        fact = _ask_python(wanted, origin, path, environ)
        if not fact.problem:
            return PythonSearch(wanted, fact, tuple(rejected))
        rejected.append(fact)
    return PythonSearch(wanted, None, tuple(rejected))


def require_python(wanted: str, environ: Mapping[str, str] | None = None) -> Path:
    """The interpreter for ``wanted``, or :class:`~ci.errors.ToolchainError` with what was seen."""
    search = find_python(wanted, environ)
    if search.found is not None:
        return search.found.path
    raise ToolchainError(
        f"no usable Python {wanted} on this machine",
        cause="none was found" if not search.rejected else "those that were found cannot be used",
        next_step=f"install it with headers and venv: apt-get install python{wanted}-dev "
        f"python{wanted}-venv, or pyenv install {wanted}, or uv python install {wanted}",
        details=[f"{fact.path} ({fact.origin}): {fact.problem}" for fact in search.rejected],
    )


def _python_candidates(wanted: str, environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    yield from _local_pythons(wanted, environ)
    yield from _uv_pythons(wanted, environ)


def _local_pythons(wanted: str, environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Those that lie where one would look; nothing is run to find them."""
    name = f"python{wanted}"
    if "{}.{}".format(*sys.version_info[:2]) == wanted:
        yield "this interpreter", _outside_venv(name)
        yield "this interpreter", Path(sys.executable)
    for folder in path_folders(environ):
        yield "PATH", folder / name
    for root in _pyenv_roots(environ):
        for version in sorted(root.glob(f"versions/{wanted}.*"), key=_version_key, reverse=True):
            yield "pyenv", version / "bin" / name
    tag = "cp" + wanted.replace(".", "")
    yield "/opt/python", Path("/opt/python") / f"{tag}-{tag}" / "bin" / "python"
    for folder in path_folders(environ):
        yield "PATH", folder / "python3"


def _outside_venv(name: str) -> Path:
    """The interpreter that our virtual environment was made from, or our own."""
    base = getattr(sys, "_base_executable", sys.executable)
    named = Path(base).with_name(name)
    return named if named.exists() else Path(base)


def _pyenv_roots(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("PYENV_ROOT"):
        yield Path(environ["PYENV_ROOT"])
    if environ.get("HOME"):
        yield Path(environ["HOME"]) / ".pyenv"


def _version_key(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", folder.name))


def _uv_pythons(wanted: str, environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    uv = find_uv(environ)
    if uv is None:
        return
    answer, problem = ask(
        environ, str(uv), "python", "find", "--no-python-downloads", "--no-project", wanted
    )
    if not problem:
        yield "uv", Path(answer.strip().splitlines()[-1])


def find_uv(environ: Mapping[str, str]) -> Path | None:
    """The program ``uv``: of the installed ``uv`` package, else on PATH."""
    try:
        from uv import find_uv_bin

        return Path(find_uv_bin())
    except (ImportError, FileNotFoundError):
        return which("uv", environ)


def _ask_python(wanted: str, origin: str, path: Path, environ: Mapping[str, str]) -> PythonFact:
    answer, problem = ask(environ, str(path), "-I", "-c", _PYTHON_QUESTION, shown=path.name)
    if problem:
        return PythonFact(path, origin, problem=problem)
    try:
        told = json.loads(answer)
    except ValueError:
        return PythonFact(path, origin, problem="its answer cannot be read")
    problem, flags = _python_problem(wanted, told), str(told.get("flags", ""))
    return PythonFact(path, origin, str(told["full"]), problem, flags)


def _python_problem(wanted: str, told: Mapping[str, object]) -> str:
    if told["implementation"] != "CPython":
        return f"it is {told['implementation']}, not CPython"
    if told["version"] != wanted:
        return f"it is Python {told['full']}"
    if told["free_threaded"]:
        return "it is a free-threaded build, whose ABI is another"
    if not told["has_venv"]:
        return "it has no venv module"
    if not told["header"]:
        return f"there is no Python.h in {told['include']}"
    return ""
