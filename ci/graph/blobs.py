"""Files by the hash of their content: reading, hashing and copying them; nothing of keys or entries.

A blob is written once and never changed. Copies are made by the kernel where it can: a reflink on file
systems that share blocks (btrfs, XFS), else ``copy_file_range(2)``, else plain reads and writes. There are no
hard links: a build that wrote into its copy would write into the store.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

from ci.errors import LibraryBuildError

CHUNK_BYTES = 1024 * 1024
BIG_BYTES = 1024 * 1024
"""From this size on a file is worth a thread of its own."""

_FICLONE = 0x40049409
"""ioctl_ficlone(2): share the blocks of another file, copied when one of the two is written."""
_CANNOT_COPY = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY, errno.EPERM}
)
_MOST_THREADS = 8

Item = TypeVar("Item")
Result = TypeVar("Result")
Signature = tuple[int, int, int, int]


@dataclass(frozen=True, order=True)
class StoredFile:
    """A file of a result. ``path`` is relative with ``/``; ``link`` is the target of a symbolic link, which
    has no content (``sha256`` empty, ``size`` 0), and ``None`` for a file of ``size`` bytes.
    """

    path: str
    sha256: str
    size: int
    executable: bool = False
    link: str | None = None


# -- what a folder holds ---------------------------------------------------------------------------


@dataclass(frozen=True)
class FoundFile:
    """A file or a link below a folder, before it is read."""

    path: str
    size: int
    executable: bool
    link: str | None


def files_below(folder: Path) -> tuple[FoundFile, ...]:
    """Every file and link below ``folder``, sorted by path. Folders are there through their files: an empty
    one is not kept, as in a wheel.

    Raises :class:`~ci.errors.LibraryBuildError` for what cannot be stored: a link that leaves the folder, a
    device, a socket.
    """
    found: list[FoundFile] = []
    problems: list[str] = []
    _scan(str(folder), "", found, problems)
    links = {item.path: item.link for item in found if item.link is not None}
    problems += [
        f"{path}: {why}" for path, link in links.items() if (why := link_problem(path, link))
    ]
    if problems:
        raise LibraryBuildError(
            f"{len(problems)} files in {folder} cannot be stored",
            cause=problems[0],
            next_step="let the build yield plain files, and links that stay among them",
            details=sorted(problems),
        )
    return tuple(sorted(found, key=lambda item: item.path))


def _scan(folder: str, prefix: str, found: list[FoundFile], problems: list[str]) -> None:
    with os.scandir(folder) as listing:
        for item in listing:
            path = prefix + item.name
            if item.is_symlink():
                found.append(FoundFile(path, 0, False, str(Path(item.path).readlink())))
            elif item.is_dir():
                _scan(item.path, f"{path}/", found, problems)
            elif item.is_file():
                status = item.stat()
                found.append(FoundFile(path, status.st_size, bool(status.st_mode & 0o100), None))
            else:
                problems.append(f"{path}: neither a file, a folder nor a link")


def link_problem(path: str, target: str) -> str:
    """Why a link at ``path`` with ``target`` may leave the folder; empty when it cannot.

    ``..`` counts only in front: behind another link it would lead to where nobody can tell from the text.
    """
    parts = PurePosixPath(target).parts
    if not target or target.startswith("/") or "\0" in target:
        return f"a link to {target!r}, which is not relative"
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    if ".." in parts[ups:]:
        return f"a link to {target!r}, with '..' behind a name"
    if ups > len(PurePosixPath(path).parts) - 1:
        return f"a link to {target!r}, which is outside of what is stored"
    return ""


def path_problem(path: str) -> str:
    """Why ``path`` names no file inside a folder; empty when it does."""
    parts = path.split("/")
    if not path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        return f"{path!r} is not a path inside a folder"
    return ""


# -- reading and copying ---------------------------------------------------------------------------


def sha256_of(path: Path | str) -> tuple[str, int]:
    """SHA-256 in hexadecimal and size of a file's content. Raises ``OSError``."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (10,000 small files: Path costs)
        buffer = bytearray(min(CHUNK_BYTES, os.fstat(file.fileno()).st_size + 1))
        view = memoryview(buffer)
        while count := file.readinto(buffer):
            digest.update(view[:count])
            size += count
    return digest.hexdigest(), size


def signature(path: Path | str) -> Signature:
    """What changes when a file is written or replaced: inode, size, time of change of content and of inode.

    Raises ``OSError``.
    """
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a file", str(path))
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def copy_file(source: Path | str, target: Path | str, mode: int, *, lasting: bool = False) -> None:
    """A new, independent file ``target`` with the content of ``source`` and the permissions ``mode``.

    ``lasting``: its content is on the disk when this returns. Raises ``OSError``, also of a full disk;
    ``target`` is not whole then.
    """
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _copy(reading, writing)
            os.fchmod(writing, mode)
            if lasting:
                os.fsync(writing)
        finally:
            os.close(writing)  # a network file system says only here that its disk is full
    finally:
        os.close(reading)


def _copy(reading: int, writing: int) -> None:
    size = os.fstat(reading).st_size
    if size > CHUNK_BYTES // 16 and _copied_by_kernel(reading, writing, size):
        return
    while chunk := os.read(reading, CHUNK_BYTES):
        view = memoryview(chunk)
        while view:
            view = view[os.write(writing, view) :]


