"""Is a bundle what its record says? Every difference is a finding; all are told at once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ci.bundle.commits import check_repository
from ci.bundle.images import archive_problem
from ci.bundle.model import (
    IMAGES,
    LOCKS,
    RECORD,
    REPOSITORY_FILE,
    SOURCES,
    WHEELS,
    Bundle,
    BundledFile,
    sha256_of,
)
from ci.environments.lock import committed
from ci.findings import Finding

PARTS = (WHEELS, LOCKS, SOURCES, IMAGES)
_LOCK_NAMES = ("build", "import", "farm")
_ENTRY = re.compile(
    r"^([\w.-]+(?:\[[\w.,-]+\])?==[^\s;\\]+)(?: ; [^\\\n]+)?((?: \\\n    --hash=sha256:[0-9a-f]+)+)\n",
    re.MULTILINE,
)
_COPY_AGAIN = "copy the bundle again, or make it again: python -m ci bundle make --out DIR"


def bundle_findings(
    folder: Path, bundle: Bundle, progress: Callable[[str], None]
) -> tuple[Finding, ...]:
    """Everything that is wrong with the whole bundle."""
    found = list(part_findings(folder, bundle, PARTS, progress))
    found += _changed(folder, [item for item in bundle.files if "/" not in item.path])
    found += _unnamed(folder, bundle)
    if not any(item.place == REPOSITORY_FILE for item in found):
        found += _repository(folder, bundle)
    return tuple(sorted(found))


def part_findings(
    folder: Path, bundle: Bundle, parts: Sequence[str], progress: Callable[[str], None]
) -> tuple[Finding, ...]:
    """What is wrong with some of :data:`PARTS`: what a run is about to use."""
    found: list[Finding] = []
    for part in parts:
        items = bundle.below(part)
        if items:
            size = sum(item.size for item in items) / 1e6
            progress(f"checking {part}: {len(items)} files, {size:.0f} MB")
        found += _changed(folder, items)
    if IMAGES in parts:
        found += _images(folder, bundle, {item.place for item in found})
    return tuple(found)


def _changed(folder: Path, items: Sequence[BundledFile]) -> Iterator[Finding]:
    for item in items:
        path = folder / item.path
        if path.is_symlink() or not path.is_file():
            why = "it is not there" if not path.is_symlink() else "it is a link instead of a file"
            yield Finding("bundle-missing", item.path, why, _COPY_AGAIN)
        elif path.stat().st_size != item.size:
            why = f"it has {path.stat().st_size} bytes, the record says {item.size}"
            yield Finding("bundle-changed", item.path, why, _COPY_AGAIN)
        elif (digest := sha256_of(path)) != item.sha256:
            why = f"its SHA-256 is {digest}, the record says {item.sha256}"
            yield Finding("bundle-changed", item.path, why, _COPY_AGAIN)


def files_below(folder: Path) -> tuple[str, ...]:
    """The relative paths of everything below ``folder`` but folders, sorted."""
    found = []
    for root, folders, names in os.walk(folder):
        links = [name for name in folders if Path(root, name).is_symlink()]
        found += [Path(root, name).relative_to(folder).as_posix() for name in (*names, *links)]
    return tuple(sorted(found))


def _unnamed(folder: Path, bundle: Bundle) -> Iterator[Finding]:
    known = {RECORD, *(item.path for item in bundle.files)}
    for path in files_below(folder):
        if path not in known:
            yield Finding(
                "bundle-extra", path, "the record does not name it", f"rm {folder / path}"
            )


def _images(folder: Path, bundle: Bundle, known: set[str]) -> Iterator[Finding]:
    for image in bundle.images:
        if image.path in known:
            continue
        problem = archive_problem(folder / image.path, image.id)
        if problem:
            yield Finding("bundle-image", image.path, problem, _COPY_AGAIN, subject=image.ref)


def _repository(folder: Path, bundle: Bundle) -> Iterator[Finding]:
    problem = check_repository(folder, bundle.commit)
    if problem:
        yield Finding("bundle-commit", REPOSITORY_FILE, problem, _COPY_AGAIN)


def lock_findings(folder: Path, bundle: Bundle) -> tuple[Finding, ...]:
    """Locks that the committed locks of *this* checkout do not vouch for.

    The record proves that a bundle is the one that was made, not who made it. What an environment is
    filled with is decided by the committed hashes, so a lock that has others is refused.
    """
    known = [set(_entries(committed(name).read_text("utf-8"))) for name in _LOCK_NAMES]
    return tuple(
        Finding(
            "bundle-lock",
            item.path,
            "its versions or hashes are not those of this checkout's committed locks",
            f"use the farm that is in the bundle: git clone {folder / REPOSITORY_FILE}",
        )
        for item in bundle.below(LOCKS)
        if not _vouched((folder / item.path).read_text("utf-8", "replace"), known)
    )


def _vouched(text: str, known: Sequence[set[tuple[str, str]]]) -> bool:
    """True when the text is entries and nothing else, and one committed lock has them all."""
    rest = _ENTRY.sub("", text)
    return not rest and any(whole.issuperset(_entries(text)) for whole in known)


def _entries(lock: str) -> list[tuple[str, str]]:
    """Pairs of ``name==version`` and all its hashes, as uv writes them; conditions are left out."""
    return [(match[1], match[2]) for match in _ENTRY.finditer(lock)]
