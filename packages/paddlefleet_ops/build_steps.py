"""Building one library, and collecting what it yields. The only file here that runs third-party code.

A library is built as the integration guide says: ``pip install SOURCE --target DIR --no-deps
--no-build-isolation``, in an environment that was prepared before. It builds from a copy of its
sources, sees a scrubbed environment, and writes only below its work folder. Then its artifacts are
collected, and every file that it produced is accounted for.

The farm runs this file as a program in the environment of the cell (``python build_steps.py
REQUEST.json``), the build backend calls :func:`build_library`. Standard library only.
"""

from __future__ import annotations

import email
import fcntl
import fnmatch
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath

PARENT_SECONDS = 0.5
KEPT_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "MAKEFLAGS")
# What is no source: the same names as build_manifest.tree_hash leaves out, so that a build sees just what
# its key names. A stale egg-info or build folder would also put old files into the wheel.
NOT_COPIED = (
    ".git", "__pycache__", "*.pyc", "*.egg-info", ".pytest_cache", ".mypy_cache", ".ruff_cache",
)  # fmt: skip

# An include folder that begins so is a pattern below the build environment's packages, not below the sources.
SITE_PACKAGES = "{site-packages}/"


class BuildFailedError(Exception):
    """A library did not build, or yielded something else than its declaration says.

    ``stage`` is ``prepare``, ``compile`` or ``collect``; ``problems`` are all that were found.
    """

    def __init__(self, library: str, stage: str, problems: Sequence[str]) -> None:
        super().__init__(f"{library}: {stage}: " + "; ".join(problems))
        self.library = library
        self.stage = stage
        self.problems = tuple(problems)


