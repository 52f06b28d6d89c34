"""A cell of this host as tasks of the build graph: prepared, its libraries, its wheel, its import suite.

Which libraries have to be built is known when toolchain and environment are: ``prepare`` makes the other
tasks known. A library step is named by its key, so cells that need the same one share it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from ci.errors import LibraryBuildError
from ci.graph.model import Cached, Demand, Done, Expected, Grant, Task
from ci.graph.step import LibraryStep, StepResult
from ci.pipeline.libraries import (
    LIBRARY,
    cause_of,
    first_guess,
    history_of,
    library_steps,
    obtain_environment,
    raise_failures,
    run_library,
)
from ci.pipeline.run import Measured, Run
from ci.pipeline.state import CellState
from ci.pipeline.wheel_stages import WheelPlace, import_wheel, make_wheel, publish_wheel
from ci.registry import target_of
from ci.sources.resolve import resolve_sources

PREPARE, WHEEL, SUITE, PUBLISH = "prepare", "wheel", "import", "publish"


class CellTasks(Protocol):
    """A cell of a run as tasks, whatever executor it has."""

    state: CellState

    def first(self, after: tuple[str, ...] = ()) -> Task:
        """The task that makes all others of the cell known."""

    def names(self) -> tuple[str, ...]:
        """The cell's own tasks, in their order."""


