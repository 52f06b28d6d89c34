"""The report of a cell from what it reached, or from its plan."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ci.errors import (
    FarmError,
)
from ci.graph.model import Outcome
from ci.matrix.model import Cell
from ci.pipeline.plan import CellPlan, WheelRequest, compiler_offers, plan_cells
from ci.pipeline.reproduce import wheel_command
from ci.pipeline.state import CellState, RepairedWheel
from ci.registry import (
    EcosystemLibrary,
    Selection,
    build_utils,
    target_of,
)
from ci.report.model import CellReport, LibraryRow, RunReport, TaskRow
from ci.sources.resolve import declared_origin
from ci.toolchain import Toolchain


def planned_report(request: WheelRequest) -> RunReport:
    """What a run would do (``--dry-run``): nothing is fetched, built or written."""
    started = time.monotonic()
    plans = plan_cells(request)
    offers = compiler_offers(plans)
    cells = tuple(_planned_cell(plan, offers) for plan in plans)
    return RunReport(f"{request.verb} --dry-run", cells, time.monotonic() - started, "")


def _planned_cell(plan: CellPlan, offers: Mapping[str, Mapping[str, object]]) -> CellReport:
    from ci.pipeline.container_cells import (
        planned_commands,  # takes long, and only a dry run needs it
    )

    offer = offers[plan.cell.cuda] if plan.needs_compiler else None
    rows = [_planned_row(plan, library) for library in plan.selection.selected]
    problems = build_utils.submodule_problems(
        [library for library in plan.selection.selected if library.name not in plan.overrides]
    )
    notes = [f"{item.library}: {item.problem}; {item.next_step}" for item in problems]
    if plan.needs_compiler:
        notes.append(f"nvcc gets: {' '.join('-gencode ' + value for value in plan.cell.gencode)}")
    return CellReport(
        cell=plan.cell.id,
        executor=plan.place.name,
        executor_why=plan.place.why,
        python=f"{plan.cell.python} ({plan.chosen.interpreter_version})",
        compiler=_planned_compiler(offer),
        libraries=(*rows, *left_out_rows(plan.selection)),
        notes=(*plan.chosen.notes, *notes),
        commands=planned_commands(plan),
        error=_planned_error(offer),
    )


def _planned_error(offer: Mapping[str, object] | None) -> Mapping[str, object] | None:
    """What a run would be refused with: no compiler for the cell."""
    error = offer.get("error") if offer is not None else None
    return error if isinstance(error, Mapping) else None


def _planned_row(plan: CellPlan, library: EcosystemLibrary) -> LibraryRow:
    override = plan.overrides.get(library.name)
    if override is not None:
        source = override.public_origin
    else:
        source = f"{declared_origin(library)[1]} {(library.pin or '')[:12]}".strip()
    return LibraryRow(
        library.name, "planned", source=source, capabilities=compiled_for(library, plan.cell)
    )


def _planned_compiler(offer: Mapping[str, object] | None) -> str:
    if offer is None:
        return "none needed"
    if offer.get("usable"):
        return f"{offer['uses']} ({offer['from']})"
    error = offer["error"]
    return f"none: {error['message']}" if isinstance(error, Mapping) else "none"


def cell_report(state: CellState, error: FarmError | None) -> CellReport:
    """The report of a cell from what it reached, with the error that ended it."""
    plan = state.plan
    toolchain, repaired, imported = state.toolchain, state.repaired, state.imported
    return CellReport(
        cell=plan.cell.id,
        executor=plan.place.name,
        executor_why=plan.place.why,
        image=state.image,
        python=f"{plan.cell.python} ({plan.chosen.interpreter_version})",
        compiler=_compiler_text(plan, toolchain),
        libraries=(*_library_rows(state), *left_out_rows(plan.selection)),
        notes=plan.chosen.notes,
        wheel=str(repaired.path) if repaired else "",
        wheel_size=repaired.path.stat().st_size if repaired else 0,
        tag=repaired.tag if repaired else "",
        publishable=bool(repaired) and not state.not_publishable,
        not_publishable_because=state.not_publishable,
        repair=_repair_text(repaired) if repaired else "",
        gates=state.gates,
        import_passed=imported.passed if imported else 0,
        import_failed=imported.failed if imported else 0,
        import_failures=imported.problems if imported and not imported.ok else (),
        import_log=str(imported.log) if imported else "",
        wheel_from=state.wheel_from,
        suite_from=state.suite_from,
        stage_seconds=dict(state.stage_seconds),
        reproduce=_reproduce(state) if error else "",
        error=error.as_dict() if error else None,
    )


def _reproduce(state: CellState) -> str:
    """The command for the libraries that failed, or for the whole cell when it failed elsewhere."""
    failed = [result.library.name for result in state.results if result.failure is not None]
    return wheel_command(state.plan, failed)


def _compiler_text(plan: CellPlan, toolchain: Toolchain | None) -> str:
    if toolchain is not None:
        return f"{toolchain.compiler} {toolchain.version} ({toolchain.origin})"
    return "not found" if plan.needs_compiler else "none needed"


def _repair_text(repaired: RepairedWheel) -> str:
    if repaired.skipped_reason:
        return repaired.skipped_reason
    excluded = ", ".join(item.pattern for item in repaired.excluded) or "nothing"
    grafted = ", ".join(repaired.grafted) or "nothing"
    return f"auditwheel; excluded: {excluded}; grafted: {grafted}"


def _library_rows(state: CellState) -> list[LibraryRow]:
    results = {result.library.name: result for result in state.results}
    states = {item.name: item for item in state.imported.states} if state.imported else {}
    rows = []
    for library in state.plan.selection.selected:
        result, source = results.get(library.name), state.sources.get(library.name)
        origin = f"{source.origin} {source.revision[:12]}".strip() if source else ""
        if result is None:
            rows.append(LibraryRow(library.name, "not reached", source=origin))
            continue
        shown = states.get(library.name)
        reason = "; ".join(result.failure.problems[:1]) if result.failure else ""
        if shown is not None and shown.state != "loaded":
            reason = "; ".join(shown.reasons)
        rows.append(
            LibraryRow(
                library=library.name,
                status=result.status,
                reason=reason,
                source=origin,
                key=result.key.digest,
                seconds=result.seconds,
                built_in=result.built_in,
                cpu_seconds=result.usage.cpu_seconds,
                peak_bytes=result.usage.peak_bytes,
                cached=result.shared_with or result.cached,
                compiler_cache=result.compiler_cache,
                size=result.size,
                files=result.files,
                capabilities=compiled_for(library, state.plan.cell),
                imported=shown.state if shown else "",
                log=str(result.log or ""),
            )
        )
    return rows


def compiled_for(library: EcosystemLibrary, cell: Cell) -> tuple[str, ...]:
    """The capabilities that a library is compiled for in a cell; none for one without device code."""
    return library.capabilities(target_of(cell)) if library.needs_cuda_compiler else ()


def left_out_rows(selection: Selection) -> list[LibraryRow]:
    """A row with the reasons for every library that is left out."""
    return [
        LibraryRow(item.library.name, "left out", reason="; ".join(item.reasons))
        for item in selection.left_out
    ]


def task_row(outcome: Outcome) -> TaskRow:
    """The row of a task of the run's graph."""
    return TaskRow(
        name=outcome.name,
        kind=outcome.kind,
        state=outcome.state,
        ready=outcome.ready,
        started=outcome.started,
        ended=outcome.ended,
        tokens=outcome.tokens,
        attempts=outcome.attempts,
        cpu_seconds=outcome.usage.cpu_seconds,
        peak_bytes=outcome.usage.peak_bytes,
        cached=outcome.cached,
    )


def next_command(cells: Sequence[CellReport]) -> str:
    """What to do after the run: the next step of the first error, or installing the wheel."""
    for cell in cells:
        if cell.error is not None:
            return str(cell.error["next_step"])
    wheel = cells[-1].wheel
    return f"pip install {wheel}" if wheel else ""
