"""The order of the stages: the only module that knows it.

matrix → cells → libraries per cell → sources → toolchain → build environment → library steps → raw
wheel → repaired wheel → gates → import suite → report. Each stage makes a frozen value from the ones
before it; this module hands them on and decides nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ci.environments.lock import BUILD_BASE, lock_for
from ci.environments.venv import Environment, cached_environment
from ci.errors import (
    ConfigError,
    FarmError,
    LibraryBuildError,
    SuiteError,
    ToolchainError,
)
from ci.executors.base import Executor, choose
from ci.graph.key import library_key
from ci.graph.step import LibraryStep, StepResult, run_step
from ci.graph.store import Store
from ci.matrix.load import load
from ci.matrix.model import Cell, version_key
from ci.matrix.resolve import resolve, select
from ci.proc import Command, end_all, run
from ci.registry import (
    PACKAGE_ROOT,
    REPOSITORY,
    EcosystemLibrary,
    Selection,
    build_manifest,
    build_steps,
    build_utils,
    libraries_of,
    target_of,
)
from ci.registry import select as select_libraries
from ci.report.model import CellReport, LibraryRow, RunReport
from ci.report.progress import Narrator
from ci.sources.override import Override, parse_overrides
from ci.sources.resolve import ResolvedSource, resolve_sources
from ci.testing.import_suite import ImportResult, run_import_suite
from ci.toolchain import Toolchain, describe, find_python, require_python, resolve_toolchain
from ci.toolchain.probe import find_hosts
from ci.wheel.archive import publish
from ci.wheel.assemble import assemble
from ci.wheel.finding import refuse
from ci.wheel.record import write_record
from ci.wheel.repair import Repaired, repair
from ci.wheel.verify import verify

EPOCH_1980 = "315532800"  # the oldest time that a zip archive can hold
MATRIX = REPOSITORY / "matrix.toml"


@dataclass(frozen=True)
class WheelRequest:
    """What the command line asks for, checked for form but not yet against the matrix."""

    cuda: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    capability_set: tuple[str, ...] = ()
    capabilities: str = ""
    tier: str = ""
    library_set: str = "fleet"
    libs: tuple[str, ...] | None = None
    sources: tuple[str, ...] = ()
    declarations: tuple[Path, ...] = ()
    compiler: str = "auto"
    executor: str = "auto"
    cache_dir: Path = Path()
    out_dir: Path = Path()
    jobs: int = 1
    with_import: bool = True
    verb: str = "wheel"
    matrix: Path = MATRIX


@dataclass(frozen=True)
class ChosenCell:
    """A cell, the interpreter that builds for it, and what there is to say about the choice."""

    cell: Cell
    interpreter: Path
    interpreter_version: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class CellPlan:
    """A cell with everything that is decided before anything runs."""

    chosen: ChosenCell
    selection: Selection
    overrides: Mapping[str, Override]
    request: WheelRequest

    @property
    def cell(self) -> Cell:
        """The cell."""
        return self.chosen.cell

    @property
    def needs_compiler(self) -> bool:
        """True when a selected library is compiled with the CUDA compiler."""
        return any(library.needs_cuda_compiler for library in self.selection.selected)


@dataclass
class _Progressing:
    """What a cell has reached so far: the parts of its report, kept also when a later stage fails."""

    plan: CellPlan
    executor: Executor
    stage_seconds: dict[str, float] = field(default_factory=dict)
    toolchain: Toolchain | None = None
    sources: Mapping[str, ResolvedSource] = field(default_factory=dict)
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


# --- deciding -------------------------------------------------------------------------------------


def plan_cells(request: WheelRequest) -> tuple[CellPlan, ...]:
    """The cells that are asked for, with their libraries; nothing is fetched, built or written.

    Raises :class:`~ci.errors.ConfigError` for what the matrix or the registry does not know, and
    :class:`~ci.errors.ToolchainError` when this host has no Python for a cell.
    """
    decisions = resolve(load(request.matrix))
    cells = select(
        decisions,
        cuda=request.cuda,
        python=request.python,
        capability_set=request.capability_set,
        tier=request.tier,
        capabilities=request.capabilities,
    )
    libraries = libraries_of(request.library_set, request.declarations)
    overrides = parse_overrides(request.sources, [library.name for library in libraries])
    plans = []
    for chosen in _choose_pythons(cells, every=bool(request.tier or request.python)):
        selection = select_libraries(libraries, chosen.cell, request.libs)
        if not selection.selected:
            raise _nothing_selected(chosen.cell, selection)
        plans.append(CellPlan(chosen, selection, overrides, request))
    return tuple(plans)


def _nothing_selected(cell: Cell, selection: Selection) -> ConfigError:
    return ConfigError(
        f"no library is left for {cell.id}",
        cause="every library that was asked for has a condition that this cell does not meet",
        next_step="take another cell (--python, --capability), or other --libs",
        details=[f"{item.library.name}: {'; '.join(item.reasons)}" for item in selection.left_out],
    )


def _choose_pythons(cells: Sequence[Cell], *, every: bool) -> tuple[ChosenCell, ...]:
    """Each cell with its interpreter. Without ``every``, for each CUDA and set the cell with the
    newest Python that this host has; the newer ones that it lacks are noted, not dropped in silence.
    """
    if every:
        return tuple(_with_interpreter(cell, ()) for cell in cells)
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.cuda, cell.capability_set), []).append(cell)
    return tuple(_newest_present(group) for group in groups.values())


def _newest_present(cells: Sequence[Cell]) -> ChosenCell:
    newest_first = sorted(cells, key=lambda cell: version_key(cell.python), reverse=True)
    for index, cell in enumerate(newest_first):
        if find_python(cell.python).found is not None:
            missing = ", ".join(other.python for other in newest_first[:index])
            note = f"Python {cell.python} is the newest of this CUDA's cells that this host has"
            return _with_interpreter(cell, (f"{note} (not found: {missing})",) if missing else ())
    return _with_interpreter(newest_first[0], ())


def _with_interpreter(cell: Cell, notes: tuple[str, ...]) -> ChosenCell:
    path = require_python(cell.python)
    found = find_python(cell.python).found
    version = found.version if found is not None else cell.python
    return ChosenCell(cell, path, version, notes)


def planned_report(request: WheelRequest) -> RunReport:
    """What a run would do (``--dry-run``): nothing is fetched, built or written."""
    started = time.monotonic()
    plans = plan_cells(request)
    executor = choose(request.executor)
    cells = tuple(_planned_cell(plan, executor) for plan in plans)
    return RunReport(f"{request.verb} --dry-run", cells, time.monotonic() - started, "")


def _planned_cell(plan: CellPlan, executor: Executor) -> CellReport:
    rows = [_planned_row(plan, library) for library in plan.selection.selected]
    problems = build_utils.submodule_problems(
        [library for library in plan.selection.selected if library.name not in plan.overrides]
    )
    notes = [f"{item.library}: {item.problem}; {item.next_step}" for item in problems]
    if plan.needs_compiler:
        notes.append(f"nvcc gets: {' '.join('-gencode ' + value for value in plan.cell.gencode)}")
    return CellReport(
        cell=plan.cell.id,
        executor=executor.name,
        executor_why=executor.why,
        python=f"{plan.cell.python} ({plan.chosen.interpreter_version})",
        compiler=_planned_compiler(plan),
        libraries=(*rows, *_left_out_rows(plan.selection)),
        notes=(*plan.chosen.notes, *notes),
    )


def _planned_row(plan: CellPlan, library: EcosystemLibrary) -> LibraryRow:
    override = plan.overrides.get(library.name)
    source = override.origin if override else (library.pin or library.source_rel_path)
    return LibraryRow(
        library.name, "planned", source=source, capabilities=_compiled_for(library, plan.cell)
    )


def _planned_compiler(plan: CellPlan) -> str:
    if not plan.needs_compiler:
        return "none needed"
    offer = _offer(plan)
    if offer.get("usable"):
        return f"{offer['uses']} ({offer['from']})"
    error = offer["error"]
    return f"none: {error['message']}" if isinstance(error, Mapping) else "none"


def _offer(plan: CellPlan) -> Mapping[str, object]:
    """What this host would compile the cell with, or the error that it would end with."""
    document = describe([plan.cell.cuda], plan.request.compiler, plan.request.cache_dir, os.environ)
    cudas = document["cudas"]
    if not isinstance(cudas, list):
        raise TypeError("the toolchain's description has no list of CUDA versions")
    offer: Mapping[str, object] = cudas[0]
    return offer


def check_toolchains(plans: Sequence[CellPlan]) -> None:
    """Raise :class:`~ci.errors.ToolchainError` before anything runs when a cell has no compiler."""
    refused: dict[str, Mapping[str, object]] = {}
    for plan in plans:
        if plan.needs_compiler and plan.cell.cuda not in refused:
            offer = _offer(plan)
            error = offer.get("error")
            if not offer["usable"] and isinstance(error, Mapping):
                refused[plan.cell.cuda] = error
    if not refused:
        return
    first = next(iter(refused.values()))
    others = [str(error["message"]) for error in list(refused.values())[1:]]
    details = first["details"]
    raise ToolchainError(
        str(first["message"]),
        cause=str(first["cause"]),
        next_step=str(first["next_step"]),
        details=(*(details if isinstance(details, list) else ()), *others),
    )


# --- running --------------------------------------------------------------------------------------


def build_wheels(request: WheelRequest, narrator: Narrator) -> RunReport:
    """Build, repair and import-test the wheel of every cell that is asked for.

    A cell that fails does not stop the others; its error is in the report. Raises what
    :func:`plan_cells` raises, before anything is built.
    """
    started = time.monotonic()
    plans = plan_cells(request)
    executor = choose(request.executor)
    check_toolchains(plans)
    request.out_dir.mkdir(parents=True, exist_ok=True)
    cells = tuple(_cell(plan, executor, narrator) for plan in plans)
    return RunReport(request.verb, cells, time.monotonic() - started, _next_command(cells))


def _cell(plan: CellPlan, executor: Executor, narrator: Narrator) -> CellReport:
    state = _Progressing(plan, executor)
    error: FarmError | None = None
    try:
        _run_cell(state, narrator)
    except FarmError as caught:
        error = caught
    return _cell_report(state, error)


def _run_cell(state: _Progressing, narrator: Narrator) -> None:
    plan, request = state.plan, state.plan.request
    work = request.cache_dir / "work" / f"{plan.cell.id}-{os.getpid()}"
    logs = request.out_dir / "logs" / plan.cell.id
    try:
        with state.stage("sources"):
            state.sources = resolve_sources(
                plan.selection.selected, plan.overrides, request.cache_dir, narrator.say
            )
        with state.stage("toolchain"):
            state.toolchain = _toolchain(plan, narrator)
        with state.stage("environment"):
            narrator.say(f"{plan.cell.id}: build environment for Python {plan.cell.python}")
            environment = _build_environment(plan)
        with state.stage("libraries"):
            state.results = _build_libraries(state, environment, work, logs, narrator)
        raise_failures(state.results)
        with state.stage("wheel"):
            _wheel(state, environment, work, logs, narrator)
        if request.with_import:
            with state.stage("import suite"):
                _import(state, work, logs, narrator)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _toolchain(plan: CellPlan, narrator: Narrator) -> Toolchain | None:
    if not plan.needs_compiler:
        return None
    request = plan.request
    return resolve_toolchain(
        plan.cell.cuda,
        request.compiler,
        request.cache_dir,
        environ=os.environ,
        progress=narrator.say,
    )


def _build_environment(plan: CellPlan) -> Environment:
    target = target_of(plan.cell)
    declared = [
        text
        for library in plan.selection.selected
        for text in build_utils.requirements(library.build_requires, target)
    ]
    lock = lock_for([*BUILD_BASE, *declared], plan.cell.python, "build", plan.request.cache_dir)
    return cached_environment(lock, plan.chosen.interpreter, plan.request.cache_dir)


def _build_libraries(
    state: _Progressing, environment: Environment, work: Path, logs: Path, narrator: Narrator
) -> tuple[StepResult, ...]:
    store = Store(state.plan.request.cache_dir / "store")
    steps = [
        _step(state, library, environment, work, logs) for library in state.plan.selection.selected
    ]

    def one(step: LibraryStep) -> StepResult:
        name = f"{state.plan.cell.id} {step.library.name}"
        narrator.begin(name, "building")
        result = run_step(step, state.executor, store)
        narrator.end(name, f"{result.status} in {result.seconds:.1f} s")
        return result

    return _side_by_side(one, steps, state.plan.request.jobs)


def _side_by_side(
    one: Callable[[LibraryStep], StepResult], steps: Sequence[LibraryStep], jobs: int
) -> tuple[StepResult, ...]:
    """``one`` of every step, several at once; an interrupt ends the children of all threads first."""
    pool = ThreadPoolExecutor(max_workers=max(1, min(len(steps), jobs)))
    try:
        return tuple(pool.map(one, steps))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        end_all()
        raise
    finally:
        pool.shutdown()


def _step(
    state: _Progressing,
    library: EcosystemLibrary,
    environment: Environment,
    work: Path,
    logs: Path,
) -> LibraryStep:
    plan, target = state.plan, target_of(state.plan.cell)
    source, folder = state.sources[library.name], work / "libraries" / library.name
    toolchain_env = state.toolchain.environment() if state.toolchain else {}
    toolchain_path = state.toolchain.path_entries() if state.toolchain else ()
    request = build_steps.BuildRequest(
        library=library.name,
        source=str(source.folder),
        work=str(folder),
        out=str(work / "collected" / library.name),
        artifacts=tuple((item.source, item.target) for item in library.artifacts),
        env=toolchain_env | library.build_env(target),
        path=tuple(str(entry) for entry in toolchain_path),
        include_dirs=library.include_dirs,
        hooks_before_build=library.hooks_before_build,
        hooks_after_collect=library.hooks_after_collect,
        ignored=library.ignored,
        jobs=plan.request.jobs,
        source_date_epoch=_epoch(),
    )
    key = library_key(
        library,
        target,
        tree=source.tree,
        build_requires=environment.lock.pinned(
            [*BUILD_BASE, *build_utils.requirements(library.build_requires, target)]
        ),
        toolchain_identity=_toolchain_identity(state.toolchain),
        interpreter_identity=f"CPython {plan.cell.python}",
    )
    return LibraryStep(library, key, request, environment.python, logs / f"{library.name}.log")


def _toolchain_identity(toolchain: Toolchain | None) -> str:
    if toolchain is not None:
        return toolchain.identity()
    host = next(iter(find_hosts(os.environ)), None)
    return f"{host.family} {host.version}" if host is not None else "no host compiler"


def raise_failures(results: Sequence[StepResult]) -> None:
    """Raise one :class:`~ci.errors.LibraryBuildError` that tells of every library that failed."""
    failed = [result for result in results if result.failure is not None]
    if not failed:
        return
    details: list[str] = []
    for result in failed:
        failure = result.failure
        if failure is None:
            continue
        details.append(f"{result.library.name} ({failure.stage}):")
        details += [f"  {problem}" for problem in failure.problems]
        if failure.first_error:
            details.append(f"  first compiler error: {failure.first_error}")
        details += [f"  | {line}" for line in failure.tail]
    names = ", ".join(result.library.name for result in failed)
    first = failed[0].failure
    cause = (first.first_error or first.problems[0]) if first is not None else ""
    raise LibraryBuildError(
        f"{names} did not build",
        cause=cause,
        next_step=f"read {failed[0].log}",
        details=details,
    )


def _wheel(
    state: _Progressing, environment: Environment, work: Path, logs: Path, narrator: Narrator
) -> None:
    plan, cell = state.plan, state.plan.cell
    state.not_publishable = _not_publishable(state)
    manifest = _manifest(state)
    narrator.say(f"{cell.id}: assembling {manifest['version']}")
    raw = assemble(
        manifest=manifest,
        artifacts={r.library.name: r.folder for r in state.results if r.folder is not None},
        python=environment.python,
        executor=state.executor,
        work=work / "wheel",
        source_date_epoch=_epoch(),
        log=logs / "assemble.log",
    )
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
    state.repaired = replace(repaired, path=publish(repaired.path, plan.request.out_dir))
    narrator.say(f"{cell.id}: {state.repaired.path.name}")
    state.gates = (
        "RECORD",
        "tag = content",
        "twine check --strict",
        "check-wheel-contents",
        "auditwheel show",
    )
    _record(state, manifest)


def _record(state: _Progressing, manifest: Mapping[str, object]) -> None:
    """Write the build record beside the wheel; again with the import suite's outcome after it."""
    if state.repaired is None:
        return
    libraries = {
        result.library.name: {
            "status": result.status,
            "key": result.key.digest,
            "inputs": dict(result.key.inputs),
            "distribution": result.distribution,
            "seconds": round(result.built_in, 3),
            "size": result.size,
        }
        for result in state.results
    }
    write_record(
        state.repaired.path,
        {
            "manifest": manifest,
            "libraries": libraries,
            "toolchain": state.toolchain.as_dict() if state.toolchain else None,
            "executor": state.executor.name,
            "excluded": [item.pattern for item in state.repaired.excluded],
            "grafted": list(state.repaired.grafted),
            "import_suite": _import_values(state.imported),
        },
    )


