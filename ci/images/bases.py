"""What images are made from: the public CUDA images, Paddle's own, or an image that the user names."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ci.errors import ConfigError
from ci.executors.model import Engine, ImageFacts
from ci.findings import Finding
from ci.images.build import BaseFacts
from ci.images.pins import ImagePin, NotPinned, Pins, pinned_reference

NEWEST_GCC: Mapping[str, int] = {"12.6": 13, "12.9": 14, "13.0": 15}
"""The newest gcc that nvcc of a CUDA takes (``crt/host_config.h``; *CUDA Installation Guide for Linux*,
"Host Compiler Support Policy")."""

GCC_TOOLSET = 13
"""Of Red Hat's gcc-toolset for public images: the newest that every CUDA of the matrix takes. manylinux_2_28
compilers are gcc-toolset, too (PyPA, ``pypa/manylinux``)."""

NAMED = ("airgapped", "public", "paddle")


@dataclass(frozen=True)
class ChosenBase:
    """A base, and what is to be said about it."""

    base: BaseFacts
    findings: tuple[Finding, ...] = ()


def own_base(facts: ImageFacts) -> BaseFacts:
    """The base that an image of this engine is, by the labels of the farm's air-gapped base."""
    return BaseFacts(
        ref=facts.ref,
        digest=facts.digest,
        pythons=facts.pythons,
        compiler=facts.label("compiler") or "nvcc",
        glibc=facts.label("glibc"),
        complete=facts.label("role") == "base",
    )


def pinned_base(role: str, use: str, cuda: str, pins: Pins, pythons: Sequence[str]) -> ChosenBase:
    """The base of a CUDA as ``docker/pins.toml`` has it: for an image's ``role``, by the pin's ``use``.

    Without a digest the tag alone is used, and a finding says so: what it names can change.
    """
    pin = pins.find(use, cuda)
    if pin is None:
        raise ConfigError(
            f"no {use} image is pinned for CUDA {cuda}",
            cause="docker/pins.toml has no entry for it",
            next_step="add one, or name a base with --base REF",
        )
    reference, findings = _reference(pin)
    pythons_ref = ""
    if use != "paddle":
        source = pins.pythons_for(pin)
        if source is None:
            raise ConfigError(
                f"no image with CPythons fits {pin.reference}",
                cause=f"docker/pins.toml has none for glibc {pin.glibc} or older",
                next_step="add a manylinux image to docker/pins.toml",
            )
        pythons_ref, more = _reference(source)
        findings += more
    base = BaseFacts(
        ref=reference,
        digest=reference.partition("@")[2] or "unpinned",
        pythons=tuple(pythons),
        compiler="nvcc" if role == "build" else "packages",
        pythons_ref=pythons_ref,
        gcc_toolset=str(GCC_TOOLSET) if use == "build" else "",
        glibc=pin.glibc,
    )
    return ChosenBase(base, findings)


def _reference(pin: ImagePin) -> tuple[str, tuple[Finding, ...]]:
    pinned = pinned_reference(pin, platform.machine())
    if isinstance(pinned, NotPinned):
        finding = Finding(
            rule="unpinned-base",
            place="docker/pins.toml",
            why=pinned.reason,
            mend=pinned.mend,
            level="note",
            subject=pin.name,
        )
        return pin.reference, (finding,)
    return pinned, ()


def named_base(ref: str, engine: Engine | None, pythons: Sequence[str]) -> ChosenBase:
    """The image that the user named. One that is here may tell of itself; any other must have its own
    CPythons below ``/opt/python``, as Paddle's manylinux images do.
    """
    facts = engine.image(ref) if engine is not None else None
    if facts is not None and facts.pythons:
        return ChosenBase(own_base(facts))
    digest = facts.digest if facts is not None else ref.partition("@")[2] or "unpinned"
    return ChosenBase(BaseFacts(ref, digest, tuple(pythons), "nvcc"))


def base_behind(facts: ImageFacts, engine: Engine, pins: Pins, pythons: Sequence[str]) -> BaseFacts:
    """The base that a finished image names in its labels: as it is here now, else as it was."""
    ref = facts.label("base")
    base = engine.image(ref)
    if base is not None and base.label("role") == "base":
        return own_base(base)
    pin = pins.by_reference(ref) if ref else None
    if pin is not None and pin.cuda:
        role = "test" if pin.use == "test" else "build"
        return pinned_base(role, pin.use, pin.cuda, pins, pythons).base
    return BaseFacts(ref, facts.label("base-digest"), facts.pythons, facts.label("compiler"))
