"""The command line: one parser, and a function per verb that turns arguments into a call.

``nox`` sessions call these verbs; so can anyone. What a verb needs beyond its options is imported when it
runs, so that a quick one stays quick.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from rich.console import Console

from ci.cli.bundle import bundle_verb
from ci.cli.cache import cache_verb
from ci.cli.checks import check_verb
from ci.cli.derived import lock_verb, sync_verb
from ci.cli.explain import explain_verb
from ci.cli.images import images_verb
from ci.cli.options import Parser, default_cache_dir
from ci.cli.pins import pins_verb
from ci.cli.scaffolding import integrate_verb, remove_verb
from ci.cli.shell import shell_verb
from ci.cli.show import libraries_verb, matrix_verb, submodules_verb, toolchain_verb
from ci.cli.stage import stage_verb
from ci.cli.wheels import import_verb, wheel_verb
from ci.errors import ConfigError
from ci.report.console import make_console

__all__ = ["build_parser", "default_cache_dir", "run_verb"]


def build_parser() -> Parser:
    """The parser of ``python -m ci``."""
    parser = Parser(prog="python -m ci", description="The paddlefleet_ops build farm.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)
    matrix_verb(verbs.add_parser("matrix", help="cells: accepted, and rejected with reasons"))
    libraries_verb(verbs.add_parser("libraries", help="declared libraries and their conditions"))
    toolchain_verb(verbs.add_parser("toolchain", help="compilers found, and what each cell uses"))
    submodules_verb(verbs.add_parser("submodules", help="missing, nested or drifted submodules"))
    wheel_verb(verbs.add_parser("wheel", help="build, repair and import-test wheels"))
    import_verb(verbs.add_parser("import", help="run the import suite on a wheel"))
    check_verb(verbs.add_parser("check", help="apply the pre-integration checklist"))
    integrate_verb(
        verbs.add_parser("integrate", help="add a library: declaration, submodule, tests")
    )
    remove_verb(verbs.add_parser("remove", help="take a library out again"))
    sync_verb(verbs.add_parser("sync", help="write the files derived from the declarations"))
    lock_verb(verbs.add_parser("lock", help="write the locks of the farm's environments"))
    images_verb(verbs.add_parser("images", help="build the farm's images, or look at them"))
    bundle_verb(verbs.add_parser("bundle", help="all that cells need, for use without network"))
    cache_verb(verbs.add_parser("cache", help="stored results: stats, verify, gc, why"))
    explain_verb(verbs.add_parser("explain", help="why a step would run, or not"))
    pins_verb(verbs.add_parser("pins", help="images by digest: check them, or ask the registries"))
    shell_verb(verbs.add_parser("shell", help="a shell, or a command, in a cell's environment"))
    stage_verb(
        verbs.add_parser("stage", help="one stage of a cell; the farm calls it in containers")
    )
    return parser


def run_verb(argv: Sequence[str]) -> int:
    """Parse ``argv`` and run its verb. Returns the exit code; raises :class:`~ci.errors.FarmError`.

    What follows ``--`` is no option of the farm: the verb finds it as ``command``.
    """
    own, command = _split(argv)
    arguments = build_parser().parse_args(own, argparse.Namespace(command=command))
    if command and not getattr(arguments, "takes_command", False):
        raise ConfigError(
            f"{arguments.verb} takes no command after --",
            cause="only shell runs one",
            next_step=f"python -m ci {arguments.verb} --help",
        )
    chosen: Callable[[argparse.Namespace, Console], int] = arguments.run
    sys.stdout.flush()
    return chosen(arguments, make_console())


def _split(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    if "--" not in argv:
        return list(argv), ()
    index = list(argv).index("--")
    return list(argv[:index]), tuple(argv[index + 1 :])
