"""A cell in containers: one that prepares, and the wheel cell, which cibuildwheel drives."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from ci.errors import FarmError, FindingError, LibraryBuildError, SuiteError, from_dict
from ci.executors.choice import ContainerPlace
from ci.executors.cibuildwheel import Outcome, Slot, Stage, WheelCell, run_cibuildwheel, shown
from ci.executors.container import ContainerExecutor
from ci.executors.model import FARM_PYTHON, LABEL, ContainerSpec
from ci.graph.model import Demand, Done, Grant, Task
from ci.graph.store import Store
from ci.pipeline.cell_tasks import PUBLISH
from ci.pipeline.handover import StageOrder, answer, followed, order_of, read_state, write_order
from ci.pipeline.identity import source_date_epoch
from ci.pipeline.inside import (
    caller,
    farm_command,
    farm_environment,
    farm_spec,
    limited_jobs,
    withheld,
)
from ci.pipeline.plan import CellPlan
from ci.pipeline.run import Run
from ci.pipeline.state import CellState
from ci.pipeline.wheel_stages import publish_wheel
from ci.proc import Command, Completed
from ci.registry import REPOSITORY
from ci.report.progress import Narrator
from ci.sources.resolve import ResolvedSource
from ci.wheel.assemble import WheelLayout

CELL = "cell"
"""The kind of the task of a cell in containers."""
STAGE_SECONDS = 8 * 3600.0
WHEEL_SECONDS = 2 * 3600.0
_OF_OUTSIDE = ("plan", "stage_seconds", "sources", "image")
"""Fields of a cell's state that the farm outside knows; all others are taken from inside."""


@dataclass
class ContainerCell:
    """A cell in containers as tasks of a run: the farm inside makes a graph of its own of it, with tokens of
    the same pool.
    """

    state: CellState
    run: Run
    work: Path
    logs: Path

    def first(self, after: tuple[str, ...] = ()) -> Task:
        """All of the cell that happens in containers; it makes the publication known."""
        plan = self.state.plan
        name = self.names()[0]
        history = f"{name} {plan.request.library_set}"
        return Task(
            name, CELL, self._cell, after, Demand(self.run.expected(history, CELL)), history
        )

    def names(self) -> tuple[str, ...]:
        """The cell's own tasks, in their order."""
        cell = self.state.plan.cell.id
        return (f"{CELL} {cell}", f"{PUBLISH} {cell}")

    def _cell(self, _grant: Grant) -> Done:
        place = self.state.plan.place
        if not isinstance(place, ContainerPlace):
            raise TypeError(f"{self.state.plan.cell.id} is not built in containers")
        build_in_containers(self.state, place, self.work, self.logs, self.run)
        name = self.names()[1]
        return Done(more=(Task(name, PUBLISH, self._publish, (self.names()[0],)),))

    def _publish(self, _grant: Grant) -> Done:
        publish_wheel(self.state, self.run.narrator)
        return Done()


def build_in_containers(
    state: CellState,
    place: ContainerPlace,
    work: Path,
    logs: Path,
    run: Run,
) -> None:
    """Libraries, wheel and import suite of the cell in containers, kept in ``state``, which has the sources.

    Raises what the stages raise inside, and :class:`~ci.errors.InfrastructureError` for what the engine
    does.
    """
    plan, narrator, store = state.plan, run.narrator, run.store
    state.image = place.images[plan.cell.cuda].digest
    for name in place.engine.sweep():
        narrator.say(f"removed a container that an ended run left: {name}")
    for reason in withheld():
        narrator.say(f"not passed into containers: {reason}")
    cell = CellInContainers(
        plan, place, _order(plan, place, work, logs, state.sources, run.pool.path)
    )
    write_order(cell.order)
    order = cell.order
    with followed(order.progress, narrator, lambda: answer(order, store.get)):
        with state.stage("prepare, with its container"):
            done = cell.run("prepare")
        _take_over(state, order, _stage_error(done, plan))
        _share(state, store)
        if state.repaired is not None:  # kept from an earlier run
            _take_wheel(state, (), cell.order)
        elif state.compiled:
            _wheel_cell(state, cell, narrator)
        else:
            _pure_wheel(state, cell)


