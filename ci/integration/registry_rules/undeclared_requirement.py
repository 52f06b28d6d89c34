"""What a library's metadata requires and its declaration does not cover; ``--no-deps`` hides it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ci.environments.lock import BUILD_BASE
from ci.findings import Finding, Level
from ci.integration import guide
from ci.integration.registry_rules.distributions import PADDLE, PADDLE_BRINGS, TORCH_BY_COMPAT
from ci.integration.registry_rules.facts import RegistryFacts, applies, declared, real_run
from ci.integration.registry_rules.version_sets import allows_all, joined
from ci.integration.requirements import Metadata, RealRequirement
from ci.integration.rule import Rule
from ci.matrix.model import Cell
from ci.registry import EcosystemLibrary

RULE = Rule(
    name="undeclared-requirement",
    summary="a library's own metadata requires what its declaration does not cover",
    guide=guide.DEPENDENCIES_BY_KIND,
)
Missing = dict[tuple[RealRequirement, str], list[Cell]]


def check(facts: RegistryFacts) -> Iterator[Finding]:
    """One finding for each requirement, whatever the number of cells; those are named where not all.

    torch is not reported: Paddle stands in for it (:data:`TORCH_BY_COMPAT`). What Paddle brings itself
    (:data:`PADDLE_BRINGS`) counts as declared.
    """
    for library in facts.libraries:
        cells = tuple(facts.cells_of(library))
        for what, missing in (
            ("run_requires", _missing_at_run(facts, library, cells)),
            ("build_requires", _missing_at_build(facts, library, cells)),
        ):
            for (item, why), where in missing.items():
                yield _finding(facts, library, item, what, why + _only(where, cells))
        yield from _unread(facts, library)


def _missing_at_run(
    facts: RegistryFacts, library: EcosystemLibrary, cells: Sequence[Cell]
) -> Missing:
    missing: Missing = {}
    covered = {
        name for item in facts.with_dependencies(library) for name in facts.distributions_of(item)
    }
    own = {name: item for item in facts.libraries for name in facts.distributions_of(item)}
    for cell in cells:
        given = (*map(Requirement, declared(library, cell)), *_of_paddle(cell))
        real = [item for item in real_run(facts, library, cell.python) if item.name not in covered]
        for item in real:
            why = _why(item, given)
            if item.name in own:
                why = f"is the declared library {own[item.name].name}, and no dependency on it is declared"
            elif item.extra and why and _alternative_is_covered(item, real, given):
                continue
            if why:
                missing.setdefault((item, why), []).append(cell)
    return missing


def _missing_at_build(
    facts: RegistryFacts, library: EcosystemLibrary, cells: Sequence[Cell]
) -> Missing:
    missing: Missing = {}
    base = tuple(Requirement(text) for text in BUILD_BASE)
    for cell in cells:
        given = (*map(Requirement, declared(library, cell, "build_requires")), *base)
        for item in facts.metadata.get(library.name, Metadata()).build:
            if item.name in TORCH_BY_COMPAT or not applies(item.requirement, cell.python):
                continue
            why = _why(item, given, by_name=_named(base))
            if why:
                missing.setdefault((item, why), []).append(cell)
    return missing


def _of_paddle(cell: Cell) -> Iterator[Requirement]:
    """Paddle, which every wheel is installed beside, and what it brings."""
    for text in PADDLE_BRINGS:
        requirement = Requirement(text)
        if applies(requirement, cell.python):
            yield requirement
    yield Requirement(cell.paddle.gpu)


def _canonical(requirement: Requirement) -> str:
    """The canonical name, one for Paddle with and without a GPU."""
    name = canonicalize_name(requirement.name)
    return "paddlepaddle" if name in PADDLE else name


def _named(given: Iterable[Requirement]) -> frozenset[str]:
    return frozenset(_canonical(item) for item in given)


def _why(
    item: RealRequirement,
    given: Iterable[Requirement],
    by_name: frozenset[str] = frozenset(),
) -> str:
    """Why ``given`` does not cover a requirement; empty where it does.

    Names of ``by_name`` are covered whatever the version: the farm's build environment chooses it.
    """
    wanted = item.requirement
    same = [one for one in given if _canonical(one) == _canonical(wanted)]
    if not same:
        return "is not declared"
    lacking = wanted.extras - {extra for one in same for extra in one.extras}
    if lacking:
        return f"is declared without its extra {', '.join(sorted(lacking))}"
    narrow = joined(one.specifier for one in same)
    if _canonical(wanted) in by_name or wanted.url or allows_all(wanted.specifier, narrow):
        return ""
    return f"is declared as {str(narrow) or 'any version'}: that admits versions which are refused here"


def _alternative_is_covered(
    item: RealRequirement, real: Iterable[RealRequirement], given: Sequence[Requirement]
) -> bool:
    """Optional groups are alternatives of each other: one that is covered is enough."""
    return any(other.name == item.name and other.extra and not _why(other, given) for other in real)


def _only(where: Sequence[Cell], cells: Sequence[Cell]) -> str:
    if len(where) == len(cells):
        return ""
    return f" (in {', '.join(cell.id for cell in where)})"


def _finding(
    facts: RegistryFacts, library: EcosystemLibrary, item: RealRequirement, what: str, why: str
) -> Finding:
    level: Level = "warning" if item.condition else "error"
    when = f" (in its optional group {item.extra!r}, and imported at once)" if item.extra else ""
    when += f" (added if `{item.condition}`)" if item.condition else ""
    return RULE.finding(
        facts.source_place(library, item.place),
        f"{library.name} requires {item.text}{when}, which {why}",
        f"bring {what} of {library.name} into line with it ({facts.place_of(library).place}:"
        f"{facts.place_of(library).line_of(what)}), or take it out of the fork's metadata",
        line=item.line,
        level=level,
        library=library.name,
        subject=f"{what}: {item.text}",
    )


def _unread(facts: RegistryFacts, library: EcosystemLibrary) -> Iterator[Finding]:
    for item in facts.metadata.get(library.name, Metadata()).unread:
        yield RULE.finding(
            facts.source_place(library, item.place),
            f"a requirement of {library.name} cannot be read without running code: {item.why}",
            "state it as a literal, so that it can be checked",
            line=item.line,
            level="note",
            library=library.name,
            subject=item.why,
        )
