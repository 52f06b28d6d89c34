"""The report of a run as values. Everything is decided before; here nothing is judged again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

SCHEMA = 1


@dataclass(frozen=True)
class LibraryRow:
    """One library of one cell. ``status`` is built, cached, failed, planned or left out; ``reason``
    says why for the last two of failed and left out. Sizes are bytes, times are seconds; ``cached`` says
    where a cached result came from: ``local``, ``remote``, or the cell of this run that it was built for.
    """

    library: str
    status: str
    reason: str = ""
    source: str = ""
    key: str = ""
    seconds: float = 0.0
    built_in: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    cached: str = ""
    compiler_cache: str = ""
    size: int = 0
    files: int = 0
    capabilities: tuple[str, ...] = ()
    imported: str = ""
    log: str = ""


@dataclass(frozen=True)
class CellReport:
    """One cell: where it ran and why, its libraries, its wheel, what the import suite said.

    ``image`` is the digest of the image it was built in, ``commands`` what a run would start outside of
    the farm's own process, ``reproduce`` the command that runs a failed cell alone. ``wheel_from`` and
    ``suite_from`` say when the wheel, and the result of its suite, were made that an earlier run left.
    """

    cell: str
    executor: str
    executor_why: str
    python: str
    compiler: str
    libraries: tuple[LibraryRow, ...]
    notes: tuple[str, ...] = ()
    wheel: str = ""
    wheel_size: int = 0
    tag: str = ""
    publishable: bool = False
    not_publishable_because: tuple[str, ...] = ()
    repair: str = ""
    gates: tuple[str, ...] = ()
    import_passed: int = 0
    import_failed: int = 0
    import_failures: tuple[str, ...] = ()
    import_log: str = ""
    wheel_from: str = ""
    suite_from: str = ""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    image: str = ""
    commands: tuple[str, ...] = ()
    reproduce: str = ""
    error: Mapping[str, object] | None = None

    @property
    def ok(self) -> bool:
        """True when nothing of this cell failed."""
        return self.error is None


@dataclass(frozen=True)
class TaskRow:
    """One task of the run's graph. Times are seconds of the run: ready, started, ended; ``cached`` is
    ``local`` or ``remote`` for a result that was kept.
    """

    name: str
    kind: str
    state: str
    ready: float
    started: float
    ended: float
    tokens: int
    attempts: int
    cpu_seconds: float
    peak_bytes: int
    cached: str


@dataclass(frozen=True)
class RunReport:
    """All cells of a run, the time it took, and the command to go on with.

    ``tasks`` are those of its graph, ``timeline`` the same as lines to print, ``summary`` the critical path,
    the work and how much of the cores it used. ``compiler_cache`` counts the calls of compilers.
    """

    verb: str
    cells: tuple[CellReport, ...]
    seconds: float
    next_command: str
    tasks: tuple[TaskRow, ...] = ()
    timeline: tuple[str, ...] = ()
    summary: str = ""
    compiler_cache: Mapping[str, object] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """The first failed cell's exit code, 0 without one; the codes are those of ``ci.errors``."""
        for cell in self.cells:
            if cell.error is not None:
                return int(str(cell.error["exit_code"]))
        return 0

    def as_dict(self) -> dict[str, object]:
        """The report as JSON-ready values."""
        return {"schema": SCHEMA, "exit_code": self.exit_code, **asdict(self)}
