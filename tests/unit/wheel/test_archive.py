from __future__ import annotations

import errno
import json
import os
import zipfile
from pathlib import Path

import pytest

from ci.wheel.archive import entry_time, publish, retagged_name, rewrite
from tests.unit.wheel.wheels import unpack, write_wheel

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
    assert publish(finished, out).read_bytes() == b"wheel"
    assert [path.name for path in out.iterdir()] == ["a.whl"]
    assert not finished.exists()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    finished.write_bytes(b"newer")
    with pytest.raises(OSError, match="full"):
        publish(finished, out)
    assert [path.name for path in out.iterdir()] == ["a.whl"]
    assert (out / "a.whl").read_bytes() == b"wheel"
