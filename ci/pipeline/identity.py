"""What a wheel says of itself: manifest, version label, build record, whether it may be published."""

from __future__ import annotations

from collections.abc import Mapping

from ci.environments.venv import Environment
from ci.pipeline.state import CellState
from ci.proc import Command, run
from ci.registry import (
    PACKAGE_ROOT,
    REPOSITORY,
    build_manifest,
    build_utils,
    target_of,
)
from ci.testing.import_suite import ImportResult
from ci.wheel.record import write_record

EPOCH_1980 = "315532800"  # the oldest time that a zip archive can hold


def manifest_of(state: CellState) -> dict[str, object]:
    """The manifest of the wheel of the cell."""
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
            cell.cuda, version_labels(state), build_manifest.git_stamp()
        ),
        not_publishable_because=state.not_publishable,
    )


def version_labels(state: CellState) -> list[str]:
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
    if plan.request.libs is not None:
        labels.append("part")
    if overridden:
        labels.append(build_manifest.overrides_label(overridden))
    if state.toolchain is not None and state.toolchain.compiler != "nvcc":
        labels.append(state.toolchain.compiler)
    label, _ = checkout_problem()
    if label:
        labels.append(label)
    return labels


def not_publishable(state: CellState) -> tuple[str, ...]:
    """Every reason why the wheel of the cell must not be published; none for a release wheel."""
    reasons = [
        f"{name} is built from {source.origin}, not from its pinned submodule"
        for name, source in state.sources.items()
        if not source.pinned
    ]
    if state.plan.request.libs is not None:
        reasons.append(f"it holds only the libraries asked for: {', '.join(state.sources)}")
    unpinned = [
        item.library.name
        for item in state.plan.selection.left_out
        if build_utils.NOT_PINNED in item.reasons
    ]
    if unpinned:
        reasons.append(f"it lacks libraries that are not pinned yet: {', '.join(unpinned)}")
    if state.toolchain is not None and not state.toolchain.publishable:
        reasons.append(state.toolchain.not_publishable_because)
    request = state.plan.request
    if request.declarations:
        names = ", ".join(path.name for path in request.declarations)
        reasons.append(f"declarations outside the registry: {names}")
    if request.capabilities:
        reasons.append(f"capabilities outside the matrix: {request.capabilities}")
    if not request.with_import:
        reasons.append("the import suite was not run")
    _, reason = checkout_problem()
    if reason:
        reasons.append(reason)
    return tuple(reasons)


def checkout_problem() -> tuple[str, str]:
    """A label and a reason when the checkout is not a commit; two empty texts when it is."""
    done = run(
        Command(
            (
                "git", "status", "--porcelain", "--untracked-files=all", "--ignore-submodules=none",
                "--", "packages", "ci", "matrix.toml",
            ),
            cwd=REPOSITORY,
        )
    )  # fmt: skip
    if not done.ok or build_manifest.git_stamp() is None:
        return "nogit", "git cannot tell which commit this checkout is"
    if done.output.strip():
        return "dirty", "the checkout has uncommitted changes"
    return "", ""


def source_date_epoch() -> str:
    """The time of the last commit below ``packages/``: every file of a wheel gets it."""
    done = run(
        Command(
            ("git", "log", "-1", "--format=%ct", "--", str(PACKAGE_ROOT.parent)), cwd=REPOSITORY
        )
    )
    text = done.output.strip()
    return text if done.ok and text.isdigit() else EPOCH_1980


def record_wheel(state: CellState, manifest: Mapping[str, object]) -> None:
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
            "build_environment": _environment_values(state.environment),
            "executor": state.plan.place.name,
            "image": state.image,
            "excluded": [item.pattern for item in state.repaired.excluded],
            "grafted": list(state.repaired.grafted),
            "import_suite": _import_values(state.imported),
        },
    )


def _environment_values(environment: Environment | None) -> dict[str, object] | None:
    if environment is None:
        return None
    return {"lock": environment.lock.digest, "packages": environment.lock.pins}


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