def _import_values(result: ImportResult | None) -> dict[str, object] | None:
    if result is None:
        return None
    return {
        "passed": result.passed,
        "failed": result.failed,
        "skipped": result.skipped,
        "libraries": {item.name: [item.state, *item.reasons] for item in result.states},
        "packages": list(result.packages),
    }


def _manifest(state: _Progressing) -> dict[str, object]:
    plan, cell = state.plan, state.plan.cell
    records = {name: source.record() for name, source in state.sources.items()}
    toolchain: dict[str, object] = {"compiler": "none"}
    if state.toolchain is not None:
        toolchain = {
            "compiler": state.toolchain.compiler,
            "version": state.toolchain.version,
            "host_compiler": state.toolchain.cxx_version,
            "ptxas": state.toolchain.ptxas_version,
        }
    return build_manifest.build_manifest(
        cell_id=cell.id,
        target=target_of(cell),
        selection=plan.selection,
        sources=records,
        toolchain=toolchain,
        version=build_manifest.package_version(
            cell.cuda, _labels(state), build_manifest.git_stamp()
        ),
        not_publishable_because=state.not_publishable,
    )


def _labels(state: _Progressing) -> list[str]:
    """Segments of the local version label: what makes this wheel another than the pinned one."""
    plan = state.plan
    overridden = {
        name: source.record()
        for name, source in state.sources.items()
        if source.kind in ("path", "git", "pypi", "declared")
    }
    labels = [plan.cell.capability_set] if plan.cell.capability_set else []
    if plan.request.library_set != "fleet":
        labels.append(plan.request.library_set)
    if overridden:
        labels.append(build_manifest.overrides_label(overridden))
    if state.toolchain is not None and state.toolchain.compiler != "nvcc":
        labels.append(state.toolchain.compiler)
    if _uncommitted():
        labels.append("dirty")
    return labels


