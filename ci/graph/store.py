"""The store of results: a folder per key, complete or absent, verified when it is read."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from ci.graph.key import Key
from ci.registry import build_manifest

REQUIRED_META = frozenset({"tree", "inputs"})


@dataclass(frozen=True)
class Entry:
    """A stored result: the folder with its files, and what was recorded beside it."""

    folder: Path
    meta: Mapping[str, object]


class Store:
    """Results by key below ``root``. Safe for several processes on one host."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, key: Key) -> Entry | None:
        """The result of ``key``, or ``None``. An entry whose content changed is removed, not used."""
        home = self._home(key)
        entry = _verified(home)
        if entry is None and home.exists():
            with FileLock(f"{home}.lock"):
                entry = _verified(home)  # another process may have put it anew meanwhile
                if entry is None:
                    shutil.rmtree(home, ignore_errors=True)
        return entry

    def put(self, key: Key, folder: Path, meta: Mapping[str, object]) -> Entry:
        """Store a copy of ``folder`` as the result of ``key``; it appears whole or not at all.

        A good result that is there already stays: another process may be reading it.
        """
        home = self._home(key)
        home.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{home}.lock"), tempfile.TemporaryDirectory(dir=home.parent) as scratch:
            present = _verified(home)
            if present is not None:
                return present
            staged = Path(scratch, "entry")
            shutil.copytree(folder, staged / "tree", symlinks=True)
            recorded = {
                **meta,
                "inputs": dict(key.inputs),
                "tree": build_manifest.tree_hash(staged / "tree"),
            }
            (staged / "meta.json").write_text(json.dumps(recorded, indent=1), "utf-8")
            shutil.rmtree(home, ignore_errors=True)
            os.replace(staged, home)
        return Entry(home / "tree", recorded)

    def _home(self, key: Key) -> Path:
        return self.root / key.digest[:2] / key.digest


def _verified(home: Path) -> Entry | None:
    """The entry in ``home`` when it is whole: its record can be read and its files are as recorded."""
    try:
        meta = json.loads((home / "meta.json").read_text("utf-8"))
        if not set(meta) >= REQUIRED_META:
            return None
        if build_manifest.tree_hash(home / "tree") != meta["tree"]:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Entry(home / "tree", meta)
