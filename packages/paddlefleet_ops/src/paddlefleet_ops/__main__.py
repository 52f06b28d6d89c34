"""``python -m paddlefleet_ops [--json]``: every library with its gate, state and reasons.

The exit status is 1 when a library that should load failed, else 0. The report goes to standard
output; what libraries print while they are imported goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import paddlefleet_ops

from . import _observe
from ._loader import FAILED, LibraryState
from ._manifest import Manifest
from ._requires import Environment, Requires, format_version


def report(
    manifest: Manifest, environment: Environment, states: Sequence[LibraryState]
) -> dict[str, Any]:
    """The report as JSON-ready values."""
    requires = {library.name: library.requires for library in manifest.libraries}
    scopes = {library.name: library.compat_scope for library in manifest.libraries}
    return {
        "version": manifest.version,
        "publishable": manifest.publishable,
        "cell": asdict(manifest.cell),
        "environment": _environment_values(environment),
        "libraries": [
            {
                **asdict(state),
                "availability_function": state.availability_function,
                "requires": requires.get(state.name, Requires()).as_dict(),
                "gate": gate_text(requires.get(state.name, Requires())),
                "compat_scope": list(scopes.get(state.name, ())),
            }
            for state in states
        ],
    }


def _environment_values(environment: Environment) -> dict[str, Any]:
    return {
        "python": format_version(environment.python),
        "cuda": None if environment.cuda is None else format_version(environment.cuda),
        "capabilities": [format_version(found) for found in environment.capabilities],
        "no_gpu": "" if environment.capabilities else environment.no_gpu,
    }


def gate_text(requires: Requires) -> str:
    """The conditions in words: ``"CUDA >=12.9, Python >=3.12"``; ``"none"`` without any."""
    conditions = (
        ("CUDA", requires.cuda),
        ("Python", requires.python),
        ("capability", requires.capability),
    )
    texts = [f"{name} {condition}" for name, condition in conditions if condition]
    if requires.capability and requires.cpu_path:
        texts[-1] += " (or no GPU)"
    return ", ".join(texts) or "none"


def table(values: dict[str, Any]) -> str:
    """The report as text for people; the columns are as wide as their contents."""
    rows = [("LIBRARY", "MODULE", "STATE", "GATE", "SOURCE")]
    for library in values["libraries"]:
        gate = library["gate"] if library["in_wheel"] else "-"
        rows.append((library["name"], library["module"], library["state"], gate, _source(library)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [*_heading(values), ""]
    for index, row in enumerate(rows):
        lines.append("  ".join(map(str.ljust, row, widths)).rstrip())
        if index:
            lines += [f"    {reason}" for reason in values["libraries"][index - 1]["reasons"]]
    return "\n".join(lines)


def _source(library: dict[str, Any]) -> str:
    source = library["source"]
    return " ".join(filter(None, (source["kind"], source["revision"][:12]))) or "-"


def _heading(values: dict[str, Any]) -> list[str]:
    environment = values["environment"]
    cuda = environment["cuda"] or "none"
    capability = ", ".join(environment["capabilities"]) or f"none ({environment['no_gpu']})"
    return [
        f"paddlefleet_ops {values['version']}, built for {values['cell']['id']}",
        f"here: Python {environment['python']}, CUDA {cuda}, compute capability {capability}",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m paddlefleet_ops",
        description="The libraries of this wheel: gates, states and reasons.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    environment = _observe.observe(paddlefleet_ops._paddle, with_capability=True)
    states = paddlefleet_ops.libraries()
    values = report(paddlefleet_ops._wheel, environment, states)
    print(json.dumps(values, indent=1) if options.json else table(values))
    return 1 if any(state.state == FAILED for state in states) else 0


if __name__ == "__main__":
    sys.exit(main())
