"""Look: the facts of a wheel, read once and never changed.

A wheel is read as the specification "Binary distribution format" says (PEP 427, PEP 491 and its file
name rules), with ``packaging`` for names, versions and tags. Nothing is judged here: a wheel whose
RECORD lies is read as it is, and :mod:`ci.wheel.judge` says so.
"""

from __future__ import annotations

import base64
import binascii
import csv
import email.parser
import email.policy
import hashlib
import io
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from packaging.tags import Tag, parse_tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from ci.elf import MAGIC, BrokenElfError, ElfFacts, read_elf
from ci.errors import FindingError
from ci.wheel.zip_writer import own_cpus

_CHUNK = 1 << 18
_IN_MEMORY = 1 << 20
_MOST_THREADS = 32


@dataclass(frozen=True)
class Member:
    """One file of the archive. ``size`` in bytes, uncompressed; ``mode`` are the Unix bits, 0 if unset."""

    name: str
    size: int
    sha256: str
    mode: int = 0
    compressed: int = 0

    @property
    def is_symlink(self) -> bool:
        """True for a symbolic link, which installers write out as a text file."""
        return stat.S_ISLNK(self.mode)


@dataclass(frozen=True)
class RecordEntry:
    """One row of RECORD: ``digest`` is hex for sha256 (``""`` if absent), ``size`` in bytes or ``None``."""

    path: str
    algorithm: str
    digest: str
    size: int | None


