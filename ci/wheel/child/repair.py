"""Run auditwheel's command line with bounded memory.

Usage: as ``python -m auditwheel``.

auditwheel reads every file as a whole to hash it, and again to pack it, which for a library with much device
code takes three times its size. Here it packs in pieces, does not compress, and writes a RECORD of names
alone: the farm hashes and compresses when it writes the final wheel. Should a later auditwheel have no such
functions, it works as it does by itself.
"""

from __future__ import annotations

import csv
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from auditwheel import wheeltools
from auditwheel.main import main as auditwheel

_PIECE = 1 << 18


def name_in_record(folder: Path) -> None:
    """Write the RECORD of the unpacked wheel in ``folder``, without hashes."""
    (dist_info,) = Path(folder).glob("*.dist-info")
    record = dist_info / "RECORD"
    record.touch()
    with record.open("w", newline="", encoding="utf-8") as sink:
        rows = csv.writer(sink, lineterminator="\n")
        rows.writerows((name, "", "") for name, _ in _files(folder))


def pack(folder: Path, wheel: Path, *_level_and_time: object) -> None:
    """Store the unpacked wheel in ``folder`` as ``wheel``."""
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, path in _files(folder):
            info = zipfile.ZipInfo.from_file(path, name, strict_timestamps=False)
            with path.open("rb") as source, archive.open(info, "w") as sink:
                shutil.copyfileobj(source, sink, _PIECE)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    root = Path(folder).resolve()
    for path in sorted(root.rglob("*")):
        if path.is_file():
            yield path.relative_to(root).as_posix(), path


if __name__ == "__main__":
    wheeltools.rewrite_record = name_in_record
    wheeltools.dir2zip = pack
    sys.exit(auditwheel())