def _share(state: CellState, store: Store) -> None:
    """Send what was built inside to the shared store: its credentials do not go into a container."""
    for result in state.results:
        entry = store.get(result.key) if result.status == "built" else None
        if entry is not None and store.remote is not None:
            store.remote.send(entry, store.blobs.path)


def _wheel_cell(state: CellState, cell: CellInContainers, narrator: Narrator) -> None:
    narrator.begin(f"{cell.plan.cell.id} wheel", "cibuildwheel")
    with state.stage("cibuildwheel, with its container"):
        outcome = cell.wheel()
    narrator.end(f"{cell.plan.cell.id} wheel", outcome.reason or "cibuildwheel is done")
    _take_over(state, cell.order, _wheel_error(outcome, cell.plan))
    _take_wheel(state, outcome.wheels, cell.order)


def _pure_wheel(state: CellState, cell: CellInContainers) -> None:
    """The wheel of a cell without compiled code, which cibuildwheel refuses: in a container of the farm."""
    with state.stage("finish, with its container"):
        done = cell.run("finish")
    _take_over(state, cell.order, _stage_error(done, cell.plan))
    _take_wheel(state, (), cell.order)


def _order(
    plan: CellPlan,
    place: ContainerPlace,
    work: Path,
    logs: Path,
    sources: Mapping[str, ResolvedSource],
    jobserver: Path | None = None,
) -> StageOrder:
    options = place.options
    jobs = limited_jobs(plan.request.jobs, options.cpus, options.memory)
    return order_of(plan, work, logs, sources, jobs, jobserver)


@dataclass(frozen=True)
class CellInContainers:
    """A cell with its place and its order: what its containers are made from. ``run_id`` is this run's."""

    plan: CellPlan
    place: ContainerPlace
    order: StageOrder
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def spec(self, step: str) -> ContainerSpec:
        """The container of a step."""
        cell, request = self.plan.cell, self.plan.request
        return farm_spec(
            self.place,
            cell.cuda,
            request.cache_dir,
            writable=(self.order.logs,),
            readable=(*_read_outside(self.order.sources), *_folders(request.declarations)),
            labels={
                LABEL + "run": self.run_id,
                LABEL + "cell": cell.id,
                LABEL + "step": step,
            },
        )

    def run(self, stage: str) -> Completed:
        """Run a stage in a container of its own."""
        executor = ContainerExecutor(self.place.engine, self.spec(stage), self.place.why)
        return executor.run(self.command(stage), self.order.logs / f"{stage}.log")

    def command(self, stage: str) -> Command:
        """What is run inside for a stage."""
        label = f"{stage} {self.plan.cell.id}"
        return farm_command(*self.arguments(stage), label=label, timeout=STAGE_SECONDS)

    def arguments(self, stage: str) -> tuple[str, ...]:
        """The arguments of a stage."""
        return ("stage", stage, "--order", str(self.order.path))

    def wheel(self) -> Outcome:
        """Let cibuildwheel build, repair and test the laid out package."""
        facts, log = self.place.engine.facts, self.order.logs / "cibuildwheel.log"
        return run_cibuildwheel(self.wheel_cell(), facts, os.environ, log)

    def wheel_cell(self) -> WheelCell:
        """What cibuildwheel is told. What it does as root must not reach a folder of the caller, so only the
        two stages get the farm's own variables.
        """
        layout = WheelLayout.below(self.order.work / "wheel", source_date_epoch())
        spec = self.spec("wheel")
        farm = farm_environment(self.plan.request.cache_dir)
        env = {name: value for name, value in spec.env.items() if name not in farm}
        return WheelCell(
            python=self.plan.cell.python,
            package=layout.package,
            output=self.order.work / "wheels",
            scratch=self.order.work / "cibuildwheel",
            container=replace(spec, user="", env={**env, **layout.environment}),
            repair=(*self._as_caller("repair"), "--wheel", Slot.WHEEL, "--into", Slot.DEST_DIR),
            test=self._as_caller("import") if self.plan.request.with_import else (),
            timeout=WHEEL_SECONDS,
        )

    def _as_caller(self, stage: str) -> tuple[str, ...]:
        """A stage as cibuildwheel starts it, as root: it goes on as the caller."""
        farm = farm_environment(self.plan.request.cache_dir)
        user = () if self.place.engine.facts.rootless else ("--as", caller())
        return (
            "env", f"--chdir={REPOSITORY}", *(f"{name}={value}" for name, value in farm.items()),
            FARM_PYTHON, "-m", "ci", *self.arguments(stage), *user,
        )  # fmt: skip


