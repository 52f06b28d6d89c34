"""What the machine has, and what is left of it: CPUs, memory, pressure, processes killed for memory.

Limits are those of the control groups that this process is in, the tightest of all ancestors, of version 2,
version 1, or both; else those of the machine. Free memory is what the kernel says can be taken without
swapping (``MemAvailable``): on a machine whose GPU shares its memory, "total minus used" is wrong.

Sources: Linux kernel, Documentation/admin-guide/cgroup-v2.rst (memory.max, memory.current, memory.stat,
memory.events, cpu.max), cgroup-v1/memory.rst, accounting/psi.rst; proc(5) for mountinfo and meminfo.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MIB = 1024**2
LEAST_RESERVE = 512 * MIB
RESERVED_SHARE = 0.05
UNLIMITED = 2**60  # version 1 has no word for "none": it says the largest multiple of a page
PRESSURE_SOME = 30.0  # percent of the last 10 s in which at least one task waited for memory
PRESSURE_FULL = 10.0  # percent of the last 10 s in which all did


@dataclass(frozen=True)
class Fact:
    """A number, and where it is from."""

    value: float
    source: str


@dataclass(frozen=True)
class Pressure:
    """Percent of the last ten seconds in which some, or all, tasks waited for memory."""

    some: float
    full: float
    source: str

    @property
    def high(self) -> bool:
        """True when starting more would only make everything slower."""
        return self.some >= PRESSURE_SOME or self.full >= PRESSURE_FULL


@dataclass(frozen=True)
class Machine:
    """One look at the machine. Memory in bytes; ``None`` where nothing is known.

    ``cpus`` is a whole number of at least 1. ``oom_kills`` counts the processes of this control group that
    the kernel has killed for memory.
    """

    cpus: Fact
    limit: Fact | None = None
    available: Fact | None = None
    pressure: Pressure | None = None
    oom_kills: Fact | None = None

    @property
    def reserve(self) -> int:
        """Bytes that are left alone: for the page cache, for what was guessed too low, for the user."""
        total = self.limit.value if self.limit else 0.0
        return max(LEAST_RESERVE, int(total * RESERVED_SHARE))

    @property
    def free(self) -> int | None:
        """Bytes that tasks may take now: what is available without the reserve; may be negative."""
        return None if self.available is None else int(self.available.value) - self.reserve

    @property
    def pressed(self) -> bool:
        """True while memory is short."""
        return self.pressure is not None and self.pressure.high


def look(root: Path = Path("/"), cpus: int | None = None) -> Machine:
    """The machine as it is now. ``root`` is where ``proc`` and ``sys`` are, ``cpus`` what this process may
    use (by default asked of the kernel). A file that is missing or not understood says nothing.
    """
    groups = _groups(root)
    limits = [fact for group in groups for fact in group.limits()]
    rooms = [fact for group in groups for fact in group.rooms()]
    memory = _meminfo(_text(root / "proc/meminfo"))
    if "MemTotal" in memory:
        limits.append(Fact(memory["MemTotal"], "MemTotal of /proc/meminfo"))
    if "MemAvailable" in memory:
        rooms.append(Fact(memory["MemAvailable"], "MemAvailable of /proc/meminfo"))
    return Machine(
        cpus=_cpus(groups, cpus if cpus is not None else len(os.sched_getaffinity(0))),
        limit=_least(limits),
        available=_least(rooms),
        pressure=_pressure(root, groups),
        oom_kills=_oom_kills(root, groups),
    )


def oom_kills(root: Path = Path("/")) -> int | None:
    """How many processes of this control group the kernel has killed for memory; ``None``: not told."""
    fact = _oom_kills(root, _groups(root))
    return None if fact is None else int(fact.value)


@dataclass(frozen=True)
class Group:
    """The control group of this process in one hierarchy: its folder, and where the hierarchy is mounted.

    ``version`` is 1 or 2.
    """

    version: int
    mount: Path
    folder: Path

    @property
    def folders(self) -> Iterator[Path]:
        """The folder and its ancestors up to the mount."""
        here = self.folder
        while here != self.mount and self.mount in here.parents:
            yield here
            here = here.parent
        yield self.mount

    def limits(self) -> Iterator[Fact]:
        """Memory limits, one for each ancestor that has one."""
        name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        for folder in self.folders:
            limit = _limit(_text(folder / name))
            if limit is not None:
                yield Fact(limit, str(folder / name))
        above = _numbers(_text(self.folder / "memory.stat")).get("hierarchical_memory_limit")
        if (
            above is not None and above < UNLIMITED
        ):  # version 1: of ancestors that cannot be seen, too
            yield Fact(above, f"hierarchical_memory_limit of {self.folder / 'memory.stat'}")

    def rooms(self) -> Iterator[Fact]:
        """What is left below each limit. Pages of files that were not used lately can be had at once."""
        names = (
            ("memory.max", "memory.current", "inactive_file")
            if self.version == 2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        )
        for folder in self.folders:
            limit, used = (_limit(_text(folder / name)) for name in names[:2])
            if limit is None or used is None:
                continue
            reclaimable = _numbers(_text(folder / "memory.stat")).get(names[2], 0)
            yield Fact(max(0, limit - max(0, used - reclaimable)), str(folder / names[0]))

    def cpus(self) -> Iterator[Fact]:
        """CPU quotas in CPUs, one for each ancestor that has one."""
        for folder in self.folders:
            if self.version == 2:
                words, source = _text(folder / "cpu.max").split(), folder / "cpu.max"
            else:
                source = folder / "cpu.cfs_quota_us"
                words = f"{_text(source)} {_text(folder / 'cpu.cfs_period_us')}".split()
            if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
                yield Fact(int(words[0]) / int(words[1]), str(source))


def _groups(root: Path) -> tuple[Group, ...]:
    """The hierarchies that limit memory or CPUs, and this process's place in each."""
    mounts = _mounts(_text(root / "proc/self/mountinfo"))
    found: list[Group] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        names = [name for name in controllers.split(",") if name in ("memory", "cpu")]
        if number == "0" and not controllers:
            names = [""]
        for name in names:
            if name in mounts:
                top, point = mounts[name]
                mount = root / point.lstrip("/")
                found.append(Group(1 if name else 2, mount, _inside(mount, top, path)))
    return tuple(dict.fromkeys(found))


