"""Images in a bundle: what an engine saved, checked by content and not by what a file is called.

An archive holds its images' configurations and layers under their hashes, in the layout of ``docker
save`` (Docker's Image Specification v1.2, ``manifest.json``) and, from Docker 25 on, of the OCI Image
Layout (``index.json``, ``blobs/``) beside it. An engine with the classic store calls an image by the hash
of its configuration, one with containerd's store by the hash of its manifest; both are in the archive.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import IO, Any

from ci.bundle.model import IMAGES, BundledImage
from ci.errors import FindingError, InfrastructureError
from ci.executors.model import Engine, EngineFacts, ImageFacts
from ci.proc import Command, run

_SECONDS = 3600.0
_LARGEST_JSON = 16 << 20


class ArchiveError(ValueError):
    """An archive of an image that is damaged, or not of the layout of ``docker save``."""


def entry_of(image: ImageFacts) -> BundledImage:
    """How a bundle names an image."""
    name = image.id.rpartition(":")[2]
    return BundledImage(f"{IMAGES}/{name}.tar", image.id, image.ref, tuple(image.repo_digests))


def save_image(facts: EngineFacts, item: BundledImage, folder: Path) -> Path:
    """The archive of an image in ``folder``; one that is there already and whole is kept.

    Raises :class:`~ci.errors.InfrastructureError` when the engine cannot save it.
    """
    target = folder / item.path
    if target.is_file() and not archive_problem(target, item.id):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    layout = ("--format", "docker-archive") if facts.name == "podman" else ()
    argv = (str(facts.program), "save", *layout, "--output", str(scratch), item.ref)
    try:
        done = run(Command(argv, timeout=_SECONDS))
        problem = done.output.strip() if not done.ok else archive_problem(scratch, item.id)
        if problem:
            raise InfrastructureError(
                f"{facts.name} does not save {item.ref}",
                cause=problem,
                next_step=done.command.shown,
            )
        scratch.chmod(0o644)
        os.replace(scratch, target)
    finally:
        scratch.unlink(missing_ok=True)
    return target


def load_image(engine: Engine, item: BundledImage, folder: Path) -> ImageFacts:
    """Load an image unless the engine has just this one under its name; the loaded one is checked.

    Raises :class:`~ci.errors.InfrastructureError` when the engine refuses the archive, and
    :class:`~ci.errors.FindingError` when what it loaded is another image.
    """
    archive = folder / item.path
    ids = (item.id, *_checked_ids(archive, item))
    present = engine.image(item.ref)
    if present is not None and present.id in ids:
        return present
    done = run(
        Command((str(engine.facts.program), "load", "--input", str(archive)), timeout=_SECONDS)
    )
    if not done.ok:
        raise InfrastructureError(
            f"{engine.facts.name} does not load {item.ref} from the bundle",
            cause=done.output.strip() or "it said nothing",
            next_step=done.command.shown,
        )
    loaded = engine.image(item.ref)
    if loaded is None or loaded.id not in ids:
        raise FindingError(
            f"the bundle's {item.ref} is not the image {item.id}",
            cause=f"the engine loaded {loaded.id if loaded else 'nothing under that name'}",
            next_step=f"python -m ci bundle verify {folder}",
        )
    return loaded


def _checked_ids(archive: Path, item: BundledImage) -> tuple[str, ...]:
    try:
        ids = archive_ids(archive)
    except ArchiveError as error:
        problem = str(error)
    else:
        if item.id in ids:
            return ids
        problem = f"it holds {', '.join(ids) or 'no image'}"
    raise FindingError(
        f"the archive of {item.ref} in the bundle is not the image {item.id}",
        cause=problem,
        next_step=f"python -m ci bundle verify {archive.parents[1]}",
    )


# -- archives --------------------------------------------------------------------------------------


def archive_problem(archive: Path, identity: str) -> str:
    """What is wrong with an archive that should hold the image ``identity``; empty when nothing is."""
    try:
        ids = archive_ids(archive)
    except ArchiveError as error:
        return str(error)
    return "" if identity in ids else f"it holds {', '.join(ids) or 'no image'}, not {identity}"


def archive_ids(archive: Path) -> tuple[str, ...]:
    """The ids (``sha256:…``) of the images in an archive, computed from their content, layers included.

    Raises :class:`ArchiveError` when it cannot be read or a layer is not what a configuration says.
    """
    try:
        with tarfile.open(archive, "r:") as tar:
            return _classic_ids(tar) + _oci_ids(tar)
    except (OSError, tarfile.TarError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ArchiveError):
            raise
        raise ArchiveError(
            f"it is no archive of an image: {type(error).__name__}: {error}"
        ) from error


def _classic_ids(tar: tarfile.TarFile) -> tuple[str, ...]:
    found = []
    for entry in json.loads(_content(tar, "manifest.json")):
        raw = _content(tar, entry["Config"])
        wanted = json.loads(raw)["rootfs"]["diff_ids"]
        layers = entry["Layers"]
        if len(layers) != len(wanted):
            raise ArchiveError(f"{len(layers)} layers, its configuration names {len(wanted)}")
        for name, digest in zip(layers, wanted, strict=True):
            if _layer_digest(tar, name) != digest:
                raise ArchiveError(f"its layer {name} is not {digest}")
        found.append(f"sha256:{hashlib.sha256(raw).hexdigest()}")
    return tuple(found)


def _oci_ids(tar: tarfile.TarFile) -> tuple[str, ...]:
    """Of the manifests that ``index.json`` names, where there is one."""
    if "index.json" not in tar.getnames():
        return ()
    found = []
    for entry in json.loads(_content(tar, "index.json"))["manifests"]:
        digest = str(entry["digest"])
        raw = _content(tar, f"blobs/{digest.replace(':', '/')}")
        if f"sha256:{hashlib.sha256(raw).hexdigest()}" != digest:
            raise ArchiveError(f"its manifest is not {digest}")
        found.append(digest)
    return tuple(found)


def _opened(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    """A member; a link inside the archive is followed (equal layers are stored once)."""
    stream = tar.extractfile(tar.getmember(name))
    if stream is None:
        raise ArchiveError(f"{name} is no file")
    return stream


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    with _opened(tar, name) as stream:
        raw = stream.read(_LARGEST_JSON + 1)
    if len(raw) > _LARGEST_JSON:
        raise ArchiveError(f"{name} is too large for what it should be")
    return raw


def _layer_digest(tar: tarfile.TarFile, name: str) -> str:
    """SHA-256 of the layer's own tar, as ``diff_ids`` give it."""
    with _opened(tar, name) as stream:
        magic = stream.read(2)
        stream.seek(0)
        plain: Any = gzip.GzipFile(fileobj=stream) if magic == b"\x1f\x8b" else stream
        digest = hashlib.sha256()
        while piece := plain.read(1 << 20):
            digest.update(piece)
    return f"sha256:{digest.hexdigest()}"
