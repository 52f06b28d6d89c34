"""Cold and warm builds of the templates' objects behind a compiler cache, and without one: times and ratios.

Each library is built as the farm builds it (build_steps.py), three times in three folders: without a cache,
with an empty one, and with the one that the second build filled. The last is what a changed file elsewhere,
another checkout, or another machine with the same storage costs. All three must yield the same library.

    python benchmarks/compiler_cache.py [--tool sccache|ccache] [--cuda 13.0] [--template header_only ...]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ci.compiler_cache.choice import choose, probe
from ci.compiler_cache.model import CompilerCache, Compilers
from ci.compiler_cache.session import Build, Session
from ci.registry import build_steps
from ci.toolchain import Toolchain, resolve_toolchain

TEMPLATES = Path(__file__).resolve().parents[1] / "packages" / "templates"
MODULES = {"header_only": "expert_placement", "cuda_extension": "fused_norm"}
CACHE = Path(os.environ.get("PADDLEFLEET_FARM_CACHE", Path.home() / ".cache" / "paddlefleet-farm"))


@dataclass(frozen=True)
class Measured:
    """One build: seconds, the hash of its shared library, and what the cache says."""

    seconds: float
    digest: str
    shown: str


def measured(kind: str, folder: Path, toolchain: Toolchain, session: Session | None) -> Measured:
    """Build a template in a new folder."""
    folder.mkdir(parents=True)
    cuda = kind == "cuda_extension"
    path = tuple(map(str, toolchain.path_entries())) if cuda else ()
    variables = toolchain.environment() if cuda else toolchain.host.environment()
    if cuda:
        variables["PADDLE_CUDA_ARCH_LIST"] = "8.0"
    compilers = Compilers(
        toolchain.cc,
        toolchain.cxx,
        toolchain.cuda_home if cuda else None,
        toolchain.identity(),
        (str(folder / "source"), sys.prefix),
    )
    plain: AbstractContextManager[Build] = nullcontext(Build(path=path))
    started = time.monotonic()
    with session.build(folder, compilers, path) if session else plain as build:
        run(kind, folder, variables, build)
    seconds = time.monotonic() - started
    (library,) = (folder / "out").rglob("*.so")
    return Measured(seconds, hashlib.sha256(library.read_bytes()).hexdigest(), build.stats.shown)


def run(kind: str, folder: Path, variables: Mapping[str, str], build: Build) -> None:
    """Run build_steps.py; its log is shown when it fails."""
    request = build_steps.BuildRequest(
        library=kind,
        source=str(TEMPLATES / kind),
        work=str(folder),
        out=str(folder / "out"),
        artifacts=((MODULES[kind], MODULES[kind]),),
        env={**variables, **build.environment},
        path=build.path,
        jobs=len(os.sched_getaffinity(0)),
    )
    request.write(folder / "request.json")
    argv = (sys.executable, str(build_steps.__file__), str(folder / "request.json"))
    done = subprocess.run(
        argv,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stdout)


def main() -> int:
    """Print a table; 1 when a library differs from the one that is built without a cache."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", choices=("sccache", "ccache"), default="sccache")
    parser.add_argument("--cuda", default="13.0")
    parser.add_argument("--template", choices=sorted(MODULES), action="append")
    arguments = parser.parse_args()
    chosen = choose(arguments.tool, probe(os.environ))
    assert isinstance(chosen, CompilerCache)
    toolchain = resolve_toolchain(
        arguments.cuda, "auto", CACHE, environ=os.environ, progress=lambda _: None
    )
    wrong = 0
    print(f"{chosen.shown}, CUDA {toolchain.version}, {len(os.sched_getaffinity(0))} cores")
    print(
        f"{'template':16}{'without':>9}{'cold':>9}{'warm':>9}{'cold/w/o':>10}{'warm/w/o':>10}  cold | warm"
    )
    for kind in arguments.template or sorted(MODULES):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            session = Session(chosen, folder / "cache", environ={}, warn=print)
            without = measured(kind, folder / "without", toolchain, None)
            cold = measured(kind, folder / "cold", toolchain, session)
            warm = measured(kind, folder / "warm", toolchain, session)
        same = len({without.digest, cold.digest, warm.digest}) == 1
        wrong += not same
        times = "".join(f"{part.seconds:8.2f}s" for part in (without, cold, warm))
        ratios = "".join(f"{part.seconds / without.seconds:10.2f}" for part in (cold, warm))
        print(
            f"{kind:16}{times}{ratios}  {cold.shown} | {warm.shown}{'' if same else '  DIFFERENT LIBRARIES'}"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
