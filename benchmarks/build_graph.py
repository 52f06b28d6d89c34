"""The build graph beside the plain procedure: P1 second run, P2 matrix, P3 one library, P4 cold cell.

    python benchmarks/build_graph.py p1|p2|p3|p4|all [--repeats N] [--json FILE] [--checkout DIR]

Every measurement is one run of ``python -m ci wheel`` as a process, with a cache folder in which nothing is
built yet; the baseline (``plain_build.py``) runs in between on the same machine, with the same sources,
compilers and environments, which are made before and not counted on either side. Times are medians of wall
clock. Exit code 1 when a limit does not hold; then look at "others" first: the cores that other programs
took meanwhile.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import mixed_libraries, simulated_cuda  # noqa: E402
from benchmarks.harness import Claim, Farm, FarmRun, Result, own_cache, watched_load  # noqa: E402
from benchmarks.plain_build import (  # noqa: E402
    Asked,
    PlainCell,
    cells_of,
    in_scratch,
    newest_python,
    prepare,
)
from ci.cli.options import cpus, default_cache_dir  # noqa: E402
from ci.environments.lock import lock_for  # noqa: E402
from ci.environments.venv import cached_environment  # noqa: E402
from ci.environments.wanted import build_requirements  # noqa: E402
from ci.matrix.load import load  # noqa: E402
from ci.registry import MATRIX, target_of  # noqa: E402
from ci.toolchain import require_python, resolve_toolchain  # noqa: E402

SECOND_RUN_SECONDS = 1.5
MATRIX_SHARE = 40.0
TOUCHED_FACTOR = 1.2
COLD_FACTOR = 1.15
TOUCHED = ("expert-placement", "fused-norm")
MATRIX_CUDAS = ("12.6", "12.9", "13.0")
REAL_CUDA = "13.0"


@dataclass(frozen=True)
class Setting:
    """Where a benchmark runs: the checkout that is measured, warm environments, a scratch folder."""

    checkout: Path
    warm: Path
    scratch: Path
    repeats: int

    def farm(self, name: str) -> Farm:
        """A farm with a cache of its own in which nothing is built."""
        return Farm(own_cache(self.scratch / f"cache-{name}", self.warm), self.checkout)

    def out(self, name: str) -> Path:
        """An output folder."""
        return self.scratch / f"dist-{name}"


def second_run(setting: Setting) -> Result:
    """P1: everything is built, nothing changed, the same command once more."""
    options = ("--cuda", REAL_CUDA, "--set", "templates")
    farm, out = setting.farm("p1"), setting.out("p1")
    (prepared,) = prepare(
        Asked(python=(newest_python(),), cache_dir=setting.warm), with_import=True
    )
    first = farm.wheel(*options, out=out)
    runs: list[FarmRun] = []
    plain: list[PlainCell] = []
    with watched_load() as load:
        for _ in range(setting.repeats):
            plain.append(in_scratch(prepared))
            runs += [farm.wheel(*options, out=out) for _ in range(3)]
    stale = [row for run in runs for row in run.rows if row["status"] != "cached"]
    if stale:
        sys.exit(f"a second run built again: {stale}")
    wall, inside = median(run.seconds for run in runs), median(run.inside for run in runs)
    baseline = median(cell.seconds for cell in plain)
    return Result(
        "p1",
        "second run, nothing changed (templates, one cell, import suite included)",
        (
            Claim("inside the farm", inside, SECOND_RUN_SECONDS, "s"),
            Claim("whole process", wall, SECOND_RUN_SECONDS, "s"),
        ),
        (
            f"first run {first.seconds:.1f} s; second: process {wall:.2f} s, inside {inside:.2f} s "
            f"(median of {len(runs)}, {spread(run.seconds for run in runs)})",
            f"baseline's second run {baseline:.1f} s (median of {len(plain)}): it builds everything again",
            f"ratio farm : baseline {wall / baseline:.3f}, {baseline / wall:.0f} times as fast",
            others(load.others),
        ),
        {
            "first": first.seconds,
            "second": [run.seconds for run in runs],
            "inside": [run.inside for run in runs],
            "stages": [cell["stage_seconds"] for cell in runs[-1].document["cells"]],
            "baseline": [cell.seconds for cell in plain],
        },
    )


def whole_matrix(setting: Setting) -> Result:
    """P2: library builds of 3 CUDA × 4 Python from an empty store. Two CUDAs are simulated: counts only."""
    root = setting.scratch / "cuda"
    real = resolve_toolchain(
        REAL_CUDA,
        "nvcc",
        setting.warm,
        environ=dict(Farm(setting.warm).environment),
        progress=quiet,
    ).cuda_home
    homes = [simulated_cuda.simulate(real, version, root) for version in MATRIX_CUDAS[:2]]
    asked = Asked(cuda=MATRIX_CUDAS, python=load(MATRIX).pythons, cache_dir=setting.warm)
    warm_environments(asked)
    variables = simulated_cuda.variables(root, real)
    farm = Farm(setting.farm("p2").cache, setting.checkout, variables)
    cells = cells_of(asked)
    options = [word for version in MATRIX_CUDAS for word in ("--cuda", version)]
    options += [word for version in asked.python for word in ("--python", version)]
    # Without a compiler cache, which would ask the simulated compilers more than once for a file.
    options += ["--set", "templates", "--executor", "host", "--no-import"]
    run = farm.wheel(*options, "--compiler-cache", "none", out=setting.out("p2"))
    if len(run.document["cells"]) != len(cells):
        sys.exit(f"{len(run.document['cells'])} cells were built, not {len(cells)}")
    built, baseline = run.count("built"), sum(len(chosen.selected) for _, chosen in cells)
    compiled = [simulated_cuda.compilations(home) for home in homes]
    by_library = {
        name: sum(row["library"] == name and row["status"] == "built" for row in run.rows)
        for name in dict.fromkeys(row["library"] for row in run.rows)
    }
    return Result(
        "p2",
        f"3 CUDA x 4 Python over the templates ({', '.join(MATRIX_CUDAS[:2])} simulated: counts only)",
        (Claim("library builds of the baseline's", 100 * built / baseline, MATRIX_SHARE, "%"),),
        (
            f"builds executed {built}, baseline {baseline} ({len(cells)} cells)",
            "built: " + ", ".join(f"{name} {count}" for name, count in by_library.items()),
            f"files that the simulated compilers were asked to compile: {compiled}",
            f"ratio farm : baseline {built / baseline:.3f}",
        ),
        {
            "built": built,
            "cached": run.count("cached"),
            "baseline": baseline,
            "by_library": by_library,
            "nvcc_compilations": compiled,
        },
    )


def one_touched(setting: Setting) -> Result:
    """P3: a comment in C++ or CUDA and one in Python are added to a library, so that the wheel differs."""
    python = newest_python()
    (prepared,) = prepare(Asked(python=(python,), cache_dir=setting.warm), with_import=False)
    farm, claims, lines = setting.farm("p3"), [], []
    numbers: dict[str, object] = {}
    with watched_load() as load:
        baseline = [in_scratch(prepared).seconds for _ in range(setting.repeats)]
        for name in TOUCHED:
            source = setting.scratch / f"touched-{name}"
            shutil.copytree(prepared.sources[name].folder, source)
            runs = _touched_runs(setting, farm, python, name, source)
            own = [run.row(name)["seconds"] + run.stage("wheel") for run in runs]
            factor = median(run.seconds / part for run, part in zip(runs, own, strict=True))
            wall, plain = median(run.seconds for run in runs), median(baseline)
            claims.append(Claim(f"{name}: run : its build + wheel", factor, TOUCHED_FACTOR, "x"))
            lines += [
                f"{name}: run {wall:.2f} s ({spread(run.seconds for run in runs)}), "
                f"its build {median(run.row(name)['seconds'] for run in runs):.2f} s, "
                f"wheel {median(run.stage('wheel') for run in runs):.2f} s",
                f"{name}: baseline {plain:.1f} s (everything again); ratio {wall / plain:.3f}",
            ]
            numbers[name] = {"runs": [run.seconds for run in runs], "build_and_wheel": own}
        lines.append("")
    lines[-1] = others(load.others)
    return Result(
        "p3",
        "one library touched (templates, one cell, without import suite)",
        tuple(claims),
        tuple(lines),
        {**numbers, "baseline": baseline},
    )


def _touched_runs(
    setting: Setting, farm: Farm, python: str, name: str, source: Path
) -> list[FarmRun]:
    options = [*one_cell(python), "--source", f"{name}=path:{source}"]
    out = setting.out(f"p3-{name}")
    farm.wheel(*options, out=out)
    runs = []
    for index in range(setting.repeats):
        touch(source, f"touched {index}")
        run = farm.wheel(*options, out=out)
        built = [row["library"] for row in run.rows if row["status"] == "built"]
        if built != [name]:
            sys.exit(f"touched {name}, and these were built: {', '.join(built) or 'none'}")
        runs.append(run)
    return runs


def touch(source: Path, text: str) -> None:
    """Add a comment to the first C++ or CUDA file, if there is one, and to the package's ``__init__``."""
    compiled = [path for end in ("*.cu", "*.cpp", "*.cc") for path in sorted(source.rglob(end))]
    for path in compiled[:1]:
        path.write_text(f"{path.read_text('utf-8')}// {text}\n", "utf-8")
    (package,) = (source / "src").glob("*/__init__.py")
    package.write_text(f"{package.read_text('utf-8')}# {text}\n", "utf-8")


