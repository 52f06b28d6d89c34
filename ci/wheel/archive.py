"""Touch: write a wheel in one canonical form, so that equal content has equal bytes.

Canonical form: members sorted with ``.dist-info`` last and RECORD at the very end (PEP 427 recommends
that), no folder entries, one time for all, mode 644 or 755, deflate level 6, a RECORD that was computed
from the bytes, and an SBOM whose lists are sorted.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import shutil
import stat
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from packaging.tags import parse_tag

_CHUNK = 1 << 20
_LEVEL = 6
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
_ZIP_END = (2107, 12, 31, 23, 59, 58)
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")
_UNIX = 3
Time = tuple[int, int, int, int, int, int]
Edit = Callable[[bytes], bytes]


def entry_time(source: Path, environ: Mapping[str, str]) -> Time:
    """The time of every member: SOURCE_DATE_EPOCH if set, else the newest time in ``source``.

    Both are inputs, so the clock of the machine never gets into a wheel. Times outside of what the zip
    format can hold (1980 to 2107) are clipped.
    """
    epoch = environ.get("SOURCE_DATE_EPOCH", "")
    if epoch.isdigit():
        parts = time.gmtime(int(epoch))
        found: Time = (*parts[:5], parts[5] // 2 * 2)  # the zip format counts two seconds at a time
    else:
        with zipfile.ZipFile(source) as archive:
            times = [info.date_time for info in archive.infolist() if not info.is_dir()]
        found = max(times, default=_ZIP_EPOCH)
    return min(max(found, _ZIP_EPOCH), _ZIP_END)


def retagged_name(name: str, tag: str) -> str:
    """The wheel file name ``name`` with its last three parts replaced by ``tag``."""
    stem = name.removesuffix(".whl").rsplit("-", 3)[0]
    return f"{stem}-{tag}.whl"


def rewrite(source: Path, destination: Path, *, tag: str, at: Time) -> None:
    """Write the wheel ``source`` to ``destination`` in canonical form, with ``tag`` in its WHEEL file.

    ``tag`` is ``python-abi-platform`` and may be compressed (``manylinux2014_x86_64.manylinux_2_17_x86_64``);
    WHEEL gets one line per expanded tag, and ``Root-Is-Purelib: true`` only for ``any``. Signatures
    of the old RECORD are left out (PEP 427). ``destination`` must not exist.
    """
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(destination, "x") as new:
        infos = {info.filename: info for info in old.infolist() if not info.is_dir()}
        dist_info = next(
            n.split("/", 1)[0] for n in infos if n.split("/", 1)[0].endswith(".dist-info")
        )
        record = f"{dist_info}/RECORD"
        left_out = {record, *(f"{dist_info}/{name}" for name in _SIGNATURES)}
        edits = _edits(dist_info, infos, tag)
        names = sorted(set(infos) - left_out, key=lambda name: (name.startswith(dist_info), name))
        rows = [_copy(old, infos[name], new, at, edits.get(name)) for name in names]
        rows.append((record, "", ""))
        new.writestr(_info(record, 0o644, at), _csv(rows), compresslevel=_LEVEL)


def _edits(dist_info: str, names: Iterable[str], tag: str) -> dict[str, Edit]:
    edits: dict[str, Edit] = {f"{dist_info}/WHEEL": lambda raw: _wheel_file(raw, tag)}
    for name in names:
        if name.startswith(f"{dist_info}/sboms/auditwheel") and name.endswith(".json"):
            edits[name] = _sorted_sbom
    return edits


def _copy(
    old: zipfile.ZipFile, member: zipfile.ZipInfo, new: zipfile.ZipFile, at: Time, edit: Edit | None
) -> tuple[str, str, str]:
    mode = member.external_attr >> 16
    info = _info(member.filename, _mode(mode), at)
    digest, size = hashlib.sha256(), 0
    info.file_size = member.file_size
    with new.open(info, "w") as sink, old.open(member) as source:
        chunks = iter(lambda: source.read(_CHUNK), b"")
        for chunk in chunks if edit is None else [edit(source.read())]:
            digest.update(chunk)
            size += len(chunk)
            sink.write(chunk)
    encoded = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    return member.filename, f"sha256={encoded}", str(size)


def _mode(mode: int) -> int:
    """A link stays a link (it is judged elsewhere); a file is 755 if anyone may execute it, else 644."""
    if stat.S_ISLNK(mode):
        return mode
    return stat.S_IFREG | (0o755 if mode & 0o111 else 0o644)


def _info(name: str, mode: int, at: Time) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, at)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = _UNIX
    info.external_attr = (mode | (0 if stat.S_IFMT(mode) else stat.S_IFREG)) << 16
    # Python 3.13 renamed the attribute that `ZipFile.open(..., "w")` takes the level from.
    for attribute in ("compress_level", "_compresslevel"):
        if hasattr(info, attribute):
            setattr(info, attribute, _LEVEL)
    return info


def _csv(rows: Iterable[tuple[str, str, str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _wheel_file(raw: bytes, tag: str) -> bytes:
    kept = [
        line
        for line in raw.decode().splitlines()
        if line.strip() and not line.lower().startswith(("tag:", "root-is-purelib:", "build:"))
    ]
    build = [line for line in raw.decode().splitlines() if line.lower().startswith("build:")]
    purelib = "true" if tag.endswith("-any") else "false"
    tags = sorted(f"Tag: {found}" for found in parse_tag(tag))
    return "\n".join([*kept, f"Root-Is-Purelib: {purelib}", *tags, *build, ""]).encode()


def _sorted_sbom(raw: bytes) -> bytes:
    """A CycloneDX file with its components and dependencies in a fixed order (auditwheel issue 729)."""
    data = json.loads(raw)
    for key, by in (("components", "bom-ref"), ("dependencies", "ref")):
        if isinstance(data.get(key), list):
            data[key] = sorted(data[key], key=lambda row: str(row.get(by, "")))
    for row in data.get("dependencies", []):
        if isinstance(row.get("dependsOn"), list):
            row["dependsOn"] = sorted(row["dependsOn"])
    return json.dumps(data, indent=1, sort_keys=True).encode()


def publish(path: Path, out_dir: Path) -> Path:
    """Move the finished file ``path`` into ``out_dir``, where it appears in one step.

    The two may be on different file systems: a mounted cache, say.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    target = out_dir / path.name
    handle, temporary = tempfile.mkstemp(prefix=".publish-", dir=out_dir)
    os.close(handle)
    try:
        shutil.copyfile(path, temporary)
        Path(temporary).chmod(0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    path.unlink()
    return target


def json_bytes(data: Mapping[str, Any]) -> bytes:
    """``data`` as JSON text with sorted keys and a newline at the end."""
    return (json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
