"""The schedule under a fake clock: bounds from the literature, limits, order, and nobody waits for ever."""

from __future__ import annotations

import heapq
import math
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.graph.schedule import PRESSURE, GraphError, Item, Room, Schedule

GIB = 1024**3


@dataclass
class Simulated:
    """What happened: start and end by name, and the most that was in use at once."""

    span: float = 0.0
    started: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    most_tokens: int = 0
    most_bytes: int = 0


def simulate(
    items: Iterable[Item],
    cores: int,
    memory: int | None = None,
    *,
    seconds: Callable[[Item, int], float] = lambda item, tokens: item.seconds,
    fails: frozenset[str] = frozenset(),
    more: Callable[[str], tuple[Item, ...]] = lambda name: (),
) -> Simulated:
    """Run the schedule against a clock that jumps from one end to the next."""
    schedule, seen, now = Schedule(), Simulated(), 0.0
    seen.dropped.update(schedule.add(items).dropped)
    running: list[tuple[float, str]] = []
    while not schedule.finished:
        held = sum(seen.tokens[name] for _, name in running)
        used = sum(schedule.item(name).bytes for _, name in running)
        free = None if memory is None else memory - used
        for start in schedule.decide(Room(cores - held, cores, free), now).starts:
            item = schedule.item(start.name)
            seen.started[start.name], seen.tokens[start.name] = now, start.tokens
            heapq.heappush(running, (now + seconds(item, start.tokens), start.name))
        seen.most_tokens = max(seen.most_tokens, sum(seen.tokens[name] for _, name in running))
        seen.most_bytes = max(
            seen.most_bytes, sum(schedule.item(name).bytes for _, name in running)
        )
        assert running, "something is left, and nothing runs"
        now, name = heapq.heappop(running)
        seen.ended[name] = now
        seen.dropped.update(schedule.ended(name, name not in fails).dropped)
        seen.dropped.update(schedule.add(more(name)).dropped)
    seen.span = now
    return seen


def critical(items: Iterable[Item]) -> float:
    """The longest path, by plain recursion over the declaration order."""
    ends: dict[str, float] = {}
    for item in items:
        ends[item.name] = item.seconds + max((ends[name] for name in item.after), default=0.0)
    return max(ends.values(), default=0.0)


def lower_bound(items: list[Item], cores: int) -> float:
    return max(critical(items), sum(item.seconds * item.tokens for item in items) / cores)


@st.composite
def graphs(draw: st.DrawFn) -> list[Item]:
    items: list[Item] = []
    for number in range(draw(st.integers(1, 24))):
        after = draw(st.sets(st.integers(0, number - 1), max_size=4)) if number else set()
        items.append(
            Item(
                f"t{number}",
                tuple(f"t{one}" for one in sorted(after)),
                seconds=draw(st.floats(0.01, 100.0)),
                bytes=draw(st.integers(0, 8)) * GIB,
                tokens=draw(st.integers(1, 6)),
                most_tokens=draw(st.integers(1, 8)),
            )
        )
    return items


def single(items: list[Item]) -> list[Item]:
    return [replace(item, tokens=1, most_tokens=1, bytes=0) for item in items]


@settings(max_examples=300, deadline=None)
@given(graphs(), st.integers(1, 8))
def test_graham_s_bound_holds_always(items: list[Item], cores: int) -> None:
    """(2 - 1/m) times the optimum, and the optimum is not below the lower bound."""
    items = single(items)
    seen = simulate(items, cores)
    assert seen.span <= (2 - 1 / cores) * lower_bound(items, cores) * (1 + 1e-9)


