"""Making the environments: virtual environments that uv fills from a lock."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from ci.environments.lock import Lock
from ci.errors import InfrastructureError
from ci.proc import Command, Completed, run


@dataclass(frozen=True)
class Environment:
    """A virtual environment: its interpreter, and the lock it was filled from."""

    folder: Path
    lock: Lock

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.folder / "bin" / "python"


def cached_environment(lock: Lock, interpreter: Path, cache_dir: Path) -> Environment:
    """The environment of ``lock`` in the cache, made if it is not there.

    A half-made one is never used: it is complete only when its marker is there, and the lock file
    keeps two processes from making the same one. One whose interpreter is gone is made anew.
    """
    identity = f"{interpreter.resolve()}\n{lock.text}"
    name = hashlib.sha256(identity.encode()).hexdigest()[:20]
    folder = cache_dir / "environments" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    marker = folder / ".complete"
    with FileLock(f"{folder}.lock"):
        if not marker.exists() or not (folder / "bin" / "python").exists():
            shutil.rmtree(folder, ignore_errors=True)
            make_environment(lock, interpreter, folder)
            marker.write_text("")
    return Environment(folder, lock)


def make_environment(lock: Lock, interpreter: Path, folder: Path) -> Environment:
    """A new environment in ``folder`` with just what ``lock`` holds.

    Raises :class:`~ci.errors.InfrastructureError` when a package cannot be had, or its hash differs.
    """
    _uv(("venv", "--quiet", "--no-project", "--python", str(interpreter), str(folder)))
    locked = folder / "lock.txt"
    locked.write_text(lock.text, "utf-8")
    python = folder / "bin" / "python"
    if lock.pins:
        _uv(
            ("pip", "install", "--quiet", "--python", str(python), "--require-hashes", "--no-deps",
             "--only-binary", ":all:", "--requirement", str(locked))
        )  # fmt: skip
    return Environment(folder, lock)


def install_wheel(environment: Environment, wheel: Path) -> None:
    """Install ``wheel`` alone: what it requires must be in the environment already, and is checked.

    Raises :class:`~ci.errors.InfrastructureError` when it cannot be installed, or when ``uv pip
    check`` finds a requirement that is not met.
    """
    python = str(environment.python)
    _uv(("pip", "install", "--quiet", "--python", python, "--no-deps", str(wheel)))
    _uv(("pip", "check", "--quiet", "--python", python))


def frozen(environment: Environment) -> tuple[str, ...]:
    """What is installed, as ``name==version`` lines."""
    done = _uv(("pip", "freeze", "--python", str(environment.python)))
    return tuple(line for line in done.output.splitlines() if "==" in line)


def _uv(arguments: Sequence[str]) -> Completed:
    command = Command((sys.executable, "-m", "uv", *arguments), timeout=1800)
    done = run(command)
    if not done.ok:
        words = [word for word in arguments[:2] if not word.startswith("-")]
        raise InfrastructureError(
            f"uv {' '.join(words[:2])} failed",
            cause="a package cannot be downloaded, does not fit this Python, or its hash differs",
            next_step=command.shown,
            details=done.tail(15),
        )
    return done
