"""What must be true in ``matrix.toml`` beyond its shape: values that depend on each other.

Every rule takes the raw file, whose shape may be wrong in other places, judges what it can read,
and yields what it finds. So one run shows all that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from packaging.requirements import InvalidRequirement, Requirement

from ci.matrix.capability import (
    Capability,
    check,
    check_all,
    conflict_reasons,
    unknown_reason,
)
from ci.matrix.model import DEFAULT_SET, Match, cuda_label
from ci.matrix.schema import Problem, suggest
from ci.matrix.toolkits import TOOLKITS

OLDEST_PYTHON = (3, 10)
"""The oldest Python that Paddle 3.3 has wheels for, and that the farm itself runs on."""

_CUDA_IN_IMAGE = re.compile(r"cuda([0-9]+\.[0-9]+)")
_CUDA_IN_INDEX = re.compile(r"/(cu[0-9]+)/")
_PYTHON = re.compile(r"3\.(0|[1-9][0-9]*)")

_AXES = {"cuda": "CUDA", "pythons": "Python", "sets": "set"}
"""Key of each axis, in the file, its excludes and tiers; and the word for one of its values."""

Raw = Mapping[str, object]
Place = tuple[str | int, ...]


def rule_problems(data: Raw, shape: Sequence[Problem] = ()) -> tuple[Problem, ...]:
    """Everything wrong with the values, but not with the shape.

    What an exclude or a tier selects is judged only where the axes, and the entry itself, have no
    problem yet (``shape`` has those of the shape): else one mistake would be told many times.
    """
    found = [
        *_python_problems(data),
        *_paddle_problems(data),
        *_cuda_problems(data),
        *_set_problems(data),
    ]
    unsure = {_axis_of(problem.path) for problem in (*shape, *found)} - {""}
    found += _name_problems(data, unsure)
    if unsure or not _combinations(data):
        return tuple(found)
    broken = {problem.path[:2] for problem in (*shape, *found)}
    selections = (*_exclude_problems(data), *_tier_problems(data))
    return (*found, *(problem for problem in selections if problem.path not in broken))


def _axis_of(path: Place) -> str:
    """The axis whose values are uncertain through a problem there; "" for none."""
    axis = str(path[0]) if path else ""
    if axis == "cuda" and len(path) > 2 and path[2] != "version":
        return ""  # the version itself is good
    return axis if axis in _AXES else ""


# -- reading raw values ----------------------------------------------------------------------------


def table(data: Raw, key: str) -> Raw:
    """The table under the key, or an empty one."""
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def tables(data: Raw, key: str) -> list[tuple[int, Raw]]:
    """The tables of a list under the key, each with its index."""
    value = data.get(key)
    items = value if isinstance(value, list) else []
    return [(index, item) for index, item in enumerate(items) if isinstance(item, Mapping)]


def texts(data: Raw, key: str) -> list[tuple[int, str]]:
    """The texts of a list under the key, each with its index."""
    value = data.get(key)
    items = value if isinstance(value, list) else []
    return [(index, item) for index, item in enumerate(items) if isinstance(item, str)]


def text(data: Raw, key: str) -> str:
    """The text under the key, or an empty one."""
    value = data.get(key)
    return value if isinstance(value, str) else ""


def read_match(data: Raw, *, default_sets: tuple[str, ...] = ()) -> Match:
    """The choice that an exclude or a tier makes; ``default_sets`` if it names no set."""
    sets = tuple("" if name == DEFAULT_SET else name for _, name in texts(data, "sets"))
    return Match(
        cuda=tuple(value for _, value in texts(data, "cuda")),
        pythons=tuple(value for _, value in texts(data, "pythons")),
        sets=sets or default_sets,
    )


# -- axes ------------------------------------------------------------------------------------------


def _python_problems(data: Raw) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, python in texts(data, "pythons"):
        found = _PYTHON.fullmatch(python)
        if found is not None and (3, int(found[1])) < OLDEST_PYTHON:
            oldest = ".".join(map(str, OLDEST_PYTHON))
            yield Problem(("pythons", index), f"Python {python} is older than {oldest}")
        if python in seen:
            yield Problem(("pythons", index), f"Python {python} is there twice")
        seen.add(python)


def _paddle_problems(data: Raw) -> Iterator[Problem]:
    paddle = table(data, "paddle")
    yield from _requirement_problems(("paddle", "gpu"), text(paddle, "gpu"), "paddlepaddle-gpu")
    yield from _requirement_problems(("paddle", "cpu"), text(paddle, "cpu"), "paddlepaddle")
    for index, entry in tables(data, "cuda"):
        place = ("cuda", index, "paddle_gpu")
        yield from _requirement_problems(place, text(entry, "paddle_gpu"), "paddlepaddle-gpu")


def _requirement_problems(place: Place, value: str, project: str) -> Iterator[Problem]:
    if not value.strip():
        return
    try:
        name = Requirement(value).name
    except InvalidRequirement as error:
        yield Problem(
            place, f"{value!r} is not a requirement (PEP 508): {str(error).splitlines()[0]}"
        )
        return
    if name != project:
        yield Problem(place, f"{value!r} must be a requirement on {project}")


def _cuda_problems(data: Raw) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for index, entry in tables(data, "cuda"):
        version = text(entry, "version")
        if version in seen:
            first = f"cuda[{seen[version]}]"
            yield Problem(("cuda", index, "version"), f"CUDA {version} is there already: {first}")
        elif version:
            seen[version] = index
        yield from _capability_problems(("cuda", index, "capabilities"), entry, "capabilities")
        yield from _support_problems(index, entry, version)
        yield from _label_problems(index, entry, version)


def _capability_problems(place: Place, owner: Raw, key: str) -> Iterator[Problem]:
    for index, value in texts(owner, key):
        if (reason := unknown_reason(value)) is not None:
            yield Problem((*place, index), reason)
    for reason in conflict_reasons(known_capabilities(owner, key)):
        yield Problem(place, reason)


def known_capabilities(owner: Raw, key: str) -> list[Capability]:
    """The readable capabilities of a list, in its order."""
    values = [value for _, value in texts(owner, key)]
    return [Capability.parse(value) for value in values if unknown_reason(value) is None]


def _support_problems(index: int, entry: Raw, version: str) -> Iterator[Problem]:
    if version and version not in TOOLKITS:
        reason = check(Capability(9, 0), version)
        yield Problem(("cuda", index, "version"), str(reason))
        return
    for position, value in texts(entry, "capabilities"):
        if version and unknown_reason(value) is None:
            reason = check(Capability.parse(value), version)
            if reason is not None:
                yield Problem(("cuda", index, "capabilities", position), reason)


def _label_problems(index: int, entry: Raw, version: str) -> Iterator[Problem]:
    """An image or a Paddle index of another CUDA, as is left behind when a table is copied."""
    if not version:
        return
    image = _CUDA_IN_IMAGE.search(text(entry, "image"))
    if image is not None and image[1] != version:
        yield Problem(("cuda", index, "image"), f"is for CUDA {image[1]}, not {version}")
    label = _CUDA_IN_INDEX.search(text(entry, "paddle_index"))
    if label is not None and label[1] != cuda_label(version):
        wanted = cuda_label(version)
        yield Problem(("cuda", index, "paddle_index"), f"is for {label[1]}, not {wanted}")


def _set_problems(data: Raw) -> Iterator[Problem]:
    versions = _values(data, "cuda")
    sets = table(data, "sets")
    for name in sets:
        yield from _capability_problems(("sets", name), sets, name)
        if not all(version in TOOLKITS for version in versions):
            continue  # reported by _support_problems
        reasons = [check_all(known_capabilities(sets, name), version) for version in versions]
        if reasons and all(reasons):
            yield Problem(("sets", name), f"no CUDA of the file can compile it: {reasons[-1]}")


# -- excludes and tiers ----------------------------------------------------------------------------


def _values(data: Raw, axis: str) -> list[str]:
    """All values of an axis of the file: ``cuda``, ``pythons`` or ``sets``."""
    if axis == "cuda":
        return [version for _, entry in tables(data, "cuda") if (version := text(entry, "version"))]
    if axis == "pythons":
        return [python for _, python in texts(data, "pythons")]
    return [DEFAULT_SET, *table(data, "sets")]


def _choices(data: Raw) -> list[tuple[Place, Raw]]:
    """Every place that names values of the axes: excludes and tiers."""
    excludes: list[tuple[Place, Raw]] = [
        (("exclude", index), entry) for index, entry in tables(data, "exclude")
    ]
    tiers = table(data, "tiers")
    return excludes + [(("tiers", name), table(tiers, name)) for name in tiers]


def _name_problems(data: Raw, unsure: set[str]) -> list[Problem]:
    """Values that an exclude or a tier names but no axis has, on the axes that are sure."""
    known = {axis: _values(data, axis) for axis in _AXES if axis not in unsure}
    return [
        Problem(
            (*place, axis, index),
            f"unknown {_AXES[axis]} {value!r}; {suggest(value, known[axis])}",
        )
        for place, choice in _choices(data)
        for axis in known
        for index, value in texts(choice, axis)
        if value not in known[axis]
    ]


def _combinations(data: Raw) -> list[tuple[str, str, str]]:
    sets = ["" if name == DEFAULT_SET else name for name in _values(data, "sets")]
    return list(product(_values(data, "cuda"), _values(data, "pythons"), sets))


def _exclude_problems(data: Raw) -> Iterator[Problem]:
    left = _combinations(data)
    for index, entry in tables(data, "exclude"):
        match = read_match(entry)
        if match == Match():
            yield Problem(("exclude", index), "says neither cuda nor pythons nor sets")
            continue
        kept = [combination for combination in left if not match.covers(*combination)]
        if kept == left:
            reason = "matches nothing that the excludes above leave: remove it"
            yield Problem(("exclude", index), reason)
        left = kept


def _tier_problems(data: Raw) -> Iterator[Problem]:
    matches = [read_match(entry) for _, entry in tables(data, "exclude")]
    excludes = [match for match in matches if match != Match()]
    sets, tiers = table(data, "sets"), table(data, "tiers")
    buildable = [
        (cuda, python, name)
        for cuda, python, name in _combinations(data)
        if not any(match.covers(cuda, python, name) for match in excludes)
        and not (name and check_all(known_capabilities(sets, name), cuda))
    ]
    for name in tiers:
        match = read_match(table(tiers, name), default_sets=("",))
        if not any(match.covers(*combination) for combination in buildable):
            yield Problem(("tiers", name), "selects no cell that can be built")
