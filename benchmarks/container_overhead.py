"""What containers cost: a wheel with a warm cache in containers beside the same on the host.

    python benchmarks/container_overhead.py [RUNS] [-- OPTIONS OF wheel]

Needs an engine that answers and the build image of the CUDA (``nox -s images -- cu130``). After one run of
each kind that fills the cache, RUNS (default 3) of each run in turn; prints the medians of the whole process
and of its stages, the ratio container : host, and what it takes to start and end one container.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ci.executors.choice import build_image  # noqa: E402
from ci.executors.engine import find_engine  # noqa: E402
from ci.executors.model import ContainerOptions, ContainerSpec  # noqa: E402
from ci.proc import Command  # noqa: E402

DEFAULT = ("--cuda", "13.0", "--set", "templates")


def wheel(executor: str, options: list[str], out: Path) -> tuple[float, dict[str, float]]:
    """Seconds of one run of ``wheel``, and of each of its stages."""
    argv = [sys.executable, "-m", "ci", "wheel", *options]
    argv += ["--executor", executor, "--out-dir", str(out), "--json"]
    started = time.monotonic()
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - started
    if done.returncode:
        sys.exit(done.stderr)
    cells: list[dict[str, Any]] = json.loads(done.stdout)["cells"]
    stages: dict[str, float] = {}
    for cell in cells:
        for name, spent in cell["stage_seconds"].items():
            stages[name] = stages.get(name, 0.0) + spent
    return seconds, stages


def start_and_end(runs: int) -> list[float]:
    """Seconds from asking for a container that does nothing to its removal."""
    engine = find_engine("", os.environ)
    image = build_image(engine, "13.0", ContainerOptions())
    found = []
    for _ in range(runs):
        started = time.monotonic()
        engine.run(ContainerSpec(image.id), Command(("true",), env={}), None)
        found.append(time.monotonic() - started)
    return found


def main() -> None:
    """Measure and print."""
    before, _, after = " ".join(sys.argv[1:]).partition("-- ")
    runs = int(before.strip() or 3)
    options = after.split() or list(DEFAULT)
    times: dict[str, list[float]] = {"host": [], "container": []}
    stages: dict[str, list[dict[str, float]]] = {"host": [], "container": []}
    with tempfile.TemporaryDirectory() as scratch:
        for index in range(runs + 1):
            for executor in times:
                seconds, spent = wheel(executor, options, Path(scratch, executor))
                if index:  # the first run fills the cache
                    times[executor].append(seconds)
                    stages[executor].append(spent)
    for executor, found in times.items():
        print(f"{executor}: median {statistics.median(found):.1f} s of {runs}")
        for name in stages[executor][0]:
            median = statistics.median(item.get(name, 0.0) for item in stages[executor])
            print(f"  {name}: {median:.1f} s")
    ratio = statistics.median(times["container"]) / statistics.median(times["host"])
    print(f"container : host = {ratio:.2f}")
    print(f"one container, start to removal: median {statistics.median(start_and_end(5)):.2f} s")


if __name__ == "__main__":
    main()
