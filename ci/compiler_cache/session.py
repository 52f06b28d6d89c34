"""A run's compiler cache: for each library build its launchers, and with sccache a server of its own.

One server for each build, not one for the run: it starts in 12 ms and takes 8 MB, and so

- its statistics are those of the build, also where builds run side by side;
- an interrupt, a timeout and the end of the build end it, and the compilers that it started.

All servers share one storage. A server is a child of this process with a socket of its own, so no server of
the user is ever used or ended; when the farm is killed, the kernel ends it (``setpriv --pdeathsig``, where
the machine has that), else it ends itself some time after the last call.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ci import proc
from ci.compiler_cache import stats
from ci.compiler_cache.launchers import Launchers, write_launchers
from ci.compiler_cache.model import CLANG_AS_NVCC, CacheStats, CompilerCache, Compilers
from ci.compiler_cache.storage import (
    addresses,
    ccache_storage,
    sccache_storage,
    silent_storage,
)
from ci.errors import FarmError

START_SECONDS = 20.0
STOP_SECONDS = 30.0
GUARD_SECONDS = 2.0
SILENT_TIMES = 2
IDLE_SECONDS = 7200
_SOCKET_BYTES = 100  # of at most 108: unix(7), sun_path
_CLIENT = {
    "SCCACHE_CONF": os.devnull,
    "SCCACHE_CACHED_CONF": os.devnull,
    # A preprocessor's result that is looked up by the files it read names them by path: those of another
    # folder.
    "SCCACHE_DIRECT": "false",
}
_NO_OTHER_SERVER = {"SCCACHE_DIR": "/dev/null/none", "SCCACHE_IDLE_TIMEOUT": "1"}
"""A client that finds no server starts one. With this it keeps nothing, and is gone after a second."""


@dataclass
class Build:
    """The compiler cache of one library build.

    ``environment`` goes over the build's own variables, ``path`` takes the place of its folders on PATH.
    ``stats`` is filled when the build has ended; ``remarks`` say what was not cached, and why.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    stats: CacheStats = field(default_factory=CacheStats)
    remarks: tuple[str, ...] = ()
    used: proc.Used | None = None

    @property
    def shown(self) -> str:
        """What came of the compilers' calls, and what was not cached and why, for a report."""
        return "; ".join(text for text in (self.stats.shown, *self.remarks) if text)


class Session:
    """The compiler cache of a run. ``folder`` is below the farm's cache; ``environ`` the caller's
    environment.

    ``warn`` is told, once each, of what fails: a cache that fails is a warning, builds go on without it.
    ``watch`` measures servers, because compilers are their children and not the build's.
    """

    def __init__(
        self,
        cache: CompilerCache,
        folder: Path,
        *,
        environ: Mapping[str, str],
        warn: Callable[[str], None],
        read_only: bool = False,
        watch: proc.Watch | None = None,
    ) -> None:
        """Raises :class:`~ci.errors.ConfigError` when the storage's variables cannot be used."""
        self.cache = cache
        self._warn = warn
        self._warned: set[str] = set()
        self._watch = watch
        self._lock = threading.Lock()
        self._parts: list[CacheStats] = []
        place = folder / cache.tool
        if cache.tool == "sccache":
            self._storage = sccache_storage(environ, place, read_only=read_only)
        else:
            self._storage = ccache_storage(environ, place, read_only=read_only)

    def stats(self) -> CacheStats:
        """What came of the calls of all builds that have ended."""
        with self._lock:
            return CacheStats.total(self._parts)

    @contextlib.contextmanager
    def build(
        self, work: Path, compilers: Compilers, path: tuple[str, ...] = ()
    ) -> Iterator[Build]:
        """The cache of one build in ``work``, a folder that exists. ``path`` are its folders on PATH."""
        try:
            running = self._begin(work, compilers, path)
        except (OSError, FarmError) as error:
            self._tell(f"{self.cache.shown} cannot be used, compilers run without it: {error}")
            running = _without(path)
        try:
            yield running.build
        finally:
            running.end()
            self._count(running.build.stats)

    def _count(self, part: CacheStats) -> None:
        with self._lock:
            self._parts.append(part)
        if part.errors:
            self._tell(
                f"{self.cache.shown}: its storage failed {part.errors} times; what was not found there "
                "was compiled"
            )

    def _begin(self, work: Path, compilers: Compilers, path: tuple[str, ...]) -> _Running:
        if compilers.cc is None and compilers.cxx is None and compilers.cuda_home is None:
            return _without(path)
        folder = work / "compilers"
        shutil.rmtree(folder, ignore_errors=True)
        remarks = self.cache.remarks if compilers.cuda_home else ()
        if compilers.nvcc_is_clang:
            remarks = (CLANG_AS_NVCC,)
        if self.cache.tool == "sccache":
            running = self._with_server(work, folder, compilers, path)
        else:
            running = self._with_log(folder, compilers, path)
        running.build.remarks = remarks
        return running

    # -- sccache -----------------------------------------------------------------------------------

    def _with_server(
        self, work: Path, folder: Path, compilers: Compilers, path: tuple[str, ...]
    ) -> _Running:
        silent = silent_storage(self._storage)
        if silent:
            raise OSError(f"its storage does not answer: {silent}")
        server = _Server(self.cache, work, self._storage, self._watch)
        server.start()
        try:
            launchers = write_launchers(
                folder, self.cache, compilers, server=server.pid, hidden=self._storage
            )
        except BaseException:
            server.end()
            raise
        client = _CLIENT | _NO_OTHER_SERVER | {"SCCACHE_SERVER_UDS": str(server.socket)}
        build = _build(launchers, path, client)

        def end() -> None:
            build.stats = server.stats()
            if server.silent:
                self._tell(
                    f"{self.cache.shown}: its storage does not answer any more: {server.silent}; the rest "
                    "was compiled without it"
                )
            elif server.ended_early:
                self._tell(f"{self.cache.shown}: its server ended before the build")
            server.end()
            build.used = server.used

        return _Running(build, end)

    # -- ccache ------------------------------------------------------------------------------------

    def _with_log(self, folder: Path, compilers: Compilers, path: tuple[str, ...]) -> _Running:
        launchers = write_launchers(folder, self.cache, compilers)
        log = folder / "ccache.stats"
        variables = {
            "CCACHE_STATSLOG": str(log),
            "CCACHE_NODIRECT": "1",  # it would look up the files of another folder
            "CCACHE_NOHASHDIR": "1",  # the folder is in what is compared, where it matters
        }
        build = _build(launchers, path, self._storage | variables)

        def end() -> None:
            with contextlib.suppress(FileNotFoundError):
                build.stats = stats.of_ccache(log.read_text("utf-8", "replace").splitlines())

        return _Running(build, end)

    def _tell(self, text: str) -> None:
        with self._lock:
            if text in self._warned:
                return
            self._warned.add(text)
        self._warn(text)


