"""A suite of a wheel that is there already, in a container: of the test image, else of the build image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cattrs

from ci.errors import FarmError, InfrastructureError, SuiteError, from_os_error
from ci.executors.choice import ContainerPlace
from ci.executors.container import ContainerExecutor
from ci.executors.gpu_check import probe_command, read_probe, require_gpus
from ci.executors.model import LABEL, ContainerSpec, GpuRequest
from ci.pipeline.inside import farm_command, farm_spec
from ci.report.model import CellReport
from ci.report.progress import Narrator

SUITE_SECONDS = 2 * 3600.0


@dataclass(frozen=True)
class ContainerSuite:
    """Where suites run, and the folders that they share with the host."""

    place: ContainerPlace
    cache_dir: Path
    out_dir: Path

    def import_wheel(
        self, wheel: Path, manifest: Mapping[str, Any], narrator: Narrator
    ) -> CellReport:
        """Run ``python -m ci import`` on ``wheel`` inside; its report with the place of this one."""
        cell = str(manifest["cell"]["id"])
        logs = self.out_dir / "logs" / cell
        logs.mkdir(parents=True, exist_ok=True)
        image = self.place.images[cell]
        narrator.begin(cell, f"import suite in {image.ref}")
        try:
            report = self._inside(wheel, manifest, logs)
        except (FarmError, OSError) as caught:
            error = from_os_error(caught) if isinstance(caught, OSError) else caught
            report = _failed(cell, str(manifest["cell"]["python"]), error)
        narrator.end(cell, "import suite: green" if report.ok else "import suite: red")
        return replace(
            report, executor="container", executor_why=self.place.why, image=image.digest
        )

    def _inside(self, wheel: Path, manifest: Mapping[str, Any], logs: Path) -> CellReport:
        spec = self._spec(str(manifest["cell"]["id"]), wheel, logs)
        executor = ContainerExecutor(self.place.engine, spec, self.place.why)
        if spec.gpus is not None:
            self._require_gpus(executor, spec.gpus, str(manifest["cell"]["cuda"]), logs)
        kept = logs / "import-report.json"
        kept.unlink(missing_ok=True)
        command = farm_command(
            "import", str(wheel), "--executor", "host", "--report", str(kept),
            "--cache-dir", str(self.cache_dir), "--out-dir", str(self.out_dir),
            label="import suite", timeout=SUITE_SECONDS,
        )  # fmt: skip
        log = logs / "import-container.log"
        done = executor.run(command, log)
        if done.timed_out or not kept.exists():
            raise SuiteError(
                "the import suite left no report",
                cause="it timed out"
                if done.timed_out
                else f"it ended with status {done.returncode}",
                next_step=f"read {log}",
                details=done.tail(20),
            )
        return _read_report(kept)

    def _spec(self, cell: str, wheel: Path, logs: Path) -> ContainerSpec:
        spec = farm_spec(
            self.place,
            cell,
            self.cache_dir,
            writable=(logs,),
            readable=(wheel.parent,),
            labels={LABEL + "cell": cell, LABEL + "step": "import"},
        )
        devices = self.place.options.devices
        return replace(spec, gpus=GpuRequest(devices)) if devices else spec

    def _require_gpus(
        self, executor: ContainerExecutor, gpus: GpuRequest, cuda: str, logs: Path
    ) -> None:
        """Ask inside before any test which GPUs arrived; not just the asked ones is no test failure."""
        done = executor.run(probe_command(gpus), logs / "gpu-probe.log")
        require_gpus(gpus, read_probe(done.output), cuda=cuda)


def _read_report(path: Path) -> CellReport:
    try:
        document = json.loads(path.read_text("utf-8"))
        converter = cattrs.Converter(forbid_extra_keys=True)
        return converter.structure(document["cells"][0], CellReport)
    except (ValueError, KeyError, IndexError, TypeError, cattrs.BaseValidationError) as error:
        raise InfrastructureError(
            f"{path} cannot be read as a report",
            cause=f"the farm inside wrote another shape than this one reads: {error}",
            next_step="run the same command again; the checkout must not change meanwhile",
        ) from error


def _failed(cell: str, python: str, error: FarmError) -> CellReport:
    return CellReport(
        cell=cell,
        executor="container",
        executor_why="",
        python=python,
        compiler="none needed",
        libraries=(),
        error=error.as_dict(),
    )