@settings(max_examples=300, deadline=None)
@given(graphs(), st.integers(1, 8), st.integers(1, 16), st.randoms())
def test_everything_runs_in_order_and_within_the_limits(
    items: list[Item], cores: int, memory: int, chance: random.Random
) -> None:
    factor = {item.name: chance.uniform(0.1, 10) for item in items}  # expectations are wrong
    seen = simulate(
        items, cores, memory * GIB, seconds=lambda item, _: item.seconds * factor[item.name]
    )
    assert seen.ended.keys() == {item.name for item in items}
    assert seen.most_tokens <= cores
    largest = max(item.bytes for item in items)
    assert seen.most_bytes <= max(memory * GIB, largest)  # more only for one that runs alone
    for item in items:
        least = min(item.tokens, cores)
        assert least <= seen.tokens[item.name] <= max(least, item.most_tokens)
        assert all(seen.started[item.name] >= seen.ended[name] for name in item.after)


def typical(cells: int, libraries: int, chance: random.Random) -> list[Item]:
    """Cells with libraries of mixed cost, a wheel and a suite for each; some libraries are shared."""
    items: list[Item] = []
    for cell in range(cells):
        items.append(Item(f"prepare {cell}", (), chance.uniform(2, 10)))
        names = []
        for library in range(libraries):
            name = f"build {library} {cell if library % 3 else 'shared'}"
            names.append(name)
            if name not in {item.name for item in items}:
                seconds = chance.choice([5, 20, 60, 300]) * chance.uniform(0.7, 1.3)
                items.append(Item(name, (f"prepare {cell}",), seconds))
        items.append(Item(f"wheel {cell}", tuple(names), 15))
        items.append(Item(f"import {cell}", (f"wheel {cell}",), 30))
    return items


@pytest.mark.parametrize("cores", [2, 4, 8, 16])
@pytest.mark.parametrize("seed", range(8))
def test_typical_runs_are_nearly_optimal(cores: int, seed: int) -> None:
    """Against what no schedule can beat: the path; the builds over all cores and then one wheel with its
    suite; and two of the cores + 1 longest tasks on one core.
    """
    chance = random.Random(seed)
    cells = chance.choice([1, 3, 12])
    items = typical(cells, libraries=8, chance=chance)
    longest = sorted((item.seconds for item in items), reverse=True)
    before = sum(longest) - cells * 45
    bound = max(critical(items), before / cores + 45, sum(longest[cores - 1 : cores + 1]))
    assert simulate(items, cores).span <= 1.15 * bound


def test_the_longest_path_goes_first_over_all_cells() -> None:
    short = [Item(f"short {n}", (), 10) for n in range(6)]
    long = [Item("long a", (), 10), Item("long b", ("long a",), 50), Item("tail", (), 5, tail=90)]
    seen = simulate([*short, *long], 2)
    assert [name for name, at in seen.started.items() if at == 0] == ["tail", "long a"]
    assert seen.span == 65


def test_work_that_is_made_known_later_makes_those_before_it_more_urgent() -> None:
    schedule = Schedule()
    schedule.add([Item("a", (), 5), Item("b", (), 6)])
    assert schedule.ready == ("b", "a")
    schedule.add([Item("after a", ("a",), 100)])
    assert schedule.ready == ("a", "b")
    assert schedule.rank("a") == 105
    decision = schedule.decide(Room(1, 1), 0.0)
    assert [start.name for start in decision.starts] == ["a"]
    assert decision.wanted == 1


def test_a_task_that_does_not_fit_lets_others_pass_but_not_for_ever() -> None:
    """Memory for 10; the large one needs 9, small ones of 4 come and come, each as long as the last."""
    count = 0

    def more(name: str) -> tuple[Item, ...]:
        nonlocal count
        count += 1
        return (Item(f"small {count}", (), 10, bytes=4 * GIB, tail=500),) if count < 60 else ()

    first = [
        Item("base", (), 1000, bytes=2 * GIB, tail=2000),
        Item("small", (), 10, bytes=4 * GIB, tail=900),
    ]
    large = Item("large", (), 10, bytes=8 * GIB)
    seen = simulate([*first, large], 8, 10 * GIB, more=more)
    passed = [name for name, at in seen.started.items() if at < seen.started["large"]]
    assert 2 < len(passed) < 20
    assert seen.started["large"] < seen.ended["base"]


