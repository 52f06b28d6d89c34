"""The verb ``images``: build the farm's images, or look whether they are what they should be."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from ci.cli.bundle import from_bundle_option, load_bundled
from ci.cli.options import cache_option, comma_list, json_option, narrator, print_json
from ci.errors import ConfigError, FarmError, FindingError
from ci.findings import Finding
from ci.registry import MATRIX
from ci.report.console import megabytes, print_table

if TYPE_CHECKING:
    from ci.executors.model import Engine
    from ci.images.pins import Pins
    from ci.images.produce import ImageRow, ImagesRequest
    from ci.matrix.model import CudaEntry


def images_verb(parser: argparse.ArgumentParser) -> None:
    """The options of ``images``."""
    add = parser.add_argument
    add("cuda", nargs="*", metavar="CUDA", help="cu126 or 12.6 (default: all of matrix.toml)")
    add(
        "--base",
        default="",
        metavar="BASE",
        help="airgapped (debootstrap, no registry), public (default), paddle (PaddleFleet's own build "
        "images), or an image that has CPythons below /opt/python",
    )
    add("--suite", default="bookworm", help="airgapped: the Debian suite (default: %(default)s)")
    add("--with-clang", action="store_true", help="airgapped: with clang, for CUDA 12 without nvcc")
    add("--test", action="store_true", help="test images, too: of --python, or of all Pythons")
    add("--python", type=comma_list, default=(), help="Pythons of the test images")
    add("--paddle", choices=("cpu", "gpu"), help="what test images hold (default: by the base)")
    add("--verify", action="store_true", help="build nothing; look at the images that are there")
    add("--prepare", action="store_true", help="build nothing; only write the contexts")
    add("--context", type=Path, help="keep the build contexts in this folder")
    from_bundle_option(parser)
    add("--dry-run", action="store_true", help="print the commands, run none of them")
    add("--engine", default="", help="docker or podman (default: the first that answers)")
    json_option(parser)
    cache_option(parser)
    parser.set_defaults(run=_run_images)


def _run_images(arguments: argparse.Namespace, console: Console) -> int:
    from ci.executors.engine import find_engine
    from ci.images.pins import load_pins
    from ci.images.produce import produce, verify, write_contexts

    request, pins = _request(arguments), load_pins()
    if arguments.dry_run:
        return _dry_run(arguments, request, pins, console)
    engine = find_engine(arguments.engine, os.environ)
    notes: tuple[Finding, ...] = ()
    with narrator() as told:
        if arguments.prepare:
            folders = write_contexts(request, pins, engine, told.say)
            _print_prepared(folders, console, as_json=arguments.json)
            return 0
        if arguments.from_bundle:
            cudas = [entry.version for entry in request.cudas] if arguments.cuda else []
            load_bundled(arguments.from_bundle, cudas, engine, told)
        if arguments.verify or arguments.from_bundle:
            rows = verify(request, pins, engine, told.say)
        else:
            rows, notes = produce(request, pins, engine, told.say)
    _print_rows(rows, notes, console, as_json=arguments.json)
    _refuse(rows)
    return 0


def _request(arguments: argparse.Namespace) -> ImagesRequest:
    from ci.images.produce import AIRGAPPED, ImagesRequest
    from ci.matrix.load import load

    file = load(MATRIX)
    base = arguments.base or ("" if arguments.verify or arguments.from_bundle else "public")
    tests: Sequence[str] = arguments.python or file.pythons
    unknown = [python for python in tests if python not in file.pythons]
    if unknown:
        raise ConfigError(
            f"not a Python of the matrix: {', '.join(unknown)}",
            next_step=f"one of {', '.join(file.pythons)}",
        )
    if base != AIRGAPPED and arguments.with_clang:
        raise ConfigError(
            "--with-clang is for the air-gapped base",
            cause="public images bring nvcc",
            next_step="add --base airgapped",
        )
    return ImagesRequest(
        cudas=_cudas(arguments.cuda, file.cudas),
        pythons=tuple(file.pythons),
        base=base,
        suite=arguments.suite,
        with_clang=arguments.with_clang,
        tests=tuple(tests) if arguments.test or arguments.python else (),
        paddle=arguments.paddle or ("gpu" if base == "public" else "cpu"),
        cache_dir=arguments.cache_dir.absolute(),
        context=arguments.context,
    )


def _cudas(wanted: Sequence[str], entries: Sequence[CudaEntry]) -> tuple[CudaEntry, ...]:
    """The entries of the matrix that ``cu126`` or ``12.6`` name; all without a name."""
    from ci.matrix.model import cuda_label

    by_name = {entry.version: entry for entry in entries}
    by_name |= {cuda_label(entry.version): entry for entry in entries}
    unknown = [name for name in wanted if name not in by_name]
    if unknown:
        raise ConfigError(
            f"not a CUDA of the matrix: {', '.join(unknown)}",
            cause=f"matrix.toml has {', '.join(entry.version for entry in entries)}",
            next_step="choose one of them, or add it to matrix.toml",
        )
    return tuple(dict.fromkeys(by_name[name] for name in wanted)) or tuple(entries)


def _dry_run(
    arguments: argparse.Namespace, request: ImagesRequest, pins: Pins, console: Console
) -> int:
    from ci.images.dry_run import commands

    engine, why = _engine_if_any(arguments.engine)
    lines, findings = commands(request, pins, engine)
    if arguments.json:
        print_json({"schema": 1, "commands": lines, "findings": [vars(item) for item in findings]})
        return 0
    if why:
        console.print(f"# {why}", markup=False, soft_wrap=True)
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    _print_findings(findings, console)
    return 0


def _engine_if_any(name: str) -> tuple[Engine | None, str]:
    from ci.executors.engine import find_engine

    try:
        return find_engine(name, os.environ), ""
    except FarmError as error:
        return None, f"no engine answers ({error.message}); commands are docker's"


def _print_prepared(folders: Iterable[Path], console: Console, *, as_json: bool) -> None:
    if as_json:
        print_json({"schema": 1, "contexts": [str(folder) for folder in folders]})
        return
    for folder in folders:
        console.print(f"written: {folder}", markup=False, soft_wrap=True)


def _print_rows(
    rows: Sequence[ImageRow], notes: Sequence[Finding], console: Console, *, as_json: bool
) -> None:
    if as_json:
        print_json(
            {
                "schema": 1,
                "images": [row.as_dict() for row in rows],
                "findings": [vars(item) for item in notes],
            }
        )
        return
    shown = [
        (
            row.build.ref,
            row.status,
            f"{row.seconds:.1f} s" if row.seconds else "",
            megabytes(row.facts.size) if row.facts else "",
            " + ".join(megabytes(layer.size) for layer in reversed(row.layers) if layer.size > 1e6),
            escape(row.build.arguments["BASE"]),
            row.build.definition[:12],
        )
        for row in rows
    ]
    print_table(console, ("image", "status", "time", "size", "layers", "base", "definition"), shown)
    for row in rows:
        if row.folders:
            parts = ", ".join(f"{folder} {megabytes(size)}" for folder, size in row.folders)
            console.print(f"{row.build.ref} holds {parts}", markup=False, soft_wrap=True)
    _print_findings([*notes, *(item for row in rows for item in row.findings)], console)


def _print_findings(findings: Iterable[Finding], console: Console) -> None:
    for item in findings:
        console.print(f"{item.level}: {item.text}", markup=False, soft_wrap=True)


def _refuse(rows: Sequence[ImageRow]) -> None:
    bad = [row for row in rows if any(item.level != "note" for item in row.findings)]
    if not bad:
        return
    names = ", ".join(row.build.ref for row in bad)
    first = next(item for row in bad for item in row.findings if item.level != "note")
    raise FindingError(
        f"{len(bad)} of {len(rows)} images are not as they should be: {names}",
        cause=first.why,
        next_step=first.mend,
    )
