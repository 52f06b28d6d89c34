"""The entry of a multi-card test in ``tests/test_configs.yaml``, put in and taken out as text.

Comments, order and layout of the file are its authors': nothing is dumped anew. The first match wins, so
a new entry stands before a pattern that would take its test, and at the end otherwise.
"""

from __future__ import annotations

from ci.integration.test_table import TABLE, parse_table

_NEW = (
    "# How many GPUs a multi-card test gets: the first entry that matches decides, 8 without one.\n"
    "tests:\n"
)


def entry_text(test: str, gpus: int, indent: str = "  ") -> str:
    """The entry of one test."""
    lines = (f"- test_case: [{test}]", "  products:", f"    - num_gpus: {gpus}")
    return "".join(f"{indent}{line}\n" for line in lines)


def with_entry(text: str | None, test: str, gpus: int) -> str:
    """The text of the table (``None``: there is no file) with an entry for ``test``.

    Raises :class:`~ci.errors.ConfigError` for a text that is no such table.
    """
    if text is None:
        return _NEW + entry_text(test, gpus)
    table = parse_table(text, TABLE)
    found = table.find(test)
    lines = text.splitlines(keepends=True)
    if found is None:
        gap = "" if text.endswith("\n") or not text else "\n"
        return text + gap + entry_text(test, gpus, _indent(lines))
    at = found.line - 1
    return "".join((*lines[:at], entry_text(test, gpus, _indent(lines)), *lines[at:]))


def without_entry(text: str, test: str, gpus: int) -> str | None:
    """The text without the entry that :func:`with_entry` made; ``None`` when nothing is left of the file.

    A text in which there is no such entry comes back as it is.
    """
    entry = entry_text(test, gpus, _indent(text.splitlines()))
    shorter = text.replace(entry, "", 1)
    return None if shorter == _NEW else shorter


def names(text: str, test: str) -> bool:
    """True when some entry is for just this test, whatever it says."""
    return any(entry.pattern == test for entry in parse_table(text, TABLE).entries)


def _indent(lines: list[str]) -> str:
    """The indentation of the entries that are there."""
    for line in lines:
        if line.lstrip().startswith("- test_case:"):
            return line[: len(line) - len(line.lstrip())]
    return "  "
