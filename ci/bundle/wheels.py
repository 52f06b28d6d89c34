"""The wheels of a lock, fetched as they are: uv names the files, each is kept under its hash.

uv has no command that leaves the wheels themselves. Its lock in the form of PEP 751 names every file
that fits a Python with address, size and hash, so no interpreter of that Python is needed here, and
the size of a bundle is known before anything is downloaded.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.tags import Tag, compatible_tags, cpython_tags, platform_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from ci.bundle.model import sha256_of
from ci.errors import InfrastructureError
from ci.proc import Command, run

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ATTEMPTS = 4
_PIECE = 1 << 20
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_|manylinux(1|2010|2014)_")
_LEGACY = {"1": (2, 5), "2010": (2, 12), "2014": (2, 17)}  # PEP 600, "Legacy manylinux tags"


@dataclass(frozen=True)
class WheelFile:
    """One wheel of an index: file name, address, SHA-256 in hex, size in bytes (0 when not told)."""

    name: str
    url: str
    sha256: str
    size: int


def wheels_of(lock: str, python: str) -> tuple[WheelFile, ...]:
    """The wheels that an environment of ``lock`` (a requirements text with hashes) needs for ``python``.

    Where several wheels of a version fit, the one for the oldest glibc is taken, because the other
    machine, or an image, may have an older one than this. Raises
    :class:`~ci.errors.InfrastructureError` when the index does not tell, or has no wheel with a hash
    of the lock.
    """
    if not lock.strip():
        return ()
    document = _pylock(lock, python)
    allowed = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", lock))
    supported = _supported(python)
    return tuple(_chosen(package, allowed, supported) for package in document["packages"])


def _pylock(lock: str, python: str) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        locked, named = Path(scratch, "lock.txt"), Path(scratch, "pylock.toml")
        locked.write_text(lock, "utf-8")
        argv = (
            sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-deps", "--no-header",
            "--only-binary", ":all:", "--format", "pylock.toml", "--python-version", python,
            "--output-file", str(named), str(locked),
        )  # fmt: skip
        done = run(Command(argv, timeout=900))
        if done.ok:
            document: Mapping[str, Any] = tomllib.loads(named.read_text("utf-8"))
            return document
    raise InfrastructureError(
        "the package index does not name the wheels of a lock",
        cause="no network, the index is down, or it lacks a version that is locked",
        next_step="try again; behind a mirror set UV_DEFAULT_INDEX",
        details=done.tail(12),
    )


def _supported(python: str) -> dict[Tag, int]:
    """The tags that fit ``python`` on machines like this one, each with its rank; 0 is the best."""
    major, minor = (int(part) for part in python.split("."))
    platforms = list(platform_tags())
    interpreter = f"cp{major}{minor}"
    tags = [*cpython_tags((major, minor), [interpreter], platforms)]
    tags += compatible_tags((major, minor), interpreter, platforms)
    return {tag: rank for rank, tag in reversed(list(enumerate(tags)))}


def _chosen(
    package: Mapping[str, Any], allowed: set[str], supported: Mapping[Tag, int]
) -> WheelFile:
    fitting = []
    for item in package.get("wheels", []):
        wheel = _wheel_file(item)
        rank = _rank(wheel.name, supported)
        if rank is not None and wheel.sha256 in allowed:
            fitting.append((rank, wheel))
    if not fitting:
        raise InfrastructureError(
            f"the index has no wheel of {package.get('name')} {package.get('version', '')} as it is locked",
            cause="it serves other files than those whose hashes are in the lock, or none for this machine",
            next_step="check the package index (a mirror?), or python -m ci lock",
        )
    return min(fitting, key=lambda pair: (pair[0], pair[1].name))[1]


def _rank(name: str, supported: Mapping[Tag, int]) -> tuple[str, tuple[int, int], int] | None:
    """Sorts wheels that fit: a compiled one before a pure one, then the oldest glibc, then as pip does."""
    try:
        tags = [tag for tag in parse_wheel_filename(name)[3] if tag in supported]
    except InvalidWheelFilename:
        return None
    if not tags:
        return None
    pure = all(tag.platform == "any" for tag in tags)
    return ("pure" if pure else "", *min((_glibc(tag), supported[tag]) for tag in tags))


def _glibc(tag: Tag) -> tuple[int, int]:
    match = _MANYLINUX.match(tag.platform)
    if match is None:
        return (0, 0) if tag.platform == "any" else (99, 0)
    return _LEGACY[match[3]] if match[3] else (int(match[1]), int(match[2]))


def _wheel_file(item: Mapping[str, Any]) -> WheelFile:
    address = str(item["url"]) if "url" in item else Path(str(item["path"])).absolute().as_uri()
    name = str(item.get("name") or urllib.parse.unquote(address.rsplit("/", 1)[-1].split("#")[0]))
    return WheelFile(name, address, str(item["hashes"]["sha256"]), int(item.get("size", 0)))


# -- downloading -----------------------------------------------------------------------------------


def kept_place(wheel: WheelFile, cache_dir: Path) -> Path:
    """Where a downloaded wheel is kept in the cache, under its hash."""
    return cache_dir / "wheels" / wheel.sha256[:2] / wheel.sha256 / wheel.name


def missing_bytes(wheels: Iterable[WheelFile], cache_dir: Path) -> int:
    """Bytes that have to be downloaded."""
    return sum(item.size for item in wheels if not kept_place(item, cache_dir).exists())


def fetch(
    wheels: Sequence[WheelFile], cache_dir: Path, progress: Callable[[str], None]
) -> tuple[Path, ...]:
    """The wheels in the cache, downloaded where they are not there; each was checked against its hash.

    Raises :class:`~ci.errors.InfrastructureError` after several attempts.
    """
    absent = [item for item in wheels if not kept_place(item, cache_dir).exists()]
    for number, wheel in enumerate(absent, 1):
        told = f", {wheel.size / 1e6:.1f} MB" if wheel.size else ""
        progress(f"download {number}/{len(absent)}: {wheel.name}{told}")
        _download(wheel, kept_place(wheel, cache_dir))
    return tuple(kept_place(item, cache_dir) for item in wheels)


def _download(wheel: WheelFile, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    failure: Exception | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(2.0**attempt)
        try:
            _download_once(wheel, place)
            return
        except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
            failure = error
            if isinstance(error, urllib.error.HTTPError) and error.code in (401, 403, 404, 410):
                break
    raise InfrastructureError(
        f"cannot download {wheel.name}",
        cause=f"{type(failure).__name__}: {failure}",
        next_step="run the same command again: what was downloaded is kept",
    ) from failure


def _download_once(wheel: WheelFile, place: Path) -> None:
    scratch = place.with_name(f".{place.name}.{os.getpid()}")
    digest = hashlib.sha256()
    try:
        # The address is the index's own; the content is checked against the lock's hash.
        with urllib.request.urlopen(wheel.url, timeout=120) as answer, scratch.open("wb") as sink:  # noqa: S310
            while piece := answer.read(_PIECE):
                digest.update(piece)
                sink.write(piece)
        if digest.hexdigest() != wheel.sha256:
            raise http.client.HTTPException(
                f"its SHA-256 is {digest.hexdigest()}, the lock says {wheel.sha256}"
            )
        os.replace(scratch, place)
    finally:
        scratch.unlink(missing_ok=True)


def verified(path: Path, sha256: str) -> bool:
    """True when the file is there with this content."""
    return path.is_file() and sha256_of(path) == sha256
