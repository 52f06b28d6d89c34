"""Running a graph for real: order, failures, sharing, memory, interrupts, and no token lost."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ci.errors import InfrastructureError, LibraryBuildError
from ci.graph.history import History
from ci.graph.jobserver import TokenPool
from ci.graph.machine import Fact, Machine, Pressure
from ci.graph.model import (
    Demand,
    Done,
    Expected,
    Grant,
    KilledForMemoryError,
    Outcome,
    Task,
    Usage,
)
from ci.graph.run import Progress, Several, Silence, run_tasks
from ci.graph.schedule import GraphError

GIB = 1024**3
WAIT = 60.0


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[TokenPool]:
    with TokenPool.create(tmp_path, 3) as made:
        yield made
        assert made.held == 0
        assert made.free == 3  # whatever a test did, the pool is whole


def machine(free: float = 64, pressure: float = 0.0) -> Machine:
    """A machine with ``free`` GiB for tasks, beside its reserve."""
    made = Machine(Fact(3, "test"), Fact(0, "test"), pressure=Pressure(pressure, 0, "test"))
    return replace(made, available=Fact(free * GIB + made.reserve, "test"))


def task(
    name: str,
    *after: str,
    run: Callable[[Grant], Done] | None = None,
    peak: float = 0,
    tokens: int = 1,
    most: int = 1,
    even: bool = False,
) -> Task:
    expected = Expected(1.0, 1.0, int(peak * GIB))
    return Task(
        name,
        "library",
        run or (lambda grant: Done(name)),
        after,
        Demand(expected, tokens, most),
        history=f"history of {name}",
        even_after_failure=even,
    )


class Heard(Silence):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.seen: list[Progress] = []
        self.threads: set[int] = set()

    def started(self, task: Task, grant: Grant, at: float) -> None:
        self.lines.append(f"{task.name} starts with {grant.tokens}")
        self.threads.add(threading.get_ident())

    def waiting(self, name: str, reason: str, at: float) -> None:
        self.lines.append(f"{name} waits: {reason}")

    def retried(self, name: str, error: KilledForMemoryError, at: float) -> None:
        self.lines.append(f"{name} again after {error.peak_bytes}")

    def ended(self, outcome: Outcome) -> None:
        self.lines.append(f"{outcome.name} {outcome.state}")
        self.threads.add(threading.get_ident())

    def progress(self, progress: Progress) -> None:
        self.seen.append(progress)


def test_values_tasks_that_come_later_and_their_order(pool: TokenPool) -> None:
    late = task("late", "first"), task("last", "late", "second"), task("second")
    first = task("first", run=lambda grant: Done(1, more=late))
    heard, other = Heard(), Heard()
    outcomes = run_tasks(
        [first, task("second")], pool=pool, machine=machine, listener=Several(heard, other)
    )
    assert {name: one.value for name, one in outcomes.items()} == {
        "first": 1,
        "second": "second",
        "late": "late",
        "last": "last",
    }
    assert [line for line in heard.lines if "starts" in line].count("second starts with 1") == 1
    for name, before in {"late": ("first",), "last": ("late", "second")}.items():
        assert all(outcomes[name].started >= outcomes[one].ended for one in before)
    assert all(one.ready <= one.started <= one.ended for one in outcomes.values())
    assert heard.threads == {threading.get_ident()}
    assert heard.lines == other.lines
    assert heard.seen[-1].done == heard.seen[-1].total == 4
    assert heard.seen[-1].eta == 0


def test_a_task_known_to_several_is_run_once(pool: TokenPool) -> None:
    runs: list[str] = []

    def build(grant: Grant) -> Done:
        runs.append("shared")
        return Done("built")

    def prepare(cell: str) -> Task:
        more = (task("shared", run=build), task(f"wheel {cell}", "shared"))
        return task(f"prepare {cell}", run=lambda grant: Done(more=more))

    outcomes = run_tasks([prepare(str(n)) for n in range(8)], pool=pool, machine=machine)
    assert runs == ["shared"]
    assert len(outcomes) == 17


def test_never_more_tasks_than_tokens(pool: TokenPool) -> None:
    lock, now, most = threading.Lock(), 0, 0

    def run(grant: Grant) -> Done:
        nonlocal now, most
        with lock:
            now += grant.tokens
            most = max(most, now)
        time.sleep(0.02)
        with lock:
            now -= grant.tokens
        return Done()

    tasks = [task(f"t{n}", run=run, tokens=1 + n % 3, most=3) for n in range(30)]
    assert len(run_tasks(tasks, pool=pool, machine=machine)) == 30
    assert most == 3


def test_a_failure_ends_what_follows_it_and_nothing_else(pool: TokenPool) -> None:
    def fail(grant: Grant) -> Done:
        raise LibraryBuildError("no luck")

    outcomes = run_tasks(
        [
            task("bad", run=fail),
            task("wheel", "bad"),
            task("import", "wheel"),
            task("good"),
            task("report", "import", "good", even=True),
        ],
        pool=pool,
        machine=machine,
    )
    states = {name: (one.state, one.because) for name, one in outcomes.items()}
    assert states == {
        "bad": ("failed", ""),
        "wheel": ("not run", "bad failed"),
        "import": ("not run", "bad failed"),
        "good": ("done", ""),
        "report": ("done", ""),
    }
    assert isinstance(outcomes["bad"].error, LibraryBuildError)


def test_a_full_disk_is_an_outcome_and_a_bug_is_not(pool: TokenPool) -> None:
    def full(grant: Grant) -> Done:
        raise OSError(errno.ENOSPC, "No space left on device", "somewhere")

    outcomes = run_tasks([task("full", run=full)], pool=pool, machine=machine)
    assert isinstance(outcomes["full"].error, InfrastructureError)
    assert outcomes["full"].error.cause == "the disk is full"

    stopped = threading.Event()

    def patient(grant: Grant) -> Done:
        assert grant.stop.wait(WAIT)
        stopped.set()
        return Done()

    def bug(grant: Grant) -> Done:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_tasks([task("patient", run=patient), task("bug", run=bug)], pool=pool, machine=machine)
    assert stopped.is_set()


def test_a_graph_that_cannot_run_is_refused(pool: TokenPool) -> None:
    with pytest.raises(GraphError, match="wait for each other: a, b"):
        run_tasks([task("a", "b"), task("b", "a")], pool=pool, machine=machine)
    late = task("a", run=lambda grant: Done(more=(task("b", "nobody"),)))
    with pytest.raises(GraphError, match="after nobody"):
        run_tasks([late], pool=pool, machine=machine)


def killed(times: int, peak: int) -> tuple[Callable[[Grant], Done], list[Grant]]:
    grants: list[Grant] = []

    def run(grant: Grant) -> Done:
        grants.append(grant)
        if len(grants) <= times:
            raise KilledForMemoryError("killed", peak_bytes=peak, limit_bytes=8 * GIB)
        return Done("built")

    return run, grants


def test_a_task_killed_for_memory_is_tried_once_more_with_one_token(
    pool: TokenPool, tmp_path: Path
) -> None:
    run, grants = killed(1, 5 * GIB)
    heard, history = Heard(), History(tmp_path / "history")
    outcomes = run_tasks(
        [task("a", run=run, tokens=2, most=3)],
        pool=pool,
        machine=machine,
        listener=heard,
        history=history,
    )
    assert [(grant.tokens, grant.attempt) for grant in grants] == [(3, 1), (1, 2)]
    assert (outcomes["a"].state, outcomes["a"].attempts, outcomes["a"].value) == (
        "done",
        2,
        "built",
    )
    assert f"a again after {5 * GIB}" in heard.lines
    results = [one.result for one in history.observations("history of a")]
    assert results == ["killed", "done"]
    expected = history.expected("history of a")
    assert expected is not None
    assert expected.peak_bytes == 5 * GIB


def test_the_second_attempt_waits_until_there_is_what_it_had(pool: TokenPool) -> None:
    run, _ = killed(1, 5 * GIB)
    heard, release = Heard(), threading.Event()

    class Releasing(Silence):
        def waiting(self, name: str, reason: str, at: float) -> None:
            if name == "a":
                release.set()

    def hold(grant: Grant) -> Done:
        assert release.wait(WAIT)
        return Done()

    run_tasks(
        [task("a", run=run), task("hold", run=hold, peak=2)],
        pool=pool,
        machine=lambda: machine(free=4),
        listener=Several(heard, Releasing()),
    )
    assert "a waits: memory: needs 5.0 GiB, 2.0 GiB free" in heard.lines
    assert heard.lines.index("hold done") < heard.lines.index("a done")


def test_killed_twice_is_a_failure(pool: TokenPool) -> None:
    run, grants = killed(9, GIB)
    outcomes = run_tasks([task("a", run=run)], pool=pool, machine=machine)
    assert len(grants) == 2
    assert outcomes["a"].state == "failed"
    assert isinstance(outcomes["a"].error, KilledForMemoryError)
    assert outcomes["a"].usage.peak_bytes == GIB


def test_memory_admits_what_fits(pool: TokenPool) -> None:
    lock, now, most = threading.Lock(), 0, 0

    def run(grant: Grant) -> Done:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        with lock:
            now -= 1
        return Done()

    tasks = [task(f"t{n}", run=run, peak=3) for n in range(6)]
    run_tasks(tasks, pool=pool, machine=lambda: machine(free=7))
    assert most == 2


def test_what_a_task_has_already_taken_is_not_taken_twice(pool: TokenPool) -> None:
    """4 GiB expected, all taken, so 3 of 7 are free: a task of 3 fits. Counted twice it would not."""
    both = threading.Barrier(2, timeout=WAIT)

    def meet(grant: Grant) -> Done:
        both.wait()
        return Done()

    started: list[str] = []

    def look() -> Machine:
        return machine(free=3 if started else 7)

    class Noting(Silence):
        def started(self, task: Task, grant: Grant, at: float) -> None:
            started.append(task.name)

    outcomes = run_tasks(
        [task("large", run=meet, peak=4), task("small", run=meet, peak=3)],
        pool=pool,
        machine=look,
        listener=Noting(),
        used_by=lambda thread: 4 * GIB,
    )
    assert all(one.state == "done" for one in outcomes.values())


def test_under_pressure_tasks_run_one_by_one_and_free_tokens_are_withheld(pool: TokenPool) -> None:
    free: list[int] = []

    def run(grant: Grant) -> Done:
        time.sleep(0.1)
        free.append(pool.free)
        return Done()

    heard = Heard()
    run_tasks(
        [task(f"t{n}", run=run) for n in range(3)],
        pool=pool,
        machine=lambda: machine(pressure=90),
        listener=heard,
    )
    assert free == [0, 0, 0]
    assert [line for line in heard.lines if "starts" in line or "done" in line] == [
        f"t{n} {what}" for n in range(3) for what in ("starts with 1", "done")
    ]
    assert "t1 waits: memory pressure" in heard.lines


def test_compilers_of_a_task_can_take_the_tokens_that_no_task_has(pool: TokenPool) -> None:
    def run(grant: Grant) -> Done:
        assert grant.jobserver == pool.path
        deadline = time.monotonic() + WAIT
        while pool.free < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        return Done(pool.free)

    outcomes = run_tasks([task("a", run=run)], pool=pool, machine=machine)
    assert outcomes["a"].value == 2


def test_a_task_waits_for_tokens_that_a_compiler_has(pool: TokenPool) -> None:
    """A compiler has one of three for a while; a task for two gets them when it gives that back."""
    given = threading.Event()

    def compile_something(grant: Grant) -> Done:
        taken = os.open(pool.path, os.O_RDWR | os.O_NONBLOCK)
        token = os.read(taken, 1)
        time.sleep(0.3)
        given.set()
        os.write(taken, token)
        os.close(taken)
        time.sleep(0.3)
        return Done()

    wide = task("wide", "soon", tokens=2, run=lambda grant: Done(given.is_set()))

    def short(grant: Grant) -> Done:
        time.sleep(0.1)
        return Done()

    soon = task("soon", run=short)
    outcomes = run_tasks(
        [task("compile", run=compile_something), soon, wide], pool=pool, machine=machine
    )
    assert outcomes["wide"].value is True
    assert outcomes["wide"].tokens == 2
    assert outcomes["wide"].started < outcomes["compile"].ended


def test_tokens_that_a_killed_compiler_took_are_put_back(pool: TokenPool) -> None:
    code = f"import os; f = os.open({str(pool.path)!r}, os.O_RDWR); os.read(f, 2)"

    def run(grant: Grant) -> Done:
        subprocess.run([sys.executable, "-c", f"{code}; os.kill(os.getpid(), 9)"], check=False)
        return Done(pool.free)

    outcomes = run_tasks([task("a", run=run), task("b", "a", tokens=3)], pool=pool, machine=machine)
    assert outcomes["a"].value == 0
    assert outcomes["b"].tokens == 3


def test_what_tasks_used_is_learnt_and_used(pool: TokenPool, tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    used = Usage(seconds=100.0, cpu_seconds=150.0, peak_bytes=3 * GIB)
    tasks = [
        task("a", run=lambda grant: Done(usage=used)),
        task("b", run=lambda grant: Done(cached="local")),
        replace(task("c"), history=""),
    ]
    heard = Heard()
    run_tasks(tasks, pool=pool, machine=machine, history=history, listener=heard)
    assert history.expected("history of a") == Expected(100.0, 150.0, 3 * GIB, runs=1)
    assert history.expected("history of b") is None  # nothing was done
    assert len(list((tmp_path / "history").iterdir())) == 1
    assert heard.seen[0].guessed == 3
    again = Heard()
    run_tasks(tasks, pool=pool, machine=machine, history=history, listener=again)
    assert again.seen[0].guessed == 2
    assert again.seen[0].eta == pytest.approx(100, abs=1)


def test_an_idle_run_burns_no_cpu(pool: TokenPool) -> None:
    def sleep(grant: Grant) -> Done:
        time.sleep(1.0)
        return Done()

    tasks = [task(f"t{n}", run=sleep) for n in range(3)] + [
        task("waits", tokens=3),
        task("big", peak=90),
    ]
    before = time.process_time()
    run_tasks(tasks, pool=pool, machine=machine)
    assert time.process_time() - before < 0.2


def test_thousands_of_tasks(pool: TokenPool) -> None:
    tasks = [task(f"t{n}", *((f"t{n - 5}",) if n > 5 else ())) for n in range(2000)]
    started = time.monotonic()
    assert len(run_tasks(tasks, pool=pool, machine=machine)) == 2000
    assert time.monotonic() - started < 10  # about 0.3 s on an idle machine


INTERRUPTED = """
import os, sys, threading, time
from pathlib import Path
from ci.graph.jobserver import TokenPool
from ci.graph.machine import look
from ci.graph.model import Done, Task
from ci.graph.run import run_tasks
from ci.proc import Command, run

