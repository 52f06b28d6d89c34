"""The hash of a source tree without reading what has not changed.

An index in the cache folder remembers each file's size, times and inode, and the SHA-256 of its content, as
git's index does. The result is that of ``build_manifest.tree_hash``, byte for byte.

Trusting times has a trap that git calls racy: a file that is changed in the same tick of the clock in which
it was hashed looks as before. So a file whose times are not clearly older than the moment of hashing is
read again the next time (git's documentation, "Racy Git"). The inode's own time (ctime), which no program
can set, tells of contents that were changed and given their old modification time. Only on a network disk
whose clock lags, two changes in one tick with a run between them could pass; the copy that is built from is
hashed without an index, and would differ.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci.registry import build_manifest

_FORM = 1
_TRUSTED_AFTER_NS = (
    2_000_000_000  # the coarsest clock of a file system (FAT) ticks every two seconds
)
_KEPT_SECONDS = 60 * 24 * 3600

Known = tuple[int, int, int, int, str]
"""Size in bytes, mtime and ctime in nanoseconds, inode, and SHA-256 in hexadecimal digits."""


def hashed_tree(folder: Path, cache_dir: Path) -> str:
    """The hash of the sources below ``folder``: ``sha256:…``, as ``build_manifest.tree_hash`` gives it.

    The index is kept below ``cache_dir``, one for each folder. Safe for many processes at once: an index is
    replaced as a whole, and any of them is right. One that is gone, damaged or cannot be written only costs
    time. Raises :class:`OSError` when a source file cannot be read.
    """
    with _index(folder, cache_dir) as index:
        return build_manifest.tree_hash(folder, index.hashed_entry)


def hashed_file(path: Path, cache_dir: Path) -> str:
    """The SHA-256 of one file, 64 hexadecimal digits, with an index as :func:`hashed_tree` has one: for large
    files such as compilers. Raises :class:`OSError` when it cannot be read.
    """
    with _index(path, cache_dir) as index:
        return index.hashed("", path.stat(), lambda: _content_hash(path)).hex()


def _content_hash(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while block := source.read(1 << 20):
            digest.update(block)
    return digest.digest()


@contextlib.contextmanager
def _index(path: Path, cache_dir: Path) -> Iterator[_Index]:
    place = _place(path, cache_dir)
    index = _Index(_load(place), time.time_ns())
    yield index
    if index.trusted != index.known:
        _store(place, index.trusted)


@dataclass
class _Index:
    """What is known from the last time, and what may be trusted the next time."""

    known: dict[str, Known]
    now: int
    trusted: dict[str, Known] = field(default_factory=dict)

    def hashed_entry(self, name: str, entry: os.DirEntry[str]) -> bytes:
        """The SHA-256 of a file of a tree, 32 bytes."""
        stat = entry.stat(follow_symlinks=False)
        return self.hashed(name, stat, lambda: build_manifest.content_hash(name, entry))

    def hashed(self, name: str, stat: os.stat_result, read: Callable[[], bytes]) -> bytes:
        """The SHA-256 of a file. The stat comes first: a change while it is read shows the next time."""
        known = self.known.get(name)
        stamp = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
        if known is None or known[:4] != stamp:
            known = (*stamp, read().hex())
        if max(stat.st_mtime_ns, stat.st_ctime_ns) < self.now - _TRUSTED_AFTER_NS:
            self.trusted[name] = known
        return bytes.fromhex(known[4])


def _place(path: Path, cache_dir: Path) -> Path:
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:24]
    return cache_dir / "trees" / f"{name}.json"


def _load(place: Path) -> dict[str, Known]:
    """The index, or nothing when it is not there or not one of this form."""
    try:
        held = json.loads(place.read_text("utf-8"))
        if held["form"] != _FORM:
            return {}
        return {name: _known(item) for name, item in held["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _known(item: list[Any]) -> Known:
    size, mtime, ctime, inode, sha256 = item
    if len(bytes.fromhex(sha256)) != hashlib.sha256().digest_size:
        raise ValueError(f"{sha256} is no SHA-256")
    return (int(size), int(mtime), int(ctime), int(inode), sha256)


def _store(place: Path, files: dict[str, Known]) -> None:
    """Replace the index as a whole, and drop those that nobody has replaced for long."""
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor, scratch = tempfile.mkstemp(dir=place.parent, prefix=".new-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as target:
                json.dump({"form": _FORM, "files": files}, target, separators=(",", ":"))
            os.replace(scratch, place)
        except OSError:
            Path(scratch).unlink(missing_ok=True)
            raise
        _drop_old(place.parent)


def _drop_old(folder: Path) -> None:
    oldest = time.time() - _KEPT_SECONDS
    for path in folder.iterdir():
        if path.stat().st_mtime < oldest:
            path.unlink(missing_ok=True)
