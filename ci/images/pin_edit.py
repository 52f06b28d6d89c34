"""New digests into ``docker/pins.toml``: what changes, and the file's text with nothing else touched."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from ci.errors import ConfigError
from ci.images.pins import ImagePin, parse_pins

_OWN_LINE = re.compile(r"\s*(?:digest|source)\s*\.|\s*seen\s*=")


@dataclass(frozen=True)
class Change:
    """One digest that differs: ``old`` or ``new`` is empty where there was or is none."""

    name: str
    key: str
    old: str
    new: str

    @property
    def text(self) -> str:
        """The change as one line."""
        return f"{self.name} {self.key}: {self.old or 'absent'} -> {self.new or 'absent'}"


def changes(pin: ImagePin, found: Mapping[str, str]) -> tuple[Change, ...]:
    """What ``found`` (key to digest) changes of a pin's digests, all of which it replaces."""
    keys = dict.fromkeys((*pin.digests, *found))
    pairs = ((key, pin.digests.get(key, ""), found.get(key, "")) for key in keys)
    return tuple(Change(pin.name, key, old, new) for key, old, new in pairs if old != new)


def edited(text: str, name: str, found: Mapping[str, str], source: str, day: date) -> str:
    """The file's text with the digests of one image replaced; comments and other lines stay.

    ``found`` becomes all that the image's ``digest`` holds; a digest that it had before keeps its source,
    also under another key. Raises :class:`~ci.errors.ConfigError` when the table is not written one key a
    line, as this function writes it.
    """
    pins = parse_pins(text)
    before = next(pin for pin in pins.images if pin.name == name)
    known = {digest: before.sources[key] for key, digest in before.digests.items()}
    lines = text.splitlines()
    start, end = _table_span(lines, name)
    own = [f'digest.{_key(key)} = "{digest}"' for key, digest in found.items()]
    own += [f'source.{_key(key)} = "{known.get(digest, source)}"' for key, digest in found.items()]
    own += [f'seen = "{day}"']
    kept = [line for line in lines[start:end] if not _OWN_LINE.match(line)]
    new = "\n".join([*lines[:start], *kept, *own, *lines[end:], ""])
    if not _only_changed(new, name, found, pins.images):
        raise ConfigError(
            f"images.{name} of pins.toml cannot be edited line by line",
            cause="its table is not written as `[images.NAME]` with one `digest.KEY = …` a line",
            next_step="write it so, then run the same command again",
        )
    return new


def save(text: str, path: Path) -> None:
    """Write the file whole or not at all."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(text, "utf-8")
    os.replace(scratch, path)


def _only_changed(
    new: str, name: str, found: Mapping[str, str], before: Sequence[ImagePin]
) -> bool:
    try:
        after = parse_pins(new).images
    except ConfigError:
        return False
    others = [pin for pin in before if pin.name != name]
    return [pin for pin in after if pin.name != name] == others and any(
        pin.name == name and dict(pin.digests) == dict(found) for pin in after
    )


def _key(key: str) -> str:
    return f'"{key}"' if "/" in key else key


def _table_span(lines: Sequence[str], name: str) -> tuple[int, int]:
    """First line of an image's table, and the line after its last key: what follows belongs to the next."""
    header = re.compile(rf"\s*\[\s*images\s*\.\s*[\"']?{re.escape(name)}[\"']?\s*\]")
    start = next((number for number, line in enumerate(lines) if header.match(line)), len(lines))
    end = min(start + 1, len(lines))
    while end < len(lines) and not lines[end].lstrip().startswith("["):
        end += 1
    while end > start + 1 and not lines[end - 1].split("#", 1)[0].strip():
        end -= 1
    return start, end
