"""The remote tier of the store: a shared folder, S3, GCS, or what else fsspec reaches.

Layout: ``entries/ab/KEY.json`` and ``blobs/ab/SHA256``; an entry is written after its contents. Nothing that
comes from it is believed: sizes and hashes are compared, and what does not fit is told of and not used.

A build never fails because of it. Every operation has a time limit and runs in a thread that does not keep
the process alive; the first failure of the store (not of one object) is one warning, then it is left alone
for the rest of the run.
"""

from __future__ import annotations

import contextlib
import queue
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as _FutureTimeout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from ci.errors import ConfigError
from ci.graph.blobs import sha256_of
from ci.graph.entries import Entry, to_bytes

Mode = Literal["read", "write"]
Result = TypeVar("Result")
Tick = Callable[[], None]

TIMEOUT_SECONDS = 15.0
SLOWEST_BYTES_PER_SECOND = 1024 * 1024
"""What is slower than this is not worth waiting for: a limit grows by a second for each MiB at once."""
MOST_AT_ONCE = 8
MOST_ENTRY_BYTES = 256 * 1024 * 1024

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
_WHOLE_AT_ONCE = frozenset({"s3", "s3a", "gs", "gcs", "memory"})
"""Protocols where an object appears whole or not at all; elsewhere it is written beside and renamed."""
_BESIDE = "unfinished"
_PART_BYTES = 100 * 1024 * 1024
"""Up to this size s3fs sends an object in one request, without a word in between."""
_BLOCK_BYTES = 4 * 1024 * 1024
_USER = re.compile(r"(?<=://)[^\s/?#\"']*@")
_SECRET = re.compile(
    r"(?i)\b((?:x-amz-(?:signature|credential|security-token)|signature|sig|token|access_?token|secret|"
    r"password|api_?key|awsaccesskeyid|key)=)[^&\s\"']+"
)


def without_credentials(text: str) -> str:
    """``text`` without the user and password of an address, and without signatures in its query."""
    return _SECRET.sub(r"\1...", _USER.sub("", text))


@dataclass(frozen=True)
class _Upload:
    entry: Entry
    path: Callable[[str], Path]