folder = Path(sys.argv[1])

def build(name):
    def work(grant):
        while not grant.stop.is_set():
            run(Command(("sh", "-c", "echo $$ >>pids; sleep 600 & wait"), cwd=folder), log=folder / name)
        return Done()
    return work

with TokenPool.create(folder, 2) as pool:
    try:
        run_tasks([Task(n, "library", build(n)) for n in "abc"], pool=pool, machine=look)
    except KeyboardInterrupt:
        alive = [thread.name for thread in threading.enumerate() if thread.name in "abc"]
        print("interrupted", alive, pool.free, flush=True)
"""


def living_of_groups(groups: set[str]) -> list[str]:
    """Processes of these groups that are more than an entry for their parent."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if fields[2] in groups and fields[0] != "Z":
                found.append(stat.parent.name)
    return found


def test_an_interrupt_ends_everything_and_is_told(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as farm:
        pids = tmp_path / "pids"
        deadline = time.monotonic() + WAIT
        while time.monotonic() < deadline:
            if pids.exists() and len(pids.read_text().split()) == 2:
                break
            time.sleep(0.02)
        for _ in range(3):  # an impatient user
            farm.send_signal(signal.SIGINT)
            time.sleep(0.05)
        output, _ = farm.communicate(timeout=WAIT)
    assert output == "interrupted [] 2\n"
    assert not living_of_groups(set(pids.read_text().split()))
    assert not list(tmp_path.glob("jobserver-*"))
