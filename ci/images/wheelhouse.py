"""Wheels for an image: downloaded on this host, each with a hash of a committed lock.

The image is built from this folder alone, so neither an index nor its certificates get near a build.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from ci.environments.lock import BUILD_BASE, Lock, committed, lock_for
from ci.environments.venv import cached_environment
from ci.errors import InfrastructureError
from ci.images.command import Say
from ci.proc import Command, run
from ci.toolchain.probe import require_python

_SECONDS = 3600.0


@dataclass(frozen=True)
class Wheels:
    """Which wheels: of the lock ``name``, for ``python`` (``3.12``) on a C library ``glibc`` (``2.28``, empty
    for this host's), from the usual index and perhaps another ``index``.
    """

    name: str
    python: str
    glibc: str = ""
    index: str = ""


def wheelhouse(wanted: Wheels, cache_dir: Path, say: Say, lock: Lock | None = None) -> Path:
    """The folder with the wheels of ``lock``; without one, of the committed lock.

    Filled when it is not there; complete or absent, never half. Raises
    :class:`~ci.errors.InfrastructureError` when a wheel cannot be had or its hash differs, and
    :class:`~ci.errors.ToolchainError` when this host has no such Python.
    """
    text = committed(wanted.name).read_text("utf-8") if lock is None else lock.text
    key = hashlib.sha256(f"{wanted.glibc}\n{text}".encode()).hexdigest()[:16]
    folder = cache_dir / "images" / "wheels" / f"{wanted.name}-{wanted.python}-{key}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            say(f"wheels: {wanted.name} for Python {wanted.python}")
            _fill(folder, text, wanted, cache_dir)
    return folder


def _fill(folder: Path, text: str, wanted: Wheels, cache_dir: Path) -> None:
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        locked = work / "lock.txt"
        locked.write_text(text, "utf-8")
        wheels = work / "wheels"
        wheels.mkdir()
        _download(pip_of(wanted.python, cache_dir), locked, wheels, wanted)
        wheels.replace(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def pip_of(python: str, cache_dir: Path) -> Path:
    """An interpreter of this host for ``python`` that has pip: the cached build environment's.

    pip chooses wheels for the interpreter that runs it; asked for another one, it would still decide
    the lock's conditions by its own.
    """
    lock = lock_for(BUILD_BASE, python, "build", cache_dir)
    return cached_environment(lock, require_python(python), cache_dir).python


def platforms(glibc: str, machine: str) -> tuple[str, ...]:
    """The platform tags that a C library runs, newest first (PEP 600; the older names of PEP 513, 571 and
    599 where they are the same).
    """
    newest = int(glibc.partition(".")[2])
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, 4, -1)]
    tags += [
        f"{name}_{machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux")
    ]
    return tuple(tags)


def _download(python: Path, locked: Path, wheels: Path, wanted: Wheels) -> None:
    tags = platforms(wanted.glibc, platform.machine()) if wanted.glibc else ()
    options = [word for tag in tags for word in ("--platform", tag)]
    if wanted.index:
        options += ["--extra-index-url", wanted.index]
    argv = (
        str(python), "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes",
        "--only-binary", ":all:", "--dest", str(wheels), "--requirement", str(locked), *options,
    )  # fmt: skip
    done = run(Command(argv, env=pip_environment(os.environ), timeout=_SECONDS))
    if not done.ok:
        raise InfrastructureError(
            "the wheels of an image cannot be downloaded",
            cause="the package index cannot be reached, or serves a file whose hash is not in the lock",
            next_step=f"run it by hand: {done.command.shown}",
            details=done.tail(12),
        )


def pip_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment with what pip needs, without what would change what is downloaded."""
    drop = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_NO_BINARY", "PYTHONPATH", "PYTHONHOME")
    return {name: value for name, value in environ.items() if name not in drop}


def gather(houses: Sequence[Path], target: Path) -> None:
    """Put the wheels of several folders into one; equal names are the same file, by their hash."""
    target.mkdir(parents=True, exist_ok=True)
    for house in houses:
        for wheel in sorted(house.glob("*.whl")):
            place = target / wheel.name
            if not place.exists():
                _link_or_copy(wheel, place)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