def _not_publishable(state: _Progressing) -> tuple[str, ...]:
    reasons = [
        f"{name} is built from {source.origin}, not from its pinned submodule"
        for name, source in state.sources.items()
        if not source.pinned
    ]
    if state.toolchain is not None and not state.toolchain.publishable:
        reasons.append(state.toolchain.not_publishable_because)
    if _uncommitted():
        reasons.append("the checkout has uncommitted changes below packages/")
    return tuple(reasons)


def _uncommitted() -> bool:
    done = run(
        Command(
            ("git", "status", "--porcelain", "--ignore-submodules=none", "--", "packages"),
            cwd=REPOSITORY,
        )
    )
    return done.ok and bool(done.output.strip())


def _epoch() -> str:
    """The time of the last commit below ``packages/``: every file of a wheel gets it."""
    done = run(
        Command(
            ("git", "log", "-1", "--format=%ct", "--", str(PACKAGE_ROOT.parent)), cwd=REPOSITORY
        )
    )
    text = done.output.strip()
    return text if done.ok and text.isdigit() else EPOCH_1980


def _import(state: _Progressing, work: Path, logs: Path, narrator: Narrator) -> None:
    plan, cell = state.plan, state.plan.cell
    if state.repaired is None:
        return
    narrator.begin(cell.id, "import suite in a fresh environment")
    target = target_of(cell)
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
    _record(state, read_manifest(state.repaired.path))
    result = state.imported
    narrator.end(cell.id, f"import suite: {result.passed} passed, {result.failed} failed")
    _raise_red(cell.id, result)


