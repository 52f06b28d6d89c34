"""Verbs that make and test wheels."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from ci.cli.bundle import from_bundle_option, go_offline
from ci.cli.options import (
    cache_option,
    comma_list,
    container_options,
    cpus,
    executor_options,
    json_option,
    narrator,
    not_empty,
    positive,
    print_json,
    set_options,
    store_options,
)
from ci.errors import ConfigError
from ci.report.console import make_console, print_cell_errors, print_report
from ci.report.model import RunReport

if TYPE_CHECKING:
    from ci.pipeline.plan import WheelRequest


def wheel_verb(parser: argparse.ArgumentParser) -> None:
    """The options of ``wheel``."""
    wheel_options(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done, and do nothing"
    )
    parser.set_defaults(run=_run_wheel)


def wheel_options(parser: argparse.ArgumentParser) -> None:
    """What to build, from what, where and with what."""
    json_option(parser)
    cache_option(parser)
    set_options(parser)
    add = parser.add_argument
    add("--cuda", type=comma_list, action="extend", default=[], help="12.6, 12.9, 13.0 (or cu130)")
    add(
        "--python",
        type=comma_list,
        action="extend",
        default=[],
        help="3.10 … 3.13; default: the newest here",
    )
    add(
        "--capability-set",
        type=comma_list,
        action="extend",
        default=[],
        help="a named set, such as hopper",
    )
    add(
        "--capability",
        type=not_empty,
        metavar="LIST",
        help="other capabilities: '9.0a;10.0f'",
    )
    add("--tier", type=not_empty, help="pr, nightly or release: all cells of that tier")
    add("--libs", type=comma_list, action="extend", help="only these libraries, comma separated")
    add("--source", action="append", default=[], metavar="NAME=KIND:PLACE",
        help="NAME=path:DIR, NAME=git:URL@REV or NAME=pypi:PROJECT==VERSION")  # fmt: skip
    add("--compiler", default="auto", help="auto, nvcc or clang")
    executor_options(parser)
    from_bundle_option(parser)
    add("--out-dir", type=Path, default=Path("dist"), help="wheels, records, logs")
    add("--jobs", type=positive, default=cpus(), help="parallel compilers (default: %(default)s)")
    add("--no-import", action="store_true", help="leave the import suite out")
    add(
        "--rerun-import",
        action="store_true",
        help="run the import suite also on a wheel that has passed",
    )
    store_options(parser)


def wheel_request(arguments: argparse.Namespace) -> WheelRequest:
    """The request that the options make."""
    from ci.pipeline.plan import WheelRequest

    return WheelRequest(
        cuda=tuple(arguments.cuda),
        python=tuple(arguments.python),
        capability_set=tuple(arguments.capability_set),
        capabilities=arguments.capability or "",
        tier=arguments.tier or "",
        library_set=arguments.library_set,
        libs=None if arguments.libs is None else tuple(arguments.libs),
        sources=tuple(arguments.source),
        declarations=tuple(arguments.declare),
        compiler=arguments.compiler,
        executor=arguments.executor,
        container=container_options(arguments),
        cache_dir=arguments.cache_dir.absolute(),
        out_dir=arguments.out_dir.absolute(),
        jobs=arguments.jobs,
        with_import=not arguments.no_import,
        rerun_import=arguments.rerun_import,
        remote=arguments.remote_cache,
        remote_writable=arguments.remote_cache_mode == "write",
        cache_limit=arguments.cache_limit,
        compiler_cache=arguments.compiler_cache,
    )


def _run_wheel(arguments: argparse.Namespace, console: Console) -> int:
    from ci.pipeline.rows import planned_report
    from ci.pipeline.wheels import build_wheels

    go_offline(arguments)
    request = wheel_request(arguments)
    if arguments.dry_run:
        return _show(planned_report(request), arguments.json, console)
    with narrator() as told:
        report = build_wheels(request, told)
    path = request.out_dir / "report.json"
    path.write_text(json.dumps(report.as_dict(), indent=1), "utf-8")
    return _show(report, arguments.json, console)


def _show(report: RunReport, as_json: bool, console: Console) -> int:
    if as_json:
        print_json(report.as_dict())
    else:
        print_report(console, report)
    print_cell_errors(make_console(stderr=True), report)
    return report.exit_code


def import_verb(parser: argparse.ArgumentParser) -> None:
    """The options of ``import``."""
    json_option(parser)
    cache_option(parser)
    parser.add_argument("wheel", type=Path, nargs="*", help="wheels (default: all of dist/)")
    executor_options(parser)
    from_bundle_option(parser)
    parser.add_argument(
        "--devices",
        type=comma_list,
        default=(),
        metavar="LIST",
        help="GPUs that containers get: 0,3 or their UUIDs",
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write the report there as JSON"
    )
    parser.add_argument("--out-dir", type=Path, default=Path("dist"), help="where logs go")
    parser.set_defaults(run=_run_import)


def _run_import(arguments: argparse.Namespace, console: Console) -> int:
    from ci.pipeline.imports import ImportRequest, import_wheels

    go_offline(arguments)
    wheels = tuple(arguments.wheel) or tuple(
        sorted(arguments.out_dir.glob("paddlefleet_ops-*.whl"))
    )
    if not wheels:
        raise ConfigError(
            f"no wheel in {arguments.out_dir}",
            cause="none was built yet",
            next_step="nox -s wheel-cu130 -- --set templates",
        )
    request = ImportRequest(
        wheels=wheels,
        executor=arguments.executor,
        container=container_options(arguments),
        cache_dir=arguments.cache_dir.absolute(),
        out_dir=arguments.out_dir.absolute(),
    )
    with narrator() as told:
        report = import_wheels(request, told)
    if arguments.report:
        arguments.report.write_text(json.dumps(report.as_dict(), indent=1), "utf-8")
    return _show(report, arguments.json, console)
