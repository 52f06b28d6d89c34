"""What a wheel that is there says of itself, and what a suite that has run means."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ci.errors import ConfigError, SuiteError
from ci.testing.import_suite import ImportResult


def read_manifest(wheel: Path) -> Mapping[str, Any]:
    """The manifest inside a wheel. Raises :class:`~ci.errors.ConfigError` when there is none."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            found: Mapping[str, Any] = json.loads(archive.read("paddlefleet_ops/_manifest.json"))
        _check_manifest(found)
        return found
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{wheel} is not a paddlefleet_ops wheel",
            cause=f"{type(error).__name__}: {error}",
            next_step="nox -s import -- dist/paddlefleet_ops-….whl",
        ) from error


def _check_manifest(found: Mapping[str, Any]) -> None:
    """Raise KeyError or TypeError for a manifest that lacks what the import suite needs of it."""
    for name in ("version", "publishable", "not_publishable_because"):
        found[name]
    for name in ("cuda", "python", "id"):
        found["cell"][name]
    for library in found["libraries"]:
        library["run_requires"]


def raise_red(cell_id: str, result: ImportResult) -> None:
    """Raise :class:`~ci.errors.SuiteError` unless the suite is green."""
    if result.ok:
        return
    raise SuiteError(
        f"the import suite of {cell_id} is red: {result.passed} passed, {result.failed} failed, "
        f"{result.skipped} skipped",
        cause=result.problems[0],
        next_step=f"read {result.log}",
        details=result.problems,
    )
