"""The order of the stages from a request to repaired, import-tested wheels."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ci.errors import ConfigError, FarmError, from_os_error
from ci.executors.choice import ContainerPlace, Place
from ci.executors.preflight import check_disk, check_places
from ci.pipeline.container_cells import build_in_containers
from ci.pipeline.identity import record_wheel
from ci.pipeline.imports import raise_red, read_manifest, scratch_folder
from ci.pipeline.libraries import obtain_libraries
from ci.pipeline.plan import CellPlan, WheelRequest, check_toolchains, plan_cells
from ci.pipeline.rows import cell_report, next_command
from ci.pipeline.state import CellState
from ci.pipeline.wheel_stages import import_wheel, lay_out_wheel, repair_raw
from ci.registry import REPOSITORY, EcosystemLibrary
from ci.report.model import CellReport, RunReport
from ci.report.progress import Narrator
from ci.sources.resolve import check_submodules
from ci.wheel.archive import publish
from ci.wheel.assemble import build_raw


def build_wheels(request: WheelRequest, narrator: Narrator) -> RunReport:
    """Build, repair and import-test the wheel of every cell that is asked for.

    A cell that fails does not stop the others; its error is in the report. Raises what
    :func:`plan_cells` raises, before anything is built.
    """
    started = time.monotonic()
    plans = plan_cells(request)
    _check_engine(plans[0].place, request)
    check_toolchains(plans)
    check_submodules(_without_override(plans))
    _check_folders(request)
    cells = tuple(_cell(plan, narrator) for plan in plans)
    return RunReport(request.verb, cells, time.monotonic() - started, next_command(cells))


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


def _without_override(plans: Sequence[CellPlan]) -> list[EcosystemLibrary]:
    """The libraries that some cell builds from their declared sources, each once."""
    wanted = {
        library.name: library
        for plan in plans
        for library in plan.selection.selected
        if library.name not in plan.overrides
    }
    return list(wanted.values())


def _cell(plan: CellPlan, narrator: Narrator) -> CellReport:
    state = CellState(plan)
    error: FarmError | None = None
    try:
        _run_cell(state, narrator)
    except FarmError as caught:
        error = caught
    except OSError as caught:
        error = from_os_error(caught)
    return cell_report(state, error)


def _run_cell(state: CellState, narrator: Narrator) -> None:
    plan, request = state.plan, state.plan.request
    work = scratch_folder(request.cache_dir, plan.cell.id)
    logs = request.out_dir / "logs" / plan.cell.id
    logs.mkdir(parents=True, exist_ok=True)
    try:
        if isinstance(plan.place, ContainerPlace):
            build_in_containers(state, plan.place, work, logs, narrator)
        else:
            _build_here(state, work, logs, narrator)
        _publish(state, request.out_dir, narrator)
        if state.imported is not None:
            raise_red(plan.cell.id, state.imported)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _build_here(state: CellState, work: Path, logs: Path, narrator: Narrator) -> None:
    environment = obtain_libraries(state, work, logs, narrator)
    with state.stage("wheel"):
        layout = lay_out_wheel(state, work, narrator)
        raw = build_raw(layout, environment.python, state.executor, logs / "assemble.log")
        repair_raw(state, raw, work, logs, narrator)
    if state.plan.request.with_import:
        import_wheel(state, work, logs, narrator)


def _publish(state: CellState, out_dir: Path, narrator: Narrator) -> None:
    """Put the wheel and its record into ``out_dir``; one with a red import suite goes to ``red/``."""
    if state.repaired is None:
        return
    red = state.imported is not None and not state.imported.ok
    folder = out_dir / "red" if red else out_dir
    manifest = read_manifest(state.repaired.path)
    state.repaired = replace(state.repaired, path=publish(state.repaired.path, folder))
    record_wheel(state, manifest)
    narrator.say(f"{state.plan.cell.id}: in {folder}")
