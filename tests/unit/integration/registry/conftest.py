"""A scratch repository, as far as the registry rules look at one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ci.findings import Finding
from ci.integration.registry_rules import registry_findings
from ci.integration.registry_rules.facts import RegistryFacts, gather
from ci.registry import REPOSITORY, EcosystemLibrary


@dataclass
class Scratch:
    """A repository root with the real matrix; sources, tests and declarations are written into it."""

    root: Path

    def write(self, place: str, text: str) -> Path:
        path = self.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return path

    def source(self, library: str, files: dict[str, str]) -> Path:
        """The folder of a library's sources, with ``files`` by name."""
        for name, text in files.items():
            self.write(f"sources/{library}/{name}", text)
        return self.root / "sources" / library

    def facts(self, *libraries: EcosystemLibrary, **options: Any) -> RegistryFacts:
        """The facts; a library without sources here gets an empty folder, so that git is not asked."""
        folders = {item.name: self.root / "sources" / item.name for item in libraries}
        return gather(libraries, folders, self.root, **options)

    def findings(
        self, rule: ModuleType, *libraries: EcosystemLibrary, **options: Any
    ) -> list[Finding]:
        """What one rule says; the other rules run as well, and must not crash."""
        facts = self.facts(*libraries, **options)
        registry_findings(facts)
        return list(rule.check(facts))


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    shutil.copy(REPOSITORY / "matrix.toml", tmp_path)
    return Scratch(tmp_path)


@pytest.fixture
def only(scratch: Scratch) -> Callable[..., Finding]:
    """The one finding of a rule; fails when there is another number of them."""

    def one(rule: ModuleType, *libraries: EcosystemLibrary, **options: Any) -> Finding:
        found = scratch.findings(rule, *libraries, **options)
        assert len(found) == 1, [item.text for item in found]
        return found[0]

    return one
