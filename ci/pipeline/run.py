"""What the tasks of one run share: store, history, tokens, compiler cache, and what was made once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ci.compiler_cache.choice import choose, probe
from ci.compiler_cache.model import Compilers, NoCompilerCache
from ci.compiler_cache.session import Session
from ci.errors import FarmError
from ci.executors.base import HostExecutor
from ci.graph.history import History, guess
from ci.graph.jobserver import TokenPool
from ci.graph.key import Key
from ci.graph.machine import look
from ci.graph.model import Expected, Outcome, Task, Usage
from ci.graph.remote import open_remote
from ci.graph.run import Several, run_tasks
from ci.graph.shims import write_shims
from ci.graph.step import CachedCompilers, LibraryStep, StepResult, plain_compilers
from ci.graph.store import Store
from ci.graph.trace import Recorder
from ci.graph.usage import Meter
from ci.pipeline.plan import WheelRequest
from ci.pipeline.work_folders import sweep, work_folder
from ci.proc import Command, Completed
from ci.registry import build_steps
from ci.report.progress import Narrator
from ci.report.timeline import ProgressLines

HISTORY = "history"
"""The folder of the cache with what earlier runs used."""
Value = TypeVar("Value")


class Once:
    """Values that several tasks need and one of them makes: the others wait for it, and get its error too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[object, threading.Lock] = {}
        self._made: dict[object, Any] = {}
        self._failed: dict[object, FarmError] = {}

    def made(self, name: object) -> Any:
        """The value of ``name`` if it was made, else ``None``."""
        return self._made.get(name)

    def get(self, name: object, make: Callable[[], Value]) -> Value:
        """The value of ``name``, made by the first who asks."""
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            if name in self._failed:
                raise self._failed[name]
            if name not in self._made:
                try:
                    self._made[name] = make()
                except FarmError as error:
                    self._failed[name] = error
                    raise
            found: Value = self._made[name]
            return found


class Measured:
    """Runs the commands of one task here, and sums up what they used."""

    name = "host"

    def __init__(self, why: str, meter: Meter) -> None:
        self.why = why
        self._host = HostExecutor(why, meter.watch)
        self._started = time.monotonic()
        self._cpu_seconds = 0.0
        self._peak_bytes = 0

    def run(self, command: Command, log: Path) -> Completed:
        """Run ``command`` here."""
        done = self._host.run(command, log)
        if done.used is not None:
            self._cpu_seconds += done.used.cpu_seconds
            self._peak_bytes = max(self._peak_bytes, done.used.peak_bytes)
        return done

    @property
    def usage(self) -> Usage:
        """What all commands used so far; they ran one after the other."""
        return Usage(time.monotonic() - self._started, self._cpu_seconds, self._peak_bytes)


@dataclass
class Run:
    """One run of the farm. ``builders`` maps the key of a step to the cell that made it known first,
    ``results`` to what came of it, ``errors`` to what kept it from an end. ``shims`` are folders that come
    first on PATH of library builds.
    """

    request: WheelRequest
    narrator: Narrator
    work: Path
    store: Store
    history: History
    pool: TokenPool
    meter: Meter
    shims: tuple[str, ...] = ()
    recorder: Recorder = field(default_factory=Recorder)
    once: Once = field(default_factory=Once)
    builders: dict[str, str] = field(default_factory=dict)
    results: dict[str, StepResult] = field(default_factory=dict)
    errors: dict[str, FarmError] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def builds(self) -> Path:
        """Where libraries are built: the same paths in each run."""
        return self.request.cache_dir / "build"

    def expected(self, name: str, kind: str) -> Expected:
        """What a task will use: as learnt, else a guess for its kind."""
        return self.history.expected(name) or guess(kind)

    def remember(self, history: str, key: Key) -> None:
        """Keep the key that a step has now: what the next one is compared with."""
        self.history.keyed(history, key.digest, dict(key.inputs))

    def execute(self, tasks: Sequence[Task]) -> dict[str, Outcome]:
        """Run tasks, and those that they make known, to their end."""
        return run_tasks(
            tasks,
            pool=self.pool,
            machine=look,
            history=self.history,
            listener=Several(self.recorder, ProgressLines(self.narrator)),
            used_by=self.meter.used_by,
        )

    @property
    def executor(self) -> HostExecutor:
        """Runs the steps here, and measures them."""
        return HostExecutor("where the farm runs", self.meter.watch)

    def compilers(
        self, step: LibraryStep, work: Path, request: build_steps.BuildRequest
    ) -> AbstractContextManager[CachedCompilers]:
        """The compilers of a library's build behind the run's compiler cache, where there is one."""
        session = self.cache_session()
        if session is None or "CC" not in request.env:
            return plain_compilers(step, work, request)
        home = request.env.get("CUDA_HOME")
        compilers = Compilers(
            cc=Path(request.env["CC"]),
            cxx=Path(request.env["CXX"]),
            cuda_home=Path(home) if home else None,
            identity=dict(step.key.inputs)["toolchain"],
            mapped=(str(work / "source"), str(step.python.parent.parent)),
            nvcc_is_clang=step.compiler == "clang",
        )
        return session.build(work, compilers, request.path)

    def cache_session(self) -> Session | None:
        """The compiler cache, looked for when the first library is compiled; ``None`` without one."""
        return self.once.get("compiler cache", self._open_session)

    def compiler_calls(self) -> dict[str, object]:
        """What came of the calls of compilers; empty when none was called behind a cache."""
        session = self.once.made("compiler cache")
        if session is None:
            return {}
        stats = session.stats()
        return {**stats.as_dict(), "tool": session.cache.shown, "shown": stats.shown}

    def _open_session(self) -> Session | None:
        chosen = choose(self.request.compiler_cache, probe(os.environ))
        if isinstance(chosen, NoCompilerCache):
            self.narrator.say(f"no compiler cache: {chosen.reason}")
            return None
        return Session(
            chosen,
            self.request.cache_dir / "compiler-cache",
            environ=os.environ,
            warn=self.narrator.say,
            read_only=bool(self.request.remote) and not self.request.remote_writable,
            watch=self.meter.watch,
        )

    def builder(self, digest: str, cell: str) -> str:
        """The cell that a step is built for: the first that asked."""
        with self._lock:
            return self.builders.setdefault(digest, cell)


def open_store(request: WheelRequest, narrator: Narrator) -> Store:
    """The store of the request's cache, with its remote tier."""
    remote = (
        open_remote(request.remote, writable=request.remote_writable) if request.remote else None
    )
    root = request.cache_dir / "store"
    return Store(root, remote=remote, limit_bytes=request.cache_limit, warn=narrator.say)


@contextmanager
def opened(request: WheelRequest, narrator: Narrator) -> Iterator[Run]:
    """A run with its folder, tokens and store. What killed runs left is swept, and told of."""
    for name in sweep(request.cache_dir):
        narrator.say(f"removed what a run left that was ended: {name}")
    with ExitStack() as stack:
        work = stack.enter_context(work_folder(request.cache_dir, "run"))
        pool = stack.enter_context(_pool(request, work))
        store = stack.enter_context(open_store(request, narrator))
        history = History(request.cache_dir / HISTORY)
        shims = write_shims(request.cache_dir / "shims")
        yield Run(request, narrator, work, store, history, pool, Meter(), (str(shims),))


def _pool(request: WheelRequest, work: Path) -> TokenPool:
    """A pool of this run's own, or that of the farm outside of this container."""
    if request.jobserver is not None:
        return TokenPool.attach(request.jobserver, tokens=request.jobs)
    return TokenPool.create(work, request.jobs)
