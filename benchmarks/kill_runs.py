"""kill -9 at random moments: ``python -m ci wheel`` is killed, run again, and has to give the right wheel.

    python benchmarks/kill_runs.py [--kills 100] [--seed N] [--checkout DIR] [--json FILE]

Two small libraries, one in C++ and one in Python, and a store in which nothing is built. A run is killed (it
alone, with SIGKILL: nobody else is told) at a moment spread evenly over the length of an undisturbed run;
every third time its successor on the same store is killed, too. Then the same command runs to its end. After
each: the wheel has the sha256 of the undisturbed run, ``cache verify`` finds nothing, no folder of a dead run
is left in ``work``, and nothing that a dead run started still runs. Exit code 1 when any of that fails.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import mixed_libraries  # noqa: E402
from benchmarks.harness import Farm, FarmRun, own_cache  # noqa: E402
from ci.cli.options import default_cache_dir  # noqa: E402

PAIR = (
    mixed_libraries.Mixed("killed-core", 1, "setuptools", rich=False),
    mixed_libraries.Mixed("killed-pure", 0, "python"),
)
TRIES = 8
SERVERS = ("sccache",)
"""Programs that outlive a run on purpose: a compiler cache's server ends by itself when nobody asks it."""


@dataclass(frozen=True)
class Scene:
    """Where runs are killed: the declared pair, the warm cache, a folder for everything else."""

    scratch: Path
    warm: Path
    checkout: Path = ROOT

    @property
    def options(self) -> tuple[str, ...]:
        """The options of ``wheel`` for the pair."""
        names = ",".join(library.name for library in PAIR)
        return (
            "--cuda", "13.0", "--set", "templates", "--declare", str(self.scratch / "pair" / "declare.py"),
            "--libs", names, "--no-import", "--executor", "host",
        )  # fmt: skip

    @property
    def cache(self) -> Path:
        """The cache whose store the killed runs use."""
        return self.scratch / "cache"

    @property
    def out(self) -> Path:
        """The output folder of all runs."""
        return self.scratch / "dist"

    def farm(self) -> Farm:
        """The farm on :attr:`cache`, in which nothing is built."""
        shutil.rmtree(self.cache, ignore_errors=True)
        return Farm(own_cache(self.cache, self.warm), self.checkout)


@dataclass(frozen=True)
class Moment:
    """One kill: the second of the run at which it came. ``too_late`` when the run had ended by then."""

    second: float
    too_late: bool


@dataclass
class Pace:
    """How long a run takes, as far as is known: other programs may make the next one longer or shorter."""

    seconds: float


@dataclass
class Story:
    """What came of one or two kills and the run after them; ``problems`` is empty when all is well."""

    moments: list[Moment] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    survivors: list[str] = field(default_factory=list)
    rebuilt: int = 0


def write_pair(scene: Scene) -> None:
    """Write the libraries that are built."""
    mixed_libraries.write_all(scene.scratch / "pair", PAIR)


def undisturbed(scene: Scene) -> tuple[float, str]:
    """Seconds of a run that nobody kills, and the sha256 of its wheel; once more when it had to warm up."""
    for _ in range(2):
        run = scene.farm().wheel(*scene.options, out=scene.out)
    return run.seconds, wheel_digest(run)


def wheel_digest(run: FarmRun) -> str:
    """The sha256 of the one wheel of a run."""
    (cell,) = run.document["cells"]
    return hashlib.sha256(Path(cell["wheel"]).read_bytes()).hexdigest()


