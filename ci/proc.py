"""The one place that starts a process on this host.

A command is a value (:class:`Command`); what came of it is a value (:class:`Completed`). Output goes
to a log file when one is given, else it is captured. A child runs in its own process group, so that a
timeout or an interrupt ends the whole tree: SIGTERM, a grace period, SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ci.errors import ToolchainError

GRACE_SECONDS = 10.0
TAIL_BYTES = 64 * 1024


@dataclass(frozen=True)
class Command:
    """A command to run. ``env`` is the child's whole environment, ``None`` inherits this one."""

    argv: tuple[str, ...]
    cwd: Path | None = None
    env: Mapping[str, str] | None = None
    timeout: float | None = None
    label: str = ""

    @property
    def shown(self) -> str:
        """The command as a shell would take it, for messages and for reproduction by hand."""
        return shlex.join(self.argv)


@dataclass(frozen=True)
class Used:
    """What a command and all that it started used: CPU time in seconds, peak memory in bytes."""

    cpu_seconds: float
    peak_bytes: int


# Told the process id when a child has started; what it returns is called once when the child has ended, and
# before its status is taken, so that the kernel still knows it.
Watch = Callable[[int], Callable[[], Used]]


@dataclass(frozen=True)
class Completed:
    """What came of a command. ``output`` is stdout and stderr in order, or the tail of ``log``. ``used`` is
    what was measured, when somebody watched.
    """

    command: Command
    returncode: int
    output: str
    seconds: float
    log: Path | None = None
    timed_out: bool = False
    used: Used | None = None

    @property
    def ok(self) -> bool:
        """True when the process ended by itself with status 0. Nothing in the output can change this."""
        return self.returncode == 0 and not self.timed_out

    def tail(self, lines: int = 40) -> tuple[str, ...]:
        """The last ``lines`` lines of the output."""
        return tuple(self.output.splitlines()[-lines:])


@dataclass(eq=False)
class _Group:
    """A child and its process group."""

    process: subprocess.Popen[bytes]
    ended: bool = field(default=False)

    def end(self, grace: float = GRACE_SECONDS) -> None:
        """SIGTERM to the group, then SIGKILL once ``grace`` seconds have passed."""
        if self.ended:
            return
        self.ended = True
        _signal_group(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace)
        _signal_group(self.process.pid, signal.SIGKILL)
        self.process.wait()


