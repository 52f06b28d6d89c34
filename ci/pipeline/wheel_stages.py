"""The last stages of a cell, wherever it is built: laid out, repaired and verified, import-tested."""

from __future__ import annotations

from pathlib import Path

from ci.errors import InfrastructureError
from ci.findings import refuse
from ci.pipeline.identity import manifest_of, not_publishable, source_date_epoch
from ci.pipeline.state import CellState, RepairedWheel
from ci.registry import REPOSITORY, build_utils, target_of
from ci.report.progress import Narrator
from ci.testing.import_suite import run_import_suite
from ci.wheel.assemble import WheelLayout, lay_out
from ci.wheel.repair import repair
from ci.wheel.verify import verify


def lay_out_wheel(state: CellState, work: Path, narrator: Narrator) -> WheelLayout:
    """The package and its assembly below ``work``, ready for its PEP 517 back end."""
    state.not_publishable = not_publishable(state)
    manifest = manifest_of(state)
    narrator.say(f"{state.plan.cell.id}: assembling {manifest['version']}")
    return lay_out(
        manifest=manifest,
        artifacts={r.library.name: r.folder for r in state.results if r.folder is not None},
        work=work / "wheel",
        source_date_epoch=source_date_epoch(),
    )


def repair_raw(state: CellState, raw: Path, work: Path, logs: Path, narrator: Narrator) -> None:
    """Repair the raw wheel, apply the gates, and keep the result in ``state``."""
    plan, cell = state.plan, state.plan.cell
    excludes = {text for library in plan.selection.selected for text in library.excludes}
    repaired = repair(
        raw,
        work / "repaired",
        python_tag=cell.python_tag,
        cuda=cell.cuda,
        declared_excludes=tuple(sorted(excludes)),
        forbidden_paths=(str(work), str(plan.request.cache_dir), str(REPOSITORY)),
        log=logs / "repair.log",
    )
    findings = verify(repaired.path, log=logs / "verify.log", excluded=sorted(excludes))
    refuse(f"{repaired.path.name} does not pass the gates", findings)
    state.repaired = RepairedWheel.of(repaired)
    narrator.say(f"{cell.id}: {repaired.path.name}")
    state.gates = (
        "RECORD",
        "tag = content",
        "twine check --strict",
        "check-wheel-contents",
        "auditwheel show",
    )


def import_wheel(state: CellState, work: Path, logs: Path, narrator: Narrator) -> None:
    """Run the import suite on the repaired wheel, and keep its result in ``state``."""
    plan, cell = state.plan, state.plan.cell
    if state.repaired is None:
        raise InfrastructureError(
            f"there is no repaired wheel of {cell.id} to import",
            cause="the stage that repairs it was not run, or its result is gone",
            next_step="run the same command again",
        )
    narrator.begin(cell.id, "import suite in a fresh environment")
    target = target_of(cell)
    with state.stage("import suite"):
        state.imported = run_import_suite(
            state.repaired.path,
            interpreter=plan.chosen.interpreter,
            python=cell.python,
            run_requires=[
                text
                for library in plan.selection.selected
                for text in build_utils.requirements(library.run_requires, target)
            ],
            paddle=cell.paddle.cpu,
            executor=state.executor,
            cache_dir=plan.request.cache_dir,
            work=work / "import",
            log=logs / "import.log",
        )
    result = state.imported
    narrator.end(cell.id, f"import suite: {result.passed} passed, {result.failed} failed")