@dataclass(frozen=True)
class BuildRequest:
    """Everything that the build of one library depends on, as plain values.

    ``artifacts`` are pairs of source and target; ``env`` is added to the scrubbed environment;
    ``path`` holds the folders of the toolchain, first on PATH; ``jobs`` bounds parallel compilers. ``tree``
    is the hash that the sources must have (empty: any), so that a result is never kept for others.
    """

    library: str
    source: str
    work: str
    out: str
    artifacts: tuple[tuple[str, str], ...]
    env: Mapping[str, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    include_dirs: tuple[str, ...] = ()
    hooks_before_build: tuple[str, ...] = ()
    hooks_after_collect: tuple[str, ...] = ()
    ignored: Mapping[str, str] = field(default_factory=dict)
    jobs: int = 1
    tree: str = ""
    source_date_epoch: str = "315532800"

    @classmethod
    def read(cls, path: Path) -> BuildRequest:
        """The request that :meth:`write` wrote."""
        values = json.loads(path.read_text("utf-8"))
        values["artifacts"] = tuple((source, target) for source, target in values["artifacts"])
        for name in ("path", "include_dirs", "hooks_before_build", "hooks_after_collect"):
            values[name] = tuple(values[name])
        return cls(**values)

    def write(self, path: Path) -> None:
        """Write the request as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1, sort_keys=True), "utf-8")


@dataclass(frozen=True)
class Produced:
    """What a build yielded: the distribution's name and version, the collected files, the ignored ones.

    Paths are relative POSIX paths: of ``files`` below the package, of ``ignored`` below the folder that
    pip filled, each with its reason.
    """

    distribution: str
    version: str
    files: tuple[str, ...]
    ignored: Mapping[str, str]


def build_library(request: BuildRequest) -> Produced:
    """Build one library and collect its artifacts below ``request.out``.

    ``out`` appears only when everything is there: a failed build leaves nothing. What pip
    and the compilers say goes to this process' stdout and stderr. Raises :class:`BuildFailedError`.
    """
    work, out = Path(request.work), Path(request.out)
    shutil.rmtree(out, ignore_errors=True)
    source, installed = _prepare(request, work)
    _pip_install(request, source, installed, work)
    distribution, version = _distribution(request.library, installed)
    staged = work / "collected"
    shutil.rmtree(staged, ignore_errors=True)
    ignored = _collect(request, installed, staged)
    _run_hooks(request, "collect", request.hooks_after_collect, staged)
    files = tuple(sorted(_relative_files(staged)))
    out.parent.mkdir(parents=True, exist_ok=True)
    os.replace(staged, out)
    return Produced(distribution, version, files, ignored)


def _prepare(request: BuildRequest, work: Path) -> tuple[Path, Path]:
    origin = Path(request.source)
    if not (origin / "pyproject.toml").exists() and not (origin / "setup.py").exists():
        raise BuildFailedError(
            request.library,
            "prepare",
            [f"its source folder has neither pyproject.toml nor setup.py: {origin}"],
        )
    source, installed = work / "source", work / "installed"
    for folder in (source, installed, work / "home", work / "tmp"):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(origin, source, symlinks=True, ignore=_not_copied(origin))
    _check_tree(request, source)
    for folder in (work / "home", work / "tmp"):
        folder.mkdir(parents=True)
    _run_hooks(request, "prepare", request.hooks_before_build, source)
    return source, installed


def _check_tree(request: BuildRequest, source: Path) -> None:
    """The folder may have been edited, or checked out anew, since its hash went into the key."""
    if not request.tree:
        return
    from build_manifest import tree_hash  # beside this file, which runs as a program

    found = tree_hash(source)
    if found != request.tree:
        problem = f"its sources changed while the run went on: {request.tree} became {found}"
        raise BuildFailedError(request.library, "prepare", [problem])


def _not_copied(origin: Path) -> Callable[[str, list[str]], set[str]]:
    """``build`` is what setuptools leaves behind only at the top; below it may hold sources."""
    everywhere = shutil.ignore_patterns(*NOT_COPIED)

    def ignore(folder: str, names: list[str]) -> set[str]:
        top = {"build"} if Path(folder) == origin else set()
        return everywhere(folder, names) | (top & set(names))

    return ignore


def build_environment(request: BuildRequest, work: Path) -> dict[str, str]:
    """The whole environment of a library's build: an allow-list, the toolchain, the declaration.

    No credential, index address or configuration of the user is in it; ``PIP_NO_INDEX`` keeps a
    ``setup.py`` from installing packages behind the back of the lock file.
    """
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    folders = (
        *request.path,
        str(Path(sys.executable).parent),
        "/usr/local/bin",
        "/usr/bin",
        "/bin",
    )
    include = [
        str(found) for folder in request.include_dirs for found in _include(request, folder, work)
    ]
    fixed = {
        "PATH": os.pathsep.join(dict.fromkeys(folders)),
        "HOME": str(work / "home"),
        "LC_ALL": "C.UTF-8",  # compilers' messages in one language, so that errors are found
        "TMPDIR": str(work / "tmp"),
        "MAX_JOBS": str(request.jobs),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INDEX": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "SOURCE_DATE_EPOCH": request.source_date_epoch,
    }
    if include:
        fixed["CPLUS_INCLUDE_PATH"] = os.pathsep.join(include)
    return kept | fixed | _without_places(request, work) | dict(request.env)


def _without_places(request: BuildRequest, work: Path) -> dict[str, str]:
    """Compiler options that keep this build's folders out of what it yields, whatever its build says.

    ``__FILE__`` and debug information would hold them, and the wheel would differ from one build to the
    next. ``CPPFLAGS`` adds to the flags of C and C++, where ``CFLAGS`` and ``CXXFLAGS`` would take the
    place of Python's own (``-O3 -DNDEBUG``): customize_compiler of setuptools. nvcc reads
    ``NVCC_APPEND_FLAGS``. Source: GCC's manual, ``-ffile-prefix-map`` (GCC 8, clang 10).
    """
    names = {str(work / "source"): ".", sys.prefix: "environment"}
    if "CUDA_HOME" in request.env:
        names[request.env["CUDA_HOME"]] = "cuda"
    options = [
        f"-ffile-prefix-map={folder}={name}"
        for place, name in names.items()
        for folder in dict.fromkeys((place, os.path.realpath(place)))
        if not re.search(r"[\s,=]", folder)  # what a flag or nvcc's list of them cannot hold
    ]
    flags = " ".join(options)
    through_nvcc = " ".join(f"-Xcompiler={option}" for option in options)
    return {"CPPFLAGS": flags, "NVCC_APPEND_FLAGS": through_nvcc}


def _include(request: BuildRequest, folder: str, work: Path) -> list[Path]:
    """The folders that one entry of ``include_dirs`` means, in a stable order."""
    if not folder.startswith(SITE_PACKAGES):
        return [work / "source" / folder]
    pattern = folder[len(SITE_PACKAGES) :]
    bases = [Path(entry) for entry in sys.path if entry.endswith("site-packages")]
    found = sorted(path for base in bases for path in base.glob(pattern) if path.is_dir())
    if not found:
        problem = (
            f"no folder {pattern!r} among the packages of the build environment: a package with these "
            "headers has to be in build_requires"
        )
        raise BuildFailedError(request.library, "prepare", [problem])
    return found


def _pip_install(request: BuildRequest, source: Path, installed: Path, work: Path) -> None:
    argv = (
        sys.executable, "-m", "pip", "install", ".", "--target", str(installed),
        "--no-deps", "--no-build-isolation", "--no-compile", "--no-cache-dir", "-v",
    )  # fmt: skip
    done = subprocess.run(argv, cwd=source, env=build_environment(request, work), check=False)
    if done.returncode != 0:
        raise BuildFailedError(
            request.library, "compile", [f"pip install ended with status {done.returncode}"]
        )


def _distribution(library: str, installed: Path) -> tuple[str, str]:
    found = []
    for metadata in sorted(installed.glob("*.dist-info/METADATA")):
        fields = email.message_from_string(metadata.read_text("utf-8", "replace"))
        found.append((str(fields["Name"]), str(fields["Version"])))
    if len(found) != 1:
        names = ", ".join(f"{name} {version}" for name, version in found) or "none"
        raise BuildFailedError(library, "collect", [f"expected one distribution, found {names}"])
    name, version = found[0]
    if name.upper() == "UNKNOWN":
        raise BuildFailedError(
            library,
            "collect",
            [
                f"its build yielded an unnamed distribution ({name} {version}): the setuptools of the "
                "build environment did not read its pyproject.toml"
            ],
        )
    return name, version


def _relative_files(folder: Path) -> list[str]:
    return [
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    ]


def _collect(request: BuildRequest, installed: Path, staged: Path) -> dict[str, str]:
    """Copy the artifacts to ``staged`` and account for every other file that pip installed."""
    claimed: set[str] = set()
    problems: list[str] = []
    produced = _relative_files(installed)
    for source, target in request.artifacts:
        matches = [name for name in produced if _below(name, source)]
        if not matches:
            problems.append(f"artifact {source!r} is missing from what its build yielded")
        claimed.update(matches)
        for name in matches:
            if (installed / name).is_file():
                _copy(installed / name, staged / target / PurePosixPath(name).relative_to(source))
            else:
                problems.append(f"produced file {name!r} is a link to nothing")
    ignored = {}
    for name in sorted(set(produced) - claimed):
        reason = _reason_to_ignore(name, request.ignored)
        if reason:
            ignored[name] = reason
        else:
            problems.append(
                f"produced file {name!r} is neither an artifact nor declared as ignored"
            )
    if problems:
        shown = problems[:20] + [f"and {len(problems) - 20} more"] * (len(problems) > 20)
        top = sorted({PurePosixPath(name).parts[0] for name in produced})
        shown.append(f"its build yielded: {', '.join(top) or 'nothing'}")
        raise BuildFailedError(request.library, "collect", shown)
    return ignored


def _below(name: str, source: str) -> bool:
    return name == source or name.startswith(source.rstrip("/") + "/")


def _reason_to_ignore(name: str, declared: Mapping[str, str]) -> str:
    top = PurePosixPath(name).parts[0]
    if top.endswith(".dist-info"):
        return "metadata of the library's own distribution; the wheel has its own"
    for pattern, reason in declared.items():
        if fnmatch.fnmatchcase(name, pattern):
            return reason
    return ""


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target, follow_symlinks=True)


def _run_hooks(request: BuildRequest, stage: str, names: Sequence[str], folder: Path) -> None:
    for name in names:
        hook = getattr(_load_hooks(), name, None)
        if hook is None:
            problem = f"hook {name!r} is not in build_hooks.py"
            raise BuildFailedError(request.library, stage, [problem])
        try:
            hook(folder)
        except Exception as error:
            problem = f"hook {name!r}: {type(error).__name__}: {error}"
            raise BuildFailedError(request.library, stage, [problem]) from error


def _load_hooks() -> object:
    path = Path(__file__).resolve().parent / "build_hooks.py"
    spec = importlib.util.spec_from_file_location("_paddlefleet_ops_build_hooks", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# In order: a place in a source file, gcc's and clang's "error:", NVIDIA's "error   :", a linker, CMake,
# an exception's last line.
_COMPILER_ERROR = re.compile(
    r"\S*\.(?:cu|cuh|cpp|cc|cxx|c|h|hpp|hxx|inl|ptx)[:(]\d+[:)0-9]*:? (?:fatal |internal compiler )?error\b"
    r"|.*\b(?:fatal )?error ?: "
    r"|(?:nvcc|ptxas|nvlink|fatbinary|cicc)\b.*?\b(?:fatal|error)\s*:"
    r"|.*\berror   :"
    r"|.*undefined reference to |(?:\S*/)?ld(?:\.\w+)?: (?:cannot find|.*undefined symbol)"
    r"|CMake Error\b"
    r"|[\w.]*(?:Error|Exception): "
)
_WRAPPERS = re.compile(
    r"error: (?:command|subprocess-exited-with-error|metadata-generation-failed|failed-wheel-build"
    r"|legacy-install-failure)"
    r"|Failed building wheel|CalledProcessError|CompileError: command|collect2: error: ld returned"
    r"|linker command failed"
)
# The first of these words in a line is its severity: a warning may well speak of an error.
_SEVERITY = re.compile(
    r"(?:^|[:);] |\b(?:cicc|nvcc|nvlink|ptxas) )(?:(error|fatal)|warning|note|remark|info)\b"
    r"|^CMake (?:\w+ )?Warning\b"
)


def first_compiler_error(log: str) -> str:
    """The first line of a build log that says what is wrong, without pip's own words round it."""
    for line in log.splitlines():
        text = line.strip()
        severity = _SEVERITY.search(text)
        if (severity and not severity.group(1)) or _WRAPPERS.search(text):
            continue
        if _COMPILER_ERROR.match(text):
            return text
    return ""


def _end_with_parent() -> None:
    """End this build and its compilers when whoever started it is gone, however that ended.

    A farm that is killed cannot end its children, and compilers would run on for hours. Only where this
    process leads a group of its own, so that nobody else is ended.
    """
    parent = os.getppid()
    if os.getpgrp() != os.getpid():
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_SECONDS)
        os.killpg(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def main(arguments: Sequence[str]) -> int:
    """Build what the request file says, and write ``outcome.json`` into its work folder."""
    _end_with_parent()
    request = BuildRequest.read(Path(arguments[0]))
    building = Path(f"{request.work}.building").open("w")  # noqa: SIM115 - held until this process ends
    fcntl.flock(building, fcntl.LOCK_EX)
    outcome: dict[str, object]
    try:
        outcome = asdict(build_library(request))
        status = 0
    except BuildFailedError as error:
        outcome = {"library": error.library, "stage": error.stage, "problems": error.problems}
        status = 1
    sys.stdout.flush()
    Path(request.work).mkdir(parents=True, exist_ok=True)
    Path(request.work, "outcome.json").write_text(json.dumps(outcome), "utf-8")
    if status:
        print("\n".join(str(problem) for problem in outcome["problems"]))  # type: ignore[attr-defined]
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
