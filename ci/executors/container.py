"""Commands of a step in a container, and whose container is whose."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from ci.executors.model import ContainerSpec, Engine
from ci.proc import Command, Completed

_PROC = Path("/proc")
_START_FIELD = 22
"""proc(5), /proc/PID/stat: when the process started, in clock ticks since boot."""


class ContainerExecutor:
    """Runs commands in containers of one kind, a new container for each.

    ``command.env`` is the whole environment of the command, above the specification's; the folder of the
    command must be an existing one where the container shares it with this machine.
    """

    name = "container"

    def __init__(self, engine: Engine, spec: ContainerSpec, why: str) -> None:
        self.why = why
        self._engine = engine
        self._spec = spec

    def run(self, command: Command, log: Path) -> Completed:
        """Run ``command`` in a new container. Raises as :meth:`~ci.executors.model.Engine.run` does."""
        return self._engine.run(self._spec, command, log)


def owner_label() -> str:
    """Who a container belongs to: ``HOST:PID:START_TICKS`` of this process.

    The start (clock ticks since boot) tells this process from a later one with the same number.
    """
    pid = os.getpid()
    return f"{socket.gethostname()}:{pid}:{_started(pid)}"


def owner_is_gone(owner: str) -> bool:
    """True when ``owner`` names a process of this host that does not live any more.

    An owner on another host, or one that cannot be read, is never gone: it is not ours to judge.
    """
    host, _, rest = owner.rpartition(":")[0].rpartition(":")
    pid, started = rest, owner.rpartition(":")[2]
    if host != socket.gethostname() or not (pid.isdecimal() and started.isdecimal()):
        return False
    return _started(int(pid)) != int(started)


def _started(pid: int) -> int | None:
    """Clock ticks since boot at which ``pid`` started; ``None`` when there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The second field is the program's name in brackets, and may hold blanks and brackets itself.
    fields = text.rpartition(")")[2].split()
    state, started = fields[0], int(fields[_START_FIELD - 3])
    return None if state == "Z" else started
