"""A finding: one fact judged wrong, as a value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ci.errors import FindingError


@dataclass(frozen=True, order=True)
class Finding:
    """One fact judged wrong.

    ``rule`` is a short stable name, ``place`` the file or field, ``why`` the fact and the reason it is
    wrong, ``mend`` what to do about it.
    """

    rule: str
    place: str
    why: str
    mend: str

    @property
    def line(self) -> str:
        """The finding as one line of text."""
        return f"{self.rule}: {self.place}: {self.why}; {self.mend}"


def refuse(message: str, findings: Iterable[Finding], *, next_step: str = "") -> None:
    """Raise :class:`~ci.errors.FindingError` with every finding, or return when there is none."""
    found = tuple(findings)
    if not found:
        return
    raise FindingError(
        message,
        cause=found[0].why,
        next_step=next_step or found[0].mend,
        details=[item.line for item in found],
    )
