"""Write a ZIP file once, front to back, its members compressed by threads.

The caller's thread reads, hashes and writes; a pool compresses blocks (:mod:`ci.wheel.deflate`). No more
blocks are in flight than a few for each thread, so memory does not depend on what is written. The bytes do
not depend on the number of threads.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import IO, Protocol

from ci.wheel.deflate import BLOCK, LEVEL, WINDOW, deflate_block
from ci.wheel.zip_records import (
    DEFLATED,
    STORED,
    Entry,
    Time,
    central_header,
    end_records,
    local_header,
    needs_room,
)

_MOST_THREADS = 32


class Readable(Protocol):
    """Where the content of a member comes from."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; ``b""`` at the end."""


@dataclass(frozen=True)
class Content:
    """What was read for a member: the hash (hex sha256) and the size in bytes."""

    sha256: str
    size: int


@dataclass
class _Member:
    """A member on its way: what is known of it grows until its last block is written."""

    entry: Entry
    crc: int = 0
    size: int = 0
    compressed: int = 0
    started: bool = False


@dataclass(frozen=True)
class _Block:
    member: _Member
    data: bytes
    packed: Future[bytes] | None
    last: bool


def own_cpus() -> int:
    """How many CPUs this process may use."""
    return len(os.sched_getaffinity(0))


@dataclass
class ZipWriter:
    """A ZIP file that is being written to the seekable ``sink``, with one time ``at`` for all members.

    ``jobs`` threads compress; level 0 stores everything. Use it in a ``with`` block, whose regular end writes
    the central directory.
    """

    sink: IO[bytes]
    at: Time
    jobs: int = field(default_factory=own_cpus)
    level: int = LEVEL

    def __post_init__(self) -> None:
        threads = max(1, min(self.jobs, _MOST_THREADS))
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="deflate")
        self._most = 2 * threads + 2
        self._waiting: deque[_Block] = deque()
        self._entries: list[Entry] = []
        self._position = self.sink.tell()

    def __enter__(self) -> ZipWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            self._pool.shutdown(cancel_futures=True)

    def add(self, name: str, mode: int, size: int, source: Readable) -> Content:
        """Add a member of ``size`` bytes, read from ``source``; ``mode`` are its Unix bits and file type.

        Raises :class:`ValueError` when ``source`` has another size than announced.
        """
        method = DEFLATED if self.level else STORED
        entry = Entry(name, mode, method, 0, 0, 0, 0, roomy=needs_room(size))
        member, digest, before = _Member(entry), hashlib.sha256(), b""
        for data, last in _blocks(source):
            digest.update(data)
            member.crc = zlib.crc32(data, member.crc)
            member.size += len(data)
            if member.size > size:
                break
            self._put(member, data, before, last)
            before = data[-WINDOW:]
        if member.size != size:
            raise ValueError(f"{name} was announced with {size} bytes and is another size")
        return Content(digest.hexdigest(), size)

    def _put(self, member: _Member, data: bytes, before: bytes, last: bool) -> None:
        packed = None
        if self.level:
            packed = self._pool.submit(deflate_block, data, before, last=last, level=self.level)
        self._waiting.append(_Block(member, data, packed, last))
        while len(self._waiting) > self._most:
            self._write(self._waiting.popleft())

    def _write(self, block: _Block) -> None:
        member = block.member
        packed = block.data if block.packed is None else block.packed.result()
        if not member.started:
            self._begin(member, block, packed)
        if member.entry.method == STORED:
            packed = block.data
        member.compressed += len(packed)
        self.sink.write(packed)
        self._position += len(packed)
        if block.last:
            self._end(member)

    def _begin(self, member: _Member, block: _Block, packed: bytes) -> None:
        """The local header. A member of one block that did not get smaller is stored."""
        method = member.entry.method
        if block.last and len(packed) >= len(block.data):
            method, packed = STORED, block.data
        member.entry = replace(member.entry, method=method, offset=self._position)
        if block.last:
            member.entry = _complete(member, len(packed))
        member.started = True
        header = local_header(member.entry, self.at)
        self.sink.write(header)
        self._position += len(header)

    def _end(self, member: _Member) -> None:
        """Now that they are known, put checksum and sizes into the local header, if they are not there."""
        entry = _complete(member, member.compressed)
        if entry != member.entry:
            self.sink.seek(entry.offset)
            self.sink.write(local_header(entry, self.at))
            self.sink.seek(self._position)
        self._entries.append(entry)

    def _finish(self) -> None:
        while self._waiting:
            self._write(self._waiting.popleft())
        start = self._position
        length = 0
        for entry in self._entries:
            header = central_header(entry, self.at)
            self.sink.write(header)
            length += len(header)
        self.sink.write(end_records(len(self._entries), length, start))


def _complete(member: _Member, compressed: int) -> Entry:
    return replace(member.entry, crc=member.crc, size=member.size, compressed=compressed)


def _blocks(source: Readable) -> Iterator[tuple[bytes, bool]]:
    """The content in blocks of ``BLOCK`` bytes, each with whether it is the last; at least one."""
    data = _full(source)
    while True:
        following = _full(source) if len(data) == BLOCK else b""
        yield data, not following
        if not following:
            return
        data = following


def _full(source: Readable) -> bytes:
    """``BLOCK`` bytes, or what is left: a reader may give less than it was asked for."""
    data = source.read(BLOCK)
    if not data or len(data) == BLOCK:
        return data
    parts, missing = [data], BLOCK - len(data)
    while missing and (more := source.read(missing)):
        parts.append(more)
        missing -= len(more)
    return b"".join(parts)
