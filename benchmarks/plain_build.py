"""The baseline: the integration guide's procedure done plainly, one step after the other.

    python benchmarks/plain_build.py [--cuda 13.0] [--python 3.13] [--set templates] [--import]

For each cell, serially, for each library: ``pip install SOURCE --target DIR --no-deps
--no-build-isolation``; then its artifacts copied into a copy of the package, setuptools' ``bdist_wheel``
(default compression), ``auditwheel repair``, and on request an import of the wheel. Sources, artifacts,
variables, compilers and locked environments are the farm's, so what differs is the procedure. As a user
would, it says ``MAX_JOBS`` = number of CPUs, and nothing to ninja or make.

Not counted, because it is there on both sides of every comparison: compilers and environments
(:func:`prepare`), and the copy of each source folder (a build begins in a clean tree, as in PaddleFleet's
own CI, which clones anew for each cell and keeps nothing but a compiler cache).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ci.cli.options import cpus, default_cache_dir  # noqa: E402
from ci.environments.lock import lock_for  # noqa: E402
from ci.environments.venv import cached_environment  # noqa: E402
from ci.environments.wanted import build_requirements, import_requirements  # noqa: E402
from ci.matrix.load import load  # noqa: E402
from ci.matrix.model import Cell  # noqa: E402
from ci.matrix.resolve import resolve  # noqa: E402
from ci.matrix.resolve import select as select_cells  # noqa: E402
from ci.registry import (  # noqa: E402
    MATRIX,
    PACKAGE_ROOT,
    EcosystemLibrary,
    Selection,
    build_manifest,
    build_steps,
    libraries_of,
    select,
    target_of,
)
from ci.sources.override import parse_overrides  # noqa: E402
from ci.sources.resolve import ResolvedSource, resolve_sources  # noqa: E402
from ci.toolchain import find_python, host_toolchain, require_python, resolve_toolchain  # noqa: E402
from ci.wheel.policy import load_policy  # noqa: E402


@dataclass(frozen=True)
class Spent:
    """Wall clock and processor seconds of one command with all its children."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Prepared:
    """A cell before the plain procedure begins: sources, environments and compilers are there.

    ``python`` is that of the build environment, ``importer`` that of an environment with Paddle (``None``
    without ``--import``), ``variables`` what a user would export to find the compilers.
    """

    cell: Cell
    selection: Selection
    sources: Mapping[str, ResolvedSource]
    python: Path
    importer: Path | None
    variables: Mapping[str, str]
    path: tuple[str, ...]

    @property
    def libraries(self) -> tuple[EcosystemLibrary, ...]:
        """The libraries of the cell in load order."""
        return self.selection.selected


@dataclass(frozen=True)
class PlainCell:
    """What the plain procedure took for one cell, and the repaired wheel."""

    cell: str
    libraries: Mapping[str, Spent]
    wheel: Spent
    repair: Spent
    imported: Spent | None
    path: str

    @property
    def seconds(self) -> float:
        """Wall clock of the whole cell: every step after the other."""
        steps = [*self.libraries.values(), self.wheel, self.repair]
        return sum(step.wall for step in (*steps, *filter(None, (self.imported,))))

    @property
    def cpu(self) -> float:
        """Processor seconds of the whole cell."""
        steps = [*self.libraries.values(), self.wheel, self.repair]
        return sum(step.cpu for step in (*steps, *filter(None, (self.imported,))))


@dataclass(frozen=True)
class Asked:
    """Which cells and libraries; an empty axis is all its values, as on the farm's command line."""

    cuda: tuple[str, ...] = ("13.0",)
    python: tuple[str, ...] = ()
    library_set: str = "templates"
    libs: tuple[str, ...] | None = None
    declarations: tuple[Path, ...] = ()
    sources: tuple[str, ...] = ()
    cache_dir: Path = field(default_factory=default_cache_dir)


def newest_python() -> str:
    """The newest Python of the matrix that this host has: what the farm takes when none is named."""
    wanted = reversed(load(MATRIX).pythons)
    return next(text for text in wanted if find_python(text).found is not None)


def cells_of(asked: Asked) -> list[tuple[Cell, Selection]]:
    """The cells that are asked for, each with its libraries."""
    libraries = libraries_of(asked.library_set, asked.declarations)
    cells = select_cells(resolve(load(MATRIX)), cuda=asked.cuda, python=asked.python)
    given = {text.partition("=")[0] for text in asked.sources}
    return [(cell, select(libraries, cell, asked.libs, given)) for cell in cells]


def prepare(asked: Asked, *, with_import: bool) -> list[Prepared]:
    """What is there before the clock starts, for every cell that is asked for."""
    return [_prepared(asked, cell, selection, with_import) for cell, selection in cells_of(asked)]


