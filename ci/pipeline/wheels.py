"""From a request to repaired, import-tested wheels: one graph of tasks over all cells."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ci.compiler_cache.choice import choose, probe
from ci.errors import ConfigError
from ci.executors.choice import ContainerPlace, Place
from ci.executors.preflight import check_disk, check_places
from ci.graph.model import Done, Grant, Outcome, Task
from ci.graph.trace import chrome_trace, write_trace
from ci.pipeline.cell_tasks import CellTasks, HostCell
from ci.pipeline.plan import CellPlan, WheelRequest, check_toolchains, plan_cells
from ci.pipeline.rows import cell_report, next_command, task_row
from ci.pipeline.run import Run, opened
from ci.pipeline.state import CellState
from ci.registry import REPOSITORY, EcosystemLibrary
from ci.report.model import CellReport, RunReport
from ci.report.progress import Narrator
from ci.report.timeline import timeline, totals
from ci.sources.resolve import ResolvedSource, check_submodules, resolve_sources


def build_wheels(request: WheelRequest, narrator: Narrator) -> RunReport:
    """Build, repair and import-test the wheel of every cell that is asked for.

    A cell that fails does not stop the others; its error is in the report. Raises what
    :func:`plan_cells` raises, before anything is built.
    """
    started = time.monotonic()
    plans = plan_cells(request)
    _check_engine(plans[0].place, request)
    check_toolchains(plans)
    check_submodules(_libraries(plans, overridden=False))
    _check_folders(request)
    _check_compiler_cache(plans[0].place, request)
    with opened(request, narrator) as run:
        cells = [_cell(plan, run) for plan in plans]
        outcomes = run.execute(
            [_sources(plans, cells, run), *(cell.first((SOURCES,)) for cell in cells)]
        )
        _write_trace(run, outcomes)
        reports = tuple(_report(cell, outcomes) for cell in cells)
        return RunReport(
            request.verb,
            reports,
            time.monotonic() - started,
            next_command(reports),
            tasks=tuple(task_row(outcome) for outcome in outcomes.values()),
            timeline=timeline(outcomes.values()),
            summary=totals(outcomes.values(), run.recorder.after, run.pool.tokens).line,
            compiler_cache=run.compiler_calls(),
        )


def _write_trace(run: Run, outcomes: Mapping[str, Outcome]) -> None:
    """The run as a Chrome trace: opens in Perfetto."""
    write_trace(run.request.out_dir / "trace.json", chrome_trace(outcomes.values(), run.recorder))


SOURCES = "sources"


def _sources(plans: Sequence[CellPlan], cells: Sequence[CellTasks], run: Run) -> Task:
    """The task that gets the sources of all libraries, each once."""

    def resolve(_grant: Grant) -> Done:
        request = run.request
        found = resolve_sources(
            _libraries(plans), plans[0].overrides, request.cache_dir, run.narrator.say
        )
        for cell in cells:
            cell.state.sources = _of_cell(cell.state.plan, found)
        return Done()

    return Task(SOURCES, SOURCES, resolve)


def _of_cell(plan: CellPlan, sources: Mapping[str, ResolvedSource]) -> Mapping[str, ResolvedSource]:
    return {library.name: sources[library.name] for library in plan.selection.selected}


def _cell(plan: CellPlan, run: Run) -> CellTasks:
    """The cell as tasks, with folders of its own."""
    state = CellState(plan)
    work, logs = run.work / plan.cell.id, run.request.out_dir / "logs" / plan.cell.id
    work.mkdir()
    logs.mkdir(parents=True, exist_ok=True)
    if not isinstance(plan.place, ContainerPlace):
        return HostCell(state, run, work, logs)
    from ci.pipeline.container_cells import (
        ContainerCell,  # takes long, and the host needs none of it
    )

    return ContainerCell(state, run, work, logs)


def _report(cell: CellTasks, outcomes: Mapping[str, Outcome]) -> CellReport:
    """The report of a cell, with the first error of its tasks."""
    first = (SOURCES, *cell.names())
    errors = [outcomes[name].error for name in first if name in outcomes]
    error = next((error for error in errors if error is not None), None)
    return cell_report(cell.state, error)


def _check_folders(request: WheelRequest) -> None:
    """Refuse folders that cannot be used, before anything is built."""
    if re.search(r"\s", str(request.cache_dir)):
        raise ConfigError(
            f"--cache-dir {request.cache_dir}: there is white space in the path",
            cause="libraries are built below it, and options of compilers cannot hold white space",
            next_step="--cache-dir with another folder",
        )
    _check_writable("--out-dir", request.out_dir)
    _check_writable("--cache-dir", request.cache_dir)


ENGINE_BYTES = 2 * 1024**3
"""What the engine must have free: layers of the cells' containers, packages that they install."""


def _check_engine(place: Place, request: WheelRequest) -> None:
    """Refuse an engine whose data are among what is hashed, or that has no room, before anything is built."""
    if isinstance(place, ContainerPlace):
        check_places(place.engine.facts, (REPOSITORY, request.cache_dir, request.out_dir))
        check_disk(place.engine.facts, ENGINE_BYTES)


def _check_compiler_cache(place: Place, request: WheelRequest) -> None:
    """Refuse a compiler cache that was asked for by name and cannot be used; in images it is the image's."""
    if request.compiler_cache != "auto" and not isinstance(place, ContainerPlace):
        choose(request.compiler_cache, probe(os.environ))


def _check_writable(option: str, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"{option} {folder} cannot be written: {error.strerror or error}",
            cause="it is no folder, belongs to another user, or its file system is read-only or full",
            next_step=f"{option} with another folder",
        ) from error


def _libraries(plans: Sequence[CellPlan], *, overridden: bool = True) -> list[EcosystemLibrary]:
    """The libraries of all cells, each once; without ``overridden`` those that some cell builds from their
    declared sources.
    """
    wanted = {
        library.name: library
        for plan in plans
        for library in plan.selection.selected
        if overridden or library.name not in plan.overrides
    }
    return list(wanted.values())
