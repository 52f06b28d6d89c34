"""The seam between steps and the place where they run.

A step never starts a process itself: it hands a :class:`~ci.proc.Command` to an executor. The host
executor runs it here. A container executor runs the same command in a CUDA image.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ci.errors import ConfigError, ToolchainError
from ci.proc import Command, Completed, run

EXECUTORS = ("auto", "host", "container")


class Executor(Protocol):
    """Runs commands of a cell. ``name`` is what reports call it; ``why`` says why it was chosen."""

    name: str
    why: str

    def run(self, command: Command, log: Path) -> Completed:
        """Run ``command``, its output to ``log``; a non-zero status is not an error here."""


class HostExecutor:
    """Runs commands on this machine."""

    name = "host"

    def __init__(self, why: str) -> None:
        self.why = why

    def run(self, command: Command, log: Path) -> Completed:
        """Run ``command`` here."""
        return run(command, log=log)


def choose(name: str) -> Executor:
    """The executor that ``--executor`` asks for.

    Raises :class:`~ci.errors.ConfigError` for an unknown name and
    :class:`~ci.errors.ToolchainError` for one that this host cannot offer.
    """
    if name not in EXECUTORS:
        raise ConfigError(f"unknown executor {name!r}", next_step="--executor auto|host|container")
    if name == "container":
        raise ToolchainError(
            "the container executor cannot run here",
            cause="this checkout holds no build image (docker/), so there is nothing to run steps in",
            next_step="--executor host, which runs the same steps on this machine",
        )
    if name == "host":
        return HostExecutor("asked for with --executor host")
    return HostExecutor("no build image is there, so the steps run on this machine")
