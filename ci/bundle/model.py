"""What a bundle is: ``bundle.json`` as a value, read with care, because it came from elsewhere.

A bundle is a folder::

    bundle.json          every other file with its size and SHA-256
    README.txt           the commands
    repository.bundle    the farm's commit, for ``git clone``
    locks/               ``environments/KEY.txt`` as the farm's cache names them, ``farm-cp312.txt``
    wheels/              flat, for ``--find-links``
    sources/             ``NAME/INDEX-COMMIT.pack``: one commit of a submodule, without its history
    images/              ``HEX.tar``: what ``docker save`` gave for the image ``sha256:HEX``
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ci.errors import ConfigError

FORMAT = 1
RECORD = "bundle.json"
README = "README.txt"
REPOSITORY_FILE = "repository.bundle"
WHEELS, LOCKS, SOURCES, IMAGES = "wheels", "locks", "sources", "images"
ENVIRONMENT_LOCKS = f"{LOCKS}/environments"
_HEX = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_READ = 1 << 20


@dataclass(frozen=True)
class BundledFile:
    """One file: its path below the bundle (POSIX), its size in bytes and its SHA-256 in hex."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class BundledImage:
    """One image: where its archive is, its id (``sha256:…``), its local name and registry digests."""

    path: str
    id: str
    ref: str
    repo_digests: tuple[str, ...] = ()

    @property
    def cuda_label(self) -> str:
        """``cu130`` of ``paddlefleet-farm/build:cu130`` and of ``paddlefleet-farm/test:cu130-cp312``."""
        return self.ref.rpartition(":")[2].split("-", 1)[0]


@dataclass(frozen=True)
class BundledCommit:
    """The tree of one commit as a pack. ``place`` is its folder, relative to the repository."""

    path: str
    library: str
    place: str
    commit: str
    url: str


@dataclass(frozen=True)
class Bundle:
    """The whole of ``bundle.json``. ``tools`` are the versions of what made it, by name."""

    commit: str
    cells: tuple[str, ...]
    libraries: tuple[str, ...]
    pythons: tuple[str, ...]
    files: tuple[BundledFile, ...]
    images: tuple[BundledImage, ...]
    commits: tuple[BundledCommit, ...]
    tools: Mapping[str, str]

    def text(self) -> str:
        """The JSON text: sorted, without a time or a place, so that equal bundles are equal files."""
        document = {
            "format": FORMAT,
            "commit": self.commit,
            "cells": sorted(self.cells),
            "libraries": sorted(self.libraries),
            "pythons": list(self.pythons),
            "files": [asdict(item) for item in sorted(self.files, key=lambda one: one.path)],
            "images": [asdict(item) for item in sorted(self.images, key=lambda one: one.path)],
            "commits": [asdict(item) for item in self.commits],
            "tools": dict(sorted(self.tools.items())),
        }
        return json.dumps(document, indent=1) + "\n"

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(item.size for item in self.files)

    def below(self, *folders: str) -> tuple[BundledFile, ...]:
        """The files below these folders."""
        return tuple(item for item in self.files if item.path.split("/", 1)[0] in folders)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file in hex, read in pieces: image archives are larger than memory."""
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while piece := source.read(_READ):
            digest.update(piece)
    return digest.hexdigest()


def read_bundle(folder: Path) -> Bundle:
    """``bundle.json`` of ``folder``. Raises :class:`~ci.errors.ConfigError` when it is none."""
    record = folder / RECORD
    try:
        document = json.loads(record.read_text("utf-8"))
        if document["format"] != FORMAT:
            raise ConfigError(
                f"{record} has format {document['format']!r}, this farm reads {FORMAT}",
                cause="another version of the farm made it",
                next_step=f"clone the farm that is in it: git clone {folder / REPOSITORY_FILE}",
            )
        return _parsed(document)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{folder} is not a bundle: it has no {RECORD}",
            cause="the folder is another one, or `bundle make` did not end",
            next_step="python -m ci bundle make --out DIR; unpack a .tar first",
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{record} cannot be read",
            cause=f"{type(error).__name__}: {error}",
            next_step="copy the bundle again; its maker can check it with python -m ci bundle verify",
        ) from error


def _parsed(document: Mapping[str, Any]) -> Bundle:
    return Bundle(
        commit=_matching(_COMMIT, document["commit"]),
        cells=_texts(document["cells"]),
        libraries=_texts(document["libraries"]),
        pythons=_texts(document["pythons"]),
        files=tuple(_file(item) for item in document["files"]),
        images=tuple(_image(item) for item in document["images"]),
        commits=tuple(_commit(item) for item in document["commits"]),
        tools={str(name): str(text) for name, text in document["tools"].items()},
    )


def _file(item: Mapping[str, Any]) -> BundledFile:
    if not isinstance(item["size"], int):
        raise TypeError(f"size {item['size']!r}")
    return BundledFile(_inside(item["path"]), item["size"], _matching(_HEX, item["sha256"]))


def _image(item: Mapping[str, Any]) -> BundledImage:
    identity = str(item["id"])
    _matching(_HEX, identity.removeprefix("sha256:"))
    digests = _texts(item["repo_digests"])
    return BundledImage(_inside(item["path"]), identity, _word(item["ref"]), digests)


def _commit(item: Mapping[str, Any]) -> BundledCommit:
    return BundledCommit(
        path=_inside(item["path"]),
        library=_word(item["library"]),
        place=_inside(item["place"]),
        commit=_matching(_COMMIT, item["commit"]),
        url=str(item["url"]),
    )


def _inside(text: object) -> str:
    """A relative path that stays where it is; a bundle must not name files outside itself."""
    path = PurePosixPath(str(text))
    parts = path.parts
    if path.is_absolute() or not parts or ".." in parts or ".git" in parts or "\\" in str(text):
        raise ValueError(f"path {text!r} leaves the bundle")
    return path.as_posix()


def _matching(pattern: re.Pattern[str], text: object) -> str:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise ValueError(f"{text!r} is no {'commit' if pattern is _COMMIT else 'SHA-256'}")
    return text


def _word(text: object) -> str:
    """A name that no program takes for an option."""
    if not isinstance(text, str) or not re.fullmatch(r"\w[\w./:@+-]*", text):
        raise ValueError(f"{text!r} is no name")
    return text


def _texts(items: object) -> tuple[str, ...]:
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise TypeError(f"{items!r} is no list of texts")
    return tuple(items)
