"""Runs the graph: starts what the schedule says, hears what ends, and loses nothing on an interrupt.

Every task runs in a thread of its own and holds tokens of the pool from start to end; compilers that it
starts take more from the same pool. The thread that calls :func:`run_tasks` decides, and calls the listener;
between two events it sleeps in ``select``: on a pipe that ended tasks write to, on the pool while a task
waits for tokens, and for a short time while a task waits for memory, which no event tells.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from ci import proc
from ci.errors import FarmError, from_os_error
from ci.graph.history import History, Observation
from ci.graph.jobserver import TokenPool
from ci.graph.machine import Machine
from ci.graph.model import (
    Done,
    Expected,
    Grant,
    KilledForMemoryError,
    Outcome,
    State,
    Task,
    Usage,
)
from ci.graph.schedule import Decision, Ended, Item, Room, Schedule, Start

POLL_SECONDS = 0.5  # between two looks at memory, while a task waits for it
LOOK_SECONDS = 0.25  # how old a look at the machine may be
PROGRESS_SECONDS = 1.0
ATTEMPTS = 2


@dataclass(frozen=True)
class Progress:
    """Where a run is. ``eta`` are expected seconds until its end; ``guessed`` how many of the tasks that are
    left have never been seen before. Memory in bytes, ``None``: not known. ``at`` in seconds of the run.
    """

    at: float
    done: int
    running: int
    ready: int
    total: int
    eta: float
    guessed: int
    tokens_free: int
    tokens: int
    memory_free: int | None


class Listener(Protocol):
    """Hears what happens, in one thread. ``at`` are seconds since the start of the run."""

    def started(self, task: Task, grant: Grant, at: float) -> None:
        """The task starts now."""

    def waiting(self, name: str, reason: str, at: float) -> None:
        """The task is ready and waits; told again when the reason changes."""

    def retried(self, name: str, error: KilledForMemoryError, at: float) -> None:
        """The task was killed for memory, and will be tried once more."""

    def ended(self, outcome: Outcome) -> None:
        """The task has ended, or will not run."""

    def progress(self, progress: Progress) -> None:
        """About once a second, and when tasks end."""


class Silence:
    """A listener that does nothing; a base for those that hear some things only."""

    def started(self, task: Task, grant: Grant, at: float) -> None:
        """Nothing."""

    def waiting(self, name: str, reason: str, at: float) -> None:
        """Nothing."""

    def retried(self, name: str, error: KilledForMemoryError, at: float) -> None:
        """Nothing."""

    def ended(self, outcome: Outcome) -> None:
        """Nothing."""

    def progress(self, progress: Progress) -> None:
        """Nothing."""


class Several:
    """Passes on to several listeners what one hears."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def started(self, task: Task, grant: Grant, at: float) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.started(task, grant, at)

    def waiting(self, name: str, reason: str, at: float) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.waiting(name, reason, at)

    def retried(self, name: str, error: KilledForMemoryError, at: float) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.retried(name, error, at)

    def ended(self, outcome: Outcome) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.ended(outcome)

    def progress(self, progress: Progress) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.progress(progress)


@dataclass
class _Live:
    """A task that is known and has not ended."""

    task: Task
    expected: Expected
    ready: float = 0.0
    attempt: int = 1
    tokens: int = 0
    started: float = 0.0
    thread: threading.Thread | None = None
    reason: str = ""


@dataclass(frozen=True)
class _Result:
    name: str
    done: Done | None
    error: BaseException | None


def run_tasks(
    tasks: Iterable[Task],
    *,
    pool: TokenPool,
    machine: Callable[[], Machine],
    history: History | None = None,
    listener: Listener | None = None,
    used_by: Callable[[int], int] = lambda _: 0,
) -> dict[str, Outcome]:
    """Run ``tasks`` and those that they make known; what came of each, by name, in the order of their ends.

    A task that fails does not end the run: those after it are not run, others are. ``machine`` looks at the
    machine (:func:`ci.graph.machine.look`), ``used_by`` says how many bytes the task in a thread uses now
    (:meth:`ci.graph.usage.Meter.used_by`).

    Raises :class:`~ci.graph.schedule.GraphError` for a cycle or an unknown predecessor, and whatever else a
    task raises that is neither a :class:`~ci.errors.FarmError` nor an :class:`OSError`: that is a bug, and
    everything is stopped first. So it is on ``KeyboardInterrupt``, which is raised again.
    """
    run = _Run(pool, machine, history, listener or Silence(), used_by)
    try:
        run.add(tuple(tasks))
        run.loop()
    except BaseException:
        run.stop()
        raise
    finally:
        run.close()
    return run.outcomes


