"""A library build as a value, and what came of it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from filelock import FileLock, Timeout

from ci.executors.base import Executor
from ci.graph import machine
from ci.graph.claims import check_claims
from ci.graph.jobserver import makeflags
from ci.graph.key import Key
from ci.graph.model import Cached, Grant, KilledForMemoryError, Usage
from ci.graph.shims import nvcc_flags
from ci.graph.store import Entry, Store
from ci.proc import Command, Completed, Used, scrubbed
from ci.registry import EcosystemLibrary, Target, build_steps

Status = Literal["built", "cached", "failed"]
STEP_TIMEOUT_SECONDS = 4 * 3600.0
CONTEXT_LINES = 3
ORPHAN_SECONDS = 10.0
"""How long the build of a farm that was killed may take to end with it."""


@dataclass(frozen=True)
class LibraryStep:
    """The build of one library: the request for ``build_steps.py``, the interpreter that runs it, its key,
    and the name that its use of time and memory is remembered by.

    ``request`` names no work folder and no jobs yet: those are given when it runs, and are no inputs.
    ``compiler`` is ``nvcc``, ``clang``, ``host`` or empty; ``nvcc`` its version where it is that, and
    ``device_targets`` the number of capabilities that one of its calls compiles for.
    """

    library: EcosystemLibrary
    target: Target
    key: Key
    request: build_steps.BuildRequest
    python: Path
    history: str
    compiler: str = ""
    nvcc: tuple[int, int] = (0, 0)
    device_targets: int = 1


class CachedCompilers(Protocol):
    """The compilers of one build, behind a compiler cache or not: variables that go over the build's own,
    the folders of its PATH, and when the build has ended what a server of the cache used, which compilers may
    be children of, and what came of their calls.
    """

    environment: Mapping[str, str]
    path: tuple[str, ...]
    used: Used | None

    @property
    def shown(self) -> str:
        """Hits, misses and what was not cacheable, for a report."""


Compilers = Callable[
    [LibraryStep, Path, build_steps.BuildRequest], AbstractContextManager[CachedCompilers]
]


@dataclass
class PlainCompilers:
    """Compilers without a cache; ``path`` are the folders of the build's PATH."""

    path: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    used: Used | None = None
    shown: str = ""


def plain_compilers(
    _step: LibraryStep, _work: Path, request: build_steps.BuildRequest
) -> AbstractContextManager[CachedCompilers]:
    """The compilers as they are."""
    return nullcontext(PlainCompilers(request.path))


@dataclass(frozen=True)
class StepPlace:
    """Where and with what steps run: nothing here is an input of a key.

    ``builds`` is the folder of the work folders. ``path`` comes first on PATH (the jobserver's shims),
    ``compilers`` puts a compiler cache in front of the compilers. ``waiting`` is told of a step that another
    run is building.
    """

    executor: Executor
    store: Store
    builds: Path
    path: tuple[str, ...] = ()
    compilers: Compilers = plain_compilers
    waiting: Callable[[LibraryStep], None] = lambda _step: None


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
    """What came of a step. ``content`` is the hash of its files, empty when it failed.

    ``seconds`` is the time of this run (about 0 when cached), ``built_in`` that of the build itself;
    ``cached`` says where a result that was not built came from. ``shared_with`` names the cell of this run
    that it was built for first. ``compiler_cache`` says what came of its compilers' calls. ``entry`` is its
    place in the store, in the process that asked for it.
    """

    library: EcosystemLibrary
    key: Key
    status: Status
    seconds: float
    log: Path | None
    content: str = ""
    size: int = 0
    files: int = 0
    compiled: bool = False
    built_in: float = 0.0
    distribution: str = ""
    cached: Cached = ""
    usage: Usage = field(default_factory=Usage)
    shared_with: str = ""
    compiler_cache: str = ""
    failure: Failure | None = None
    entry: Entry | None = field(default=None, compare=False, repr=False)

    @classmethod
    def from_entry(cls, step: LibraryStep, entry: Entry, seconds: float) -> StepResult:
        """The result of a step that is kept."""
        return cls(
            library=step.library,
            key=step.key,
            status="cached",
            seconds=seconds,
            log=None,
            content=entry.content,
            size=sum(item.size for item in entry.files),
            files=len(entry.files),
            compiled=any(item.path.endswith(".so") for item in entry.files),
            built_in=float(str(entry.meta.get("seconds", 0.0))),
            distribution=str(entry.meta.get("distribution", "")),
            cached=entry.origin,
            entry=entry,
        )


