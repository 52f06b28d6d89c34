"""What ``import paddlefleet_ops`` costs beyond ``import paddle``, beside a baseline run at the same time.

    python benchmarks/loader_overhead.py [LIBRARIES] [RUNS]

Run it with a Python that has Paddle. It makes a site-packages folder with the loader and LIBRARIES
blocked libraries (default 12, as in the fleet), and starts RUNS (default 7) processes of each kind in
turn: ``import paddle`` alone, and with the loader after it. Processor time of the thread is measured
inside the processes, so that starting Python does not count. Prints both medians and their ratio.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LOADER = Path(__file__).resolve().parents[1] / "packages/paddlefleet_ops/src/paddlefleet_ops"
BASELINE = "import time; t = time.thread_time(); import paddle; print(time.thread_time() - t)"
WITH_LOADER = (
    "import paddle, time; t = time.thread_time(); import paddlefleet_ops; "
    "print(time.thread_time() - t)"
)


def make_site(folder: Path, libraries: int) -> None:
    """The loader as a wheel would install it, byte-compiled, with a manifest of blocked libraries."""
    package = folder / "paddlefleet_ops"
    package.mkdir()
    for source in LOADER.glob("*.py"):
        shutil.copy(source, package)
    entries = [
        {
            "name": f"library-{index}",
            "module": f"library_{index}",
            "modules": [f"library_{index}"],
            "availability": f"library_{index}",
            "kind": "python_dsl",
            "requires": {"python": ">=3.99"},
            "compat_scope": [f"library_{index}"],
            "public_names": ["x"],
            "hint": "none",
        }
        for index in range(libraries)
    ]
    manifest = {
        "schema": 1,
        "version": "0.1.0+cu130",
        "cell": {"id": "cu130-cp312", "cuda": "13.0", "python": "3.12", "capabilities": []},
        "libraries": entries,
        "left_out": [],
    }
    (package / "_manifest.json").write_text(json.dumps(manifest), "utf-8")
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(package)], check=True)


def measured(code: str, folder: Path) -> float:
    """The seconds that a process printed last."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=folder,
        env=dict(os.environ) | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def main(libraries: int, runs: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_site(folder, libraries)
        measured(WITH_LOADER, folder)  # warm the file cache
        pairs = [(measured(BASELINE, folder), measured(WITH_LOADER, folder)) for _ in range(runs)]
    paddle = statistics.median(pair[0] for pair in pairs)
    loader = statistics.median(pair[1] for pair in pairs)
    print(f"import paddle            {paddle * 1000:8.1f} ms of processor time (median of {runs})")
    print(f"loader, {libraries:3d} libraries    {loader * 1000:8.1f} ms more; budget 30 ms")
    print(f"ratio loader / paddle    {loader / paddle:8.4f}")


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:3]]
    main(*(numbers + [12, 7][len(numbers) :]))
