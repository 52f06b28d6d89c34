"""What must hold before containers are started: where the engine keeps its data, and how much fits there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from ci.errors import ConfigError, InfrastructureError
from ci.executors.model import EngineFacts


def check_places(facts: EngineFacts, folders: Iterable[Path]) -> None:
    """Raise :class:`~ci.errors.ConfigError` when the engine's data and one of ``folders`` hold each other.

    ``folders`` are mounted, copied and hashed: with the engine's data among them a run would copy itself,
    and what it writes while it runs would change every hash. Nothing is known of an engine on another
    machine, so nothing is refused.
    """
    if facts.data_root is None:
        return
    root = Path(os.path.realpath(facts.data_root))
    problems = [
        f"{folder} {_relation(root, real)} {facts.data_root}"
        for folder in folders
        if _nested(root, real := Path(os.path.realpath(folder)))
    ]
    if problems:
        raise ConfigError(
            f"the data of {facts.name} and a folder of the farm lie in each other",
            cause="that folder is mounted and hashed, so a run would hash the engine's own changing files",
            next_step='move the engine\'s data ("data-root" in /etc/docker/daemon.json, or graphroot in '
            "storage.conf), or choose other folders with --cache-dir and --out-dir",
            details=problems,
        )


def _nested(root: Path, folder: Path) -> bool:
    return root.is_relative_to(folder) or folder.is_relative_to(root)


def _relation(root: Path, folder: Path) -> str:
    return "holds" if root.is_relative_to(folder) else "lies in"


def check_disk(facts: EngineFacts, need_bytes: int) -> None:
    """Raise :class:`~ci.errors.InfrastructureError` when less than ``need_bytes`` are free for the engine.

    Of an engine on another machine nothing is known, so nothing is refused.
    """
    if facts.data_root is None:
        return
    free = shutil.disk_usage(facts.data_root).free
    if free < need_bytes:
        raise InfrastructureError(
            f"{free / 1e9:.1f} GB are left in {facts.data_root}, and {need_bytes / 1e9:.1f} GB are needed",
            cause="images and containers of earlier runs fill the disk",
            next_step=f"df -h {facts.data_root}; {facts.name} system df; {facts.name} system prune",
        )
