"""``docker/pins.toml`` → :class:`Pins`, or one error that lists everything wrong with the file.

A digest is what an image is named by for good: SHA-256 of its manifest, or of the index that lists the
manifests of all platforms (OCI image specification, "descriptor"). A tag can move, a digest cannot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from ci.errors import ConfigError
from ci.matrix.load import all_problems, toml_data
from ci.matrix.schema import Problem, shape_problems
from ci.registry import REPOSITORY

PINS = REPOSITORY / "docker" / "pins.toml"
SCHEMA_FILE = Path(__file__).with_name("pins.schema.json")
INDEX = "index"
EITHER = "either"
PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}
"""What ``platform.machine()`` says, to the platform's name in an image index."""

EITHER_PLATFORM = "linux/amd64"
"""The platform for which a digest of unsaid kind (``either``) was used by its source."""

PER_CUDA = ("build", "paddle", "test")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_UPDATE = "python -m ci pins --update"


@dataclass(frozen=True)
class Reference:
    """An image reference in its parts: ``docker.io``, ``nvidia/cuda``, ``12.6.3-devel-rockylinux8``."""

    registry: str
    repository: str
    tag: str

    def __str__(self) -> str:
        return f"{self.registry}/{self.repository}:{self.tag}"


@dataclass(frozen=True)
class ImagePin:
    """One image. ``digests`` and ``sources`` have the same keys: ``index``, platforms, ``either``.

    ``seen`` is the day on which the digests were read at their sources, ``None`` where there are none.
    """

    name: str
    reference: str
    use: str
    cuda: str = ""
    glibc: str = ""
    digests: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    seen: date | None = None

    @property
    def index_digest(self) -> str:
        """The digest of the list of all platforms, empty when it is not known."""
        return self.digests.get(INDEX, "")

    @property
    def platforms(self) -> dict[str, str]:
        """Platform (``linux/amd64``) to the digest of its image."""
        return {key: value for key, value in self.digests.items() if key not in (INDEX, EITHER)}

    @property
    def pin_command(self) -> str:
        """What pins it."""
        return f"{_UPDATE} {self.name}"


@dataclass(frozen=True)
class NotPinned:
    """Why an image has no pinned reference, and what mends that."""

    reason: str
    mend: str


@dataclass(frozen=True)
class Pins:
    """The file: images in its order, and tools (name to the lock that holds version and hashes)."""

    images: tuple[ImagePin, ...]
    tools: Mapping[str, str]

    def find(self, use: str, cuda: str = "", glibc: str = "") -> ImagePin | None:
        """The image for a use: of a CUDA, or (``pythons``) of a glibc; ``None`` when there is none."""
        for pin in self.images:
            if pin.use == use and cuda in ("", pin.cuda) and glibc in ("", pin.glibc):
                return pin
        return None

    def by_reference(self, reference: str) -> ImagePin | None:
        """The image that a reference means, however short it is (``nvidia/cuda:TAG``)."""
        wanted = str(parse_reference(reference))
        return next((pin for pin in self.images if pin.reference == wanted), None)

    def pythons_for(self, pin: ImagePin) -> ImagePin | None:
        """Where CPythons for a base come from: the newest that its glibc can run."""
        fitting = [
            other
            for other in self.images
            if other.use == "pythons" and _number(other.glibc) <= _number(pin.glibc)
        ]
        return max(fitting, key=lambda other: _number(other.glibc), default=None)


