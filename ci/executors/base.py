"""The seam between steps and the place where they run.

A step never starts a process itself: it hands a :class:`~ci.proc.Command` to an executor. The host
executor runs it here, the container executor (``container``) in a CUDA image.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ci.proc import Command, Completed, Watch, run

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

    def __init__(self, why: str, watch: Watch | None = None) -> None:
        self.why = why
        self._watch = watch

    def run(self, command: Command, log: Path) -> Completed:
        """Run ``command`` here; what it uses is measured where somebody watches."""
        return run(command, log=log, watch=self._watch)
