"""What a check is about: a declared library, a folder, or a release, as sources that are there.

A folder or a release whose package is that of a declared library is checked with that declaration's
scope and public names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ci.errors import ConfigError
from ci.integration.source_tree import SourceTree, find_packages, locate, read_tree
from ci.integration.torch_importers import TORCH_IMPORTERS
from ci.registry import REPOSITORY, EcosystemLibrary, build_utils, known_names
from ci.sources.override import Override, parse_overrides
from ci.sources.resolve import declared_origin, fetched


@dataclass(frozen=True)
class Subject:
    """Something to check. ``library`` is its declaration, ``None`` for sources that nothing declares.

    ``folder`` holds the sources; ``override`` is where they came from when that is not the declared place.
    ``why_not`` says why there is nothing to read, and ``next_step`` the command that mends that.
    ``borrowed`` is true for a folder or a release that is checked with the declaration of a library: what
    the registry says of that library is then no part of the check.
    """

    name: str
    origin: str
    folder: Path
    library: EcosystemLibrary | None = None
    override: Override | None = None
    why_not: str = ""
    next_step: str = ""
    notes: tuple[str, ...] = ()
    borrowed: bool = False

    @property
    def is_package(self) -> bool:
        """True when the folder is the package itself, and not the project around it."""
        return (self.folder / "__init__.py").is_file()

    @property
    def top(self) -> Path:
        """The folder that places are relative to: that around the package, or the project's."""
        return self.folder.parent if self.is_package else self.folder


def resolve_subjects(
    texts: Sequence[str],
    libraries: Sequence[EcosystemLibrary],
    overrides: Mapping[str, Override],
    cache_dir: Path,
) -> tuple[Subject, ...]:
    """The subjects that ``texts`` name; every declared library when there are none.

    A text is a library's name, a folder, ``pypi:PROJECT==VERSION`` or ``git:URL@REV``. Raises
    :class:`~ci.errors.ConfigError` for one that is none of these.
    """
    by_name = {library.name: library for library in libraries}
    if not texts:
        return tuple(_declared(library, overrides, cache_dir) for library in libraries)
    names = [text for text in texts if not _is_place(text)]
    known_names(libraries, names)
    return tuple(
        _declared(by_name[text], overrides, cache_dir)
        if text in by_name
        else _undeclared(text, libraries, cache_dir)
        for text in texts
    )


def _is_place(text: str) -> bool:
    return text.startswith(("pypi:", "git:", "path:", ".", "/", "~")) or Path(text).is_dir()


def _declared(
    library: EcosystemLibrary, overrides: Mapping[str, Override], cache_dir: Path
) -> Subject:
    override = overrides.get(library.name)
    if override is not None:
        source = fetched(override, cache_dir)
        return Subject(library.name, source.origin, source.folder, library, override)
    kind, origin = declared_origin(library)
    problems = [
        item
        for item in build_utils.submodule_problems([library])
        if item.problem in (build_utils.NOT_PINNED, "not checked out")
    ]
    if problems:
        return Subject(
            library.name,
            f"{kind} {origin}",
            library.source_dir,
            library,
            why_not=problems[0].problem,
            next_step=problems[0].next_step,
        )
    return Subject(library.name, f"{kind} {origin}", library.source_dir, library)


def _undeclared(text: str, libraries: Sequence[EcosystemLibrary], cache_dir: Path) -> Subject:
    override = _override(text)
    source = fetched(override, cache_dir)
    packages = set(find_packages(source.folder))
    for library in libraries:
        if packages & set(_source_names(library)):
            note = f"scope and public names are those of the declaration of {library.name}"
            return Subject(
                library.name,
                source.origin,
                source.folder,
                library,
                override,
                notes=(note,),
                borrowed=True,
            )
    return Subject(override.library, source.origin, source.folder, None, override)


def _override(text: str) -> Override:
    """A place as an override, under a name made from it."""
    kind, colon, place = text.partition(":")
    if not colon or kind not in ("pypi", "git"):
        folder = place if kind == "path" and colon else text
        name = Path(folder).expanduser().resolve().name
        return Override(name, "path", folder, "")
    name = PurePosixPath(re.split(r"==|@", place)[0] if kind == "pypi" else place).name
    name = re.sub(r"[^\w.-]+", "-", name.rpartition("@")[0] or name).removesuffix(".git") or kind
    return parse_overrides([f"{name}={text}"], [name])[name]


def _source_names(library: EcosystemLibrary) -> tuple[str, ...]:
    """The top-level names that the library's sources have, before an artifact is renamed."""
    tops = (PurePosixPath(item.source).parts[0].partition(".")[0] for item in library.artifacts)
    return tuple(dict.fromkeys(tops))


def packages_of(subject: Subject) -> Mapping[str, Path]:
    """The top-level packages and modules of a subject, by name.

    Raises :class:`~ci.errors.ConfigError` when a declared package is not in its sources.
    """
    if subject.library is None or subject.is_package:
        return find_packages(subject.folder)
    found = locate(subject.folder, _source_names(subject.library))
    if found:
        return found
    raise ConfigError(
        f"the sources of {subject.name} hold no package {_source_names(subject.library)[0]!r}",
        cause=f"its declaration names artifacts that are not in {subject.origin}",
        next_step=f"mend the artifacts in the declaration of {subject.name}, or give other sources with "
        f"--source {subject.name}=…",
    )


def tree_of(subject: Subject, libraries: Sequence[EcosystemLibrary]) -> SourceTree:
    """The subject's sources as values, with what the registry knows about other libraries."""
    library = subject.library
    packages = packages_of(subject)
    others = [item for item in libraries if library is None or item.name != library.name]
    inside = subject.folder.is_relative_to(REPOSITORY)
    return read_tree(
        subject.name,
        subject.folder,
        packages,
        base=REPOSITORY if inside else subject.top,
        scope=() if library is None else library.compat_scope,
        roots=() if library is None else _root_modules(library.public_names),
        others={} if library is None else _dependencies(library, libraries),
        extra_tests=() if library is None else (REPOSITORY / "tests",),
        torch_importers=_importers(others),
        taken={name: item.name for item in others for name in item.modules},
    )


def _root_modules(public_names: Iterable[str]) -> tuple[str, ...]:
    """The modules that resolving the public names imports: ``a.b`` of ``a.b:name``."""
    return tuple(dict.fromkeys(name.rpartition(":")[0] for name in public_names if ":" in name))


def _dependencies(
    library: EcosystemLibrary, libraries: Sequence[EcosystemLibrary]
) -> dict[str, Path]:
    """Packages of the libraries that it depends on, where their sources are there."""
    by_name = {item.name: item for item in libraries}
    found: dict[str, Path] = {}
    for name in library.depends_on:
        other = by_name.get(name)
        if other is not None and other.source_dir.is_dir():
            found |= locate(other.source_dir, _source_names(other))
    return found


def _importers(libraries: Sequence[EcosystemLibrary]) -> dict[str, str]:
    declared = {
        item.module: f"its declaration {item.name} has a compat scope of its own"
        for item in libraries
    }
    return {**declared, **TORCH_IMPORTERS}
