"""What the farm outside a container and the farm inside tell each other comes through whole or not at all."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci import errors
from ci.environments.lock import Lock
from ci.environments.venv import Environment
from ci.errors import ConfigError, FarmError, InfrastructureError, LibraryBuildError
from ci.executors.model import ContainerOptions
from ci.graph.key import Key
from ci.graph.model import Usage
from ci.graph.step import Failure, StepResult
from ci.pipeline.handover import (
    FileNarrator,
    StageOrder,
    answer,
    ask_outside,
    followed,
    order_of,
    read_order,
    read_state,
    write_order,
    write_state,
)
from ci.pipeline.plan import WheelRequest
from ci.pipeline.state import CellState, RepairedWheel
from ci.sources.override import Override
from ci.sources.resolve import ResolvedSource
from ci.testing.import_suite import ImportResult, LibraryState, TestFailure
from ci.toolchain import Toolchain
from ci.wheel.policy import Exclude

TestFailure.__test__ = False  # type: ignore[attr-defined]  # its name is not that of a test


def source(folder: Path) -> ResolvedSource:
    return ResolvedSource(
        "alpha", "git", "https://example.org/a.git", "f" * 40, "e" * 64, folder, False
    )


def request(tmp_path: Path, **changes: Any) -> WheelRequest:
    return WheelRequest(
        cuda=("13.0",),
        libs=("alpha",),
        declarations=(tmp_path / "x.py",),
        cache_dir=tmp_path / "cache",
        out_dir=tmp_path / "dist",
        **changes,
    )


@pytest.fixture
def plan(tmp_path: Path, make_library: Callable[..., Any]) -> Any:
    cell = SimpleNamespace(
        cuda="13.0", python="3.12", capability_set="hopper", id="cu130-cp312-hopper"
    )
    selection = SimpleNamespace(selected=(make_library("alpha"),), left_out=())
    return SimpleNamespace(
        cell=cell,
        selection=selection,
        overrides={
            "alpha": Override("alpha", "git", "https://me:secret@example.org/a.git", "v1"),
            "other": Override("other", "pypi", "other", "1.0"),
        },
        request=request(
            tmp_path,
            tier="release",
            executor="container",
            jobs=8,
            container=ContainerOptions(cpus=2),
        ),
    )


def full_state(plan: Any, tmp_path: Path) -> CellState:
    (library,) = plan.selection.selected
    key = Key.of({"library": "alpha", "source tree": "0" * 64})
    failure = Failure("compile", ("it broke",), "x.cu:3: error: no", ("|",), ("tail", ""))
    return CellState(
        plan,
        stage_seconds={"sources": 0.25, "wheel": 3.5},
        toolchain=Toolchain(
            cuda="13.0", compiler="nvcc", cuda_home=tmp_path, version="13.0.88", origin="cache",
            origin_text="cache", cc=Path("/usr/bin/gcc"), cxx=Path("/usr/bin/g++"), cxx_version="g++ 12",
            ptxas_version="13.0.88", publishable=True, not_publishable_because="",
            digests=(("bin/nvcc", "a" * 64),), library_path=(tmp_path / "lib",),
        ),
        sources={"alpha": source(tmp_path)},
        environment=Environment(tmp_path / "environment", Lock("pip==25.0 \\\n    --hash=sha256:0\n")),
        results=(
            StepResult(
                library, key, "built", 1.5, tmp_path / "a.log", "c" * 64, 10, 2, True, 1.25, "a", "remote",
                Usage(1.5, 2.5, 4096), "cu130-cp310", "3 hits, 1 misses",
            ),
            StepResult(library, key, "failed", 2.0, None, failure=failure),
        ),
        repaired=RepairedWheel(
            tmp_path / "x.whl", "cp312-cp312-manylinux_2_34_x86_64",
            (Exclude("libcuda.so.*", ("libcuda.so.1",), "the driver"),), ("libx.so (3 MB)",), "",
        ),
        gates=("RECORD", "tag = content"),
        imported=ImportResult(
            passed=3, failed=1, skipped=0, seconds=2.5,
            states=(LibraryState("alpha", "failed", ("why",), True),),
            failures=(TestFailure("test_x[alpha]", "alpha", "boom"),), skip_reasons=(),
            packages=("numpy==2.0",), log=tmp_path / "import.log",
        ),
        not_publishable=("dirty",),
        image="sha256:" + "b" * 64,
    )  # fmt: skip


@pytest.fixture
def order(plan: Any, tmp_path: Path) -> StageOrder:
    found = order_of(plan, tmp_path, tmp_path / "logs", {"alpha": source(tmp_path / "s")}, jobs=2)
    write_order(found)
    return found


def test_an_order_plans_one_cell_on_the_host_executor_there(order: StageOrder) -> None:
    assert read_order(order.path) == order
    inner = order.request
    assert (inner.cuda, inner.python, inner.capability_set) == (("13.0",), ("3.12",), ("hopper",))
    assert (inner.executor, inner.tier, inner.jobs) == ("host", "", 2)
    assert inner.container == ContainerOptions()
    assert inner.libs == ("alpha",)
    assert inner.sources == ("alpha=git:https://example.org/a.git@v1",), "of this cell, no password"
    assert "secret" not in order.path.read_text()
    assert (order.request.cache_dir / "home").is_dir()


def test_a_state_comes_through_as_it_was(plan: Any, order: StageOrder, tmp_path: Path) -> None:
    state = full_state(plan, tmp_path)
    error = LibraryBuildError("alpha did not build", cause="c", next_step="n", details=["1", "2"])
    write_state(state, order, error)
    found, told = read_state(plan, order)
    assert found == state
    assert found.results[0].library is plan.selection.selected[0]
    assert told == error.as_dict()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda document: "{",
        lambda document: "[]",
        lambda document: json.dumps({"state": {}}),
        lambda document: json.dumps({"state": "text", "error": None}),
        lambda document: json.dumps(document | {"state": document["state"] | {"plan": {}}}),
        lambda document: json.dumps(document | {"state": document["state"] | {"gates": 3}}),
        lambda document: json.dumps(
            document | {"state": document["state"] | {"results": [{"library": "stranger"}]}}
        ),
    ],
    ids=[
        "no JSON",
        "a list",
        "no error",
        "a text",
        "a field that is not handed over",
        "a type",
        "a library",
    ],
)
def test_a_state_of_another_shape_is_refused(
    spoil: Callable[[dict[str, Any]], str], plan: Any, order: StageOrder, tmp_path: Path
) -> None:
    write_state(full_state(plan, tmp_path), order, None)
    assert read_state(plan, order)[1] is None
    order.state.write_text(spoil(json.loads(order.state.read_text())))
    with pytest.raises(InfrastructureError, match="left no result") as refused:
        read_state(plan, order)
    assert str(order.logs) in refused.value.next_step


def test_no_state_at_all_is_told(plan: Any, order: StageOrder) -> None:
    with pytest.raises(InfrastructureError, match="left no result"):
        read_state(plan, order)


KINDS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FarmError)
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_of_inside_is_the_same_error_outside(kind: type[FarmError]) -> None:
    error = kind("what", cause="why", next_step="do", details=("a", "b"))
    found = errors.from_dict(error.as_dict())
    assert type(found) is kind
    assert found.as_dict() == error.as_dict()


def test_an_error_of_an_unknown_kind_is_still_an_error() -> None:
    found = errors.from_dict({"kind": "new", "message": "m", "details": "no list"})
    assert (type(found), found.message, found.details, found.exit_code) == (FarmError, "m", (), 1)


class Heard:
    def __init__(self) -> None:
        self.events: list[tuple[str, ...]] = []

    def say(self, text: str) -> None:
        self.events.append(("say", text))

    def begin(self, name: str, text: str) -> None:
        self.events.append(("begin", name, text))

    def end(self, name: str, text: str) -> None:
        self.events.append(("end", name, text))


def test_progress_of_inside_is_heard_outside_in_order_and_junk_is_not(tmp_path: Path) -> None:
    path, heard = tmp_path / "progress.jsonl", Heard()
    path.write_text('["say", "of an earlier stage"]\n')
    told = FileNarrator(path)
    with followed(path, heard):
        told.say("fetching")
        told.begin("alpha", "building")
        with path.open("a") as sink:
            sink.write('nonsense\n{"a": 1}\n["say", 3]\n["run", "rm"]\n["say", "half')
            sink.flush()
            time.sleep(0.5)
            sink.write(' a line"]\n')
        told.end("alpha", "built in 1.0 s")
    assert heard.events == [
        ("say", "fetching"),
        ("begin", "alpha", "building"),
        ("say", "half a line"),
        ("end", "alpha", "built in 1.0 s"),
    ]


def test_a_wrong_user_for_a_stage_is_refused() -> None:
    from ci.pipeline.stages import become

    with pytest.raises(ConfigError, match="not UID:GID"):
        become("me")


class Quiet:
    def say(self, text: str) -> None: ...
    def begin(self, name: str, text: str) -> None: ...
    def end(self, name: str, text: str) -> None: ...


def test_results_that_are_asked_for_inside_are_looked_for_outside(
    plan: Any, tmp_path: Path
) -> None:
    order = order_of(plan, tmp_path, tmp_path / "logs", {}, jobs=2)
    keys = [Key.of({"library": name, "source tree": "0" * 64}) for name in ("alpha", "beta")]
    found: list[Key] = []
    with followed(order.progress, Quiet(), lambda: answer(order, found.append)):
        ask_outside(order, keys, seconds=20)
        assert found == keys  # when it goes on, all were looked for


def test_who_asks_for_nothing_does_not_wait_and_no_answer_is_no_error(
    plan: Any, tmp_path: Path
) -> None:
    order = order_of(plan, tmp_path, tmp_path / "logs", {}, jobs=2)
    ask_outside(order, [], seconds=60)
    assert not order.wanted.exists()
    ask_outside(order, [Key.of({"library": "alpha"})], seconds=0.1)
    assert not order.answered.exists()


@pytest.mark.parametrize("text", ["no JSON", "[1]", '[["a"]]', "{}", '[[["a"]]]'])
def test_what_is_asked_in_another_shape_finds_nothing_and_is_answered(
    text: str, plan: Any, tmp_path: Path
) -> None:
    order = order_of(plan, tmp_path, tmp_path / "logs", {}, jobs=2)
    order.wanted.write_text(text)
    found: list[Key] = []
    answer(order, found.append)
    assert found == []
    assert order.answered.exists()


def test_a_shared_store_is_asked_through_the_farm_outside_and_its_address_stays_there(
    plan: Any, tmp_path: Path
) -> None:
    plan.request = request(tmp_path, remote="s3://user:secret@bucket/farm")
    order = order_of(plan, tmp_path, tmp_path / "logs", {}, jobs=2, jobserver=tmp_path / "fifo")
    assert order.ask
    assert order.request.jobserver == tmp_path / "fifo"
    write_order(order)
    assert "secret" not in order.path.read_text()
    assert read_order(order.path) == order
