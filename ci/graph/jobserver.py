"""One pool of tokens for every compiler of a run: GNU Make's jobserver, as a FIFO.

A token is the right to keep one core busy. The pool holds one byte for each token in a FIFO; whoever starts
a job reads a byte before and writes it back after. make (4.4 and later), ninja (1.13 and later) and nvcc are
clients: they find the FIFO in ``MAKEFLAGS``. A client needs no token for its first job: that is the token of
whoever started it. Source: GNU Make manual, "POSIX Jobserver Interaction"; ninja manual, "GNU Jobserver
support".

A client that is killed does not write its tokens back; nothing in the protocol says how many it had. So the
owner of the pool counts when none of its tasks runs, and makes the pool whole (:meth:`TokenPool.restore`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import secrets
import select
import struct
import termios
import threading
import time
from pathlib import Path
from types import TracebackType

from ci.errors import ConfigError

TOKEN = b"+"
PREFIX = "jobserver-"
MOST_TOKENS = 4096  # what fits the smallest pipe of Linux, one page (pipe(7), "Pipe capacity")
_MEANS_SOMETHING = re.compile(r"[\s\\$\"'#]")  # to make, or to a shell, inside MAKEFLAGS


def makeflags(path: Path, tokens: int) -> str:
    """The ``MAKEFLAGS`` of children that are to use the pool at ``path``.

    ``tokens`` is the size of the pool: it tells clients the most that they can get, and keeps nothing back.
    The leading space is part of the form that GNU Make itself writes: no single-letter options come first.
    """
    return f" -j{tokens} --jobserver-auth=fifo:{path}"


class TokenPool:
    """Tokens of a run: those this process holds, and those in the FIFO.

    ``tokens`` is the size of the whole pool, ``implicit`` how many of them are this process's own and not
    in the FIFO. Safe for several threads.
    """

    def __init__(
        self, path: Path, tokens: int, implicit: int, descriptor: int, owner: bool
    ) -> None:
        self.path = path
        self.tokens = tokens
        self.implicit = implicit
        self._descriptor = descriptor
        self._owner = owner
        self._held = 0
        self._lock = threading.Lock()

    @classmethod
    def create(cls, folder: Path, tokens: int) -> TokenPool:
        """A new pool of ``tokens`` in ``folder``. Pools there whose owner is gone are removed.

        Raises :class:`~ci.errors.ConfigError` for a folder that ``MAKEFLAGS`` cannot name, and for a number
        of tokens below 1 or above 4096.
        """
        _check(folder, tokens)
        folder.mkdir(parents=True, exist_ok=True)
        _remove_ownerless(folder)
        name = f"{_prefix()}{secrets.token_hex(6)}"
        hidden = folder / f".{name}"
        os.mkfifo(hidden, 0o600)
        descriptor = _open(hidden)
        # The lock says that the owner lives; it is taken before the name is one that others look at.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path = folder / name
        os.replace(hidden, path)
        os.write(descriptor, TOKEN * tokens)
        return cls(path, tokens, 0, descriptor, owner=True)

    @classmethod
    def attach(cls, path: Path, implicit: int = 1, tokens: int = 0) -> TokenPool:
        """The pool of another farm, which gave this one ``implicit`` tokens by starting it.

        ``tokens`` is the size of the pool; 0 takes the number of CPUs of this process. Raises
        :class:`~ci.errors.ConfigError` when there is no FIFO at ``path``.
        """
        size = max(tokens or len(os.sched_getaffinity(0)), implicit)
        if not path.is_fifo():
            raise ConfigError(
                f"there is no jobserver at {path}",
                cause="the farm that started this one has ended, or its folder is not mounted here",
                next_step="start the farm outside again; it starts this one",
            )
        return cls(path, size, implicit, _open(path), owner=False)

    @property
    def makeflags(self) -> str:
        """``MAKEFLAGS`` for children of tasks that hold a token."""
        return makeflags(self.path, self.tokens)

    @property
    def held(self) -> int:
        """Tokens that this process holds now."""
        return self._held

    @property
    def free(self) -> int:
        """Tokens that :meth:`acquire` would get, if nobody else was quicker."""
        return self._own_free() + self._in_fifo()

    def fileno(self) -> int:
        """The FIFO, for ``select``: it is readable while a token is in it."""
        return self._descriptor

    def acquire(self, number: int, wait: float = 0.0) -> int:
        """Take up to ``number`` tokens, waiting at most ``wait`` seconds for the last; returns how many.

        Never gives a part of them back by itself: the caller decides whether fewer will do.
        """
        deadline = time.monotonic() + wait
        got = self._take(number)
        while got < number and (left := deadline - time.monotonic()) > 0:
            select.select([self._descriptor], [], [], left)
            got += self._take(number - got)
        return got

    def release(self, number: int) -> None:
        """Give ``number`` tokens back; those that are this process's own stay with it.

        Raises :class:`ValueError` for more than are held.
        """
        with self._lock:
            if number > self._held:
                raise ValueError(f"{number} tokens are given back, but {self._held} are held")
            from_fifo = max(0, self._held - self.implicit)
            self._held -= number
            self._write(min(number, from_fifo))

    def restore(self) -> int:
        """Make the pool whole when this process holds nothing; returns the tokens that were missing.

        Negative: that many too many were there, and were removed. Does nothing (0) while tokens are held
        here, and in a pool of another farm, which alone knows who else runs.
        """
        with self._lock:
            if self._held or not self._owner:
                return 0
            missing = self.tokens - self._in_fifo()
            if missing > 0:
                self._write(missing)
            elif missing < 0:
                self._read(-missing)
            return missing

    def close(self) -> None:
        """Give everything back; the owner also removes the FIFO."""
        if self._descriptor < 0:
            return
        self.release(self._held)
        if self._owner:
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> TokenPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _own_free(self) -> int:
        return max(0, self.implicit - self._held)

    def _take(self, number: int) -> int:
        with self._lock:
            own = min(number, self._own_free())
            got = own + (self._read(number - own) if number > own else 0)
            self._held += got
            return got

    def _read(self, number: int) -> int:
        try:
            return len(os.read(self._descriptor, number))
        except BlockingIOError:
            return 0

    def _write(self, number: int) -> None:
        if number:
            os.write(self._descriptor, TOKEN * number)

    def _in_fifo(self) -> int:
        raw = fcntl.ioctl(self._descriptor, termios.FIONREAD, struct.pack("i", 0))
        return int(struct.unpack("i", raw)[0])


def _check(folder: Path, tokens: int) -> None:
    if _MEANS_SOMETHING.search(str(folder)):
        raise ConfigError(
            f"the folder of the jobserver cannot be named in MAKEFLAGS: {str(folder)!r}",
            cause="it holds white space, or a character that make or a shell reads as its own",
            next_step="choose a plain folder with --cache-dir",
        )
    if not 1 <= tokens <= MOST_TOKENS:
        raise ConfigError(
            f"{tokens} parallel jobs cannot be had",
            cause=f"at least 1 and at most {MOST_TOKENS} tokens fit a jobserver",
            next_step="choose another number with --jobs",
        )


def _prefix() -> str:
    """Names of this host's pools: a lock says nothing about the pools of another host on a shared disk."""
    return f"{PREFIX}{hashlib.sha256(platform.node().encode()).hexdigest()[:8]}-"


def _open(path: Path) -> int:
    # For reading and writing: opening never blocks, and the FIFO is never without a reader or a writer.
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _remove_ownerless(folder: Path) -> None:
    for path in folder.glob(f"{_prefix()}*"):
        with contextlib.suppress(OSError):
            descriptor = _open(path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(descriptor)
