"""The verb that opens a cell's environment."""

from __future__ import annotations

import argparse

from rich.console import Console

from ci.cli.options import (
    cache_option,
    container_options,
    executor_options,
    narrator,
    set_options,
)


def shell_verb(parser: argparse.ArgumentParser) -> None:
    """The options of ``shell``."""
    parser.add_argument("cell", help="a cell's id, such as cu130-cp312; after --: a command to run")
    cache_option(parser)
    set_options(parser)
    executor_options(parser)
    parser.add_argument("--compiler", default="auto", help="auto, nvcc or clang")
    parser.set_defaults(run=_run_shell, takes_command=True)


def _run_shell(arguments: argparse.Namespace, _console: Console) -> int:
    from ci.pipeline.plan import WheelRequest
    from ci.pipeline.shell import ShellRequest, open_shell

    wheel = WheelRequest(
        library_set=arguments.library_set,
        declarations=tuple(arguments.declare),
        compiler=arguments.compiler,
        executor=arguments.executor,
        container=container_options(arguments),
        cache_dir=arguments.cache_dir.absolute(),
        verb="shell",
    )
    request = ShellRequest(arguments.cell, wheel, arguments.command)
    with narrator() as told:
        return open_shell(request, told)
