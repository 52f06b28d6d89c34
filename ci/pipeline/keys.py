"""Keys of the steps that come after the libraries: the repaired wheel, and its import suite."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from ci.environments.lock import Lock
from ci.graph.key import Key
from ci.pipeline.identity import manifest_of, source_date_epoch
from ci.pipeline.state import CellState
from ci.registry import PACKAGE_ROOT, REPOSITORY
from ci.testing.import_suite import SUITE
from ci.wheel.identity import wheel_code_identity


def wheel_key(state: CellState) -> Key:
    """The key of the cell's repaired wheel. A library counts by its content, not by its own key: one that was
    built again and yielded the same files leaves the wheel as it is.

    Reads ``results``, ``sources``, ``toolchain``, ``environment`` and ``not_publishable`` of ``state``.
    """
    cell = state.plan.cell
    if state.environment is None:
        raise ValueError("the key of a wheel is asked for before its build environment is there")
    inputs = {f"content of {item.library.name}": item.content for item in state.results}
    inputs |= {
        "cell": cell.id,
        "manifest": json.dumps(manifest_of(state), sort_keys=True),
        "package": _files_hash(_package_files(), PACKAGE_ROOT),
        "build environment": state.environment.lock.text,
        "python tag": cell.python_tag,
        "cuda": cell.cuda,
        "excludes": " ".join(sorted(_excludes(state))),
        "time": source_date_epoch(),
        "machine": platform.machine(),
        "wheel code": wheel_code_identity(),
    }
    return Key.of(inputs)


def import_key(wheel_sha256: str, lock: Lock, interpreter: str) -> Key:
    """The key of an import suite: the wheel, the environment, the suite's files, and the code that runs it.

    ``interpreter`` says which CPython, down to its patch level.
    """
    return Key.of(
        {
            "wheel": wheel_sha256,
            "environment": lock.text,
            "python": interpreter,
            "libc": " ".join(platform.libc_ver()),
            "suite": _files_hash(sorted(SUITE.rglob("*.py")), SUITE),
            "suite code": _files_hash(
                sorted((REPOSITORY / "ci" / "testing").rglob("*.py")), REPOSITORY
            ),
        }
    )


def _excludes(state: CellState) -> set[str]:
    return {text for library in state.plan.selection.selected for text in library.excludes}


def _package_files() -> list[Path]:
    """What of the package's own files gets into a wheel, or makes it."""
    root = PACKAGE_ROOT
    own = [root / name for name in ("pyproject.toml", "setup.py", "README.md")]
    source = root / "src" / "paddlefleet_ops"
    return [
        *own,
        *sorted(root.glob("build_*.py")),
        *sorted(source.glob("*.py")),
        source / "py.typed",
    ]


@lru_cache(maxsize=8)
def _hash_of(files: tuple[tuple[str, str, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for name, path, _size, _time in files:
        content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        digest.update(f"{name}\0{content}\n".encode())
    return digest.hexdigest()


def _files_hash(files: Iterable[Path], root: Path) -> str:
    """One hash over the names below ``root`` and the contents of ``files``; read once while they stay."""
    stats = [(path, path.stat()) for path in files if path.is_file()]
    return _hash_of(
        tuple(
            (path.relative_to(root).as_posix(), str(path), stat.st_size, stat.st_mtime_ns)
            for path, stat in stats
        )
    )
