"""The store of results: contents by their hash, entries by key; whole or absent, verified when they are read.

Below ``root/v2``: ``entries/ab/KEY.json``, ``blobs/ab/SHA256``, ``leases/``, ``locks/`` and ``tmp/``. Any
number of processes, on any number of hosts of a shared disk, may use it at once, and be killed at any moment:

- A file gets its name when it is whole. Whether it lasted is seen when it is read, because every read
  compares every file with its hash; a result that did not last is built again, never used.
- What changes names (a put's last step, a removal) is done under one lock for the whole store, for a short
  time. What takes long (reading, copying, downloading) is done without it.
- A key that a living process got or put is in its lease, and is not evicted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from ci.errors import InfrastructureError, InterruptedRunError
from ci.graph.blobs import (
    Blobs,
    FoundFile,
    Signature,
    StoredFile,
    copy_file,
    copy_tree,
    files_below,
    in_threads,
    sha256_of,
    subfolders,
)
from ci.graph.entries import BadEntryError, Entry, from_bytes, to_bytes
from ci.graph.eviction import Collected, collect, sweep
from ci.graph.key import Key
from ci.graph.leases import Leases

if TYPE_CHECKING:
    from ci.graph.remote import Remote

__all__ = ["Entry", "Listed", "Store", "StoredFile"]

LAYOUT = "v2"
LOCK_SECONDS = 300.0
"""Nobody holds the store's lock so long; whoever does has stopped."""
POLL_SECONDS = 0.1
FLUSH_SECONDS = 60.0
STOPPED_SECONDS = 5.0
RESCAN_SECONDS = 300.0
LASTING_BYTES = 64 * 1024
"""From this size on a content is on the disk before its entry is: it may have taken hours to compile. Of
smaller ones there are thousands; one that a power cut took is seen when it is read.
"""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_ATTEMPTS = 5


@dataclass(frozen=True)
class Listed:
    """An entry as a list shows it. ``last_use`` is in seconds since the epoch, by the store's file system."""

    entry: Entry
    last_use: float


@dataclass(frozen=True)
class _Judged:
    """What was found under a key: a good entry, or the problem with it and the files that were judged."""

    entry: Entry | None
    problem: str = ""
    data: bytes = b""
    bad: tuple[tuple[str, Signature | None], ...] = ()


def to_stderr(text: str) -> None:
    """Tell of ``text`` where nobody said where to."""
    print(f"warning: {text}", file=sys.stderr)


