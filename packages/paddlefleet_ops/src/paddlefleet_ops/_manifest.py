"""The manifest of the wheel as typed values.

``_manifest.json`` is written when the wheel is built and lies beside this file. It is all that the
loader knows about the libraries: their names, gates, compat scopes, hints, and what the wheel
lacks.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ._requires import Requires

FILE_NAME = "_manifest.json"
SCHEMA = 1


class ManifestError(ImportError):
    """The package has no manifest, or one that this loader cannot read."""


@dataclass(frozen=True)
class Source:
    """Where a library's sources came from; ``pinned``: a submodule at its recorded commit."""

    kind: str = ""
    origin: str = ""
    revision: str = ""
    tree: str = ""
    pinned: bool = False


@dataclass(frozen=True)
class Library:
    """One library of the wheel.

    ``module`` is the top-level name that is attached to the package, ``modules`` holds every
    top-level name that the library brings, ``public_names`` are texts such as ``"rmsnorm"`` (an
    attribute of the module) or ``"quack.softmax:softmax"`` (an attribute of that submodule).
    ``load_env`` holds environment variables that its import reads.
    """

    name: str
    module: str
    modules: tuple[str, ...]
    availability: str
    kind: str
    requires: Requires
    compat_scope: tuple[str, ...]
    preload: tuple[str, ...]
    public_names: tuple[str, ...]
    hint: str
    depends_on: tuple[str, ...]
    run_requires: tuple[str, ...]
    source: Source
    load_env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class LeftOut:
    """A declared library that is not in the wheel, and every reason for that."""

    name: str
    module: str
    availability: str
    hint: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """The point of the matrix that the wheel was built for."""

    id: str
    cuda: str
    python: str
    capabilities: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """The whole manifest; ``libraries`` are in load order: a dependency comes before its user."""

    version: str
    cell: Cell
    publishable: bool
    libraries: tuple[Library, ...]
    left_out: tuple[LeftOut, ...]


def read_manifest(package: str) -> Manifest:
    """The manifest of the imported ``package``, which may lie in a zip archive.

    Raises :class:`ManifestError`, an :class:`ImportError`, when there is none or it cannot be read.
    """
    try:
        data = pkgutil.get_data(package, FILE_NAME)
    except OSError:
        data = None
    if data is None:
        raise ManifestError(
            f"{package} has no {FILE_NAME}: this is its source tree and not an installed wheel. "
            "The wheel holds the libraries and the manifest that names them. Build and install one "
            f"(nox -s wheel-cu130, then pip install the wheel it names), and import {package} from "
            "a folder where the installed wheel is found first."
        )
    return parse_manifest(data)


def parse_manifest(data: bytes | str) -> Manifest:
    """The manifest as typed values. Raises :class:`ManifestError` that says what is wrong."""
    try:
        values = json.loads(data)
        if not isinstance(values, dict):
            raise TypeError("it is not an object")
        if values.get("schema") != SCHEMA:
            raise ValueError(f"its schema is {values.get('schema')!r}, this loader reads {SCHEMA}")
        return _manifest(values)
    except KeyError as error:
        raise _unreadable(f"the key {error} is missing") from error
    except (TypeError, ValueError) as error:
        raise _unreadable(str(error)) from error


def _unreadable(why: str) -> ManifestError:
    return ManifestError(
        f"{FILE_NAME} cannot be read: {why}. It was written by another version of the farm, or was "
        "changed after the build. Install the wheel again: pip install --force-reinstall --no-deps "
        "with the wheel file."
    )


def _manifest(values: Mapping[str, Any]) -> Manifest:
    return Manifest(
        version=str(values["version"]),
        cell=_cell(values["cell"]),
        publishable=bool(values.get("publishable", False)),
        libraries=tuple(_library(entry) for entry in values["libraries"]),
        left_out=tuple(_left_out(entry) for entry in values.get("left_out", ())),
    )


def _cell(values: Mapping[str, Any]) -> Cell:
    return Cell(
        id=str(values["id"]),
        cuda=str(values.get("cuda", "")),
        python=str(values.get("python", "")),
        capabilities=_texts(values, "capabilities"),
    )


def _library(values: Mapping[str, Any]) -> Library:
    module = str(values["module"])
    others = (name for name in _texts(values, "modules") if name != module)
    return Library(
        name=str(values["name"]),
        module=module,
        modules=(module, *others),
        availability=str(values["availability"]),
        kind=str(values.get("kind", "")),
        requires=Requires.from_dict(values["requires"]),
        compat_scope=_texts(values, "compat_scope"),
        preload=_texts(values, "preload"),
        public_names=_texts(values, "public_names"),
        hint=str(values.get("hint", "")),
        depends_on=_texts(values, "depends_on"),
        run_requires=_texts(values, "run_requires"),
        source=_source(values.get("source", {})),
        load_env=tuple((str(k), str(v)) for k, v in values.get("load_env", {}).items()),
    )


def _left_out(values: Mapping[str, Any]) -> LeftOut:
    return LeftOut(
        name=str(values["name"]),
        module=str(values["module"]),
        availability=str(values["availability"]),
        hint=str(values.get("hint", "")),
        reasons=_texts(values, "reasons"),
    )


def _source(values: Mapping[str, Any]) -> Source:
    return Source(
        kind=str(values.get("kind", "")),
        origin=str(values.get("origin", "")),
        revision=str(values.get("revision", "")),
        tree=str(values.get("tree", "")),
        pinned=bool(values.get("pinned", False)),
    )


def _texts(values: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = values.get(key) or ()
    if isinstance(found, str):
        raise TypeError(f"{key!r} is the text {found!r}, but a list of texts is needed")
    return tuple(str(item) for item in found)
