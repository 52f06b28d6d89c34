"""Finds the container engine of this machine: docker or podman, by its command line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from ci.errors import ConfigError, FarmError, InfrastructureError, ToolchainError
from ci.executors.cli_engine import CliEngine
from ci.executors.engine_facts import ask_facts

ENGINES = ("docker", "podman")


def find_engine(name: str, environ: Mapping[str, str]) -> CliEngine:
    """The engine ``name``; for an empty name the first that answers, docker before podman.

    Every program of that name on ``PATH`` is asked, since a machine may hold an old one and a new one.
    Raises :class:`~ci.errors.ConfigError` for an unknown name, :class:`~ci.errors.ToolchainError` when
    there is no program, and :class:`~ci.errors.InfrastructureError` when none of them reaches an engine;
    ``details`` then name all of them.
    """
    if name and name not in ENGINES:
        raise ConfigError(f"unknown container engine {name!r}", next_step="--engine docker|podman")
    problems: list[tuple[Path, FarmError]] = []
    for program in _programs((name,) if name else ENGINES, environ):
        found = _ask(program, environ)
        if isinstance(found, CliEngine):
            return found
        problems.append((program, found))
    if not problems:
        raise ToolchainError(
            f"there is no {name or 'docker or podman'} on this machine",
            cause="no program of that name is on PATH",
            next_step="install docker (https://docs.docker.com/engine/install) or podman, "
            "or take --executor host",
        )
    raise _worst(problems)


def _ask(program: Path, environ: Mapping[str, str]) -> CliEngine | FarmError:
    try:
        return CliEngine(ask_facts(program, environ), environ)
    except FarmError as error:
        return error


def _programs(names: tuple[str, ...], environ: Mapping[str, str]) -> Iterator[Path]:
    """Programs of these names on ``PATH``, in order, each file once."""
    seen: set[str] = set()
    folders = environ.get("PATH", "").split(os.pathsep)
    for path in (Path(folder, name) for name in names for folder in folders if folder):
        real = os.path.realpath(path)
        if real not in seen and path.is_absolute() and path.is_file() and os.access(path, os.X_OK):
            seen.add(real)
            yield path


def _worst(problems: list[tuple[Path, FarmError]]) -> FarmError:
    """The error of the first engine that is there and does not answer, with what is wrong with the others."""
    chosen = next((e for _, e in problems if isinstance(e, InfrastructureError)), problems[0][1])
    lines = [
        line
        for program, error in problems
        for line in (f"{program}: {error.message}: {error.cause}", *error.details)
    ]
    return type(chosen)(
        chosen.message, cause=chosen.cause, next_step=chosen.next_step, details=lines
    )
