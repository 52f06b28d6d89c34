"""Requirements of several libraries that exclude each other; ``--no-deps`` hides that as well."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ci.findings import Finding
from ci.integration import guide
from ci.integration.registry_rules.facts import (
    DECLARATIONS,
    WHEEL,
    Kind,
    Refusal,
    RegistryFacts,
    applies,
    declared,
    real_run,
)
from ci.integration.registry_rules.version_sets import can_meet
from ci.integration.rule import Rule
from ci.matrix.model import Cell

RULE = Rule(
    name="unsatisfiable-together",
    summary="requirements that no environment can meet together",
    guide=guide.DEPENDENCIES_BY_KIND,
)


@dataclass(frozen=True, order=True)
class Side:
    """One owner's requirement: ``text`` as it is written, at ``place`` and ``line``."""

    owner: str
    text: str
    place: str
    line: int

    @property
    def requirement(self) -> Requirement:
        """The text, parsed."""
        return Requirement(self.text)


Group = tuple[Side, ...]
_SAY: Mapping[Kind, str] = {
    "declared": "the declarations say",
    "real": "the libraries' own metadata say",
}


def check(facts: RegistryFacts) -> Iterator[Finding]:
    """Proven by the specifiers alone, and what the package index refused where it was asked.

    The declared requirements and those of the libraries' own metadata are judged apart: the first end
    in the wheel, the second are what the code was written against.
    """
    for kind in _SAY:
        found: dict[Group, list[Cell]] = {}
        for cell in facts.cells:
            for group in _conflicts(_sides(kind, facts, cell)):
                found.setdefault(group, []).append(cell)
        for group, cells in found.items():
            yield _finding(kind, group, cells, len(facts.cells))
    yield from _refused(facts)


def _sides(kind: Kind, facts: RegistryFacts, cell: Cell) -> Iterator[Side]:
    return (_declared_sides if kind == "declared" else _real_sides)(facts, cell)


def _declared_sides(facts: RegistryFacts, cell: Cell) -> Iterator[Side]:
    for library in facts.of_cell(cell):
        where = facts.place_of(library)
        for text in declared(library, cell):
            yield Side(library.name, text, where.place, where.line_of("run_requires"))
    for one in facts.wheel.run:
        if applies(one.requirement, cell.python, one.extra):
            yield Side(WHEEL, one.text, f"packages/paddlefleet_ops/{one.place}", one.line)
    yield Side(WHEEL, cell.paddle.gpu, "matrix.toml", 0)


def _real_sides(facts: RegistryFacts, cell: Cell) -> Iterator[Side]:
    for library in facts.of_cell(cell):
        for item in real_run(facts, library, cell.python):
            yield Side(library.name, item.text, facts.source_place(library, item.place), item.line)


def _conflicts(sides: Iterable[Side]) -> Iterator[Group]:
    """Groups that exclude each other: pairs, with equal requirements of several owners as one side.

    Intervals that meet pairwise meet all together; ``!=`` can still take the last version away, so what
    no pair shows is looked for in the whole.
    """
    by_name: dict[str, list[Side]] = {}
    for side in sides:
        by_name.setdefault(canonicalize_name(side.requirement.name), []).append(side)
    for named in by_name.values():
        by_set: dict[str, list[Side]] = {}
        for side in named:
            by_set.setdefault(str(side.requirement.specifier), []).append(side)
        pairs = [
            (one, other)
            for one, other in combinations(by_set.values(), 2)
            if not _meet((one[0], other[0]))
        ]
        yield from (tuple(sorted({*one, *other})) for one, other in pairs)
        if not pairs and not _meet(named):
            yield _smallest(named)


def _meet(sides: Iterable[Side]) -> bool:
    return can_meet(side.requirement.specifier for side in sides)


def _smallest(sides: Iterable[Side]) -> Group:
    """Sides that exclude each other, none of which can be left out."""
    kept = sorted(set(sides))
    for side in tuple(kept):
        rest = [item for item in kept if item != side]
        if not _meet(rest):
            kept = rest
    return tuple(kept)


def _finding(kind: Kind, group: Group, cells: list[Cell], all_cells: int) -> Finding:
    texts: dict[str, dict[str, list[str]]] = {}
    for side in group:
        alike = texts.setdefault(str(side.requirement.specifier), {})
        alike.setdefault(side.text, []).append(side.owner)
    both = " but ".join(
        _list([_require(owners, text) for text, owners in alike.items()])
        for alike in texts.values()
    )
    where = "" if len(cells) == all_cells else f" (in {', '.join(cell.id for cell in cells)})"
    first = next((side for side in group if side.owner != WHEEL), group[0])
    name = canonicalize_name(first.requirement.name)
    return RULE.finding(
        first.place,
        f"{_SAY[kind]} that {both}: no version of {name} meets both{where}",
        "agree on one version: change a declaration, move a fork to it, or keep one of the libraries out "
        "of the cells of the other",
        line=first.line,
        library=first.owner,
        subject=f"{kind}: " + " / ".join(f"{side.owner} {side.text}" for side in group),
    )


def _require(owners: list[str], text: str) -> str:
    return f"{_list(owners)} {'require' if len(owners) > 1 else 'requires'} {text}"


def _list(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


# --- what the package index refused ---------------------------------------------------------------


def _refused(facts: RegistryFacts) -> Iterator[Finding]:
    for refusal in facts.refusals:
        words = " ".join(" ".join(refusal.words).split())
        named = _named_by(facts, refusal, words)
        texts = dict.fromkeys(side.text for side in named)
        behind = "; ".join(
            f"{text} of {_list([side.owner for side in named if side.text == text])}"
            for text in texts
        )
        first = named[0] if named else Side("", "", DECLARATIONS, 0)
        yield RULE.finding(
            first.place,
            f"uv refuses what {_SAY[refusal.kind]} for Python {refusal.python} ({refusal.message}); "
            f"behind it: {behind or 'no requirement that is named'}. uv: {words}",
            "agree on one version: change a declaration, or move a fork to it",
            line=first.line,
            library="" if first.owner == WHEEL else first.owner,
            subject=f"index, {refusal.kind}, Python {refusal.python}: {behind or words}",
        )


def _named_by(facts: RegistryFacts, refusal: Refusal, words: str) -> Group:
    """The sides that were asked for and whose distributions uv names in its refusal."""
    found = {
        side
        for cell in facts.cells
        if cell.python == refusal.python
        for side in _sides(refusal.kind, facts, cell)
        if side.text in refusal.requirements and _names(words, side.requirement.name)
    }
    return tuple(sorted(found, key=lambda side: (side.text, side.owner)))


def _names(words: str, distribution: str) -> bool:
    name = re.escape(canonicalize_name(distribution))
    return re.search(rf"(?<![\w.-]){name}(?![\w-])", words) is not None
