"""From artifacts and a manifest to the raw wheel, through the package's own PEP 517 back end."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from ci.errors import LibraryBuildError
from ci.executors.base import Executor
from ci.proc import Command, scrubbed
from ci.registry import PACKAGE_ROOT

ASSEMBLY_VARIABLE = "PADDLEFLEET_OPS_ASSEMBLY"
_PACKAGE_FILES = ("pyproject.toml", "setup.py", "README.md")


def assemble(
    *,
    manifest: Mapping[str, object],
    artifacts: Mapping[str, Path],
    python: Path,
    executor: Executor,
    work: Path,
    source_date_epoch: str,
    log: Path,
) -> Path:
    """Build the raw wheel below ``work`` with the interpreter ``python`` of the build environment.

    The package is built from a copy, so the checkout stays as it is and cells can be assembled side by
    side. Raises :class:`~ci.errors.LibraryBuildError` with the log's tail.
    """
    package, out = work / "package", work / "raw"
    shutil.rmtree(work, ignore_errors=True)
    _copy_package(package)
    out.mkdir(parents=True)
    assembly = work / "assembly.json"
    folders = {name: str(folder) for name, folder in artifacts.items()}
    assembly.write_text(json.dumps({"manifest": manifest, "artifacts": folders}), "utf-8")
    command = Command(
        argv=(
            str(python), "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--no-index",
            "--no-cache-dir", "--wheel-dir", str(out),
        ),
        cwd=package,
        env=scrubbed(
            os.environ,
            ("LANG", "LC_ALL"),
            PATH=os.pathsep.join((str(python.parent), "/usr/local/bin", "/usr/bin", "/bin")),
            HOME=str(work),
            PIP_CONFIG_FILE=os.devnull,
            PIP_DISABLE_PIP_VERSION_CHECK="1",
            PYTHONDONTWRITEBYTECODE="1",
            PYTHONNOUSERSITE="1",
            SOURCE_DATE_EPOCH=source_date_epoch,
            **{ASSEMBLY_VARIABLE: str(assembly)},
        ),
        timeout=1800,
        label="assemble the wheel",
    )  # fmt: skip
    done = executor.run(command, log)
    wheels = sorted(out.glob("*.whl"))
    if not done.ok or len(wheels) != 1:
        raise LibraryBuildError(
            "the wheel could not be assembled",
            cause=f"the back end ended with status {done.returncode} and left {len(wheels)} wheels",
            next_step=f"read {log}",
            details=done.tail(25),
        )
    return wheels[0]


def _copy_package(package: Path) -> None:
    """The package without its submodules and without what an earlier plain build collected."""
    source = package / "src" / "paddlefleet_ops"
    source.mkdir(parents=True)
    for name in _PACKAGE_FILES:
        shutil.copy2(PACKAGE_ROOT / name, package / name)
    for path in PACKAGE_ROOT.glob("build_*.py"):
        shutil.copy2(path, package / path.name)
    origin = PACKAGE_ROOT / "src" / "paddlefleet_ops"
    for path in origin.iterdir():
        if path.suffix == ".py" or path.name == "py.typed":
            shutil.copy2(path, source / path.name)