def run_step(step: LibraryStep, place: StepPlace, grant: Grant, log: Path) -> StepResult:
    """The stored result of the step's key, else its build, stored. One run builds it, others wait for that.

    Raises :class:`~ci.graph.model.KilledForMemoryError` when there was no memory left, at the first attempt;
    after that it is a failure as any other.
    """
    started = time.monotonic()
    entry = place.store.get(step.key)
    if entry is None:
        with place.store.building(step.key, lambda: place.waiting(step), grant.stop):
            entry = place.store.get(step.key)
            if entry is None:
                return _build(step, place, grant, log)
    return StepResult.from_entry(step, entry, time.monotonic() - started)


def _build(step: LibraryStep, place: StepPlace, grant: Grant, log: Path) -> StepResult:
    started = time.monotonic()
    with _work_folder(place.builds, step.history) as work:
        request = _placed(step, place, grant, work)
        kills = machine.oom_kills()
        with place.compilers(step, work, request) as compilers:
            request = _behind(compilers, request, step)
            request.write(work / "request.json")
            done = place.executor.run(_command(step, request, grant), log)
        seconds = time.monotonic() - started
        usage = _usage(seconds, done.used, compilers.used)
        outcome, out = _outcome(work), Path(request.out)
        failure = _failure(step, outcome, done, grant, log, kills)
        if failure is None:
            failure = _wrong_claims(step, out, Path(request.source))
        if failure is not None:
            return StepResult(
                step.library, step.key, "failed", seconds, log, usage=usage, failure=failure
            )
        meta = {
            "step": step.history,
            "library": step.library.name,
            "seconds": seconds,
            "distribution": f"{outcome['distribution']} {outcome['version']}",
            "ignored": outcome["ignored"],
        }
        entry = place.store.put(step.key, out, meta)
    return replace(
        StepResult.from_entry(step, entry, seconds),
        status="built",
        log=log,
        cached="",
        usage=usage,
        compiler_cache=compilers.shown,
    )


def _usage(seconds: float, *parts: Used | None) -> Usage:
    """Of the build, and of the server that ran its compilers. The peaks may have been at different moments:
    their sum is the most that it can have been.
    """
    measured = [part for part in parts if part is not None]
    cpu = sum(part.cpu_seconds for part in measured)
    return Usage(seconds, cpu, sum(part.peak_bytes for part in measured))


def _behind(
    compilers: CachedCompilers, request: build_steps.BuildRequest, step: LibraryStep
) -> build_steps.BuildRequest:
    """The request with a compiler cache in front of its compilers; what a declaration sets stays."""
    added = {
        name: text
        for name, text in compilers.environment.items()
        if name not in step.library.extra_env
    }
    return replace(request, env={**request.env, **added}, path=compilers.path)


@contextmanager
def _work_folder(builds: Path, name: str) -> Iterator[Path]:
    """An empty folder with the same path each time the step is built: paths get into what compiler caches
    compare. Where another run builds it now (with another key), one beside it. Gone afterwards.

    The build itself holds a second lock (``.building``): that of a farm that was killed ends a moment later.
    """
    base = builds / "".join(letter if letter.isalnum() else "-" for letter in name)
    base.parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = base if number == 1 else base.with_name(f"{base.name}-{number}")
        lock = _free(folder)
        if lock is not None:
            break
        number += 1
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def _free(folder: Path) -> FileLock | None:
    """The lock of the folder, taken; ``None`` when another run, or what it left behind, works there."""
    lock, build = FileLock(f"{folder}.lock"), FileLock(f"{folder}.building")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    try:
        with build.acquire(timeout=ORPHAN_SECONDS):
            return lock
    except Timeout:
        lock.release()
        return None


def _placed(
    step: LibraryStep, place: StepPlace, grant: Grant, work: Path
) -> build_steps.BuildRequest:
    """The request with its folders, its jobs and what goes in front of its compilers."""
    flags = nvcc_flags(step.nvcc, grant.jobserver, step.device_targets)
    added = {"NVCC_PREPEND_FLAGS": " ".join(flags)} if flags else {}
    return replace(
        step.request,
        work=str(work),
        out=str(work / "artifacts"),
        env={**step.request.env, **added},
        path=(*place.path, *step.request.path),
        jobs=grant.tokens,
    )


