from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ci.wheel.archive import (
    Patched,
    entry_time,
    publish,
    retagged_name,
    rewrite,
    write_slim,
)
from ci.wheel.deflate import BLOCK
from tests.unit.wheel.wheels import PYTHON_TAG, unpack, write_wheel

AT = (2026, 12, 2, 8, 0, 0)
DIST_INFO = "paddlefleet_ops-0.1.0+cu130.dist-info"


def rewritten(source: Path, folder: Path, tag: str = "cp312-none-any") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / retagged_name(source.name, tag)
    rewrite(source, target, tag=tag, at=AT)
    return target


def sbom(*order: str) -> bytes:
    """A CycloneDX file in which the wheel "a" depends on "b" and "c", written in this order."""
    inner = [name for name in order if name != "a"]
    rows = [{"ref": name, **({"dependsOn": inner} if name == "a" else {})} for name in order]
    components = [{"bom-ref": name} for name in order]
    data = {"bomFormat": "CycloneDX", "components": components, "dependencies": rows}
    return json.dumps(data).encode()


def test_the_order_in_an_sbom_does_not_matter(tmp_path: Path) -> None:
    name = f"{DIST_INFO}/sboms/auditwheel.cdx.json"
    content = set()
    for index, order in enumerate(("abc", "cab", "bca")):
        path = rewritten(write_wheel(tmp_path, {name: sbom(*order)}), tmp_path / f"out{index}")
        unpack(path, tmp_path / f"u{index}")
        content.add(path.read_bytes())
    assert len(content) == 1


def test_an_sbom_keeps_its_content(tmp_path: Path) -> None:
    name = f"{DIST_INFO}/sboms/auditwheel.cdx.json"
    path = rewritten(write_wheel(tmp_path, {name: sbom(*"cba")}), tmp_path / "out")
    with zipfile.ZipFile(path) as archive:
        data = json.loads(archive.read(name))
    assert [row["bom-ref"] for row in data["components"]] == ["a", "b", "c"]
    assert data["bomFormat"] == "CycloneDX"
    assert data["dependencies"][0] == {"dependsOn": ["b", "c"], "ref": "a"}


def test_json_files_of_libraries_are_not_touched(tmp_path: Path) -> None:
    name = "paddlefleet_ops/components.cdx.json"
    path = rewritten(write_wheel(tmp_path, {name: sbom(*"cba")}), tmp_path / "out")
    with zipfile.ZipFile(path) as archive:
        assert archive.read(name) == sbom(*"cba")


def test_a_signature_of_the_old_record_is_dropped(tmp_path: Path) -> None:
    files = {f"{DIST_INFO}/RECORD.jws": b"{}"}
    path = rewritten(write_wheel(tmp_path, files), tmp_path / "out")
    with zipfile.ZipFile(path) as archive:
        assert f"{DIST_INFO}/RECORD.jws" not in archive.namelist()
    unpack(path, tmp_path / "u")


def test_each_platform_of_a_compressed_tag_gets_a_line(tmp_path: Path) -> None:
    tag = "cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64"
    folder = unpack(rewritten(write_wheel(tmp_path, {}), tmp_path / "out", tag), tmp_path / "u")
    text = (folder / DIST_INFO / "WHEEL").read_text("utf-8")
    assert text.splitlines()[2:] == [
        "Root-Is-Purelib: false",
        "Tag: cp312-cp312-manylinux2014_x86_64",
        "Tag: cp312-cp312-manylinux_2_17_x86_64",
    ]


def test_threads_and_the_order_of_the_source_do_not_matter(tmp_path: Path) -> None:
    text = b"".join(b"line %d of a table\n" % number for number in range(60_000))
    files = {
        "paddlefleet_ops/table.txt": text,
        "paddlefleet_ops/noise.bin": random.Random(3).randbytes(2 * BLOCK + 7),
        **{f"paddlefleet_ops/{number}.py": b"x = %d\n" % number for number in range(50)},
    }
    one = write_wheel(tmp_path / "1", files)
    other = write_wheel(tmp_path / "2", dict(reversed(files.items())))
    content = set()
    for index, (source, jobs) in enumerate([(one, 1), (one, 2), (one, 4), (other, 2), (other, 16)]):
        target = tmp_path / f"{index}.whl"
        rewrite(source, target, tag="cp312-none-any", at=AT, jobs=jobs)
        content.add(target.read_bytes())
    assert len(content) == 1
    folder = unpack(rewritten(one, tmp_path / "out"), tmp_path / "u")
    assert {name: (folder / name).read_bytes() for name in files} == files


