"""``--source NAME=KIND:PLACE``: what the user wrote, as a value. Nothing is fetched here.

Forms: ``path:DIR``, ``git:URL@REV``, ``pypi:PROJECT==VERSION``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from packaging.version import InvalidVersion, Version

from ci.errors import ConfigError

OverrideKind = Literal["path", "git", "pypi"]
FORMS = "NAME=path:DIR, NAME=git:URL@REV or NAME=pypi:PROJECT==VERSION"


@dataclass(frozen=True)
class Override:
    """A source that replaces the pinned one. ``place`` is a folder, a URL or a project's name;
    ``revision`` a git revision or a version, empty for a folder.
    """

    library: str
    kind: OverrideKind
    place: str
    revision: str

    @property
    def origin(self) -> str:
        """The form that the user wrote, without the library's name."""
        return self._written(self.place)

    @property
    def public_origin(self) -> str:
        """The origin as a record may hold it: no folder of this machine, no user or password."""
        return self._written(self.public_place)

    @property
    def option(self) -> str:
        """What ``--source`` takes for it, without the user or the password of an address."""
        place = self._address_without_user if self._is_address else self.place
        return f"{self.library}={self._written(place)}"

    @property
    def _is_address(self) -> bool:
        return self.kind == "git" and "://" in self.place and not self.place.startswith("file:")

    @property
    def _address_without_user(self) -> str:
        scheme, rest = self.place.split("://", 1)
        authority, slash, path = rest.partition("/")
        return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}"

    @property
    def public_place(self) -> str:
        """The place without a folder of this machine, a user or a password."""
        place = self.place
        if self._is_address:
            return self._address_without_user
        if self.kind != "pypi" and not re.match(r"[\w.-]+@[\w.-]+:", place):
            return PurePosixPath(place).name
        return place

    def _written(self, place: str) -> str:
        joint = {"path": "", "git": "@", "pypi": "=="}[self.kind]
        return f"{self.kind}:{place}{joint}{self.revision}"


def parse_overrides(texts: Sequence[str], known: Sequence[str]) -> dict[str, Override]:
    """The overrides by library. Raises :class:`~ci.errors.ConfigError` that lists every bad one."""
    found: dict[str, Override] = {}
    problems: list[str] = []
    for text in texts:
        try:
            override = parse_override(text)
        except ConfigError as error:
            problems.append(error.message)
            continue
        if override.library not in known:
            near = difflib.get_close_matches(override.library, known, n=2, cutoff=0.4)
            problems.append(
                f"--source {text}: unknown library {override.library!r}"
                + (f"; nearest: {', '.join(near)}" if near else "")
            )
        elif override.library in found:
            problems.append(f"--source: two sources for {override.library!r}")
        found[override.library] = override
    if problems:
        raise ConfigError(
            problems[0] if len(problems) == 1 else f"{len(problems)} bad --source options",
            cause=f"--source takes {FORMS}, for a declared library",
            next_step="python -m ci libraries",
            details=problems if len(problems) > 1 else (),
        )
    return found


def parse_override(text: str) -> Override:
    """One ``--source`` value. Raises :class:`~ci.errors.ConfigError`."""
    match = re.fullmatch(r"([\w.-]+)=(path|git|pypi):(.+)", text)
    if match is None:
        raise ConfigError(f"--source {text}: not of the form {FORMS}")
    library, kind, place = match.groups()
    if kind == "path":
        return Override(library, "path", place, "")
    if kind == "git":
        url, _, revision = place.rpartition("@")
        if not _is_url(url) or not re.fullmatch(r"[^\s:-][^\s:]*", revision):
            raise ConfigError(f"--source {text}: name the revision: git:URL@REV")
        return Override(library, "git", url, revision)
    project, separator, version = place.partition("==")
    if not separator or not re.fullmatch(r"\w(?:[\w.-]*\w)?", project) or not _is_version(version):
        raise ConfigError(f"--source {text}: name the version: pypi:PROJECT==VERSION")
    return Override(library, "pypi", project, version.strip())


def _is_url(text: str) -> bool:
    """A URL with a path (``ssh://git`` has none: the @ after it is that of a user), or a place that ssh
    or the file system knows.
    """
    if "://" in text:
        return "/" in text.split("://", 1)[1]
    return bool(text) and not text.startswith("-")


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
