"""What a change to a checkout touches, as it was before, so that all of it can be undone.

Every place is noted before the first write: a file with its bytes and mode, a folder (which is set aside,
never deleted, until all went well), the gitlink in the index. Undoing restores what is noted whatever
had been done, so it does not matter where the change stopped.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ci.errors import FarmError, InfrastructureError
from ci.integration.scaffold.checkout import Checkout


@dataclass(frozen=True)
class _File:
    path: Path
    content: bytes | None
    mode: int

    @classmethod
    def of(cls, path: Path) -> _File:
        if path.is_file():
            return cls(path, path.read_bytes(), path.stat().st_mode)
        return cls(path, None, 0)

    def restore(self) -> None:
        if self.content is None:
            self.path.unlink(missing_ok=True)
        elif not self.path.is_file() or self.path.read_bytes() != self.content:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(self.content)
            self.path.chmod(self.mode & 0o7777)


class Journal:
    """The places of one change. As a context: undoes on any exception, also an interrupt.

    Raises :class:`~ci.errors.InfrastructureError` when something cannot be undone, naming it.
    """

    def __init__(self, checkout: Checkout) -> None:
        self._checkout = checkout
        self._undo: list[tuple[str, Callable[[], None]]] = []
        home = checkout.in_git_dir("integrate")
        home.parent.mkdir(parents=True, exist_ok=True)
        self.scratch = Path(tempfile.mkdtemp(dir=home.parent, prefix="integrate-"))

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with _uninterrupted():
            try:
                if kind is not None:
                    self.undo()
            finally:
                shutil.rmtree(self.scratch, ignore_errors=True)

    def note_file(self, path: Path) -> None:
        """Remember the content of ``path``, or that it is not there, and the folders that are missing."""
        self._note_missing_parents(path)
        self._undo.append((str(path), _File.of(path).restore))

    def note_folder(self, path: Path) -> None:
        """Remember whether the folder ``path`` is there, and empty (as git leaves a submodule's)."""
        self._note_missing_parents(path)
        if not path.exists():
            self._undo.append((str(path), lambda: _remove(path)))

    def note_gitlink(self, path: str) -> None:
        """Remember the commit that the index records for the submodule ``path``."""
        commit = self._checkout.gitlink(path)
        self._undo.append((f"gitlink {path}", lambda: self._checkout.record_gitlink(path, commit)))

    def set_aside(self, path: Path) -> None:
        """Take a folder away; it is deleted when all went well, and put back otherwise."""
        if not path.exists():
            return
        aside = self.scratch / f"aside-{len(self._undo)}"
        self._undo.append((str(path), lambda: _put_back(aside, path)))
        shutil.move(path, aside)

    def undo(self) -> None:
        """Restore every place, the last noted first."""
        said = [_complaint(place, restore) for place, restore in reversed(self._undo)]
        left = tuple(filter(None, said))
        self._undo.clear()
        if left:
            raise InfrastructureError(
                f"{len(left)} places could not be brought back to what they were",
                cause=left[0],
                next_step="git status, and mend these by hand",
                details=left,
            )

    def _note_missing_parents(self, path: Path) -> None:
        missing = [parent for parent in path.parents if not parent.exists()]
        for parent in reversed(missing):
            self._undo.append((str(parent), lambda folder=parent: _remove_empty(folder)))  # type: ignore[misc]


def _complaint(place: str, restore: Callable[[], None]) -> str:
    try:
        restore()
    except (OSError, FarmError) as error:
        return f"{place}: {error}"
    return ""


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        _make_writable(path)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _make_writable(path: Path) -> None:
    """A file is deleted with its folder's permission, which a source tree may have taken away."""
    for folder in (path, *(item for item in path.rglob("*") if item.is_dir())):
        if not folder.is_symlink():
            folder.chmod(folder.stat().st_mode | 0o700)


def _put_back(aside: Path, path: Path) -> None:
    if aside.exists():
        _remove_empty(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(aside, path)


def _remove_empty(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.rmdir()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let nothing stop an undo half way; only the main thread can say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