class Store:
    """Results by key below ``root``. ``remote`` is asked for what is not here and, when it may be written,
    given what is put; ``limit_bytes`` bounds the size (``None``: no bound); ``warn`` is told, in whole
    sentences, what went wrong without being an error: a bad entry, a dead remote store.
    """

    def __init__(
        self,
        root: Path,
        *,
        remote: Remote | None = None,
        limit_bytes: int | None = None,
        warn: Callable[[str], None] = to_stderr,
    ) -> None:
        self.root = root
        self.home = root / LAYOUT
        self.remote = remote
        if remote is not None and remote.warn is None:
            remote.warn = warn
        self.limit_bytes = limit_bytes
        self.blobs = Blobs(self.home / "blobs")
        self.leases = Leases(self.home / "leases")
        self._warn = warn
        self._threads = threading.Lock()
        self._lock_path = self.home / "locks" / "store.lock"
        self._estimate = _Estimate()
        self._swept = False
        self._told_full = False
        weakref.finalize(self, Leases.close, self.leases)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for uploads; not for long when the run failed or was stopped."""
        self.close(FLUSH_SECONDS if kind is None else STOPPED_SECONDS)

    # -- one result --------------------------------------------------------------------------------

    def holds(self, key: Key) -> bool:
        """True when there is an entry here. Reads nothing of it, asks no remote store."""
        return self.entry_path(key.digest).exists()

    def get(self, key: Key) -> Entry | None:
        """The result of ``key``, or ``None``: from here, else from the remote store.

        Every file is compared with its hash. An entry that is not as it was put is removed and told of. What
        was got stays until this store is closed. Raises :class:`~ci.errors.InfrastructureError` when a
        result of the remote store finds no room here.
        """
        entry = self._local(key)
        if entry is not None or self.remote is None:
            return entry
        data = self.remote.entry(key.digest)
        return None if data is None else self._fetch(key, data, self.remote)

    def put(self, key: Key, folder: Path, meta: Mapping[str, object]) -> Entry:
        """Store a copy of ``folder`` as the result of ``key``; it appears whole or not at all.

        A good result that is there already stays. ``meta`` must be JSON. ``folder`` is only read. Raises
        :class:`~ci.errors.LibraryBuildError` for files that cannot be stored, and
        :class:`~ci.errors.InfrastructureError` when there is no room.
        """
        found = files_below(folder)

        def files(scratch: Path, staged: dict[str, Path]) -> tuple[StoredFile, ...]:
            return self._stage(folder, found, scratch, staged)

        def entry_of(files: tuple[StoredFile, ...]) -> Entry:
            made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            return Entry(
                key.digest, files, dict(meta), dict(key.inputs), made, socket.gethostname()
            )

        entry = self._commit(key, files, entry_of)
        if self.remote is not None:
            self.remote.send(entry, self.blobs.path)
        self._bound(entry.size)
        return entry

    def materialise(self, entry: Entry, folder: Path) -> Path:
        """The files of ``entry`` below ``folder``, which must not exist, as copies that may be changed.

        Executables get mode 755, other files 644; links stay links. Raises ``FileExistsError``, and
        :class:`~ci.errors.InfrastructureError` when a file is gone or there is no room.
        """
        if os.path.lexists(folder):
            raise FileExistsError(errno.EEXIST, "is there already", str(folder))
        try:
            copy_tree(entry.files, self.blobs.path, folder)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            if error.errno in _FULL:
                raise _full(folder, error) from error
            raise InfrastructureError(
                f"the stored result of {entry.name} cannot be laid out in {folder}",
                cause=f"{error.strerror or error} ({error.filename or 'the store'})",
                next_step="python -m ci cache verify --remove, then run the same command again",
            ) from error
        return folder

    @contextlib.contextmanager
    def building(
        self,
        key: Key,
        waiting: Callable[[], None] = lambda: None,
        stop: threading.Event | None = None,
    ) -> Iterator[None]:
        """At most one at a time is inside for a key: of all threads, processes and hosts on this store.

        ``waiting`` is called once when another one is inside. Ask :meth:`get` again after entering: the other
        one may have put the result. Raises :class:`~ci.errors.InterruptedRunError` when ``stop`` is set while
        it waits. The lock of a process that was killed is free.
        """
        path = self.home / "locks" / key.digest[:2] / f"{key.digest}.lock"
        with self._room():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        lock, told = FileLock(path), False
        while True:
            try:
                lock.acquire(timeout=POLL_SECONDS if told else 0, poll_interval=POLL_SECONDS / 2)
                break
            except Timeout:
                if not told:
                    told = True
                    waiting()
                if stop is not None and stop.is_set():
                    raise InterruptedRunError(
                        "stopped while another run built the same library"
                    ) from None
        try:
            yield
        finally:
            lock.release()

    # -- all results -------------------------------------------------------------------------------

    def digests(self) -> dict[str, os.stat_result]:
        """The digest of every entry that is there, good or bad, with what the file system says of it."""
        found: dict[str, os.stat_result] = {}
        for folder in subfolders(self.home / "entries"):
            with os.scandir(folder) as listing:
                for item in listing:
                    digest = item.name.removesuffix(".json")
                    if len(digest) == 64 and digest != item.name:
                        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                            found[digest] = item.stat(follow_symlinks=False)
        return found

    def entries(self) -> Iterator[Listed]:
        """Every entry that can be read; contents are not compared with their hashes."""
        for digest, status in sorted(self.digests().items()):
            with contextlib.suppress(OSError, BadEntryError):
                yield Listed(self.read(digest), status.st_mtime)

    def read(self, digest: str) -> Entry:
        """The entry of a digest, without a look at its contents. Raises ``OSError`` and
        :class:`~ci.graph.entries.BadEntryError`.
        """
        return from_bytes(self.entry_path(digest).read_bytes(), digest)

    def problem(self, digest: str, *, remove: bool = False) -> str:
        """What is wrong with an entry and its contents; empty when nothing is, or when it is gone."""
        judged = self._judge(digest, None)
        if judged.problem and remove:
            self._drop(digest, judged)
        return judged.problem

    def gc(self, target: int | None = None, *, dry_run: bool = False) -> Collected:
        """Evict the least recently used entries until ``target`` bytes are left (``None``: only what nobody
        refers to), and remove what the dead left behind. What a living run uses stays.
        """
        return collect(self, target, dry_run=dry_run)

    def flush(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Wait for the uploads that :meth:`put` began; false (and told) when some did not end in time."""
        return self.remote is None or self.remote.flush(timeout)

    def close(self, timeout: float = FLUSH_SECONDS) -> None:
        """Wait for uploads (see :meth:`flush`), and give the lease back."""
        self.flush(timeout)
        self.leases.close()

    def entry_path(self, digest: str) -> Path:
        """Where an entry is, or would be."""
        return self.home / "entries" / digest[:2] / f"{digest}.json"

    def tell(self, text: str) -> None:
        """Pass a warning on."""
        self._warn(text)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """The store-wide lock: names do not change while it is held. Not reentrant; not for long work."""
        self._lock_path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self._lock_path, timeout=LOCK_SECONDS, poll_interval=0.005)
        with self._threads:
            try:
                lock.acquire()
            except Timeout:
                raise InfrastructureError(
                    f"the store {self.root} is locked for more than {LOCK_SECONDS:.0f} s",
                    cause="a process that uses it was stopped in the middle of a change",
                    next_step=f"end it (fuser {self._lock_path}), then run the same command again",
                ) from None
            try:
                yield
            finally:
                lock.release()

    # -- inside ------------------------------------------------------------------------------------

    def _local(self, key: Key) -> Entry | None:
        """The verified entry that is here, in this process's lease; a bad one is removed and told of."""
        path = self.entry_path(key.digest)
        if not path.exists():
            return None
        with contextlib.suppress(OSError), self.exclusive():  # a full disk, or one only for reading
            self.leases.hold(key.digest)
            os.utime(path)
        judged = self._judge(key.digest, dict(key.inputs))
        if judged.problem:
            with contextlib.suppress(OSError):
                self._drop(key.digest, judged)
            self._warn(f"the stored result {key.digest[:12]} was removed: {judged.problem}")
        return judged.entry

    def _judge(self, digest: str, inputs: Mapping[str, str] | None) -> _Judged:
        try:
            data = self.entry_path(digest).read_bytes()
        except FileNotFoundError:
            return _Judged(None)
        except OSError as error:
            return _Judged(None, f"its entry cannot be read: {error.strerror or error}")
        try:
            entry = from_bytes(data, digest)
        except BadEntryError as error:
            return _Judged(None, f"its entry is damaged: {error}", data)
        if inputs is not None and entry.inputs != inputs:
            return _Judged(None, "its entry names other inputs than its key", data)
        contents = list(entry.blobs.items())
        found = in_threads(lambda item: self.blobs.problem(*item), contents, lambda item: item[1])
        bad = [
            (sha, why, seen) for (sha, _), (why, seen) in zip(contents, found, strict=True) if why
        ]
        if not bad:
            return _Judged(entry)
        paths = sorted(item.path for item in entry.files if item.sha256 in {sha for sha, *_ in bad})
        more = f" and {len(paths) - 1} more" * (len(paths) > 1)
        why = f"{entry.name}: the content of {paths[0]}{more} {bad[0][1]}"
        if not self.entry_path(digest).exists():
            return _Judged(None)  # evicted while it was read
        return _Judged(None, why, data, tuple((sha, seen) for sha, _, seen in bad))

    def _drop(self, digest: str, judged: _Judged) -> None:
        """Remove what was judged bad, unless somebody has put something else in its place."""
        path = self.entry_path(digest)
        with self.exclusive():
            with contextlib.suppress(FileNotFoundError):
                if not path.is_file() or path.read_bytes() == judged.data:
                    path.unlink()
            for sha256, seen in judged.bad:
                self.blobs.drop(sha256, seen)

    def _commit(
        self,
        key: Key,
        files: Callable[[Path, dict[str, Path]], tuple[StoredFile, ...]],
        entry_of: Callable[[tuple[StoredFile, ...]], Entry],
    ) -> Entry:
        """The entry of ``key`` that is here, else the one whose ``files`` were staged.

        Another process may put the same key, or evict a content that was here, between staging and the lock;
        then all is looked at again, and only what is missing is staged.
        """
        staged: dict[str, Path] = {}
        with self._room(), self._scratch() as scratch:
            for _ in range(_ATTEMPTS):
                present = self._local(key)
                if present is not None:
                    return present
                entry = entry_of(files(scratch, staged))
                if self._placed(entry, staged, scratch):
                    return entry
        raise InfrastructureError(
            f"the result of {key.digest[:12]} cannot be stored in {self.root}",
            cause="other processes keep removing its contents",
            next_step="python -m ci cache stats, then run the same command again",
        )

    def _placed(self, entry: Entry, staged: dict[str, Path], scratch: Path) -> bool:
        """Give the staged files their names, contents first. False when something changed meanwhile."""
        written = scratch / f"{uuid.uuid4().hex}.json"
        _write(written, to_bytes(entry))
        target = self.entry_path(entry.key)
        with self.exclusive():
            if target.exists():
                return False
            if any(sha not in staged and not self.blobs.is_known(sha) for sha in entry.blobs):
                return False
            self.leases.hold(entry.key)
            for sha256 in list(staged):
                self.blobs.place(staged.pop(sha256), sha256)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(written, target)
        return True

    def _stage(
        self, folder: Path, found: tuple[FoundFile, ...], scratch: Path, staged: dict[str, Path]
    ) -> tuple[StoredFile, ...]:
        """The files of ``folder`` with their hashes; what is not here yet is copied to ``scratch``."""
        lock = threading.Lock()

        def one(item: FoundFile) -> StoredFile:
            if item.link is not None:
                return StoredFile(item.path, "", 0, link=item.link)
            sha256, size = sha256_of(f"{folder}/{item.path}")
            if not self.blobs.problem(sha256, size)[0]:
                return StoredFile(item.path, sha256, size, item.executable)
            with lock:
                first = sha256 not in staged
                copy = staged.setdefault(sha256, scratch / sha256)
            if first:
                copy_file(f"{folder}/{item.path}", copy, 0o444, lasting=size >= LASTING_BYTES)
                if sha256_of(copy)[0] != sha256:
                    raise InfrastructureError(
                        f"{folder / item.path} changed while it was stored",
                        cause="the build left a process that still writes, or the disk is faulty",
                        next_step="run the same command again",
                    )
            return StoredFile(item.path, sha256, size, item.executable)

        return tuple(in_threads(one, found, lambda item: item.size))

    def _fetch(self, key: Key, data: bytes, remote: Remote) -> Entry | None:
        """The result of ``key`` that the remote store's entry ``data`` describes, now here; or ``None``."""
        try:
            entry = from_bytes(data, key.digest)
            if entry.inputs != dict(key.inputs):
                raise BadEntryError("it names other inputs than its key")
        except BadEntryError as error:
            remote.reject_entry(key.digest, str(error))
            return None

        def files(scratch: Path, staged: dict[str, Path]) -> tuple[StoredFile, ...]:
            missing = [
                (sha, size)
                for sha, size in entry.blobs.items()
                if sha not in staged and self.blobs.problem(sha, size)[0]
            ]
            if not remote.blobs(key.digest, missing, scratch):
                raise _NotFetchedError
            staged.update({sha: scratch / sha for sha, _ in missing})
            return entry.files

        try:
            got = self._commit(key, files, lambda _: entry)
        except _NotFetchedError:
            return None
        self._bound(got.size)
        return got.from_remote()

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        """Tell of a full disk as an error that names the next command."""
        try:
            yield
        except OSError as error:
            if error.errno in _FULL:
                raise _full(self.root, error) from error
            raise

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[Path]:
        """A folder for files without a name yet. It is known by the lease, so that others can tell whose it
        is when this process is killed.
        """
        with self.exclusive():
            owner = self.leases.name
            if not self._swept:
                self._swept = True
                sweep(self)
        folder = self.home / "tmp" / owner / uuid.uuid4().hex
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _bound(self, added: int) -> None:
        """Keep the size below the limit; looks at the whole store only now and then."""
        limit = self.limit_bytes
        if limit is None:
            return
        if self._estimate.after(added, lambda: sum(self.blobs.sizes().values())) > limit:
            done = self.gc(limit)
            self._estimate.know(done.left_bytes)
            if done.left_bytes > limit and not self._told_full:
                self._told_full = True
                self._warn(
                    f"the store {self.root} holds {done.left_bytes / 1e9:.1f} GB, more than its limit of "
                    f"{limit / 1e9:.1f} GB: all of it is used by builds that run"
                )


class _NotFetchedError(Exception):
    """The remote store did not yield a content; it has told why."""


class _Estimate:
    """How many bytes the store holds, about: counted now and then, and what was put since."""

    def __init__(self) -> None:
        self._bytes = 0
        self._counted: float | None = None

    def after(self, added: int, count: Callable[[], int]) -> int:
        """The bytes after ``added`` were put."""
        if self._counted is None or time.monotonic() - self._counted > RESCAN_SECONDS:
            self.know(count())
        else:
            self._bytes += added
        return self._bytes

    def know(self, count: int) -> None:
        """Remember a count."""
        self._bytes, self._counted = count, time.monotonic()


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _full(place: Path, error: OSError) -> InfrastructureError:
    return InfrastructureError(
        f"no room for a result in {place}",
        cause=f"{error.strerror or 'the disk is full'}; what was built is not lost, only not stored",
        next_step="python -m ci cache gc --limit 10g, or give another disk with --cache-dir",
    )