def test_a_task_for_many_cores_is_not_starved_by_those_for_one() -> None:
    count = 0

    def more(name: str) -> tuple[Item, ...]:
        nonlocal count
        count += 1
        return (Item(f"one {count}", (), 10 + count % 3, tail=500),) if count < 80 else ()

    first = [Item(f"first {n}", (), 10 + n, tail=900) for n in range(4)]
    seen = simulate([*first, Item("wide", (), 10, tokens=4)], 4, more=more)
    passed = [name for name, at in seen.started.items() if at < seen.started["wide"]]
    assert len(passed) < 20


def test_a_task_larger_than_the_machine_runs_alone() -> None:
    items = [Item(f"small {n}", (), 10, bytes=GIB) for n in range(6)]
    seen = simulate([*items, Item("huge", (), 10, bytes=64 * GIB)], 4, 8 * GIB)
    others = [(seen.started[item.name], seen.ended[item.name]) for item in items]
    start, end = seen.started["huge"], seen.ended["huge"]
    assert all(there <= start or here >= end for here, there in others)


def test_a_short_task_may_pass_one_that_waits_for_memory_and_a_long_one_may_not() -> None:
    schedule = Schedule()
    schedule.add([Item("running", (), 100, bytes=6 * GIB, tail=900)])
    schedule.decide(Room(4, 4, 10 * GIB), 0.0)
    schedule.add(
        [
            Item("large", (), 50, bytes=8 * GIB, tail=700),
            Item("long", (), 500, bytes=3 * GIB),
            Item("short", (), 20, bytes=2 * GIB),
            Item("beside", (), 400, bytes=GIB),
        ]
    )
    decision = schedule.decide(Room(3, 4, 4 * GIB), 50.0)
    assert {start.name for start in decision.starts} == {"beside", "short"}
    assert decision.waits["large"] == "memory: needs 8.0 GiB, 4.0 GiB free"
    assert decision.waits["long"] == "after large, which waits longer"


def test_under_pressure_nothing_more_starts_while_something_runs() -> None:
    schedule = Schedule()
    schedule.add([Item("a"), Item("b"), Item("c")])
    first = schedule.decide(Room(4, 4, GIB, pressure=True), 0.0)
    assert [start.name for start in first.starts] == ["a"]  # one always runs
    second = schedule.decide(Room(3, 4, GIB, pressure=True), 0.0)
    assert (second.starts, second.otherwise, second.withhold) == ((), PRESSURE, True)
    third = schedule.decide(Room(3, 4, GIB), 0.0)
    assert [start.name for start in third.starts] == ["b", "c"]


def test_spare_tokens_go_where_they_shorten_most() -> None:
    schedule = Schedule()
    schedule.add(
        [
            Item("big", (), 90, cpu_seconds=90, most_tokens=16),
            Item("small", (), 30, cpu_seconds=30, most_tokens=16),
            Item("narrow", (), 100, cpu_seconds=100, most_tokens=2),
        ]
    )
    given_tokens = {one.name: one.tokens for one in schedule.decide(Room(8, 8), 0.0).starts}
    assert given_tokens == {"narrow": 2, "big": 4, "small": 2}


def test_spare_tokens_are_kept_for_a_more_urgent_task_that_comes_soon() -> None:
    schedule = Schedule()
    schedule.add(
        [
            Item("prepare", (), 1),
            *(Item(f"urgent {n}", ("prepare",), 500) for n in range(3)),
            Item("greedy", (), 100, cpu_seconds=100, most_tokens=16),
        ]
    )
    given_tokens = {one.name: one.tokens for one in schedule.decide(Room(8, 8), 0.0).starts}
    assert given_tokens == {"prepare": 1, "greedy": 5}  # 2 kept, and prepare gives one back


