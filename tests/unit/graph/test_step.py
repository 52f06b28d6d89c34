"""A library's build as a step: built, cached, failed, stopped; on an executor that only records."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.errors import ToolchainError
from ci.graph.key import Key
from ci.graph.model import Grant, KilledForMemoryError
from ci.graph.step import LibraryStep, PlainCompilers, StepPlace, StepResult, run_step
from ci.graph.store import Store
from ci.proc import Command, Completed, Used
from ci.registry import Target, build_steps

Behaviour = Callable[[build_steps.BuildRequest, Path], int]


class RecordingExecutor:
    """Runs nothing: does what ``behaviour`` does with the request, and keeps every command."""

    name = "recording"
    why = "for the test"

    def __init__(self, behaviour: Behaviour, *, timed_out: bool = False) -> None:
        self.behaviour = behaviour
        self.timed_out = timed_out
        self.commands: list[Command] = []

    def run(self, command: Command, log: Path) -> Completed:
        self.commands.append(command)
        log.parent.mkdir(parents=True, exist_ok=True)
        request = build_steps.BuildRequest.read(Path(command.argv[-1]))
        status = self.behaviour(request, log)
        used = Used(cpu_seconds=3.0, peak_bytes=4096)
        return Completed(command, status, "", 0.0, log, timed_out=self.timed_out, used=used)


def outcome(request: build_steps.BuildRequest, values: dict[str, Any]) -> None:
    Path(request.work, "outcome.json").write_text(json.dumps(values))


def succeed(request: build_steps.BuildRequest, log: Path) -> int:
    folder = Path(request.out, "alpha")
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("12345")
    (folder / "data").write_text("123")
    log.write_text("fine\n")
    outcome(
        request,
        {
            "distribution": "alpha-ops",
            "version": "1.2",
            "files": ["alpha/__init__.py"],
            "ignored": {},
        },
    )
    return 0


def fail(request: build_steps.BuildRequest, log: Path) -> int:
    log.write_text("compiling\na.cu(3): error: expected a ';'\nninja: build stopped\n")
    outcome(
        request, {"library": "alpha", "stage": "compile", "problems": ["pip ended with status 1"]}
    )
    return 1


@pytest.fixture
def step(tmp_path: Path, make_library: Any) -> LibraryStep:
    return LibraryStep(
        library=make_library(),
        target=Target("13.0", "3.12", ("9.0",)),
        key=Key.of({"library": "alpha"}),
        request=build_steps.BuildRequest(
            library="alpha",
            source=str(tmp_path / "source"),
            work="",
            out="",
            artifacts=(("alpha", "alpha"),),
            path=("/toolchain/bin",),
            env={"CC": "gcc"},
        ),
        python=Path("/environment/bin/python"),
        history="alpha cu130",
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def grant(tokens: int = 1, attempt: int = 1, jobserver: Path | None = None) -> Grant:
    return Grant(tokens, jobserver, threading.Event(), attempt)


def place_of(executor: RecordingExecutor, store: Store) -> StepPlace:
    return StepPlace(executor, store, builds_of(store))


def builds_of(store: Store) -> Path:
    return store.root.parent / "build"


def log_of(store: Store) -> Path:
    return store.root.parent / "logs" / "alpha.log"


def run(
    step: LibraryStep, executor: RecordingExecutor, store: Store, given: Grant | None = None
) -> StepResult:
    return run_step(step, place_of(executor, store), given or grant(), log_of(store))


def left_behind(store: Store) -> list[Path]:
    return [path for path in builds_of(store).iterdir() if path.is_dir()]


def test_a_build_is_stored_and_described(step: LibraryStep, store: Store) -> None:
    result = run(step, RecordingExecutor(succeed), store)
    assert result.status == "built"
    assert (result.files, result.size, result.compiled) == (2, 8, False)
    assert result.distribution == "alpha-ops 1.2"
    assert result.log == log_of(store)
    assert result.failure is None
    assert (result.usage.cpu_seconds, result.usage.peak_bytes) == (3.0, 4096)
    assert result.entry is not None
    folder = store.materialise(result.entry, store.root.parent / "out")
    assert (folder / "alpha" / "__init__.py").read_text() == "12345"
    assert 0 < result.built_in <= result.seconds
    assert left_behind(store) == []


def test_the_second_run_is_cached_and_runs_nothing(step: LibraryStep, store: Store) -> None:
    built = run(step, RecordingExecutor(succeed), store)
    executor = RecordingExecutor(fail)
    result = run(step, executor, store)
    assert executor.commands == []
    assert (result.status, result.cached, result.log) == ("cached", "local", None)
    assert (result.files, result.size, result.distribution, result.content, result.built_in) == (
        built.files, built.size, built.distribution, built.content, built.built_in,
    )  # fmt: skip


def test_a_damaged_result_is_built_again(step: LibraryStep, store: Store) -> None:
    run(step, RecordingExecutor(succeed), store)
    (blob,) = [
        path
        for path in store.blobs.folder.rglob("*")
        if path.is_file() and path.stat().st_size == 3
    ]
    blob.chmod(0o644)
    blob.write_text("bad")
    executor = RecordingExecutor(succeed)
    assert run(step, executor, store).status == "built"
    assert len(executor.commands) == 1


def test_two_threads_that_want_one_key_build_it_once(step: LibraryStep, store: Store) -> None:
    both = threading.Barrier(2)
    executors = [RecordingExecutor(succeed), RecordingExecutor(succeed)]
    statuses: list[str] = []

    def one(executor: RecordingExecutor) -> None:
        both.wait()
        statuses.append(run(step, executor, store).status)

    threads = [threading.Thread(target=one, args=(executor,)) for executor in executors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == ["built", "cached"]
    assert sum(len(executor.commands) for executor in executors) == 1


def test_the_command_runs_the_build_steps_with_the_cell_s_python_and_nothing_of_the_user(
    step: LibraryStep, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", "secret")
    monkeypatch.setenv("PIP_INDEX_URL", "https://example.org/")
    executor = RecordingExecutor(succeed)
    run(step, executor, store)
    (command,) = executor.commands
    assert command.argv[:2] == ("/environment/bin/python", build_steps.__file__)
    assert Path(command.argv[2]).parent.parent == builds_of(store)
    assert command.timeout
    assert command.env is not None
    assert set(command.env) <= {"LANG", "LC_ALL", "SSL_CERT_FILE", "PATH"}
    assert command.env["PATH"] == "/usr/bin:/bin"


def test_a_build_gets_its_tokens_the_jobserver_and_what_a_compiler_cache_adds(
    step: LibraryStep, store: Store
) -> None:
    requests: list[build_steps.BuildRequest] = []

    def keep(request: build_steps.BuildRequest, log: Path) -> int:
        requests.append(request)
        return succeed(request, log)

    executor = RecordingExecutor(keep)
    cached = PlainCompilers(("/launchers",), {"CC": "/launchers/gcc"}, shown="2 hits, 1 misses")
    place = StepPlace(
        executor,
        store,
        builds_of(store),
        path=("/shims",),
        compilers=lambda *_: nullcontext(cached),
    )
    run_step(step, place, grant(3, jobserver=Path("/run/fifo")), log_of(store))
    (request,), (command,) = requests, executor.commands
    assert request.jobs == 3
    assert request.path == ("/launchers",)
    assert request.env == {"CC": "/launchers/gcc"}
    assert command.env is not None
    assert "--jobserver-auth=fifo:/run/fifo" in command.env["MAKEFLAGS"]


def test_a_step_is_built_at_the_same_place_each_time(step: LibraryStep, store: Store) -> None:
    places = []
    for _ in range(2):
        executor = RecordingExecutor(fail)
        run(step, executor, store)
        places.append(executor.commands[0].cwd)
    assert places[0] == places[1] == builds_of(store) / "alpha-cu130"


def test_two_keys_of_a_step_are_built_side_by_side(step: LibraryStep, store: Store) -> None:
    inner = replace(step, key=Key.of({"library": "another"}))
    places: list[Path] = []

    def nested(request: build_steps.BuildRequest, log: Path) -> int:
        places.append(Path(request.work))
        if len(places) == 1:
            assert run(inner, RecordingExecutor(nested), store).status == "built"
        return succeed(request, log)

    assert run(step, RecordingExecutor(nested), store).status == "built"
    assert places == [builds_of(store) / "alpha-cu130", builds_of(store) / "alpha-cu130-2"]
    assert left_behind(store) == []


def test_what_an_earlier_run_left_in_the_work_folder_is_not_seen(
    step: LibraryStep, store: Store
) -> None:
    folder = builds_of(store) / "alpha-cu130"
    folder.mkdir(parents=True)
    values = {"files": [], "distribution": "old", "version": "0", "ignored": {}}
    (folder / "outcome.json").write_text(json.dumps(values))
    result = run(step, RecordingExecutor(lambda *_: 1), store)
    assert result.status == "failed"


def failure_of(step: LibraryStep, store: Store, executor: RecordingExecutor) -> StepResult:
    result = run(step, executor, store)
    assert result.status == "failed"
    assert result.content == ""
    assert result.log == log_of(store)
    assert result.failure is not None
    assert store.get(step.key) is None
    assert left_behind(store) == []
    return result


def test_a_failure_tells_stage_problems_first_error_and_tail(
    step: LibraryStep, store: Store
) -> None:
    failure = failure_of(step, store, RecordingExecutor(fail)).failure
    assert failure is not None
    assert failure.stage == "compile"
    assert failure.problems == ("pip ended with status 1",)
    assert failure.first_error == "a.cu(3): error: expected a ';'"
    assert failure.tail == ("compiling", "a.cu(3): error: expected a ';'", "ninja: build stopped")


def test_a_failure_is_not_remembered(step: LibraryStep, store: Store) -> None:
    failure_of(step, store, RecordingExecutor(fail))
    assert run(step, RecordingExecutor(succeed), store).status == "built"


def test_a_timeout_is_told_as_one(step: LibraryStep, store: Store) -> None:
    executor = RecordingExecutor(lambda *_: -15, timed_out=True)
    failure = failure_of(step, store, executor).failure
    assert failure is not None
    assert failure.problems == ("stopped after 4 hours",)


def test_a_build_that_was_stopped_is_no_success_though_it_says_so(
    step: LibraryStep, store: Store
) -> None:
    failure_of(step, store, RecordingExecutor(succeed, timed_out=True))


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-9, "killed by signal 9"),
        (-11, "killed by signal 11"),
        (7, "ended with status 7"),
    ],
)
def test_an_end_without_an_outcome_is_told_by_its_status(
    step: LibraryStep, store: Store, status: int, words: str
) -> None:
    failure = failure_of(step, store, RecordingExecutor(lambda *_: status)).failure
    assert failure is not None
    assert failure.problems == (words,)
    assert failure.first_error == ""
    assert failure.tail == ()


def test_status_0_without_an_outcome_is_a_failure(step: LibraryStep, store: Store) -> None:
    failure_of(step, store, RecordingExecutor(lambda *_: 0))


def test_an_outcome_that_was_cut_off_is_a_failure(step: LibraryStep, store: Store) -> None:
    def cut(request: build_steps.BuildRequest, log: Path) -> int:
        Path(request.work, "outcome.json").write_text('{"files": ["alpha/__in')
        return -9

    failure = failure_of(step, store, RecordingExecutor(cut)).failure
    assert failure is not None
    assert "killed by signal 9" in failure.problems[0]


def test_the_exit_status_outranks_a_good_outcome(step: LibraryStep, store: Store) -> None:
    def late(request: build_steps.BuildRequest, log: Path) -> int:
        succeed(request, log)
        return 3

    failure_of(step, store, RecordingExecutor(late))


def test_a_missing_interpreter_is_a_toolchain_error(step: LibraryStep, store: Store) -> None:
    def missing(request: build_steps.BuildRequest, log: Path) -> int:
        raise ToolchainError("cannot start python")

    with pytest.raises(ToolchainError):
        run(step, RecordingExecutor(missing), store)
    assert store.get(step.key) is None
    assert left_behind(store) == []


def out_of_memory(request: build_steps.BuildRequest, log: Path) -> int:
    log.write_text("virtual memory exhausted: Cannot allocate memory\n")
    return 1


def test_a_build_without_memory_is_raised_first_and_a_failure_the_second_time(
    step: LibraryStep, store: Store
) -> None:
    with pytest.raises(KilledForMemoryError) as caught:
        run(step, RecordingExecutor(out_of_memory), store, grant(4))
    assert caught.value.peak_bytes == 4096
    assert "with 4 compilers" in caught.value.message
    again = run(step, RecordingExecutor(out_of_memory), store, grant(1, attempt=2))
    assert again.failure is not None
    assert "ended for memory" in again.failure.problems[0]
    assert left_behind(store) == []


def test_a_wrong_claim_of_independence_fails_the_build(
    step: LibraryStep, store: Store, make_library: Any
) -> None:
    def for_one_python(request: build_steps.BuildRequest, log: Path) -> int:
        succeed(request, log)
        Path(request.out, "alpha", "_c.cpython-312-x86_64-linux-gnu.so").write_bytes(b"no ELF")
        return 0

    claims_nothing = replace(step, library=replace(make_library(), varies_by=frozenset()))
    result = run(claims_nothing, RecordingExecutor(for_one_python), store)
    assert result.failure is not None
    assert result.failure.stage == "claims"
    assert "cpython-312" in " ".join(result.failure.problems)
    assert store.get(step.key) is None
