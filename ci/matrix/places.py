"""Where a value of a TOML file is written: the parsers of the standard library do not tell.

The text is read line by line; a line that is not a table header or a key on its own is skipped, so
the answer is the line of the nearest key above the value. It is for messages only.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Path = tuple[str | int, ...]
"""Keys and list indices from the root of the file: ``("cuda", 1, "capabilities", 0)``."""

_HEADER = re.compile(r"\s*(\[\[?[^\[\]]+\]\]?)\s*(#.*)?")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")


def spell(path: Sequence[str | int]) -> str:
    """The path as people write it: ``cuda[1].capabilities[0]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".") or "the file"


def line_of(lines: Mapping[Path, int], path: Sequence[str | int]) -> int | None:
    """Line (from 1) of the value, else of the closest thing around it; ``None`` for the root."""
    for length in range(len(path), 0, -1):
        line = lines.get(tuple(path[:length]))
        if line is not None:
            return line
    return None


def index_lines(text: str) -> dict[Path, int]:
    """Line (from 1) of each table header and of each key in a TOML text."""
    lines: dict[Path, int] = {}
    tables: dict[Path, int] = {}
    current: Path = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if (header := _HEADER.fullmatch(line)) is not None:
            current = _table_path(header[1], tables)
            lines.setdefault(current, number)
        elif (key := _KEY.match(line)) is not None:
            lines.setdefault(current + _keys(f"{key[1]} = 0"), number)
    return lines


def _table_path(header: str, tables: dict[Path, int]) -> Path:
    """Path of a header; each ``[[name]]`` is the next item of its list."""
    keys = _keys(header)
    if not header.startswith("[["):
        return keys
    tables[keys] = tables.get(keys, -1) + 1
    return (*keys, tables[keys])


def _keys(fragment: str) -> Path:
    """Keys of one header or one assignment, read by the TOML parser itself."""
    try:
        value: object = tomllib.loads(fragment)
    except tomllib.TOMLDecodeError:
        return ()
    keys: list[str | int] = []
    while True:
        if isinstance(value, list):
            value = value[0]
        if not isinstance(value, dict) or not value:
            return tuple(keys)
        key, value = next(iter(value.items()))
        keys.append(key)
