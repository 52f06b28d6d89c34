"""A run as a Chrome trace, which Perfetto and chrome://tracing open: what ran when, what waited, and why.

A process of the trace is a group of tasks (their kind, or what the caller says), a thread is a lane in which
nothing overlaps: first the lanes of what ran, then those of what waited. Times are microseconds since the
start of the run. Source: "Trace Event Format" of the Chromium project (complete events X, counters C,
instants i, metadata M).
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.graph.model import Grant, KilledForMemoryError, Outcome, Task
from ci.graph.run import Progress, Silence
from ci.graph.schedule import TOKENS

Event = dict[str, object]
GIB = 1024**3
SHORTEST = 0.001  # seconds; a shorter wait is none
COUNTERS = 0  # the process that the counters of the whole run belong to


class Recorder(Silence):
    """Listens to a run and keeps what outcomes do not tell: reasons of waits, attempts that were killed,
    counters, and what each task came after.
    """

    def __init__(self) -> None:
        self.waits: dict[str, list[tuple[float, str]]] = {}
        self.starts: dict[str, list[float]] = {}
        self.killed: dict[str, list[tuple[float, KilledForMemoryError]]] = {}
        self.after: dict[str, tuple[str, ...]] = {}
        self.samples: list[Progress] = []

    def started(self, task: Task, grant: Grant, at: float) -> None:  # noqa: ARG002
        """Keep the start."""
        self.starts.setdefault(task.name, []).append(at)
        self.after[task.name] = task.after

    def waiting(self, name: str, reason: str, at: float) -> None:
        """Keep the reason."""
        self.waits.setdefault(name, []).append((at, reason))

    def retried(self, name: str, error: KilledForMemoryError, at: float) -> None:
        """Keep the end of the attempt."""
        self.killed.setdefault(name, []).append((at, error))

    def progress(self, progress: Progress) -> None:
        """Keep the counters."""
        self.samples.append(progress)


@dataclass(frozen=True)
class Span:
    """Something that took time; ``start`` and ``end`` in seconds of the run."""

    name: str
    category: str
    start: float
    end: float
    args: Mapping[str, object]


def chrome_trace(
    outcomes: Iterable[Outcome],
    recorder: Recorder,
    group: Callable[[Outcome], str] = lambda outcome: outcome.kind,
) -> dict[str, object]:
    """The trace of a run, ready for ``json.dumps``."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda one: (one.started, one.name)):
        groups.setdefault(group(outcome), []).append(outcome)
    events = [_named("process_name", COUNTERS, 0, "the run"), *_counters(recorder.samples)]
    for pid, (name, members) in enumerate(groups.items(), start=1):
        events.append(_named("process_name", pid, 0, name))
        ran = [span for outcome in members for span in _runs(outcome, recorder)]
        waited = [span for outcome in members for span in _waits(outcome, recorder)]
        events += _lanes(ran, pid, "running", 1)
        events += _lanes(waited, pid, "waiting", 1 + len(ran))
        events += [_instant(outcome, pid) for outcome in members if outcome.state == "not run"]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_trace(path: Path, trace: Mapping[str, object]) -> None:
    """Write the trace at once: who reads the file sees all of it. Raises :class:`OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        partial.write_text(json.dumps(trace, separators=(",", ":")) + "\n", "utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def waits_of(outcome: Outcome, recorder: Recorder) -> tuple[tuple[float, float, str], ...]:
    """The task's wait before its last start, cut where its reason changed: start, end, reason."""
    if outcome.waited < SHORTEST or outcome.state == "not run":
        return ()
    known = [(at, why) for at, why in recorder.waits.get(outcome.name, ()) if at < outcome.started]
    before = [why for at, why in known if at <= outcome.ready]
    cuts = [(outcome.ready, before[-1] if before else TOKENS)]
    cuts += [(at, why) for at, why in known if at > outcome.ready]
    if len(cuts) > 1 and cuts[1][0] - cuts[0][0] < SHORTEST:
        del cuts[0]  # the first decision came a moment after it was ready
        cuts[0] = (outcome.ready, cuts[0][1])
    ends = [at for at, _ in cuts[1:]] + [outcome.started]
    return tuple((at, end, why) for (at, why), end in zip(cuts, ends, strict=True))


def _runs(outcome: Outcome, recorder: Recorder) -> list[Span]:
    if outcome.state == "not run":
        return []
    starts = recorder.starts.get(outcome.name, [])
    spans = [
        Span(
            outcome.name,
            "killed",
            start,
            end,
            {"result": "killed for memory", "peak_bytes": error.peak_bytes},
        )
        for start, (end, error) in zip(starts, recorder.killed.get(outcome.name, ()), strict=False)
    ]
    args: dict[str, object] = {
        "state": outcome.state,
        "tokens": outcome.tokens,
        "attempts": outcome.attempts,
        "cpu_seconds": round(outcome.usage.cpu_seconds, 3),
        "peak_bytes": outcome.usage.peak_bytes,
        "cache": outcome.cached or "none",
    }
    if outcome.error is not None:
        args["error"] = outcome.error.message
    return [*spans, Span(outcome.name, outcome.kind, outcome.started, outcome.ended, args)]


def _waits(outcome: Outcome, recorder: Recorder) -> list[Span]:
    return [
        Span(f"{outcome.name} waits", "wait", start, end, {"reason": why})
        for start, end, why in waits_of(outcome, recorder)
    ]


def _lanes(spans: Sequence[Span], pid: int, what: str, first: int) -> list[Event]:
    """The spans as events, each in the first lane that is free; lanes are threads from ``first`` on."""
    ends: list[int] = []
    events: list[Event] = []
    for span in sorted(spans, key=lambda one: (one.start, one.end)):
        start, end = _microseconds(span.start), _microseconds(span.end)
        lane = next((number for number, free in enumerate(ends) if free <= start), len(ends))
        if lane == len(ends):
            ends.append(0)
            events.append(_named("thread_name", pid, first + lane, f"{what} {lane + 1}"))
            events.append(_sorted_as(pid, first + lane))
        ends[lane] = max(end, start)
        events.append(
            {
                "name": span.name,
                "cat": span.category,
                "ph": "X",
                "ts": start,
                "dur": max(0, end - start),
                "pid": pid,
                "tid": first + lane,
                "args": dict(span.args),
            }
        )
    return events


def _counters(samples: Sequence[Progress]) -> list[Event]:
    events: list[Event] = []
    for sample in samples:
        values = {
            "tokens": {"taken": sample.tokens - sample.tokens_free, "free": sample.tokens_free},
            "tasks": {"running": sample.running, "ready": sample.ready},
        }
        if sample.memory_free is not None:
            values["memory free (MiB)"] = {"free": max(0, sample.memory_free) // 2**20}
        ts = _microseconds(sample.at)
        events += [
            {"name": name, "ph": "C", "ts": ts, "pid": COUNTERS, "tid": 0, "args": args}
            for name, args in values.items()
        ]
    return events


def _instant(outcome: Outcome, pid: int) -> Event:
    return {
        "name": f"{outcome.name} is not run",
        "cat": outcome.kind,
        "ph": "i",
        "s": "p",
        "ts": _microseconds(outcome.ended),
        "pid": pid,
        "tid": 0,
        "args": {"because": outcome.because},
    }


def _named(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"name": kind, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": {"name": name}}


def _sorted_as(pid: int, tid: int) -> Event:
    args = {"sort_index": tid}
    return {"name": "thread_sort_index", "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": args}


def _microseconds(seconds: float) -> int:
    return max(0, round(seconds * 1_000_000))
