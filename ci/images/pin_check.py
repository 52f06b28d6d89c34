"""What is wrong with the pins: against the matrix, the Dockerfiles and the locks; against the registries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.utils import canonicalize_name

from ci.environments.lock import Lock
from ci.errors import InfrastructureError
from ci.executors.model import REPOSITORY_PREFIX
from ci.findings import Finding
from ci.images.pins import (
    EITHER,
    EITHER_PLATFORM,
    INDEX,
    PER_CUDA,
    PLATFORMS,
    ImagePin,
    NotPinned,
    Pins,
    parse_reference,
    pinned_reference,
)
from ci.images.registry_api import Answer, Registry
from ci.matrix.model import CudaEntry
from ci.matrix.places import index_lines, line_of

PLACE = "docker/pins.toml"
ARCHITECTURE = "x86_64"
"""What the matrix builds for, so that an image without a digest for it is unpinned."""

_FROM = re.compile(r"(?im)^\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?")
_ARG = re.compile(r"(?im)^\s*ARG\s+(\w+)=(\S+)")
_BAKED = re.compile(
    r'"(?:docker-image://)?([a-z0-9][\w.-]*(?:[:/][\w.-]+)*/[\w.-]+:[\w.-]+)(?:@|")'
)
_HASHED = r"(?m)^{name}==\S+[^\n]*\\\n\s+--hash=sha256:[0-9a-f]{{64}}\b"


@dataclass(frozen=True)
class Asked:
    """What registries said: an answer per image, and an error per image whose registry did not answer."""

    answers: Mapping[str, Answer] = field(default_factory=dict)
    silent: Mapping[str, InfrastructureError] = field(default_factory=dict)


def placed(findings: Sequence[Finding], text: str) -> tuple[Finding, ...]:
    """The findings, each with the line of its image or tool in the text of the file."""
    lines = index_lines(text)
    return tuple(
        replace(item, line=line_of(lines, item.subject.split(" ")) or 0)
        if item.place == PLACE
        else item
        for item in findings
    )


# -- without a network -----------------------------------------------------------------------------------


def check_uses(pins: Pins, cudas: Sequence[CudaEntry]) -> Iterator[Finding]:
    """Images that a CUDA of the matrix needs and the file lacks, and images that nothing can use."""
    images = {entry.version: str(parse_reference(entry.image)) for entry in cudas}
    for cuda, image in images.items():
        for use in PER_CUDA:
            found = pins.find(use, cuda)
            if found is None or (use == "paddle" and found.reference != image):
                yield _absent(use, cuda, image if use == "paddle" else "")
    for pin in pins.images:
        reason = _unused(pin, pins, images)
        if reason:
            yield _finding("image-unused", pin, reason, f"take images.{pin.name} out")


def _absent(use: str, cuda: str, image: str) -> Finding:
    named = f" ({image}, says matrix.toml)" if image else ""
    return Finding(
        "image-not-in-pins",
        PLACE,
        f"there is no image of use {use!r} for CUDA {cuda}{named}",
        "add its table, without digests, then: python -m ci pins --update",
        subject="images",
    )


def _unused(pin: ImagePin, pins: Pins, images: Mapping[str, str]) -> str:
    if pin.use == "pythons":
        bases = [other for other in pins.images if other.use != "pythons" and other.glibc]
        if any(pins.pythons_for(base) is pin for base in bases):
            return ""
        return f"no base has a glibc for which these CPythons ({pin.glibc}) would be taken"
    if pin.cuda not in images:
        return f"matrix.toml has no CUDA {pin.cuda}"
    if pin.use == "paddle" and pin.reference != images[pin.cuda]:
        return f"matrix.toml names {images[pin.cuda]} for CUDA {pin.cuda}"
    return ""


def check_pinned(pins: Pins) -> Iterator[Finding]:
    """Images that have no digest for the platform that is built."""
    for pin in pins.images:
        wanting = pinned_reference(pin, ARCHITECTURE)
        if isinstance(wanting, NotPinned):
            yield replace(_finding("unpinned", pin, wanting.reason, wanting.mend), level="warning")


def check_files(pins: Pins, folder: Path) -> Iterator[Finding]:
    """Images that a Dockerfile or a bake file in ``folder`` names and the file lacks."""
    for path in sorted(folder.glob("*")):
        if path.suffix == ".Dockerfile":
            named = dockerfile_references(path.read_text("utf-8"))
        elif path.suffix == ".hcl" or path.name.endswith("bake.json"):
            named = baked_references(path.read_text("utf-8"))
        else:
            continue
        for reference in named:
            if pins.by_reference(reference) is None:
                yield Finding(
                    "image-not-in-pins",
                    f"docker/{path.name}",
                    f"{reference} has no entry in {PLACE}",
                    "add its table, without digests, then: python -m ci pins --update",
                    subject=reference,
                )


def dockerfile_references(text: str) -> tuple[str, ...]:
    """Images that a Dockerfile starts from, by name or by an argument's default; not its own stages."""
    joined = re.sub(r"\\\n", " ", text)
    defaults = dict(_ARG.findall(joined))
    stages: set[str] = {"scratch"}
    found: dict[str, None] = {}
    for image, stage in _FROM.findall(joined):
        named = re.sub(r"\$\{?(\w+)\}?", lambda match: defaults.get(match[1], ""), image)
        if named and "$" not in named and named.lower() not in stages:
            found[named] = None
        stages.add(stage.lower())
    return tuple(found)


