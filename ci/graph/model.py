"""The values of the build graph: what a task needs, what it is given, and what came of it.

A task is one node: a toolchain, an environment, a library step, a wheel, a suite. It says which tasks must
have succeeded before, and what it needs; the scheduler decides when it starts and what it gets. Nothing
here asks the machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ci.errors import FarmError

State = Literal["done", "failed", "not run"]
Cached = Literal["", "local", "remote"]


@dataclass(frozen=True)
class Usage:
    """What a task used: wall and CPU time in seconds (CPU with all children), peak memory in bytes (the
    largest sum over its processes that was seen; 0: not measured).
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0


@dataclass(frozen=True)
class Expected:
    """What a task will use, learnt from ``runs`` earlier ones; with 0 runs it is a guess."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    runs: int = 0


@dataclass(frozen=True)
class Demand:
    """What a task asks for. ``tokens`` are the least it can run with, ``most_tokens`` what it can use when
    it divides its work by a number that is told at its start (``MAX_JOBS``); a client of the jobserver asks
    for one and takes the others itself. ``tail`` are expected seconds of work that only it can make known.
    """

    expected: Expected = field(default_factory=lambda: Expected(1.0, 1.0, 0))
    tokens: int = 1
    most_tokens: int = 1
    tail: float = 0.0


@dataclass(frozen=True)
class Grant:
    """What a task is given: tokens that it holds until its end, the jobserver for its children (``None``:
    there is none), and an event that is set when it must not start anything more. ``attempt`` counts from 1.
    """

    tokens: int
    jobserver: Path | None
    stop: threading.Event
    attempt: int = 1


@dataclass(frozen=True)
class Done:
    """What a task returns: its value, what it used, where its result came from when it did not run
    (``cached``), and tasks that it made known (each may name tasks that are there or come with it).
    """

    value: object = None
    usage: Usage = field(default_factory=Usage)
    cached: Cached = ""
    more: tuple[Task, ...] = ()


@dataclass(frozen=True)
class Task:
    """A node of the graph. ``name`` is unique, ``kind`` is what reports group by (``library``, ``wheel``),
    ``history`` the name that its usage is remembered by (empty: never), which holds no path and no time.
    ``run`` may raise a :class:`~ci.errors.FarmError`; :class:`KilledForMemoryError` is tried once more.
    ``even_after_failure``: it runs too when a task in ``after`` failed (a cell's report, say).
    """

    name: str
    kind: str
    run: Callable[[Grant], Done]
    after: tuple[str, ...] = ()
    demand: Demand = field(default_factory=Demand)
    history: str = ""
    even_after_failure: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of a task. Times are seconds since the start of the run: when its last predecessor ended
    (``ready``), when it was started, when it ended. ``because`` says why it was not run.
    """

    name: str
    kind: str
    state: State
    ready: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    tokens: int = 0
    attempts: int = 0
    usage: Usage = field(default_factory=Usage)
    cached: Cached = ""
    value: object = None
    error: FarmError | None = None
    because: str = ""

    @property
    def waited(self) -> float:
        """Seconds between being ready and being started."""
        return max(0.0, self.started - self.ready)


class KilledForMemoryError(FarmError):
    """A task was ended because there was no memory left. ``peak_bytes`` is what it had, ``limit_bytes`` what
    there was (0: unknown).
    """

    exit_code = 1
    kind = "out of memory"

    def __init__(
        self,
        message: str,
        *,
        peak_bytes: int,
        limit_bytes: int,
        cause: str = "",
        next_step: str = "",
        details: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, cause=cause, next_step=next_step, details=details)
        self.peak_bytes = peak_bytes
        self.limit_bytes = limit_bytes
