"""The writer against readers that share no code with it: zipfile, Info-ZIP's unzip, zlib."""

from __future__ import annotations

import hashlib
import io
import os
import random
import stat
import subprocess
import sys
import textwrap
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.wheel.deflate import BLOCK, deflate_block, is_compressible
from ci.wheel.zip_records import STORED, Entry, central_header, end_records, local_header
from ci.wheel.zip_writer import Content, ZipWriter

AT = (2026, 12, 2, 8, 0, 2)
FILE = stat.S_IFREG | 0o644
CHANCE = random.Random(7)
WORDS = [CHANCE.randbytes(CHANCE.randint(1, 9)).hex() for _ in range(3000)]
TEXT = " ".join(CHANCE.choices(WORDS, k=200_000)).encode()
NOISE = CHANCE.randbytes(3 * BLOCK + 17)
ZIP64_EXTRA = b"\x01\x00"


def write(path: Path, files: Mapping[str, bytes], *, jobs: int = 2, level: int = 6) -> Path:
    with path.open("wb") as sink, ZipWriter(sink, AT, jobs, level) as writer:
        for name, data in files.items():
            content = writer.add(name, FILE, len(data), io.BytesIO(data))
            assert content == Content(hashlib.sha256(data).hexdigest(), len(data))
    return path


