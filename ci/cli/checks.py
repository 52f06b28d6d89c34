"""The verb that applies the checklist."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from ci.cli.options import cache_option, comma_list, json_option, narrator, not_empty, print_json
from ci.errors import ConfigError
from ci.report.console import make_console, print_table


def check_verb(parser: argparse.ArgumentParser) -> None:
    """The options of ``check``."""
    json_option(parser)
    cache_option(parser)
    add = parser.add_argument
    add("subject", nargs="*", metavar="SUBJECT",
        help="what to check: a declared LIBRARY, a FOLDER, pypi:PROJECT==VERSION or git:URL@REV "
        "(default: every declared library whose sources are here)")  # fmt: skip
    add("--set", dest="library_set", type=not_empty, help="only the libraries of this set")
    add("--declare", type=Path, action="append", default=[], metavar="FILE",
        help="a Python file with further LIBRARIES")  # fmt: skip
    add("--source", action="append", default=[], metavar="NAME=KIND:PLACE",
        help="other sources of a declared library: path:DIR, git:URL@REV, pypi:PROJECT==VERSION")  # fmt: skip
    add("--static", action="store_true", help="read the sources only; run nothing")
    add("--run-time", action="store_true", help="fail where the run-time part cannot run")
    add("--online", action="store_true", help="let the resolver decide on requirements as well")
    add(
        "--python",
        type=not_empty,
        help="the Python of the run-time part (default: the newest here)",
    )
    add("--exercise", action="append", default=[], metavar="NAME=ARGUMENTS",
        help="also call a public function, as in 'muladd=paddle.ones([3]), 2.0'")  # fmt: skip
    add("--rules", type=comma_list, help="only these rules, comma separated")
    add("--list-rules", action="store_true", help="only list the rules")
    add("--baseline", type=Path, help="known findings with reasons (default: the committed file)")
    add("--write-baseline", action="store_true", help="append what is found to the baseline")
    add("--notes", action="store_true", help="show notes as well")
    add("--report", type=Path, metavar="FILE", help="also write the report as JSON")
    add("--sarif", type=Path, metavar="FILE", help="also write SARIF 2.1.0, for code scanning")
    parser.set_defaults(run=_run_check)


def _run_check(arguments: argparse.Namespace, console: Console) -> int:
    from ci.pipeline.check import CheckRequest, run_check, write_baseline
    from ci.report.findings import print_check
    from ci.report.sarif import write_sarif

    if arguments.list_rules:
        return _list_rules(console, as_json=arguments.json)
    if arguments.static and arguments.run_time:
        raise ConfigError(
            "--static and --run-time exclude each other",
            cause="the one runs nothing, the other fails where the run-time part cannot run",
            next_step="leave one of them out",
        )
    if arguments.static and arguments.exercise:
        raise ConfigError(
            "--static and --exercise exclude each other",
            cause="a public function is called by the run-time part",
            next_step="leave one of them out",
        )
    if arguments.baseline and not (arguments.write_baseline or arguments.baseline.is_file()):
        raise ConfigError(
            f"no baseline {arguments.baseline}",
            cause="it does not exist, or is no file",
            next_step="give an existing one, or make it with --write-baseline",
        )
    request = CheckRequest(
        subjects=tuple(arguments.subject),
        library_set=arguments.library_set or "",
        declarations=tuple(arguments.declare),
        sources=tuple(arguments.source),
        run_time="no" if arguments.static else "must" if arguments.run_time else "can",
        online=arguments.online,
        python=arguments.python or "",
        exercises=tuple(arguments.exercise),
        rules=tuple(arguments.rules or ()),
        baseline=arguments.baseline,
        cache_dir=arguments.cache_dir.absolute(),
    )
    with narrator() as told:
        report = run_check(request, told)
    if arguments.report:
        arguments.report.parent.mkdir(parents=True, exist_ok=True)
        arguments.report.write_text(json.dumps(report.as_dict(), indent=1), "utf-8")
    if arguments.sarif:
        write_sarif(report, arguments.sarif)
    if arguments.write_baseline:
        path = write_baseline(request, report)
        make_console(stderr=True).print(f"appended to {path}: now write the reasons", markup=False)
    if arguments.json:
        print_json(report.as_dict())
    else:
        print_check(console, report, show_notes=arguments.notes)
    return report.exit_code


def _list_rules(console: Console, *, as_json: bool) -> int:
    from ci.pipeline.check import all_rules

    rules = all_rules().values()
    if as_json:
        print_json({"schema": 1, "rules": [vars(rule) for rule in rules]})
        return 0
    rows = [(rule.name, rule.level, rule.summary, rule.guide) for rule in rules]
    print_table(console, ("rule", "level", "finds", "the guide's rule"), rows)
    return 0
