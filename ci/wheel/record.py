"""The build record of a wheel: ``<wheel>.record.json`` beside it, which says how the wheel came to be."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ci.errors import FindingError
from ci.wheel.archive import json_bytes

SCHEMA = 1
_OWN_KEYS = ("schema", "wheel")


def record_path(wheel: Path) -> Path:
    """Where the record of ``wheel`` is."""
    return wheel.with_name(f"{wheel.name}.record.json")


def write_record(wheel: Path, content: Mapping[str, object]) -> Path:
    """Write ``content`` as the record of ``wheel``, in one step, and return its path.

    The file name, the sha256 (hex) and the size (bytes) of the wheel are added under ``wheel``. Raises
    ``ValueError`` when ``content`` has a key that the record sets itself, and ``TypeError`` for a value that
    JSON cannot hold; the old record is then still there.
    """
    clashing = [key for key in _OWN_KEYS if key in content]
    if clashing:
        raise ValueError(f"the record sets {', '.join(clashing)} itself")
    data = json_bytes({"schema": SCHEMA, "wheel": _identity(wheel), **content})
    target = record_path(wheel)
    handle, temporary = tempfile.mkstemp(prefix=".record-", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as sink:
            sink.write(data)
        Path(temporary).chmod(0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return target


def read_record(wheel: Path) -> dict[str, Any]:
    """The record of ``wheel``. Raises :class:`~ci.errors.FindingError` if it is absent or of another file."""
    path = record_path(wheel)
    try:
        data: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, json.JSONDecodeError) as error:
        raise FindingError(
            f"{wheel.name} has no readable build record",
            cause=str(error),
            next_step="build the wheel again, or keep its .record.json beside it",
        ) from error
    if data.get("wheel") != _identity(wheel):
        raise FindingError(
            f"the build record is not that of {wheel.name}",
            cause=f"the record says {data.get('wheel')}, the file is {_identity(wheel)}",
            next_step="build the wheel again; a wheel must not be changed after it was recorded",
        )
    return data


def _identity(wheel: Path) -> dict[str, object]:
    digest = hashlib.sha256()
    with wheel.open("rb") as source:
        while chunk := source.read(1 << 20):
            digest.update(chunk)
    return {"file": wheel.name, "sha256": digest.hexdigest(), "size": wheel.stat().st_size}
