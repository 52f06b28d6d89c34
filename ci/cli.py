"""The command line: one parser, and a function per verb that turns arguments into a call.

``nox`` sessions call these verbs; so can anyone. Every verb that makes wheels takes the same options.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from ci import pipeline
from ci.environments.lock import check_lock, write_lock
from ci.errors import ConfigError, FindingError
from ci.executors.base import EXECUTORS
from ci.generated import stale_files, write_files
from ci.matrix.load import load
from ci.matrix.report import HEADERS, as_document, as_table_rows
from ci.matrix.resolve import resolve
from ci.registry import build_utils, known_names, libraries_of
from ci.report.console import make_console, print_cell_errors, print_report, print_table
from ci.report.model import RunReport
from ci.report.progress import LiveNarrator, Narrator, PlainNarrator
from ci.toolchain import describe, rows

LOCK_NAMES = ("build", "import")


def default_cache_dir() -> Path:
    """``PADDLEFLEET_FARM_CACHE``, else ``paddlefleet-farm`` in the user's cache folder (XDG)."""
    named = os.environ.get("PADDLEFLEET_FARM_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "paddlefleet-farm"


def _comma_list(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise argparse.ArgumentTypeError("an empty list; leave the option out to take the default")
    return found


def _not_empty(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("an empty text; leave the option out to take the default")
    return text


def _jobs(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are the farm's: all in one tree, exit code 2. Options are never guessed."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    def error(self, message: str) -> None:  # type: ignore[override]
        """Raise :class:`~ci.errors.ConfigError` instead of leaving the process."""
        raise ConfigError(message + self._nearest(message), next_step=f"{self.prog} --help")

    def _nearest(self, message: str) -> str:
        """For an unknown verb or option, the known ones that are spelled most like it."""
        unknown = re.match(r"(?:unrecognized arguments: |.*invalid choice: ')([\w-]+)", message)
        if unknown is None:
            return ""
        near = difflib.get_close_matches(unknown.group(1), self._words(), n=2, cutoff=0.5)
        return f"; nearest: {', '.join(near)}" if near else ""

    def _words(self) -> list[str]:
        """Every verb and option, also those of the verbs."""
        words: dict[str, None] = {}
        for action in self._actions:
            words |= dict.fromkeys(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                for verb, parser in action.choices.items():
                    words[verb] = None
                    words |= dict.fromkeys(parser._words())
        return list(words)


def build_parser() -> Parser:
    """The parser of ``python -m ci``."""
    parser = Parser(prog="python -m ci", description="The paddlefleet_ops build farm.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)
    _matrix_verb(verbs.add_parser("matrix", help="cells: accepted, and rejected with reasons"))
    _libraries_verb(verbs.add_parser("libraries", help="declared libraries and their conditions"))
    _toolchain_verb(verbs.add_parser("toolchain", help="compilers found, and what each cell uses"))
    _submodules_verb(verbs.add_parser("submodules", help="missing, nested or drifted submodules"))
    _wheel_verb(verbs.add_parser("wheel", help="build, repair and import-test wheels"))
    _import_verb(verbs.add_parser("import", help="run the import suite on a wheel"))
    _sync_verb(verbs.add_parser("sync", help="write the files derived from the declarations"))
    _lock_verb(verbs.add_parser("lock", help="write the locks of the farm's environments"))
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _cache_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache-dir",
        type=Path,
        default=default_cache_dir(),
        help="toolchains, environments, sources and results (default: %(default)s)",
    )


def _matrix_verb(parser: argparse.ArgumentParser) -> None:
    _common(parser)
    parser.add_argument("--matrix", type=Path, default=pipeline.MATRIX, help="another matrix file")
    parser.set_defaults(run=_run_matrix)


def _run_matrix(arguments: argparse.Namespace, console: Console) -> int:
    decisions = resolve(load(arguments.matrix))
    if arguments.json:
        _print_json(as_document(decisions))
        return 0
    table = as_table_rows(decisions)
    shown = [row.cells if row.accepted else _dim(row.cells) for row in table]
    print_table(console, HEADERS, shown)
    accepted = sum(row.accepted for row in table)
    console.print(f"{accepted} accepted, {len(table) - accepted} rejected")
    return 0


def _dim(cells: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"[dim]{cell}[/dim]" if cell else "" for cell in cells)


def _set_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", dest="library_set", default="fleet", help="fleet or templates")
    parser.add_argument(
        "--declare",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file with further LIBRARIES, to try a library before it is added",
    )


def _libraries_verb(parser: argparse.ArgumentParser) -> None:
    _common(parser)
    _set_options(parser)
    parser.set_defaults(run=_run_libraries)


def _run_libraries(arguments: argparse.Namespace, console: Console) -> int:
    libraries = libraries_of(arguments.library_set, arguments.declare)
    if arguments.json:
        _print_json({"schema": 1, "libraries": [_library_values(item) for item in libraries]})
        return 0
    shown = []
    for library in libraries:
        values = _library_values(library)
        requires = library.requires
        conditions = [
            f"{word} {condition}"
            for word, condition in (
                ("CUDA", requires.cuda),
                ("Python", requires.python),
                ("capability", requires.capability),
            )
            if condition
        ]
        shown.append(
            (
                library.name,
                library.kind,
                library.module,
                "; ".join(conditions) or "none",
                " ".join(library.compat_scope),
                " ".join(sorted(library.varies_by)) or "nothing",
                str(values["source"]),
            )
        )
    print_table(
        console,
        ("library", "kind", "module", "requires", "compat scope", "varies by", "source"),
        shown,
    )
    return 0


def _library_values(library: build_utils.EcosystemLibrary) -> dict[str, object]:
    source = library.source_rel_path
    if library.is_submodule:
        source = f"{library.url} at {library.pin or 'not pinned yet'}"
    return {
        "name": library.name,
        "module": library.module,
        "modules": list(library.modules),
        "kind": library.kind,
        "requires": library.requires.as_dict(),
        "compat_scope": list(library.compat_scope),
        "public_names": list(library.public_names),
        "artifacts": [[item.source, item.target] for item in library.artifacts],
        "varies_by": sorted(library.varies_by),
        "depends_on": list(library.depends_on),
        "hint": library.hint,
        "availability": f"is_{library.availability}_available",
        "source": source,
        "pin": library.pin,
    }


def _toolchain_verb(parser: argparse.ArgumentParser) -> None:
    _common(parser)
    _cache_option(parser)
    parser.add_argument("--compiler", default="auto", help="auto, nvcc or clang")
    parser.set_defaults(run=_run_toolchain)


def _run_toolchain(arguments: argparse.Namespace, console: Console) -> int:
    file = load(pipeline.MATRIX)
    document = describe(
        [entry.version for entry in file.cudas],
        arguments.compiler,
        arguments.cache_dir,
        os.environ,
        file.pythons,
    )
    if arguments.json:
        _print_json(document)
        return 0
    for line in rows(document):
        console.print(line, soft_wrap=True, markup=False)
    return 0


def _submodules_verb(parser: argparse.ArgumentParser) -> None:
    _common(parser)
    _set_options(parser)
    parser.add_argument("--libs", type=_comma_list, help="ask only about these, comma separated")
    parser.set_defaults(run=_run_submodules)


def _run_submodules(arguments: argparse.Namespace, console: Console) -> int:
    libraries = libraries_of(arguments.library_set, arguments.declare)
    if arguments.libs:
        known_names(libraries, arguments.libs)
        libraries = tuple(item for item in libraries if item.name in arguments.libs)
    problems = build_utils.submodule_problems(libraries)
    if arguments.json:
        _print_json({"schema": 1, "problems": [vars(item) for item in problems]})
    else:
        print_table(
            console,
            ("library", "submodule", "problem", "next"),
            [(item.library, item.path, item.problem, item.next_step) for item in problems],
        )
        console.print(f"{len(problems)} problems in {len(libraries)} libraries")
    return 1 if problems else 0


def _wheel_verb(parser: argparse.ArgumentParser) -> None:
    _common(parser)
    _cache_option(parser)
    _set_options(parser)
    add = parser.add_argument
    add("--cuda", type=_comma_list, action="extend", default=[], help="12.6, 12.9, 13.0 (or cu130)")
    add(
        "--python",
        type=_comma_list,
        action="extend",
        default=[],
        help="3.10 … 3.13; default: the newest here",
    )
    add(
        "--capability-set",
        type=_comma_list,
        action="extend",
        default=[],
        help="a named set, such as hopper",
    )
    add(
        "--capability",
        type=_not_empty,
        metavar="LIST",
        help="other capabilities: '9.0a;10.0f'",
    )
    add("--tier", type=_not_empty, help="pr, nightly or release: all cells of that tier")
    add("--libs", type=_comma_list, action="extend", help="only these libraries, comma separated")
    add("--source", action="append", default=[], metavar="NAME=KIND:PLACE",
        help="NAME=path:DIR, NAME=git:URL@REV or NAME=pypi:PROJECT==VERSION")  # fmt: skip
    add("--compiler", default="auto", help="auto, nvcc or clang")
    add("--executor", default="auto", help=f"where steps run: {', '.join(EXECUTORS)}")
    add("--out-dir", type=Path, default=Path("dist"), help="wheels, records, logs")
    add("--jobs", type=_jobs, default=_cpus(), help="parallel compilers (default: %(default)s)")
    add("--no-import", action="store_true", help="leave the import suite out")
    add("--dry-run", action="store_true", help="say what would be done, and do nothing")
    parser.set_defaults(run=_run_wheel)


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _wheel_request(arguments: argparse.Namespace) -> pipeline.WheelRequest:
    return pipeline.WheelRequest(
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
        cache_dir=arguments.cache_dir.absolute(),
        out_dir=arguments.out_dir.absolute(),
        jobs=arguments.jobs,
        with_import=not arguments.no_import,
    )


def _run_wheel(arguments: argparse.Namespace, console: Console) -> int:
    request = _wheel_request(arguments)
    if arguments.dry_run:
        return _show(pipeline.planned_report(request), arguments.json, console)
    with narrator() as told:
        report = pipeline.build_wheels(request, told)
    path = request.out_dir / "report.json"
    path.write_text(json.dumps(report.as_dict(), indent=1), "utf-8")
    return _show(report, arguments.json, console)


def _show(report: RunReport, as_json: bool, console: Console) -> int:
    if as_json:
        _print_json(report.as_dict())
    else:
        print_report(console, report)
    print_cell_errors(make_console(stderr=True), report)
    return report.exit_code


@contextmanager
def narrator() -> Iterator[Narrator]:
    """Live progress on a terminal, plain lines elsewhere; both on stderr."""
    console = make_console(stderr=True)
    if console.is_terminal and not os.environ.get("CI"):
        with LiveNarrator(console) as live:
            yield live
    else:
        yield PlainNarrator(console)


def _import_verb(parser: argparse.ArgumentParser) -> None:
    _common(parser)
    _cache_option(parser)
    parser.add_argument("wheel", type=Path, nargs="*", help="wheels (default: all of dist/)")
    parser.add_argument("--executor", default="auto", help=f"one of {', '.join(EXECUTORS)}")
    parser.add_argument("--out-dir", type=Path, default=Path("dist"), help="where logs go")
    parser.set_defaults(run=_run_import)


def _run_import(arguments: argparse.Namespace, console: Console) -> int:
    wheels = tuple(arguments.wheel) or tuple(
        sorted(arguments.out_dir.glob("paddlefleet_ops-*.whl"))
    )
    if not wheels:
        raise ConfigError(
            f"no wheel in {arguments.out_dir}",
            cause="none was built yet",
            next_step="nox -s wheel-cu130 -- --set templates",
        )
    with narrator() as told:
        report = pipeline.import_wheels(
            wheels,
            arguments.executor,
            arguments.cache_dir.absolute(),
            arguments.out_dir.absolute(),
            told,
        )
    return _show(report, arguments.json, console)


def _sync_verb(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="fail when a file is stale")
    parser.set_defaults(run=_run_sync)


def _run_sync(arguments: argparse.Namespace, console: Console) -> int:
    stale = stale_files()
    if not arguments.check:
        write_files()
        console.print(f"written: {', '.join(stale) or 'nothing, all were up to date'}")
        return 0
    if stale:
        raise FindingError(
            f"stale: {', '.join(stale)}",
            cause="a declaration in packages/paddlefleet_ops/build_utils.py changed",
            next_step="python -m ci sync",
        )
    console.print("all files derived from the declarations are up to date")
    return 0


def _lock_verb(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="fail when a lock is stale")
    parser.set_defaults(run=_run_lock)


def _run_lock(arguments: argparse.Namespace, console: Console) -> int:
    paddle = sorted({entry.paddle.cpu for entry in load(pipeline.MATRIX).cudas})
    for name in LOCK_NAMES:
        if arguments.check:
            check_lock(name, paddle)
        else:
            console.print(f"written: {write_lock(name, paddle).name}")
    return 0


def _print_json(document: object) -> None:
    print(json.dumps(document, indent=1))


def run_verb(argv: Sequence[str]) -> int:
    """Parse ``argv`` and run its verb. Returns the exit code; raises :class:`~ci.errors.FarmError`."""
    arguments = build_parser().parse_args(argv)
    chosen: Callable[[argparse.Namespace, Console], int] = arguments.run
    sys.stdout.flush()
    return chosen(arguments, make_console())
