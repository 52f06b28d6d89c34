"""The checklist over a library that was just declared: asked of a process that reads the registry anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from ci.errors import FarmError
from ci.findings import Finding
from ci.integration.scaffold.checkout import Checkout

_FIELDS = tuple(field.name for field in fields(Finding))


def recheck(repository: Path, *options: str) -> Callable[[str], tuple[Finding, ...]]:
    """A check for :func:`~ci.integration.scaffold.integrate`: ``python -m ci check NAME`` in ``repository``.

    ``options`` are further options of that verb. The function raises :class:`~ci.errors.FarmError` when
    the check itself fails.
    """

    def check(name: str) -> tuple[Finding, ...]:
        done = Checkout(repository).run_ci("check", name, "--json", *options)
        report = _last_document(done.output)
        if "libraries" not in report:
            error = report.get("error", {})
            raise FarmError(
                f"{name} cannot be checked: {error.get('message', 'the check ended without a report')}",
                cause=error.get("cause", ""),
                next_step=f"python -m ci check {name}",
                details=error.get("details") or done.tail(12),
            )
        found = [item for library in report["libraries"] for item in library["findings"]]
        return tuple(_finding(item) for item in (*found, *report["stale"]))

    return check


def _finding(values: dict[str, Any]) -> Finding:
    return Finding(**{name: values[name] for name in _FIELDS if name in values})


def _last_document(output: str) -> dict[str, Any]:
    """The JSON document that a verb printed, after the lines that say how it goes."""
    at = output.find("{\n") if output.startswith("{") else output.find("\n{\n") + 1
    try:
        document, _ = json.JSONDecoder().raw_decode(output, at)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
