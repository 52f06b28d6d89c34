"""What the benchmarks share: runs of the farm as a program, a cache of their own, limits that hold or not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SHARED = ("environments", "locks", "sources", "toolchains")
"""Folders of a cache that hold no result of a build: nobody measures how they come to be."""


@dataclass(frozen=True)
class FarmRun:
    """One run of ``python -m ci wheel``: wall clock of the process, and the report that it printed."""

    seconds: float
    document: Mapping[str, Any]

    @property
    def inside(self) -> float:
        """The seconds that the farm itself reports."""
        return float(self.document["seconds"])

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The libraries of all cells."""
        return [dict(row) for cell in self.document["cells"] for row in cell["libraries"]]

    def count(self, status: str) -> int:
        """How many libraries of cells ended so."""
        return sum(row["status"] == status for row in self.rows)

    def row(self, library: str) -> dict[str, Any]:
        """The library's row of the one cell that has it."""
        (row,) = (row for row in self.rows if row["library"] == library)
        return row

    def stage(self, name: str) -> float:
        """Seconds of a stage, over all cells."""
        stages = (cell["stage_seconds"] for cell in self.document["cells"])
        return sum(float(item.get(name, 0.0)) for item in stages)


@dataclass(frozen=True)
class Farm:
    """``python -m ci`` of a checkout with a cache folder. ``variables`` are added to the environment."""

    cache: Path
    checkout: Path = ROOT
    variables: Mapping[str, str] = field(default_factory=dict)

    def command(self, options: Sequence[str], out: Path) -> list[str]:
        """The command line of ``wheel``."""
        places = ["--cache-dir", str(self.cache), "--out-dir", str(out), "--json"]
        return [sys.executable, "-m", "ci", "wheel", *options, *places]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of this process without what would choose another cache or a shared one."""
        chosen = ("PADDLEFLEET_FARM_CACHE", "PADDLEFLEET_FARM_REMOTE", "PADDLEFLEET_FARM_COMPILER")
        kept = {name: text for name, text in os.environ.items() if not name.startswith(chosen)}
        return {**kept, **self.variables}

    def wheel(self, *options: str, out: Path) -> FarmRun:
        """Run ``wheel``. Raises :class:`SystemExit` with what it said when it fails."""
        started = time.monotonic()
        done = subprocess.run(
            self.command(options, out),
            cwd=self.checkout,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - started
        if done.returncode:
            sys.exit(f"wheel {' '.join(options)}\n{done.stderr[-6000:]}")
        return FarmRun(seconds, json.loads(done.stdout))


def own_cache(folder: Path, warm: Path) -> Path:
    """A cache folder with nothing built in it; environments and compilers are those of ``warm``."""
    folder.mkdir(parents=True)
    for name in SHARED:
        (warm / name).mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(warm / name, target_is_directory=True)
    return folder


@dataclass(frozen=True)
class Claim:
    """A measured value and the most that it may be."""

    what: str
    value: float
    limit: float
    unit: str

    @property
    def holds(self) -> bool:
        """True when the value is within its limit."""
        return self.value <= self.limit

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "DOES NOT HOLD"
        return f"  {self.what}: {self.value:.2f} {self.unit}, limit {self.limit:.2f}: {verdict}"


@dataclass(frozen=True)
class Result:
    """What one benchmark found: its claims, and the numbers behind them in the order they are shown."""

    name: str
    title: str
    claims: tuple[Claim, ...]
    lines: tuple[str, ...]
    numbers: Mapping[str, object] = field(default_factory=dict)

    def show(self) -> None:
        """Print it."""
        print(f"{self.name}: {self.title}", *(f"  {line}" for line in self.lines), sep="\n")
        print(*self.claims, sep="\n", flush=True)

    def as_dict(self) -> dict[str, object]:
        """JSON-ready values."""
        return {**asdict(self), "holds": all(claim.holds for claim in self.claims)}


@dataclass
class Load:
    """How many cores were busy with what is not of this process' own children, on average."""

    others: float = 0.0


@contextmanager
def watched_load() -> Iterator[Load]:
    """Measures :class:`Load` over a ``with`` block, from ``/proc/stat`` (proc(5)) and its children."""
    load, started = Load(), time.monotonic()
    busy, own = _busy(), _own()
    yield load
    seconds = max(time.monotonic() - started, 0.01)
    load.others = max(0.0, (_busy() - busy) - (_own() - own)) / seconds


def _busy() -> float:
    """Seconds that all processors were busy since boot: everything but idle and waiting for a disk."""
    first = Path("/proc/stat").read_text("ascii").splitlines()[0]
    numbers = [int(text) for text in first.split()[1:9]]
    return (sum(numbers) - numbers[3] - numbers[4]) / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
