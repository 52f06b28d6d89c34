"""``python -m ci VERB``: the one place that turns an error into an exit code."""

from __future__ import annotations

import json
import signal
import sys
from types import FrameType

from ci.cli import run_verb
from ci.errors import FarmError, InterruptedRunError
from ci.report.console import make_console, print_error


def _terminated(_number: int, _frame: FrameType | None) -> None:
    """A supervisor's SIGTERM ends a run as Ctrl-C does: children first, then exit code 130."""
    raise KeyboardInterrupt


def main(argv: list[str]) -> int:
    """Run a verb; print an error where it belongs; return the exit code of ``ci.errors``."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        return run_verb(argv)
    except FarmError as error:
        caught = error
    except KeyboardInterrupt:
        caught = InterruptedRunError(
            "interrupted",
            cause="Ctrl-C, or a supervisor's signal",
            next_step="run the same command again: what was finished is in the cache",
        )
    if "--json" in argv:
        print(json.dumps({"error": caught.as_dict()}, indent=1))
    print_error(make_console(stderr=True), caught)
    return caught.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