def _inside(mount: Path, top: str, path: str) -> Path:
    """Where ``path`` is below the mount, of which ``top`` is the root; the mount when it is elsewhere."""
    try:
        return mount / PurePosixPath(path).relative_to(top)
    except ValueError:
        return mount


def _mounts(text: str) -> Mapping[str, tuple[str, str]]:
    """Controller (empty for version 2) to the hierarchy's root in the mount, and the mount's place."""
    found: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if not separator or len(fields) < 5 or not kind:
            continue
        place = (_unescaped(fields[3]), _unescaped(fields[4]))
        if kind[0] == "cgroup2":
            found.setdefault("", place)
        elif kind[0] == "cgroup":
            for option in kind[-1].split(","):
                found.setdefault(option, place)
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _cpus(groups: tuple[Group, ...], affinity: int) -> Fact:
    facts = [fact for group in groups for fact in group.cpus()]
    least = _least([Fact(affinity, "CPU affinity"), *facts])
    assert least is not None
    return Fact(max(1, int(least.value)), least.source)


def _pressure(root: Path, groups: tuple[Group, ...]) -> Pressure | None:
    """Of the control group where that is told (version 2), else of the machine."""
    places = [group.folder / "memory.pressure" for group in groups if group.version == 2]
    for place in (*places, root / "proc/pressure/memory"):
        found = dict(re.findall(r"^(some|full) avg10=([0-9.]+)", _text(place), re.MULTILINE))
        if "some" in found:
            return Pressure(float(found["some"]), float(found.get("full", 0.0)), str(place))
    return None