def load_pins(path: Path = PINS) -> Pins:
    """Read and check the file. :class:`ConfigError` holds one line per problem, with its place."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {path}: {error}",
            cause="the bases of the farm's images are pinned in docker/pins.toml",
            next_step="restore it: git checkout -- docker/pins.toml",
        ) from error
    return parse_pins(text, path.name)


def parse_pins(text: str, name: str = "pins.toml") -> Pins:
    """Check a text; ``name`` is the file to name in messages. Errors as in :func:`load_pins`."""
    data = toml_data(text, name, "pins --check")
    shape = shape_problems(data, SCHEMA_FILE)
    problems = shape or (*_rule_problems(data),)
    if problems:
        raise all_problems(text, name, problems, "pins --check")
    images = tuple(_image(name, entry) for name, entry in data["images"].items())
    return Pins(images, dict(data["tools"]))


def parse_reference(text: str) -> Reference:
    """The parts of a reference; Docker's defaults where it leaves out registry or tag, a digest dropped.

    The first part is a registry when it has a dot or a port, or is ``localhost`` (distribution/reference,
    "familiar names").
    """
    plain = text.partition("@")[0]
    head, slash, rest = plain.partition("/")
    if not slash or not ("." in head or ":" in head or head == "localhost"):
        head, rest = "docker.io", plain
    name, colon, tag = rest.rpartition(":")
    name, tag = (name, tag) if colon else (rest, "latest")
    if head == "docker.io" and "/" not in name:
        name = f"library/{name}"
    return Reference(head, name, tag)


def pinned_reference(pin: ImagePin, architecture: str) -> str | NotPinned:
    """``NAME:TAG@sha256:…`` for ``platform.machine()``'s architecture, or why there is none.

    The platform's own digest where it is known, else the index's, which lets the engine choose.
    """
    platform = PLATFORMS.get(architecture)
    if platform is None:
        return NotPinned(
            f"{pin.name} is pinned for no platform of {architecture}",
            f"use a host with {' or '.join(PLATFORMS)}",
        )
    either = pin.digests.get(EITHER, "") if platform == EITHER_PLATFORM else ""
    digest = pin.digests.get(platform) or pin.index_digest or either
    if digest:
        return f"{pin.reference}@{digest}"
    known = ", ".join(pin.digests) or "none"
    return NotPinned(
        f"{pin.name} ({pin.reference}) has no digest for {platform} in docker/pins.toml (known: {known})",
        f"{pin.pin_command}, or look at it: docker buildx imagetools inspect {pin.reference}",
    )


def is_digest(text: str) -> bool:
    """Whether a text is a SHA-256 digest as registries write it."""
    return _DIGEST.fullmatch(text) is not None


def _image(name: str, entry: Mapping[str, Any]) -> ImagePin:
    return ImagePin(
        name=name,
        reference=entry["reference"],
        use=entry["use"],
        cuda=entry.get("cuda", ""),
        glibc=entry.get("glibc", ""),
        digests=dict(entry.get("digest", {})),
        sources=dict(entry.get("source", {})),
        seen=date.fromisoformat(entry["seen"]) if "seen" in entry else None,
    )


def _rule_problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    """What the schema cannot say, of a file whose shape is right."""
    images: Mapping[str, Mapping[str, Any]] = data["images"]
    for name, entry in images.items():
        path = ("images", name)
        yield from _axis_problems(path, entry)
        yield from _digest_problems(path, entry)
        yield from _day_problems(path, entry)
    yield from _repeated(images, "reference", lambda entry: entry["reference"])
    yield from _repeated(images, "use", _place)


def _place(entry: Mapping[str, Any]) -> str:
    return f"{entry['use']} of {entry.get('cuda') or 'glibc ' + entry.get('glibc', '')}"


def _axis_problems(path: tuple[str, str], entry: Mapping[str, Any]) -> Iterator[Problem]:
    use = entry["use"]
    if use in PER_CUDA and "cuda" not in entry:
        yield Problem((*path, "cuda"), f"is missing: an image for {use!r} is for one CUDA")
    if use == "pythons" and "cuda" in entry:
        yield Problem((*path, "cuda"), "CPythons are for no CUDA; leave it out")
    if use == "pythons" and "glibc" not in entry:
        yield Problem((*path, "glibc"), "is missing: CPythons run where the base's glibc is as new")


def _digest_problems(path: tuple[str, str], entry: Mapping[str, Any]) -> Iterator[Problem]:
    digests, sources = entry.get("digest", {}), entry.get("source", {})
    for key, value in digests.items():
        here = (*path, "digest", key)
        if not is_digest(value):  # the schema's `$` lets a line break through
            yield Problem(here, f"{value!r} is no SHA-256 digest")
        if key not in sources:
            yield Problem(here, f"has no source; say under source.{key} where it can be read")
        if list(digests.values()).count(value) > 1:
            yield Problem(here, "is also another key's; an index and its images differ")
    for key in [key for key in sources if key not in digests]:
        yield Problem((*path, "source", key), f"there is no digest.{key} that it would be of")
    if EITHER in digests and (INDEX in digests or EITHER_PLATFORM in digests):
        yield Problem(
            (*path, "digest", EITHER), f"is settled by index and {EITHER_PLATFORM}; take it out"
        )


def _day_problems(path: tuple[str, str], entry: Mapping[str, Any]) -> Iterator[Problem]:
    if "digest" in entry and "seen" not in entry:
        yield Problem((*path, "seen"), "is missing: the day on which the digests were read")
    if "seen" in entry and "digest" not in entry:
        yield Problem((*path, "seen"), "there is no digest that was seen")
    try:
        date.fromisoformat(entry.get("seen", "2026-01-01"))
    except ValueError:
        yield Problem((*path, "seen"), f"{entry['seen']!r} is no day of the calendar")


def _repeated(
    images: Mapping[str, Mapping[str, Any]], key: str, of: Callable[[Mapping[str, Any]], str]
) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for name, entry in images.items():
        value = of(entry)
        if value in first:
            yield Problem(("images", name, key), f"{value!r} is images.{first[value]} already")
        first.setdefault(value, name)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")) if version else ()