# --- the import suite alone -----------------------------------------------------------------------


def import_wheels(
    wheels: Sequence[Path], executor_name: str, cache_dir: Path, out_dir: Path, narrator: Narrator
) -> RunReport:
    """Run the import suite on wheels that are there already, each in an environment of its own.

    Raises :class:`~ci.errors.ConfigError` for a file that is not such a wheel.
    """
    started = time.monotonic()
    executor = choose(executor_name)
    manifests = [read_manifest(wheel) for wheel in wheels]
    cells = tuple(
        _import_cell(wheel, manifest, executor, cache_dir, out_dir, narrator)
        for wheel, manifest in zip(wheels, manifests, strict=True)
    )
    return RunReport("import", cells, time.monotonic() - started, _next_command(cells))


def read_manifest(wheel: Path) -> Mapping[str, Any]:
    """The manifest inside a wheel. Raises :class:`~ci.errors.ConfigError` when there is none."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            found: Mapping[str, Any] = json.loads(archive.read("paddlefleet_ops/_manifest.json"))
            return found
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{wheel} is not a paddlefleet_ops wheel",
            cause=f"{type(error).__name__}: {error}",
            next_step="nox -s import -- dist/paddlefleet_ops-….whl",
        ) from error


def _import_cell(
    wheel: Path,
    manifest: Mapping[str, Any],
    executor: Executor,
    cache_dir: Path,
    out_dir: Path,
    narrator: Narrator,
) -> CellReport:
    cell_id, python = str(manifest["cell"]["id"]), str(manifest["cell"]["python"])
    entry = next(item for item in load(MATRIX).cudas if item.version == manifest["cell"]["cuda"])
    work = cache_dir / "work" / f"import-{cell_id}-{os.getpid()}"
    error: FarmError | None = None
    result: ImportResult | None = None
    narrator.begin(cell_id, "import suite in a fresh environment")
    try:
        result = run_import_suite(
            wheel.resolve(),
            interpreter=require_python(python),
            python=python,
            run_requires=[text for item in manifest["libraries"] for text in item["run_requires"]],
            paddle=entry.paddle.cpu,
            executor=executor,
            cache_dir=cache_dir,
            work=work,
            log=out_dir / "logs" / cell_id / "import.log",
        )
        _raise_red(cell_id, result)
    except FarmError as caught:
        error = caught
    finally:
        shutil.rmtree(work, ignore_errors=True)
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


def _raise_red(cell_id: str, result: ImportResult) -> None:
    if result.ok:
        return
    raise SuiteError(
        f"the import suite of {cell_id} is red: {result.passed} passed, {result.failed} failed, "
        f"{result.skipped} skipped",
        cause=result.problems[0],
        next_step=f"read {result.log}",
        details=result.problems,
    )


# --- reporting ------------------------------------------------------------------------------------


def _cell_report(state: _Progressing, error: FarmError | None) -> CellReport:
    plan = state.plan
    toolchain, repaired, imported = state.toolchain, state.repaired, state.imported
    return CellReport(
        cell=plan.cell.id,
        executor=state.executor.name,
        executor_why=state.executor.why,
        python=f"{plan.cell.python} ({plan.chosen.interpreter_version})",
        compiler=_compiler_text(plan, toolchain),
        libraries=(*_library_rows(state), *_left_out_rows(plan.selection)),
        notes=plan.chosen.notes,
        wheel=str(repaired.path) if repaired else "",
        wheel_size=repaired.path.stat().st_size if repaired else 0,
        tag=repaired.tag if repaired else "",
        publishable=bool(repaired) and not state.not_publishable,
        not_publishable_because=state.not_publishable,
        repair=_repair_text(repaired) if repaired else "",
        gates=state.gates,
        import_passed=imported.passed if imported else 0,
        import_failed=imported.failed if imported else 0,
        import_failures=imported.problems if imported and not imported.ok else (),
        import_log=str(imported.log) if imported else "",
        stage_seconds=dict(state.stage_seconds),
        error=error.as_dict() if error else None,
    )


def _compiler_text(plan: CellPlan, toolchain: Toolchain | None) -> str:
    if toolchain is not None:
        return f"{toolchain.compiler} {toolchain.version} ({toolchain.origin})"
    return "not found" if plan.needs_compiler else "none needed"


def _repair_text(repaired: Repaired) -> str:
    if repaired.skipped_reason:
        return repaired.skipped_reason
    excluded = ", ".join(item.pattern for item in repaired.excluded) or "nothing"
    grafted = ", ".join(repaired.grafted) or "nothing"
    return f"auditwheel; excluded: {excluded}; grafted: {grafted}"


def _library_rows(state: _Progressing) -> list[LibraryRow]:
    results = {result.library.name: result for result in state.results}
    states = {item.name: item for item in state.imported.states} if state.imported else {}
    rows = []
    for library in state.plan.selection.selected:
        result, source = results.get(library.name), state.sources.get(library.name)
        origin = f"{source.origin} {source.revision[:12]}".strip() if source else ""
        if result is None:
            rows.append(LibraryRow(library.name, "not reached", source=origin))
            continue
        shown = states.get(library.name)
        reason = "; ".join(result.failure.problems[:1]) if result.failure else ""
        if shown is not None and shown.state != "loaded":
            reason = "; ".join(shown.reasons)
        rows.append(
            LibraryRow(
                library=library.name,
                status=result.status,
                reason=reason,
                source=origin,
                key=result.key.digest,
                seconds=result.seconds,
                built_in=result.built_in,
                size=result.size,
                files=result.files,
                capabilities=_compiled_for(library, state.plan.cell),
                imported=shown.state if shown else "",
                log=str(result.log or ""),
            )
        )
    return rows


def _compiled_for(library: EcosystemLibrary, cell: Cell) -> tuple[str, ...]:
    return library.capabilities(target_of(cell)) if library.needs_cuda_compiler else ()


def _left_out_rows(selection: Selection) -> list[LibraryRow]:
    return [
        LibraryRow(item.library.name, "left out", reason="; ".join(item.reasons))
        for item in selection.left_out
    ]


def _next_command(cells: Sequence[CellReport]) -> str:
    for cell in cells:
        if cell.error is not None:
            return str(cell.error["next_step"])
    wheel = cells[-1].wheel
    return f"pip install {wheel}" if wheel else ""
