"""The stages of a cell that run inside a container: each reads the order and the state, and leaves the state.

``prepare`` makes libraries and the laid out package; ``repair`` and ``import`` are what cibuildwheel calls;
``finish`` does the work of all three steps of cibuildwheel for a wheel without compiled code, which that does
not build; ``environment`` tells what a shell in the cell needs. All run the farm's own stages with the host
executor.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.errors import ConfigError, FarmError, from_os_error
from ci.graph.step import LibraryStep
from ci.graph.store import Store
from ci.pipeline.cell_tasks import obtain_libraries
from ci.pipeline.handover import (
    FileNarrator,
    StageOrder,
    ask_outside,
    read_order,
    read_state,
    write_state,
)
from ci.pipeline.identity import not_publishable, source_date_epoch
from ci.pipeline.kept import keep_wheel, take_wheel
from ci.pipeline.keys import wheel_key
from ci.pipeline.libraries import build_environment, obtain_toolchain
from ci.pipeline.plan import CellPlan, plan_cells
from ci.pipeline.run import open_store, opened
from ci.pipeline.state import CellState
from ci.pipeline.tested import raise_red
from ci.pipeline.wheel_stages import (
    WheelPlace,
    import_wheel,
    lay_out_wheel,
    raw_wheel,
    repair_raw,
)
from ci.wheel.assemble import WheelLayout


@dataclass(frozen=True)
class StageCall:
    """What the command line of a stage says: which, the order's file, and for ``repair`` the raw wheel and
    the folder that the repaired one goes to.
    """

    stage: str
    order: Path
    wheel: Path | None = None
    destination: Path | None = None


def become(user: str, destination: Path | None = None) -> None:
    """Go on as ``UID:GID`` when this process is root, so that what it writes belongs to the caller.

    ``destination`` is a folder of the container's own that it must still be able to write into.
    """
    uid, _, gid = user.partition(":")
    if not (uid.isdigit() and gid.isdigit()):
        raise ConfigError(f"--as {user}: not UID:GID", next_step="--as 1000:1000")
    if os.getuid() == 0 and (uid, gid) != ("0", "0"):
        if destination is not None:
            destination.chmod(0o777)
        os.setgroups([])
        os.setgid(int(gid))
        os.setuid(int(uid))


def run_stage(call: StageCall) -> None:
    """Run one stage. Its error is left in the state, and raised."""
    order = read_order(call.order)
    plan = plan_of(order)
    state = _reached(plan, order)
    error: FarmError | None = None
    try:
        STAGES[call.stage](state, order, call)
    except FarmError as caught:
        error = caught
    except OSError as caught:
        error = from_os_error(caught)
    write_state(state, order, error)
    if error is not None:
        raise error


def plan_of(order: StageOrder) -> CellPlan:
    """The plan of the order's cell, made here: Pythons and compilers are those of the image."""
    return next(plan for plan in plan_cells(order.request) if plan.cell.id == order.cell)


def _reached(plan: CellPlan, order: StageOrder) -> CellState:
    if order.state.exists():
        return read_state(plan, order)[0]
    return CellState(plan, sources=order.sources)


def _environment(state: CellState, order: StageOrder, _call: StageCall) -> None:
    narrator = FileNarrator(order.progress)
    state.toolchain = obtain_toolchain(state.plan, narrator)
    state.environment = build_environment(state.plan)


def _prepare(state: CellState, order: StageOrder, _call: StageCall) -> None:
    narrator = FileNarrator(order.progress)
    with opened(order.request, narrator) as run:
        obtain_libraries(
            state, run, order.work, order.logs, lambda steps: _ask(order, run.store, steps)
        )
        state.compiled = any(result.compiled for result in state.results)
        place = _place(state, order, run.store)
        if _taken(state, place):
            return
        with state.stage("wheel"):
            lay_out_wheel(state, place)


def _place(state: CellState, order: StageOrder, store: Store) -> WheelPlace:
    narrator, jobs = FileNarrator(order.progress), order.request.jobs
    return WheelPlace(store, order.work, order.logs, narrator, state.executor, jobs)


def _ask(order: StageOrder, store: Store, steps: Sequence[LibraryStep]) -> None:
    """Let the farm outside look for what is not here in its shared store."""
    if order.ask:
        ask_outside(order, [step.key for step in steps if not store.holds(step.key)])


def _taken(state: CellState, place: WheelPlace) -> bool:
    """The wheel of an earlier run with equal inputs, and the result of its suite: then all is done."""
    state.not_publishable = not_publishable(state)
    if not take_wheel(state, place.store, wheel_key(state), place.work / "repaired"):
        return False
    if state.plan.request.with_import:
        import_wheel(state, place)
    return True


def _finish(state: CellState, order: StageOrder, _call: StageCall) -> None:
    place = _place(state, order, open_store(order.request, FileNarrator(order.progress)))
    with state.stage("wheel"):
        layout = WheelLayout.below(order.work / "wheel", source_date_epoch())
        _repair_and_keep(state, raw_wheel(state, layout, place), place)
    if state.plan.request.with_import:
        import_wheel(state, place)


def _repair_and_keep(state: CellState, raw: Path, place: WheelPlace) -> None:
    repair_raw(state, raw, place)
    keep_wheel(state, place.store, wheel_key(state), place.work)


def _repair(state: CellState, order: StageOrder, call: StageCall) -> None:
    if call.wheel is None or call.destination is None:
        raise ConfigError(
            "the stage repair wants the raw wheel and a folder",
            next_step="python -m ci stage repair --order FILE --wheel WHEEL --into FOLDER",
        )
    place = _place(state, order, open_store(order.request, FileNarrator(order.progress)))
    with state.stage("wheel"):
        _repair_and_keep(state, call.wheel, place)
    if state.repaired is not None:
        shutil.copy2(state.repaired.path, call.destination)


def _import(state: CellState, order: StageOrder, _call: StageCall) -> None:
    store = open_store(order.request, FileNarrator(order.progress))
    import_wheel(state, _place(state, order, store))
    if state.imported is not None:
        raise_red(state.plan.cell.id, state.imported)


STAGES: Mapping[str, Callable[[CellState, StageOrder, StageCall], None]] = {
    "environment": _environment,
    "finish": _finish,
    "import": _import,
    "prepare": _prepare,
    "repair": _repair,
}
"""What each stage does, by the name that the command line takes."""
