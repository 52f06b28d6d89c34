"""From artifacts and a manifest to the raw wheel, through the package's own PEP 517 back end."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.errors import LibraryBuildError
from ci.executors.base import Executor
from ci.proc import Command, scrubbed
from ci.registry import PACKAGE_ROOT

ASSEMBLY_VARIABLE = "PADDLEFLEET_OPS_ASSEMBLY"
_HOOK = "import sys, build_backend; build_backend.build_wheel(sys.argv[1])"
_PACKAGE_FILES = ("pyproject.toml", "setup.py", "README.md")


@dataclass(frozen=True)
class WheelLayout:
    """A package that is ready to be built: its folder, the file with what goes into it, its time."""

    package: Path
    assembly: Path
    out: Path
    source_date_epoch: str

    @classmethod
    def below(cls, work: Path, source_date_epoch: str) -> WheelLayout:
        """The layout in ``work``."""
        return cls(work / "package", work / "assembly.json", work / "raw", source_date_epoch)

    @property
    def environment(self) -> dict[str, str]:
        """What the back end reads."""
        return {
            ASSEMBLY_VARIABLE: str(self.assembly),
            "SOURCE_DATE_EPOCH": self.source_date_epoch,
        }


def lay_out(
    *,
    manifest: Mapping[str, object],
    artifacts: Mapping[str, Path],
    work: Path,
    source_date_epoch: str,
) -> WheelLayout:
    """A copy of the package below ``work``, with the manifest and the artifacts that go into it.

    The package is built from a copy, so the checkout stays as it is and cells can be assembled side by
    side.
    """
    layout = WheelLayout.below(work, source_date_epoch)
    shutil.rmtree(work, ignore_errors=True)
    _copy_package(layout.package)
    layout.out.mkdir(parents=True)
    folders = {name: str(folder) for name, folder in artifacts.items()}
    layout.assembly.write_text(json.dumps({"manifest": manifest, "artifacts": folders}), "utf-8")
    return layout


def build_raw(layout: WheelLayout, python: Path, executor: Executor, log: Path) -> Path:
    """Build the raw wheel with the interpreter ``python`` of the build environment.

    The hook of PEP 517 is called directly: a front end would add an isolated build, which the farm does not
    want, two more processes for metadata, and a copy of the wheel.
    Raises :class:`~ci.errors.LibraryBuildError` with the log's tail.
    """
    command = Command(
        argv=(str(python), "-c", _HOOK, str(layout.out)),
        cwd=layout.package,
        env=scrubbed(
            os.environ,
            ("LANG", "LC_ALL"),
            PATH=os.pathsep.join((str(python.parent), "/usr/local/bin", "/usr/bin", "/bin")),
            HOME=str(layout.package.parent),
            PYTHONDONTWRITEBYTECODE="1",
            PYTHONNOUSERSITE="1",
            **layout.environment,
        ),
        timeout=1800,
        label="assemble the wheel",
    )
    done = executor.run(command, log)
    wheels = sorted(layout.out.glob("*.whl"))
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
