"""The last stages of a cell, wherever it is built: laid out, repaired and verified, import-tested."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from ci.errors import InfrastructureError
from ci.findings import refuse
from ci.graph.history import History
from ci.graph.key import Key
from ci.graph.model import Cached
from ci.graph.store import Store
from ci.pipeline.identity import manifest_of, not_publishable, record_wheel, source_date_epoch
from ci.pipeline.kept import SUITE, WHEEL, keep_suite, keep_wheel, take_suite, take_wheel
from ci.pipeline.keys import import_key, wheel_key
from ci.pipeline.libraries import import_lock
from ci.pipeline.plan import CellPlan
from ci.pipeline.run import HISTORY
from ci.pipeline.state import CellState, RepairedWheel
from ci.pipeline.tested import raise_red, read_manifest
from ci.registry import REPOSITORY, build_utils, target_of
from ci.report.progress import Narrator
from ci.testing.import_suite import run_import_suite
from ci.wheel.archive import publish
from ci.wheel.assemble import WheelLayout, build_raw, lay_out
from ci.wheel.repair import repair
from ci.wheel.verify import verify


def make_wheel(
    state: CellState, store: Store, work: Path, logs: Path, narrator: Narrator
) -> Cached:
    """The repaired wheel of the cell in ``state``: that of an earlier run with equal inputs, else made."""
    with state.stage("wheel"):
        state.not_publishable = not_publishable(state)
        key = wheel_key(state)
        _remember(state, WHEEL, key)
        if take_wheel(state, store, key, work / "repaired"):
            return "local"
        with store.building(key):
            if take_wheel(state, store, key, work / "repaired"):
                return "local"
            layout = lay_out_wheel(state, store, work, narrator)
            if state.environment is None:
                raise ValueError("a wheel is assembled before its build environment is there")
            raw = build_raw(layout, state.environment.python, state.executor, logs / "assemble.log")
            repair_raw(state, raw, work, logs, narrator)
            keep_wheel(state, store, key, work)
    return ""


def lay_out_wheel(state: CellState, store: Store, work: Path, narrator: Narrator) -> WheelLayout:
    """The package and its assembly below ``work``, ready for its PEP 517 back end."""
    state.not_publishable = not_publishable(state)
    folders = {
        result.library.name: store.materialise(
            result.entry, work / "artifacts" / result.library.name
        )
        for result in state.results
        if result.entry is not None
    }
    manifest = manifest_of(state)
    narrator.say(f"{state.plan.cell.id}: assembling {manifest['version']}")
    return lay_out(
        manifest=manifest,
        artifacts=folders,
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


def import_wheel(
    state: CellState, store: Store, work: Path, logs: Path, narrator: Narrator
) -> Cached:
    """The result of the import suite on the repaired wheel in ``state``: that of an earlier run on the same
    wheel in the same environment, unless the request wants it run again, else of this one.
    """
    key = _suite_key(state)
    _remember(state, SUITE, key)
    if not state.plan.request.rerun_import and take_suite(state, store, key, logs / "import.log"):
        return "local"
    _run_suite(state, work, logs, narrator)
    keep_suite(state, store, key, work)
    return ""


def _remember(state: CellState, name: str, key: Key) -> None:
    """Keep the key for ``explain``: what the next one is compared with."""
    plan = state.plan
    history = History(plan.request.cache_dir / HISTORY)
    history.keyed(f"{name} {plan.cell.id}", key.digest, dict(key.inputs))


def _suite_key(state: CellState) -> Key:
    if state.repaired is None:
        raise _nothing_repaired(state)
    sha256 = hashlib.sha256(state.repaired.path.read_bytes()).hexdigest()
    return import_key(sha256, import_lock(state.plan), interpreter_identity(state.plan))


def interpreter_identity(plan: CellPlan) -> str:
    """The Python of a suite's environment: down to its patch level, and where it is."""
    return f"CPython {plan.chosen.interpreter_version} {plan.chosen.interpreter}"


def _run_suite(state: CellState, work: Path, logs: Path, narrator: Narrator) -> None:
    plan, cell = state.plan, state.plan.cell
    if state.repaired is None:
        raise _nothing_repaired(state)
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


def _nothing_repaired(state: CellState) -> InfrastructureError:
    return InfrastructureError(
        f"there is no repaired wheel of {state.plan.cell.id} to import",
        cause="the stage that repairs it was not run, or its result is gone",
        next_step="run the same command again",
    )


def publish_wheel(state: CellState, narrator: Narrator) -> None:
    """Put the wheel and its record into the output folder; one with a red import suite goes to ``red/``.

    Raises :class:`~ci.errors.SuiteError` for that one.
    """
    if state.repaired is None:
        return
    out_dir = state.plan.request.out_dir
    red = state.imported is not None and not state.imported.ok
    folder = out_dir / "red" if red else out_dir
    manifest = read_manifest(state.repaired.path)
    state.repaired = replace(state.repaired, path=publish(state.repaired.path, folder))
    record_wheel(state, manifest)
    narrator.say(f"{state.plan.cell.id}: in {folder}")
    if state.imported is not None:
        raise_red(state.plan.cell.id, state.imported)
