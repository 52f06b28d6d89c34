"""A shell, or one command, in a cell's environment: its compilers, its Python, its build requirements."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci.errors import ConfigError, from_dict
from ci.executors.choice import ContainerPlace
from ci.executors.container import ContainerExecutor
from ci.executors.model import LABEL
from ci.matrix.load import load
from ci.matrix.model import Accepted
from ci.matrix.resolve import resolve
from ci.pipeline.handover import followed, order_of, read_state, write_order
from ci.pipeline.inside import farm_command, farm_spec
from ci.pipeline.libraries import build_environment, obtain_toolchain
from ci.pipeline.plan import CellPlan, WheelRequest, check_toolchains, plan_cells
from ci.pipeline.state import CellState
from ci.pipeline.work_folders import work_folder
from ci.proc import Command, run_attached
from ci.report.progress import Narrator

ENVIRONMENT_SECONDS = 3600.0
_HOST_VARIABLES = ("HOME", "LANG", "LC_ALL", "SSL_CERT_FILE", "TERM", "TMPDIR", "USER")


@dataclass(frozen=True)
class ShellRequest:
    """The cell by its id (``cu130-cp312``), and the command; none for an interactive shell."""

    cell: str
    wheel: WheelRequest
    argv: tuple[str, ...] = ()


def request_of_cell(cell: str, request: WheelRequest) -> WheelRequest:
    """``request`` narrowed to one cell. Raises :class:`~ci.errors.ConfigError` without such a cell."""
    decisions = resolve(load(request.matrix))
    cells = {item.cell.id: item.cell for item in decisions if isinstance(item, Accepted)}
    if cell not in cells:
        raise ConfigError(
            f"there is no cell {cell!r}",
            cause=f"the matrix has {', '.join(cells)}",
            next_step="python -m ci matrix",
        )
    found = cells[cell]
    return replace(
        request,
        cuda=(found.cuda,),
        python=(found.python,),
        capability_set=(found.capability_set,) if found.capability_set else (),
    )


def open_shell(request: ShellRequest, narrator: Narrator) -> int:
    """Run the command, or a shell, attached to this terminal. Returns its exit status."""
    (plan,) = plan_cells(request_of_cell(request.cell, request.wheel))
    check_toolchains([plan])
    argv = request.argv or (_shell(plan),)
    if isinstance(plan.place, ContainerPlace):
        return _in_container(plan, plan.place, argv, narrator)
    return _here(plan, argv, narrator)


def _shell(plan: CellPlan) -> str:
    if isinstance(plan.place, ContainerPlace):
        return "/bin/bash"
    return os.environ.get("SHELL") or shutil.which("bash") or "/bin/sh"


def _here(plan: CellPlan, argv: Sequence[str], narrator: Narrator) -> int:
    state = CellState(plan)
    state.toolchain = obtain_toolchain(plan, narrator)
    state.environment = build_environment(plan)
    kept = {name: os.environ[name] for name in _HOST_VARIABLES if name in os.environ}
    env = {**kept, **cell_environment(state, os.environ.get("PATH", os.defpath))}
    return run_attached(Command(tuple(argv), env=env, label=f"shell of {plan.cell.id}"))


def _in_container(
    plan: CellPlan, place: ContainerPlace, argv: Sequence[str], narrator: Narrator
) -> int:
    with work_folder(plan.request.cache_dir, f"shell-{plan.cell.id}") as work:
        state = _environment_inside(plan, place, work, narrator)
        spec = farm_spec(
            place,
            plan.cell.cuda,
            plan.request.cache_dir,
            labels={LABEL + "cell": plan.cell.id, LABEL + "step": "shell"},
        )
        command = Command(
            tuple(argv), cwd=Path.cwd(), env=cell_environment(state, IMAGE_PATH), label="shell"
        )
        return place.engine.run_attached(spec, command)


IMAGE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _environment_inside(
    plan: CellPlan, place: ContainerPlace, work: Path, narrator: Narrator
) -> CellState:
    """The toolchain and the build environment as the image has them."""
    order = order_of(plan, work, work, {}, plan.request.jobs)
    write_order(order)
    labels = {LABEL + "cell": plan.cell.id, LABEL + "step": "environment"}
    spec = farm_spec(place, plan.cell.cuda, plan.request.cache_dir, labels=labels)
    command = farm_command(
        "stage", "environment", "--order", str(order.path),
        label="environment", timeout=ENVIRONMENT_SECONDS,
    )  # fmt: skip
    with followed(order.progress, narrator):
        ContainerExecutor(place.engine, spec, place.why).run(command, work / "environment.log")
    state, error = read_state(plan, order)
    if error is not None:
        raise from_dict(error)
    return state


def cell_environment(state: CellState, path: str) -> Mapping[str, str]:
    """The variables of the cell: what a library's build sees, with the environment's Python first on PATH."""
    entries = list(state.toolchain.path_entries()) if state.toolchain else []
    if state.environment is not None:
        entries.insert(0, state.environment.python.parent)
    variables = state.toolchain.environment() if state.toolchain else {}
    variables["PATH"] = os.pathsep.join((*map(str, entries), path))
    if state.environment is not None:
        variables["VIRTUAL_ENV"] = str(state.environment.folder)
    variables["PADDLEFLEET_FARM_CELL"] = state.plan.cell.id
    return variables