def planned_commands(plan: CellPlan) -> tuple[str, ...]:
    """What a run starts outside its own process: nothing on the host, whose steps are known when sources
    are. ``WORK`` stands for the folder that a run makes for itself.
    """
    place = plan.place
    if not isinstance(place, ContainerPlace):
        return ()
    work = plan.request.cache_dir / "work" / "WORK"
    logs = plan.request.out_dir / "logs" / plan.cell.id
    cell = CellInContainers(plan, place, _order(plan, place, work, logs, {}))
    prepare = place.engine.shown(cell.spec("prepare"), cell.command("prepare"))
    wheel = shown(cell.wheel_cell(), place.engine.facts, os.environ)
    return (prepare, "\n".join(wheel))


def _read_outside(sources: Mapping[str, ResolvedSource]) -> tuple[Path, ...]:
    """Folders of sources that are neither in the checkout nor in the cache (``--source NAME=path:…``)."""
    return tuple(
        source.folder for source in sources.values() if source.kind in ("path", "declared")
    )


def _folders(files: Sequence[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(path.resolve().parent for path in files))


def _take_over(state: CellState, order: StageOrder, otherwise: FarmError | None) -> None:
    """What the farm inside has reached; its error is raised, else ``otherwise``.

    When it left nothing, what the engine says of the stage is nearer to the cause than that.
    """
    try:
        found, error = read_state(state.plan, order)
    except FarmError:
        if otherwise is not None:
            raise otherwise from None
        raise
    for item in fields(CellState):
        if item.name not in _OF_OUTSIDE:
            setattr(state, item.name, getattr(found, item.name))
    for name, seconds in found.stage_seconds.items():
        state.stage_seconds[name] = seconds
    red_suite = state.imported is not None and not state.imported.ok
    if error is not None and not red_suite:
        raise from_dict(error)
    if otherwise is not None and not red_suite:
        raise otherwise


def _stage_error(done: Completed, plan: CellPlan) -> FarmError | None:
    if done.ok:
        return None
    return LibraryBuildError(
        f"the libraries of {plan.cell.id} were not built to the end",
        cause="it took longer than the farm waits"
        if done.timed_out
        else f"the container ended with status {done.returncode}",
        next_step=f"read {done.log}",
        details=done.tail(20),
    )


def _wheel_error(outcome: Outcome, plan: CellPlan) -> FarmError | None:
    if outcome.ok:
        return None
    kinds = {Stage.REPAIR: FindingError, Stage.TEST: SuiteError}
    kind = kinds.get(outcome.stage, LibraryBuildError) if outcome.stage else LibraryBuildError
    return kind(
        f"the wheel of {plan.cell.id} was not made: {outcome.reason}",
        cause=outcome.memory or "its last lines are above",
        next_step=f"read {outcome.log}",
        details=outcome.tail,
    )


def _take_wheel(state: CellState, wheels: Sequence[Path], order: StageOrder) -> None:
    """The wheel that cibuildwheel copied out; of a red suite, and of a pure one, what the repair left.

    Only its name comes from inside, no path.
    """
    name = state.repaired.path.name if state.repaired is not None else ""
    found = [path for path in (*wheels, order.work / "repaired" / name) if path.name == name]
    path = next((path for path in found if path.is_file()), None)
    if state.repaired is None or path is None:
        raise LibraryBuildError(
            f"there is no repaired wheel of {state.plan.cell.id}",
            cause="the container ended well and the stage that repairs it left nothing",
            next_step=f"read the logs in {order.logs}",
        )
    state.repaired = replace(state.repaired, path=path)