def _copied_by_kernel(reading: int, writing: int, size: int) -> bool:
    """True when all of it was copied. What is left follows from the position of both files."""
    try:
        fcntl.ioctl(writing, _FICLONE, reading)
    except OSError as error:
        if error.errno not in _CANNOT_COPY:
            raise
    else:
        return True
    copied = 0
    try:
        while count := os.copy_file_range(reading, writing, CHUNK_BYTES * 64):
            copied += count
    except OSError as error:
        if error.errno not in _CANNOT_COPY:
            raise
    return copied >= size


def copy_tree(files: Iterable[StoredFile], blob: Callable[[str], Path], folder: Path) -> None:
    """Make ``files`` below the new ``folder``: executables 755, others 644, links as links.

    ``blob`` tells where the content with a hash is. Raises ``OSError``; ``folder`` may be partly filled then.
    """
    folder.mkdir(parents=True)
    wanted, base = list(files), str(folder)
    for parent in sorted({os.path.dirname(item.path) for item in wanted}):  # noqa: PTH120 (speed)
        os.makedirs(f"{base}/{parent}", exist_ok=True)  # noqa: PTH103

    def make(item: StoredFile) -> None:
        if item.link is None:
            mode = 0o755 if item.executable else 0o644
            copy_file(blob(item.sha256), f"{base}/{item.path}", mode)

    in_threads(make, wanted, lambda item: item.size)
    for item in wanted:
        if item.link is not None:
            Path(f"{base}/{item.path}").symlink_to(item.link)


def in_threads(
    work: Callable[[Item], Result], items: Sequence[Item], size: Callable[[Item], int]
) -> list[Result]:
    """``work`` of every item, in the order of ``items``: big ones by threads of their own, small ones in a
    few slices. Raises the first exception.
    """
    big = [number for number, item in enumerate(items) if size(item) >= BIG_BYTES]
    small = sorted(set(range(len(items))) - set(big))
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    slices = [[number] for number in big] + [part for part in _parts(small, threads) if part]
    if len(slices) <= 1:
        return [work(item) for item in items]
    done: dict[int, Result] = {}

    def run(numbers: list[int]) -> None:
        for number in numbers:
            done[number] = work(items[number])

    with ThreadPoolExecutor(max_workers=max(2, threads)) as pool:
        for _ in pool.map(run, slices):
            pass
    return [done[number] for number in range(len(items))]


def _parts(numbers: list[int], count: int) -> Iterator[list[int]]:
    if len(numbers) < 64:  # threads cost more than they save
        yield numbers
        return
    for start in range(count):
        yield numbers[start::count]


# -- the folder of blobs ---------------------------------------------------------------------------


class Blobs:
    """Contents below ``folder``, each under its SHA-256. What this process has verified it does not read
    again while the file stays the same one, unchanged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._base = str(folder)
        self._verified: dict[str, Signature] = {}

    def path(self, sha256: str) -> Path:
        """Where the content with this hash is, or would be."""
        return Path(f"{self._base}/{sha256[:2]}/{sha256}")

    def problem(self, sha256: str, size: int) -> tuple[str, Signature | None]:
        """What is wrong with a blob (empty: nothing), and the file that was judged."""
        path, seen = f"{self._base}/{sha256[:2]}/{sha256}", None
        try:
            seen = signature(path)
            if self._verified.get(sha256) == seen and seen[1] == size:
                return "", seen
            if seen[1] != size:
                return f"has {seen[1]} bytes, not {size}", seen
            digest, _ = sha256_of(path)
        except FileNotFoundError:
            return "is missing", None
        except OSError as error:
            return f"cannot be read: {error.strerror or error}", seen
        if digest != sha256:
            return "has another content", seen
        self._verified[sha256] = seen
        return "", seen

    def is_known(self, sha256: str) -> bool:
        """True when the blob is the file that this process verified before; reads nothing."""
        try:
            seen = signature(f"{self._base}/{sha256[:2]}/{sha256}")
        except OSError:
            return False
        return self._verified.get(sha256) == seen

    def place(self, staged: Path, sha256: str) -> None:
        """Make the verified file ``staged`` the blob. Raises ``OSError``."""
        path = self.path(sha256)
        try:
            os.replace(staged, path)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(staged, path)
        self._verified[sha256] = signature(path)

    def drop(self, sha256: str, judged: Signature | None) -> None:
        """Remove a blob when it is still the file that was judged."""
        path = self.path(sha256)
        try:
            if judged is not None and signature(path) == judged:
                path.unlink()
        except FileNotFoundError:
            return

    def sizes(self) -> dict[str, int]:
        """Hash to bytes of every blob that is there."""
        found: dict[str, int] = {}
        for folder in subfolders(self.folder):
            with os.scandir(folder) as listing:
                for item in listing:
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        found[item.name] = item.stat(follow_symlinks=False).st_size
        return found


def subfolders(folder: Path) -> list[str]:
    """The folders of a store's level (``ab``), sorted; none when it is not there."""
    try:
        with os.scandir(folder) as listing:
            return sorted(item.path for item in listing if len(item.name) == 2 and item.is_dir())
    except FileNotFoundError:
        return []
