"""What a cell has reached so far; kept also when a later stage fails."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ci.environments.venv import Environment
from ci.executors.base import HostExecutor
from ci.graph.step import StepResult
from ci.pipeline.plan import CellPlan
from ci.sources.resolve import ResolvedSource
from ci.testing.import_suite import ImportResult
from ci.toolchain import Toolchain
from ci.wheel.policy import Exclude
from ci.wheel.repair import Repaired


@dataclass(frozen=True)
class RepairedWheel:
    """The part of a repair that reports and records tell of."""

    path: Path
    tag: str
    excluded: tuple[Exclude, ...]
    grafted: tuple[str, ...]
    skipped_reason: str

    @classmethod
    def of(cls, repaired: Repaired) -> RepairedWheel:
        """Without the facts about every member."""
        return cls(
            repaired.path,
            repaired.tag,
            repaired.excluded,
            repaired.grafted,
            repaired.skipped_reason,
        )


@dataclass
class CellState:
    """What a cell has reached so far: the parts of its report, kept also when a later stage fails.

    ``compiled`` is true when the wheel will hold shared libraries, ``image`` the digest of the image of a
    cell that is built in containers. ``wheel_from`` and ``suite_from`` say when the wheel and the result of
    the suite were made that an earlier run left; they are empty for what this run made.
    """

    plan: CellPlan
    stage_seconds: dict[str, float] = field(default_factory=dict)
    toolchain: Toolchain | None = None
    sources: Mapping[str, ResolvedSource] = field(default_factory=dict)
    environment: Environment | None = None
    results: tuple[StepResult, ...] = ()
    repaired: RepairedWheel | None = None
    gates: tuple[str, ...] = ()
    imported: ImportResult | None = None
    not_publishable: tuple[str, ...] = ()
    image: str = ""
    compiled: bool = False
    wheel_from: str = ""
    suite_from: str = ""

    @property
    def executor(self) -> HostExecutor:
        """Runs the steps here: on the host, or where the farm itself is inside a container."""
        return HostExecutor(self.plan.place.why)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Charge the time of the block to ``name``."""
        started = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - started
            self.stage_seconds[name] = self.stage_seconds.get(name, 0.0) + spent
