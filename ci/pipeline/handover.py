"""What the farm outside a container and the farm inside tell each other: an order, progress, a state.

All are JSON files in the cell's work folder. What comes out was written beside the build code of libraries,
so it is data of a checked shape, never code, and no path in it is followed outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import cattrs

from ci.errors import FarmError, InfrastructureError
from ci.executors.model import ContainerOptions
from ci.graph.key import Key
from ci.graph.store import Entry
from ci.pipeline.inside import home_of
from ci.pipeline.plan import CellPlan, WheelRequest
from ci.pipeline.state import CellState
from ci.registry import EcosystemLibrary
from ci.report.progress import Narrator
from ci.sources.resolve import ResolvedSource

_POLL_SECONDS = 0.2
ASK_SECONDS = 900.0
"""How long the farm inside waits for the one outside to download results."""


@dataclass(frozen=True)
class StageOrder:
    """One cell, for the farm inside: a request that plans just this cell on the host executor there.

    ``ask``: the farm outside has a shared store, whose credentials do not come in; it is asked for results.
    """

    request: WheelRequest
    cell: str
    work: Path
    logs: Path
    sources: Mapping[str, ResolvedSource]
    ask: bool = False

    @property
    def path(self) -> Path:
        """Where the order is."""
        return self.work / "order.json"

    @property
    def progress(self) -> Path:
        """Where the farm inside says what it does, a JSON value per line."""
        return self.work / "progress.jsonl"

    @property
    def state(self) -> Path:
        """Where it leaves what the cell has reached."""
        return self.work / "state.json"

    @property
    def wanted(self) -> Path:
        """Where the farm inside says which results it looks for: the named inputs of their keys."""
        return self.work / "wanted.json"

    @property
    def answered(self) -> Path:
        """Is there when the farm outside has looked for them."""
        return self.work / "answered"


def order_of(
    plan: CellPlan,
    work: Path,
    logs: Path,
    sources: Mapping[str, ResolvedSource],
    jobs: int,
    jobserver: Path | None = None,
) -> StageOrder:
    """The order of a cell. Sources were fetched outside, with the user's credentials: inside only their kind
    counts, so neither a user nor a password of an address, nor sources of other cells, are in the order.
    """
    cell = plan.cell
    selected = {library.name for library in plan.selection.selected}
    overrides = [item for name, item in plan.overrides.items() if name in selected]
    request = replace(
        plan.request,
        cuda=(cell.cuda,),
        python=(cell.python,),
        capability_set=(cell.capability_set,) if cell.capability_set else (),
        tier="",
        sources=tuple(f"{item.library}={item.public_origin}" for item in overrides),
        declarations=tuple(path.absolute() for path in plan.request.declarations),
        executor="host",
        container=ContainerOptions(),
        jobs=jobs,
        jobserver=jobserver,
        remote="",
    )
    return StageOrder(request, cell.id, work, logs, sources, ask=bool(plan.request.remote))


def write_order(order: StageOrder) -> None:
    """Write the order into the cell's work folder, and make what the farm inside expects to be there."""
    home_of(order.request.cache_dir).mkdir(parents=True, exist_ok=True)
    _write(order.path, converter().unstructure(order))


def read_order(path: Path) -> StageOrder:
    """The order that the farm outside wrote."""
    return converter().structure(json.loads(path.read_text("utf-8")), StageOrder)


def write_state(state: CellState, order: StageOrder, error: FarmError | None) -> None:
    """Leave what the cell has reached, and the error that ended the stage."""
    converting = converter()
    values = {
        field.name: converting.unstructure(getattr(state, field.name))
        for field in fields(state)
        if field.name != "plan"
    }
    _write(order.state, {"state": values, "error": error.as_dict() if error else None})


def read_state(plan: CellPlan, order: StageOrder) -> tuple[CellState, Mapping[str, object] | None]:
    """What the farm inside left of the cell of ``plan``, and its error.

    Raises :class:`~ci.errors.InfrastructureError` when that is not there or has another shape.
    """
    libraries = {library.name: library for library in plan.selection.selected}
    converting, hints = converter(libraries), get_type_hints(CellState)
    try:
        document = json.loads(order.state.read_text("utf-8"))
        values = {
            field.name: converting.structure(document["state"].pop(field.name), hints[field.name])
            for field in fields(CellState)
            if field.name != "plan"
        }
        if document["state"]:
            raise ValueError(f"unknown fields: {', '.join(document['state'])}")
        return CellState(plan, **values), document["error"]
    except (
        OSError, ValueError, LookupError, TypeError, AttributeError, cattrs.BaseValidationError,
    ) as error:  # fmt: skip
        raise InfrastructureError(
            f"the farm in the container of {order.cell} left no result",
            cause=f"it was ended before its end, or cannot write {order.state}: {error}",
            next_step=f"read the logs in {order.logs}",
        ) from error


