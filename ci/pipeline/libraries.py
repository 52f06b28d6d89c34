"""The libraries of a cell: what they are built with, one step for each, and what came of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ci.environments.closure import needed
from ci.environments.lock import BUILD_BASE, Lock, lock_for
from ci.environments.venv import Environment, cached_environment
from ci.environments.wanted import build_requirements, import_requirements
from ci.errors import FarmError, LibraryBuildError, from_os_error
from ci.graph.history import guess
from ci.graph.key import library_key
from ci.graph.model import Expected, Grant
from ci.graph.step import LibraryStep, StepPlace, StepResult, run_step
from ci.pipeline.plan import CellPlan
from ci.pipeline.run import Run
from ci.pipeline.state import CellState
from ci.registry import EcosystemLibrary, Target, build_steps, build_utils, target_of
from ci.report.progress import Narrator
from ci.toolchain import HostToolchain, Toolchain, host_toolchain, resolve_toolchain

LIBRARY = "library"
"""The kind of the tasks that build libraries."""


def obtain_environment(state: CellState, run: Run) -> None:
    """The toolchain and the build environment of the cell, kept in ``state``. Cells with the same compiler
    wait for the one that gets it.

    Raises what :func:`obtain_toolchain`, :func:`build_environment` and :func:`import_lock` raise.
    """
    plan = state.plan
    with state.stage("toolchain"):
        state.toolchain = run.once.get(
            ("toolchain", plan.cell.cuda if plan.needs_compiler else ""),
            lambda: obtain_toolchain(plan, run.narrator),
        )
    with state.stage("environment"):
        run.narrator.say(f"{plan.cell.id}: build environment for Python {plan.cell.python}")
        state.environment = build_environment(plan)
        import_lock(plan)


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


def library_steps(state: CellState) -> tuple[LibraryStep, ...]:
    """The steps of the cell's libraries, with their keys."""
    return tuple(_step(state, library) for library in state.plan.selection.selected)


def run_library(step: LibraryStep, run: Run, grant: Grant, log: Path, cell: str) -> StepResult:
    """The result of a step for the first cell that needs it, kept in ``run`` for the others."""
    name = f"{cell} {step.library.name}"
    run.narrator.begin(name, "building")
    place = StepPlace(
        run.executor,
        run.store,
        run.builds,
        path=run.shims,
        compilers=run.compilers,
        waiting=lambda _: run.narrator.say(f"{name}: another run is building it; waiting for that"),
    )
    try:
        result = run_step(step, place, grant, log)
    except (FarmError, OSError) as caught:
        error = from_os_error(caught) if isinstance(caught, OSError) else caught
        run.errors[step.key.digest] = error
        run.narrator.end(name, error.message)
        raise error from caught
    run.results[step.key.digest] = result
    if result.failure is None:
        run.remember(step.history, step.key)
    from_remote = " (remote)" if result.cached == "remote" else ""
    run.narrator.end(name, f"{result.status}{from_remote} in {result.seconds:.1f} s")
    return result


def _step(state: CellState, library: EcosystemLibrary) -> LibraryStep:
    plan, target = state.plan, target_of(state.plan.cell)
    source, environment = state.sources[library.name], state.environment
    if environment is None:
        raise ValueError("steps are asked for before their build environment is there")
    compiler = _compiler_of(library, state)
    paths = compiler.path_entries() if isinstance(compiler, Toolchain) else ()
    request = build_steps.BuildRequest(
        library=library.name,
        source=str(source.folder),
        work="",
        out="",
        artifacts=tuple((item.source, item.target) for item in library.artifacts),
        env=(compiler.environment() if compiler else {}) | library.build_env(target),
        path=tuple(str(entry) for entry in paths),
        include_dirs=library.include_dirs,
        hooks_before_build=library.hooks_before_build,
        hooks_after_collect=library.hooks_after_collect,
        ignored=library.ignored,
        tree=source.tree,
    )
    declared = build_utils.requirements(library.build_requires, target)
    key = library_key(
        library,
        target,
        tree=source.tree,
        build_requires=(*declared, *needed(environment, [*BUILD_BASE, *declared])),
        toolchain_identity=compiler.identity() if compiler else "",
        interpreter_identity=plan.chosen.compiles_as,
    )
    history = history_of(library, target)
    return LibraryStep(
        library,
        target,
        key,
        request,
        environment.python,
        history,
        compiler=compiler.compiler if isinstance(compiler, Toolchain) else "host" * bool(compiler),
        nvcc=_nvcc_version(compiler),
        device_targets=len(library.capabilities(target)),
    )


def _nvcc_version(compiler: Toolchain | HostToolchain | None) -> tuple[int, int]:
    """Major and minor of an nvcc, (0, 0) for all else."""
    if not isinstance(compiler, Toolchain) or compiler.compiler != "nvcc":
        return (0, 0)
    major, minor = compiler.version.split(".")[:2]
    return int(major), int(minor)


CPU_SECONDS = {".cu": 30.0, ".cpp": 6.0, ".cc": 6.0, ".cxx": 6.0, ".c": 1.0}
"""What a file to compile is guessed to take, before anything is known of it."""
FRONT_END_SECONDS = 3.0


def first_guess(library: EcosystemLibrary, source: Path, tokens: int) -> Expected:
    """What the build of a library may use that was never built here, by the files that it compiles. It only
    has to put long work before short work, and what cannot be divided before what can.
    """
    work, compiled = FRONT_END_SECONDS, library.needs_cuda_compiler or library.needs_host_compiler
    for path in source.rglob("*") if compiled else ():
        work += CPU_SECONDS.get(path.suffix, 0.0)
    at_once = tokens if library.parallelism != "nothing" else 1
    usual = guess(LIBRARY)
    seconds = min(work / at_once, MOST_SECONDS)
    peak = usual.peak_bytes if library.needs_cuda_compiler else usual.peak_bytes // 4
    return Expected(seconds, min(work, MOST_SECONDS), peak)


MOST_SECONDS = 3600.0
"""Trees hold examples and tests that nobody compiles: a guess says no more than this."""


def history_of(library: EcosystemLibrary, target: Target) -> str:
    """The name that builds of a library are remembered by: it and the axes that it varies by."""
    axes = {
        "python": f"cp{target.python.replace('.', '')}",
        "cuda": f"cu{target.cuda.replace('.', '')}",
        "capability": " ".join(library.capabilities(target)),
    }
    return " ".join((library.name, *(axes[axis] for axis in sorted(library.varies_by))))


def _compiler_of(library: EcosystemLibrary, state: CellState) -> Toolchain | HostToolchain | None:
    """What a library is compiled with: no more of the toolchain than it needs, so that a change of
    CUDA does not rebuild what holds no device code.
    """
    if library.needs_cuda_compiler:
        return state.toolchain
    if library.needs_host_compiler:
        return (
            state.toolchain.host
            if state.toolchain
            else host_toolchain(os.environ, state.plan.request.cache_dir)
        )
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
    raise LibraryBuildError(
        f"{names} did not build",
        cause=cause_of(failed[0]),
        next_step=f"read {failed[0].log}",
        details=details,
    )


def cause_of(result: StepResult) -> str:
    """The nearest to a cause that is known of a failure: the first compiler error, else the first problem."""
    failure = result.failure
    return (failure.first_error or failure.problems[0]) if failure is not None else ""
