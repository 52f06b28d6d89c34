"""The order of the stages from a request to repaired, import-tested wheels."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ci.environments.venv import Environment
from ci.errors import ConfigError, FarmError, from_os_error
from ci.executors.base import Executor, choose
from ci.findings import refuse
from ci.pipeline.identity import manifest_of, not_publishable, record_wheel, source_date_epoch
from ci.pipeline.imports import raise_red, read_manifest, scratch_folder
from ci.pipeline.libraries import (
    obtain_libraries,
)
from ci.pipeline.plan import CellPlan, WheelRequest, check_toolchains, plan_cells
from ci.pipeline.rows import cell_report, next_command
from ci.pipeline.state import CellState
from ci.registry import REPOSITORY, EcosystemLibrary, build_utils, target_of
from ci.report.model import CellReport, RunReport
from ci.report.progress import Narrator
from ci.sources.resolve import check_submodules
from ci.testing.import_suite import run_import_suite
from ci.wheel.archive import publish
from ci.wheel.assemble import assemble
from ci.wheel.repair import repair
from ci.wheel.verify import verify


def build_wheels(request: WheelRequest, narrator: Narrator) -> RunReport:
    """Build, repair and import-test the wheel of every cell that is asked for.

    A cell that fails does not stop the others; its error is in the report. Raises what
    :func:`plan_cells` raises, before anything is built.
    """
    started = time.monotonic()
    plans = plan_cells(request)
    executor = choose(request.executor)
    check_toolchains(plans)
    check_submodules(_without_override(plans))
    _check_folders(request)
    cells = tuple(_cell(plan, executor, narrator) for plan in plans)
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


def _cell(plan: CellPlan, executor: Executor, narrator: Narrator) -> CellReport:
    state = CellState(plan, executor)
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
    try:
        environment = obtain_libraries(state, work, logs, narrator)
        with state.stage("wheel"):
            _wheel(state, environment, work, logs, narrator)
        if request.with_import:
            with state.stage("import suite"):
                _import(state, work, logs, narrator)
        _publish(state, request.out_dir, narrator)
        if state.imported is not None:
            raise_red(plan.cell.id, state.imported)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _wheel(
    state: CellState, environment: Environment, work: Path, logs: Path, narrator: Narrator
) -> None:
    plan, cell = state.plan, state.plan.cell
    state.not_publishable = not_publishable(state)
    manifest = manifest_of(state)
    narrator.say(f"{cell.id}: assembling {manifest['version']}")
    raw = assemble(
        manifest=manifest,
        artifacts={r.library.name: r.folder for r in state.results if r.folder is not None},
        python=environment.python,
        executor=state.executor,
        work=work / "wheel",
        source_date_epoch=source_date_epoch(),
        log=logs / "assemble.log",
    )
    excludes = {text for library in plan.selection.selected for text in library.excludes}
    repaired = repair(
        raw,
        work / "repaired",
        python_tag=cell.python_tag,
        cuda=cell.cuda,
        declared_excludes=tuple(sorted(excludes)),
        forbidden_paths=(str(work), str(plan.request.cache_dir), str(REPOSITORY)),
        log=logs / "repair.log",
    )
    findings = verify(repaired.path, log=logs / "verify.log", excluded=sorted(excludes))
    refuse(f"{repaired.path.name} does not pass the gates", findings)
    state.repaired = repaired
    narrator.say(f"{cell.id}: {repaired.path.name}")
    state.gates = (
        "RECORD",
        "tag = content",
        "twine check --strict",
        "check-wheel-contents",
        "auditwheel show",
    )


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


def _import(state: CellState, work: Path, logs: Path, narrator: Narrator) -> None:
    plan, cell = state.plan, state.plan.cell
    if state.repaired is None:
        return
    narrator.begin(cell.id, "import suite in a fresh environment")
    target = target_of(cell)
    state.imported = run_import_suite(
        state.repaired.path,
        interpreter=plan.chosen.interpreter,
        python=cell.python,
        run_requires=[
            text
            for library in plan.selection.selected
            for text in build_utils.requirements(library.run_requires, target)
        ],
        paddle=cell.paddle.cpu,
        executor=state.executor,
        cache_dir=plan.request.cache_dir,
        work=work / "import",
        log=logs / "import.log",
    )
    result = state.imported
    narrator.end(cell.id, f"import suite: {result.passed} passed, {result.failed} failed")
