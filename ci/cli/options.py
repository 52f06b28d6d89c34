"""The parser, and the options that several verbs share."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ci.errors import ConfigError
from ci.executors.base import EXECUTORS
from ci.executors.model import ContainerOptions
from ci.graph.machine import look
from ci.report.console import make_console
from ci.report.progress import LiveNarrator, Narrator, PlainNarrator


def default_cache_dir() -> Path:
    """``PADDLEFLEET_FARM_CACHE``, else ``paddlefleet-farm`` in the user's cache folder (XDG)."""
    named = os.environ.get("PADDLEFLEET_FARM_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "paddlefleet-farm"


def comma_list(text: str) -> tuple[str, ...]:
    """An option's value as a list."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise argparse.ArgumentTypeError("an empty list; leave the option out to take the default")
    return found


def not_empty(text: str) -> str:
    """An option's value that must not be empty."""
    if not text.strip():
        raise argparse.ArgumentTypeError("an empty text; leave the option out to take the default")
    return text


def positive(text: str) -> int:
    """An option's value as a positive number."""
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


def json_option(parser: argparse.ArgumentParser) -> None:
    """``--json``."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def cache_option(parser: argparse.ArgumentParser) -> None:
    """``--cache-dir``."""
    parser.add_argument(
        "--cache-dir",
        type=Path,
        default=default_cache_dir(),
        help="toolchains, environments, sources and results (default: %(default)s)",
    )


def executor_options(parser: argparse.ArgumentParser) -> None:
    """``--executor``, and what containers are started with."""
    add = parser.add_argument
    add("--executor", default="auto", help=f"where steps run: {', '.join(EXECUTORS)}")
    add("--engine", default="", help="docker or podman (default: the first that answers)")
    add("--image", default="", metavar="REF", help="another image than the farm's own for its CUDA")
    add("--network", default="", help="the network of containers (docker run --network)")
    add("--cpus", type=_cpu_limit, help="CPUs that a container may use, such as 4 or 1.5")
    add("--memory", type=memory_size, help="memory that a container may use, such as 16g")


def container_options(arguments: argparse.Namespace) -> ContainerOptions:
    """What the command line says of containers."""
    return ContainerOptions(
        engine=arguments.engine,
        image=arguments.image,
        network=arguments.network,
        cpus=arguments.cpus,
        memory=arguments.memory,
        devices=getattr(arguments, "devices", ()),
    )


def _cpu_limit(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of CPUs")
    return value


_UNITS = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def memory_size(text: str) -> int:
    """An option's value as bytes: ``16g``, ``512MiB``; powers of 1024."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)(?:i?b)?", text.strip().lower())
    if match is None or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount of memory, such as 16g")
    return int(float(match[1]) * _UNITS[match[2]])


def set_options(parser: argparse.ArgumentParser) -> None:
    """``--set`` and ``--declare``."""
    parser.add_argument("--set", dest="library_set", default="fleet", help="fleet or templates")
    parser.add_argument(
        "--declare",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file with further LIBRARIES, to try a library before it is added",
    )


def cpus() -> int:
    """The CPUs that this process may use: its affinity, and the limit of its control group."""
    return int(look().cpus.value)


@contextmanager
def narrator() -> Iterator[Narrator]:
    """Live progress on a terminal, plain lines elsewhere; both on stderr."""
    console = make_console(stderr=True)
    if console.is_terminal and not os.environ.get("CI"):
        with LiveNarrator(console) as live:
            yield live
    else:
        yield PlainNarrator(console)


def print_json(document: object) -> None:
    """Print a result to stdout."""
    print(json.dumps(document, indent=1))


def store_options(parser: argparse.ArgumentParser) -> None:
    """Where results and compilations are kept beside this machine, and how much of them."""
    add = parser.add_argument
    add(
        "--remote-cache",
        default=os.environ.get("PADDLEFLEET_FARM_REMOTE", ""),
        metavar="URL",
        help="a shared store of results: a folder, s3://…, gs://… (PADDLEFLEET_FARM_REMOTE)",
    )
    add(
        "--remote-cache-mode",
        default=os.environ.get("PADDLEFLEET_FARM_REMOTE_MODE", "write"),
        choices=("read", "write"),
        help="read: take results and give none, for runs that are not trusted (PADDLEFLEET_FARM_REMOTE_MODE)",
    )
    add(
        "--cache-limit",
        type=memory_size,
        default=os.environ.get("PADDLEFLEET_FARM_CACHE_LIMIT") or None,
        metavar="SIZE",
        help="the most that kept results may take, such as 20g (PADDLEFLEET_FARM_CACHE_LIMIT)",
    )
    add(
        "--compiler-cache",
        default=os.environ.get("PADDLEFLEET_FARM_COMPILER_CACHE", "auto"),
        choices=("auto", "sccache", "ccache", "none"),
        help="what compilers run through (default: %(default)s)",
    )