def cold_cell(setting: Setting) -> Result:
    """P4: eight libraries of mixed cost from nothing.

    What could be reached is measured apart from the farm: each library alone by the plain procedure with all
    cores. Work is the processor time of all of them and of the wheel; the critical path is the slowest
    library alone, then the wheel.
    """
    declaration = mixed_libraries.write_all(setting.scratch / "mixed")
    names, python = tuple(item.name for item in mixed_libraries.LIBRARIES), newest_python()
    asked = Asked(python=(python,), libs=names, declarations=(declaration,), cache_dir=setting.warm)
    (prepared,) = prepare(asked, with_import=False)
    options = [*one_cell(python), "--declare", str(declaration), "--libs", ",".join(names)]
    plain: list[PlainCell] = []
    runs: list[FarmRun] = []
    left: list[float] = []
    for index in range(setting.repeats):
        plain.append(in_scratch(prepared))
        farm = setting.farm(f"p4-{index}")
        with watched_load() as load:
            runs.append(farm.wheel(*options, out=setting.out(f"p4-{index}")))
        left.append(cpus() - load.others)
    return _cold_result(plain, runs, median(left))


def _cold_result(plain: Sequence[PlainCell], runs: Sequence[FarmRun], left: float) -> Result:
    """``left`` are the cores that other programs left to the farm."""
    work = median(cell.cpu for cell in plain)
    path = median(critical_path(cell) for cell in plain)
    bound = max(path, work / cpus())
    wall, baseline = median(run.seconds for run in runs), median(cell.seconds for cell in plain)
    last = plain[-1]
    costs = ", ".join(
        f"{name} {spent.wall:.1f}/{spent.cpu:.1f}" for name, spent in last.libraries.items()
    )
    return Result(
        "p4",
        f"cold build of one cell, 8 libraries of mixed cost, {cpus()} cores (without import suite)",
        (Claim("run : max(critical path, work / cores)", wall / bound, COLD_FACTOR, "x"),),
        (
            f"alone, wall/processor s: {costs}; wheel {last.wheel.wall + last.repair.wall:.1f}",
            f"work {work:.1f} s, / {cpus()} cores = {work / cpus():.1f} s; critical path {path:.1f} s",
            f"farm {wall:.1f} s ({spread(run.seconds for run in runs)}), "
            f"of it wheel {median(run.stage('wheel') for run in runs):.1f} s; "
            f"utilisation {100 * work / (wall * cpus()):.0f} %",
            f"baseline {baseline:.1f} s; ratio farm : baseline {wall / baseline:.3f}",
            others(cpus() - left),
            f"with the {left:.2f} cores that were left: {wall / max(path, work / left):.2f} x",
        ),
        {
            "cores_left": left,
            "farm": [run.seconds for run in runs],
            "inside": [run.inside for run in runs],
            "baseline": [cell.seconds for cell in plain],
            "work": [cell.cpu for cell in plain],
            "critical_path": [critical_path(cell) for cell in plain],
            "stages": [cell["stage_seconds"] for cell in runs[-1].document["cells"]],
        },
    )


