"""Checks the shape of a TOML file against its JSON schema, in words for people: ``matrix.toml`` here, and
``docker/pins.toml``.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

SCHEMA_FILE = Path(__file__).with_name("matrix.schema.json")

_TYPE_NAMES = {"object": "a table", "array": "a list", "string": "a text in quotes"}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and where: keys and list indices from the root of the file."""

    path: tuple[str | int, ...]
    text: str


def shape_problems(
    data: Mapping[str, object], schema_file: Path = SCHEMA_FILE
) -> tuple[Problem, ...]:
    """Unknown and missing keys, wrong types, values of a wrong form; empty if there are none."""
    validator = Draft202012Validator(json.loads(schema_file.read_text(encoding="utf-8")))
    found = (problem for error in validator.iter_errors(data) for problem in _in_words(error))
    return tuple(dict.fromkeys(found))  # one error per missing key lists all missing keys


def _in_words(error: ValidationError) -> Iterator[Problem]:
    path = tuple(error.absolute_path)
    instance: Any = error.instance
    expected: Any = error.validator_value
    schema: Mapping[str, Any] = error.schema if isinstance(error.schema, Mapping) else {}
    if error.validator == "additionalProperties":
        yield from _unknown_keys(path, instance, schema)
    elif error.validator == "required":
        for key in expected:
            if key not in instance:
                yield Problem((*path, key), _missing(key))
    elif "propertyNames" in error.absolute_schema_path:
        reason = f"the name {instance!r} must be {schema['description']}"
        yield Problem((*path, instance), reason)
    elif error.validator == "type":
        yield Problem(path, _wrong_type(instance, expected))
    elif error.validator in ("minItems", "minProperties"):
        yield Problem(path, "is empty; it needs at least one entry")
    else:
        yield Problem(path, f"{instance!r} must be {schema.get('description', '')}")


def _unknown_keys(
    path: tuple[str | int, ...], instance: Mapping[str, object], schema: Mapping[str, Any]
) -> Iterator[Problem]:
    known = list(schema["properties"])
    for key in instance:
        if key not in known:
            yield Problem((*path, key), f"unknown key {key!r}; {suggest(key, known)}")


def suggest(value: str, known: list[str]) -> str:
    """``did you mean …`` with the closest spelling, else all known values."""
    close = difflib.get_close_matches(value, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known) or 'none'}"


def _missing(key: str) -> str:
    if key == "reason":
        return "is missing: every exclude says why, so that the matrix can print it"
    return "is missing"


def _wrong_type(instance: object, wanted: str) -> str:
    return f"must be {_TYPE_NAMES[wanted]}, not {instance!r}"
