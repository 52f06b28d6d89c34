"""Traces in the documented format: fields, lanes without overlaps, waits with their reasons, counters."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from ci.errors import LibraryBuildError
from ci.graph.jobserver import TokenPool
from ci.graph.machine import look
from ci.graph.model import Demand, Done, Grant, KilledForMemoryError, Outcome, Task, Usage
from ci.graph.run import run_tasks
from ci.graph.trace import Recorder, chrome_trace, waits_of, write_trace

# Trace Event Format: what every event has, and what each phase has besides.
ALWAYS = {"name", "ph", "ts", "pid", "tid"}
BESIDES = {"X": {"cat", "dur", "args"}, "C": {"args"}, "i": {"s", "args"}, "M": {"args"}}


def checked(trace: dict[str, object]) -> list[dict[str, Any]]:
    """The events of a trace, held against the documented format after a way through JSON."""
    events: list[dict[str, Any]] = json.loads(json.dumps(trace))["traceEvents"]
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        assert event.keys() >= ALWAYS | BESIDES[event["ph"]]
        assert all(isinstance(event[name], int) for name in ("ts", "pid", "tid"))
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            place = (event["pid"], event["tid"])
            lanes.setdefault(place, []).append((event["ts"], event["ts"] + event["dur"]))
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
        if event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")
    for spans in lanes.values():
        for (_, end), (start, _) in zip(sorted(spans), sorted(spans)[1:], strict=False):
            assert end <= start, "two events of a lane overlap"
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert lanes.keys() == named
    processes = {event["pid"] for event in events if event["name"] == "process_name"}
    assert processes >= {event["pid"] for event in events}
    return events


def test_a_real_run_with_waits_a_retry_and_a_failure(tmp_path: Path) -> None:
    attempts: list[int] = []

    def work(grant: Grant) -> Done:
        time.sleep(0.05)
        return Done(usage=Usage(0.05, 0.04, 7))

    def hungry(grant: Grant) -> Done:
        time.sleep(0.02)
        attempts.append(grant.attempt)
        if grant.attempt == 1:
            raise KilledForMemoryError("killed", peak_bytes=99, limit_bytes=0)
        return Done(cached="remote")

    def bad(grant: Grant) -> Done:
        raise LibraryBuildError("no luck")

    tasks = [Task(f"a{n}", "library", work) for n in range(5)]
    tasks += [
        Task("hungry", "library", hungry),
        Task("bad", "wheel", bad),
        Task("late", "import", work, ("bad",)),
    ]
    tasks += [Task("wide", "library", work, demand=Demand(tokens=2))]
    recorder = Recorder()
    with TokenPool.create(tmp_path, 2) as pool:
        outcomes = run_tasks(tasks, pool=pool, machine=look, listener=recorder)
    events = checked(chrome_trace(outcomes.values(), recorder))
    runs = {
        event["name"]: event for event in events if event["ph"] == "X" and event["cat"] != "wait"
    }
    assert runs.keys() == outcomes.keys() - {"late"}
    for name, event in runs.items():
        if name == "hungry":
            continue
        assert event["ts"] == pytest.approx(outcomes[name].started * 1e6, abs=1)
        assert event["ts"] + event["dur"] == pytest.approx(outcomes[name].ended * 1e6, abs=2)
    assert runs["a0"]["args"] == {
        "state": "done",
        "tokens": 1,
        "attempts": 1,
        "cpu_seconds": 0.04,
        "peak_bytes": 7,
        "cache": "none",
    }
    assert runs["bad"]["args"]["error"] == "no luck"
    both = [event for event in events if event["name"] == "hungry" and event["ph"] == "X"]
    assert [event["cat"] for event in both] == ["killed", "library"]
    assert both[0]["args"]["peak_bytes"] == 99
    assert both[1]["args"]["cache"] == "remote"
    waits = [event for event in events if event.get("cat") == "wait"]
    assert {event["args"]["reason"] for event in waits} >= {"tokens"}
    (instant,) = [event for event in events if event["ph"] == "i"]
    assert (instant["name"], instant["args"]) == ("late is not run", {"because": "bad failed"})
    counters = {event["name"] for event in events if event["ph"] == "C"}
    assert counters == {"tokens", "tasks", "memory free (MiB)"}
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names[0] == "the run"
    assert set(names[1:]) == {"library", "wheel", "import"}


def test_lanes_of_many_tasks_do_not_overlap_and_are_few() -> None:
    chance = random.Random(3)
    outcomes = []
    for number in range(300):
        start = chance.uniform(0, 100)
        end = start + chance.uniform(0, 10)
        outcomes.append(Outcome(f"t{number}", "library", "done", max(0, start - 5), start, end))
    events = checked(chrome_trace(outcomes, Recorder(), group=lambda one: one.name[-1]))
    assert len([event for event in events if event["name"] == "process_name"]) == 11
    for pid in range(1, 11):
        spans = [
            one for one in events if one["pid"] == pid and one["ph"] == "X" and one["cat"] != "wait"
        ]
        marks = [(one["ts"], 1) for one in spans] + [(one["ts"] + one["dur"], -1) for one in spans]
        now = most = 0
        for _, step in sorted(marks):
            now += step
            most = max(most, now)
        assert len({one["tid"] for one in spans}) == most


def test_a_wait_is_cut_where_its_reason_changes() -> None:
    recorder = Recorder()
    recorder.waits["a"] = [(1.0, "early"), (2.0, "tokens"), (5.0, "memory"), (9.5, "too late")]
    outcome = Outcome("a", "library", "done", ready=1.5, started=9.0, ended=10.0)
    assert waits_of(outcome, recorder) == (
        (1.5, 2.0, "early"),
        (2.0, 5.0, "tokens"),
        (5.0, 9.0, "memory"),
    )
    recorder.waits["a"] = [(1.5004, "memory")]
    assert waits_of(outcome, recorder) == ((1.5, 9.0, "memory"),)
    assert waits_of(outcome, Recorder()) == ((1.5, 9.0, "tokens"),)
    at_once = Outcome("a", "library", "done", ready=1.0, started=1.0004, ended=2.0)
    assert waits_of(at_once, Recorder()) == ()


def test_a_trace_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "trace.json"
    trace = chrome_trace([Outcome("ü", "library", "done", 0, 0, 1)], Recorder())
    write_trace(path, trace)
    write_trace(path, trace)
    assert json.loads(path.read_text("utf-8")) == trace
    assert list(path.parent.iterdir()) == [path]


def test_an_empty_run_is_a_trace_too() -> None:
    checked(chrome_trace([], Recorder()))
