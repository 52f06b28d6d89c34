"""The verbs that bring a library into the farm and take it out again."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from ci.cli.options import cache_option, json_option, narrator, print_json
from ci.errors import FindingError
from ci.findings import Finding
from ci.proc import Command, run
from ci.registry import REPOSITORY
from ci.report.console import print_table

if TYPE_CHECKING:
    from ci.integration.scaffold.integrate import Integrated
    from ci.integration.scaffold.remove import Removal


def integrate_verb(parser: argparse.ArgumentParser) -> None:
    """The options of ``integrate``."""
    from ci.integration.scaffold.arguments import integrate_options

    json_option(parser)
    cache_option(parser)
    parser.add_argument("--static", action="store_true", help="check by reading the sources only")
    integrate_options(parser)
    parser.set_defaults(run=_run_integrate)


def _run_integrate(arguments: argparse.Namespace, console: Console) -> int:
    from ci.integration.scaffold.arguments import request_of
    from ci.integration.scaffold.integrate import integrate

    request = request_of(arguments)
    static = ("--static",) if arguments.static else ()
    options = ("--cache-dir", str(arguments.cache_dir.absolute()), *static)
    with narrator() as told:
        done = integrate(request, lambda name: check_anew(name, options), progress=told.say)
    if arguments.json:
        print_json(_document(done))
    else:
        _print_integrated(console, done)
    return 1 if done.failing else 0


def check_anew(name: str, options: Sequence[str] = ()) -> tuple[Finding, ...]:
    """The findings about a library that was just declared: by a new process, which reads the registry anew.

    Raises :class:`~ci.errors.FindingError` with what that process said when it could not check at all.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "check.json")
        argv = (sys.executable, "-m", "ci", "check", name, "--report", str(report), *options)
        done = run(Command(argv, cwd=REPOSITORY))
        if not report.exists():
            raise FindingError(
                f"{name} cannot be checked",
                cause=next(iter(done.tail(1)), "the check said nothing"),
                next_step=f"python -m ci check {name}",
                details=done.tail(15),
            )
        document = json.loads(report.read_text("utf-8"))
    found = (item for library in document["libraries"] for item in library["findings"])
    return tuple(Finding(**item) for item in found)


def _document(done: Integrated) -> dict[str, object]:
    plan = done.plan
    return {
        "schema": 1,
        "library": plan.library.name,
        "commit": plan.commit,
        "submodule": plan.submodule,
        "files": sorted(plan.files),
        "inferred": [[note.field, note.value, note.origin] for note in plan.notes],
        "next": list(plan.next_steps),
        "findings": [vars(item) for item in done.findings],
    }


def _print_integrated(console: Console, done: Integrated) -> None:
    plan = done.plan
    console.print(f"{plan.library.name} at {plan.commit[:12]} in {plan.submodule}", markup=False)
    rows = [(note.field, note.value, note.origin) for note in plan.notes]
    print_table(console, ("inferred", "value", "from"), rows)
    for path in sorted(plan.files):
        console.print(f"written: {path}", markup=False)
    for finding in done.findings:
        console.print(f"{finding.level}: {finding.text}", markup=False, soft_wrap=True)
    for step in plan.next_steps:
        console.print(f"next: {step}", markup=False, soft_wrap=True)


def remove_verb(parser: argparse.ArgumentParser) -> None:
    """The options of ``remove``."""
    from ci.integration.scaffold.arguments import remove_options

    json_option(parser)
    remove_options(parser)
    parser.set_defaults(run=_run_remove)


def _run_remove(arguments: argparse.Namespace, console: Console) -> int:
    from ci.integration.scaffold.remove import remove

    with narrator() as told:
        removal = remove(arguments.name, force=arguments.force, progress=told.say)
    if arguments.json:
        print_json(_removed(removal))
        return 0
    for path in _removed_files(removal):
        console.print(f"removed: {path}", markup=False)
    for text in removal.left:
        console.print(f"left: {text}", markup=False, soft_wrap=True)
    return 0


def _removed_files(removal: Removal) -> list[str]:
    gone = [path for path, text in removal.files.items() if text is None]
    return [*gone, *([removal.submodule] if removal.submodule else [])]


def _removed(removal: Removal) -> dict[str, object]:
    return {
        "schema": 1,
        "library": removal.library.name,
        "removed": _removed_files(removal),
        "edited": [path for path, text in removal.files.items() if text is not None],
        "left": list(removal.left),
    }