class _Run:
    def __init__(
        self,
        pool: TokenPool,
        machine: Callable[[], Machine],
        history: History | None,
        listener: Listener,
        used_by: Callable[[int], int],
    ) -> None:
        self._pool = pool
        self._machine = machine
        self._history = history
        self._listener = listener
        self._used_by = used_by
        self._schedule = Schedule()
        self._live: dict[str, _Live] = {}
        self._results: deque[_Result] = deque()
        self._event = threading.Event()
        self._hand = 0  # tokens of the pool that no task holds
        self._told = 0.0
        self._looked: tuple[float, Machine] | None = None
        self._zero = time.monotonic()
        self._readable, self._writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.outcomes: dict[str, Outcome] = {}

    def add(self, tasks: tuple[Task, ...]) -> None:
        new: dict[str, Task] = {}
        for task in tasks:
            if task.name not in self._live and task.name not in self.outcomes:
                new.setdefault(task.name, task)
        for task in new.values():
            self._live[task.name] = _Live(task, self._expected(task))
        self._apply(self._schedule.add(self._item(task) for task in new.values()))

    def loop(self) -> None:
        while True:
            self._hear()
            if self._schedule.finished:
                self._settle(0)
                self._tell_progress(last=True)
                return
            decision = self._decide()
            lacking = sum([self._start(start) for start in decision.starts])
            decision = replace(decision, wanted=max(decision.wanted, lacking))
            self._tell_waits(decision)
            self._settle(decision.wanted, withhold=decision.withhold)
            self._tell_progress()
            self._sleep(decision)

    def stop(self) -> None:
        """End every child and wait for every thread; a second interrupt does not leave any behind."""
        self._event.set()
        threads = [live.thread for live in self._live.values() if live.thread is not None]
        while any(thread.is_alive() for thread in threads):
            with contextlib.suppress(KeyboardInterrupt):
                proc.end_all()  # again: a task may have been between two commands
                for thread in threads:
                    thread.join(0.2)

    def close(self) -> None:
        held = self._hand + sum(live.tokens for live in self._live.values())
        self._pool.release(held)
        self._hand = 0
        self._pool.restore()
        os.close(self._readable)
        os.close(self._writable)

    # Deciding

    def _decide(self) -> Decision:
        if not self._schedule.running:
            self._settle(0)
            self._pool.restore()  # tokens of clients that were killed
        machine, now = self._look(), self._now()
        free = machine.free
        if free is not None:
            free -= sum(self._still_to_take(name) for name in self._schedule.running)
        tokens = self._hand + self._pool.free
        room = Room(tokens, self._pool.tokens, free, pressure=machine.pressed)
        return self._schedule.decide(room, now)

    def _still_to_take(self, name: str) -> int:
        """Bytes that a running task is expected to take beside what it has."""
        thread = self._live[name].thread
        used = self._used_by(thread.ident) if thread is not None and thread.ident else 0
        return max(0, self._schedule.item(name).bytes - used)

    def _look(self) -> Machine:
        now = time.monotonic()
        if self._looked is None or now - self._looked[0] >= LOOK_SECONDS:
            self._looked = (now, self._machine())
        return self._looked[1]

    def _expected(self, task: Task) -> Expected:
        known = self._history.expected(task.history) if self._history and task.history else None
        return known or task.demand.expected

    def _item(self, task: Task) -> Item:
        expected, demand = self._live[task.name].expected, task.demand
        return Item(
            name=task.name,
            after=task.after,
            seconds=expected.seconds,
            cpu_seconds=max(expected.cpu_seconds, expected.seconds),
            bytes=expected.peak_bytes,
            tail=demand.tail,
            tokens=max(1, demand.tokens),
            most_tokens=max(1, demand.tokens, demand.most_tokens),
            even_after_failure=task.even_after_failure,
        )

    # Starting

    def _start(self, start: Start) -> int:
        """Start it; returns how many tokens it lacks when somebody else was quicker, and it could not be."""
        got = min(self._hand, start.tokens)
        self._hand -= got
        got += self._pool.acquire(start.tokens - got)
        live = self._live[start.name]
        least = min(self._schedule.item(start.name).tokens, start.tokens)
        others = len(self._schedule.running) > 1
        if got < (least if others else 1):
            self._hand += got
            self._schedule.cancel(start.name)
            return least - got
        live.tokens, live.started, live.reason = got, self._now(), ""
        grant = Grant(got, self._pool.path, self._event, live.attempt)
        live.thread = threading.Thread(
            target=self._work, args=(live.task, grant), name=start.name, daemon=False
        )
        self._listener.started(live.task, grant, live.started)
        live.thread.start()
        return 0

    def _work(self, task: Task, grant: Grant) -> None:
        """In the task's thread."""
        try:
            result = _Result(task.name, task.run(grant), None)
        except BaseException as error:  # handed to the thread that decides
            result = _Result(task.name, None, error)
        self._results.append(result)
        with contextlib.suppress(OSError):  # full: it will look anyway
            os.write(self._writable, b".")

    # Hearing

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._readable, 4096):
                pass
        while self._results:
            result = self._results.popleft()
            live = self._live[result.name]
            if live.thread is not None:
                live.thread.join()
            live.thread = None
            self._hand += live.tokens
            tokens, live.tokens = live.tokens, 0
            self._judge(live, result, tokens)

    def _judge(self, live: _Live, result: _Result, tokens: int) -> None:
        error = result.error
        if error is None and result.done is not None:
            self._succeeded(live, result.done, tokens)
        elif isinstance(error, KilledForMemoryError):
            self._killed(live, error, tokens)
        elif isinstance(error, FarmError):
            self._failed(live, error, tokens)
        elif isinstance(error, OSError):
            self._failed(live, from_os_error(error), tokens)
        elif error is not None:
            raise error
        else:
            raise TypeError(f"{live.task.name} returned nothing")

    def _succeeded(self, live: _Live, done: Done, tokens: int) -> None:
        usage = self._usage(live, done.usage)
        if not done.cached:
            self._observe(live, usage, tokens, "done")
        outcome = self._outcome(live, "done", tokens, usage)
        outcome = replace(outcome, cached=done.cached, value=done.value)
        self._end(outcome, good=True)
        self.add(done.more)

    def _killed(self, live: _Live, error: KilledForMemoryError, tokens: int) -> None:
        usage = replace(self._usage(live, Usage()), peak_bytes=error.peak_bytes)
        self._observe(live, usage, tokens, "killed")
        if live.attempt >= ATTEMPTS:
            self._end(
                replace(self._outcome(live, "failed", tokens, usage), error=error), good=False
            )
            return
        live.attempt, live.ready = live.attempt + 1, self._now()
        self._schedule.again(live.task.name, tokens=1, bytes=error.peak_bytes)
        self._listener.retried(live.task.name, error, self._now())

    def _failed(self, live: _Live, error: FarmError, tokens: int) -> None:
        usage = self._usage(live, Usage())
        self._end(replace(self._outcome(live, "failed", tokens, usage), error=error), good=False)

    def _usage(self, live: _Live, told: Usage) -> Usage:
        return told if told.seconds else replace(told, seconds=self._now() - live.started)

    def _observe(self, live: _Live, usage: Usage, tokens: int, result: str) -> None:
        if self._history is not None and live.task.history:
            seen = Observation.of(usage, tokens=tokens, result=result, at=time.time())
            self._history.observe(live.task.history, seen)

    def _outcome(self, live: _Live, state: State, tokens: int, usage: Usage) -> Outcome:
        return Outcome(
            name=live.task.name,
            kind=live.task.kind,
            state=state,
            ready=live.ready,
            started=live.started,
            ended=self._now(),
            tokens=tokens,
            attempts=live.attempt,
            usage=usage,
        )

    def _end(self, outcome: Outcome, *, good: bool) -> None:
        del self._live[outcome.name]
        self.outcomes[outcome.name] = outcome
        self._listener.ended(outcome)
        self._apply(self._schedule.ended(outcome.name, good))

    def _apply(self, ended: Ended) -> None:
        now = self._now()
        for name in ended.ready:
            self._live[name].ready = now
        for name, reason in ended.dropped:
            task = self._live.pop(name).task
            outcome = Outcome(name, task.kind, "not run", now, now, now, because=f"{reason} failed")
            self.outcomes[name] = outcome
            self._listener.ended(outcome)

    # Waiting

    def _settle(self, wanted: int, withhold: bool = False) -> None:
        """Keep in hand what the first waiting task lacks, and give the rest to children; all of it is kept
        while nothing more is to start.
        """
        if withhold:
            self._hand += self._pool.acquire(self._pool.tokens)
        elif wanted:
            self._hand += self._pool.acquire(wanted)
        elif self._hand:
            self._pool.release(self._hand)
            self._hand = 0

    def _sleep(self, decision: Decision) -> None:
        if self._results:
            return
        files = [self._readable]
        for_memory = decision.withhold or any(why != "tokens" for why in decision.waits.values())
        if decision.wanted and not decision.withhold:
            files.append(self._pool.fileno())
        busy = bool(self._schedule.running)
        timeout = POLL_SECONDS if for_memory or not busy else PROGRESS_SECONDS
        select.select(files, [], [], timeout)

    # Telling

    def _tell_waits(self, decision: Decision) -> None:
        now = self._now()
        waits = decision.waits
        if decision.withhold:
            waits = dict.fromkeys(self._schedule.ready, decision.otherwise)
        for name, reason in waits.items():
            live = self._live[name]
            if live.reason != reason:
                live.reason = reason
                self._listener.waiting(name, reason, now)

    def _tell_progress(self, last: bool = False) -> None:
        now = self._now()
        if not last and self._told and now - self._told < PROGRESS_SECONDS:
            return
        self._told = now
        running = len(self._schedule.running)
        self._listener.progress(
            Progress(
                at=now,
                done=len(self.outcomes),
                running=running,
                ready=self._schedule.ready_count,
                total=len(self.outcomes) + len(self._live),
                eta=self._schedule.remaining(now, self._pool.tokens),
                guessed=sum(1 for live in self._live.values() if not live.expected.runs),
                tokens_free=self._hand + self._pool.free,
                tokens=self._pool.tokens,
                memory_free=self._look().free,
            )
        )

    def _now(self) -> float:
        return time.monotonic() - self._zero