@dataclass
class _Running:
    build: Build
    end: Callable[[], None]


def _without(path: tuple[str, ...]) -> _Running:
    return _Running(Build(path=path), lambda: None)


def _build(launchers: Launchers, path: tuple[str, ...], more: Mapping[str, str]) -> Build:
    return Build({**launchers.environment, **more}, launchers.path(path))


class _Server:
    """One server of sccache, in the foreground, held by a thread that waits for its end."""

    def __init__(
        self,
        cache: CompilerCache,
        work: Path,
        storage: Mapping[str, str],
        watch: proc.Watch | None,
    ) -> None:
        self.pid = 0
        self.used: proc.Used | None = None
        self.log = work / "sccache.log"
        self.ended_early = False
        self.silent = ""
        self._storage = storage
        self._ending = threading.Event()
        self._cache = cache
        self._watch = watch
        self._own = ""
        self.socket = work / "sccache.socket"
        if len(os.fsencode(self.socket)) > _SOCKET_BYTES:
            self._own = tempfile.mkdtemp(prefix="farm-")
            self.socket = Path(self._own, "socket")
        self._scratch = work / "sccache"
        self._environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self._scratch),
            "TMPDIR": str(self._scratch),
            **_CLIENT,
            **storage,
            "SCCACHE_SERVER_UDS": str(self.socket),
            "SCCACHE_IDLE_TIMEOUT": str(IDLE_SECONDS),
            "SCCACHE_START_SERVER": "1",
            "SCCACHE_NO_DAEMON": "1",
        }
        self._thread = threading.Thread(target=self._run, name="sccache server", daemon=True)
        self._done: proc.Completed | None = None

    def start(self) -> None:
        """Start it and wait until it answers. Raises :class:`OSError` when it does not."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        self._thread.start()
        limit = time.monotonic() + START_SECONDS
        while not self._answers():
            if not self._thread.is_alive() or time.monotonic() > limit:
                self.end()
                raise OSError(self._why())
            time.sleep(0.005)
        if addresses(self._storage):
            threading.Thread(target=self._guard, name="sccache storage", daemon=True).start()

    def _guard(self) -> None:
        """End the server when its storage is gone: sccache would wait a minute for it, at every call."""
        silent = 0
        while silent < SILENT_TIMES:
            if self._ending.wait(GUARD_SECONDS):
                return
            found = silent_storage(self._storage)
            silent = silent + 1 if found else 0
        self.silent = found
        self._kill()

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(self.socket)) == 0

    def _why(self) -> str:
        said = self._done.tail(3) if self._done else ()
        text = " ".join(" ".join(said).split())
        return f"its server did not start: {text or f'no answer in {START_SECONDS:.0f} s'}"

    def _run(self) -> None:
        argv: tuple[str, ...] = (str(self._cache.path),)
        if self._cache.death_signal is not None:
            argv = (str(self._cache.death_signal), "--pdeathsig", "TERM", *argv)
        command = proc.Command(argv, env=self._environment, label="sccache server")
        with contextlib.suppress(FarmError):
            self._done = proc.run(command, log=self.log, watch=self._started)
            self.used = self._done.used

    def _started(self, pid: int) -> Callable[[], proc.Used]:
        self.pid = pid
        return self._watch(pid) if self._watch is not None else lambda: proc.Used(0.0, 0)

    def stats(self) -> CacheStats:
        """What came of the calls until now; nothing when it does not answer any more."""
        self.ended_early = not self._thread.is_alive()
        if self.ended_early:
            return CacheStats("sccache")
        answer = self._ask("--show-stats", "--stats-format", "json")
        try:
            return stats.of_sccache(answer.output)
        except ValueError:
            self.ended_early = True
            return CacheStats("sccache")

    def end(self) -> None:
        """End it, and what it has started. Safe to call twice."""
        self._ending.set()
        if self._thread.is_alive():
            self._ask("--stop-server")
            self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            self._kill()
            self._thread.join(STOP_SECONDS)
        self.socket.unlink(missing_ok=True)
        if self._own:
            shutil.rmtree(self._own, ignore_errors=True)

    def _kill(self) -> None:
        """With the compilers that it started: builds start them again, and both would write one object."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def _ask(self, *words: str) -> proc.Completed:
        client = {
            **_CLIENT,
            **_NO_OTHER_SERVER,
            "SCCACHE_SERVER_UDS": str(self.socket),
            "PATH": "/usr/bin:/bin",
            "HOME": str(self._scratch),
        }
        command = proc.Command((str(self._cache.path), *words), env=client, timeout=STOP_SECONDS)
        return proc.run(command)
