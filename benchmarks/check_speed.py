"""CPU time of the static check over a source tree, against ``ruff check`` on the same files.

``python benchmarks/check_speed.py FOLDER [RUNS]``. Both are timed as whole processes (user + system time of
the children), one after the other, and the ratio is that of the medians. ruff reads the same files for
rules of style; it is here for scale, not because it could answer the same questions.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def cpu_seconds(argv: Sequence[str]) -> float:
    """User and system time of one run, in seconds. Both tools end with 1 where they find something."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stderr.decode()}")
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def main(arguments: Sequence[str]) -> int:
    """Time both tools, in turns, and print each figure and the ratio."""
    if not arguments or not Path(arguments[0]).is_dir():
        print(__doc__)
        return 2
    folder = arguments[0]
    runs = int(arguments[1]) if len(arguments) > 1 else 5
    commands = {
        "check": (sys.executable, "-m", "ci", "check", "--static", folder),
        "ruff": (sys.executable, "-m", "ruff", "check", "--no-cache", "--isolated", folder),
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, argv in commands.items():
            times[name].append(cpu_seconds(argv))
    files = sum(1 for _ in Path(folder).rglob("*.py"))
    print(f"{files} files in {Path(folder).name}, {runs} runs, CPU seconds (min / median / max)")
    for name, found in times.items():
        print(f"{name:6} {min(found):.2f} / {statistics.median(found):.2f} / {max(found):.2f}")
    ratio = statistics.median(times["check"]) / statistics.median(times["ruff"])
    print(f"check / ruff: {ratio:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
