"""Which libraries to load: a pure function of the manifest and of what was observed.

Nothing here asks the machine, so that one host can decide what any other would do.
"""

from __future__ import annotations

from dataclasses import dataclass

from ._manifest import Library, Manifest
from ._requires import Environment


@dataclass(frozen=True)
class Load:
    """Every condition is met: the library is to be loaded, and failing to is an error."""


@dataclass(frozen=True)
class Block:
    """At least one condition is not met; ``reasons`` holds each of them with what was found."""

    reasons: tuple[str, ...]


Decision = Load | Block


def needs_capability(manifest: Manifest) -> bool:
    """True when the decision on some library depends on the compute capability of the device."""
    return any(library.requires.capability for library in manifest.libraries)


def decide(manifest: Manifest, environment: Environment) -> dict[str, Decision]:
    """The decision on each library, also on those left out, by name and in load order."""
    decisions: dict[str, Decision] = {
        entry.name: Block(
            tuple(f"was not built into this wheel: {reason}" for reason in entry.reasons)
            or ("was not built into this wheel",)
        )
        for entry in manifest.left_out
    }
    for library in manifest.libraries:
        reasons = (
            *library.requires.unmet(environment),
            *_dependency_reasons(library, decisions),
        )
        decisions[library.name] = Block(reasons) if reasons else Load()
    return decisions


def _dependency_reasons(library: Library, decisions: dict[str, Decision]) -> tuple[str, ...]:
    reasons = []
    for name in library.depends_on:
        decision = decisions.get(name)
        if decision is None:
            reasons.append(f"needs the library {name}; it is not in this wheel")
        elif isinstance(decision, Block):
            reasons.append(f"needs the library {name}; it {_clause(decision)}")
    return tuple(reasons)


def _clause(decision: Block) -> str:
    return ", and ".join(decision.reasons)