def test_a_slim_wheel_holds_what_is_asked_for_and_is_a_wheel(tmp_path: Path) -> None:
    files = {"paddlefleet_ops/a.so": b"so" * 500, "paddlefleet_ops/b.py": b"b"}
    slim = tmp_path / "paddlefleet_ops-0.1.0+cu130-cp312-none-linux_x86_64.whl"
    source = write_wheel(tmp_path, files)
    names = write_slim(source, slim, ["paddlefleet_ops/a.so"], at=AT, tag="cp312-none-linux_x86_64")
    with zipfile.ZipFile(slim) as archive:
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
        assert set(archive.namelist()) == names | {f"{DIST_INFO}/RECORD"}
    assert "paddlefleet_ops/b.py" not in names
    text = (unpack(slim, tmp_path / "u") / DIST_INFO / "WHEEL").read_text("utf-8")
    assert "Tag: cp312-none-linux_x86_64\n" in text


def test_patched_members_take_the_place_of_those_they_were_made_of(tmp_path: Path) -> None:
    files = {f"paddlefleet_ops/{name}": name.encode() for name in ("a.so", "b.so", "c.py")}
    source = write_wheel(tmp_path / "raw", files)
    patched = write_wheel(
        tmp_path / "patched",
        {"paddlefleet_ops/a.so": b"patched", "paddlefleet_ops.libs/libz.so": b"grafted"},
    )
    target = tmp_path / "paddlefleet_ops-0.1.0+cu130-cp312-none-any.whl"
    replaced = Patched(patched, frozenset({"paddlefleet_ops/a.so", "paddlefleet_ops/b.so"}))
    rewrite(source, target, tag="cp312-none-any", at=AT, patched=replaced)
    folder = unpack(target, tmp_path / "u")
    assert (folder / "paddlefleet_ops/a.so").read_bytes() == b"patched"
    assert not (folder / "paddlefleet_ops/b.so").exists()
    assert (folder / "paddlefleet_ops/c.py").read_bytes() == b"c.py"
    assert (folder / "paddlefleet_ops.libs/libz.so").read_bytes() == b"grafted"


@pytest.mark.parametrize("front_end", ["pip", "uv pip"])
def test_installers_take_a_wheel_of_several_blocks(tmp_path: Path, front_end: str) -> None:
    data = random.Random(3).randbytes(BLOCK + 7) + bytes(3 * BLOCK)
    name = "paddlefleet_ops/table.bin"
    tag = f"{PYTHON_TAG}-none-any"
    wheel = rewritten(write_wheel(tmp_path, {name: data}), tmp_path / "out", tag)
    options = ["--no-deps", "--no-index", "--target", str(tmp_path / "site")]
    options += ["--python", sys.executable] if front_end == "uv pip" else []
    command = [sys.executable, "-m", *front_end.split(), "install", *options, str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / name).read_bytes() == data


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a_b-1.0+cu130-py3-none-any.whl", "a_b-1.0+cu130-cp312-none-any.whl"),
        ("a_b-1.0-7-py3-none-any.whl", "a_b-1.0-7-cp312-none-any.whl"),
    ],
)
def test_a_name_keeps_all_but_its_tag(name: str, expected: str) -> None:
    assert retagged_name(name, "cp312-none-any") == expected


@pytest.mark.parametrize(
    ("epoch", "at"),
    [
        ("0", (1980, 1, 1, 0, 0, 0)),
        ("1700000001", (2023, 11, 14, 22, 13, 20)),
        ("9999999999", (2107, 12, 31, 23, 59, 58)),
    ],
)
def test_times_are_those_that_a_zip_can_hold(
    tmp_path: Path, epoch: str, at: tuple[int, ...]
) -> None:
    assert entry_time(write_wheel(tmp_path, {}), {"SOURCE_DATE_EPOCH": epoch}) == at


def test_without_an_epoch_the_newest_member_gives_the_time(tmp_path: Path) -> None:
    assert entry_time(write_wheel(tmp_path, {}, at=AT), {}) == AT
    assert entry_time(write_wheel(tmp_path, {}, at=AT), {"SOURCE_DATE_EPOCH": ""}) == AT


def test_a_wheel_is_published_across_file_systems_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished, out = tmp_path / "work" / "a.whl", tmp_path / "out"
    finished.parent.mkdir()
    finished.write_bytes(b"wheel")
    real = os.replace

    def within_one_folder(source: str | Path, target: str | Path) -> None:
        if Path(source).parent != Path(target).parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        real(source, target)

    monkeypatch.setattr(os, "replace", within_one_folder)
    finished.chmod(0o600)
    assert publish(finished, out).read_bytes() == b"wheel"
    assert [path.name for path in out.iterdir()] == ["a.whl"]
    assert not finished.exists()
    assert (out / "a.whl").stat().st_mode & 0o777 == 0o644
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    finished.write_bytes(b"newer")
    with pytest.raises(OSError, match="full"):
        publish(finished, out)
    assert [path.name for path in out.iterdir()] == ["a.whl"]
    assert (out / "a.whl").read_bytes() == b"wheel"


def test_on_one_file_system_a_wheel_is_moved_not_copied(tmp_path: Path) -> None:
    finished = tmp_path / "work" / "a.whl"
    finished.parent.mkdir()
    finished.write_bytes(b"wheel")
    inode = finished.stat().st_ino
    assert publish(finished, tmp_path / "out").stat().st_ino == inode
