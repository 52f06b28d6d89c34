"""The options of the verbs ``integrate`` and ``remove``, and the request that they make."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ci.integration.scaffold.registry_file import kinds

if TYPE_CHECKING:
    from ci.integration.scaffold.request import IntegrateRequest

ALL_NESTED = "all"


def integrate_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``integrate``."""
    add = parser.add_argument
    add("name", help="the library's name, as in third_party/")
    add("--kind", required=True, metavar="KIND", help=" | ".join(kinds()))
    add("--url", required=True, help="its git repository: any URL, or a folder")
    add("--rev", default="", help="branch, tag or commit to pin (default: the remote's HEAD)")
    add("--module", default="", help="its top-level import name (default: from its sources)")
    _many(
        parser, "--artifact", "SOURCE[:TARGET]", "what its build yields (default: from its sources)"
    )
    _many(parser, "--public-name", "NAME", "what must resolve after loading: NAME or MODULE:NAME")
    _many(parser, "--scope", "PACKAGE", "a package that imports torch while the library is loaded")
    for word in ("cuda", "python", "capability"):
        add(f"--requires-{word}", default="", metavar="CONDITION", help="such as '>=9.0,<10.0'")
    add("--cpu-path", action="store_true", help="it also works where there is no GPU")
    _many(parser, "--build-requires", "REQUIREMENT", "a package that its build needs")
    _many(parser, "--run-requires", "REQUIREMENT", "a package that it needs when it is used")
    add("--availability", default="", metavar="WORD", help="the middle of is_WORD_available()")
    add("--hint", default="", metavar="TEXT", help="what a user does without it")
    _many(parser, "--exercise", "NAME=ARGUMENTS[ -> SHAPE]", "a call that its tests make")
    add("--wrapper", default="", metavar="FILE", help="also make the wrapper for the layers above")
    _many(
        parser,
        "--nested",
        "PATH",
        f"a submodule inside it that its build reads; {ALL_NESTED!r}: all",
    )
    add("--keep", action="store_true", help="leave everything in place when the check fails")


def remove_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``remove``."""
    parser.add_argument("name", help="the library to take out")
    parser.add_argument("--force", action="store_true", help="also when its files were edited")


def _many(parser: argparse.ArgumentParser, option: str, metavar: str, text: str) -> None:
    parser.add_argument(option, action="append", default=[], metavar=metavar, help=text)


def request_of(arguments: argparse.Namespace) -> IntegrateRequest:
    """What the arguments of ``integrate`` ask for."""
    from ci.integration.scaffold.request import Exercise, IntegrateRequest

    nested = tuple(arguments.nested)
    return IntegrateRequest(
        name=arguments.name,
        kind=arguments.kind,
        url=arguments.url,
        revision=arguments.rev,
        module=arguments.module,
        artifacts=tuple(_artifact(text) for text in arguments.artifact),
        public_names=tuple(arguments.public_name),
        scope=tuple(arguments.scope),
        requires_cuda=arguments.requires_cuda,
        requires_python=arguments.requires_python,
        requires_capability=arguments.requires_capability,
        cpu_path=arguments.cpu_path,
        build_requires=tuple(arguments.build_requires),
        run_requires=tuple(arguments.run_requires),
        availability=arguments.availability,
        hint=arguments.hint,
        exercises=tuple(Exercise(text) for text in arguments.exercise),
        wrapper=arguments.wrapper,
        nested=None if not nested else () if ALL_NESTED in nested else nested,
        keep=arguments.keep,
    )


def _artifact(text: str) -> tuple[str, str]:
    source, colon, target = text.partition(":")
    return source, target if colon else source
