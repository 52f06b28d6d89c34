"""Measuring trees of real processes: memory at the peak, CPU time of all that ended, and little cost."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ci.graph.usage import Meter, Process, group, read_all, read_memory, read_process
from ci.proc import Command, Used, end_all, run

MIB = 2**20
WAIT = 60.0


def python(code: str, timeout: float | None = None) -> Command:
    return Command((sys.executable, "-c", code), timeout=timeout)


def measured(command: Command, log: Path) -> Used:
    done = run(command, log=log, watch=Meter(0.05).watch)
    assert done.used is not None
    return done.used


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


BURN = "import time\nwhile time.process_time() < {seconds}: pass\n"


def test_the_time_of_children_that_have_ended_counts(tmp_path: Path) -> None:
    """The shell waits for each; no look needs to see them alive."""
    code = BURN.format(seconds=0.3)
    (tmp_path / "burn.py").write_text(code)
    burn = f"{sys.executable} -S {tmp_path}/burn.py"
    used = measured(Command(("sh", "-c", f"{burn}; {burn} & {burn}; wait")), tmp_path / "log")
    assert 0.85 <= used.cpu_seconds < 2.5  # each of the three is counted in ticks of 10 ms


def test_memory_is_summed_over_the_tree_and_kept_at_its_peak(tmp_path: Path) -> None:
    child = "import time; a = bytearray(60 * 2**20); time.sleep(0.6)"
    code = (
        "import subprocess, sys, time\n"
        f"children = [subprocess.Popen([sys.executable, '-c', {child!r}]) for _ in range(2)]\n"
        "[one.wait() for one in children]\n"
        "time.sleep(0.3)\n"
    )
    used = measured(python(code), tmp_path / "log")
    assert 120 * MIB <= used.peak_bytes < 200 * MIB


def test_pages_that_a_tree_shares_count_once(tmp_path: Path) -> None:
    """A forked child has its parent's 80 MiB without having taken any."""
    code = (
        "import os, time\n"
        "a = bytearray(80 * 2**20)\n"
        "pids = [os.fork() for _ in range(1)]\n"
        "time.sleep(0.7)\n"
    )
    used = measured(python(code), tmp_path / "log")
    assert 80 * MIB <= used.peak_bytes < 130 * MIB


def test_a_process_whose_parent_is_gone_is_in_the_tree(tmp_path: Path) -> None:
    hold = f"{sys.executable} -c 'a = bytearray(70 * 2**20); import time; time.sleep(0.7)'"
    used = measured(Command(("sh", "-c", f"({hold} &) ; sleep 0.9")), tmp_path / "log")
    assert used.peak_bytes >= 70 * MIB


def test_a_timeout_and_an_interrupt_are_measured_too(tmp_path: Path) -> None:
    burn = "a = bytearray(50 * 2**20)\nwhile True: pass"
    done = run(python(burn, timeout=0.6), log=tmp_path / "log", watch=Meter(0.05).watch)
    assert done.timed_out
    assert done.used is not None
    assert done.used.peak_bytes >= 50 * MIB
    assert done.used.cpu_seconds > 0.1
    timer = threading.Timer(0.4, end_all)
    timer.start()
    done = run(python(burn), log=tmp_path / "log", watch=Meter(0.05).watch)
    timer.join()
    assert not done.ok
    assert done.used is not None
    assert done.used.cpu_seconds > 0.1


def test_without_somebody_who_watches_nothing_is_measured(tmp_path: Path) -> None:
    assert run(python("pass"), log=tmp_path / "log").used is None
    assert run(python("pass"), watch=Meter().watch).used is None


def test_what_a_thread_s_trees_use_now(tmp_path: Path) -> None:
    meter, threads = Meter(0.05), []

    def work() -> None:
        threads.append(threading.get_ident())
        code = "import time; a = bytearray(60 * 2**20); time.sleep(600)"
        run(python(code, timeout=WAIT), log=tmp_path / "log", watch=meter.watch)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert eventually(lambda: bool(threads) and meter.used_by(threads[0]) >= 60 * MIB)
        assert meter.used_by(threading.get_ident()) == 0
    finally:
        end_all()
        thread.join()
    assert meter.used_by(threads[0]) == 0


def test_the_thread_ends_with_the_last_tree_and_comes_again(tmp_path: Path) -> None:
    meter = Meter(0.05)

    def looking() -> bool:
        return any(thread.name == "usage" for thread in threading.enumerate())

    for _ in range(3):
        run(python("import time; time.sleep(0.2)"), log=tmp_path / "log", watch=meter.watch)
        assert eventually(lambda: not looking())


def test_measuring_costs_little(tmp_path: Path) -> None:
    before = time.process_time()
    run(Command(("sleep", "2")), log=tmp_path / "log", watch=Meter().watch)
    assert time.process_time() - before < 0.4  # of one core, for two seconds


def test_processes_are_read_as_psutil_reads_them() -> None:
    pid = os.getpid()
    mine, theirs = read_process(Path("/proc"), pid), psutil.Process()
    assert mine is not None
    times = theirs.cpu_times()
    assert (mine.parent, mine.session) == (theirs.ppid(), os.getsid(pid))
    assert mine.cpu_seconds == pytest.approx(times.user + times.system, abs=0.2)
    resident, shared = read_memory(Path("/proc"), pid)
    info = theirs.memory_info()
    assert resident == pytest.approx(info.rss, rel=0.1)
    assert shared == pytest.approx(info.shared, rel=0.2)
    assert pid in read_all(Path("/proc"))


@pytest.mark.parametrize("stat", ["", "7 (a", "7 (a b) c) S 1"])
def test_a_process_that_goes_while_it_is_read_is_none(tmp_path: Path, stat: str) -> None:
    assert read_process(tmp_path, 7) is None
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text(stat)
    assert read_process(tmp_path, 7) is None
    assert read_memory(tmp_path, 7) == (0, 0)


def test_a_name_may_hold_anything(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text("7 (a) b (c)) S 3 7 5 0 -1 0 0 0 0 0 100 50 20 30 0 0\n")
    seen = read_process(tmp_path, 7)
    ticks = os.sysconf("SC_CLK_TCK")
    assert seen == Process(7, 3, 5, 150 / ticks, 50 / ticks)


def test_trees_are_told_apart_by_descent_and_session() -> None:
    def process(pid: int, parent: int, session: int = 1) -> Process:
        return Process(pid, parent, session, 0.0, 0.0)

    processes = {
        one.pid: one
        for one in (
            process(1, 0),
            process(10, 1, 10),
            process(11, 10, 10),
            process(12, 11, 12),  # a session of its own, in the tree by descent
            process(13, 1, 10),  # its parent is gone, in the tree by session
            process(14, 13, 14),
            process(20, 1, 20),
            process(21, 20, 20),
            process(30, 1, 1),
        )
    }
    members = group(processes, {10, 20, 40})
    assert {root: sorted(pids) for root, pids in members.items()} == {
        10: [10, 11, 12, 13, 14],
        20: [20, 21],
        40: [],
    }
