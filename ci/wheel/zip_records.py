"""The records of a ZIP file as bytes: local header, central header, end of the central directory.

Source: PKWARE's APPNOTE.TXT 6.3.10, sections 4.3 (layout), 4.4 (fields) and 4.5.3 (ZIP64). ZIP64 is used
only where a value does not fit into the plain record: a member or an offset of 4 GiB and more, more than
65,535 members. Every function is pure.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

STORED = 0
DEFLATED = 8
Time = tuple[int, int, int, int, int, int]

_FITS_16 = 0xFFFF
_FITS_32 = 0xFFFFFFFF
_ZIP64_EXTRA = 0x0001
_UTF8_NAME = 0x0800
_UNIX = 3
_PLAIN_VERSION = 20
_ZIP64_VERSION = 45

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR64 = struct.Struct("<4sLQL")
_END = struct.Struct("<4s4H2LH")


@dataclass(frozen=True)
class Entry:
    """One member. ``size``, ``compressed`` and ``offset`` (of its local header) are in bytes.

    ``mode`` are the Unix bits with the file type; ``method`` is ``STORED`` or ``DEFLATED``; ``roomy`` says
    that the local header keeps room for sizes of 64 bits.
    """

    name: str
    mode: int
    method: int
    crc: int
    size: int
    compressed: int
    offset: int
    roomy: bool = False

    @property
    def encoded(self) -> tuple[bytes, int]:
        """The name as bytes, and the flag that says UTF-8 where it is not ASCII."""
        raw = self.name.encode("utf-8")
        if len(raw) > _FITS_16:
            raise ValueError(
                f"the member name {self.name[:40]!r}... has {len(raw)} bytes, not 65,535"
            )
        return raw, 0 if raw.isascii() else _UTF8_NAME


def needs_room(size: int) -> bool:
    """True when a member of ``size`` bytes may have a size, plain or compressed, that takes 64 bits.

    Data that cannot be compressed grows by 5 bytes for each stored block of deflate; 1/1024 is more.
    """
    return size + size // 1024 + _FITS_16 >= _FITS_32


def local_header(entry: Entry, at: Time) -> bytes:
    """The record before the data of a member (APPNOTE 4.3.7); its length depends on ``roomy`` alone."""
    name, flags = entry.encoded
    extra = b""
    compressed, size = entry.compressed, entry.size
    if entry.roomy:  # both sizes must be there (4.5.3)
        extra = struct.pack("<HHQQ", _ZIP64_EXTRA, 16, size, compressed)
        compressed = size = _FITS_32
    version = _ZIP64_VERSION if entry.roomy else _PLAIN_VERSION
    date, time = _dos(at)
    head = _LOCAL.pack(
        b"PK\x03\x04", version, flags, entry.method, time, date, entry.crc, compressed, size,
        len(name), len(extra),
    )  # fmt: skip
    return head + name + extra


def central_header(entry: Entry, at: Time) -> bytes:
    """The record of a member in the central directory (APPNOTE 4.3.12)."""
    name, flags = entry.encoded
    values = [entry.size, entry.compressed, entry.offset]
    large = [value for value in values if value >= _FITS_32]
    extra = struct.pack(f"<HH{len(large)}Q", _ZIP64_EXTRA, 8 * len(large), *large) if large else b""
    size, compressed, offset = (min(value, _FITS_32) for value in values)
    version = _ZIP64_VERSION if large or entry.roomy else _PLAIN_VERSION
    date, time = _dos(at)
    head = _CENTRAL.pack(
        b"PK\x01\x02", _UNIX << 8 | version, version, flags, entry.method, time, date, entry.crc,
        compressed, size, len(name), len(extra), 0, 0, 0, entry.mode << 16, offset,
    )  # fmt: skip
    return head + name + extra


def end_records(count: int, size: int, offset: int) -> bytes:
    """What stands after a central directory of ``count`` members, ``size`` bytes, at ``offset``.

    With ZIP64 that is the ZIP64 record, its locator, and the plain record with its fields at their limit
    (APPNOTE 4.3.14 to 4.3.16).
    """
    large = b""
    if count >= _FITS_16 or size >= _FITS_32 or offset >= _FITS_32:
        large = _END64.pack(
            b"PK\x06\x06", _END64.size - 12, _UNIX << 8 | _ZIP64_VERSION, _ZIP64_VERSION, 0, 0,
            count, count, size, offset,
        ) + _LOCATOR64.pack(b"PK\x06\x07", 0, offset + size, 1)  # fmt: skip
    entries = min(count, _FITS_16)
    plain = _END.pack(
        b"PK\x05\x06", 0, 0, entries, entries, min(size, _FITS_32), min(offset, _FITS_32), 0
    )
    return large + plain


def _dos(at: Time) -> tuple[int, int]:
    """Date and time in the format of MS-DOS (APPNOTE 4.4.6): from 1980, two seconds at a time."""
    year, month, day, hour, minute, second = at
    return (year - 1980) << 9 | month << 5 | day, hour << 11 | minute << 5 | second // 2