def kill_at(farm: Farm, scene: Scene, second: float) -> Moment:
    """Start a run, and SIGKILL it (the process group that it leads) after ``second`` seconds."""
    with tempfile.TemporaryFile() as sink:
        process = subprocess.Popen(
            farm.command(scene.options, scene.out),
            cwd=farm.checkout,
            env=farm.environment,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        started = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(second)
            return Moment(time.monotonic() - started, too_late=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return Moment(second, process.wait() != -signal.SIGKILL)


def tell(scene: Scene, fractions: Sequence[float], expected: str, pace: Pace) -> Story:
    """Kill runs one after the other on one store, each after a fraction of a run's length; then run to the
    end and look. The story begins anew when a kill came too late: the first corrects ``pace``, a later one
    comes earlier next time, because its run finds what its predecessor had ready.
    """
    for attempt in range(TRIES):
        farm, story = scene.farm(), Story()
        shutil.rmtree(scene.out, ignore_errors=True)
        for index, fraction in enumerate(fractions):
            second = fraction * pace.seconds * (0.6**attempt if index else 1.0)
            story.moments.append(kill_at(farm, scene, second))
            story.survivors += running_below(scene.cache, after=1.0)
            if story.moments[-1].too_late:
                break
        else:
            break
        if len(story.moments) == 1:
            pace.seconds = story.moments[0].second
    try:
        run = farm.wheel(*scene.options, out=scene.out)
    except SystemExit as error:
        story.problems.append(f"the run after the kill failed: {error}")
        return story
    story.rebuilt = run.count("built")
    if wheel_digest(run) != expected:
        story.problems.append("the wheel is not that of an undisturbed run")
    story.problems += left_behind(farm, scene)
    return story


def left_behind(farm: Farm, scene: Scene) -> list[str]:
    """What is wrong with the cache after a run that came to its end."""
    problems = [f"{path.name} is left in work" for path in work_folders(scene.cache)]
    problems += [f"still running: {text}" for text in running_below(scene.cache, after=0.0)]
    argv = [sys.executable, "-m", "ci", "cache", "verify", "--cache-dir", str(scene.cache)]
    done = subprocess.run(
        argv, cwd=farm.checkout, env=farm.environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        problems.append(f"cache verify: {done.stdout}{done.stderr}")
    wheels = [str(path.relative_to(scene.out)) for path in scene.out.rglob("*.whl")]
    if len(wheels) != 1:
        problems.append(f"wheels in the output folder: {wheels}")
    return problems


def work_folders(cache: Path) -> list[Path]:
    """The folders of runs in a cache."""
    work = cache / "work"
    return [path for path in work.iterdir() if path.is_dir()] if work.is_dir() else []


def running_below(folder: Path, after: float) -> list[str]:
    """The processes, ``after`` some seconds, that work below ``folder`` or name it (proc(5))."""
    time.sleep(after)
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # it ended in between
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            place = (entry / "cwd").readlink()
            named = any(str(folder) in word for word in words)
            if (named or place.is_relative_to(folder)) and Path(words[0]).name not in SERVERS:
                found.append(" ".join(words)[:200])
    return found


def moments(kills: int, seed: int) -> list[tuple[float, ...]]:
    """``kills`` moments in groups of one or (every third) two, as fractions of a run, spread evenly."""
    chance = random.Random(seed)
    fractions = [(index + chance.random()) / kills for index in range(kills)]
    chance.shuffle(fractions)
    groups: list[tuple[float, ...]] = []
    while fractions:
        size = 2 if len(groups) % 3 == 2 else 1
        groups.append(tuple(fractions[:size]))
        del fractions[:size]
    return groups


def all_stories(
    scene: Scene, kills: int, seed: int, tick: Callable[[Story], None] = lambda _: None
) -> tuple[list[Story], float]:
    """Every story of ``kills`` kills, and the seconds of the undisturbed run."""
    write_pair(scene)
    length, expected = undisturbed(scene)
    stories, pace = [], Pace(length)
    for group in moments(kills, seed):
        stories.append(tell(scene, group, expected, pace))
        tick(stories[-1])
    return stories, length


def main() -> int:
    """Kill, look, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=20261202)
    parser.add_argument("--checkout", type=Path, default=ROOT, help="the farm that is killed")
    parser.add_argument("--cache-dir", type=Path, default=default_cache_dir())
    parser.add_argument("--json", type=Path, help="write every story to this file, too")
    options = parser.parse_args()

    def tick(story: Story) -> None:
        at = " and ".join(f"{moment.second:.2f} s" for moment in story.moments)
        said = "; ".join(story.problems) or "right wheel"
        print(f"killed at {at}: {said}, {story.rebuilt} built again", flush=True)

    with tempfile.TemporaryDirectory(prefix="kill-") as scratch:
        scene = Scene(Path(scratch), options.cache_dir, options.checkout)
        stories, length = all_stories(scene, options.kills, options.seed, tick)
    killed = [moment for story in stories for moment in story.moments]
    bad = [story for story in stories if story.problems]
    late = sum(moment.too_late for moment in killed)
    lived = sum(len(story.survivors) for story in stories)
    print(
        f"{len(killed)} kills over {length:.1f} s (seed {options.seed}), {late} of them after the end; "
        f"{len(stories)} runs after them, {len(bad)} not as they should be; "
        f"{lived} processes of killed runs lived a second longer"
    )
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(story) for story in stories], indent=1), "utf-8")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
