"""An entry of the store: what it says, as a value and as a file that shows when it was changed or cut."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Literal

from ci.graph.blobs import StoredFile, link_problem, path_problem

SCHEMA = 2
Origin = Literal["local", "remote"]
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Entry:
    """A stored result. ``key`` is the digest of its key, ``inputs`` the named inputs behind it, ``meta`` what
    the caller recorded, ``made`` when and ``host`` where it was put (by that host's clock), ``origin`` where
    this run found it.
    """

    key: str
    files: tuple[StoredFile, ...]
    meta: Mapping[str, object]
    inputs: Mapping[str, str]
    made: str = ""
    host: str = ""
    origin: Origin = field(default="local", compare=False)

    @property
    def content(self) -> str:
        """SHA-256 over the files: paths, contents, executable bits, links. Results with equal files have an
        equal content, whatever their keys.
        """
        return hashlib.sha256(_dump([_as_list(item) for item in self.files])).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(item.size for item in self.files)

    @property
    def name(self) -> str:
        """What it is a result of: the library or the step that its maker named, else the start of the key."""
        for source, name in ((self.meta, "library"), (self.meta, "step"), (self.inputs, "library")):
            if source.get(name):
                return str(source[name])
        return self.key[:12]

    @property
    def blobs(self) -> dict[str, int]:
        """SHA-256 to bytes of every content, each once."""
        return {item.sha256: item.size for item in self.files if item.link is None}

    def from_remote(self) -> Entry:
        """The entry, found in the remote store."""
        return replace(self, origin="remote")


class BadEntryError(ValueError):
    """An entry's file that is not what was written. The text says what is wrong."""


def to_bytes(entry: Entry) -> bytes:
    """The entry as a JSON file, with a hash over itself."""
    body = {
        "schema": SCHEMA,
        "key": entry.key,
        "inputs": dict(entry.inputs),
        "meta": dict(entry.meta),
        "made": entry.made,
        "host": entry.host,
        "files": [_as_list(item) for item in entry.files],
    }
    return _dump({"sha256": hashlib.sha256(_dump(body)).hexdigest(), "entry": body}) + b"\n"


def from_bytes(data: bytes, digest: str) -> Entry:
    """The entry that ``data`` holds, for the key with this digest.

    Every path and link is checked, because a remote store may be written by others. Raises
    :class:`BadEntryError`.
    """
    try:
        document = json.loads(data)
        body = document["entry"]
        if document["sha256"] != hashlib.sha256(_dump(body)).hexdigest():
            raise BadEntryError("its own hash does not fit: it was changed")
        if data != _dump(document) + b"\n":  # the same values in other letters: \u00FC for \u00fc
            raise BadEntryError("it is not as entries are written: it was changed")
        if body["schema"] != SCHEMA or body["key"] != digest:
            raise BadEntryError("it is the entry of another key, or of another farm's format")
        entry = Entry(
            key=digest,
            files=tuple(_from_list(item) for item in body["files"]),
            meta=dict(body["meta"]),
            inputs={str(name): str(value) for name, value in body["inputs"].items()},
            made=str(body["made"]),
            host=str(body["host"]),
        )
    except BadEntryError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadEntryError("it is not whole, or no entry at all") from error
    _check_files(entry.files)
    return entry


def _dump(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def _as_list(item: StoredFile) -> list[object]:
    return [item.path, item.sha256, item.size, item.executable, item.link]


def _from_list(values: Any) -> StoredFile:
    path, sha256, size, executable, link = values
    good = isinstance(path, str) and isinstance(sha256, str) and isinstance(executable, bool)
    if not good or type(size) is not int or size < 0 or not isinstance(link, (str, type(None))):
        raise BadEntryError(f"it lists no file: {values!r:.80}")
    return StoredFile(path, sha256, size, executable, link)


def _check_files(files: tuple[StoredFile, ...]) -> None:
    paths = {item.path for item in files}
    if len(paths) != len(files):
        raise BadEntryError("it lists a path twice")
    for item in files:
        problem = path_problem(item.path)
        if item.link is not None:
            problem = problem or link_problem(item.path, item.link)
        if problem:
            raise BadEntryError(f"{item.path!r:.80}: {problem}")
        if not (_HASH.fullmatch(item.sha256) if item.link is None else item.sha256 == ""):
            raise BadEntryError(f"{item.path!r:.80}: neither a file with a hash nor a link")
    parents = {str(parent) for item in files for parent in PurePosixPath(item.path).parents}
    if inside := sorted(parents & paths):
        raise BadEntryError(f"{inside[0]!r:.80} is a file, and others lie below it")