def converter(libraries: Mapping[str, EcosystemLibrary] | None = None) -> cattrs.Converter:
    """Between the farm's values and JSON; ``libraries`` are those that a value may name."""
    known = libraries or {}
    made = cattrs.Converter(forbid_extra_keys=True)
    made.register_unstructure_hook(Path, str)
    made.register_structure_hook(Path, lambda value, _: Path(str(value)))
    made.register_unstructure_hook(EcosystemLibrary, lambda library: library.name)
    made.register_structure_hook(EcosystemLibrary, lambda name, _: known[name])
    made.register_unstructure_hook(
        Entry, lambda _entry: None
    )  # a place in the store is not handed over
    return made


def _write(path: Path, document: object) -> None:
    """Whole or not at all."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(document), "utf-8")
    scratch.replace(path)


class FileNarrator:
    """Says what the farm inside does to the one outside."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def _event(self, kind: str, *texts: str) -> None:
        with self._lock, self._path.open("a", encoding="utf-8") as sink:
            sink.write(json.dumps([kind, *texts]) + "\n")

    def want(self) -> None:
        """Results are asked for (:func:`ask_outside`)."""
        self._event("want")

    def say(self, text: str) -> None:
        """Something happened."""
        self._event("say", text)

    def begin(self, name: str, text: str) -> None:
        """Work called ``name`` has begun."""
        self._event("begin", name, text)

    def end(self, name: str, text: str) -> None:
        """Work called ``name`` has ended."""
        self._event("end", name, text)


def ask_outside(order: StageOrder, keys: Sequence[Key], seconds: float = ASK_SECONDS) -> None:
    """Let the farm outside look for results in its shared store, and wait until it has: what it found is in
    the store of the mounted cache then. No answer in time is no error: they are built.
    """
    if not keys:
        return
    order.answered.unlink(missing_ok=True)
    _write(order.wanted, [list(key.inputs) for key in keys])
    FileNarrator(order.progress).want()
    deadline = time.monotonic() + seconds
    while not order.answered.exists() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS / 2)


def answer(order: StageOrder, find: Callable[[Key], object]) -> None:
    """Look for what the farm inside asks for, with ``find``, and say so. A file of another shape asks for
    nothing.
    """
    with contextlib.suppress(OSError, ValueError, TypeError):
        for inputs in json.loads(order.wanted.read_text("utf-8")):
            find(Key.of({str(name): str(value) for name, value in inputs}))
    order.answered.touch()


@contextmanager
def followed(
    path: Path, narrator: Narrator, wanted: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Repeat to ``narrator`` what :class:`FileNarrator` writes to ``path`` while the block runs; ``wanted``
    is called when the farm inside asks for results.
    """
    path.touch()
    start, over = path.stat().st_size, threading.Event()
    thread = threading.Thread(
        target=_follow, args=(path, start, narrator, over, wanted), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _follow(
    path: Path, start: int, narrator: Narrator, over: threading.Event, wanted: Callable[[], None]
) -> None:
    with path.open(encoding="utf-8", errors="replace") as source:
        source.seek(start)
        rest = ""
        while True:
            last = over.wait(_POLL_SECONDS)
            *lines, rest = (rest + source.read()).split("\n")
            for line in lines:
                _repeat(line, narrator, wanted)
            if last:
                return


def _repeat(line: str, narrator: Narrator, wanted: Callable[[], None]) -> None:
    """Say one event; a line that is none is left out, since anything may write into that file."""
    try:
        event: Any = json.loads(line)
    except ValueError:
        return
    if not isinstance(event, list) or not all(isinstance(item, str) for item in event):
        return
    match event:
        case ["say", text]:
            narrator.say(text)
        case ["begin", name, text]:
            narrator.begin(name, text)
        case ["end", name, text]:
            narrator.end(name, text)
        case ["want"]:
            wanted()
