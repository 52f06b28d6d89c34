"""Small libraries with faults in known places, as texts: what a corpus of seeded faults is made of.

A text holds the files of one library, each after a line ``== PATH``. A fault is marked at the end of the
line that a finding must name, as ``«rule»`` or ``«rule level»``, for two of them ``«rule level 2»``. The
marks are taken out before the files are written, so that they are no comments to the rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci.findings import Finding
from ci.integration.analysis import Analysis
from ci.integration.rules import static_findings
from ci.integration.source_tree import SourceTree, find_packages, locate, read_tree

_MARK = re.compile(r"\s*«([\w-]+)(?: (error|warning|note))?(?: (\d))?»")
Expected = tuple[str, str, int, str]  # rule, place, line, level


@dataclass(frozen=True)
class Seed:
    """One library. ``expected`` are its findings besides the marked ones, ``raw`` files as bytes;
    ``options`` go to ``read_tree`` (``others`` as names); ``packages`` are looked for when none are named.
    """

    name: str
    text: str
    expected: tuple[Expected, ...] = ()
    raw: Mapping[str, bytes] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, str]:
        """The texts of the files by place, without the marks."""
        return {place: _MARK.sub("", text) for place, text in self._marked.items()}

    @property
    def _marked(self) -> dict[str, str]:
        found: dict[str, list[str]] = {}
        lines: list[str] = []
        for line in self.text.strip("\n").split("\n"):
            if line.startswith("== "):
                lines = found[line[3:].strip()] = []
            else:
                lines.append(line)
        return {place: "\n".join(part) + "\n" if part else "" for place, part in found.items()}

    @property
    def findings(self) -> list[Expected]:
        """Every finding that the library must have, sorted."""
        marked = [
            (rule, place, number, level or "error")
            for place, text in self._marked.items()
            for number, line in enumerate(text.split("\n"), 1)
            for rule, level, times in _MARK.findall(line)
            for _ in range(int(times or 1))
        ]
        return sorted([*marked, *self.expected])

    def write(self, root: Path) -> Path:
        """Write the files below ``root``."""
        contents = {place: text.encode() for place, text in self.files.items()}
        for place, content in {**contents, **self.raw}.items():
            path = root / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return root

    def tree(self, root: Path) -> SourceTree:
        """Its files, written below ``root`` and read."""
        self.write(root)
        packages = locate(root, self.packages) if self.packages else find_packages(root)
        options = {**self.options, "others": locate(root, self.options.get("others", ()))}
        return read_tree("library", root, packages, **options)


def shown(findings: tuple[Finding, ...]) -> list[Expected]:
    """Findings as a seed expects them."""
    return sorted((item.rule, item.place, item.line, item.level) for item in findings)


def found_in(seed: Seed, root: Path) -> tuple[Finding, ...]:
    """What the static rules say about a seed."""
    return static_findings(Analysis(seed.tree(root)))
