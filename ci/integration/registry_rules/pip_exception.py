"""One library by two ways: as a submodule in the wheel, and as a pip requirement."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ci.findings import Finding
from ci.integration import guide
from ci.integration.declaration_places import DeclarationPlace
from ci.integration.registry_rules.distributions import PIP_EXCEPTIONS, PipException, modules_of
from ci.integration.registry_rules.facts import WHEEL, RegistryFacts, declared
from ci.integration.rule import Rule
from ci.registry import EcosystemLibrary

RULE = Rule(
    name="pip-exception",
    summary="a library comes as a submodule and as a pip requirement, or by the wrong one of the two",
    guide=guide.PIP_EXCEPTION,
)
_Asked = tuple[str, Requirement, DeclarationPlace]


def check(facts: RegistryFacts) -> Iterator[Finding]:
    """Declarations that the exceptions forbid, then requirements on what a declared library is."""
    for library in facts.libraries:
        for exception in PIP_EXCEPTIONS:
            names = facts.distributions_of(library)
            if exception.distribution in names or exception.module in library.modules:
                yield _declared_exception(facts, library, exception)
    for owner, requirement, place in _asked(facts):
        yield from _second_copy(facts, owner, requirement, place)
        yield from _other_than_the_exception(owner, requirement, place)


def _asked(facts: RegistryFacts) -> Iterator[_Asked]:
    """Every declared run-time requirement, once, with its owner."""
    seen: set[tuple[str, str]] = set()
    for library in facts.libraries:
        for cell in facts.cells:
            for text in declared(library, cell):
                if (library.name, text) not in seen:
                    seen.add((library.name, text))
                    yield library.name, Requirement(text), facts.place_of(library)
    for item in facts.wheel.run:
        place = DeclarationPlace(f"packages/paddlefleet_ops/{item.place}", item.line)
        yield WHEEL, item.requirement, place


def _declared_exception(
    facts: RegistryFacts, library: EcosystemLibrary, exception: PipException
) -> Finding:
    place = facts.place_of(library)
    return RULE.finding(
        place.place,
        f"{library.name} gives the module {exception.module!r}, which comes from the pip dependency "
        f"{exception.distribution}: {exception.why}",
        f"remove the declaration of {library.name}",
        line=place.line,
        library=library.name,
        subject=exception.distribution,
    )


def _second_copy(
    facts: RegistryFacts, owner: str, requirement: Requirement, place: DeclarationPlace
) -> Iterator[Finding]:
    name = canonicalize_name(requirement.name)
    for library in facts.libraries:
        if name not in facts.distributions_of(library) and library.module not in modules_of(name):
            continue
        mend = f"remove {requirement.name} from its requirements"
        if owner not in (WHEEL, library.name):
            mend = f"replace it by depends_on=({library.name!r},) in the declaration of {owner}"
        yield RULE.finding(
            place.place,
            f"{owner} requires {requirement}, which is the declared library {library.name}: its module "
            f"{library.module!r} would be there twice",
            mend,
            line=place.line_of("run_requires"),
            library="" if owner == WHEEL else owner,
            subject=f"{owner}: {name}",
        )


def _other_than_the_exception(
    owner: str, requirement: Requirement, place: DeclarationPlace
) -> Iterator[Finding]:
    name = canonicalize_name(requirement.name)
    for exception in PIP_EXCEPTIONS:
        if name != exception.distribution and exception.module in modules_of(name):
            yield RULE.finding(
                place.place,
                f"{owner} requires {requirement}, which holds the module {exception.module!r} of "
                f"{exception.distribution} a second time, made for torch",
                f"require {exception.distribution}, or nothing: it is {exception.why}",
                line=place.line_of("run_requires"),
                library="" if owner == WHEEL else owner,
                subject=f"{owner}: {name}",
            )