def test_what_follows_a_failure_is_dropped_with_its_reason() -> None:
    items = [
        Item("a"),
        Item("b", ("a",)),
        Item("c", ("b",)),
        Item("other"),
        Item("report", ("c", "other"), even_after_failure=True),
    ]
    seen = simulate(items, 2, fails=frozenset({"a"}))
    assert seen.dropped == {"b": "a", "c": "a"}
    assert seen.started["report"] >= seen.ended["other"]
    later = Schedule()
    later.add([Item("a")])
    later.decide(Room(1, 1), 0.0)
    later.ended("a", good=False)
    assert later.add([Item("b", ("a",)), Item("c", ("b",))]).dropped == (("b", "a"), ("c", "a"))
    assert later.add([Item("report", ("b",), even_after_failure=True)]).ready == ("report",)


def test_tasks_are_known_once() -> None:
    schedule = Schedule()
    assert schedule.add([Item("a"), Item("a", seconds=9)]).ready == ("a",)
    assert schedule.add([Item("a")]).ready == ()
    assert schedule.item("a").seconds == 1.0


def test_a_graph_that_cannot_run_is_refused_whole() -> None:
    schedule = Schedule()
    with pytest.raises(GraphError, match="b is to run after nobody, which nobody knows"):
        schedule.add([Item("a"), Item("b", ("nobody",))])
    with pytest.raises(GraphError, match=r"wait for each other: x, y, z$"):
        schedule.add([Item("x", ("z",)), Item("y", ("x",)), Item("z", ("y",)), Item("free")])
    with pytest.raises(GraphError, match="wait for each other: self"):
        schedule.add([Item("self", ("self",))])
    assert schedule.finished


def test_a_task_is_run_again_with_fewer_tokens_and_more_memory() -> None:
    schedule = Schedule()
    schedule.add([Item("a", tokens=4, most_tokens=8, bytes=GIB)])
    schedule.decide(Room(8, 8), 0.0)
    schedule.again("a", tokens=1, bytes=5 * GIB)
    assert not schedule.finished
    (start,) = schedule.decide(Room(8, 8, 2 * GIB), 1.0).starts
    assert (start.tokens, schedule.item("a").bytes) == (1, 5 * GIB)


def test_what_could_not_start_is_offered_again() -> None:
    schedule = Schedule()
    schedule.add([Item("a")])
    schedule.decide(Room(1, 1), 0.0)
    schedule.cancel("a")
    assert [start.name for start in schedule.decide(Room(1, 1), 0.0).starts] == ["a"]


def test_the_time_that_is_left() -> None:
    schedule = Schedule()
    schedule.add(
        [
            Item("a", (), 10, 10),
            Item("b", ("a",), 20, 20),
            *(Item(f"c{n}", (), 10, 10) for n in range(9)),
        ]
    )
    assert schedule.remaining(0.0, cores=100) == 30  # the path
    assert schedule.remaining(0.0, cores=2) == 60  # the work: 120 over 2
    schedule.decide(Room(1, 1), 0.0)
    assert schedule.remaining(4.0, cores=100) == 26
    assert schedule.remaining(400.0, cores=100) == 20
    assert Schedule().remaining(0.0, 1) == 0


def test_ten_thousand_tasks_take_about_a_second() -> None:
    chance = random.Random(5)
    items = [
        Item(
            f"t{n}",
            tuple(f"t{chance.randrange(n)}" for _ in range(min(n, 3))),
            chance.uniform(1, 9),
        )
        for n in range(5000)
    ] + [Item(f"free {n}", (), chance.uniform(1, 9), bytes=n % 7 * GIB) for n in range(5000)]
    started = time.process_time()
    seen = simulate(items, 64, 96 * GIB)
    spent = time.process_time() - started
    assert len(seen.ended) == 10_000
    assert math.isfinite(seen.span)
    assert spent < 10.0  # about 1 s on an idle machine
