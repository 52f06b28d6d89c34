"""Writing a bundle: where it may be written, what else is in its folder, and one file of it all."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from ci.bundle.model import (
    IMAGES,
    LOCKS,
    README,
    RECORD,
    REPOSITORY_FILE,
    SOURCES,
    WHEELS,
    Bundle,
    BundledFile,
    read_bundle,
    sha256_of,
)
from ci.bundle.verify import files_below
from ci.errors import ConfigError, InfrastructureError

TAR_FOLDER = "paddlefleet-farm-bundle"
_OWN = {RECORD, README, REPOSITORY_FILE, WHEELS, LOCKS, SOURCES, IMAGES}
_SPARE = 256 << 20


def prepare(folder: Path) -> None:
    """Make ``folder`` ready: its record goes first, so that a half-made bundle is none.

    Raises :class:`~ci.errors.ConfigError` when something else is in it, which would be removed.
    """
    if folder.is_dir():
        strangers = sorted(
            path.name
            for path in folder.iterdir()
            if path.name not in _OWN and not path.name.startswith(".")
        )
        if strangers:
            raise ConfigError(
                f"--out {folder}: there are other files in it, such as {strangers[0]}",
                cause="what does not belong to a bundle is removed from its folder",
                next_step="--out with a new folder, or one that holds a bundle",
            )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECORD).unlink(missing_ok=True)


def check_room(folder: Path, needed: int, what: str) -> None:
    """Raise :class:`~ci.errors.InfrastructureError` when ``needed`` bytes do not fit; ``folder`` exists."""
    free = shutil.disk_usage(folder).free
    if free < needed + _SPARE:
        raise InfrastructureError(
            f"not enough disk space for {what}: {needed / 1e9:.2f} GB are needed, "
            f"{free / 1e9:.2f} GB are free in {folder}",
            cause="wheels and images are copied, so that a bundle shares nothing with this machine",
            next_step="free space, take another folder, or leave parts out (--no-images, --no-paddle)",
        )


def put(source: Path, target: Path) -> None:
    """Copy a file into the bundle under a scratch name, then move it into place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(source, scratch)
        os.replace(scratch, target)
    finally:
        scratch.unlink(missing_ok=True)


def put_text(text: str, target: Path) -> None:
    """Write a text into the bundle, whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    scratch.write_text(text, "utf-8")
    os.replace(scratch, target)


def prune(folder: Path, kept: Iterable[str]) -> None:
    """Remove what an earlier or an interrupted run left that is not in ``kept`` (relative paths)."""
    wanted = set(kept)
    for path in files_below(folder):
        if path not in wanted:
            (folder / path).unlink()
    for root, _folders, _names in os.walk(folder, topdown=False):
        if Path(root) != folder and not any(Path(root).iterdir()):
            Path(root).rmdir()


def hashed(folder: Path, paths: Iterable[str]) -> tuple[BundledFile, ...]:
    """The files at ``paths`` with their sizes and hashes."""
    return tuple(
        BundledFile(path, (folder / path).stat().st_size, sha256_of(folder / path))
        for path in sorted(paths)
    )


def write_tar(folder: Path, target: Path) -> Path:
    """The bundle as one uncompressed tar: sorted, without times, owners or modes of this machine.

    What is large in it is compressed already. Raises :class:`~ci.errors.InfrastructureError` when there is
    no room for it.
    """
    bundle = read_bundle(folder)
    names = sorted((RECORD, *(item.path for item in bundle.files)))
    check_room(target.parent, bundle.size + 2048 * len(names), target.name)
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with tarfile.open(scratch, "w", format=tarfile.PAX_FORMAT) as tar:
            for name in names:
                entry = tarfile.TarInfo(f"{TAR_FOLDER}/{name}")
                entry.size = (folder / name).stat().st_size
                entry.mode = 0o644
                with (folder / name).open("rb") as source:
                    tar.addfile(entry, source)
        os.replace(scratch, target)
    finally:
        scratch.unlink(missing_ok=True)
    return target


def readme(bundle: Bundle, toolchains: Mapping[str, str], libraries: str) -> str:
    """``README.txt``: what is in it, and the commands for the other machine."""
    python = bundle.pythons[-1]
    farm = f"cp{python.replace('.', '')}"
    lines = [
        "Offline bundle of the paddlefleet_ops build farm",
        "",
        f"farm       {bundle.commit}",
        f"cells      {' '.join(bundle.cells)}",
        f"libraries  {' '.join(bundle.libraries)}",
        *(f"compiler   CUDA {cuda}: {text}" for cuda, text in sorted(toolchains.items())),
        *(f"image      {image.ref} {image.id}" for image in bundle.images),
        "",
        "On the other machine: Linux like the one that made it (same architecture, glibc no older than",
        f"the wheels ask for), git, a C++ compiler, and CPython {' or '.join(bundle.pythons)}.",
        "Set B to the folder of this file, then:",
        "",
        "  B=$PWD",
        f"  git clone $B/{REPOSITORY_FILE} farm && cd farm",
        f"  python{python} -m venv ../farm-python",
        f"  ../farm-python/bin/pip install --no-index --find-links $B/{WHEELS} --no-deps --require-hashes \\",
        f"      -r $B/{LOCKS}/farm-{farm}.txt",
        "  ../farm-python/bin/python -m ci bundle verify $B",
        f"  ../farm-python/bin/python -m ci wheel --from-bundle $B --set {libraries} --python {python}",
        "",
        "`bundle verify` compares every file with bundle.json. Whether bundle.json is the one that was",
        "made, its SHA-256 tells: `bundle make` printed it; ask for it with --expect on the other machine.",
        "",
    ]
    return "\n".join(lines)
