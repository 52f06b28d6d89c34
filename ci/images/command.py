"""Commands of an engine that make or look at images; its failures in the farm's words."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from ci.errors import FarmError, InfrastructureError, ToolchainError
from ci.executors.engine_errors import DISK_FULL, PULL, engine_error, trouble_of
from ci.executors.model import EngineFacts
from ci.proc import Command, Completed, run

Say = Callable[[str], None]
"""Hears what happens, a line at a time."""

_SECONDS = 3 * 3600.0
_SHOWN_LINES = 12
# Classic builder and podman: "Step 7/12 : RUN …", "STEP 5/9: RUN …"; BuildKit: "#9 [tools 4/5] RUN …".
_STEP = re.compile(r"^(?:step (\d+/\d+) ?: (.+)|#\d+ (\[.+?\d+/\d+\]) (.+))$", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OWN_ERROR = re.compile(r"^(?:#\d+ [\d.]+ )?error: (.+)$")


def build_environment(facts: EngineFacts, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for ``docker build``: the classic builder where this client has no buildx.

    Dropped are those whose values a builder would hand to the image as build arguments (proxies).
    """
    kept = {name: value for name, value in environ.items() if not name.lower().endswith("_proxy")}
    if facts.name == "docker" and not facts.has_buildx:
        kept["DOCKER_BUILDKIT"] = "0"
    return kept


def engine_command(
    argv: tuple[str, ...], log: Path, what: str, env: Mapping[str, str] | None = None
) -> Completed:
    """Run a command of the engine. ``what`` names it in the error, which tells the failing step."""
    done = run(Command(argv, env=os.environ if env is None else env, timeout=_SECONDS), log=log)
    if not done.ok:
        raise failure(done, what, log)
    return done


def failure(done: Completed, what: str, log: Path) -> FarmError:
    """The error for a build that failed.

    A script of ours that says what is missing (``error: …``) is a missing tool; anything else comes from the
    surroundings: the network, the disk, the engine.
    """
    text = _COLOUR.sub("", log.read_text("utf-8", "replace") if log.exists() else done.output)
    step, said = failing_step(text), own_error(text)
    message = f"{what} failed{f' at {step}' if step else ''}"
    details = text.splitlines()[1:][-_SHOWN_LINES:]
    if said:
        return ToolchainError(
            f"{message}: {said}",
            cause="the base lacks something that the farm's images need",
            next_step=f"less {log}",
            details=details,
        )
    # A base is fetched where the step is FROM; anywhere else the same words are a program's own.
    table = PULL if not step or "(FROM " in step else (DISK_FULL,)
    if trouble_of("\n".join(details), table):
        return engine_error(message, "\n".join(details), table, Path(done.command.argv[0]).name)
    return InfrastructureError(
        message,
        cause="the engine, its network or its disk; the last lines of its log are above",
        next_step=f"less {log}",
        details=details,
    )


def failing_step(text: str) -> str:
    """The last step that the log of a build names, as ``step 7/12 (RUN …)``; empty when there is none."""
    found = ""
    for line in text.splitlines():
        match = _STEP.match(line.strip())
        if match:
            number, command = match[1] or match[3], match[2] or match[4]
            found = f"step {number} ({_shortened(command)})"
    return found


def own_error(text: str) -> str:
    """What one of our scripts said before it gave up, empty when none did."""
    found = [match[1] for line in text.splitlines() if (match := _OWN_ERROR.match(line.strip()))]
    return found[-1] if found else ""


def _shortened(text: str, width: int = 100) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
