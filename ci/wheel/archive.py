"""Touch: write a wheel in one canonical form, so that equal content has equal bytes.

Canonical form: members sorted with ``.dist-info`` last and RECORD at the very end (PEP 427 recommends
that), no folder entries, one time for all, mode 644 or 755, deflate level 6, a RECORD that was computed
from the bytes, and an SBOM whose lists are sorted. It is written once, by :mod:`ci.wheel.zip_writer`.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import errno
import io
import json
import os
import shutil
import stat
import tempfile
import time
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.tags import parse_tag

from ci.wheel.deflate import LEVEL
from ci.wheel.zip_records import Time
from ci.wheel.zip_writer import ZipWriter, own_cpus

_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
_ZIP_END = (2107, 12, 31, 23, 59, 58)
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")
Edit = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Patched:
    """A wheel whose members take the place of ``instead_of``: the names that it was made of."""

    path: Path
    instead_of: frozenset[str]


@dataclass(frozen=True)
class _Source:
    """A member and the archive that it is in."""

    archive: zipfile.ZipFile
    info: zipfile.ZipInfo


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


def rewrite(
    source: Path,
    destination: Path,
    *,
    tag: str,
    at: Time,
    patched: Patched | None = None,
    jobs: int | None = None,
) -> None:
    """Write the wheel ``source`` to ``destination`` in canonical form, with ``tag`` in its WHEEL file.

    ``tag`` is ``python-abi-platform`` and may be compressed (``manylinux2014_x86_64.manylinux_2_17_x86_64``);
    WHEEL gets one line per expanded tag, and ``Root-Is-Purelib: true`` only for ``any``. Signatures
    of the old RECORD are left out (PEP 427). Members of ``patched`` take the place of those that it was
    made of. ``jobs`` threads compress (default: the CPUs of this process); the bytes do not depend on it.
    ``destination`` must not exist.
    """
    with contextlib.ExitStack() as stack:
        members = _members(stack, source)
        if patched is not None:
            for name in patched.instead_of:
                members.pop(name, None)
            members |= _members(stack, patched.path)
        _write(members, destination, tag, at, LEVEL, jobs or own_cpus())


def write_slim(
    source: Path, destination: Path, names: Collection[str], *, at: Time, tag: str = ""
) -> frozenset[str]:
    """Write the members ``names`` of the wheel ``source``, and its ``.dist-info``, as a wheel, stored.

    It has a RECORD of its own, and ``tag`` in WHEEL unless that is ``""``. This is for tools that look at ELF
    files and metadata only, and would unpack (auditwheel: also pack) everything else. Returns the names of
    the members of ``source`` that are in it.
    """
    with contextlib.ExitStack() as stack:
        members = _members(stack, source)
        folder = f"{_dist_info(members)}/"
        kept = {n: m for n, m in members.items() if n in names or n.startswith(folder)}
        _write(kept, destination, tag, at, 0, 1)
        return frozenset(kept)


def _members(stack: contextlib.ExitStack, path: Path) -> dict[str, _Source]:
    archive = stack.enter_context(zipfile.ZipFile(path))
    infos = archive.infolist()
    return {info.filename: _Source(archive, info) for info in infos if not info.is_dir()}


def _dist_info(names: Iterable[str]) -> str:
    tops = (name.split("/", 1)[0] for name in names)
    return next(top for top in tops if top.endswith(".dist-info"))


def _write(
    members: Mapping[str, _Source], destination: Path, tag: str, at: Time, level: int, jobs: int
) -> None:
    dist_info = _dist_info(members)
    record = f"{dist_info}/RECORD"
    left_out = {record, *(f"{dist_info}/{name}" for name in _SIGNATURES)}
    edits = _edits(dist_info, members, tag)
    names = sorted(set(members) - left_out, key=lambda name: (name.startswith(dist_info), name))
    with destination.open("xb") as sink, ZipWriter(sink, at, jobs, level) as writer:
        rows = [_add(writer, members[name], edits.get(name)) for name in names]
        text = _csv([*rows, (record, "", "")])
        writer.add(record, _mode(0o644), len(text), io.BytesIO(text))


def _edits(dist_info: str, names: Iterable[str], tag: str) -> dict[str, Edit]:
    edits: dict[str, Edit] = {}
    if tag:
        edits[f"{dist_info}/WHEEL"] = lambda raw: _wheel_file(raw, tag)
    for name in names:
        if name.startswith(f"{dist_info}/sboms/auditwheel") and name.endswith(".json"):
            edits[name] = _sorted_sbom
    return edits


def _add(writer: ZipWriter, member: _Source, edit: Edit | None) -> tuple[str, str, str]:
    name, mode = member.info.filename, _mode(member.info.external_attr >> 16)
    with member.archive.open(member.info) as source:
        if edit is None:
            content = writer.add(name, mode, member.info.file_size, source)
        else:
            data = edit(source.read())
            content = writer.add(name, mode, len(data), io.BytesIO(data))
    digest = base64.urlsafe_b64encode(bytes.fromhex(content.sha256)).rstrip(b"=").decode()
    return name, f"sha256={digest}", str(content.size)


def _mode(mode: int) -> int:
    """A link stays a link (it is judged elsewhere); a file is 755 if anyone may execute it, else 644."""
    if stat.S_ISLNK(mode):
        return mode
    return stat.S_IFREG | (0o755 if mode & 0o111 else 0o644)


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

    On one file system that is a rename. The two may be on different ones (a mounted cache, say): then a copy
    is renamed.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    target = out_dir / path.name
    path.chmod(0o644)
    try:
        os.replace(path, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy_into_place(path, target)
        path.unlink()
    return target


def _copy_into_place(path: Path, target: Path) -> None:
    handle, temporary = tempfile.mkstemp(prefix=".publish-", dir=target.parent)
    os.close(handle)
    try:
        shutil.copyfile(path, temporary)
        Path(temporary).chmod(0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def json_bytes(data: Mapping[str, Any]) -> bytes:
    """``data`` as JSON text with sorted keys and a newline at the end."""
    return (json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
