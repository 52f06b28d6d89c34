"""Verbs that show: the matrix, the declared libraries, the toolchain, the submodules."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ci.cli.options import cache_option, comma_list, json_option, print_json, set_options
from ci.registry import MATRIX, build_utils, known_names, libraries_of
from ci.report.console import print_table


def matrix_verb(parser: argparse.ArgumentParser) -> None:
    """The options of ``matrix``."""
    json_option(parser)
    parser.add_argument("--matrix", type=Path, default=MATRIX, help="another matrix file")
    parser.set_defaults(run=_run_matrix)


def _run_matrix(arguments: argparse.Namespace, console: Console) -> int:
    from ci.matrix.load import load
    from ci.matrix.report import HEADERS, as_document, as_table_rows
    from ci.matrix.resolve import resolve

    decisions = resolve(load(arguments.matrix))
    if arguments.json:
        print_json(as_document(decisions))
        return 0
    table = as_table_rows(decisions)
    shown = [row.cells if row.accepted else _dim(row.cells) for row in table]
    print_table(console, HEADERS, shown)
    accepted = sum(row.accepted for row in table)
    console.print(f"{accepted} accepted, {len(table) - accepted} rejected")
    return 0


def _dim(cells: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"[dim]{cell}[/dim]" if cell else "" for cell in cells)


def libraries_verb(parser: argparse.ArgumentParser) -> None:
    """The options of ``libraries``."""
    json_option(parser)
    set_options(parser)
    parser.add_argument(
        "--gates",
        action="store_true",
        help="what becomes of each library in every cell on every device, by the loader's own decision",
    )
    parser.set_defaults(run=_run_libraries)


def _run_libraries(arguments: argparse.Namespace, console: Console) -> int:
    libraries = libraries_of(arguments.library_set, arguments.declare)
    if arguments.gates:
        return _show_gates(libraries, console, as_json=arguments.json)
    if arguments.json:
        print_json({"schema": 1, "libraries": [_library_values(item) for item in libraries]})
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


def _show_gates(
    libraries: Sequence[build_utils.EcosystemLibrary], console: Console, *, as_json: bool
) -> int:
    from ci.matrix.load import load
    from ci.matrix.model import Accepted
    from ci.matrix.resolve import resolve
    from ci.pipeline.gates import gate_rows, gate_table

    decisions = resolve(load(MATRIX))
    cells = [item.cell for item in decisions if isinstance(item, Accepted)]
    rows = gate_rows(libraries, cells)
    if as_json:
        print_json({"schema": 1, "gates": [row.as_dict() for row in rows]})
        return 0
    headers, table = gate_table(rows)
    print_table(console, headers, table)
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


def toolchain_verb(parser: argparse.ArgumentParser) -> None:
    """The options of ``toolchain``."""
    json_option(parser)
    cache_option(parser)
    parser.add_argument("--compiler", default="auto", help="auto, nvcc or clang")
    parser.set_defaults(run=_run_toolchain)


def _run_toolchain(arguments: argparse.Namespace, console: Console) -> int:
    from ci.matrix.load import load
    from ci.toolchain import describe, rows

    file = load(MATRIX)
    document = describe(
        [entry.version for entry in file.cudas],
        arguments.compiler,
        arguments.cache_dir,
        os.environ,
        file.pythons,
    )
    if arguments.json:
        print_json(document)
        return 0
    for line in rows(document):
        console.print(line, soft_wrap=True, markup=False)
    return 0


def submodules_verb(parser: argparse.ArgumentParser) -> None:
    """The options of ``submodules``."""
    json_option(parser)
    set_options(parser)
    parser.add_argument("--libs", type=comma_list, help="ask only about these, comma separated")
    parser.set_defaults(run=_run_submodules)


def _run_submodules(arguments: argparse.Namespace, console: Console) -> int:
    libraries = libraries_of(arguments.library_set, arguments.declare)
    if arguments.libs:
        known_names(libraries, arguments.libs)
        libraries = tuple(item for item in libraries if item.name in arguments.libs)
    problems = build_utils.submodule_problems(libraries)
    if arguments.json:
        print_json({"schema": 1, "problems": [vars(item) for item in problems]})
    else:
        print_table(
            console,
            ("library", "submodule", "problem", "next"),
            [(item.library, item.path, item.problem, item.next_step) for item in problems],
        )
        console.print(f"{len(problems)} problems in {len(libraries)} libraries")
    return 1 if problems else 0