def _oom_kills(root: Path, groups: tuple[Group, ...]) -> Fact | None:
    for group in groups:
        place = group.folder / ("memory.events" if group.version == 2 else "memory.oom_control")
        count = _numbers(_text(place)).get("oom_kill")
        if count is not None:
            return Fact(count, str(place))
    count = _numbers(_text(root / "proc/vmstat")).get("oom_kill")
    return None if count is None else Fact(count, "/proc/vmstat")


def _least(facts: list[Fact]) -> Fact | None:
    return min(facts, key=lambda fact: fact.value, default=None)


def _limit(text: str) -> int | None:
    """A number of bytes; ``None`` for "max", for version 1's largest number, and for no file."""
    value = text.strip()
    return int(value) if value.isdigit() and int(value) < UNLIMITED else None


def _numbers(text: str) -> dict[str, int]:
    """The lines ``NAME NUMBER`` of a file."""
    return {name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE)}


def _meminfo(text: str) -> dict[str, int]:
    found = re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)
    return {name: int(value) * 1024 for name, value in found}


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


# What programs say when the kernel, or their own allocator, ended them. Whole phrases: a compiler also shows
# source lines, which may well name std::bad_alloc.
_KILLED = re.compile(
    r"Killed signal terminated program (?P<gcc>\S+)"
    r"|internal compiler error: Killed \(program (?P<old_gcc>\w+)\)"
    r"|'(?P<nvcc>\w+)' died due to signal 9\b"
    r"|(?P<ld>\w+) terminated with signal 9 \[Killed\]"
    r"|^(?:\S+: )?(?:line )?\d*:?\s*\d+ Killed\s+(?P<shell>\S+)"
    r"|^Killed$",
    re.MULTILINE,
)
_REFUSED = re.compile(
    r"virtual memory exhausted"
    r"|out of memory allocating \d+ bytes"
    r"|LLVM ERROR: out of memory"
    r"|\bmemory exhausted\b"
    r"|ptxas fatal\s*: Memory allocation failure"
    r"|terminate called after throwing an instance of 'std::bad_alloc'"
    r"|what\(\):\s+std::bad_alloc"
    r"|fork\S*: (?:retry: )?(?:Resource temporarily unavailable: )?Cannot allocate memory"
    r"|\[Errno 12\] Cannot allocate memory"
    r"|^MemoryError\b",
    re.MULTILINE,
)
SIGKILLED = (-9, 137)  # by subprocess, and by a shell


def killed_for_memory(
    returncode: int, log_text: str, counter_before: int | None, counter_after: int | None
) -> str:
    """Why a failed command is held to have failed for want of memory; empty when nothing shows that.

    The counters are :func:`oom_kills` before and after. A death by signal 9 alone is none: anybody may send
    it. It counts when the kernel's counter rose meanwhile; where there is no counter, when it was a compiler
    that died, which nobody kills by hand.
    """
    if returncode == 0:
        return ""
    refused = _REFUSED.search(log_text)
    if refused:
        return f"memory was refused: {_line(log_text, refused)}"
    killed = _KILLED.search(log_text)
    if not killed and returncode not in SIGKILLED:
        return ""
    victim = (
        next((name for name in killed.groups() if name), "a process") if killed else "the build"
    )
    if counter_before is None or counter_after is None:
        said = _line(log_text, killed) if killed else ""
        return f"{victim} was killed, most likely for memory: {said}" if said else ""
    rose = counter_after - counter_before
    if rose <= 0:
        return ""
    return f"{victim} was killed by the kernel for memory ({rose} killed meanwhile)"


def _line(text: str, match: re.Match[str]) -> str:
    start, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
    return text[start : end if end >= 0 else None].strip()[:200]