@dataclass
class HostCell:
    """The tasks of one cell. They run one after the other, save for the libraries, so each may change
    ``state``; ``work`` is the cell's folder, ``logs`` where logs go. ``before_builds`` is told the steps of
    its libraries when they are known, before any is built.
    """

    state: CellState
    run: Run
    work: Path
    logs: Path
    with_wheel: bool = True
    before_builds: Callable[[Sequence[LibraryStep]], None] = lambda _steps: None
    steps: tuple[LibraryStep, ...] = ()
    prepared: float = field(default=0.0)

    def first(self, after: tuple[str, ...] = ()) -> Task:
        """The task that makes all others of the cell known."""
        return self._task(PREPARE, self._prepare, after, tail=self._tail())

    def names(self) -> tuple[str, ...]:
        """The cell's own tasks, in their order."""
        cell = self.state.plan.cell.id
        return tuple(f"{kind} {cell}" for kind in (PREPARE, WHEEL, SUITE, PUBLISH))

    def _task(
        self,
        kind: str,
        run: object,
        after: tuple[str, ...],
        *,
        tail: float = 0.0,
        always: bool = False,
    ) -> Task:
        cell = self.state.plan.cell
        name = f"{kind} {cell.id}"
        history = f"{name} {self.state.plan.request.library_set}"
        demand = Demand(self.run.expected(history, kind), tail=tail)
        return Task(name, kind, run, after, demand, history, even_after_failure=always)  # type: ignore[arg-type]

    def _tail(self) -> float:
        """Seconds that the tasks which :meth:`_prepare` makes known will take, the longest way through."""
        plan = self.state.plan
        longest = max(
            (
                self.run.expected(history_of(library, target_of(plan.cell)), LIBRARY).seconds
                for library in plan.selection.selected
            ),
            default=0.0,
        )
        rest = [
            self.run.expected(f"{name} {plan.request.library_set}", kind).seconds
            for name, kind in zip(self.names()[1:3], (WHEEL, SUITE), strict=True)
        ]
        return longest + sum(rest)

    def _prepare(self, _grant: Grant) -> Done:
        obtain_environment(self.state, self.run)
        self.steps = library_steps(self.state)
        self.before_builds(self.steps)
        self.prepared = time.monotonic()
        builds = tuple(self._build_task(step) for step in self.steps)
        more = list(builds)
        if self.with_wheel:
            after = tuple(task.name for task in builds)
            wheel = self._task(WHEEL, self._wheel, after, always=True)
            demand = replace(wheel.demand, most_tokens=self.run.pool.tokens)
            more.append(replace(wheel, demand=demand))
            if self.state.plan.request.with_import:
                more.append(self._task(SUITE, self._import, (more[-1].name,)))
            more.append(self._task(PUBLISH, self._publish, (more[-1].name,)))
        return Done(more=tuple(more))

    def _build_task(self, step: LibraryStep) -> Task:
        cell = self.run.builder(step.key.digest, self.state.plan.cell.id)
        most = self.run.pool.tokens if step.library.parallelism == "MAX_JOBS" else 1
        return Task(
            name=f"{LIBRARY} {step.library.name} {step.key.digest[:12]}",
            kind=LIBRARY,
            run=partial(self._build, step, cell),
            demand=Demand(self._expected(step), most_tokens=most),
            history=step.history,
        )

    def _expected(self, step: LibraryStep) -> Expected:
        """As learnt; what is kept already takes no time; else a guess from the sources."""
        if self.run.store.holds(step.key):
            return Expected(0.1, 0.1, 0)
        known = self.run.history.expected(step.history)
        if known is not None:
            return known
        return first_guess(step.library, Path(step.request.source), self.run.pool.tokens)

    def _build(self, step: LibraryStep, cell: str, grant: Grant) -> Done:
        result = run_library(step, self.run, grant, self.logs / f"{step.library.name}.log", cell)
        if result.failure is not None:
            raise LibraryBuildError(
                f"{step.library.name} did not build",
                cause=cause_of(result),
                next_step=f"read {result.log}",
            )
        return Done(result, result.usage, result.cached)

    def collect(self) -> None:
        """Keep the results of the cell's steps in its state, also of those that another cell had built.

        Raises :class:`~ci.errors.LibraryBuildError` with all that did not build, and the first error that
        kept one from its end: a full disk, say.
        """
        for step in self.steps:
            digest = step.key.digest
            if digest not in self.run.results and digest in self.run.errors:
                raise self.run.errors[digest]
        own = self.state.plan.cell.id
        self.state.results = tuple(self._result(step, own) for step in self.steps)
        self.state.stage_seconds["libraries"] = time.monotonic() - self.prepared
        raise_failures(self.state.results)

    def _result(self, step: LibraryStep, own: str) -> StepResult:
        result = self.run.results[step.key.digest]
        builder = self.run.builder(step.key.digest, own)
        if builder == own or result.status != "built":
            return replace(result, library=step.library)
        return replace(result, library=step.library, status="cached", shared_with=builder)

    def _wheel(self, grant: Grant) -> Done:
        self.collect()
        return self._measured(make_wheel, grant)

    def _import(self, grant: Grant) -> Done:
        return self._measured(import_wheel, grant)

    def _measured(self, stage: Callable[[CellState, WheelPlace], Cached], grant: Grant) -> Done:
        executor, run = Measured(self.state.plan.place.why, self.run.meter), self.run
        place = WheelPlace(run.store, self.work, self.logs, run.narrator, executor, grant.tokens)
        cached = stage(self.state, place)
        return Done(cached=cached, usage=executor.usage)

    def _publish(self, _grant: Grant) -> Done:
        publish_wheel(self.state, self.run.narrator)
        return Done()


def obtain_libraries(
    state: CellState,
    run: Run,
    work: Path,
    logs: Path,
    before_builds: Callable[[Sequence[LibraryStep]], None] = lambda _steps: None,
) -> None:
    """Sources (where they are not known yet), toolchain, build environment and every library of the cell,
    kept in ``state``, without a wheel. ``before_builds`` is told the steps when they are known.

    Raises what the stages raise, and :class:`~ci.errors.LibraryBuildError` when a library does not build.
    """
    plan = state.plan
    if not state.sources:
        with state.stage("sources"):
            state.sources = resolve_sources(
                plan.selection.selected, plan.overrides, plan.request.cache_dir, run.narrator.say
            )
    cell = HostCell(state, run, work, logs, with_wheel=False, before_builds=before_builds)
    first = cell.first()
    outcomes = run.execute([first])
    error = outcomes[first.name].error
    if error is not None:
        raise error
    cell.collect()
