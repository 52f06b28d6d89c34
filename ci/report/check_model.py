"""The report of a check as values: what was checked, what was found, what is known, what was told apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from ci.findings import Finding
from ci.integration.rule import Rule

SCHEMA = 1


@dataclass(frozen=True)
class KnownFinding:
    """A finding that the baseline holds, with the reason written there."""

    finding: Finding
    reason: str


def by_place(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings as people read them: file by file, from top to bottom."""
    return tuple(
        sorted(findings, key=lambda item: (item.place, item.line, item.column, item.rule, item))
    )


@dataclass(frozen=True)
class LibraryCheck:
    """One checked library, or what was to be one.

    ``source`` says where its sources came from. ``why_not`` says why nothing was read, ``run_time`` why
    nothing was executed; both are empty where it was. ``told_apart`` counts, by word, what looks like a
    fault and is none. ``not_exercised`` are public functions that the run-time part did not call.
    ``in_repository`` is false where places are relative to sources that are no part of the repository.
    """

    name: str
    source: str
    modules: int = 0
    findings: tuple[Finding, ...] = ()
    known: tuple[KnownFinding, ...] = ()
    told_apart: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    why_not: str = ""
    next_step: str = ""
    run_time: str = ""
    not_exercised: tuple[str, ...] = ()
    in_repository: bool = True


@dataclass(frozen=True)
class CheckReport:
    """A whole check. ``rules`` are those that ran; ``stale`` are findings about the baseline itself."""

    libraries: tuple[LibraryCheck, ...]
    rules: tuple[Rule, ...]
    stale: tuple[Finding, ...] = ()
    seconds: float = 0.0
    next_command: str = ""

    @property
    def failing(self) -> tuple[Finding, ...]:
        """The errors and warnings that are left, those about the baseline last."""
        found = (item for library in self.libraries for item in library.findings)
        return tuple(item for item in (*found, *self.stale) if item.level != "note")

    @property
    def exit_code(self) -> int:
        """1 when an error or a warning is left, else 0; notes fail nothing."""
        return 1 if self.failing else 0

    def as_dict(self) -> dict[str, object]:
        """The report as JSON-ready values."""
        return {"schema": SCHEMA, "exit_code": self.exit_code, **asdict(self)}
