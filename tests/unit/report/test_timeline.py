"""Bars, totals and the line that says how long it will still take."""

from __future__ import annotations

import pytest

from ci.graph.model import KilledForMemoryError, Outcome, Usage
from ci.graph.run import Progress
from ci.report.timeline import ProgressLines, Totals, duration, remaining, timeline, totals


def outcome(name: str, ready: float, started: float, ended: float, cpu: float = 0.0) -> Outcome:
    usage = Usage(ended - started, cpu, 0)
    return Outcome(name, "library", "done", ready, started, ended, usage=usage)


def test_bars_show_waiting_running_failing_and_the_cache() -> None:
    lines = timeline(
        [
            outcome("a", 0, 0, 5),
            outcome("b", 0, 5, 10),
            Outcome("c", "library", "failed", 5, 5, 7.5),
            Outcome("d", "library", "done", 10, 10, 10, cached="local"),
            Outcome("e", "library", "not run", 10, 10, 10, because="c failed"),
        ],
        width=28,
    )
    assert lines == (
        "a ██████████           5.0 s",
        "c           ▒▒▒▒▒      2.5 s",
        "b ··········██████████ 5.0 s",
        "d                    ▪ 0.0 s",
    )


@pytest.mark.parametrize("width", [40, 80, 133])
def test_no_line_is_wider_than_asked_for(width: int) -> None:
    long = "build " + "x" * 70
    lines = timeline(
        [outcome(long, 0, 0, 4000), outcome("b", 1, 3999.9, 4000)], width=max(width, 64)
    )
    assert {len(line) for line in lines} == {max(width, 64)}
    assert "…" in lines[0]


def test_nothing_ran() -> None:
    assert timeline([]) == ()
    assert timeline([outcome("a", 0, 0, 0)])[0].startswith("a █")
    assert totals([], {}, 4) == Totals(0.0, (), 0.0, 0.0, 4, 0.0)
    assert "nothing ran" in totals([], {}, 4).line


def test_the_critical_path_is_that_of_the_times_that_were_needed() -> None:
    after = {"b": ("a",), "c": ("a",), "d": ("b", "c"), "x": (), "e": ("nobody",)}
    ran = [
        outcome("a", 0, 0, 2, cpu=2),
        outcome("b", 2, 2, 3, cpu=1),
        outcome("c", 2, 4, 9, cpu=10),
        outcome("d", 9, 9, 10, cpu=1),
        outcome("x", 0, 0, 7, cpu=6),
        outcome("e", 0, 0, 1),
    ]
    seen = totals(ran, after, cores=4)
    assert seen.path == ("a", "c", "d")
    assert (seen.path_seconds, seen.wall_seconds, seen.cpu_seconds) == (8.0, 10.0, 20.0)
    assert seen.used == 0.5
    assert seen.line == (
        "took 10 s; critical path 8.0 s (a > c > d); work 20 s on 4 cores; 50 % of them used"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7620, "2 h 07 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def progress(done: int, eta: float, guessed: int = 0) -> Progress:
    return Progress(5.0, done, 3, 2, 40, eta, guessed, 1, 4, None)


class Lines:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def begin(self, name: str, text: str) -> None:
        raise AssertionError

    def end(self, name: str, text: str) -> None:
        raise AssertionError


def test_what_is_left_says_how_much_is_a_guess() -> None:
    assert remaining(progress(12, 240)) == "12 of 40 done, 3 running; about 4 min 00 s left"
    assert remaining(progress(12, 8, 5)) == (
        "12 of 40 done, 3 running; about 8.0 s left (5 of 28 never timed before)"
    )


def test_progress_is_told_now_and_then_and_not_at_the_end() -> None:
    lines, now = Lines(), [100.0]
    teller = ProgressLines(lines, every=30, clock=lambda: now[0])
    for at in (100, 115, 131, 140, 160, 162):
        now[0] = at
        teller.progress(progress(at // 10, 60))
    now[0] = 300
    teller.progress(progress(40, 0))
    assert [line.split(" of ")[0] for line in lines.said] == ["13", "16"]


def test_memory_that_is_missing_is_told_once_and_tokens_never() -> None:
    lines = Lines()
    teller = ProgressLines(lines)
    for free in ("2.1", "2.2", "2.3"):
        teller.waiting("a", f"memory: needs 5.4 GiB, {free} GiB free", 1.0)
        teller.waiting("b", "tokens", 1.0)
        teller.waiting("c", "after a, which waits longer", 1.0)
    teller.waiting("d", "memory pressure", 2.0)
    error = KilledForMemoryError("killed", peak_bytes=3 * 2**30, limit_bytes=0)
    teller.retried("a", error, 3.0)
    assert lines.said == [
        "a waits: memory: needs 5.4 GiB, 2.1 GiB free",
        "d waits: memory pressure",
        "a was killed for memory at 3.0 GiB; once more with 1 job, when there is that much",
    ]