def _prepared(asked: Asked, cell: Cell, selection: Selection, with_import: bool) -> Prepared:
    libraries, target = selection.selected, target_of(cell)
    hooked = [
        item.name for item in libraries if item.hooks_before_build or item.hooks_after_collect
    ]
    if hooked:
        sys.exit(f"{', '.join(hooked)}: the plain procedure does not run hooks; use --libs")
    overrides = parse_overrides(asked.sources, [library.name for library in libraries])
    interpreter = require_python(cell.python)
    variables, path = _compilers(cell, libraries, asked.cache_dir)
    importer = None
    if with_import:
        wanted = import_requirements(libraries, target, cell.paddle.cpu)
        lock = lock_for(wanted, cell.python, "import", asked.cache_dir)
        importer = cached_environment(lock, interpreter, asked.cache_dir).python
    lock = lock_for(build_requirements(libraries, target), cell.python, "build", asked.cache_dir)
    return Prepared(
        cell=cell,
        selection=selection,
        sources=resolve_sources(libraries, overrides, asked.cache_dir, _say),
        python=cached_environment(lock, interpreter, asked.cache_dir).python,
        importer=importer,
        variables=variables,
        path=path,
    )


def _compilers(
    cell: Cell, libraries: Sequence[EcosystemLibrary], cache_dir: Path
) -> tuple[dict[str, str], tuple[str, ...]]:
    if any(library.needs_cuda_compiler for library in libraries):
        toolchain = resolve_toolchain(
            cell.cuda, "auto", cache_dir, environ=os.environ, progress=_say
        )
        return toolchain.environment(), tuple(map(str, toolchain.path_entries()))
    if any(library.needs_host_compiler for library in libraries):
        return host_toolchain(os.environ, cache_dir).environment(), ()
    return {}, ()


def build_cell(prepared: Prepared, work: Path, *, sources: Path | None = None) -> PlainCell:
    """Run the plain procedure for one cell below ``work``, which must not exist yet.

    ``sources`` is a folder to copy the sources into, ``work/sources`` when left out. Raises
    :class:`SystemExit` with the output of a command that failed.
    """
    package = work / "paddlefleet_ops"
    shutil.copytree(PACKAGE_ROOT, package, ignore=shutil.ignore_patterns(*_NOT_OF_THE_PACKAGE))
    spent = {
        library.name: _build_library(prepared, library, work, sources or work / "sources")
        for library in prepared.libraries
    }
    manifest = _manifest(prepared)
    for library in prepared.libraries:
        _collect(library, work / "installed" / library.name, package / "src" / "paddlefleet_ops")
    _write_manifest(package, manifest)
    raw = work / "raw"
    argv = [str(prepared.python), "setup.py", "-q", "bdist_wheel", "--dist-dir", str(raw)]
    wheel = run(argv, package, _environment(prepared))
    repaired, repair = _repair(prepared, raw, work / "repaired")
    imported = None if prepared.importer is None else _import(prepared, repaired, work / "site")
    return PlainCell(prepared.cell.id, spent, wheel, repair, imported, str(repaired))


_NOT_OF_THE_PACKAGE = ("third_party", "__pycache__", ".*_cache", "build", "*.egg-info")


def _build_library(
    prepared: Prepared, library: EcosystemLibrary, work: Path, sources: Path
) -> Spent:
    source = sources / library.name
    shutil.rmtree(source, ignore_errors=True)
    names = shutil.ignore_patterns(*build_steps.NOT_COPIED)
    shutil.copytree(prepared.sources[library.name].folder, source, symlinks=True, ignore=names)
    target = work / "installed" / library.name
    argv = [
        str(prepared.python), "-m", "pip", "install", str(source), "--target", str(target),
        "--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check",
    ]  # fmt: skip
    variables = library.build_env(target_of(prepared.cell)) | _include(library, source)
    return run(argv, work, _environment(prepared) | variables)


def _include(library: EcosystemLibrary, source: Path) -> dict[str, str]:
    if any(entry.startswith(build_steps.SITE_PACKAGES) for entry in library.include_dirs):
        sys.exit(f"{library.name}: the plain procedure knows include folders of the sources only")
    folders = [str(source / entry) for entry in library.include_dirs]
    return {"CPLUS_INCLUDE_PATH": os.pathsep.join(folders)} if folders else {}


