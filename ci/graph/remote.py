"""The remote tier of the store: a shared folder, S3, GCS, or what else fsspec reaches.

Layout: ``entries/ab/KEY.json`` and ``blobs/ab/SHA256``; an entry is written after its contents. Nothing that
comes from it is believed: sizes and hashes are compared, and what does not fit is told of and not used.

A build never fails because of it. Every operation has a time limit and runs in a thread that does not keep
the process alive; the first failure of the store (not of one object) is one warning, then it is left alone
for the rest of the run.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from ci.errors import ConfigError
from ci.graph import transfer
from ci.graph.blobs import sha256_of
from ci.graph.entries import Entry, to_bytes
from ci.graph.transfer import LocalError, Tick, side_by_side, without_credentials

Mode = Literal["read", "write"]
Result = TypeVar("Result")

TIMEOUT_SECONDS = 15.0
SLOWEST_BYTES_PER_SECOND = 1024 * 1024
"""What is slower than this is not worth waiting for: a limit grows by a second for each MiB at once."""
_PART_BYTES = 100 * 1024 * 1024
"""Up to this size s3fs sends an object in one request, without a word in between."""
_MOST_WORDS = 300


@dataclass(frozen=True)
class _Upload:
    entry: Entry
    path: Callable[[str], Path]


class Remote:
    """The remote store at ``url``: an fsspec address, or the path of a shared folder.

    ``mode`` ``read`` never writes and never deletes: for runs of code that is not trusted. ``options`` go to
    fsspec's file system, above its own configuration (``FSSPEC_S3_ENDPOINT_URL``, ``AWS_ENDPOINT_URL``).
    ``warn`` is told what went wrong (``None``: what the store that it belongs to tells). ``timeout`` are the
    seconds without progress after which it counts as dead. Raises :class:`~ci.errors.ConfigError` for an
    address that nothing can open.
    """

    def __init__(
        self,
        url: str,
        *,
        mode: Mode = "read",
        warn: Callable[[str], None] | None = None,
        timeout: float = TIMEOUT_SECONDS,
        options: Mapping[str, object] | None = None,
    ) -> None:
        transfer.check_known(url)
        self.shown = without_credentials(url)
        self.mode = mode
        self.why_off = ""
        self.warn = warn
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

    @property
    def is_off(self) -> bool:
        """True when the store failed in this run, and is not asked any more."""
        return bool(self.why_off)

    # -- reading -----------------------------------------------------------------------------------

    def entry(self, digest: str) -> bytes | None:
        """The entry of a key as it is there; ``None`` when there is none, or the store is off."""
        path = _entry_path(digest)
        return self._guarded(
            "read an entry", lambda fs, base, _: transfer.read_entry(fs, f"{base}/{path}"), 0
        )

    def reject_entry(self, digest: str, why: str) -> None:
        """Note that an entry is bad: it is told of, and replaced by the next upload of its key."""
        self._reject(_entry_path(digest), f"the entry {digest[:12]}", why)

    def blobs(self, digest: str, wanted: Sequence[tuple[str, int]], folder: Path) -> bool:
        """Download contents of the entry of ``digest``, by hash and size, as ``folder/SHA256``; all verified.

        False when one of them is missing, bad (told of), or the store is off. Raises ``OSError`` of this
        machine's disk only.
        """
        good = side_by_side(lambda item: self._blob(*item, folder / item[0]), wanted)
        if not good:
            self._rejected.add(_entry_path(digest))  # it refers to what is not there
        return good

    def _blob(self, sha256: str, size: int, target: Path) -> bool:
        path = _blob_path(sha256)

        def read(fs: Any, base: str, tick: Tick) -> str:
            return transfer.read_content(fs, f"{base}/{path}", target, size, tick)

        problem = self._guarded("read a file", read, size)
        if problem is None:
            return False
        if not problem and sha256_of(target)[0] != sha256:
            problem = "it has another content than its name says"
        if problem:
            self._reject(path, f"the content {sha256[:12]}", problem)
            return False
        target.chmod(0o444)
        return True

    def _reject(self, path: str, what: str, why: str) -> None:
        self._rejected.add(path)
        self._tell(f": {what} was not used: {why}; building it here")

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
                self._turn_off(f"cannot upload: {_said(error)}")
            finally:
                with self._idle:
                    self._pending -= 1
                    self._idle.notify_all()

    def _send(self, upload: _Upload) -> None:
        entry, path = upload.entry, _entry_path(upload.entry.key)
        if self._is_there(path):
            return

        def content(item: tuple[str, int]) -> bool:
            sha256, size = item
            source = str(upload.path(sha256))
            return self._object(
                _blob_path(sha256), size, lambda fs, place: fs.put_file(source, place)
            )

        data = to_bytes(entry)
        if side_by_side(content, sorted(entry.blobs.items())):
            self._object(path, len(data), lambda fs, place: fs.pipe_file(place, data))

    def _is_there(self, path: str) -> bool:
        """True when an entry, and so its contents, are there, and were not found bad."""
        if path in self._rejected:
            return False

        def asked(fs: Any, base: str, _: Tick) -> bool:
            return transfer.size_of(fs, f"{base}/{path}") is not None

        return self._guarded("ask for an entry", asked, 0) is not False

    def _object(self, path: str, size: int, write: Callable[[Any, str], object]) -> bool:
        """Write an object, unless one of this size is there and was not found bad."""
        again = path in self._rejected

        def send(fs: Any, base: str, tick: Tick) -> bool:
            place = f"{base}/{path}"
            if again or transfer.size_of(fs, place) != size:
                tick()
                transfer.put(fs, place, lambda name: write(fs, name), base)
            return True

        sent = self._guarded("write a file", send, size) is not None
        if sent:
            self._rejected.discard(path)
        return sent

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
            return transfer.within(run, limit)
        except ConfigError:
            raise
        except LocalError as error:
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
            opened = transfer.open_file_system(self._url, self._options, self._timeout)
            with self._lock:
                self._opened = opened
        return opened

    def _turn_off(self, why: str) -> None:
        with self._idle:
            if self.is_off:
                return
            self.why_off = self._public(why)
            self._idle.notify_all()
        self._tell(f" is left alone for the rest of this run: {self.why_off}")

    def _public(self, text: str) -> str:
        """``text`` without what the address says of a user: packages quote parts of it."""
        user = self._url.partition("://")[2].partition("/")[0].rpartition("@")[0]
        for secret in (f"{user}@", user, user.partition(":")[2]):
            text = text.replace(secret, "") if user and secret else text
        return without_credentials(text)

    def _tell(self, text: str) -> None:
        if self.warn is not None:
            self.warn(f"remote store {self.shown}{text}")


def open_remote(url: str, *, writable: bool) -> Remote:
    """The remote store at ``url``, for a :class:`~ci.graph.store.Store`, whose warnings it shares.

    Opens no connection. Raises what :class:`Remote` raises.
    """
    return Remote(url, mode="write" if writable else "read")


def _entry_path(digest: str) -> str:
    return f"entries/{digest[:2]}/{digest}.json"


def _blob_path(sha256: str) -> str:
    return f"blobs/{sha256[:2]}/{sha256}"


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MOST_WORDS else f"{text[:_MOST_WORDS]}..."