def critical_path(cell: PlainCell) -> float:
    """Seconds that no number of cores shortens: the slowest library alone, then the wheel."""
    slowest = max(spent.wall for spent in cell.libraries.values())
    return slowest + cell.wheel.wall + cell.repair.wall


def one_cell(python: str) -> list[str]:
    """Options of ``wheel`` for one cell of the templates, without import suite."""
    return ["--cuda", REAL_CUDA, "--python", python, "--set", "templates", "--no-import"]


def warm_environments(asked: Asked) -> None:
    """Make the build environment of every cell that is asked for."""
    for cell, selection in cells_of(asked):
        wanted = build_requirements(selection.selected, target_of(cell))
        lock = lock_for(wanted, cell.python, "build", asked.cache_dir)
        cached_environment(lock, require_python(cell.python), asked.cache_dir)


def median(values: Iterable[float]) -> float:
    """The median; of two, their mean."""
    return statistics.median(values)


def spread(values: Iterable[float]) -> str:
    """The least and the greatest, for a line of the output."""
    found = list(values)
    return f"{min(found):.2f} to {max(found):.2f}"


def others(busy: float) -> str:
    """A line that says how far other programs disturbed."""
    return f"others: {busy:.2f} of {cpus()} cores were busy with other programs meanwhile"


def quiet(_: str) -> None:
    """Says nothing."""


BENCHMARKS: dict[str, Callable[[Setting], Result]] = {
    "p1": second_run,
    "p2": whole_matrix,
    "p3": one_touched,
    "p4": cold_cell,
}


def main() -> int:
    """Measure, print, and say by the exit code whether every limit holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("which", choices=(*BENCHMARKS, "all"))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--checkout", type=Path, default=ROOT, help="the farm that is measured")
    parser.add_argument(
        "--cache-dir",
        type=Path,
        default=default_cache_dir(),
        help="where environments and compilers are; no result is taken from it",
    )
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    options = parser.parse_args()
    results = []
    for name in BENCHMARKS if options.which == "all" else (options.which,):
        with tempfile.TemporaryDirectory(prefix=f"build-graph-{name}-") as scratch:
            setting = Setting(options.checkout, options.cache_dir, Path(scratch), options.repeats)
            results.append(BENCHMARKS[name](setting))
        results[-1].show()
    if options.json is not None:
        values = [result.as_dict() for result in results]
        options.json.write_text(json.dumps(values, indent=1), "utf-8")
    return 0 if all(claim.holds for result in results for claim in result.claims) else 1


if __name__ == "__main__":
    sys.exit(main())