def baked_references(text: str) -> tuple[str, ...]:
    """Images that a bake file names in its values; not those that it makes."""
    plain = re.sub(r"(?m)^\s*(?:#|//).*$", "", text)
    return tuple(
        dict.fromkeys(
            name for name in _BAKED.findall(plain) if not name.startswith(f"{REPOSITORY_PREFIX}/")
        )
    )


def check_tools(pins: Pins, root: Path) -> Iterator[Finding]:
    """Tools whose lock is absent, or does not pin them with a hash."""
    for tool, lock in pins.tools.items():
        path = root / lock
        if not path.is_file():
            yield _tool(tool, f"its lock {lock} is absent", "python -m ci lock")
            continue
        text = path.read_text("utf-8")
        name = canonicalize_name(tool)
        if name not in Lock(text).pins:
            yield _tool(tool, f"{lock} does not pin it", "name the lock that does")
        elif not re.search(_HASHED.format(name=re.escape(name)), text):
            yield _tool(tool, f"{lock} pins it without a hash", "python -m ci lock")


def _tool(tool: str, why: str, mend: str) -> Finding:
    return Finding("tool-not-locked", PLACE, f"{tool}: {why}", mend, subject=f"tools {tool}")


def _finding(rule: str, pin: ImagePin, why: str, mend: str) -> Finding:
    return Finding(rule, PLACE, why, mend, subject=f"images {pin.name}")


# -- with one ------------------------------------------------------------------------------------------


def ask_registries(
    images: Sequence[ImagePin], open_registry: Callable[[str], Registry] = Registry
) -> Asked:
    """Ask for each image what its tag means, and which of its digests are gone.

    A registry that does not answer is not asked again: its other images are silent for the same reason.
    """
    registries: dict[str, Registry] = {}
    dead: dict[str, InfrastructureError] = {}
    answers: dict[str, Answer] = {}
    silent: dict[str, InfrastructureError] = {}
    for pin in images:
        reference = parse_reference(pin.reference)
        host = reference.registry
        if host not in dead:
            registry = registries.setdefault(host, open_registry(host))
            try:
                answers[pin.name] = registry.ask(reference, tuple(pin.digests.values()))
                continue
            except InfrastructureError as error:
                dead[host] = error
        silent[pin.name] = dead[host]
    return Asked(answers, silent)


def judge(pin: ImagePin, answer: Answer) -> Iterator[Finding]:
    """What a registry's answer says against a pin."""
    if answer.refused:
        yield _finding(
            "image-refused", pin, f"{pin.reference}: {answer.refused}", "name a public image"
        )
        return
    for key, digest in pin.digests.items():
        if digest in answer.gone:
            yield _finding(
                "digest-gone",
                pin,
                f"the registry has no {key} {digest} of {pin.reference} any more",
                f"{pin.pin_command}; keep a mirror or a bundle of images that must last",
            )
    if not answer.found:
        yield _finding(
            "tag-gone", pin, f"the registry has no {pin.reference}", "name a tag that exists"
        )
        return
    for key, digest in pin.digests.items():
        yield from _moved(pin, key, digest, answer.found)


def _moved(pin: ImagePin, key: str, digest: str, found: Mapping[str, str]) -> Iterator[Finding]:
    meant = (INDEX, EITHER_PLATFORM) if key == EITHER else (key,)
    kind = next((name for name in meant if found.get(name) == digest), "")
    if not kind:
        now = ", ".join(f"{name} {found[name]}" for name in meant if name in found) or "absent"
        yield _finding(
            "tag-moved",
            pin,
            f"{pin.reference} means something else now: {key} {digest} -> {now}",
            f"see what changed, then: {pin.pin_command}",
        )
    elif key == EITHER:
        why = f"{EITHER} {digest} is its {'index' if kind == INDEX else f'{kind} image'}"
        yield replace(_finding("unsettled", pin, why, pin.pin_command), level="note")


def own_digests(answer: Answer) -> dict[str, str]:
    """Of an answer, what the file records: the index, and the platforms that the farm knows."""
    known = (INDEX, *PLATFORMS.values())
    return {key: answer.found[key] for key in known if key in answer.found}
