"""What leaves a store: the least recently used, never what a living run uses; and what the dead left."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from dataclasses import dataclass, field
from os import stat_result
from pathlib import Path
from typing import TYPE_CHECKING

from ci.graph.entries import BadEntryError

if TYPE_CHECKING:
    from ci.graph.store import Store

HOLD_SECONDS = 0.25
"""How long removals keep the store's lock before others get their turn."""
_OLD_LAYOUT = re.compile(r"[0-9a-f]{2}")


@dataclass(frozen=True)
class Evicted:
    """An entry that was evicted: its key, what it was a result of, and when it was used last."""

    key: str
    name: str
    last_use: float


@dataclass(frozen=True)
class Collected:
    """What a collection did, or would do. Bytes are those of contents, each counted once. ``bad`` are entries
    that could not be read, ``kept`` those that were due but are in use.
    """

    evicted: tuple[Evicted, ...]
    bad: tuple[str, ...]
    kept: int
    freed_bytes: int
    left_bytes: int
    left_entries: int
    old_layout_bytes: int = 0


@dataclass
class _Known:
    """What is known of the entries: by digest the file that was read, and its contents."""

    files: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    contents: dict[str, dict[str, int]] = field(default_factory=dict)
    used: dict[str, float] = field(default_factory=dict)
    bad: set[str] = field(default_factory=set)

    def refresh(self, store: Store) -> None:
        """Read the entries that are new or were replaced; forget those that are gone."""
        there = store.digests()
        for digest in self.files.keys() - there.keys():
            self.forget(digest)
        for digest, status in there.items():
            self.used[digest] = status.st_mtime
            if self.files.get(digest) == _identity(status):
                continue
            self.forget(digest)
            self.files[digest], self.used[digest] = _identity(status), status.st_mtime
            try:
                entry = store.read(digest)
            except (OSError, BadEntryError):
                self.bad.add(digest)
            else:
                self.names[digest], self.contents[digest] = entry.name, entry.blobs

    def forget(self, digest: str) -> None:
        """Drop what is known of an entry."""
        for table in (self.files, self.names, self.contents, self.used):
            table.pop(digest, None)
        self.bad.discard(digest)

    def references(self) -> dict[str, int]:
        """How many entries refer to each content."""
        counts: dict[str, int] = {}
        for contents in self.contents.values():
            for sha256 in contents:
                counts[sha256] = counts.get(sha256, 0) + 1
        return counts


@dataclass
class _Round:
    """The plan of one hold of the lock, made and carried out step by step."""

    store: Store
    known: _Known
    sizes: dict[str, int]
    references: dict[str, int]
    left: int
    dry_run: bool
    freed: int = 0

    def drop_content(self, sha256: str) -> None:
        """Remove a content that nothing refers to."""
        size = self.sizes.pop(sha256, None)
        if size is None:
            return
        if not self.dry_run:
            with contextlib.suppress(FileNotFoundError):
                self.store.blobs.path(sha256).unlink()
        self.left -= size
        self.freed += size

    def drop_entry(self, digest: str) -> None:
        """Remove an entry, then the contents that were only its own."""
        if not self.dry_run:
            with contextlib.suppress(FileNotFoundError):
                self.store.entry_path(digest).unlink()
        for sha256 in self.known.contents.get(digest, {}):
            self.references[sha256] -= 1
            if not self.references[sha256]:
                self.drop_content(sha256)
        self.known.forget(digest)


def collect(store: Store, target: int | None, *, dry_run: bool) -> Collected:
    """See :meth:`~ci.graph.store.Store.gc`. Entries are read without the lock, and looked at again under it;
    removals give the lock away after a quarter of a second.
    """
    known = _Known()
    known.refresh(store)
    evicted: list[Evicted] = []
    bad: list[str] = []
    freed, finished, kept, left = 0, False, 0, 0
    while not finished:
        with store.exclusive():
            if not dry_run:
                sweep(store)
            known.refresh(store)
            this = _round(store, known, dry_run)
            until = time.monotonic() + HOLD_SECONDS if not dry_run else float("inf")
            bad += _drop_unreadable(this)
            _drop_unreferenced(this)
            finished, kept = _evict(this, target, store.leases.held(), until, evicted)
            freed, left = freed + this.freed, this.left
    old = _old_layout(store.root, dry_run)
    return Collected(
        evicted=tuple(evicted),
        bad=tuple(bad),
        kept=kept,
        freed_bytes=freed,
        left_bytes=left,
        left_entries=len(known.files),
        old_layout_bytes=old,
    )


def sweep(store: Store) -> None:
    """Remove the leases of the dead, and the files that they had not given a name yet. Under the lock."""
    living = store.leases.reclaim()
    temporary = store.home / "tmp"
    if temporary.is_dir():
        for folder in temporary.iterdir():
            if folder.name not in living:
                shutil.rmtree(folder, ignore_errors=True)


def _round(store: Store, known: _Known, dry_run: bool) -> _Round:
    sizes = store.blobs.sizes()
    return _Round(store, known, sizes, known.references(), sum(sizes.values()), dry_run)


def _drop_unreadable(this: _Round) -> list[str]:
    dropped = sorted(this.known.bad)
    for digest in dropped:
        this.drop_entry(digest)
    return dropped


def _drop_unreferenced(this: _Round) -> None:
    """Contents without an entry: a put was killed, or an eviction was, in the middle."""
    for sha256 in [sha256 for sha256 in this.sizes if sha256 not in this.references]:
        this.drop_content(sha256)


def _evict(
    this: _Round, target: int | None, held: frozenset[str], until: float, evicted: list[Evicted]
) -> tuple[bool, int]:
    """Evict until ``target`` is reached or the time is over. Returns whether all is done, and how many were
    kept because they are in use.
    """
    kept = 0
    if target is None:
        return True, kept
    for digest in sorted(this.known.contents, key=lambda key: this.known.used[key]):
        if this.left <= target:
            break
        if digest in held:
            kept += 1
            continue
        if time.monotonic() > until:
            return False, kept
        names, used = this.known.names, this.known.used
        evicted.append(Evicted(digest, names[digest], used[digest]))
        this.drop_entry(digest)
    return True, kept


def _identity(status: stat_result) -> tuple[int, int, int]:
    """What changes when an entry is replaced. (It changes too when it is used: then it is read once more.)"""
    return status.st_ino, status.st_size, status.st_mtime_ns


def _old_layout(root: Path, dry_run: bool) -> int:
    """Remove the results of the first layout (``ab/KEY/tree``), which nothing reads any more."""
    total = 0
    if not root.is_dir():
        return total
    for folder in root.iterdir():
        if _OLD_LAYOUT.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink():
            files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
            total += sum(path.stat().st_size for path in files)
            if not dry_run:
                shutil.rmtree(folder, ignore_errors=True)
    return total
