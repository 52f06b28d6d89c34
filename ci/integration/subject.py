"""What a check is about: a declared library, a folder, or a release, as sources that are there.

A folder or a release whose package is that of a declared library is checked with that declaration's
scope and public names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from ci.errors import ConfigError, raise_together
from ci.integration.source_tree import (
    SourceTree,
    find_packages,
    is_package_folder,
    locate,
    read_tree,
)
from ci.integration.torch_importers import TORCH_IMPORTERS
from ci.registry import REPOSITORY, EcosystemLibrary, build_utils, known_names
from ci.sources.override import Override, parse_override
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
        return is_package_folder(self.folder)

    @property
    def in_repository(self) -> bool:
        """True where places are relative to the repository; else they are relative to ``top``."""
        return self.folder.is_relative_to(REPOSITORY)

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
    :class:`~ci.errors.ConfigError` for what :func:`check_text` refuses, and for two subjects of one name.
    """
    by_name = {library.name: library for library in libraries}
    if not texts:
        return tuple(_declared(library, overrides, cache_dir) for library in libraries)
    raise_together(*(partial(check_text, text, libraries) for text in texts))
    subjects = tuple(
        _declared(by_name[text], overrides, cache_dir)
        if text in by_name
        else _undeclared(text, libraries, cache_dir)
        for text in dict.fromkeys(texts)
    )
    _refuse_equal_names(subjects)
    return subjects


def check_text(text: str, libraries: Sequence[EcosystemLibrary]) -> None:
    """Raise :class:`~ci.errors.ConfigError` when the text names nothing; nothing is fetched."""
    if _is_place(text) and text not in {library.name for library in libraries}:
        _override(text)
    else:
        known_names(libraries, [text])


def _refuse_equal_names(subjects: Sequence[Subject]) -> None:
    """Findings belong to a library by its name, so no two may have one."""
    seen: dict[str, Subject] = {}
    for subject in subjects:
        other = seen.setdefault(subject.name, subject)
        if other is not subject:
            raise ConfigError(
                f"two of what is to be checked are called {subject.name!r}: "
                f"{other.origin} and {subject.origin}",
                cause="findings and known findings belong to a library by its name",
                next_step="check one after the other",
            )


def _is_place(text: str) -> bool:
    if text.startswith(("pypi:", "git:", "path:", ".", "~")) or "/" in text:
        return True
    return bool(text) and Path(text).exists()


def _declared(
    library: EcosystemLibrary, overrides: Mapping[str, Override], cache_dir: Path
) -> Subject:
    override = overrides.get(library.name)
    if override is not None:
        source = fetched(override, cache_dir)
        return Subject(library.name, source.origin, source.folder, library, override)
    why_not, next_step = _absence(library)
    return Subject(
        library.name,
        " ".join(declared_origin(library)),
        library.source_dir,
        library,
        why_not=why_not,
        next_step=next_step,
    )


def _absence(library: EcosystemLibrary) -> tuple[str, str]:
    """Why the declared sources are not there, and the command that mends it; empty where they are."""
    for item in build_utils.submodule_problems([library]):
        if item.problem in (build_utils.NOT_PINNED, "not checked out"):
            return item.problem, item.next_step
    if not library.source_dir.is_dir():
        name = library.source_rel_path
        return f"there is no folder {name}", f"--source {library.name}=path:DIR"
    return "", ""


def _undeclared(text: str, libraries: Sequence[EcosystemLibrary], cache_dir: Path) -> Subject:
    override = _override(text)
    origin, folder = _obtained(override, cache_dir)
    packages = set(find_packages(folder))
    for library in libraries:
        if packages & set(_source_names(library)):
            note = f"scope and public names are those of the declaration of {library.name}"
            return Subject(
                library.name, origin, folder, library, override, notes=(note,), borrowed=True
            )
    return Subject(override.library, origin, folder, None, override)


def _obtained(override: Override, cache_dir: Path) -> tuple[str, Path]:
    """Origin and folder. A folder is read where it is: only what is built needs its hash."""
    if override.kind == "path":
        folder = Path(override.place)
        return f"path:{folder.name}", folder
    source = fetched(override, cache_dir)
    return source.origin, source.folder


def _override(text: str) -> Override:
    """A place as an override, under a name made from it. Raises :class:`~ci.errors.ConfigError`."""
    kind, colon, place = text.partition(":")
    if not colon or kind not in ("pypi", "git"):
        folder = _folder(place if kind == "path" and colon else text)
        return Override(folder.name or "sources", "path", str(folder), "")
    name = PurePosixPath(re.split(r"==|@", place)[0] if kind == "pypi" else place).name
    name = re.sub(r"[^\w.-]+", "-", name.rpartition("@")[0] or name).removesuffix(".git") or kind
    try:
        return parse_override(f"{name}={text}")
    except ConfigError as error:
        form, ask = _FORMS[kind]
        raise ConfigError(
            f"{text} is not of the form {form}",
            cause="a check is of one state of the sources, which its version or revision says",
            next_step=f"{ask} {re.split('==|@', place)[0] or form.partition(':')[2]}",
        ) from error


_FORMS = {
    "pypi": ("pypi:PROJECT==VERSION", "python -m pip index versions"),
    "git": ("git:URL@REV", "git ls-remote"),
}


def _folder(text: str) -> Path:
    try:
        folder = Path(text).expanduser().resolve()
    except RuntimeError as error:  # the home of a user that there is not
        raise ConfigError(
            f"{text} is no folder", cause=str(error), next_step="python -m ci check FOLDER"
        ) from error
    if folder.is_dir():
        return folder
    what = "is a file" if folder.exists() else "does not exist"
    raise ConfigError(
        f"{text} is no folder",
        cause=f"{folder} {what}",
        next_step="python -m ci check FOLDER, with the folder that holds the package, or the package",
    )


def _source_names(library: EcosystemLibrary) -> tuple[str, ...]:
    """The top-level names that the library's sources have, before an artifact is renamed."""
    tops = (PurePosixPath(item.source).parts[0].partition(".")[0] for item in library.artifacts)
    return tuple(dict.fromkeys(tops))


def packages_of(subject: Subject) -> Mapping[str, Path]:
    """The top-level packages and modules of a subject, by name.

    Raises :class:`~ci.errors.ConfigError` when a declared package is not in its sources, or when the
    folder is a package whose name nothing can import.
    """
    if subject.is_package and not subject.folder.name.isidentifier():
        raise ConfigError(
            f"no import statement can name a package {subject.folder.name!r}",
            cause=f"{subject.origin} has an __init__.py at its top, so it is a package itself",
            next_step="rename the folder, or give the folder of the package in it",
        )
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


def tree_of(
    subject: Subject,
    libraries: Sequence[EcosystemLibrary],
    taken: Mapping[str, str] | None = None,
) -> SourceTree:
    """The subject's sources as values, with what the registry knows about other libraries.

    ``taken`` are top-level names of sources that nothing declares, with whose they are.
    """
    library = subject.library
    packages = packages_of(subject)
    others = [item for item in libraries if library is None or item.name != library.name]
    return read_tree(
        subject.name,
        subject.folder,
        packages,
        base=REPOSITORY if subject.in_repository else subject.top,
        scope=() if library is None else library.compat_scope,
        roots=() if library is None else _root_modules(library.public_names),
        others={} if library is None else _dependencies(library, libraries),
        extra_tests=() if library is None else (REPOSITORY / "tests",),
        torch_importers=_importers(others),
        taken={**(taken or {}), **{name: item.name for item in others for name in item.modules}},
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
