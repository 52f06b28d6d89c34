"""What trees of processes use while they run: memory at its peak, CPU time with all that have ended.

One thread looks at all trees, a few times a second, and runs only while there is one. A tree is a process,
what descends from it, and what is in its session (:func:`ci.proc.run` gives each child one), so that a
process whose parent has ended is counted too. One look reads ``/proc/PID/stat`` of every process once, and
``statm`` of those in a tree: about 10 µs each.

Memory of a tree is the sum of what its processes have for themselves (resident without shared pages) and
the largest shared part, so that forty compilers do not count their program forty times. Where a look shows a
new peak, the kernel's own division of shared pages (PSS) takes its place, as long as asking for it is cheap.
Sources: proc(5), ``/proc/PID/stat``, ``statm``, ``smaps_rollup``.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ci.proc import Used

INTERVAL = 0.2
CHEAP_SECONDS = 0.02  # what one question for PSS may take before it is not asked again for the tree
WORTH = 1.05  # a sum so many times the peak is worth the question
PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Process:
    """One process as ``/proc/PID/stat`` tells it. CPU time in seconds: its own, and that of the children that
    it has waited for.
    """

    pid: int
    parent: int
    session: int
    cpu_seconds: float
    children_seconds: float

    @property
    def all_seconds(self) -> float:
        """Both."""
        return self.cpu_seconds + self.children_seconds


@dataclass
class _Tree:
    root: int
    thread: int
    now_bytes: int = 0
    peak_bytes: int = 0
    cpu_seconds: float = 0.0
    ask_pss: bool = True
    alive: dict[int, Process] = field(default_factory=dict)
    gone_seconds: float = 0.0


class Meter:
    """Measures trees; :meth:`watch` is what :func:`ci.proc.run` takes as ``watch``."""

    def __init__(self, interval: float = INTERVAL, proc: Path = PROC) -> None:
        self._interval = interval
        self._proc = proc
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._trees: dict[int, _Tree] = {}
        self._thread: threading.Thread | None = None

    def watch(self, pid: int) -> Callable[[], Used]:
        """Measure the tree of ``pid`` from now on. The result ends it and says what was used; it is to be
        called when the process has ended and is not waited for yet: then its CPU time is exact.
        """
        tree = _Tree(pid, threading.get_ident())
        with self._lock:
            self._trees[pid] = tree
            if self._thread is None:
                self._thread = threading.Thread(target=self._look_on, name="usage", daemon=True)
                self._thread.start()
        return lambda: self._finish(tree)

    def used_by(self, thread: int) -> int:
        """Bytes that the trees have now which the thread with this identifier watches."""
        with self._lock:
            return sum(tree.now_bytes for tree in self._trees.values() if tree.thread == thread)

    def _finish(self, tree: _Tree) -> Used:
        last = read_process(self._proc, tree.root)
        with self._lock:
            if self._trees.get(tree.root) is tree:
                del self._trees[tree.root]
            if not self._trees:
                self._wake.set()
            cpu = max(tree.cpu_seconds, last.all_seconds if last else 0.0)
        return Used(cpu_seconds=cpu, peak_bytes=tree.peak_bytes)

    def _look_on(self) -> None:
        while True:
            with self._lock:
                trees = list(self._trees.values())
                if not trees:
                    self._thread = None
                    self._wake.clear()
                    return
            self._look(trees)
            self._wake.wait(self._interval)

    def _look(self, trees: Iterable[_Tree]) -> None:
        processes = read_all(self._proc)
        members = group(processes, {tree.root for tree in trees})
        for tree in trees:
            mine = members[tree.root]
            memory = self._memory(tree, mine)
            with self._lock:
                tree.now_bytes = memory
                tree.peak_bytes = max(tree.peak_bytes, memory)
                count_cpu(tree, {pid: processes[pid] for pid in mine})

    def _memory(self, tree: _Tree, pids: Iterable[int]) -> int:
        own, shared = 0, 0
        for pid in pids:
            resident, common = read_memory(self._proc, pid)
            own += max(0, resident - common)
            shared = max(shared, common)
        total = own + shared
        if not tree.ask_pss or total <= tree.peak_bytes * WORTH:
            return min(total, tree.peak_bytes) if tree.ask_pss else total
        started = time.monotonic()
        divided = sum(read_pss(self._proc, pid) for pid in pids)
        tree.ask_pss = time.monotonic() - started <= CHEAP_SECONDS
        return divided or total


def group(processes: Mapping[int, Process], roots: Iterable[int]) -> dict[int, list[int]]:
    """The members of each tree: descendants of the root, and processes of its session."""
    wanted = set(roots)
    home: dict[int, int | None] = {}

    def of(pid: int) -> int | None:
        path: list[int] = []
        here, found = pid, None
        while here not in home:
            path.append(here)
            process = processes.get(here)
            if here in wanted:
                found = here
                break
            if process is None or process.parent in (0, here) or here in path[:-1]:
                found = process.session if process and process.session in wanted else None
                break
            if process.session in wanted:
                found = process.session
                break
            here = process.parent
        else:
            found = home[here]
        for one in path:
            home[one] = found
        return found

    members: dict[int, list[int]] = {root: [] for root in wanted}
    for pid in processes:
        root = of(pid)
        if root is not None:
            members[root].append(pid)
    return members


def count_cpu(tree: _Tree, now: Mapping[int, Process]) -> None:
    """Bring the tree's CPU time up to date.

    A process that is gone was waited for by its parent, which then has its time (and that of its own
    children) among its children's; where the parent is gone too, its grandparent has. Only what nobody in
    the tree waited for is kept apart.
    """
    gone = [one for pid, one in tree.alive.items() if pid not in now]
    before = sum(one.all_seconds for one in tree.alive.values()) + tree.gone_seconds
    total = sum(one.all_seconds for one in now.values()) + tree.gone_seconds
    if gone and total < before:
        tree.gone_seconds += before - total
        total = before
    tree.alive = dict(now)
    tree.cpu_seconds = max(tree.cpu_seconds, total)


def read_all(proc: Path) -> dict[int, Process]:
    """Every process of the machine that can be seen."""
    found: dict[int, Process] = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir(proc):
            if entry.name.isdigit() and (process := read_process(proc, int(entry.name))):
                found[process.pid] = process
    return found


def read_process(proc: Path, pid: int) -> Process | None:
    """The process, ``None`` when it is gone. A zombie still tells its CPU time."""
    try:
        raw = _read(f"{proc}/{pid}/stat")
    except OSError:
        return None
    fields = raw.rpartition(b")")[2].split()  # the name before may hold anything
    if len(fields) < 15:
        return None
    own, children = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    return Process(pid, int(fields[1]), int(fields[3]), own / _TICKS, children / _TICKS)


def read_memory(proc: Path, pid: int) -> tuple[int, int]:
    """Resident bytes of the process, and those of them that are shared (files and shared memory)."""
    try:
        fields = _read(f"{proc}/{pid}/statm").split()
    except OSError:
        return 0, 0
    return (int(fields[1]) * _PAGE, int(fields[2]) * _PAGE) if len(fields) > 2 else (0, 0)


def read_pss(proc: Path, pid: int) -> int:
    """Resident bytes, shared pages divided by those who share them; 0 when that is not told."""
    try:
        for line in _read(f"{proc}/{pid}/smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return 0
    return 0


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)
