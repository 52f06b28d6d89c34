"""A library's build as a step: built, cached, failed, stopped; on an executor that only records."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.errors import ToolchainError
from ci.graph.key import Key
from ci.graph.step import LibraryStep, StepResult, run_step
from ci.graph.store import Store
from ci.proc import Command, Completed
from ci.registry import build_steps

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
        return Completed(command, status, "", 0.0, log, timed_out=self.timed_out)


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
        key=Key.of({"library": "alpha"}),
        request=build_steps.BuildRequest(
            library="alpha",
            source=str(tmp_path / "source"),
            work=str(tmp_path / "work" / "alpha"),
            out=str(tmp_path / "out" / "alpha"),
            artifacts=(("alpha", "alpha"),),
        ),
        python=Path("/environment/bin/python"),
        log=tmp_path / "logs" / "alpha.log",
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def left_behind(step: LibraryStep) -> list[str]:
    return [path for path in (step.request.work, step.request.out) if Path(path).exists()]


def test_a_build_is_stored_and_described(step: LibraryStep, store: Store) -> None:
    executor = RecordingExecutor(succeed)
    result = run_step(step, executor, store)
    assert result.status == "built"
    assert (result.files, result.size) == (2, 8)
    assert result.distribution == "alpha-ops 1.2"
    assert result.log == step.log
    assert result.failure is None
    assert result.folder is not None
    assert result.folder == Path(step.request.out)
    assert (result.folder / "alpha" / "__init__.py").read_text() == "12345"
    assert 0 < result.built_in <= result.seconds
    assert left_behind(step) == [step.request.out]


def test_the_second_run_is_cached_and_runs_nothing(step: LibraryStep, store: Store) -> None:
    built = run_step(step, RecordingExecutor(succeed), store)
    executor = RecordingExecutor(fail)
    result = run_step(step, executor, store)
    assert executor.commands == []
    assert result.status == "cached"
    assert result.log is None
    assert (result.files, result.size, result.distribution, result.folder, result.built_in) == (
        built.files, built.size, built.distribution, built.folder, built.built_in,
    )  # fmt: skip


def test_a_damaged_result_is_built_again(step: LibraryStep, store: Store) -> None:
    built = run_step(step, RecordingExecutor(succeed), store)
    assert built.folder is not None
    (blob,) = [
        path
        for path in store.blobs.folder.rglob("*")
        if path.is_file() and path.stat().st_size == 3
    ]
    blob.chmod(0o644)
    blob.write_text("bad")
    executor = RecordingExecutor(succeed)
    assert run_step(step, executor, store).status == "built"
    assert len(executor.commands) == 1


def test_the_command_runs_the_build_steps_with_the_cell_s_python_and_nothing_of_the_user(
    step: LibraryStep, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", "secret")
    monkeypatch.setenv("PIP_INDEX_URL", "https://example.org/")
    executor = RecordingExecutor(succeed)
    run_step(step, executor, store)
    (command,) = executor.commands
    assert command.argv == (
        "/environment/bin/python",
        build_steps.__file__,
        str(Path(step.request.work, "request.json")),
    )
    assert command.timeout
    assert command.env is not None
    assert set(command.env) <= {"LANG", "LC_ALL", "SSL_CERT_FILE", "PATH"}
    assert command.env["PATH"] == "/usr/bin:/bin"


def test_what_an_earlier_run_left_in_the_work_folder_is_not_seen(
    step: LibraryStep, store: Store
) -> None:
    Path(step.request.work).mkdir(parents=True)
    outcome(step.request, {"files": [], "distribution": "old", "version": "0", "ignored": {}})
    result = run_step(step, RecordingExecutor(lambda *_: 1), store)
    assert result.status == "failed"


def failure_of(step: LibraryStep, store: Store, executor: RecordingExecutor) -> StepResult:
    result = run_step(step, executor, store)
    assert result.status == "failed"
    assert result.folder is None
    assert result.log == step.log
    assert result.failure is not None
    assert store.get(step.key) is None
    assert left_behind(step) == []
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
    assert run_step(step, RecordingExecutor(succeed), store).status == "built"


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
        (-9, "killed by signal 9 (out of memory?)"),
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
        run_step(step, RecordingExecutor(missing), store)
    assert store.get(step.key) is None
    shutil.rmtree(step.request.work, ignore_errors=True)