@dataclass(frozen=True)
class WheelFacts:
    """Everything that the farm needs to know about a wheel.

    ``name`` is normalised (PEP 503). ``metadata`` and ``wheel`` are the header fields of METADATA and
    WHEEL in file order. ``tags`` are those of the file name, ``wheel_tags`` those of WHEEL, both expanded.
    ``broken`` are members that start like an ELF file and cannot be read, with the reason.
    """

    path: Path
    name: str
    version: Version
    build: str
    tags: frozenset[Tag]
    dist_info: str
    metadata: tuple[tuple[str, str], ...]
    wheel: tuple[tuple[str, str], ...]
    record: tuple[RecordEntry, ...]
    members: tuple[Member, ...]
    elfs: tuple[ElfFacts, ...]
    broken: tuple[tuple[str, str], ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all members, uncompressed: what an installation takes."""
        return sum(member.size for member in self.members)

    @property
    def wheel_tags(self) -> frozenset[Tag]:
        """The ``Tag`` fields of WHEEL, expanded."""
        return frozenset(tag for text in self.values(self.wheel, "Tag") for tag in parse_tag(text))

    @property
    def root_is_purelib(self) -> bool:
        """The ``Root-Is-Purelib`` field of WHEEL."""
        return self.values(self.wheel, "Root-Is-Purelib") == ("true",)

    @property
    def host_elfs(self) -> tuple[ElfFacts, ...]:
        """The ELF files that a CPU runs."""
        return tuple(elf for elf in self.elfs if elf.is_host_code)

    @property
    def provided(self) -> frozenset[str]:
        """SONAMEs and file names that the wheel itself brings along."""
        return frozenset(name for elf in self.host_elfs for name in (elf.soname, elf.name) if name)

    @property
    def external_needs(self) -> dict[str, tuple[str, ...]]:
        """Each DT_NEEDED that no file of the wheel satisfies, with the files that need it."""
        provided = self.provided
        needs: dict[str, list[str]] = {}
        for elf in self.host_elfs:
            for soname in elf.needed:
                if soname not in provided:
                    needs.setdefault(soname, []).append(elf.path)
        return {soname: tuple(sorted(needs[soname])) for soname in sorted(needs)}

    @staticmethod
    def values(fields: tuple[tuple[str, str], ...], name: str) -> tuple[str, ...]:
        """All values of a header field, in file order; names compare without case."""
        return tuple(value for key, value in fields if key.lower() == name.lower())


def read_facts(path: Path, *, look_for: Sequence[str] = (), jobs: int | None = None) -> WheelFacts:
    """Read the wheel at ``path``, every member once; ``look_for`` are strings to search in its ELF files.

    ``jobs`` threads read (default: the CPUs of this process), each a member at a time in small pieces.
    Raises :class:`~ci.errors.FindingError` for a file that is no wheel: a bad name, a bad zip, no or two
    ``.dist-info`` folders, or no METADATA, WHEEL or RECORD in it.
    """
    try:
        name, version, build, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise _no_wheel(path, str(error)) from error
    try:
        with zipfile.ZipFile(path) as archive:
            dist_info = _dist_info(path, archive)
            seen = _read_members(archive, tuple(look_for), jobs or own_cpus())
            metadata, wheel, record = (
                _text(path, archive, f"{dist_info}/{part}")
                for part in ("METADATA", "WHEEL", "RECORD")
            )
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise _no_wheel(path, str(error)) from error
    return WheelFacts(
        path=path,
        name=name,
        version=version,
        build="".join(str(part) for part in build),
        tags=tags,
        dist_info=dist_info,
        metadata=_fields(metadata),
        wheel=_fields(wheel),
        record=parse_record(record),
        members=tuple(one.member for one in seen),
        elfs=tuple(one.elf for one in seen if one.elf is not None),
        broken=tuple((one.member.name, one.broken) for one in seen if one.broken),
    )


def read_host_elf(path: Path) -> ElfFacts:
    """The facts of an ELF file on disk, such as a library that is about to be grafted."""
    with path.open("rb") as source:
        return read_elf(str(path), source, path.stat().st_size)


def parse_record(text: str) -> tuple[RecordEntry, ...]:
    """The rows of a RECORD file; a digest that cannot be decoded becomes ``"undecodable"``."""
    return tuple(_record_entry(row) for row in csv.reader(io.StringIO(text)) if row)


def _record_entry(row: list[str]) -> RecordEntry:
    path, hashed, size = (*row, "", "")[:3]
    algorithm, _, encoded = hashed.partition("=")
    return RecordEntry(path, algorithm, _hex(encoded), int(size) if size.isdigit() else None)


def _hex(encoded: str) -> str:
    try:
        return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).hex()
    except (binascii.Error, ValueError):
        return "undecodable"


def _no_wheel(path: Path, why: str) -> FindingError:
    return FindingError(
        f"{path.name} is not a wheel",
        cause=why,
        next_step=f"look at it with: python -m zipfile -l {path}",
    )


def _dist_info(path: Path, archive: zipfile.ZipFile) -> str:
    tops = {name.split("/", 1)[0] for name in archive.namelist()}
    found = sorted(top for top in tops if top.endswith(".dist-info"))
    if len(found) != 1:
        raise _no_wheel(path, f"it must hold one .dist-info folder, and holds {found or 'none'}")
    return found[0]


def _text(path: Path, archive: zipfile.ZipFile, name: str) -> str:
    try:
        return archive.read(name).decode("utf-8")
    except KeyError as error:
        raise _no_wheel(path, f"it has no {name}") from error
    except UnicodeDecodeError as error:
        raise _no_wheel(path, f"{name} is not UTF-8") from error


def _fields(text: str) -> tuple[tuple[str, str], ...]:
    message = email.parser.Parser(policy=email.policy.compat32).parsestr(text)
    return tuple((key, str(value)) for key, value in message.items())


@dataclass(frozen=True)
class _Seen:
    """One member, and what it is if it starts like an ELF file: its facts, or why it has none."""

    member: Member
    elf: ElfFacts | None = None
    broken: str = ""


def _read_members(
    archive: zipfile.ZipFile, look_for: tuple[str, ...], jobs: int
) -> tuple[_Seen, ...]:
    """Every member in the archive's order, read once; threads inflate and hash side by side."""
    infos = [info for info in archive.infolist() if not info.is_dir()]
    with ThreadPoolExecutor(max(1, min(jobs, _MOST_THREADS)), "facts") as pool:
        try:
            return tuple(pool.map(lambda info: _read_member(archive, info, look_for), infos))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _read_member(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, look_for: tuple[str, ...]
) -> _Seen:
    digest = hashlib.sha256()
    with archive.open(info) as source:
        chunk = source.read(_CHUNK)
        if chunk.startswith(MAGIC):
            return _read_elf_member(info, chunk, source, look_for)
        while chunk:
            digest.update(chunk)
            chunk = source.read(_CHUNK)
    return _Seen(_member(info, digest.hexdigest()))


def _member(info: zipfile.ZipInfo, digest: str) -> Member:
    mode = info.external_attr >> 16
    return Member(info.filename, info.file_size, digest, mode, info.compress_size)


def _read_elf_member(
    info: zipfile.ZipInfo, chunk: bytes, source: IO[bytes], look_for: tuple[str, ...]
) -> _Seen:
    """An ELF file is read through a copy, because its parts are all over it."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as copy:
        digest, found = _copy(chunk, source, copy, look_for)
        copy.seek(0)
        member = _member(info, digest)
        try:
            return _Seen(member, read_elf(info.filename, copy, info.file_size, found))
        except BrokenElfError as error:
            return _Seen(member, broken=str(error))


def _copy(
    chunk: bytes, source: IO[bytes], copy: IO[bytes], look_for: tuple[str, ...]
) -> tuple[str, tuple[str, ...]]:
    """Copy ``chunk`` and the rest, hash it, and look for the strings, in one pass with bounded memory."""
    digest = hashlib.sha256()
    wanted = {text: text.encode() for text in look_for if text}
    keep = max((len(raw) for raw in wanted.values()), default=1) - 1
    found: set[str] = set()
    tail = b""
    while chunk:
        digest.update(chunk)
        copy.write(chunk)
        window = tail + chunk
        found |= {text for text, raw in wanted.items() if raw in window}
        tail = window[-keep:] if keep else b""
        chunk = source.read(_CHUNK)
    return digest.hexdigest(), tuple(sorted(found))
