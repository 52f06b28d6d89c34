"""What a cell has reached so far; kept also when a later stage fails."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from ci.environments.venv import Environment
from ci.executors.base import Executor
from ci.graph.step import StepResult
from ci.pipeline.plan import CellPlan
from ci.sources.resolve import ResolvedSource
from ci.testing.import_suite import ImportResult
from ci.toolchain import Toolchain
from ci.wheel.repair import Repaired


@dataclass
class CellState:
    """What a cell has reached so far: the parts of its report, kept also when a later stage fails."""

    plan: CellPlan
    executor: Executor
    stage_seconds: dict[str, float] = field(default_factory=dict)
    toolchain: Toolchain | None = None
    sources: Mapping[str, ResolvedSource] = field(default_factory=dict)
    environment: Environment | None = None
    results: tuple[StepResult, ...] = ()
    repaired: Repaired | None = None
    gates: tuple[str, ...] = ()
    imported: ImportResult | None = None
    not_publishable: tuple[str, ...] = ()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Charge the time of the block to ``name``."""
        started = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - started
            self.stage_seconds[name] = self.stage_seconds.get(name, 0.0) + spent
