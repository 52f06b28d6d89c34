"""P5: assembling, repairing and verifying a wheel of much data, beside setuptools and auditwheel alone.

    python benchmarks/assembly.py [--size MIB] [--jobs N] [--json FILE] [--scratch DIR]

The payload (default 1024 MiB) is half random data and half text, in few large and many small files, with one
shared library, so that auditwheel takes the wheel. Both sides begin with the same files on disk:

- baseline: ``setup.py bdist_wheel`` of the package with the payload in it, then ``auditwheel repair``
- farm: the package laid out and built through its back end, repaired, read back, judged by all gates

Needs gcc, and free disk of eight times the payload. Memory is the largest sum of the resident sets of the
process and its children that sampling saw, pages that they share counted once for each; disk cache is not in
it. Exit code 1 when a limit does not hold; then look at "others" first: the cores that other programs took
meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.harness import Claim, Result, watched_load  # noqa: E402
from ci.executors.base import HostExecutor  # noqa: E402
from ci.registry import build_manifest  # noqa: E402
from ci.wheel.assemble import build_raw, lay_out  # noqa: E402
from ci.wheel.repair import repair  # noqa: E402
from ci.wheel.verify import verify  # noqa: E402
from ci.wheel.zip_writer import own_cpus  # noqa: E402

MOST_OF_BASELINE = 0.5
MOST_MEMORY_MIB = 300.0
EPOCH = "1764662400"
PYTHON_TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"
_MIB = 1 << 20
_SAMPLE_SECONDS = 0.03
# The record of each tool, and the manifest, which has the same values with other spaces.
_NOT_COMPARED = ("/RECORD", "/WHEEL", "/_manifest.json")
_SOURCE = "#include <stdlib.h>\nint answer(void) { return abs(-42); }\n"
_MANIFEST: Mapping[str, object] = {
    "schema": 1,
    "version": "0.1.0+cu130",
    "publishable": True,
    "not_publishable_because": [],
    "libraries": [],
    "left_out": [],
}


@dataclass(frozen=True)
class Measured:
    """One side: seconds of each part in order, most memory in MiB, and the wheel that came out."""

    parts: Mapping[str, float]
    memory: float
    wheel: Path

    @property
    def seconds(self) -> float:
        """All parts together."""
        return sum(self.parts.values())

    @property
    def shown(self) -> str:
        """One line."""
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.parts.items())
        size = self.wheel.stat().st_size / _MIB
        return (
            f"{self.seconds:.1f} s ({parts}), {self.memory:.0f} MiB of memory, wheel {size:.0f} MiB"
        )


# --- the payload -----------------------------------------------------------------------------------


def write_payload(folder: Path, mebibytes: int) -> None:
    """``mebibytes`` MiB below ``folder``: half random, half text, and a shared library of a few KiB."""
    total, chance = mebibytes * _MIB, random.Random(5)
    lines = _lines(chance)
    for index in range(4):
        _write(folder / "tables" / f"{index}.bin", total // 8, lambda: chance.randbytes(_MIB))
    for index in range(32):
        _write(folder / "kernels" / f"{index}.cuh", total // 256, lambda: _text(chance, lines))
    _write(folder / "kernels" / "all.cuh", total // 4, lambda: _text(chance, lines))
    for index in range(2048):
        path = folder / "configs" / f"{index % 16}" / f"{index}.json"
        _write(path, total // 16384, lambda: _text(chance, lines, 64 << 10))
    code = folder.parent / "payload.c"
    code.write_text(_SOURCE, "ascii")
    library = folder / "libpayload.so"
    subprocess.run(("gcc", "-shared", "-fPIC", "-O1", "-o", library, code), check=True)


def _text(chance: random.Random, lines: Sequence[str], size: int = _MIB) -> bytes:
    """Some ``size`` bytes of lines in any order."""
    return "".join(chance.choices(lines, k=size // 48)).encode()


def _lines(chance: random.Random) -> list[str]:
    """Lines as of source code: words by frequency, indents, numbers."""
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 11))) for _ in range(8000)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    return [
        "    " * chance.randint(0, 3)
        + " ".join(chance.choices(words, weights, k=chance.randint(3, 11)))
        + f" = {chance.randint(0, 99999)};\n"
        for _ in range(40000)
    ]


def _write(path: Path, size: int, data: Callable[[], bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    left = size
    with path.open("wb") as sink:
        while left > 0:
            left -= sink.write(data()[:left])


# --- memory ----------------------------------------------------------------------------------------


def _resident(root: psutil.Process) -> float:
    total = 0
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    return total / _MIB


def watched(command: Sequence[str], cwd: Path, environ: Mapping[str, str]) -> tuple[float, float]:
    """Run ``command``; its seconds, and the most memory (MiB) of its process tree."""
    started, most = time.monotonic(), 0.0
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(command, cwd=cwd, env=environ, stdout=said, stderr=said)
        root = psutil.Process(child.pid)
        while child.poll() is None:
            with contextlib.suppress(psutil.Error):
                most = max(most, _resident(root))
            time.sleep(_SAMPLE_SECONDS)
        seconds = time.monotonic() - started
        if child.returncode:
            said.seek(0)
            sys.exit(f"{' '.join(command)}\n{said.read().decode(errors='replace')[-6000:]}")
    return seconds, most


# --- the two sides ---------------------------------------------------------------------------------


def baseline(payload: Path, work: Path) -> Measured:
    """What setuptools and auditwheel do by themselves; the payload is put into the package before."""
    package = lay_out(manifest={}, artifacts={}, work=work, source_date_epoch=EPOCH).package
    source = package / "src" / "paddlefleet_ops"
    shutil.copytree(payload, source, dirs_exist_ok=True)
    (source / "_manifest.json").write_text(json.dumps(_MANIFEST), "utf-8")
    (source / "__init__.pyi").write_text(build_manifest.stub_text(_MANIFEST), "utf-8")
    environ = {
        **os.environ,
        "SOURCE_DATE_EPOCH": EPOCH,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
    }
    raw, out = work / "dist", work / "wheelhouse"
    build = (sys.executable, "setup.py", "-q", "bdist_wheel", "--dist-dir", str(raw))
    built, first = watched(build, package, environ)
    (wheel,) = raw.glob("*.whl")
    argv = (sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(out), str(wheel))
    repaired, second = watched(argv, package, environ)
    (final,) = out.glob("*.whl")
    parts = {"bdist_wheel": built, "auditwheel repair": repaired}
    return Measured(parts, max(first, second), final)


def farm(payload: Path, work: Path, jobs: int) -> Measured:
    """The same by the farm, in a process of its own, so that only its memory counts."""
    answer = work / "answer.json"
    work.mkdir(parents=True)
    argv = (
        *(sys.executable, str(Path(__file__).resolve()), "--inside", str(payload)),
        *("--scratch", str(work), "--jobs", str(jobs), "--json", str(answer)),
    )
    _, memory = watched(argv, ROOT, {**os.environ, "SOURCE_DATE_EPOCH": EPOCH})
    values = json.loads(answer.read_text("utf-8"))
    return Measured(values["parts"], memory, Path(values["wheel"]))


def farm_inside(payload: Path, work: Path, jobs: int, answer: Path) -> None:
    """What :func:`farm` measures; the times of the parts go to ``answer``."""
    parts: dict[str, float] = {}
    with _timed(parts, "assemble"):
        layout = lay_out(
            manifest=_MANIFEST,
            artifacts={"payload": payload},
            work=work / "assembly",
            source_date_epoch=EPOCH,
        )
        host = HostExecutor("the benchmark runs here")
        raw = build_raw(layout, Path(sys.executable), host, work / "assemble.log")
    with _timed(parts, "repair"):
        repaired = repair(
            raw,
            work / "out",
            python_tag=PYTHON_TAG,
            cuda="13.0",
            declared_excludes=(),
            log=work / "repair.log",
            forbidden_paths=(str(work),),
            jobs=jobs,
        )
    with _timed(parts, "verify"):
        findings = verify(
            repaired.path, log=work / "verify.log", facts=repaired.facts_after, jobs=jobs
        )
    if findings:
        sys.exit("\n".join(finding.text for finding in findings))
    answer.write_text(json.dumps({"parts": parts, "wheel": str(repaired.path)}), "utf-8")


@contextlib.contextmanager
def _timed(parts: dict[str, float], name: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    parts[name] = time.monotonic() - started


def same_content(one: Path, other: Path) -> bool:
    """True when both wheels hold the same payload, by the checksums that zip keeps."""
    return _checksums(one) == _checksums(other)


def _checksums(wheel: Path) -> dict[str, tuple[int, int]]:
    with zipfile.ZipFile(wheel) as archive:
        return {
            info.filename: (info.CRC, info.file_size)
            for info in archive.infolist()
            if not info.is_dir() and not info.filename.endswith(_NOT_COMPARED)
        }


def measure(mebibytes: int, jobs: int, scratch: Path) -> Result:
    """Both sides, one after the other."""
    payload = scratch / "payload"
    write_payload(payload, mebibytes)
    with watched_load() as load:
        plain = baseline(payload, scratch / "baseline")
        ours = farm(payload, scratch / "farm", jobs)
    if not same_content(plain.wheel, ours.wheel):
        sys.exit(f"the wheels do not hold the same: {plain.wheel} {ours.wheel}")
    return Result(
        name="P5",
        title=f"{mebibytes} MiB of random and text data, {jobs} jobs",
        claims=(
            Claim("time, farm : baseline", ours.seconds / plain.seconds, MOST_OF_BASELINE, "×"),
            Claim("memory of the farm", ours.memory, MOST_MEMORY_MIB, "MiB"),
        ),
        lines=(
            f"baseline: {plain.shown}",
            f"farm: {ours.shown}",
            f"others: {load.others:.2f} cores",
        ),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1024, metavar="MIB")
    parser.add_argument("--jobs", type=int, default=own_cpus())
    parser.add_argument("--json", type=Path)
    parser.add_argument("--scratch", type=Path, help="an existing folder on a disk with room")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.inside is not None:
        farm_inside(given.inside, given.scratch, given.jobs, given.json)
        return 0
    with tempfile.TemporaryDirectory(prefix="assembly-", dir=given.scratch) as scratch:
        result = measure(given.size, given.jobs, Path(scratch))
    result.show()
    if given.json is not None:
        given.json.write_text(json.dumps(result.as_dict(), indent=1), "utf-8")
    return 0 if all(claim.holds for claim in result.claims) else 1


if __name__ == "__main__":
    sys.exit(main())
