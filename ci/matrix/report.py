"""The matrix as plain rows and as a JSON document; drawing is done elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from ci.matrix.model import DEFAULT_SET, Accepted, Decision, Decisions, Rejected

SCHEMA = 1
"""Version of the JSON document; it changes when a reader would have to."""

HEADERS = ("cell", "CUDA", "Python", "set", "capabilities", "tiers", "nvcc -gencode / reason")


@dataclass(frozen=True)
class Row:
    """One line of the table: ``accepted``, and the texts below :data:`HEADERS`."""

    accepted: bool
    cells: tuple[str, ...]


def as_table_rows(decisions: Decisions) -> tuple[Row, ...]:
    """One row per decision, in their order."""
    return tuple(_row(decision) for decision in decisions)


def _row(decision: Decision) -> Row:
    start = (
        decision.id,
        decision.cuda,
        decision.python,
        decision.capability_set or DEFAULT_SET,
    )
    if isinstance(decision, Rejected):
        return Row(False, (*start, "", "", f"rejected: {decision.reason}"))
    cell = decision.cell
    capabilities = " ".join(str(capability) for capability in cell.capabilities)
    return Row(True, (*start, capabilities, " ".join(decision.tiers), " ".join(cell.gencode)))


def as_document(decisions: Decisions) -> dict[str, object]:
    """``{"schema": 1, "accepted": [...], "rejected": [...]}``, ready for :func:`json.dumps`.

    Each accepted entry is a cell with its tiers and with the final ``gencode`` values.
    """
    return {
        "schema": SCHEMA,
        "accepted": [one.as_dict() for one in decisions if isinstance(one, Accepted)],
        "rejected": [one.as_dict() for one in decisions if isinstance(one, Rejected)],
    }
