"""Whether version specifiers can be met together, or one allows all that another does; no network.

The versions that a specifier of PEP 440 admits form intervals whose ends are the versions that it
names. Version 0, one version at each end and one right after it therefore decide; ``packaging`` says of
each whether it is admitted. Pre-releases count only where a specifier names one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import InvalidVersion, Version


def can_meet(sets: Iterable[SpecifierSet]) -> bool:
    """True when some version, whether it was released or not, meets every one of ``sets``."""
    given = tuple(sets)
    return any(all(_admits(one, version) for one in given) for version in _deciding_versions(given))


def allows_all(wide: SpecifierSet, narrow: SpecifierSet) -> bool:
    """True when ``wide`` admits every version that ``narrow`` admits."""
    return all(
        _admits(wide, version)
        for version in _deciding_versions((wide, narrow))
        if _admits(narrow, version)
    )


def joined(sets: Iterable[SpecifierSet]) -> SpecifierSet:
    """The set that admits what all of ``sets`` admit."""
    return SpecifierSet(",".join(filter(None, (str(one) for one in sets))))


def _admits(one: SpecifierSet, version: Version) -> bool:
    return one.contains(version, prereleases=True)


def _deciding_versions(sets: Iterable[SpecifierSet]) -> set[Version]:
    found = {Version("0")}
    for one in sets:
        for specifier in one:
            found.update(_near(specifier))
    return found


def _near(specifier: Specifier) -> Iterator[Version]:
    """The ends that a specifier has (``==4.5.*`` ends at 4.6), and the version after each."""
    try:
        named = Version(specifier.version.removesuffix(".*"))
    except InvalidVersion:  # `===` may hold any text
        return
    yield named
    if named.post is not None:
        yield Version(f"{named.base_version}.post{named.post + 1}")
    release = named.release
    bumped = ((*release[:at], release[at] + 1) for at in range(len(release)))
    for end in (release, *bumped):
        for version in (end, (*end, 0, 0, 0, 0, 1)):
            yield Version(f"{named.epoch}!{'.'.join(map(str, version))}")
