"""Which tasks start now, with how many tokens, and why the others wait: decided from values alone.

Two resources are shared: tokens (cores) and memory. Tasks are taken in the order of the longest expected
path from them to the end of the run, over all cells at once, so that what everything waits for comes first.

- A task that needs more than half of the cores or of the memory would wait as long as more urgent ones come,
  because so much is never free by itself: after some starts it goes before all others.
- A task that does not fit keeps its place: the moment is computed at which enough will be free for it, and
  only tasks that end before it, or that fit beside it, may start before (backfilling as in EASY: Lifka, "The
  ANL/IBM SP scheduling system", 1995). Expectations may be wrong, so after a few tasks have passed it, it
  goes before all others, and only what fits beside it may pass.
- At least one task always runs: when nothing runs, the first one starts, whatever it needs.
- While memory is under pressure nothing starts, as long as something runs.

List scheduling keeps Graham's bound: with one token for each task, a run takes at most (2 - 1/m) times the
best possible on m cores (Graham, "Bounds on multiprocessing timing anomalies", 1969).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

GIB = 1024**3
PASSES = 4  # tasks that may start before one that does not fit, on the word of their expected ends
BULKY_PASSES = 12  # tasks that may start before one that needs more than half of everything
LOOK_AHEAD = 64  # ready tasks that are looked at behind those that do not fit
PRESSURE = "memory pressure"
TOKENS = "tokens"

Phase = Literal["waiting", "ready", "running", "done", "failed", "dropped"]


class GraphError(ValueError):
    """The tasks are no graph that can be run: a cycle, or a predecessor that nobody knows. A bug."""


@dataclass(frozen=True)
class Item:
    """A task as the scheduler sees it. ``seconds`` and ``bytes`` are expected, ``cpu_seconds`` too; ``tail``
    is expected work that only the task can make known.
    """

    name: str
    after: tuple[str, ...] = ()
    seconds: float = 1.0
    cpu_seconds: float = 1.0
    bytes: int = 0
    tail: float = 0.0
    tokens: int = 1
    most_tokens: int = 1
    even_after_failure: bool = False


@dataclass(frozen=True)
class Room:
    """What is there now. ``tokens`` are free, of ``total``; ``bytes`` of memory are free beside what running
    tasks will still take (``None``: no limit known); ``pressure`` is true when memory is short.
    """

    tokens: int
    total: int
    bytes: int | None = None
    pressure: bool = False


@dataclass(frozen=True)
class Start:
    """Start this task with that many tokens."""

    name: str
    tokens: int


@dataclass(frozen=True)
class Decision:
    """What to start now; why tasks that were looked at wait, and why all others that are ready do
    (``otherwise``). ``wanted``: tokens that the first waiting task lacks. ``withhold``: keep free tokens from
    the children of running tasks too.
    """

    starts: tuple[Start, ...] = ()
    waits: Mapping[str, str] = field(default_factory=dict)
    otherwise: str = TOKENS
    wanted: int = 0
    withhold: bool = False


@dataclass(frozen=True)
class Ended:
    """What the end of a task means for others: ``ready`` now, and ``dropped`` ones, each with the task whose
    failure is the reason.
    """

    ready: tuple[str, ...] = ()
    dropped: tuple[tuple[str, str], ...] = ()


@dataclass
class _Node:
    item: Item
    order: int
    rank: float = 0.0
    missing: int = 0
    phase: Phase = "waiting"
    before: list[str] = field(default_factory=list)  # the tasks that wait for this one
    passes: int = 0
    tokens: int = 0
    started: float = 0.0
    failed_by: str = ""
    since: int = 0  # starts before it was ready

    @property
    def key(self) -> tuple[bool, float, int]:
        return (self.passes < PASSES, -self.rank, self.order)

    @property
    def over(self) -> bool:
        return self.phase in ("done", "failed", "dropped")


@dataclass
class _Reservation:
    """For the first task that does not fit: when it will, and what is left beside it then."""

    node: _Node
    at: float
    tokens: int
    bytes: float

    def lets_pass(self, node: _Node, now: float) -> bool:
        if self.node.passes < PASSES and now + node.item.seconds <= self.at:
            return True
        return node.item.tokens <= self.tokens and node.item.bytes <= self.bytes

    def passed_by(self, node: _Node, now: float) -> None:
        if now + node.item.seconds > self.at:
            self.tokens -= node.item.tokens
            self.bytes -= node.item.bytes


@dataclass
class _Round:
    """One decision while it is made: what is still free, what starts, what was looked at and does not."""

    tokens: int
    memory: float
    total: int
    now: float
    starts: list[tuple[_Node, int]] = field(default_factory=list)
    skipped: list[tuple[_Node, str]] = field(default_factory=list)
    reservation: _Reservation | None = None

    def judge(self, node: _Node, *, alone: bool) -> tuple[int, str]:
        """The tokens that ``node`` is to have, and why it cannot start; ``alone``: nothing runs."""
        least = min(node.item.tokens, self.total)
        if alone and self.tokens >= 1:
            return min(least, self.tokens), ""
        why = _lacks(node.item, least, self.tokens, self.memory)
        if not why and self.reservation and not self.reservation.lets_pass(node, self.now):
            why = f"after {self.reservation.node.item.name}, which waits longer"
        return least, why

    def take(self, node: _Node, tokens: int) -> None:
        """``node`` starts with ``tokens``, before all that were skipped."""
        if self.reservation:
            self.reservation.passed_by(node, self.now)
        for other, _ in self.skipped:
            other.passes += 1
        self.tokens -= tokens
        self.memory -= node.item.bytes
        self.starts.append((node, tokens))


class Schedule:
    """The tasks that are known, and what has come of them. It reads no clock and asks no machine."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._heap: list[tuple[tuple[bool, float, int], str]] = []
        self._running: dict[str, _Node] = {}
        self._ready = 0
        self._left = 0
        self._starts = 0
        self._unsized: list[_Node] = []
        self._bulky: deque[_Node] = deque()
        self._most_memory = 0.0

    def add(self, items: Iterable[Item]) -> Ended:
        """Make tasks known; one whose name is known already is left out. Returns those that are ready at
        once, and those that cannot run because a predecessor has failed already.

        Raises :class:`GraphError` for a cycle and for a predecessor that is not known.
        """
        new: dict[str, _Node] = {}
        for item in items:
            if item.name not in self._nodes and item.name not in new:
                new[item.name] = _Node(item, len(self._nodes) + len(new))
        for node in new.values():
            for name in node.item.after:
                if name not in new and name not in self._nodes:
                    raise GraphError(f"{node.item.name} is to run after {name}, which nobody knows")
        order = _sorted(new)
        self._nodes.update(new)
        self._left += len(new)
        ready: list[str] = []
        dropped: list[tuple[str, str]] = []
        for name in order:
            self._link(self._nodes[name], ready, dropped)
        for name in reversed(order):
            self._rank(self._nodes[name])
        for name in ready:
            self._push(self._nodes[name])
        return Ended(tuple(ready), tuple(dropped))

    def ended(self, name: str, good: bool) -> Ended:
        """The task ended well, or failed."""
        node = self._running.pop(name)
        node.phase = "done" if good else "failed"
        node.failed_by = "" if good else name
        self._left -= 1
        ready: list[str] = []
        dropped: list[tuple[str, str]] = []
        self._follow(node, ready, dropped)
        for other in ready:
            self._push(self._nodes[other])
        return Ended(tuple(ready), tuple(dropped))

    def again(self, name: str, *, tokens: int, bytes: int) -> None:  # noqa: A002
        """The task is to run once more, with ``tokens`` and expecting ``bytes`` at least."""
        node = self._running.pop(name)
        old = node.item
        node.item = Item(
            name=name,
            after=old.after,
            seconds=old.seconds,
            cpu_seconds=old.cpu_seconds,
            bytes=max(old.bytes, bytes),
            tail=old.tail,
            tokens=tokens,
            most_tokens=tokens,
            even_after_failure=old.even_after_failure,
        )
        node.phase = "ready"
        self._push(node)

    def cancel(self, name: str) -> None:
        """A start that was decided could not be done: somebody else was quicker with the tokens."""
        node = self._running.pop(name)
        node.phase = "ready"
        self._push(node)

    def decide(self, room: Room, now: float) -> Decision:
        """What starts at ``now``. The tasks of the decision count as running from then on."""
        if room.pressure and self._running:
            return Decision(otherwise=PRESSURE, withhold=True)
        memory = math.inf if room.bytes is None else float(room.bytes)
        here = _Round(room.tokens, memory, room.total, now)
        self._age(here)
        for node in self._in_order():
            least, why = here.judge(node, alone=not self._running)
            if why:
                here.skipped.append((node, why))
                here.reservation = here.reservation or self._reserve(node, here)
            else:
                here.take(node, least)
                self._start(node, least, now)
            if here.tokens < 1 or room.pressure or len(here.skipped) >= LOOK_AHEAD:
                break
        for node, _ in here.skipped:
            self._push(node, known=True)
        starts = here.starts if self._ready else self._spread(here.starts, here.tokens)
        return Decision(
            starts=tuple(Start(node.item.name, number) for node, number in starts),
            waits={node.item.name: why for node, why in here.skipped},
            otherwise=PRESSURE if room.pressure else TOKENS,
            wanted=self._wanted(here),
            withhold=room.pressure,
        )

    @property
    def finished(self) -> bool:
        """True when nothing runs and nothing can come any more."""
        return not self._left

    @property
    def running(self) -> tuple[str, ...]:
        """The tasks that run."""
        return tuple(self._running)

    @property
    def ready_count(self) -> int:
        """How many tasks could run."""
        return self._ready

    @property
    def ready(self) -> tuple[str, ...]:
        """The tasks that could run, most urgent first."""
        nodes = [node for node in self._nodes.values() if node.phase == "ready"]
        return tuple(node.item.name for node in sorted(nodes, key=lambda node: node.key))

    def item(self, name: str) -> Item:
        """The task as it is now expected to be."""
        return self._nodes[name].item

    def rank(self, name: str) -> float:
        """Expected seconds from the start of the task to the end of the run, if cores were no limit."""
        return self._nodes[name].rank

    def remaining(self, now: float, cores: int) -> float:
        """Expected seconds until the run ends: the longest path that is left, or the work over the cores."""
        longest, work = 0.0, 0.0
        for node in self._nodes.values():
            if node.over:
                continue
            used = max(0.0, now - node.started) if node.phase == "running" else 0.0
            longest = max(longest, node.rank - min(used, node.item.seconds))
            share = 1.0 - min(1.0, used / node.item.seconds) if node.item.seconds else 1.0
            work += node.item.cpu_seconds * share + node.item.tail
        return max(longest, work / max(1, cores))

    def _link(self, node: _Node, ready: list[str], dropped: list[tuple[str, str]]) -> None:
        for name in dict.fromkeys(node.item.after):
            earlier = self._nodes[name]
            earlier.before.append(node.item.name)
            if not earlier.over:
                node.missing += 1
            elif earlier.phase != "done" and not node.item.even_after_failure:
                node.failed_by = node.failed_by or earlier.failed_by
        if node.failed_by:
            self._drop(node, dropped)
        elif not node.missing:
            self._make_ready(node, ready)

    def _follow(self, node: _Node, ready: list[str], dropped: list[tuple[str, str]]) -> None:
        """Tell the tasks that waited for ``node``, and those of a task that is dropped for it."""
        stack = [node]
        while stack:
            earlier = stack.pop()
            for name in earlier.before:
                later = self._nodes[name]
                if later.over:
                    continue
                later.missing -= 1
                if earlier.phase != "done" and not later.item.even_after_failure:
                    later.failed_by = earlier.failed_by
                    self._drop(later, dropped)
                    stack.append(later)
                elif not later.missing:
                    self._make_ready(later, ready)

    def _drop(self, node: _Node, dropped: list[tuple[str, str]]) -> None:
        node.phase = "dropped"
        self._left -= 1
        dropped.append((node.item.name, node.failed_by))

    def _make_ready(self, node: _Node, ready: list[str]) -> None:
        node.phase, node.since = "ready", self._starts
        self._unsized.append(node)
        ready.append(node.item.name)

    def _rank(self, node: _Node) -> None:
        """The rank of ``node`` from those after it, and of those before it where that makes theirs longer."""
        stack = [node]
        while stack:
            here = stack.pop()
            behind = max((self._nodes[name].rank for name in here.before), default=0.0)
            rank = here.item.seconds + max(here.item.tail, behind)
            if rank <= here.rank:
                continue
            here.rank = rank
            if here.phase == "ready" and here is not node:
                self._push(here, known=True)
            stack += [
                earlier for name in here.item.after if not (earlier := self._nodes[name]).over
            ]

    def _push(self, node: _Node, known: bool = False) -> None:
        if not known:
            self._ready += 1
        heapq.heappush(self._heap, (node.key, node.item.name))

    def _in_order(self) -> Iterator[_Node]:
        """The ready tasks, most urgent first; each is taken out of the heap. Stale entries are dropped."""
        seen: set[str] = set()
        while self._heap:
            key, name = heapq.heappop(self._heap)
            node = self._nodes[name]
            if node.phase == "ready" and key == node.key and name not in seen:
                seen.add(name)
                yield node

    def _age(self, here: _Round) -> None:
        """Let the one of the bulky tasks that has waited longest go first, when its time has come."""
        in_use = sum(node.item.bytes for node in self._running.values())
        self._most_memory = max(self._most_memory, here.memory + in_use)
        for node in self._unsized:
            if 2 * node.item.tokens > here.total > 1 or 2 * node.item.bytes > self._most_memory:
                self._bulky.append(node)
        self._unsized.clear()
        while self._bulky and self._bulky[0].phase != "ready":
            self._bulky.popleft()
        if self._bulky and self._starts - self._bulky[0].since >= BULKY_PASSES:
            node = self._bulky.popleft()
            node.passes = max(node.passes, PASSES)
            self._push(node, known=True)

    def _start(self, node: _Node, tokens: int, now: float) -> None:
        self._starts += 1
        node.phase, node.tokens, node.started = "running", tokens, now
        self._ready -= 1
        self._running[node.item.name] = node

    def _reserve(self, node: _Node, here: _Round) -> _Reservation:
        least = min(node.item.tokens, here.total)
        tokens, memory = here.tokens, here.memory
        ends = sorted(
            (max(here.now, other.started + other.item.seconds), other.order, other)
            for other in self._running.values()
        )
        for number, (at, _, other) in enumerate(ends, start=1):
            tokens += other.tokens
            memory += other.item.bytes
            if number == len(ends):
                tokens = here.total  # clients of the jobserver have given theirs back too
            if tokens >= least and memory >= node.item.bytes:
                return _Reservation(node, at, tokens - least, memory - node.item.bytes)
        return _Reservation(node, math.inf, 0, -1.0)

    def _wanted(self, here: _Round) -> int:
        """Tokens that the most urgent task lacks of those that wait for tokens."""
        for node, why in here.skipped:
            if why == TOKENS:
                return min(node.item.tokens, here.total) - here.tokens
        return 1 if self._ready > len(here.skipped) and here.tokens < 1 else 0

    def _spread(self, starts: list[tuple[_Node, int]], spare: int) -> list[tuple[_Node, int]]:
        """Give spare tokens to tasks that can use them, always to the one that would take longest.

        As many are kept as there are tasks that will be ready when a running one ends, and that are more
        urgent: they would have to wait for the end of one that took all.
        """
        numbers = {node.item.name: number for node, number in starts}
        able = [node for node, _ in starts if node.item.most_tokens > numbers[node.item.name]]
        while able:
            node = max(able, key=lambda one: one.item.cpu_seconds / numbers[one.item.name])
            if spare - self._coming(node.rank) < 1:
                able.remove(node)
                continue
            numbers[node.item.name] += 1
            node.tokens += 1
            spare -= 1
            if numbers[node.item.name] >= node.item.most_tokens:
                able.remove(node)
        return [(node, numbers[node.item.name]) for node, _ in starts]

    def _coming(self, rank: float) -> int:
        """Tasks more urgent than ``rank`` for which only running tasks are waited, beyond the tokens that
        those will give back.
        """
        soon = {
            name
            for node in self._running.values()
            for name in node.before
            if (later := self._nodes[name]).phase == "waiting"
            and later.rank > rank
            and all(self._nodes[other].phase in ("running", "done") for other in later.item.after)
        }
        giving = {
            other
            for name in soon
            for other in self._nodes[name].item.after
            if other in self._running
        }
        return max(0, len(soon) - len(giving))


def _lacks(item: Item, least: int, tokens: int, memory: float) -> str:
    if item.bytes > memory:
        return f"memory: needs {item.bytes / GIB:.1f} GiB, {max(0.0, memory) / GIB:.1f} GiB free"
    return TOKENS if least > tokens else ""


def _sorted(new: Mapping[str, _Node]) -> list[str]:
    """The names of new tasks, each after those of them that it waits for."""
    missing = {name: {one for one in node.item.after if one in new} for name, node in new.items()}
    behind: dict[str, list[str]] = {}
    for name, ones in missing.items():
        for one in ones:
            behind.setdefault(one, []).append(name)
    order = [name for name, ones in missing.items() if not ones]
    for name in order:
        for later in behind.get(name, ()):
            missing[later].discard(name)
            if not missing[later]:
                order.append(later)
    if len(order) < len(new):
        stuck = sorted(set(new) - set(order))
        raise GraphError(f"tasks wait for each other: {', '.join(stuck)}")
    return order
