"""Wheels and import suites of earlier runs, in the store under the keys of their inputs.

A wheel that auditwheel grafted a library of this host into is not kept: what it took is no named input. A
suite is kept only when it was green, and whoever gets it is told when it ran.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import cattrs

from ci.graph.key import Key
from ci.graph.store import Store
from ci.pipeline.handover import converter
from ci.pipeline.state import CellState, RepairedWheel
from ci.testing.import_suite import ImportResult

WHEEL = "wheel"
SUITE = "import suite"
_LOG = "import.log"


def take_wheel(state: CellState, store: Store, key: Key, folder: Path) -> bool:
    """Put the wheel of ``key`` into ``folder`` and its facts into ``state``; false when there is none."""
    entry = store.get(key)
    if entry is None:
        return False
    try:
        repaired = converter().structure(entry.meta["repaired"], RepairedWheel)
        gates = tuple(str(name) for name in _list(entry.meta["gates"]))
    except (KeyError, TypeError, ValueError, cattrs.BaseValidationError):
        return False  # of a farm that kept other facts
    shutil.rmtree(folder, ignore_errors=True)
    store.materialise(entry, folder)
    state.repaired = replace(repaired, path=folder / repaired.path.name)
    state.gates, state.wheel_from = gates, str(entry.meta.get("made", ""))
    return True


def keep_wheel(state: CellState, store: Store, key: Key, work: Path) -> None:
    """Keep the repaired wheel of ``state`` under ``key``; ``work`` is a folder of this task."""
    if state.repaired is None or state.repaired.grafted:
        return
    folder = work / "kept-wheel"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / state.repaired.path.name).hardlink_to(state.repaired.path)
    values = converter().unstructure(state.repaired)
    values["path"] = state.repaired.path.name
    meta = {
        "step": f"{WHEEL} {state.plan.cell.id}",
        "repaired": values,
        "gates": list(state.gates),
        "made": _now(),
    }
    store.put(key, folder, meta)
    shutil.rmtree(folder)


def take_suite(state: CellState, store: Store, key: Key, log: Path) -> bool:
    """Put the result of the suite of ``key`` into ``state``, and its log at ``log``."""
    entry = store.get(key)
    if entry is None:
        return False
    try:
        result = converter().structure(entry.meta["result"], ImportResult)
    except (KeyError, TypeError, ValueError, cattrs.BaseValidationError):
        return False
    folder = log.with_name(f".{log.name}.kept")
    shutil.rmtree(folder, ignore_errors=True)
    store.materialise(entry, folder)
    (folder / _LOG).replace(log)
    shutil.rmtree(folder)
    state.imported = replace(result, log=log)
    state.suite_from = str(entry.meta.get("made", ""))
    return True


def keep_suite(state: CellState, store: Store, key: Key, work: Path) -> None:
    """Keep the green result of ``state`` under ``key``; ``work`` is a folder of this task."""
    result = state.imported
    if result is None or not result.ok:
        return
    folder = work / "kept-suite"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copyfile(result.log, folder / _LOG)
    values = converter().unstructure(replace(result, log=Path(_LOG)))
    store.put(
        key, folder, {"step": f"{SUITE} {state.plan.cell.id}", "result": values, "made": _now()}
    )
    shutil.rmtree(folder)


def kept_wheel_sha256(store: Store, key: Key) -> str:
    """SHA-256 of the kept wheel of ``key``, empty when none is kept."""
    entry = store.get(key)
    files: Mapping[str, Any] = {item.path: item.sha256 for item in entry.files} if entry else {}
    return str(next(iter(files.values()), ""))


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return value


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
