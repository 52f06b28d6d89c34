"""How long it takes to plan and to key steps, beside nothing but hashing the same bytes.

    python benchmarks/keys.py [STEPS]

A matrix of CUDAs, Pythons and capability sets, and enough libraries (the declared ones under other names)
to have STEPS (default 10,000) of them selected in all cells. For each cell the libraries are selected, and
each gets its key and the key's digest. Hashes of sources and identities of compilers are given: they are
worked out once for a library, or a cell. The baseline is a loop of hashlib over the bytes that the keys are
hashed from. Prints both times and their ratio, as JSON; ends with 1 when 10,000 steps take over a second.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ci.graph.key import KEY_SCHEMA, Key, library_key
from ci.registry import EcosystemLibrary, Target, build_utils

CUDAS = ("12.6", "12.9", "13.0")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
CAPABILITIES = (
    ("8.0", "9.0"), ("9.0",), ("9.0a",), ("8.0", "9.0", "10.0", "10.3"), ("10.0f", "12.0+PTX"),
)  # fmt: skip
LIMIT_SECONDS = 1.0
LIMIT_STEPS = 10_000
RUNS = 5
TOOLCHAIN = "\n".join(f"bin/program{number} sha256:{number:064x}" for number in range(30))


def synthetic_libraries(count: int) -> tuple[EcosystemLibrary, ...]:
    """``count`` libraries: those of the registry, again and again under other names."""
    declared = build_utils.all_libs()
    made = []
    for number in range(count):
        library, generation = declared[number % len(declared)], number // len(declared)
        depends = tuple(f"{name}-{generation}" for name in library.depends_on)
        made.append(replace(library, name=f"{library.name}-{generation}", depends_on=depends))
    return tuple(made)


def planned(libraries: Sequence[EcosystemLibrary], cells: Sequence[Target]) -> list[Key]:
    """The keys of all steps, with their digests worked out."""
    keys = []
    for cell in cells:
        for library in build_utils.select_libs(libraries, cell).selected:
            key = library_key(
                library,
                cell,
                tree=f"sha256:{library.name:0>64}",
                build_requires=(
                    "setuptools==84.2.1",
                    "pip==26.3",
                    "wheel==0.48.0",
                    "ninja==1.13.2",
                ),
                toolchain_identity=TOOLCHAIN,
                interpreter_identity=f"CPython {cell.python}.1",
            )
            keys.append(key)
    for key in keys:
        _ = key.digest
    return keys


def best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of several runs."""
    seconds = []
    for _ in range(RUNS):
        gc.collect()
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def main(arguments: Sequence[str]) -> int:
    """Print the figures as JSON."""
    wanted = int(arguments[0]) if arguments else LIMIT_STEPS
    cells = [Target(*point) for point in itertools.product(CUDAS, PYTHONS, CAPABILITIES)]
    count = len(build_utils.all_libs())
    while len(planned(synthetic_libraries(count), cells)) < wanted:
        count += len(build_utils.all_libs())
    libraries = synthetic_libraries(count)
    keys = planned(libraries, cells)
    texts = [json.dumps([KEY_SCHEMA, key.inputs], separators=(",", ":")).encode() for key in keys]
    digests = [hashlib.sha256(text).hexdigest() for text in texts]
    if digests != [key.digest for key in keys]:
        raise AssertionError("the baseline does not hash what the keys are hashed from")
    seconds = best(lambda: planned(libraries, cells))
    baseline = best(lambda: [hashlib.sha256(text).hexdigest() for text in texts])
    allowed = LIMIT_SECONDS * max(1.0, len(keys) / LIMIT_STEPS)
    figures = {
        "steps": len(keys),
        "different_keys": len(set(digests)),
        "cells": len(cells),
        "libraries": len(libraries),
        "seconds": round(seconds, 4),
        "steps_per_second": round(len(keys) / seconds),
        "baseline": "hashlib.sha256 over the same bytes, in a loop",
        "baseline_seconds": round(baseline, 4),
        "ratio": round(seconds / baseline, 1),
        "limit_seconds": round(allowed, 2),
        "holds": seconds <= allowed,
    }
    print(json.dumps(figures, indent=1))
    return 0 if figures["holds"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
