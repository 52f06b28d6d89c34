"""``tests/test_configs.yaml``: how many GPUs a multi-card test gets.

The format is PaddleFleet's: a list ``tests`` of entries with ``test_case`` (patterns) and ``products``
(each with ``num_gpus``; the first one counts). Entries are tried in the order of the file and the first
match wins. A pattern matches as in bash's ``[[ path == pattern ]]``, so ``*`` crosses ``/``
(PaddleFleet's ``ci/multi-card_test.sh``); what bash reads in another way than :mod:`fnmatch` (groups such
as ``@(a|b)``, ``[^a]``, a backslash) is refused. A test that nothing matches gets 8 GPUs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from ci.errors import ConfigError

TABLE = "tests/test_configs.yaml"
_OF_BASH_ALONE = re.compile(r"[@?*+!]\(|\[\^|\[\[|\\")
DEFAULT_GPUS = 8


@dataclass(frozen=True)
class TableEntry:
    """One pattern, the GPUs of its first product, and the line of its entry (from 1)."""

    pattern: str
    num_gpus: int
    line: int

    def matches(self, path: str) -> bool:
        """True when the whole of ``path`` (relative to the repository) fits the pattern."""
        return fnmatchcase(path, self.pattern)


@dataclass(frozen=True)
class TestTable:
    """The entries in the order of the file, which decides."""

    entries: tuple[TableEntry, ...] = ()
    place: str = TABLE

    def find(self, path: str) -> TableEntry | None:
        """The entry that decides for ``path``: the first that matches, or ``None``."""
        return next((entry for entry in self.entries if entry.matches(path)), None)

    def num_gpus(self, path: str) -> int:
        """The GPUs of the test at ``path``, relative to the repository."""
        entry = self.find(path)
        return entry.num_gpus if entry else DEFAULT_GPUS


def read_table(path: Path, place: str = TABLE) -> TestTable:
    """The table in ``path``; a file that is not there has no entry.

    Raises :class:`~ci.errors.ConfigError` with every entry that is not of the format.
    """
    return parse_table(path.read_text("utf-8"), place) if path.is_file() else TestTable((), place)


def parse_table(text: str, place: str = TABLE) -> TestTable:
    """The table of a text; errors as in :func:`read_table`."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{place} is no YAML: {' '.join(str(error).split())}",
            cause="a bracket, a colon or the indentation is wrong near that place",
            next_step=f"mend it, then: python -c 'import yaml; yaml.safe_load(open(\"{place}\"))'",
        ) from error
    tests = [] if data is None else data.get("tests", 0) if isinstance(data, dict) else 0
    tests = [] if tests is None else tests
    problems = [] if isinstance(tests, list) else ["there is no list `tests`"]
    entries: list[TableEntry] = []
    lines = _entry_lines(root)
    for at, entry in enumerate(tests if isinstance(tests, list) else ()):
        line = lines[at]
        problem = _entry_problem(entry)
        if problem:
            problems.append(f"line {line}: {problem}")
            continue
        gpus = entry["products"][0]["num_gpus"]
        entries += [TableEntry(pattern, gpus, line) for pattern in entry["test_case"]]
    if problems:
        raise ConfigError(
            f"{place}: {problems[0]}",
            cause="an entry is {test_case: [PATTERN, ...], products: [{num_gpus: N}]}",
            next_step=f"mend {place}",
            details=problems if len(problems) > 1 else (),
        )
    return TestTable(tuple(entries), place)


def _entry_lines(root: yaml.Node | None) -> list[int]:
    """The line of each entry of ``tests``, from 1."""
    if not isinstance(root, yaml.MappingNode):
        return []
    return [
        item.start_mark.line + 1
        for key, value in root.value
        if key.value == "tests" and isinstance(value, yaml.SequenceNode)
        for item in value.value
    ]


def _entry_problem(entry: object) -> str:
    if not isinstance(entry, dict):
        return f"not an entry: {entry!r}"
    patterns, products = entry.get("test_case"), entry.get("products")
    if not isinstance(patterns, list) or not all(isinstance(item, str) for item in patterns):
        return f"`test_case` is no list of patterns: {patterns!r}"
    if not patterns:
        return "`test_case` is empty"
    strange = next(filter(_OF_BASH_ALONE.search, patterns), "")
    if strange:
        return f"{strange!r} is more than `*`, `?`, `[abc]` and `[!abc]`"
    first = products[0] if isinstance(products, list) and products else None
    gpus = first.get("num_gpus") if isinstance(first, dict) else None
    if not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 1:
        return f"`products` gives no number of GPUs: {products!r}"
    return ""