class _Live:
    """The children that run now, so that an interrupt can end those of other threads too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: set[_Group] = set()
        self._stopping = False

    def add(self, group: _Group) -> None:
        with self._lock:
            self._groups.add(group)
            stopping = self._stopping
        if stopping:
            group.end()

    def remove(self, group: _Group) -> None:
        with self._lock:
            self._groups.discard(group)

    def end(self) -> None:
        with self._lock:
            groups, self._stopping = list(self._groups), True
        for group in groups:
            _signal_group(group.process.pid, signal.SIGTERM)
        for group in groups:
            group.end()
        with self._lock:
            self._stopping = False


_live = _Live()


def end_all() -> None:
    """End every child that runs now, with its tree; their ``run`` calls return as usual.

    For an interrupt: only the main thread hears it, while other threads wait for their children.
    """
    _live.end()


def _signal_group(pgid: int, number: int) -> None:
    try:
        os.killpg(pgid, number)
    except (ProcessLookupError, PermissionError):
        return


def run(command: Command, *, log: Path | None = None, watch: Watch | None = None) -> Completed:
    """Run ``command`` to its end and return what came of it; a non-zero status is not an error here.

    ``watch`` measures it; that needs a ``log`` (without one, output has to be read while it runs).
    Raises :class:`~ci.errors.ToolchainError` when the program does not exist or cannot be executed.
    On ``KeyboardInterrupt`` (or any other exception) the child's process group is ended first.
    """
    started = time.monotonic()
    if log is None:
        return _run_captured(command, started)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as sink:
        sink.write(f"$ {command.shown}\n".encode())
        sink.flush()
        group = _start(command, sink)
        finish = watch(group.process.pid) if watch is not None else None
        timed_out, used = _wait(group, command.timeout, finish)
    return Completed(
        command=command,
        returncode=group.process.returncode,
        output=_read_tail(log),
        seconds=time.monotonic() - started,
        log=log,
        timed_out=timed_out,
        used=used,
    )


def run_attached(command: Command) -> int:
    """Run ``command`` on this terminal, its input and output those of this process. Returns its status.

    Ctrl-C goes to the command, as in a shell. Raises :class:`~ci.errors.ToolchainError` when it cannot be
    started.
    """
    try:
        process = subprocess.Popen(
            command.argv,
            cwd=command.cwd,
            env=None if command.env is None else dict(command.env),
        )
    except OSError as error:
        raise _cannot_start(command, error) from error
    while process.poll() is None:
        # Ctrl-C: the terminal told the command too, and it decides.
        with contextlib.suppress(KeyboardInterrupt):
            process.wait()
    return process.returncode


def _run_captured(command: Command, started: float) -> Completed:
    group = _start(command, subprocess.PIPE)
    timed_out = False
    try:
        raw, _ = group.process.communicate(timeout=command.timeout)
    except subprocess.TimeoutExpired:
        timed_out = True
        group.end()
        raw = _rest(group)
    except BaseException:
        group.end()
        raise
    finally:
        _live.remove(group)
    return Completed(
        command=command,
        returncode=group.process.returncode,
        output=raw.decode("utf-8", "replace"),
        seconds=time.monotonic() - started,
        timed_out=timed_out,
    )


def _rest(group: _Group) -> bytes:
    """What was said until now; a grandchild that left the group may hold the pipe open for ever."""
    try:
        return group.process.communicate(timeout=GRACE_SECONDS)[0]
    except subprocess.TimeoutExpired as error:
        return error.output or b""


def _start(command: Command, stdout: int | IO[bytes]) -> _Group:
    try:
        process = subprocess.Popen(
            command.argv,
            cwd=command.cwd,
            env=None if command.env is None else dict(command.env),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise _cannot_start(command, error) from error
    group = _Group(process)
    _live.add(group)
    return group


def _cannot_start(command: Command, error: OSError) -> ToolchainError:
    elsewhere = command.cwd is not None and not command.cwd.is_dir()
    return ToolchainError(
        f"cannot start {command.argv[0]!r}: {error.strerror or error}",
        cause=f"its folder is not there: {command.cwd}"
        if elsewhere
        else "the program is not installed, is not on the PATH of this step, or cannot run here",
        next_step=f"check it by hand: {command.shown}",
    )


def _wait(
    group: _Group, timeout: float | None, finish: Callable[[], Used] | None
) -> tuple[bool, Used | None]:
    """Whether the time limit ended the child, and what it used. ``finish`` may be called twice."""
    used = None
    try:
        ended = _has_ended(group.process, timeout)
        used = finish() if finish is not None else None
        if ended:
            group.process.wait()
        else:
            group.end()
    except BaseException:
        group.end()
        if finish is not None:
            finish()
        raise
    finally:
        _live.remove(group)
    return not ended, used


def _has_ended(process: subprocess.Popen[bytes], timeout: float | None) -> bool:
    """Wait for the end of ``process`` without taking its status; False when the time is over before.

    A kernel that cannot wait so (before Linux 5.3, or a sandbox that forbids it) takes the status.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
        return process.returncode is not None
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1000))
    finally:
        os.close(descriptor)


def _read_tail(log: Path) -> str:
    size = log.stat().st_size
    with log.open("rb") as source:
        source.seek(max(0, size - TAIL_BYTES))
        return source.read().decode("utf-8", "replace")


def scrubbed(base: Mapping[str, str], keep: Sequence[str], **extra: str) -> dict[str, str]:
    """``base`` reduced to the names in ``keep``, plus ``extra``: an environment that says nothing else."""
    return {name: base[name] for name in keep if name in base} | extra
