"""The one command that runs a cell, or the part of it that failed, again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from ci.executors.model import ContainerOptions
from ci.pipeline.plan import CellPlan, WheelRequest

_CREDENTIALS = re.compile(r"(://)[^/@\s]*@")
"""A user, or a user and a password, in an address: git asks its own helpers for them."""


def wheel_command(plan: CellPlan, libraries: Sequence[str] = ()) -> str:
    """The command for this cell alone; ``libraries`` narrows it to those that failed."""
    cell, request = plan.cell, plan.request
    argv = ["python", "-m", "ci", request.verb, "--cuda", cell.cuda, "--python", cell.python]
    if cell.capability_set:
        argv += ["--capability-set", cell.capability_set]
    if request.capabilities:
        argv += ["--capability", request.capabilities]
    argv += _library_options(request, libraries)
    if request.compiler != "auto":
        argv += ["--compiler", request.compiler]
    argv += ["--executor", plan.place.name, *_container_options(request.container)]
    if not request.with_import:
        argv.append("--no-import")
    return shlex.join(argv)


def _library_options(request: WheelRequest, libraries: Sequence[str]) -> Iterator[str]:
    if request.library_set != "fleet":
        yield from ("--set", request.library_set)
    wanted = libraries or request.libs
    if wanted is not None:
        yield from ("--libs", ",".join(wanted))
    for source in request.sources:
        if not libraries or source.partition("=")[0] in libraries:
            yield from ("--source", _CREDENTIALS.sub(r"\1", source))
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
