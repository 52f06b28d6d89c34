"""A run on a console: who waited, who ran, what decided how long it took; and how long it will still take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ci.graph.model import KilledForMemoryError, Outcome
from ci.graph.run import Progress, Silence
from ci.graph.schedule import TOKENS
from ci.report.progress import Narrator

GIB = 1024**3
WAITED, RAN, FAILED, FROM_CACHE = "·", "█", "▒", "▪"
EVERY_SECONDS = 30.0
WIDEST_NAME = 40
LEAST_BAR = 10


@dataclass(frozen=True)
class Totals:
    """A run in numbers. ``path`` is the chain of tasks that took longest, ``path_seconds`` its time;
    ``cpu_seconds`` what all tasks used; ``used`` that over what the cores had, between 0 and 1.
    """

    wall_seconds: float
    path: tuple[str, ...]
    path_seconds: float
    cpu_seconds: float
    cores: int
    used: float

    @property
    def line(self) -> str:
        """One line for the report."""
        return (
            f"took {duration(self.wall_seconds)}; critical path {duration(self.path_seconds)}"
            f" ({' > '.join(self.path) or 'nothing ran'}); work {duration(self.cpu_seconds)} on"
            f" {self.cores} cores; {100 * self.used:.0f} % of them used"
        )


def totals(outcomes: Iterable[Outcome], after: Mapping[str, Sequence[str]], cores: int) -> Totals:
    """The numbers of a run. ``after`` maps a task to those that it waited for."""
    ran = {outcome.name: outcome for outcome in outcomes if outcome.state != "not run"}
    best: dict[str, tuple[float, str]] = {}
    # In the order of their starts, every task comes behind those that it waited for.
    for name, outcome in sorted(ran.items(), key=lambda item: (item[1].started, item[1].ended)):
        before = max(
            ((best[one][0], one) for one in after.get(name, ()) if one in best), default=(0.0, "")
        )
        best[name] = (before[0] + outcome.ended - outcome.started, before[1])
    last = max(best, key=lambda name: best[name][0], default="")
    path: list[str] = []
    here = last
    while here:
        path.append(here)
        here = best[here][1]
    wall = max((outcome.ended for outcome in ran.values()), default=0.0)
    cpu = sum(outcome.usage.cpu_seconds for outcome in ran.values())
    return Totals(
        wall_seconds=wall,
        path=tuple(reversed(path)),
        path_seconds=best[last][0] if last else 0.0,
        cpu_seconds=cpu,
        cores=cores,
        used=min(1.0, cpu / (cores * wall)) if wall else 0.0,
    )


def timeline(outcomes: Iterable[Outcome], width: int = 100) -> tuple[str, ...]:
    """One line for each task that ran, in the order of their starts, at most ``width`` characters wide.

    ``·`` waited, ``█`` ran, ``▒`` ran and failed, ``▪`` came from the cache.
    """
    ran = sorted(
        (outcome for outcome in outcomes if outcome.state != "not run"),
        key=lambda one: (one.started, one.ended, one.name),
    )
    if not ran:
        return ()
    names = min(WIDEST_NAME, max(len(outcome.name) for outcome in ran))
    times = [duration(outcome.ended - outcome.started) for outcome in ran]
    right = max(map(len, times))
    columns = max(LEAST_BAR, width - names - right - 2)
    wall = max(outcome.ended for outcome in ran) or 1.0
    return tuple(
        f"{_shortened(outcome.name, names):<{names}} {_bar(outcome, columns, wall)} {took:>{right}}"
        for outcome, took in zip(ran, times, strict=True)
    )


def duration(seconds: float) -> str:
    """Seconds in the unit that a reader would choose: 0.4 s, 42 s, 3 min 05 s, 2 h 07 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


class ProgressLines(Silence):
    """Tells a narrator how far a run is, how long it will still take, and what holds it up.

    A line at most every ``every`` seconds; none for a run that is over before. What is held up for memory is
    told once for each task.
    """

    def __init__(
        self,
        narrator: Narrator,
        every: float = EVERY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._narrator = narrator
        self._every = every
        self._clock = clock
        self._told = clock()
        self._held_up: set[str] = set()

    def waiting(self, name: str, reason: str, at: float) -> None:  # noqa: ARG002
        """Tell of memory; that a task waits for a core is nothing to tell."""
        if reason != TOKENS and not reason.startswith("after ") and name not in self._held_up:
            self._held_up.add(name)
            self._narrator.say(f"{name} waits: {reason}")

    def retried(self, name: str, error: KilledForMemoryError, at: float) -> None:  # noqa: ARG002
        """Tell of it at once."""
        self._narrator.say(
            f"{name} was killed for memory at {error.peak_bytes / GIB:.1f} GiB; once more with 1 job,"
            " when there is that much"
        )

    def progress(self, progress: Progress) -> None:
        """Tell how far the run is, when it is time."""
        now = self._clock()
        if now - self._told < self._every or progress.done == progress.total:
            return
        self._told = now
        self._narrator.say(remaining(progress))


def remaining(progress: Progress) -> str:
    """How far a run is and how long it will take, and how much of that is a guess."""
    left = progress.total - progress.done
    text = f"{progress.done} of {progress.total} done, {progress.running} running"
    text += f"; about {duration(progress.eta)} left"
    if progress.guessed:
        text += f" ({progress.guessed} of {left} never timed before)"
    return text


def _bar(outcome: Outcome, columns: int, wall: float) -> str:
    ready, started, ended = (
        round(at / wall * columns) for at in (outcome.ready, outcome.started, outcome.ended)
    )
    start = min(started, columns - 1)
    length = max(1, ended - started)
    mark = FROM_CACHE if outcome.cached else RAN if outcome.state == "done" else FAILED
    waited = max(0, start - ready)
    return f"{' ' * (start - waited)}{WAITED * waited}{mark * length}".ljust(columns)[:columns]


def _shortened(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"
