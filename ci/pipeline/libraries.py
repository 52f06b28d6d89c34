"""The middle stages of a cell: toolchain, build environment, one step for each library."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

from ci.environments.lock import BUILD_BASE, Lock, lock_for
from ci.environments.venv import Environment, cached_environment
from ci.environments.wanted import build_requirements, import_requirements
from ci.errors import (
    LibraryBuildError,
)
from ci.graph.key import library_key
from ci.graph.step import LibraryStep, StepResult, run_step
from ci.graph.store import Store
from ci.pipeline.identity import source_date_epoch
from ci.pipeline.plan import CellPlan
from ci.pipeline.state import CellState
from ci.proc import end_all
from ci.registry import (
    EcosystemLibrary,
    build_steps,
    build_utils,
    target_of,
)
from ci.report.progress import Narrator
from ci.sources.resolve import resolve_sources
from ci.toolchain import HostToolchain, Toolchain, host_toolchain, resolve_toolchain


def obtain_libraries(state: CellState, work: Path, logs: Path, narrator: Narrator) -> Environment:
    """Sources, toolchain, build environment and every library step of the cell, kept in ``state``.

    Returns the build environment. Raises what the stages raise, and
    :class:`~ci.errors.LibraryBuildError` when a library does not build.
    """
    plan = state.plan
    if not state.sources:  # in a container they come from outside
        with state.stage("sources"):
            state.sources = resolve_sources(
                plan.selection.selected, plan.overrides, plan.request.cache_dir, narrator.say
            )
    with state.stage("toolchain"):
        state.toolchain = obtain_toolchain(plan, narrator)
    with state.stage("environment"):
        narrator.say(f"{plan.cell.id}: build environment for Python {plan.cell.python}")
        environment = state.environment = build_environment(plan)
        import_lock(plan)
    with state.stage("libraries"):
        state.results = build_libraries(state, environment, work, logs, narrator)
    raise_failures(state.results)
    return environment


def obtain_toolchain(plan: CellPlan, narrator: Narrator) -> Toolchain | None:
    """The toolchain of the cell, or ``None`` when no selected library needs a CUDA compiler."""
    if not plan.needs_compiler:
        return None
    request = plan.request
    return resolve_toolchain(
        plan.cell.cuda,
        request.compiler,
        request.cache_dir,
        environ=os.environ,
        progress=narrator.say,
    )


def build_environment(plan: CellPlan) -> Environment:
    """The environment that the libraries of the cell are built in, from its lock."""
    wanted = build_requirements(plan.selection.selected, target_of(plan.cell))
    lock = lock_for(wanted, plan.cell.python, "build", plan.request.cache_dir)
    return cached_environment(lock, plan.chosen.interpreter, plan.request.cache_dir)


def import_lock(plan: CellPlan) -> Lock:
    """The lock of the import suite's environment.

    Made before anything is built: run-time requirements that exclude each other would give a wheel that
    nobody can install. Raises what :func:`~ci.environments.lock.lock_for` raises.
    """
    libraries, paddle = plan.selection.selected, plan.cell.paddle.cpu
    wanted = import_requirements(libraries, target_of(plan.cell), paddle)
    return lock_for(wanted, plan.cell.python, "import", plan.request.cache_dir)


def build_libraries(
    state: CellState, environment: Environment, work: Path, logs: Path, narrator: Narrator
) -> tuple[StepResult, ...]:
    """The results of all library steps of the cell; a failed one is in its result."""
    store = Store(state.plan.request.cache_dir / "store")
    steps = [
        _step(state, library, environment, work, logs) for library in state.plan.selection.selected
    ]

    device_compilers = threading.Lock()  # each such build runs `jobs` compilers of its own

    def one(step: LibraryStep, stop: threading.Event) -> StepResult:
        name = f"{state.plan.cell.id} {step.library.name}"
        with device_compilers if step.library.needs_cuda_compiler else nullcontext():
            if stop.is_set():
                raise CancelledError
            narrator.begin(name, "building")
            result = run_step(step, state.executor, store)
        narrator.end(name, f"{result.status} in {result.seconds:.1f} s")
        return result

    return side_by_side(one, steps, state.plan.request.jobs)


def side_by_side(
    one: Callable[[LibraryStep, threading.Event], StepResult],
    steps: Sequence[LibraryStep],
    jobs: int,
) -> tuple[StepResult, ...]:
    """``one`` of every step, several at once.

    On an interrupt (or any other exception) the event is set, so that ``one`` starts nothing more, and
    the children of all threads are ended before it is raised.
    """
    stop = threading.Event()
    pool = ThreadPoolExecutor(max_workers=max(1, min(len(steps), jobs)))
    try:
        return tuple(pool.map(lambda step: one(step, stop), steps))
    except BaseException:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
        end_all()
        raise
    finally:
        pool.shutdown()


def _step(
    state: CellState,
    library: EcosystemLibrary,
    environment: Environment,
    work: Path,
    logs: Path,
) -> LibraryStep:
    plan, target = state.plan, target_of(state.plan.cell)
    source, folder = state.sources[library.name], work / "libraries" / library.name
    compiler = _compiler_of(library, state)
    paths = compiler.path_entries() if isinstance(compiler, Toolchain) else ()
    request = build_steps.BuildRequest(
        library=library.name,
        source=str(source.folder),
        work=str(folder),
        out=str(work / "collected" / library.name),
        artifacts=tuple((item.source, item.target) for item in library.artifacts),
        env=(compiler.environment() if compiler else {}) | library.build_env(target),
        path=tuple(str(entry) for entry in paths),
        include_dirs=library.include_dirs,
        hooks_before_build=library.hooks_before_build,
        hooks_after_collect=library.hooks_after_collect,
        ignored=library.ignored,
        jobs=plan.request.jobs,
        tree=source.tree,
        source_date_epoch=source_date_epoch(),
    )
    declared = build_utils.requirements(library.build_requires, target)
    key = library_key(
        library,
        target,
        tree=source.tree,
        build_requires=(*declared, *environment.lock.pinned([*BUILD_BASE, *declared])),
        toolchain_identity=compiler.identity() if compiler else "",
        interpreter_identity=f"CPython {plan.cell.python}",
    )
    return LibraryStep(library, key, request, environment.python, logs / f"{library.name}.log")


def _compiler_of(library: EcosystemLibrary, state: CellState) -> Toolchain | HostToolchain | None:
    """What a library is compiled with: no more of the toolchain than it needs, so that a change of
    CUDA does not rebuild what holds no device code.
    """
    if library.needs_cuda_compiler:
        return state.toolchain
    if library.needs_host_compiler:
        return state.toolchain.host if state.toolchain else host_toolchain(os.environ)
    return None


def raise_failures(results: Sequence[StepResult]) -> None:
    """Raise one :class:`~ci.errors.LibraryBuildError` that tells of every library that failed."""
    failed = [result for result in results if result.failure is not None]
    if not failed:
        return
    details: list[str] = []
    for result in failed:
        failure = result.failure
        if failure is None:
            continue
        details.append(f"{result.library.name} ({failure.stage}):")
        details += [f"  {problem}" for problem in failure.problems]
        if failure.first_error:
            details.append(f"  first compiler error: {failure.first_error}")
            details += [f"    {line}" for line in failure.context]
        details += [f"  | {line}" for line in failure.tail]
    names = ", ".join(result.library.name for result in failed)
    first = failed[0].failure
    cause = (first.first_error or first.problems[0]) if first is not None else ""
    raise LibraryBuildError(
        f"{names} did not build",
        cause=cause,
        next_step=f"read {failed[0].log}",
        details=details,
    )
