"""``explain``: why a step would run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from ci.cli.bundle import go_offline
from ci.cli.options import narrator, print_json
from ci.cli.wheels import wheel_options, wheel_request
from ci.report.console import print_table

if TYPE_CHECKING:
    from ci.pipeline.explain import Explanation


def explain_verb(parser: argparse.ArgumentParser) -> None:
    """The options of ``explain``: a step, and those of ``wheel``."""
    parser.add_argument(
        "step",
        nargs="?",
        default="",
        help="CELL/LIBRARY, CELL/wheel, CELL/import, or one part of it",
    )
    wheel_options(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace, console: Console) -> int:
    from ci.pipeline.explain import explain

    go_offline(arguments)
    with narrator() as told:
        found = explain(wheel_request(arguments), arguments.step, told)
    if arguments.json:
        print_json({"steps": [asdict(item) for item in found]})
    else:
        _print(console, found)
    return 0


def _print(console: Console, found: Sequence[Explanation]) -> None:
    rows = [
        (item.step, item.would, _seconds(item), item.key[:12], escape(item.why)) for item in found
    ]
    print_table(console, ("step", "would", "takes", "key", "because"), rows)
    for item in found:
        for change in item.changes:
            console.print(
                f"\n[bold]{escape(item.step)}[/bold]: {escape(change.name)}", soft_wrap=True
            )
            console.print(f"  was  {escape(_indented(change.old))}", soft_wrap=True)
            console.print(f"  is   {escape(_indented(change.new))}", soft_wrap=True)


def _seconds(item: Explanation) -> str:
    return f"~{item.seconds:.1f} s" if item.seconds and item.would == "run" else ""


def _indented(text: str) -> str:
    return text.replace("\n", "\n       ")
