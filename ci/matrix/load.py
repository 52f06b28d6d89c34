"""``matrix.toml`` → :class:`MatrixFile`, or one error that lists everything wrong with the file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ci.errors import ConfigError
from ci.matrix import rules
from ci.matrix.model import (
    CapabilitySet,
    CudaEntry,
    Exclude,
    MatrixFile,
    PaddleRequirement,
    Tier,
    version_key,
)
from ci.matrix.places import index_lines, line_of, spell
from ci.matrix.schema import Problem, shape_problems

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def load(path: Path) -> MatrixFile:
    """Read and check the file. :class:`ConfigError` holds one line per problem, with its place."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {path}: {error}",
            cause="the matrix is declared in matrix.toml at the root of the repository",
            next_step=f"restore it: git checkout -- {path.name}",
        ) from error
    return parse(text, path.name)


def parse(text: str, name: str = "matrix.toml") -> MatrixFile:
    """Check a text; ``name`` is the file to name in messages. Errors as in :func:`load`."""
    data = toml_data(text, name, "matrix")
    shape = shape_problems(data)
    values = rules.rule_problems(data, shape)
    if shape or values:
        raise all_problems(text, name, (*shape, *values), "matrix")
    return _build(data)


def toml_data(text: str, name: str, verb: str) -> dict[str, Any]:
    """The values of a TOML text; :class:`ConfigError` names the file, the fault and the verb to run after."""
    try:
        data: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{name} is not valid TOML: {error}",
            cause="a bracket, a quote or a comma is missing near that place",
            next_step=f"mend it, then run `python -m ci {verb}`",
        ) from error
    return data


def all_problems(text: str, name: str, problems: Sequence[Problem], verb: str) -> ConfigError:
    """One error for everything wrong with a TOML text, each with its line; ``verb`` checks it again."""
    lines = index_lines(text)
    placed = [(line_of(lines, problem.path), problem) for problem in problems]
    placed.sort(key=lambda item: item[0] or 0)
    count = "1 problem" if len(placed) == 1 else f"{len(placed)} problems"
    return ConfigError(
        f"{name} has {count}",
        cause="the lines below say what is wrong with which value",
        next_step=f"mend them, then run `python -m ci {verb}`",
        details=[
            f"{name}:{line}: {_sentence(problem)}" if line else f"{name}: {_sentence(problem)}"
            for line, problem in placed
        ],
    )


def _sentence(problem: Problem) -> str:
    return f"{spell(problem.path)}: {problem.text}"


def _build(data: rules.Raw) -> MatrixFile:
    """Frozen values of a file that has passed all checks."""
    sets, tiers = rules.table(data, "sets"), rules.table(data, "tiers")
    cudas = [_cuda_entry(data, entry) for _, entry in rules.tables(data, "cuda")]
    pythons = [python for _, python in rules.texts(data, "pythons")]
    return MatrixFile(
        cudas=tuple(sorted(cudas, key=lambda entry: version_key(entry.version))),
        pythons=tuple(sorted(pythons, key=version_key)),
        sets=tuple(
            CapabilitySet(name, tuple(sorted(rules.known_capabilities(sets, name))))
            for name in sets
        ),
        excludes=tuple(
            Exclude(rules.read_match(entry), rules.text(entry, "reason"))
            for _, entry in rules.tables(data, "exclude")
        ),
        tiers=tuple(_tier(name, rules.table(tiers, name)) for name in tiers),
    )


def _cuda_entry(data: rules.Raw, entry: rules.Raw) -> CudaEntry:
    paddle = rules.table(data, "paddle")
    return CudaEntry(
        version=rules.text(entry, "version"),
        image=rules.text(entry, "image"),
        capabilities=tuple(sorted(rules.known_capabilities(entry, "capabilities"))),
        paddle=PaddleRequirement(
            gpu=rules.text(entry, "paddle_gpu") or rules.text(paddle, "gpu"),
            index=rules.text(entry, "paddle_index"),
            cpu=rules.text(paddle, "cpu"),
        ),
    )


def _tier(name: str, entry: rules.Raw) -> Tier:
    match = rules.read_match(entry, default_sets=("",))
    return Tier(name, rules.text(entry, "about"), match)