class Remote:
    """The remote store at ``url``: an fsspec address, or the path of a shared folder.

    ``mode`` ``read`` never writes and never deletes: for runs of code that is not trusted. ``options`` go to
    fsspec's file system, above its own configuration (``FSSPEC_S3_ENDPOINT_URL``, ``AWS_ENDPOINT_URL``).
    ``timeout`` are the seconds without progress after which it counts as dead. Raises
    :class:`~ci.errors.ConfigError` for an address that nothing can open.
    """

    def __init__(
        self,
        url: str,
        *,
        mode: Mode = "read",
        warn: Callable[[str], None],
        timeout: float = TIMEOUT_SECONDS,
        options: Mapping[str, object] | None = None,
    ) -> None:
        self.shown = without_credentials(url)
        self.mode = mode
        self.why_off = ""
        self._warn = warn
        self._timeout = timeout
        self._url = url
        self._options = dict(options or {})
        self._opened: tuple[Any, str] | None = None
        self._rejected: set[str] = set()
        self._lock = threading.Lock()
        self._uploads: queue.SimpleQueue[_Upload] = queue.SimpleQueue()
        self._pending = 0
        self._idle = threading.Condition(self._lock)
        self._uploader: threading.Thread | None = None
        self._kind = protocol_of(url)
        _check_known(self._kind, self.shown)

    @property
    def is_off(self) -> bool:
        """True when the store failed in this run, and is not asked any more."""
        return bool(self.why_off)

    # -- reading -----------------------------------------------------------------------------------

    def entry(self, digest: str) -> bytes | None:
        """The entry of a key as it is there; ``None`` when there is none, or the store is off."""
        path = _entry_path(digest)

        def read(fs: Any, base: str, tick: Tick) -> bytes | None:
            try:
                data: bytes = fs.cat_file(f"{base}/{path}", start=0, end=MOST_ENTRY_BYTES)
            except FileNotFoundError:
                return None
            tick()
            return data

        return self._guarded("read an entry", read, 0)

    def reject_entry(self, digest: str, why: str) -> None:
        """Note that an entry is bad: it is told of, and replaced by the next upload of its key."""
        self._reject(_entry_path(digest), f"the entry {digest[:12]}", why)

    def blobs(self, wanted: Sequence[tuple[str, int]], folder: Path) -> bool:
        """Download the contents with these hashes and sizes as ``folder/SHA256``, each verified.

        False when one of them is missing, bad (told of), or the store is off. Raises ``OSError`` of this
        machine's disk only.
        """
        waiting = list(reversed(wanted))
        good, failed = threading.Lock(), threading.Event()
        errors: list[BaseException] = []

        def worker() -> None:
            while not failed.is_set():
                with good:
                    if not waiting:
                        return
                    sha256, size = waiting.pop()
                try:
                    if not self._blob(sha256, size, folder / sha256):
                        failed.set()
                except BaseException as error:  # a full disk
                    errors.append(error)
                    failed.set()

        threads = [
            threading.Thread(target=worker, name="remote store download", daemon=True)
            for _ in range(min(MOST_AT_ONCE, len(wanted)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return not failed.is_set()

    def _blob(self, sha256: str, size: int, target: Path) -> bool:
        path = _blob_path(sha256)

        def read(fs: Any, base: str, tick: Tick) -> str:
            try:
                there = fs.info(f"{base}/{path}").get("size")
                if there is not None and there != size:
                    return f"it has {there} bytes, not {size}"
                tick()
                _download(fs, f"{base}/{path}", target, size, tick)
            except FileNotFoundError:
                return "it is missing"
            return ""

        problem = self._guarded("read a file", read, size)
        if problem is None:
            return False
        if not problem:
            found, there = sha256_of(target)
            if there != size:
                problem = f"it ended after {there} of {size} bytes"
            elif found != sha256:
                problem = "it has another content than its name says"
        if problem:
            self._reject(path, f"the content {sha256[:12]}", problem)
            return False
        target.chmod(0o444)
        return True

    def _reject(self, path: str, what: str, why: str) -> None:
        self._rejected.add(path)
        self._warn(f"remote store {self.shown}: {what} was not used: {why}; building it here")

    # -- writing -----------------------------------------------------------------------------------

    def send(self, entry: Entry, path: Callable[[str], Path]) -> None:
        """Upload an entry and its contents (at ``path`` of their hash) in the background.

        Does nothing in mode ``read``. What is there already is not sent again, unless it was found bad.
        """
        if self.mode != "write" or self.is_off:
            return
        with self._lock:
            self._pending += 1
            if self._uploader is None:
                self._uploader = threading.Thread(
                    target=self._send_all, name="remote store upload", daemon=True
                )
                self._uploader.start()
        self._uploads.put(_Upload(entry, path))

    def flush(self, timeout: float) -> bool:
        """Wait for uploads; false, and told, when some did not end within ``timeout`` seconds."""
        until = time.monotonic() + timeout
        with self._idle:
            while self._pending and not self.is_off:
                if not self._idle.wait(max(0.0, until - time.monotonic())):
                    break
            left = 0 if self.is_off else self._pending
        if left:
            self._turn_off(f"{left} results were not uploaded within {timeout:.0f} s")
        return not left

    def _send_all(self) -> None:
        while True:
            upload = self._uploads.get()
            try:
                self._send(upload)
            except Exception as error:  # nothing may end this thread: flush waits for it
                self._turn_off(f"cannot upload: {error}")
            finally:
                with self._idle:
                    self._pending -= 1
                    self._idle.notify_all()

    def _send(self, upload: _Upload) -> None:
        entry = upload.entry
        for sha256, size in sorted(entry.blobs.items()):
            source, path = upload.path(sha256), _blob_path(sha256)
            sent = self._guarded(
                "write a file", _sender(source, path, size, path in self._rejected), size
            )
            if sent is None:
                return
            self._rejected.discard(path)
        data, path = to_bytes(entry), _entry_path(entry.key)
        if self._guarded("write an entry", _writer(data, path, path in self._rejected), len(data)):
            self._rejected.discard(path)

    # -- bounds ------------------------------------------------------------------------------------

    def _guarded(
        self, what: str, work: Callable[[Any, str, Tick], Result], size: int
    ) -> Result | None:
        """``work`` with the file system, or ``None`` when the store is off, or turns out to be."""
        if self.is_off:
            return None
        limit = self._timeout + min(size, _PART_BYTES) / SLOWEST_BYTES_PER_SECOND

        def run(tick: Tick) -> Result:
            fs, base = self._open()
            tick()
            return work(fs, base, tick)

        try:
            return _within(run, limit)
        except ConfigError:
            raise
        except _LocalError as error:
            raise error.original from None
        except TimeoutError:
            self._turn_off(f"cannot {what}: no answer within {limit:.0f} s")
        except Exception as error:  # whatever a file system's package raises
            self._turn_off(f"cannot {what}: {_said(error)}")
        return None

    def _open(self) -> tuple[Any, str]:
        with self._lock:
            opened = self._opened
        if opened is None:
            opened = _open(self._url, self._kind, self._options, self._timeout)
            with self._lock:
                self._opened = opened
        return opened

    def _turn_off(self, why: str) -> None:
        with self._idle:
            if self.is_off:
                return
            self.why_off = without_credentials(why)
            self._idle.notify_all()
        self._warn(
            f"remote store {self.shown} is left alone for the rest of this run: {self.why_off}"
        )


# -- one operation -----------------------------------------------------------------------------------


class _LocalError(Exception):
    """Not the store failed, but the disk of this machine."""

    def __init__(self, original: OSError) -> None:
        super().__init__(str(original))
        self.original = original


def _within(work: Callable[[Tick], Result], seconds: float) -> Result:
    """``work`` in a thread of its own. Raises ``TimeoutError`` after so many seconds without a tick; the
    thread is left behind, and does not keep the process.
    """
    outcome: Future[Result] = Future()
    last = [time.monotonic()]

    def tick() -> None:
        last[0] = time.monotonic()

    def run() -> None:
        try:
            outcome.set_result(work(tick))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="remote store", daemon=True).start()
    while True:
        left = last[0] + seconds - time.monotonic()
        if outcome.done() or left <= 0:
            if not outcome.done():
                raise TimeoutError
            return outcome.result()
        with contextlib.suppress(TimeoutError, _FutureTimeout):
            return outcome.result(timeout=left)


def _download(fs: Any, source: str, target: Path, size: int, tick: Tick) -> None:
    """Copy an object to the new file ``target``; stops once it is longer than it should be."""
    with fs.open(source, "rb", block_size=_BLOCK_BYTES, cache_type="readahead") as reading:
        try:
            writing = target.open("wb")
        except OSError as error:
            raise _LocalError(error) from error
        with writing:
            done = 0
            while done <= size and (chunk := reading.read(_BLOCK_BYTES)):
                tick()
                done += len(chunk)
                try:
                    writing.write(chunk)
                except OSError as error:
                    raise _LocalError(error) from error


def _sender(source: Path, path: str, size: int, again: bool) -> Callable[[Any, str, Tick], bool]:
    def send(fs: Any, base: str, tick: Tick) -> bool:
        if again or _size(fs, f"{base}/{path}") != size:
            tick()
            _put(fs, f"{base}/{path}", lambda place: fs.put_file(str(source), place), base)
        return True

    return send


def _writer(data: bytes, path: str, again: bool) -> Callable[[Any, str, Tick], bool]:
    def write(fs: Any, base: str, tick: Tick) -> bool:
        if again or _size(fs, f"{base}/{path}") is None:
            tick()
            _put(fs, f"{base}/{path}", lambda place: fs.pipe_file(place, data), base)
        return True

    return write


def _put(fs: Any, place: str, write: Callable[[str], object], base: str) -> None:
    """Make the object at ``place``, whole or not at all."""
    if protocols(fs) & _WHOLE_AT_ONCE:
        write(place)
        return
    beside = f"{base}/{_BESIDE}/{uuid.uuid4().hex}"
    for name in (beside, place):
        fs.makedirs(name.rsplit("/", 1)[0], exist_ok=True)
    try:
        write(beside)
        fs.mv(beside, place)
    except BaseException:
        with contextlib.suppress(Exception):
            fs.rm_file(beside)
        raise


def _size(fs: Any, place: str) -> int | None:
    try:
        found: int | None = fs.info(place).get("size")
    except FileNotFoundError:
        return None
    return found


# -- addresses ---------------------------------------------------------------------------------------


def protocol_of(url: str) -> str:
    """The protocol of an address; ``file`` for a path."""
    return url.split("://", 1)[0] if "://" in url else "file"


def protocols(fs: Any) -> frozenset[str]:
    """What a file system calls itself."""
    named = fs.protocol
    return frozenset({named} if isinstance(named, str) else named)


def _check_known(kind: str, shown: str) -> None:
    from fsspec.registry import known_implementations, registry

    if kind not in known_implementations and kind not in registry:
        raise ConfigError(
            f"remote store {shown}: nothing opens {kind}://",
            cause="fsspec knows no such protocol",
            next_step="give a folder, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX",
        )


def _open(url: str, kind: str, options: Mapping[str, object], timeout: float) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    defaults: dict[str, object] = {"skip_instance_cache": kind != "memory"}
    if kind in ("s3", "s3a"):
        seconds = {"connect_timeout": timeout / 2, "read_timeout": timeout}
        defaults |= {"use_listings_cache": False, "config_kwargs": seconds}
    elif kind in ("gs", "gcs"):
        defaults |= {"use_listings_cache": False}
    try:
        fs, base = url_to_fs(url, **(defaults | dict(options)))
    except ImportError as error:
        extra = _EXTRAS.get(kind)
        named = f"pip install 'paddlefleet-farm[{extra}]'" if extra else str(error)
        raise ConfigError(
            f"remote store {without_credentials(url)}: the package that opens {kind}:// is missing",
            cause=without_credentials(str(error)),
            next_step=named,
        ) from error
    return fs, base.rstrip("/")


def _entry_path(digest: str) -> str:
    return f"entries/{digest[:2]}/{digest}.json"


def _blob_path(sha256: str) -> str:
    return f"blobs/{sha256[:2]}/{sha256}"


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}..."
