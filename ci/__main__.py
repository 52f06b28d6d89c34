"""``python -m ci VERB``: the one place that turns an error into an exit code."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from ci.errors import ConfigError, FarmError, InterruptedRunError, from_os_error

SELDOM = (100_000, 50, 50)
"""When the collector looks: starting makes many objects, and nearly all of them stay."""


def _terminated(_number: int, _frame: FrameType | None) -> None:
    """A supervisor's SIGTERM ends a run as Ctrl-C does: children first, then exit code 130."""
    raise KeyboardInterrupt


def main(argv: list[str]) -> int:
    """Run a verb; print an error where it belongs; return the exit code of ``ci.errors``."""
    signal.signal(signal.SIGTERM, _terminated)
    gc.set_threshold(*SELDOM)
    try:
        return _run_verb(argv)
    except FarmError as error:
        caught = error
    except OSError as error:
        caught = from_os_error(error)
    except KeyboardInterrupt:
        caught = InterruptedRunError(
            "interrupted",
            cause="Ctrl-C, or a supervisor's signal",
            next_step="run the same command again: what was finished is in the cache",
        )
    _tell(caught, as_json="--json" in argv)
    return caught.exit_code


def _run_verb(argv: list[str]) -> int:
    """Import the verbs and run one: the registry, which users edit, is read on that way."""
    try:
        from ci.cli import run_verb
    except SyntaxError as error:
        raise ConfigError(
            f"{error.filename}:{error.lineno}: {error.msg}",
            cause="this file was edited, and is not Python any more",
            next_step=f"python -m py_compile {error.filename}",
        ) from error
    return run_verb(argv)


def _tell(error: FarmError, *, as_json: bool) -> None:
    from ci.report.console import make_console, print_error

    if as_json:
        print(json.dumps({"error": error.as_dict()}, indent=1))
    print_error(make_console(stderr=True), error)


def _leave(code: int) -> NoReturn:
    """End the process with ``code`` without taking everything in memory apart first."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # whoever read the output is gone
        code = code or 1
    os._exit(code)


if __name__ == "__main__":
    _leave(main(sys.argv[1:]))
