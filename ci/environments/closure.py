"""What a requirement really brings into an environment: itself, and all that it needs there.

Read from the metadata of what is installed (PyPA's core metadata, ``Requires-Dist``), because a lock says
which versions there are, but not who needs them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ci.environments.venv import Environment


def needed(environment: Environment, requirements: Iterable[str]) -> tuple[str, ...]:
    """``name==version`` of everything in ``environment`` that ``requirements`` need, they included, sorted.

    What a requirement names and the environment does not have is left out: it is of another platform or
    Python. Names are canonical (PEP 503).
    """
    installed = _installed(environment.folder)
    python = _python_of(environment.folder)
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    pending = [Requirement(text) for text in requirements]
    while pending:
        wanted = pending.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if name not in installed or (name, extras) in seen:
            continue
        seen.add((name, extras))
        found[name] = installed[name].version
        pending += _requirements(installed[name], extras, python)
    return tuple(f"{name}=={version}" for name, version in sorted(found.items()))


@lru_cache(maxsize=64)
def _installed(folder: Path) -> Mapping[str, Distribution]:
    """What is installed in the environment, by canonical name. It is made once, and never changes."""
    places = [str(path) for path in folder.glob("lib/python*/site-packages")]
    return {canonicalize_name(item.name): item for item in distributions(path=places)}


def _requirements(
    distribution: Distribution, extras: frozenset[str], python: Mapping[str, str]
) -> list[Requirement]:
    """Its own requirements that apply with these extras and this Python."""
    found = []
    for text in distribution.requires or ():
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            continue
        environments = [{**python, "extra": extra} for extra in ("", *sorted(extras))]
        if wanted.marker is None or any(map(wanted.marker.evaluate, environments)):
            found.append(wanted)
    return found


@lru_cache(maxsize=64)
def _python_of(folder: Path) -> Mapping[str, str]:
    """The environment's Python as markers name it (PEP 508), from ``pyvenv.cfg``."""
    text = (folder / "pyvenv.cfg").read_text("utf-8")
    match = re.search(r"^version(?:_info)? *= *((\d+\.\d+)\.\d+)", text, re.MULTILINE)
    if match is None:
        return {}
    return {"python_full_version": match[1], "python_version": match[2]}
