"""The verb that makes and verifies offline bundles, and the option that takes a run from one."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from ci.cli.options import (
    cache_option,
    comma_list,
    json_option,
    narrator,
    not_empty,
    print_json,
    set_options,
)
from ci.errors import FarmError, FindingError

if TYPE_CHECKING:
    from ci.executors.model import Engine
    from ci.report.progress import Narrator


def bundle_verb(parser: argparse.ArgumentParser) -> None:
    """The options of ``bundle``."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    make = verbs.add_parser("make", help="write the bundle of some cells")
    _make_options(make)
    verify = verbs.add_parser("verify", help="compare every file of a bundle with its record")
    json_option(verify)
    verify.add_argument("folder", type=Path, metavar="DIR")
    verify.add_argument(
        "--expect", type=not_empty, metavar="SHA256", help="of bundle.json, as make printed it"
    )
    verify.set_defaults(run=_run_verify)


def _make_options(parser: argparse.ArgumentParser) -> None:
    json_option(parser)
    cache_option(parser)
    set_options(parser)
    add = parser.add_argument
    for option, about in (
        ("--cuda", "12.6, 12.9, 13.0 (or cu130); default: all"),
        ("--python", "3.10 … 3.13; default: all"),
        ("--capability-set", "a named set, such as hopper"),
    ):
        add(option, type=comma_list, action="extend", default=[], help=about)
    add("--tier", type=not_empty, help="pr, nightly or release: all cells of that tier")
    add("--libs", type=comma_list, action="extend", help="only these libraries, comma separated")
    add("--compiler", default="auto", help="whose packages to take: auto, nvcc or clang")
    out = "the bundle's folder (default: %(default)s)"
    add("--out", type=Path, default=Path("dist/bundle"), metavar="DIR", help=out)
    add("--tar", action="store_true", help="also write it as one file, DIR.tar")
    add("--no-images", action="store_true", help="leave the images out")
    add("--no-paddle", action="store_true", help="leave the import suite's packages out")
    add("--engine", default="", help="docker or podman (default: the first that answers)")
    parser.set_defaults(run=_run_make)


def _engine(name: str) -> Engine:
    from ci.executors.engine import find_engine

    return find_engine(name, os.environ)


def _run_make(arguments: argparse.Namespace, console: Console) -> int:
    from ci.pipeline.bundle import BundleRequest, make_bundle

    engine, note = None, "left out (--no-images)"
    if not arguments.no_images:
        try:
            engine = _engine(arguments.engine)
        except FarmError as error:
            if arguments.engine:
                raise
            note = f"none: {error.message}"
    request = BundleRequest(
        out=arguments.out.absolute(),
        cache_dir=arguments.cache_dir.absolute(),
        cuda=tuple(arguments.cuda),
        python=tuple(arguments.python),
        capability_set=tuple(arguments.capability_set),
        tier=arguments.tier or "",
        library_set=arguments.library_set,
        libs=None if arguments.libs is None else tuple(arguments.libs),
        compiler=arguments.compiler,
        with_paddle=not arguments.no_paddle,
        as_tar=arguments.tar,
        engine=engine,
    )
    with narrator() as told:
        made = make_bundle(request, told)
    bundle = made.bundle
    if engine is not None:
        note = ", ".join(image.ref for image in bundle.images) or (
            "none: the farm's images of these cells were not built here (nox -s images)"
        )
    if arguments.json:
        print_json(
            {
                "folder": str(request.out),
                "archive": str(made.archive) if made.archive else None,
                "record_sha256": made.digest,
                "size": bundle.size,
                "files": len(bundle.files),
                "cells": list(bundle.cells),
                "images": [image.ref for image in bundle.images],
            }
        )
        return 0
    console.print(f"bundle: {request.out}, {len(bundle.files)} files, {bundle.size / 1e6:.0f} MB")
    console.print(f"cells: {' '.join(bundle.cells)}")
    console.print(f"images: {note}")
    console.print(f"SHA-256 of bundle.json: {made.digest}")
    if made.archive:
        console.print(f"one file: {made.archive}")
    return 0


def _run_verify(arguments: argparse.Namespace, console: Console) -> int:
    from ci.pipeline.bundle import verify_bundle

    folder = arguments.folder.absolute()
    with narrator() as told:
        bundle, found = verify_bundle(folder, arguments.expect or "", told)
    if arguments.json:
        fields = ("rule", "place", "why", "mend")
        rows = [{name: getattr(item, name) for name in fields} for item in found]
        print_json({"folder": str(folder), "files": len(bundle.files), "findings": rows})
    if found:
        raise FindingError(
            f"{len(found)} things are wrong with the bundle {folder}",
            cause=found[0].why,
            next_step=found[0].mend,
            details=[item.text for item in found],
        )
    if not arguments.json:
        told_size = f"{len(bundle.files)} files, {bundle.size / 1e6:.0f} MB"
        console.print(f"{folder} is as it was made: {told_size}, farm {bundle.commit[:12]}")
    return 0


# -- for other verbs -------------------------------------------------------------------------------


def from_bundle_option(parser: argparse.ArgumentParser) -> None:
    """``--from-bundle``."""
    parser.add_argument(
        "--from-bundle",
        type=Path,
        metavar="DIR",
        help="take wheels, compilers, sources and images from a bundle; use no network",
    )


def go_offline(arguments: argparse.Namespace) -> None:
    """Turn the rest of this process into a run from a bundle, when ``--from-bundle`` was given.

    Images are loaded when the verb has an executor that may be ``container``, an engine answers and the
    bundle has images. A dry run changes nothing. Raises what
    :func:`~ci.pipeline.bundle.use_bundle` and :func:`~ci.pipeline.bundle.load_images` raise.
    """
    if arguments.from_bundle is None or getattr(arguments, "dry_run", False):
        return
    from ci.pipeline.bundle import use_bundle

    folder = arguments.from_bundle.absolute()
    with narrator() as told:
        after = use_bundle(folder, arguments.cache_dir.absolute(), dict(os.environ), told)
        _change_environment(after)
        if arguments.executor != "host":
            _load(folder, arguments, told)


def _change_environment(after: Mapping[str, str]) -> None:
    for name in set(os.environ) - after.keys():
        del os.environ[name]
    os.environ.update(after)


def _load(folder: Path, arguments: argparse.Namespace, told: Narrator) -> None:
    """Load the images of the run; what is missing matters only to ``--executor container``."""
    from ci.bundle.model import read_bundle
    from ci.matrix.model import cuda_label

    insists = arguments.executor == "container"
    held = {item.cuda_label for item in read_bundle(folder).images}
    asked = {cuda_label(text.removeprefix("cu")) for text in vars(arguments).get("cuda", ())}
    cudas = sorted(asked if insists else asked & held)
    if not insists and not (cudas if asked else held):
        return
    try:
        engine = _engine(arguments.engine)
    except FarmError:
        if insists:
            raise
        return
    load_bundled(folder, cudas, engine, told)


def load_bundled(folder: Path, cudas: Sequence[str], engine: Engine, told: Narrator) -> None:
    """Load the images of these CUDAs (all when there is none) from the bundle in ``folder``."""
    from ci.pipeline.bundle import load_images

    load_images(folder.absolute(), cudas, engine, told)
