"""The verb that the farm outside a container calls inside it; not for people."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console


def stage_verb(parser: argparse.ArgumentParser) -> None:
    """The options of ``stage``."""
    add = parser.add_argument
    add("stage", help="environment, finish, import, prepare or repair")
    add("--order", type=Path, required=True, help="the order that the farm outside wrote")
    add("--as", dest="user", metavar="UID:GID", help="go on as this user when this one is root")
    add("--wheel", type=Path, help="repair: the raw wheel")
    add("--into", type=Path, help="repair: the folder that the repaired wheel goes to")
    parser.set_defaults(run=_run_stage)


def _run_stage(arguments: argparse.Namespace, _console: Console) -> int:
    from ci.errors import ConfigError
    from ci.pipeline.stages import STAGES, StageCall, become, run_stage

    if arguments.stage not in STAGES:
        raise ConfigError(
            f"unknown stage {arguments.stage!r}", next_step=f"one of {', '.join(STAGES)}"
        )
    if arguments.user:
        become(arguments.user, arguments.into)
    run_stage(StageCall(arguments.stage, arguments.order, arguments.wheel, arguments.into))
    return 0
