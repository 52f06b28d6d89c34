"""The run-time part of a check: build the library, import it under the guard, and watch.

The library is built by the same steps as for a wheel (cached), for the newest CUDA of the matrix and the
newest Python that this host and the library have, and watched in an environment with CPU Paddle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.environments.lock import IMPORT_BASE, lock_for
from ci.environments.venv import cached_environment
from ci.errors import FarmError, LibraryBuildError, ToolchainError
from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import Analysis
from ci.integration.registry_rules.distributions import TORCH_BY_COMPAT
from ci.integration.requirements import read_metadata
from ci.integration.rule import Rule
from ci.integration.subject import Subject, packages_of
from ci.integration.witness import (
    RUN_TIME_RULES as WITNESS_RULES,
)
from ci.integration.witness import (
    StaticAnswer,
    WitnessRequest,
    WitnessResult,
    contradictions,
    run_witness,
    witness_findings,
)
from ci.matrix.load import load
from ci.pipeline.cell_tasks import obtain_libraries
from ci.pipeline.libraries import import_lock
from ci.pipeline.plan import CellPlan, WheelRequest, plan_cells
from ci.pipeline.run import opened
from ci.pipeline.state import CellState
from ci.pipeline.work_folders import work_folder
from ci.registry import MATRIX, EcosystemLibrary
from ci.report.progress import Narrator
from ci.toolchain import find_python, require_python

DOES_NOT_BUILD = Rule(
    name="does-not-build",
    summary="the library does not build as its declaration says",
    guide=guide.BUILDS_ALONE,
)
RUN_TIME_RULES = (DOES_NOT_BUILD, *WITNESS_RULES)
WITNESS_SECONDS = 900.0


@dataclass(frozen=True)
class RunTime:
    """What the run-time part gave. ``why_not`` says why nothing was executed, empty when it was."""

    findings: tuple[Finding, ...] = ()
    why_not: str = ""
    not_exercised: tuple[str, ...] = ()
    error: FarmError | None = None


@dataclass(frozen=True)
class RunTimeRequest:
    """How to build and where to run: what is the same for every subject of a check."""

    cache_dir: Path
    python: str = ""
    declarations: tuple[Path, ...] = ()
    exercises: Mapping[str, str] | None = None
    jobs: int = 1


def run_subject(
    subject: Subject, analysis: Analysis, request: RunTimeRequest, narrator: Narrator
) -> RunTime:
    """Build (where it is declared) and watch one subject; what keeps it from running is in the result."""
    library = None if subject.is_package else subject.library
    narrator.begin(subject.name, "building it" if library else "preparing an environment")
    try:
        with work_folder(request.cache_dir, f"check-{subject.name}") as work:
            if library is None:
                found = _watch_sources(subject, analysis, request, work, narrator)
            else:
                found = _watch_built(subject, library, analysis, request, work, narrator)
    except LibraryBuildError as error:
        found = RunTime(findings=(_not_built(subject, analysis, error),))
    except FarmError as error:
        found = RunTime(why_not=error.message, error=error)
    narrator.end(subject.name, _told(found))
    return found


def _told(found: RunTime) -> str:
    return f"run time: {found.why_not or f'{len(found.findings)} findings'}"


def _not_built(subject: Subject, analysis: Analysis, error: LibraryBuildError) -> Finding:
    package = analysis.tree.packages[0]
    module = analysis.tree.find(package)
    return DOES_NOT_BUILD.finding(
        module.place if module else subject.origin,
        f"{error.message}: {error.cause}",
        f"mend the sources or the declaration; the log: nox -s wheel-cu130 -- --libs {subject.name}",
        library=subject.name,
        subject=subject.name,
    )


def _watch_built(
    subject: Subject,
    library: EcosystemLibrary,
    analysis: Analysis,
    request: RunTimeRequest,
    work: Path,
    narrator: Narrator,
) -> RunTime:
    plan = _plan(subject, library, request)
    state = CellState(plan)
    with opened(plan.request, narrator) as run:
        obtain_libraries(state, run, work, work / "logs")
        folders = tuple(
            run.store.materialise(result.entry, work / "artifacts" / result.library.name)
            for result in state.results
            if result.entry is not None
        )
    environment = cached_environment(import_lock(plan), plan.chosen.interpreter, request.cache_dir)
    wanted = WitnessRequest(
        paths=folders,
        module=library.module,
        modules=library.modules,
        scope=library.compat_scope,
        preload=library.preload,
        load_env=dict(library.load_env),
        public_names=library.public_names,
        exercises={**library.exercises, **(request.exercises or {})},
    )
    narrator.begin(subject.name, "importing it under the guard")
    result = run_witness(wanted, environment.python, work / "witness", WITNESS_SECONDS)
    return _judged(subject, analysis, result, gated=bool(library.requires.capability))


def _plan(subject: Subject, library: EcosystemLibrary, request: RunTimeRequest) -> CellPlan:
    newest = load(MATRIX).cudas[-1].version
    override = subject.override
    (plan,) = plan_cells(
        WheelRequest(
            cuda=(newest,),
            python=(request.python,) if request.python else (),
            library_set=library.library_set,
            libs=(library.name,),
            sources=(f"{library.name}={override.origin}",) if override else (),
            declarations=request.declarations,
            executor="host",
            cache_dir=request.cache_dir,
            jobs=request.jobs,
            verb="check",
        )
    )
    return plan


def _watch_sources(
    subject: Subject, analysis: Analysis, request: RunTimeRequest, work: Path, narrator: Narrator
) -> RunTime:
    """Sources that nothing declares are watched where they lie, beside what their metadata requires."""
    packages = analysis.tree.packages
    python, interpreter = _interpreter(request.python)
    paddle = load(MATRIX).cudas[-1].paddle.cpu
    required = [
        item.text
        for item in read_metadata(subject.folder).run
        if not item.extra and not item.condition and item.name not in TORCH_BY_COMPAT
    ]
    lock = lock_for((*IMPORT_BASE, paddle, *required), python, "import", request.cache_dir)
    environment = cached_environment(lock, interpreter, request.cache_dir)
    folders = dict.fromkeys(path.parent for path in packages_of(subject).values())
    exercises = dict(request.exercises or {})
    wanted = WitnessRequest(
        paths=tuple(folders),
        module=packages[0],
        modules=packages,
        scope=tuple(sorted(analysis.tree.scope)),
        public_names=tuple(exercises),
        exercises=exercises,
    )
    narrator.begin(subject.name, "importing it under the guard")
    result = run_witness(wanted, environment.python, work / "witness", WITNESS_SECONDS)
    return _judged(subject, analysis, result, gated=False)


def _interpreter(python: str) -> tuple[str, Path]:
    """The Python that is asked for, else the newest of the matrix that this host has."""
    if python:
        return python, require_python(python)
    for candidate in reversed(load(MATRIX).pythons):
        found = find_python(candidate).found
        if found is not None:
            return candidate, found.path
    raise ToolchainError(
        "this host has no Python of the matrix",
        cause=f"matrix.toml declares {', '.join(load(MATRIX).pythons)}",
        next_step="python -m ci toolchain",
    )


def _judged(subject: Subject, analysis: Analysis, result: WitnessResult, *, gated: bool) -> RunTime:
    places = {name: module.place for name, module in analysis.tree.modules.items()}
    found = (
        *witness_findings(result, subject.name, places, gated=gated),
        *contradictions(static_answer(analysis), result, subject.name, places),
    )
    return RunTime(findings=found, not_exercised=result.not_exercised)


def static_answer(analysis: Analysis) -> StaticAnswer:
    """What reading the sources says, in the form that the witness compares with what happened."""
    own = {module.name for module in analysis.tree.own()}
    return StaticAnswer(
        eager=frozenset(analysis.definite & own),
        sensitive=frozenset(analysis.sensitive),
        lazy=frozenset(
            (module.name, name)
            for module in analysis.tree.own()
            for item in module.imports
            if item.late
            for name in (item.module, *analysis.targets(item))
        ),
        conditional=frozenset((analysis.reached - analysis.definite) & own),
    )
