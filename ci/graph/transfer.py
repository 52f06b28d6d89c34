"""Single operations on a remote file system, each bounded in time and whole or not at all."""

from __future__ import annotations

import contextlib
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any, TypeVar

from ci.errors import ConfigError

Item = TypeVar("Item")
Result = TypeVar("Result")
Tick = Callable[[], None]

BLOCK_BYTES = 4 * 1024 * 1024
MOST_AT_ONCE = 8
MOST_ENTRY_BYTES = 256 * 1024 * 1024
_BESIDE = "unfinished"
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
_WHOLE_AT_ONCE = frozenset({"s3", "s3a", "gs", "gcs", "memory"})
"""Protocols where an object appears whole or not at all; elsewhere it is written beside and renamed."""
_USER = re.compile(r"(?<=://)[^\s/?#\"']*@")
_SECRET = re.compile(
    r"(?i)\b((?:x-amz-(?:signature|credential|security-token)|signature|sig|token|access_?token|secret|"
    r"password|api_?key|awsaccesskeyid|key)=)[^&\s\"']+"
)


def without_credentials(text: str) -> str:
    """``text`` without the user and password of an address, and without signatures in its query."""
    return _SECRET.sub(r"\1...", _USER.sub("", text))


class LocalError(Exception):
    """Not the store failed, but the disk of this machine."""

    def __init__(self, original: OSError) -> None:
        super().__init__(str(original))
        self.original = original


# -- time --------------------------------------------------------------------------------------------


def within(work: Callable[[Tick], Result], seconds: float) -> Result:
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
    while not outcome.done():
        left = last[0] + seconds - time.monotonic()
        if left <= 0:
            raise TimeoutError
        with contextlib.suppress(FutureTimeoutError, TimeoutError):
            outcome.exception(timeout=left)
    return outcome.result()


def side_by_side(work: Callable[[Item], bool], items: Sequence[Item]) -> bool:
    """``work`` of every item, several at once, until one says false; false then. Raises what it raises."""
    waiting, failed = list(reversed(items)), threading.Event()
    lock = threading.Lock()
    errors: list[BaseException] = []

    def worker() -> None:
        while not failed.is_set():
            with lock:
                if not waiting:
                    return
                item = waiting.pop()
            try:
                good = work(item)
            except BaseException as error:
                errors.append(error)
                good = False
            if not good:
                failed.set()

    threads = [
        threading.Thread(target=worker, name="remote store files", daemon=True)
        for _ in range(min(MOST_AT_ONCE, len(items)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return not failed.is_set()


# -- reading -----------------------------------------------------------------------------------------


def read_entry(fs: Any, place: str) -> bytes | None:
    """An entry's bytes, or ``None`` when there is none. One that is too large to be one is cut."""
    try:
        return _range(fs, place, MOST_ENTRY_BYTES)
    except FileNotFoundError:
        return None


def read_content(fs: Any, place: str, target: Path, size: int, tick: Tick) -> str:
    """Copy an object that should have ``size`` bytes to the new file ``target``. Returns what is wrong with
    it; its hash is the caller's to compare. Raises :class:`LocalError`, and what the file system raises.
    """
    if not size:
        _write(target, b"")
        return ""
    try:
        if size <= BLOCK_BYTES:
            data = _range(fs, place, size + 1)
            _write(target, data)
            return _length_problem(len(data), size)
        there = fs.info(place).get("size")
        if there is not None and there != size:
            return _length_problem(there, size)
        tick()
        return _length_problem(download(fs, place, target, size, tick), size)
    except FileNotFoundError:
        return "it is missing"


def download(fs: Any, place: str, target: Path, size: int, tick: Tick) -> int:
    """Copy an object in blocks; stops once it is longer than it should be. Returns the bytes written."""
    done = 0
    with fs.open(place, "rb", block_size=BLOCK_BYTES, cache_type="readahead") as reading:
        while done <= size and (chunk := reading.read(BLOCK_BYTES)):
            tick()
            _write(target, chunk, "ab")
            done += len(chunk)
    return done


def _range(fs: Any, place: str, most: int) -> bytes:
    """The first bytes of an object. S3 answers an empty object's range with an error (416)."""
    try:
        data: bytes = fs.cat_file(place, start=0, end=most)
    except FileNotFoundError:
        raise
    except Exception:
        if size_of(fs, place) == 0:
            return b""
        raise
    return data


def _write(target: Path, data: bytes, mode: str = "wb") -> None:
    try:
        with target.open(mode) as file:
            file.write(data)
    except OSError as error:
        raise LocalError(error) from error


def _length_problem(there: int, size: int) -> str:
    if there == size:
        return ""
    return f"it has {'more than ' * (there > size)}{min(there, size)} bytes, not {size}"


def size_of(fs: Any, place: str) -> int | None:
    """Bytes of an object; ``None`` when it is not there."""
    try:
        found: int | None = fs.info(place).get("size")
    except FileNotFoundError:
        return None
    return found


# -- writing -----------------------------------------------------------------------------------------


def put(fs: Any, place: str, write: Callable[[str], object], base: str) -> None:
    """Make the object at ``place``, whole or not at all."""
    named = fs.protocol
    if _WHOLE_AT_ONCE & frozenset({named} if isinstance(named, str) else named):
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


# -- addresses ---------------------------------------------------------------------------------------


def protocol_of(url: str) -> str:
    """The protocol of an address; ``file`` for a path."""
    return url.split("://", 1)[0] if "://" in url else "file"


def check_known(url: str) -> None:
    """Raise :class:`~ci.errors.ConfigError` for an address with a protocol that fsspec does not know."""
    from fsspec.registry import known_implementations, registry

    kind = protocol_of(url)
    if kind not in known_implementations and kind not in registry:
        raise ConfigError(
            f"remote store {without_credentials(url)}: nothing opens {kind}://",
            cause="fsspec knows no such protocol",
            next_step="give a folder, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX",
        )


def open_file_system(url: str, options: Mapping[str, object], timeout: float) -> tuple[Any, str]:
    """The file system of ``url`` and the path in it. Raises :class:`~ci.errors.ConfigError` when the package
    that opens it is missing.
    """
    from fsspec.core import url_to_fs

    kind = protocol_of(url)
    defaults: dict[str, object] = {"skip_instance_cache": kind != "memory"}
    if kind in _EXTRAS:
        defaults["use_listings_cache"] = False
    if _EXTRAS.get(kind) == "s3":
        defaults["config_kwargs"] = {"connect_timeout": timeout / 2, "read_timeout": timeout}
    try:
        fs, base = url_to_fs(url, **(defaults | dict(options)))
    except ImportError as error:
        extra = _EXTRAS.get(kind)
        raise ConfigError(
            f"remote store {without_credentials(url)}: the package that opens {kind}:// is missing",
            cause=without_credentials(str(error)),
            next_step=f"pip install 'paddlefleet-farm[{extra}]'" if extra else str(error),
        ) from error
    return fs, base.rstrip("/")
