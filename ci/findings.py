"""A finding: one fact judged wrong, as a value. Wheel gates and the integration check share it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ci.errors import FindingError

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True, order=True)
class Finding:
    """One fact judged wrong.

    ``rule`` is a short stable name, ``place`` the file or field, ``why`` the fact and the reason it is
    wrong, ``mend`` what to do about it. ``line`` and ``column`` count from 1, as editors do; 0 where
    there is none. ``level``: an error or a warning fails a check, a note does not. ``subject`` is
    what the finding is about, in words that do not change when lines move (a module, a function, a
    requirement): with rule and place it identifies a finding in a baseline.
    """

    rule: str
    place: str
    why: str
    mend: str
    line: int = 0
    column: int = 0
    level: Level = "error"
    library: str = ""
    subject: str = ""

    @property
    def text(self) -> str:
        """The finding as one line of text."""
        place = f"{self.place}:{self.line}" if self.line else self.place
        return f"{self.rule}: {place}: {self.why}; {self.mend}"


def refuse(message: str, findings: Iterable[Finding], *, next_step: str = "") -> None:
    """Raise :class:`~ci.errors.FindingError` with every finding, or return when there is none."""
    found = tuple(findings)
    if not found:
        return
    raise FindingError(
        message,
        cause=found[0].why,
        next_step=next_step or found[0].mend,
        details=[item.text for item in found],
    )
