"""The order of the stages: the only package that knows it.

matrix → cells → libraries per cell → sources → toolchain → build environment → library steps → raw
wheel → repaired wheel → gates → import suite → report. Each stage makes a frozen value from the ones
before it; these modules hand them on.
"""

from __future__ import annotations

from ci.pipeline.imports import import_wheels
from ci.pipeline.plan import WheelRequest, plan_cells
from ci.pipeline.rows import planned_report
from ci.pipeline.wheels import build_wheels

__all__ = [
    "WheelRequest",
    "build_wheels",
    "import_wheels",
    "plan_cells",
    "planned_report",
]
