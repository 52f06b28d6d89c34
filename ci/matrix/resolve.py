"""Decides every combination of the matrix, and picks cells. Pure: no file, no machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ci.errors import ConfigError
from ci.matrix.capability import check, check_all, parse_list
from ci.matrix.model import (
    DEFAULT_SET,
    Accepted,
    Cell,
    CudaEntry,
    Decision,
    Decisions,
    MatrixFile,
    Rejected,
    cell_id,
    cuda_label,
    python_tag,
    version_key,
)
from ci.matrix.schema import suggest

_SEE = "`python -m ci matrix` shows every cell"


def resolve(file: MatrixFile) -> tuple[Decision, ...]:
    """One decision per CUDA × Python × set: ascending versions, the default set first."""
    names = ("", *(item.name for item in file.sets))
    return tuple(
        _decide(file, entry, python, name)
        for entry in file.cudas
        for python in file.pythons
        for name in names
    )


def _decide(file: MatrixFile, entry: CudaEntry, python: str, name: str) -> Decision:
    capabilities = entry.capabilities
    if name:
        capabilities = next(item.capabilities for item in file.sets if item.name == name)
    reason = _rejection(file, entry, python, name)
    if reason:
        ident = cell_id(entry.version, python, name)
        return Rejected(ident, entry.version, python, name, reason)
    cell = Cell(entry.version, python, name, capabilities, entry.image, entry.paddle)
    tiers = (tier for tier in file.tiers if tier.match.covers(entry.version, python, name))
    return Accepted(cell, tuple(tier.name for tier in tiers))


def _rejection(file: MatrixFile, entry: CudaEntry, python: str, name: str) -> str:
    """Why the combination is not built: its exclude, else what the CUDA cannot compile."""
    for exclude in file.excludes:
        if exclude.match.covers(entry.version, python, name):
            return exclude.reason
    wanted = next((item.capabilities for item in file.sets if item.name == name), ())
    return check_all(wanted, entry.version) or ""


def select(
    decisions: Decisions,
    *,
    cuda: Sequence[str] = (),
    python: Sequence[str] = (),
    capability_set: Sequence[str] = (),
    tier: str = "",
    capabilities: str = "",
) -> tuple[Cell, ...]:
    """The cells that were asked for, in the order of the matrix.

    ``cuda`` takes "13.0" or "cu130", ``python`` "3.12" or "cp312"; an empty axis takes all values.
    ``capability_set`` takes names of sets, "default" (or "") for the fat wheel. No name means the
    fat wheel, too, except with a ``tier``, which brings its own sets. ``capabilities``
    ("9.0a;10.0f") replaces those of the chosen cells, see :func:`with_capabilities`.

    :class:`ConfigError`: an unknown value; a named value that has only rejected cells; with both
    CUDA and Python named, any rejected cell; a choice without any cell.
    """
    cudas = _known_values(decisions, "CUDA", cuda, lambda one: one.cuda, cuda_label)
    pythons = _known_values(decisions, "Python", python, lambda one: one.python, python_tag)
    sets = _known_sets(decisions, capability_set)
    if capabilities and any(sets):
        raise ConfigError(
            "a capability set and a list of capabilities were both asked for",
            cause="the list replaces the set",
            next_step="leave one of them out",
        )
    wanted = [
        one
        for one in decisions
        if (not cudas or one.cuda in cudas)
        and (not pythons or one.python in pythons)
        and (one.capability_set in (sets or ("",)) or (tier and not sets))
    ]
    wanted = _of_tier(decisions, wanted, tier) if tier else wanted
    _refuse_rejected(wanted, cudas, pythons, sets)
    cells = tuple(one.cell for one in wanted if isinstance(one, Accepted))
    if not capabilities:
        return cells
    return tuple(dict.fromkeys(with_capabilities(cell, capabilities) for cell in cells))


def with_capabilities(cell: Cell, text: str) -> Cell:
    """The cell with other capabilities: ``9.0a;10.0f`` gives ``cu130-cp312-sm90a.sm100f``.

    The name of the set is made of them, so it is safe in file names and, after a ``+``, in a
    version (PEP 440 local version label). With the cell's own capabilities the cell stays as it is.
    :class:`ConfigError` if one is unknown, is there twice, or is beyond the cell's CUDA.
    """
    capabilities = parse_list(text)
    problems = [reason for item in capabilities if (reason := check(item, cell.cuda)) is not None]
    if problems:
        raise ConfigError(
            f"{cell.cuda_label}: {problems[0]}",
            cause=f"CUDA {cell.cuda} cannot compile for it",
            next_step="take one of the nearest ones, or another CUDA",
            details=problems if len(problems) > 1 else (),
        )
    if capabilities == cell.capabilities:
        return cell
    label = ".".join(capability.label for capability in capabilities)
    return replace(cell, capability_set=label, capabilities=capabilities)


def newest_pythons(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """For each CUDA and set the cell with the newest Python."""
    newest: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        key = (cell.cuda, cell.capability_set)
        best = newest.get(key)
        if best is None or version_key(cell.python) > version_key(best.python):
            newest[key] = cell
    return tuple(newest.values())


def _known_values(
    decisions: Decisions,
    word: str,
    asked: Sequence[str],
    value_of: Callable[[Decision], str],
    label_of: Callable[[str], str],
) -> tuple[str, ...]:
    """The asked values as versions; :class:`ConfigError` for one that the matrix lacks."""
    known = list(dict.fromkeys(value_of(one) for one in decisions))
    by_label = {label_of(value): value for value in known}
    versions = [by_label.get(value, value) for value in asked]
    for value in versions:
        if value not in known:
            raise ConfigError(
                f"{word} {value} is not in the matrix; {_near_version(value, known)}",
                cause=f"matrix.toml declares {', '.join(known)}",
                next_step=f"take one of these, or add {value} to matrix.toml; {_SEE}",
            )
    return tuple(versions)


def _near_version(value: str, known: list[str]) -> str:
    """The known version closest by number, else by spelling."""
    parts = value.split(".")
    if not all(part.isdigit() for part in parts):
        return suggest(value, known)

    def distance(version: str) -> tuple[int, ...]:
        pairs = zip(version_key(version), (*version_key(value), 0), strict=False)
        return tuple(abs(one - other) for one, other in pairs)

    return f"nearest: {min(known, key=distance)}"


def _known_sets(decisions: Decisions, asked: Sequence[str]) -> tuple[str, ...]:
    known = list(dict.fromkeys(one.capability_set or DEFAULT_SET for one in decisions))
    for name in asked:
        if (name or DEFAULT_SET) not in known:
            raise ConfigError(
                f"there is no capability set {name!r}; {suggest(name, known)}",
                cause=f"the sets are {', '.join(known)}",
                next_step=f"take one of these, or give capabilities themselves; {_SEE}",
            )
    return tuple("" if name == DEFAULT_SET else name for name in asked)


def _of_tier(decisions: Decisions, wanted: list[Decision], tier: str) -> list[Decision]:
    """What of the wanted the tier has; :class:`ConfigError` for an unknown tier or for nothing."""
    of_tiers = [(one, one.tiers) for one in decisions if isinstance(one, Accepted)]
    known = list(dict.fromkeys(name for _, tiers in of_tiers for name in tiers))
    if tier not in known:
        raise ConfigError(
            f"there is no tier {tier!r}; {suggest(tier, known)}",
            cause=f"the tiers are {', '.join(known)}",
            next_step=f"take one of these; {_SEE}",
        )
    chosen: list[Decision] = [
        one for one in wanted if isinstance(one, Accepted) and tier in one.tiers
    ]
    if not chosen:
        raise ConfigError(
            f"tier {tier} has no cell of that CUDA, Python and set",
            cause=f"it has {', '.join(one.id for one, tiers in of_tiers if tier in tiers)}",
            next_step=f"choose among these, or leave the tier out; {_SEE}",
        )
    return chosen


def _refuse_rejected(
    wanted: Sequence[Decision],
    cudas: Sequence[str],
    pythons: Sequence[str],
    sets: Sequence[str],
) -> None:
    """Raise if something that was named would be left out without a word."""
    rejected = [one for one in wanted if isinstance(one, Rejected)]
    built = [one for one in wanted if isinstance(one, Accepted)]
    lost = (
        set(cudas) - {one.cuda for one in built}
        or set(pythons) - {one.python for one in built}
        or set(sets) - {one.capability_set for one in built}
    )
    if built and not lost and not (rejected and cudas and pythons):
        return
    reasons = [f"{one.id}: {one.reason}" for one in rejected]
    raise ConfigError(
        f"rejected: {reasons[0]}" if reasons else "no cell was chosen",
        cause="matrix.toml excludes it, or that CUDA cannot compile it",
        next_step=f"choose another cell; {_SEE}",
        details=reasons if len(reasons) > 1 else (),
    )
