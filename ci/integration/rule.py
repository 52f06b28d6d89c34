"""What a rule of the checklist is: a name, the sentence of the guide behind it, and a check.

A static rule is a file of :mod:`ci.integration.rules` with a ``RULE`` and a function ``check`` that
takes a :class:`~ci.integration.source_tree.SourceTree`; a registry rule is one of
:mod:`ci.integration.registry_rules`, whose ``check`` takes the declarations and what was observed. Both
yield :class:`~ci.findings.Finding` values.
"""

from __future__ import annotations

from dataclasses import dataclass

from ci.findings import Finding, Level


@dataclass(frozen=True)
class Rule:
    """A rule of the checklist.

    ``name`` is stable: baselines and SARIF results hold it. ``guide`` is the rule of PaddleFleet's
    integration guide that it applies, with the heading it is found under. ``level`` is that of its
    findings unless one says otherwise.
    """

    name: str
    summary: str
    guide: str
    level: Level = "error"

    def finding(
        self,
        place: str,
        why: str,
        mend: str,
        *,
        line: int = 0,
        column: int = 0,
        level: Level | None = None,
        library: str = "",
        subject: str = "",
    ) -> Finding:
        """A finding of this rule; ``line`` and ``column`` count from 1."""
        return Finding(
            self.name, place, why, mend, line, column, level or self.level, library, subject
        )
