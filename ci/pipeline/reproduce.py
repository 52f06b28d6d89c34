"""The one command that runs a cell, or the part of it that failed, again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from ci.executors.model import ContainerOptions
from ci.pipeline.plan import CellPlan


def wheel_command(plan: CellPlan, libraries: Sequence[str] = ()) -> str:
    """The command for this cell alone; ``libraries`` narrows it to those that failed."""
    cell, request = plan.cell, plan.request
    argv = ["python", "-m", "ci", request.verb, "--cuda", cell.cuda, "--python", cell.python]
    if cell.capability_set:
        argv += ["--capability-set", cell.capability_set]
    if request.capabilities:
        argv += ["--capability", request.capabilities]
    argv += _library_options(plan, libraries)
    if request.compiler != "auto":
        argv += ["--compiler", request.compiler]
    argv += ["--executor", plan.place.name, *_container_options(request.container)]
    if not request.with_import:
        argv.append("--no-import")
    return shlex.join(argv)


def _library_options(plan: CellPlan, libraries: Sequence[str]) -> Iterator[str]:
    request = plan.request
    if request.library_set != "fleet":
        yield from ("--set", request.library_set)
    wanted = libraries or request.libs
    if wanted is not None:
        yield from ("--libs", ",".join(wanted))
    for name, override in plan.overrides.items():
        if not libraries or name in libraries:
            yield from ("--source", override.option)
    for path in request.declarations:
        yield from ("--declare", str(path))


def import_command(wheel: Path, executor: str, options: ContainerOptions) -> str:
    """The command for the import suite of one wheel alone."""
    argv = ["python", "-m", "ci", "import", str(wheel), "--executor", executor]
    argv += _container_options(options)
    if options.devices:
        argv += ["--devices", ",".join(options.devices)]
    return shlex.join(argv)


def _container_options(options: ContainerOptions) -> Iterator[str]:
    for name in ("engine", "image", "network", "cpus", "memory"):
        value = getattr(options, name)
        if value:
            yield from (f"--{name}", str(value))