def _environment(prepared: Prepared) -> dict[str, str]:
    """The shell of a user who activated the environment and exported the compilers."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    folders = (*prepared.path, str(prepared.python.parent), os.environ.get("PATH", os.defpath))
    return {**kept, **prepared.variables} | {
        "PATH": os.pathsep.join(folders),
        "MAX_JOBS": str(cpus()),
    }


def _manifest(prepared: Prepared) -> dict[str, object]:
    target = target_of(prepared.cell)
    return build_manifest.build_manifest(
        cell_id=prepared.cell.id,
        target=target,
        selection=prepared.selection,
        sources={name: source.record() for name, source in prepared.sources.items()},
        toolchain={"compiler": "plain procedure"},
        version=build_manifest.package_version(target.cuda, ["plain"], None),
        not_publishable_because=("built by a benchmark",),
    )


def _write_manifest(package: Path, manifest: Mapping[str, object]) -> None:
    folder = package / "src" / "paddlefleet_ops"
    (folder / "_manifest.json").write_text(json.dumps(manifest), "utf-8")


def _collect(library: EcosystemLibrary, installed: Path, package: Path) -> None:
    for artifact in library.artifacts:
        source, target = installed / artifact.source, package / artifact.target
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _repair(prepared: Prepared, raw: Path, out: Path) -> tuple[Path, Spent]:
    """``auditwheel repair``; a wheel without compiled code has no platform, and stays as it is."""
    (wheel,) = raw.glob("*.whl")
    if wheel.name.endswith("-none-any.whl"):
        return wheel, Spent(0.0, 0.0)
    declared = [name for library in prepared.libraries for name in library.excludes]
    excludes = [f"--exclude={name}" for name in (*load_policy().patterns, *declared)]
    argv = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(out), *excludes]
    tools = {"PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))}
    spent = run([*argv, str(wheel)], raw, os.environ | tools)
    (repaired,) = out.glob("*.whl")
    return repaired, spent


def _import(prepared: Prepared, wheel: Path, site: Path) -> Spent:
    """Install the wheel alone and import it with Paddle, as the guide's last step says."""
    install = [str(prepared.python), "-m", "pip", "install", str(wheel), "--no-deps", "--quiet"]
    first = run([*install, "--target", str(site)], site.parent, _environment(prepared))
    argv = [str(prepared.importer), "-c", "import paddlefleet_ops"]
    second = run(argv, site.parent, dict(os.environ) | {"PYTHONPATH": str(site)})
    return Spent(first.wall + second.wall, first.cpu + second.cpu)


def run(argv: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> Spent:
    """What a command took. Raises :class:`SystemExit` with its output when it fails."""
    before, started = children_cpu(), time.monotonic()
    done = subprocess.run(
        list(argv), cwd=cwd, env=dict(environment), capture_output=True, text=True, check=False
    )
    spent = Spent(time.monotonic() - started, children_cpu() - before)
    if done.returncode:
        sys.exit(f"{' '.join(argv)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return spent


def children_cpu() -> float:
    """Processor seconds, user and system, of every child of this process that has ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def in_scratch(prepared: Prepared, use: Callable[[PlainCell], None] = lambda _: None) -> PlainCell:
    """:func:`build_cell` in a temporary folder; ``use`` sees the wheel before it goes."""
    with tempfile.TemporaryDirectory(prefix="plain-") as scratch:
        made = build_cell(prepared, Path(scratch, "cell"))
        use(made)
        return made


def as_table(cells: Sequence[PlainCell]) -> str:
    """What each step of each cell took, one line each."""
    lines = []
    for cell in cells:
        lines.append(f"{cell.cell}: {cell.seconds:.1f} s, {cell.cpu:.1f} s of processor time")
        rows = {**cell.libraries, "bdist_wheel": cell.wheel, "auditwheel repair": cell.repair}
        if cell.imported is not None:
            rows["install and import"] = cell.imported
        lines += [f"  {name:24} {row.wall:7.1f} s {row.cpu:7.1f} s" for name, row in rows.items()]
    return "\n".join(lines)


def main() -> None:
    """Build and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cuda", nargs="+", default=["13.0"])
    parser.add_argument("--python", nargs="+", help="default: the newest here")
    parser.add_argument("--set", dest="library_set", default="templates")
    parser.add_argument("--libs", type=lambda text: tuple(text.split(",")))
    parser.add_argument("--declare", type=Path, action="append", default=[])
    parser.add_argument("--import", dest="with_import", action="store_true")
    parser.add_argument("--out-dir", type=Path, help="where wheels are kept; else they are removed")
    parser.add_argument("--json", type=Path, help="write the numbers to this file, too")
    options = parser.parse_args()
    asked = Asked(
        cuda=tuple(options.cuda),
        python=tuple(options.python or (newest_python(),)),
        library_set=options.library_set,
        libs=options.libs,
        declarations=tuple(options.declare),
    )

    def keep(cell: PlainCell) -> None:
        if options.out_dir is not None:
            options.out_dir.mkdir(parents=True, exist_ok=True)
            shutil.copy2(cell.path, options.out_dir)

    cells = [in_scratch(item, keep) for item in prepare(asked, with_import=options.with_import)]
    print(as_table(cells))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(cell) for cell in cells], indent=1), "utf-8")


if __name__ == "__main__":
    main()