def _command(step: LibraryStep, request: build_steps.BuildRequest, grant: Grant) -> Command:
    """The command that an executor runs, with an environment that says nothing of the user."""
    env = scrubbed(os.environ, ("LANG", "LC_ALL", "SSL_CERT_FILE"), PATH="/usr/bin:/bin")
    if grant.jobserver is not None:
        env["MAKEFLAGS"] = makeflags(grant.jobserver, grant.tokens)
    program = str(Path(build_steps.__file__))
    return Command(
        argv=(str(step.python), program, str(Path(request.work, "request.json"))),
        cwd=Path(request.work),
        env=env,
        timeout=STEP_TIMEOUT_SECONDS,
        label=f"build {step.library.name}",
    )


def _wrong_claims(step: LibraryStep, out: Path, source: Path) -> Failure | None:
    """What the declaration claims not to depend on, against what was built."""
    files = {path.relative_to(out).as_posix(): path for path in out.rglob("*") if path.is_file()}
    found = [
        item
        for item in check_claims(step.library, step.target, files, source=source)
        if item.level == "error"
    ]
    if not found:
        return None
    lines = tuple(f"{item.place}: {item.why}; {item.mend} ({item.rule})" for item in found)
    return Failure("claims", lines, "", (), ())


def _outcome(work: Path) -> dict[str, object]:
    """What the build wrote at its end; nothing when it was killed before, or while it wrote."""
    try:
        values: dict[str, object] = json.loads((work / "outcome.json").read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return values


def _failure(
    step: LibraryStep,
    outcome: Mapping[str, object],
    done: Completed,
    grant: Grant,
    log: Path,
    kills: int | None,
) -> Failure | None:
    """Why the build failed, ``None`` when it did not."""
    if done.ok and "files" in outcome:
        return None
    text = log.read_text("utf-8", "replace") if log.exists() else ""
    reported = outcome.get("problems")
    problems = tuple(str(item) for item in reported) if isinstance(reported, list) else ()
    memory = machine.killed_for_memory(done.returncode, text, kills, machine.oom_kills())
    if memory:
        problems = (_out_of_memory(step, done, grant, memory), *problems)
    if done.timed_out:
        problems += (f"stopped after {STEP_TIMEOUT_SECONDS / 3600:.0f} hours",)
    elif done.returncode < 0 and not memory:
        problems += (f"killed by signal {-done.returncode}",)
    first_error = build_steps.first_compiler_error(text)
    return Failure(
        stage=str(outcome.get("stage", "compile")),
        problems=problems or (f"ended with status {done.returncode}",),
        first_error=first_error,
        context=_following(text, first_error),
        tail=tuple(text.splitlines()[-25:]),
    )


def _out_of_memory(step: LibraryStep, done: Completed, grant: Grant, reason: str) -> str:
    """Raise at the first attempt, so that it is tried again with fewer compilers; else say what to do."""
    peak, limit = done.used.peak_bytes if done.used else 0, machine.look().limit
    there = f", of {limit.value / 2**30:.2f} GiB ({limit.source})" if limit is not None else ""
    text = (
        f"{step.library.name} was ended for memory ({reason}): peak {peak / 2**30:.2f} GiB "
        f"with {grant.tokens} compilers{there}"
    )
    if grant.attempt == 1:
        raise KilledForMemoryError(
            text,
            peak_bytes=peak,
            limit_bytes=int(limit.value) if limit is not None else 0,
            cause="too many compilers at once, or one that needs more than there is",
            next_step="--jobs 1, or a machine (--memory for containers) with more memory",
        )
    return f"{text}; also with one compiler at a time. Next: a machine or a --memory with more"


def _following(log: str, line: str) -> tuple[str, ...]:
    """The lines after the first occurrence of ``line``: where compilers show the source."""
    lines = [text.strip() for text in log.splitlines()]
    start = lines.index(line) + 1 if line and line in lines else len(lines)
    return tuple(text.rstrip() for text in log.splitlines()[start : start + CONTEXT_LINES])