def read(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def unzip_accepts(path: Path) -> str:
    done = subprocess.run(("unzip", "-t", str(path)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


SIZES = (0, 1, 31, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 5)
FILES = {
    **{f"text/{size}": TEXT[:size] for size in SIZES},
    **{f"noise/{size}": NOISE[:size] for size in SIZES},
    "zeros": bytes(2 * BLOCK + 9),
    "mixed": TEXT[:BLOCK] + NOISE[: BLOCK + 100] + TEXT[:BLOCK] + NOISE[:50],
    "ünïcode/名.txt": b"x" * 100,
}


@pytest.mark.parametrize("level", [0, 1, 6, 9])
def test_what_went_in_comes_out(tmp_path: Path, level: int) -> None:
    path = write(tmp_path / "a.zip", FILES, level=level)
    assert read(path) == FILES
    unzip_accepts(path)


def test_the_bytes_do_not_depend_on_threads(tmp_path: Path) -> None:
    written = {
        write(tmp_path / f"{jobs}.zip", FILES, jobs=jobs).read_bytes() for jobs in (1, 2, 4, 4, 40)
    }
    assert len(written) == 1


def test_the_bytes_do_not_depend_on_how_a_source_gives_them(tmp_path: Path) -> None:
    class Stingy(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 0, 1000))

    expected = write(tmp_path / "a.zip", {"t": TEXT}).read_bytes()
    with (tmp_path / "b.zip").open("wb") as sink, ZipWriter(sink, AT, 2) as writer:
        writer.add("t", FILE, len(TEXT), Stingy(TEXT))
    assert (tmp_path / "b.zip").read_bytes() == expected


def test_blocks_cost_little_and_noise_is_not_blown_up() -> None:
    parts = [TEXT[at : at + BLOCK] for at in range(0, len(TEXT), BLOCK)]
    befores = [b"", *(part[-32768:] for part in parts)]
    packed = b"".join(
        deflate_block(part, before, last=part is parts[-1])
        for part, before in zip(parts, befores, strict=False)
    )
    assert zlib.decompress(packed, -15) == TEXT
    machine = zlib.compressobj(6, zlib.DEFLATED, -15)
    assert len(packed) < 1.01 * len(machine.compress(TEXT) + machine.flush())
    stored = zlib.compressobj(0, zlib.DEFLATED, -15, 9)
    plain = stored.compress(NOISE[:BLOCK]) + stored.flush()
    assert deflate_block(NOISE[:BLOCK], TEXT[:32768], last=True) == plain
    assert len(plain) < BLOCK * 1.001
    assert is_compressible(TEXT[:BLOCK])
    assert not is_compressible(NOISE[:BLOCK])


def test_a_dictionary_makes_a_repeated_block_small() -> None:
    half = NOISE[:16384] + TEXT[: BLOCK - 16384]
    alone = deflate_block(half, b"", last=False)
    assert len(deflate_block(half, half[:16384], last=False)) < len(alone) - 10_000


def test_what_does_not_shrink_is_stored(tmp_path: Path) -> None:
    files = {"noise": NOISE[:5000], "text": TEXT[:5000], "empty": b""}
    with zipfile.ZipFile(write(tmp_path / "a.zip", files)) as archive:
        methods = {info.filename: info.compress_type for info in archive.infolist()}
    assert methods == {"noise": 0, "text": 8, "empty": 0}


def test_time_mode_and_name_are_as_given(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with path.open("wb") as sink, ZipWriter(sink, AT, 1) as writer:
        writer.add("bin/tool", stat.S_IFREG | 0o755, 1, io.BytesIO(b"x"))
        writer.add("bin/é", FILE, 1, io.BytesIO(b"x"))
    with zipfile.ZipFile(path) as archive:
        tool, accented = archive.infolist()
    assert tool.date_time == AT
    assert (tool.external_attr >> 16, tool.create_system) == (0o100755, 3)
    assert (tool.flag_bits & 0x800, accented.flag_bits & 0x800) == (0, 0x800)
    listed = subprocess.run(("zipinfo", str(path)), capture_output=True, check=True).stdout
    assert b"-rwxr-xr-x  2.0 unx" in listed
    assert "bin/é".encode() in listed


@pytest.mark.parametrize("announced", [0, len(TEXT) - 1, len(TEXT) + 1, BLOCK])
def test_another_size_than_announced_is_an_error(tmp_path: Path, announced: int) -> None:
    with (
        pytest.raises(ValueError, match="another size"),
        (tmp_path / "a.zip").open("wb") as sink,
        ZipWriter(sink, AT, 2) as writer,
    ):
        writer.add("t", FILE, announced, io.BytesIO(TEXT))


def test_an_error_of_a_thread_comes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> bytes:
        raise MemoryError("no room")

    monkeypatch.setattr("ci.wheel.zip_writer.deflate_block", broken)
    with pytest.raises(MemoryError, match="no room"):
        write(tmp_path / "a.zip", {"t": TEXT})


def test_a_name_that_zip_cannot_hold_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="member name"):
        write(tmp_path / "a.zip", {"n" * 65536: b""})


def test_memory_does_not_grow_with_the_payload() -> None:
    """Peak resident memory of a process that writes 400 MiB, half of it noise, with 8 threads."""
    code = """
    import random
    from ci.wheel.zip_writer import ZipWriter
    from tests.unit.wheel.wheels import own_peak
    noise = random.Random(1).randbytes(1 << 20)
    class Source:
        left = 1600
        def read(self, size):
            self.left -= 1
            return b"" if self.left < 0 else (noise[:size] if self.left % 2 else bytes(size))
    before = own_peak()
    with open("/dev/null", "r+b") as sink, ZipWriter(sink, (2026, 1, 1, 0, 0, 0), 8) as writer:
        writer.add("x", 0o100644, 1600 * 262144, Source())
    print(own_peak() - before)
    """
    done = subprocess.run(
        (sys.executable, "-c", textwrap.dedent(code)), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64


# --- ZIP64 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "large"), [(65534, False), (65535, True), (70001, True)])
def test_more_members_than_16_bits_count(tmp_path: Path, count: int, large: bool) -> None:
    path = write(tmp_path / "a.zip", {f"{index:x}": b"" for index in range(count)}, level=0)
    with zipfile.ZipFile(path) as archive:
        assert len(archive.infolist()) == count
        assert archive.read(f"{count - 1:x}") == b""
    assert (b"PK\x06\x06" in path.read_bytes()[-200:]) is large
    listed = subprocess.run(
        ("unzip", "-Z", "-t", str(path)), capture_output=True, text=True, check=True
    )
    assert listed.stdout.startswith(f"{count} files")


def test_a_member_beyond_4_gib_is_found(tmp_path: Path) -> None:
    """The archive begins behind a hole, which takes no room on the disk."""
    path = tmp_path / "a.zip"
    with path.open("wb") as sink:
        sink.seek((1 << 32) + 123)
        with ZipWriter(sink, AT, 2) as writer:
            writer.add("text", FILE, len(TEXT), io.BytesIO(TEXT))
            writer.add("noise", FILE, len(NOISE), io.BytesIO(NOISE))
    assert path.stat().st_blocks * 512 < 1 << 24
    assert read(path) == {"text": TEXT, "noise": NOISE}
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("text").header_offset == (1 << 32) + 123
        assert archive.getinfo("text").extra[:2] == ZIP64_EXTRA
    unzip_accepts(path)


def test_a_member_of_more_than_4_gib_has_its_sizes_in_64_bits(tmp_path: Path) -> None:
    """Records around a hole: zipfile finds the sizes of the large member and the member behind it."""
    size = (1 << 32) + 10
    large = Entry("large", FILE, STORED, 0, size, size, 0, roomy=True)
    head = local_header(large, AT)
    small = Entry("small", FILE, STORED, zlib.crc32(b"behind"), 6, 6, len(head) + size)
    directory = central_header(large, AT) + central_header(small, AT)
    path = tmp_path / "a.zip"
    with path.open("wb") as sink:
        sink.write(head)
        sink.seek(size, os.SEEK_CUR)
        sink.write(local_header(small, AT) + b"behind")
        start = sink.tell()
        sink.write(directory + end_records(2, len(directory), start))
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("large")
        assert (info.file_size, info.compress_size, info.header_offset) == (size, size, 0)
        assert archive.read("small") == b"behind"
        with archive.open("large") as source:
            assert source.read(10) == bytes(10)
    listed = subprocess.run(("unzip", "-l", str(path)), capture_output=True, text=True, check=True)
    assert str(size) in listed.stdout


def test_zip64_is_used_only_where_it_must_be(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zip", FILES)
    assert b"PK\x06\x06" not in path.read_bytes()[-200:]
    with zipfile.ZipFile(path) as archive:
        assert {info.extra for info in archive.infolist()} == {b""}
        assert {info.extract_version for info in archive.infolist()} == {20}


@pytest.mark.slow
def test_4_gib_are_written_and_read_back(tmp_path: Path) -> None:
    """Zeros, from a hole in a file: little on the disk, but every byte goes through the writer."""
    size = (1 << 32) + 4321
    source = tmp_path / "zeros"
    with source.open("wb") as hole:
        hole.truncate(size)
    path = tmp_path / "a.zip"
    with path.open("wb") as sink, ZipWriter(sink, AT, 2, level=1) as writer:
        with source.open("rb") as zeros:
            writer.add("zeros", FILE, size, zeros)
        writer.add("after", FILE, 5, io.BytesIO(b"after"))
    assert path.stat().st_size < size // 100
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("zeros").file_size == size
        assert archive.read("after") == b"after"
    listed = subprocess.run(("unzip", "-v", str(path)), capture_output=True, text=True, check=True)
    assert str(size) in listed.stdout
