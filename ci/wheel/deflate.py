"""Deflate in blocks that do not need each other, so that threads can share the work on one file.

A block is compressed by itself, primed with the 32 KiB before it as dictionary, and ends on a byte with
a sync flush; the blocks one after the other are one deflate stream (RFC 1951, the way of pigz). What comes
out follows from the content alone, not from the number of threads. zlib releases the GIL.
"""

from __future__ import annotations

import zlib

BLOCK = 256 * 1024
WINDOW = 32 * 1024
LEVEL = 6
_SAMPLES = 8
_SAMPLE = 2048
_WORTH = 0.97


def deflate_block(data: bytes, before: bytes, *, last: bool, level: int = LEVEL) -> bytes:
    """``data`` as part of a raw deflate stream; ``before`` are at most ``WINDOW`` bytes before it.

    A block that cannot be compressed is stored: deflate would take as long for it as for text, and
    gain nothing.
    """
    level = level if is_compressible(data) else 0
    if before and level:
        machine = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zdict=before)
    else:
        machine = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS, 9)
    return machine.compress(data) + machine.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)


def is_compressible(data: bytes) -> bool:
    """Whether samples of ``data``, evenly spread, get smaller by 3 % at the fastest level.

    Short data is always tried as a whole: deciding would cost as much.
    """
    if len(data) <= 4 * _SAMPLES * _SAMPLE:
        return True
    step = (len(data) - _SAMPLE) // (_SAMPLES - 1)
    sample = b"".join(data[at : at + _SAMPLE] for at in range(0, len(data) - _SAMPLE + 1, step))
    machine = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = len(machine.compress(sample)) + len(machine.flush())
    return packed < _WORTH * len(sample)
