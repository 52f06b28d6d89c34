"""Verbs that write the files derived from the declarations, and the locks."""

from __future__ import annotations

import argparse

from rich.console import Console

from ci.errors import FindingError
from ci.registry import MATRIX

LOCK_NAMES = ("build", "import", "farm", "pythons")


def sync_verb(parser: argparse.ArgumentParser) -> None:
    """The options of ``sync``."""
    parser.add_argument("--check", action="store_true", help="fail when a file is stale")
    parser.set_defaults(run=_run_sync)


def _run_sync(arguments: argparse.Namespace, console: Console) -> int:
    from ci.generated import stale_files, write_files

    stale = stale_files()
    if not arguments.check:
        write_files()
        console.print(f"written: {', '.join(stale) or 'nothing, all were up to date'}")
        return 0
    if stale:
        raise FindingError(
            f"stale: {', '.join(stale)}",
            cause="a declaration in packages/paddlefleet_ops/build_utils.py, the matrix, a pin or a "
            "Dockerfile changed",
            next_step="python -m ci sync",
        )
    console.print("all files derived from the declarations are up to date")
    return 0


def lock_verb(parser: argparse.ArgumentParser) -> None:
    """The options of ``lock``."""
    parser.add_argument("--check", action="store_true", help="fail when a lock is stale")
    parser.set_defaults(run=_run_lock)


def _run_lock(arguments: argparse.Namespace, console: Console) -> int:
    from ci.environments.lock import check_lock, write_lock
    from ci.matrix.load import load

    paddle = sorted({entry.paddle.cpu for entry in load(MATRIX).cudas})
    for name in LOCK_NAMES:
        if arguments.check:
            check_lock(name, paddle)
        else:
            console.print(f"written: {write_lock(name, paddle).name}")
    return 0
