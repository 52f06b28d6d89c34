"""Folders of a run below the cache's ``work``: unlike those of any other run, gone when nobody works there.

A lock file beside a folder is held while it is used. The kernel lets go of it when a process ends, however
it ends, so what a killed run left is found by trying the lock, on every host that shares the cache.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def work_folder(cache_dir: Path, name: str) -> Iterator[Path]:
    """A new folder for ``name``; what is in it is gone afterwards."""
    parent = cache_dir / "work"
    parent.mkdir(parents=True, exist_ok=True)
    # The folder of locks is there first, so that nobody sweeps a folder before it is locked.
    with FileLock(parent / ".sweep.lock"):
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))
        lock = FileLock(_lock_of(folder))
        lock.acquire()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _lock_of(folder).unlink(missing_ok=True)
        lock.release()


def sweep(cache_dir: Path) -> tuple[str, ...]:
    """Remove the folders of runs that are over; their names."""
    parent = cache_dir / "work"
    if not parent.is_dir():
        return ()
    with FileLock(parent / ".sweep.lock"):
        left = [path for path in sorted(parent.iterdir()) if path.is_dir() and _left(path)]
    return tuple(path.name for path in left)


def _left(folder: Path) -> bool:
    lock = FileLock(_lock_of(folder))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        _lock_of(folder).unlink()
    lock.release()
    return True


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")
