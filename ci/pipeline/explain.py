"""Why a step would run, or not: its key against what is kept, and against the key that it had last.

Nothing is built. The compiler and the locks are got where they are not there yet, since a key names them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ci.errors import ConfigError
from ci.graph.key import Key, changed_lines
from ci.graph.step import StepResult
from ci.pipeline.identity import not_publishable
from ci.pipeline.kept import SUITE, WHEEL, kept_wheel_sha256
from ci.pipeline.keys import import_key, wheel_key
from ci.pipeline.libraries import import_lock, library_steps, obtain_environment
from ci.pipeline.plan import CellPlan, WheelRequest, check_toolchains, plan_cells
from ci.pipeline.run import Run, opened
from ci.pipeline.state import CellState
from ci.pipeline.wheel_stages import interpreter_identity
from ci.report.progress import Narrator
from ci.sources.resolve import resolve_sources


@dataclass(frozen=True)
class Change:
    """An input of a key that differs from the last time: old and new value, or the lines that changed."""

    name: str
    old: str
    new: str


@dataclass(frozen=True)
class Explanation:
    """What a run would do with one step, and why. ``key`` is empty while it cannot be known."""

    step: str
    would: str
    why: str
    key: str = ""
    changes: tuple[Change, ...] = ()
    seconds: float = 0.0


def explain(request: WheelRequest, step: str, narrator: Narrator) -> tuple[Explanation, ...]:
    """What a run of ``request`` would do with the steps that ``step`` names (all, when it is empty).

    ``step`` is ``CELL/LIBRARY``, ``CELL/wheel``, ``CELL/import``, or a part of it. Raises
    :class:`~ci.errors.ConfigError` when it names none, and what a run raises before it builds.
    """
    plans = plan_cells(replace(request, executor="host"))
    check_toolchains(plans)
    with opened(request, narrator) as run:
        found = tuple(item for plan in plans for item in _cell(plan, run))
    chosen = tuple(item for item in found if _named(step, item.step))
    if not chosen:
        raise ConfigError(
            f"no step is called {step!r}",
            cause=f"there are: {', '.join(item.step for item in found)}",
            next_step="python -m ci explain, with the same options, tells of all",
        )
    return chosen


def _named(wanted: str, step: str) -> bool:
    cell, _, last = step.partition("/")
    return wanted in ("", step, cell, last)


def _cell(plan: CellPlan, run: Run) -> Iterator[Explanation]:
    state = CellState(plan)
    state.sources = resolve_sources(
        plan.selection.selected, plan.overrides, plan.request.cache_dir, run.narrator.say
    )
    obtain_environment(state, run)
    results = []
    for step in library_steps(state):
        name = f"{plan.cell.id}/{step.library.name}"
        entry = run.store.get(step.key)
        if entry is not None:
            results.append(StepResult.from_entry(step, entry, 0.0))
        yield _explained(name, step.key, step.history, entry is not None, run)
    state.results = tuple(results)
    missing = len(plan.selection.selected) - len(results)
    yield from _wheel_and_suite(state, run, missing)


def _wheel_and_suite(state: CellState, run: Run, missing: int) -> Iterator[Explanation]:
    cell = state.plan.cell.id
    wheel, suite = f"{cell}/wheel", f"{cell}/import"
    if missing:
        why = f"{missing} of its libraries would be built before; what they yield is an input"
        yield Explanation(wheel, "depends", why)
        yield Explanation(suite, "depends", "the wheel is an input")
        return
    state.not_publishable = not_publishable(state)
    key = wheel_key(state)
    sha256 = kept_wheel_sha256(run.store, key)
    yield _explained(wheel, key, f"{WHEEL} {cell}", bool(sha256), run)
    if not sha256:
        yield Explanation(suite, "depends", "the wheel is an input, and would be made before")
        return
    tested = import_key(sha256, import_lock(state.plan), interpreter_identity(state.plan))
    if state.plan.request.rerun_import:
        yield Explanation(suite, "run", "--rerun-import asks for it", tested.digest)
        return
    yield _explained(suite, tested, f"{SUITE} {cell}", run.store.get(tested) is not None, run)


def _explained(name: str, key: Key, history: str, kept: bool, run: Run) -> Explanation:
    expected = run.history.expected(history)
    seconds = expected.seconds if expected is not None else 0.0
    if kept:
        return Explanation(name, "take", "its result is kept under this key", key.digest)
    last = run.history.last_inputs(history)
    if last is None:
        return Explanation(name, "run", "it was never built here", key.digest, seconds=seconds)
    changes = tuple(_change(item, *values) for item, values in Key.of(last).difference(key).items())
    if not changes:
        why = "nothing changed, but its result is not kept any more: evicted, removed, or not good"
        return Explanation(name, "run", why, key.digest, seconds=seconds)
    names = ", ".join(change.name for change in changes)
    return Explanation(name, "run", f"changed: {names}", key.digest, changes, seconds)


def _change(name: str, old: str | None, new: str | None) -> Change:
    went, came = changed_lines(old, new)
    return Change(
        name, went if old is not None else "no input", came if new is not None else "no input"
    )
