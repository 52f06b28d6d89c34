"""Who uses what of a store just now, so that nothing is evicted under a running build.

A lease is a file: its first line says whose it is, each further line is a key. While its process lives, a
thread changes the file's time every minute. A lease of this kernel is judged by its process (number and
start); one of another host by its silence. Times are compared only with those of files that the same host
wrote on the same file system, so that clocks that differ neither free a lease that is used nor keep a dead
one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ci.executors.container import owner_is_gone, owner_label

HEARTBEAT_SECONDS = 60.0
SILENT_SECONDS = 2 * 3600.0
"""A lease of another host whose time did not change for so long, as this host saw it, is dead."""
FORGOTTEN_SECONDS = 7 * 86400.0
"""A lease this old is dead though this host sees it for the first time: no two clocks differ so much."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")


@dataclass(frozen=True)
class Lease:
    """A lease as its file says: the process that it belongs to (``HOST:PID:START``), and its keys."""

    path: Path
    owner: str
    place: str
    keys: frozenset[str]

    @property
    def host(self) -> str:
        """The owner's host, as it calls itself."""
        return self.owner.rpartition(":")[0].rpartition(":")[0]

    @property
    def pid(self) -> str:
        """The owner's process number, on its host."""
        return self.owner.rpartition(":")[0].rpartition(":")[2]

    @property
    def name(self) -> str:
        """What the owner's temporary files are called by."""
        return self.path.stem


class Leases:
    """The leases below ``folder``; this process's own is made with the first key that it holds.

    :meth:`hold`, :meth:`held` and :meth:`reclaim` are to be called under the store's lock.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._own: _Own | None = None

    @property
    def name(self) -> str:
        """The name of this process's lease."""
        return self._mine().path.stem

    def hold(self, *keys: str) -> None:
        """Add ``keys`` to this process's lease. Raises ``OSError``."""
        self._mine().add(keys)

    def read(self) -> list[Lease]:
        """Every lease that is there, of the living and of the dead."""
        found = []
        for path in sorted(self.folder.glob("*.lease")):
            with contextlib.suppress(FileNotFoundError):  # given back meanwhile
                found.append(_read(path))
        return found

    def living(self) -> list[Lease]:
        """The leases that count."""
        found = self.read()
        now = self._now() if found else 0
        return [lease for lease in found if not self._is_dead(lease, now)]

    def held(self) -> frozenset[str]:
        """Keys that a living process uses."""
        return frozenset().union(*(lease.keys for lease in self.living()))

    def reclaim(self) -> frozenset[str]:
        """Remove the leases of the dead; the names of the living are returned."""
        living = self.living()
        names = frozenset(lease.name for lease in living)
        for lease in self.read():
            if lease.name not in names:
                lease.path.unlink(missing_ok=True)
        for seen in self.folder.glob("seen/*/*"):
            if seen.name not in names:
                seen.unlink(missing_ok=True)
        return names

    def close(self) -> None:
        """Give this process's lease back."""
        own, self._own = self._own, None
        if own is not None and own.pid == os.getpid():
            own.give_back()

    def _mine(self) -> _Own:
        if self._own is None or self._own.pid != os.getpid():  # a fork is another process
            self._own = _Own(self.folder)
        return self._own

    def _now(self) -> int:
        """The time in ns that the store's file system would give a file that changes now."""
        probe = self.folder / f"now-{uuid.uuid4().hex}"
        probe.touch()
        try:
            os.utime(probe)
            return probe.stat().st_mtime_ns
        finally:
            probe.unlink(missing_ok=True)

    def _is_dead(self, lease: Lease, now: int) -> bool:
        if not lease.owner:
            return True  # killed while it was made: it holds nothing
        if lease.place == _place() and lease.host == socket.gethostname():
            return owner_is_gone(lease.owner)
        try:
            return self._is_silent(lease, now)
        except FileNotFoundError:
            return True

    def _is_silent(self, lease: Lease, now: int) -> bool:
        beat = lease.path.stat().st_mtime_ns
        age = (now - beat) / 1e9
        if age > FORGOTTEN_SECONDS:
            return True
        if age < -FORGOTTEN_SECONDS:
            os.utime(lease.path)  # from a clock that was wrong: it ages from here
            return False
        place = hashlib.sha256(_place().encode()).hexdigest()[:16]
        seen = self.folder / "seen" / place / lease.name
        with contextlib.suppress(OSError, ValueError):
            since = (now - seen.stat().st_mtime_ns) / 1e9
            if int(seen.read_text("ascii")) == beat and since >= 0:
                return since > SILENT_SECONDS
        seen.parent.mkdir(parents=True, exist_ok=True)
        seen.write_text(str(beat), "ascii")
        os.utime(seen)
        return False


class _Own:
    """The lease of this process: the file, and the thread that keeps its time fresh."""

    def __init__(self, folder: Path) -> None:
        self.pid = os.getpid()
        self.path = folder / f"{uuid.uuid4().hex}.lease"
        self._keys: dict[str, None] = {}
        self._header = json.dumps({"owner": owner_label(), "place": _place()}) + "\n"
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._is_whole = False
        folder.mkdir(parents=True, exist_ok=True)
        self._write("")
        threading.Thread(target=self._beat, name="store lease", daemon=True).start()

    def add(self, keys: tuple[str, ...]) -> None:
        with self._lock:
            new = [key for key in keys if key not in self._keys]
            if new:
                self._is_whole = self._is_whole and self.path.exists()
                self._write("".join(f"{key}\n" for key in new))
                self._keys |= dict.fromkeys(new)

    def give_back(self) -> None:
        with self._lock:
            self._ended.set()
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _write(self, text: str) -> None:
        """Append ``text``; write all anew when the file is not there, or a full disk has cut it."""
        known = "".join(f"{key}\n" for key in self._keys)
        data = (text if self._is_whole else self._header + known + text).encode("ascii")
        how = os.O_APPEND if self._is_whole else os.O_CREAT | os.O_TRUNC
        self._is_whole = False
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | how, 0o644)
        try:
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        finally:
            os.close(descriptor)
        self._is_whole = True

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS) and self.pid == os.getpid():
            with self._lock, contextlib.suppress(OSError):
                if self._ended.is_set():
                    return
                if self.path.exists():
                    os.utime(self.path)
                else:
                    self._is_whole = False  # somebody took us for dead
                    self._write("")


def _read(path: Path) -> Lease:
    lines = path.read_text("utf-8", "replace").splitlines()
    owner = place = ""
    with contextlib.suppress(ValueError, KeyError, TypeError, IndexError):
        header = json.loads(lines[0])
        owner, place = str(header["owner"]), str(header["place"])
    return Lease(path, owner, place, frozenset(_whole(lines[1:])))


def _whole(lines: list[str]) -> Iterator[str]:
    """Keys; the last line of a process that was killed may be cut."""
    return (line for line in lines if len(line) == 64)


def _place() -> str:
    """The kernel and the PID namespace in which process numbers mean something; empty where neither is told.

    proc(5): ``boot_id`` is new with each boot, and the same in the containers of a host.
    """
    with contextlib.suppress(OSError):
        return f"{_BOOT.read_text('ascii').strip()} {_NAMESPACE.readlink()}"
    return f"unknown {uuid.uuid4().hex}"
