"""The last stages of a cell, wherever it is built: laid out, repaired and verified, import-tested."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ci.errors import ConfigError, InfrastructureError
from ci.executors.base import Executor
from ci.findings import refuse
from ci.graph.blobs import sha256_of
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


@dataclass(frozen=True)
class WheelPlace:
    """Where the last stages of a cell work, and with what; ``jobs`` threads may compress."""

    store: Store
    work: Path
    logs: Path
    narrator: Narrator
    executor: Executor
    jobs: int = 1


def make_wheel(state: CellState, place: WheelPlace) -> Cached:
    """The repaired wheel of the cell in ``state``: that of an earlier run with equal inputs, else made."""
    with state.stage("wheel"):
        state.not_publishable = not_publishable(state)
        key = wheel_key(state)
        _remember(state, WHEEL, key)
        if take_wheel(state, place.store, key, place.work / "repaired"):
            return "local"
        with place.store.building(key):
            if take_wheel(state, place.store, key, place.work / "repaired"):
                return "local"
            layout = lay_out_wheel(state, place)
            repair_raw(state, raw_wheel(state, layout, place), place)
            keep_wheel(state, place.store, key, place.work)
    return ""


def raw_wheel(state: CellState, layout: WheelLayout, place: WheelPlace) -> Path:
    """The raw wheel of a package that is laid out, made by its back end in the build environment."""
    if state.environment is None:
        raise ConfigError("the stage finish comes after prepare", next_step="run the whole cell")
    log = place.logs / "assemble.log"
    return build_raw(layout, state.environment.python, place.executor, log)


def lay_out_wheel(state: CellState, place: WheelPlace) -> WheelLayout:
    """The package and its assembly below the work folder, ready for its PEP 517 back end."""
    state.not_publishable = not_publishable(state)
    folders = {
        result.library.name: place.store.materialise(
            result.entry, place.work / "artifacts" / result.library.name
        )
        for result in state.results
        if result.entry is not None
    }
    manifest = manifest_of(state)
    place.narrator.say(f"{state.plan.cell.id}: assembling {manifest['version']}")
    return lay_out(
        manifest=manifest,
        artifacts=folders,
        work=place.work / "wheel",
        source_date_epoch=source_date_epoch(),
    )


def repair_raw(state: CellState, raw: Path, place: WheelPlace) -> None:
    """Repair the raw wheel, apply the gates, and keep the result in ``state``."""
    plan, cell = state.plan, state.plan.cell
    excludes = {text for library in plan.selection.selected for text in library.excludes}
    repaired = repair(
        raw,
        place.work / "repaired",
        python_tag=cell.python_tag,
        cuda=cell.cuda,
        declared_excludes=tuple(sorted(excludes)),
        forbidden_paths=(str(place.work), str(plan.request.cache_dir), str(REPOSITORY)),
        log=place.logs / "repair.log",
        jobs=place.jobs,
    )
    findings = verify(
        repaired.path,
        log=place.logs / "verify.log",
        excluded=sorted(excludes),
        facts=repaired.facts_after,
        jobs=place.jobs,
    )
    refuse(f"{repaired.path.name} does not pass the gates", findings)
    state.repaired = RepairedWheel.of(repaired)
    place.narrator.say(f"{cell.id}: {repaired.path.name}")
    state.gates = (
        "RECORD",
        "tag = content",
        "twine check --strict",
        "check-wheel-contents",
        "auditwheel show",
    )


def import_wheel(state: CellState, place: WheelPlace) -> Cached:
    """The result of the import suite on the repaired wheel in ``state``: that of an earlier run on the same
    wheel in the same environment, unless the request wants it run again, else of this one.
    """
    key = _suite_key(state)
    _remember(state, SUITE, key)
    if not state.plan.request.rerun_import and take_suite(
        state, place.store, key, place.logs / "import.log"
    ):
        return "local"
    _run_suite(state, place)
    keep_suite(state, place.store, key, place.work)
    return ""


def _remember(state: CellState, name: str, key: Key) -> None:
    """Keep the key for ``explain``: what the next one is compared with."""
    plan = state.plan
    history = History(plan.request.cache_dir / HISTORY)
    history.keyed(f"{name} {plan.cell.id}", key.digest, dict(key.inputs))


def _suite_key(state: CellState) -> Key:
    if state.repaired is None:
        raise _nothing_repaired(state)
    sha256, _ = sha256_of(state.repaired.path)
    return import_key(sha256, import_lock(state.plan), interpreter_identity(state.plan))


def interpreter_identity(plan: CellPlan) -> str:
    """The Python of a suite's environment: its patch level and what it was built with, not where it is: in
    a container that cibuildwheel drives, the same one is found at another place.
    """
    return plan.chosen.compiles_as


def _run_suite(state: CellState, place: WheelPlace) -> None:
    plan, cell = state.plan, state.plan.cell
    if state.repaired is None:
        raise _nothing_repaired(state)
    place.narrator.begin(cell.id, "import suite in a fresh environment")
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
            executor=place.executor,
            cache_dir=plan.request.cache_dir,
            work=place.work / "import",
            log=place.logs / "import.log",
        )
    result = state.imported
    place.narrator.end(cell.id, f"import suite: {result.passed} passed, {result.failed} failed")


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
