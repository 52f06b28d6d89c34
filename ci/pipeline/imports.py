"""The import suite on wheels that are there already."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ci.errors import (
    ConfigError,
    FarmError,
)
from ci.executors.base import Executor
from ci.executors.choice import (
    ContainerPlace,
    Place,
    SuiteCell,
    check_name,
    choose_suite_place,
)
from ci.executors.engine import find_engine
from ci.executors.model import ContainerOptions
from ci.matrix.load import load
from ci.pipeline.container_suite import ContainerSuite
from ci.pipeline.reproduce import import_command
from ci.pipeline.rows import next_command
from ci.pipeline.tested import raise_red, read_manifest
from ci.pipeline.work_folders import work_folder
from ci.registry import MATRIX
from ci.report.model import CellReport, LibraryRow, RunReport
from ci.report.progress import Narrator
from ci.testing.import_suite import ImportResult, run_import_suite
from ci.toolchain import require_python


@dataclass(frozen=True)
class ImportRequest:
    """Wheels that are there already, and where their import suites run."""

    wheels: tuple[Path, ...]
    executor: str
    cache_dir: Path
    out_dir: Path
    container: ContainerOptions = field(default_factory=ContainerOptions)


def import_wheels(request: ImportRequest, narrator: Narrator) -> RunReport:
    """Run the import suite on wheels that are there already, each in an environment of its own.

    Raises :class:`~ci.errors.ConfigError` for a file that is not such a wheel, and what
    :func:`~ci.executors.choice.choose_suite_place` raises.
    """
    started = time.monotonic()
    check_name(request.executor)
    manifests = [read_manifest(wheel) for wheel in request.wheels]
    cells = [
        SuiteCell(*(str(item["cell"][key]) for key in ("id", "cuda", "python")))
        for item in manifests
    ]
    place = choose_suite_place(request.executor, cells, request.container, os.environ, find_engine)
    reports = tuple(
        _import_cell(wheel, manifest, place, request, narrator)
        for wheel, manifest in zip(request.wheels, manifests, strict=True)
    )
    return RunReport("import", reports, time.monotonic() - started, next_command(reports))


def _import_cell(
    wheel: Path,
    manifest: Mapping[str, Any],
    place: Place,
    request: ImportRequest,
    narrator: Narrator,
) -> CellReport:
    if isinstance(place, ContainerPlace):
        suite = ContainerSuite(place, request.cache_dir, request.out_dir)
        report = suite.import_wheel(wheel.resolve(), manifest, narrator)
    else:
        report = _import_here(
            wheel, manifest, place.executor, request.cache_dir, request.out_dir, narrator
        )
    if report.ok:
        return report
    return replace(report, reproduce=import_command(wheel, place.name, request.container))


def _paddle_of(cuda: str) -> str:
    """The CPU Paddle that wheels of this CUDA are tested with."""
    found = {entry.version: entry.paddle.cpu for entry in load(MATRIX).cudas}
    if cuda not in found:
        raise ConfigError(
            f"the wheel is of CUDA {cuda}, which is not in the matrix",
            cause=f"matrix.toml declares {', '.join(found)}",
            next_step="add that CUDA to matrix.toml",
        )
    return found[cuda]


def _import_here(
    wheel: Path,
    manifest: Mapping[str, Any],
    executor: Executor,
    cache_dir: Path,
    out_dir: Path,
    narrator: Narrator,
) -> CellReport:
    cell_id, python = str(manifest["cell"]["id"]), str(manifest["cell"]["python"])
    paddle = _paddle_of(str(manifest["cell"]["cuda"]))
    error: FarmError | None = None
    result: ImportResult | None = None
    narrator.begin(cell_id, "import suite in a fresh environment")
    try:
        with work_folder(cache_dir, f"import-{cell_id}") as work:
            result = run_import_suite(
                wheel.resolve(),
                interpreter=require_python(python),
                python=python,
                run_requires=[
                    text for item in manifest["libraries"] for text in item["run_requires"]
                ],
                paddle=paddle,
                executor=executor,
                cache_dir=cache_dir,
                work=work,
                log=out_dir / "logs" / cell_id / "import.log",
            )
        raise_red(cell_id, result)
    except FarmError as caught:
        error = caught
    narrator.end(cell_id, "import suite: red" if error else "import suite: green")
    return CellReport(
        cell=cell_id,
        executor=executor.name,
        executor_why=executor.why,
        python=python,
        compiler="none needed",
        libraries=tuple(
            LibraryRow(
                item.name,
                "in the wheel" if item.in_wheel else "left out",
                imported=item.state,
                reason="; ".join(item.reasons),
            )
            for item in (result.states if result else ())
        ),
        wheel=str(wheel),
        wheel_size=wheel.stat().st_size,
        publishable=bool(manifest["publishable"]),
        not_publishable_because=tuple(manifest["not_publishable_because"]),
        import_passed=result.passed if result else 0,
        import_failed=result.failed if result else 0,
        import_failures=result.problems if result and not result.ok else (),
        import_log=str(result.log) if result else "",
        error=error.as_dict() if error else None,
    )
