"""Looking at a store: what it holds, whether it is whole, and why two results of one step are not one."""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ci.errors import ConfigError
from ci.graph.entries import Entry
from ci.graph.key import Key
from ci.graph.leases import Lease
from ci.graph.store import Listed, Store

SHOWN_DIGITS = 12
_NEAR = 3


@dataclass(frozen=True)
class Share:
    """What the results of one library or step take: ``bytes`` of all files, before contents are shared."""

    name: str
    entries: int
    bytes: int


@dataclass(frozen=True)
class User:
    """A living process that uses the store, and how many keys it holds."""

    host: str
    pid: str
    keys: int


@dataclass(frozen=True)
class Statistics:
    """What a store holds. ``blob_bytes`` is what the disk has, ``file_bytes`` what the entries' files would
    take without sharing, ``unreferenced_bytes`` what no entry refers to. Times are seconds before now.
    """

    entries: int
    unreadable: int
    blobs: int
    blob_bytes: int
    file_bytes: int
    unreferenced_bytes: int
    by_name: tuple[Share, ...]
    oldest_use_seconds: float | None
    newest_use_seconds: float | None
    users: tuple[User, ...]

    @property
    def saved_bytes(self) -> int:
        """What sharing equal contents saves."""
        return max(0, self.file_bytes - (self.blob_bytes - self.unreferenced_bytes))


@dataclass(frozen=True)
class Problem:
    """An entry, or a content that no entry refers to, that is not as it was put."""

    key: str
    why: str


@dataclass(frozen=True)
class Verified:
    """What a reading of the whole store found."""

    entries: int
    blobs: int
    bytes: int
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Change:
    """An input that differs between two keys; ``None`` where it is not an input."""

    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True)
class Why:
    """An entry, and how its key differs from that of the newest other entry of the same step."""

    entry: Entry
    last_use: float
    other: Entry | None
    changes: tuple[Change, ...]


def statistics(store: Store) -> Statistics:
    """What ``store`` holds, without reading contents."""
    listed, sizes = list(store.entries()), store.blobs.sizes()
    now = time.time()
    referenced = {sha256 for item in listed for sha256 in item.entry.blobs}
    shares: dict[str, list[int]] = {}
    for item in listed:
        shares.setdefault(item.entry.name, []).append(item.entry.size)
    uses = [now - item.last_use for item in listed]
    return Statistics(
        entries=len(listed),
        unreadable=max(0, len(store.digests()) - len(listed)),
        blobs=len(sizes),
        blob_bytes=sum(sizes.values()),
        file_bytes=sum(item.entry.size for item in listed),
        unreferenced_bytes=sum(size for sha256, size in sizes.items() if sha256 not in referenced),
        by_name=tuple(
            Share(name, len(found), sum(found)) for name, found in sorted(shares.items())
        ),
        oldest_use_seconds=max(uses, default=None),
        newest_use_seconds=min(uses, default=None),
        users=tuple(User(lease.host, lease.pid, len(lease.keys)) for lease in _living(store)),
    )


def _living(store: Store) -> Sequence[Lease]:
    try:
        return store.leases.living()
    except OSError:  # a store that may only be read: nobody can ask its file system for the time
        return ()


def verify(store: Store, *, remove: bool) -> Verified:
    """Read every entry and every content of ``store``; ``remove`` drops what is bad."""
    problems, contents = [], store.blobs.sizes()
    digests = sorted(store.digests())
    for digest in digests:
        why = store.problem(digest, remove=remove)
        if why:
            problems.append(Problem(digest, why))
    for sha256 in sorted(contents):
        why, seen = store.blobs.problem(sha256, contents[sha256])
        if why and seen is not None:
            problems.append(Problem(sha256, f"a content that {why}"))
            if remove:
                store.blobs.drop(sha256, seen)
    return Verified(len(digests), len(contents), sum(contents.values()), tuple(problems))


def why(store: Store, asked: str) -> Why:
    """The entry whose key begins with ``asked``, or the newest of the library or step of that name.

    Raises :class:`~ci.errors.ConfigError` with the nearest ones when there is none, or several.
    """
    listed = list(store.entries())
    found = _chosen(listed, asked)
    others = [
        item.entry
        for item in listed
        if item.entry.name == found.entry.name and item.entry.key != found.entry.key
    ]
    other = max(others, key=lambda entry: (entry.made, entry.key), default=None)
    return Why(found.entry, found.last_use, other, _changes(other, found.entry))


def _changes(old: Entry | None, new: Entry) -> tuple[Change, ...]:
    if old is None:
        return ()
    differing = Key.of(old.inputs).difference(Key.of(new.inputs))
    return tuple(Change(name, *values) for name, values in differing.items())


def _chosen(listed: Sequence[Listed], asked: str) -> Listed:
    by_key = [item for item in listed if item.entry.key.startswith(asked)]
    if len(by_key) == 1:
        return by_key[0]
    named = [item for item in listed if item.entry.name == asked]
    if named and not by_key:
        return max(named, key=lambda item: (item.entry.made, item.entry.key))
    if by_key:
        raise ConfigError(
            f"{len(by_key)} keys begin with {asked!r}",
            cause="the prefix is too short",
            next_step="give more digits: " + ", ".join(_labels(by_key[:_NEAR])),
        )
    raise ConfigError(
        f"no result with the key {asked!r} is stored",
        cause=_nearest(listed, asked),
        next_step="python -m ci cache stats",
    )


def _nearest(listed: Sequence[Listed], asked: str) -> str:
    """The stored results whose key or name is spelled most like ``asked``."""
    digits = max(1, min(len(asked), SHOWN_DIGITS))
    words = {item.entry.key[:digits]: item for item in listed} | {
        item.entry.name: item for item in listed
    }
    near = difflib.get_close_matches(asked[:64], list(words), n=_NEAR, cutoff=0.3)
    if not near:
        return "the store is empty" if not listed else "it was never built here, or was evicted"
    return f"nearest: {', '.join(dict.fromkeys(_labels([words[word] for word in near])))}"


def _labels(listed: Sequence[Listed]) -> list[str]:
    return [f"{item.entry.key[:SHOWN_DIGITS]} ({item.entry.name})" for item in listed]
