"""A library build as a value, and what came of it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ci.executors.base import Executor
from ci.graph.key import Key
from ci.graph.store import Entry, Store
from ci.proc import Command, scrubbed
from ci.registry import EcosystemLibrary, build_steps

Status = Literal["built", "cached", "failed"]
STEP_TIMEOUT_SECONDS = 4 * 3600.0
CONTEXT_LINES = 3


@dataclass(frozen=True)
class LibraryStep:
    """The build of one library: the request for ``build_steps.py``, the interpreter that runs it, and
    its key. ``log`` and the request's folders are places, not inputs.
    """

    library: EcosystemLibrary
    key: Key
    request: build_steps.BuildRequest
    python: Path
    log: Path

    @property
    def command(self) -> Command:
        """The command that an executor runs, with an environment that says nothing of the user."""
        return Command(
            argv=(
                str(self.python),
                str(Path(build_steps.__file__)),
                str(Path(self.request.work, "request.json")),
            ),
            cwd=Path(self.request.work),
            env=scrubbed(os.environ, ("LANG", "LC_ALL", "SSL_CERT_FILE"), PATH="/usr/bin:/bin"),
            timeout=STEP_TIMEOUT_SECONDS,
            label=f"build {self.library.name}",
        )


@dataclass(frozen=True)
class Failure:
    """Why a library's build failed: the stage, every problem, the first compiler error, the
    lines that follow it in the log (the compiler's own excerpt), and the log's tail.
    """

    stage: str
    problems: tuple[str, ...]
    first_error: str
    context: tuple[str, ...]
    tail: tuple[str, ...]


@dataclass(frozen=True)
class StepResult:
    """What came of a step. ``folder`` holds the library's targets, ``None`` when it failed.

    ``seconds`` is the time of this run (about 0 when cached), ``built_in`` that of the build itself.
    """

    library: EcosystemLibrary
    key: Key
    status: Status
    seconds: float
    log: Path | None
    folder: Path | None = None
    size: int = 0
    files: int = 0
    built_in: float = 0.0
    distribution: str = ""
    failure: Failure | None = None


def run_step(step: LibraryStep, executor: Executor, store: Store) -> StepResult:
    """The stored result of the step's key, else its build on ``executor``, stored."""
    started = time.monotonic()
    entry = store.get(step.key)
    if entry is not None:
        return _from_store(step, store, entry, "cached", started)
    work = Path(step.request.work)
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(step.request.out, ignore_errors=True)
    work.mkdir(parents=True)
    step.request.write(work / "request.json")
    done = executor.run(step.command, step.log)
    seconds = time.monotonic() - started
    outcome = _outcome(work)
    if not done.ok or not outcome or "files" not in outcome:
        failure = _failure(step, outcome, done.returncode, done.timed_out)
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(step.request.out, ignore_errors=True)
        return StepResult(step.library, step.key, "failed", seconds, step.log, failure=failure)
    meta = {
        "library": step.library.name,
        "seconds": seconds,
        "distribution": f"{outcome['distribution']} {outcome['version']}",
        "ignored": outcome["ignored"],
    }
    stored = store.put(step.key, Path(step.request.out), meta)
    shutil.rmtree(work, ignore_errors=True)
    return _from_store(step, store, stored, "built", started)


def _from_store(
    step: LibraryStep, store: Store, entry: Entry, status: Status, started: float
) -> StepResult:
    shutil.rmtree(step.request.out, ignore_errors=True)
    folder = store.materialise(entry, Path(step.request.out))
    return StepResult(
        library=step.library,
        key=step.key,
        status=status,
        seconds=time.monotonic() - started,
        log=step.log if status == "built" else None,
        folder=folder,
        size=entry.size,
        files=len(entry.files),
        built_in=float(str(entry.meta.get("seconds", 0.0))),
        distribution=str(entry.meta.get("distribution", "")),
    )


def _outcome(work: Path) -> dict[str, object]:
    """What the build wrote at its end; nothing when it was killed before, or while it wrote."""
    try:
        values: dict[str, object] = json.loads((work / "outcome.json").read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return values


def _failure(
    step: LibraryStep, outcome: Mapping[str, object], returncode: int, timed_out: bool
) -> Failure:
    text = step.log.read_text("utf-8", "replace") if step.log.exists() else ""
    reported = outcome.get("problems")
    problems = tuple(str(item) for item in reported) if isinstance(reported, list) else ()
    if timed_out:
        problems += (f"stopped after {STEP_TIMEOUT_SECONDS / 3600:.0f} hours",)
    elif returncode < 0:
        problems += (f"killed by signal {-returncode}" + " (out of memory?)" * (returncode == -9),)
    first_error = build_steps.first_compiler_error(text)
    return Failure(
        stage=str(outcome.get("stage", "compile")),
        problems=problems or (f"ended with status {returncode}",),
        first_error=first_error,
        context=_following(text, first_error),
        tail=tuple(text.splitlines()[-25:]),
    )


def _following(log: str, line: str) -> tuple[str, ...]:
    """The lines after the first occurrence of ``line``: where compilers show the source."""
    lines = [text.strip() for text in log.splitlines()]
    start = lines.index(line) + 1 if line and line in lines else len(lines)
    return tuple(text.rstrip() for text in log.splitlines()[start : start + CONTEXT_LINES])
