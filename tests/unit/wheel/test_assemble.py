"""From artifacts to the raw wheel, by the package's own back end in a process of its own."""

from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from pathlib import Path

import pytest

from ci.errors import LibraryBuildError
from ci.executors.base import HostExecutor
from ci.wheel.assemble import build_raw, lay_out
from tests.unit.wheel.wheels import PYTHON_TAG, Gcc, own_suffix, unpack

EPOCH = "1700000000"


def built(artifacts: dict[str, Path], work: Path) -> Path:
    manifest = {
        "schema": 1,
        "version": "0.1.0+cu130",
        "publishable": True,
        "not_publishable_because": [],
        "libraries": [],
        "left_out": [],
    }
    layout = lay_out(
        manifest=manifest, artifacts=artifacts, work=work / "wheel", source_date_epoch=EPOCH
    )
    return build_raw(layout, Path(sys.executable), HostExecutor("a test"), work / "assemble.log")


@pytest.fixture
def artifacts(gcc: Gcc, tmp_path: Path) -> dict[str, Path]:
    """Two libraries whose files cannot be written, as in a store."""
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one / "alpha" / "deep", two / "beta"):
        folder.mkdir(parents=True)
    extension = gcc.shared("_C.so").read_bytes()
    (one / "alpha" / f"_C{own_suffix()}").write_bytes(extension)
    (one / "alpha" / "__init__.py").write_text("x = 1\n", "utf-8")
    (one / "alpha" / "deep" / "table, 1.bin").write_bytes(os.urandom(700_000))
    (one / "alpha" / "cache.pyc").write_bytes(b"left out by the package")
    (two / "beta" / "tool").write_bytes(b"#!/bin/sh\n")
    (two / "beta" / "again").symlink_to("tool")
    for folder in (one, two):
        for path in folder.rglob("*"):
            if path.is_file():
                path.chmod(0o555 if path.name == "tool" else 0o444)
    return {"alpha": one, "beta": two}


def digests(folders: dict[str, Path]) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in folders.values()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_raw_wheel_holds_the_artifacts_and_is_not_compressed(
    artifacts: dict[str, Path], tmp_path: Path
) -> None:
    before = digests(artifacts)
    raw = built(artifacts, tmp_path)
    assert raw.name.startswith(f"paddlefleet_ops-0.1.0+cu130-{PYTHON_TAG}-{PYTHON_TAG}-linux_")
    with zipfile.ZipFile(raw) as archive:
        infos = archive.infolist()
        assert {info.compress_type for info in infos} == {zipfile.ZIP_STORED}
        assert {info.date_time for info in infos} == {(2023, 11, 14, 22, 13, 20)}
        assert infos[-1].filename.endswith("/RECORD")
        modes = {info.filename: info.external_attr >> 16 for info in infos}
    assert modes["paddlefleet_ops/beta/tool"] & 0o111
    assert not modes["paddlefleet_ops/alpha/__init__.py"] & 0o111
    folder = unpack(raw, tmp_path / "u") / "paddlefleet_ops"  # checks every row of RECORD
    del before["alpha/cache.pyc"]
    found = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in before}
    assert found == before
    assert not (folder / "alpha" / "cache.pyc").exists()
    assert not (folder / "beta" / "again").is_symlink()


def test_the_artifacts_are_only_read(artifacts: dict[str, Path], tmp_path: Path) -> None:
    files = [path for folder in artifacts.values() for path in folder.rglob("*")]
    before = [(path.lstat().st_mtime_ns, path.lstat().st_mode) for path in files]
    built(artifacts, tmp_path)
    assert [(path.lstat().st_mtime_ns, path.lstat().st_mode) for path in files] == before
    assert {path.stat().st_nlink for path in files if path.is_file()} == {1}


def test_equal_artifacts_give_equal_bytes_in_another_folder(
    artifacts: dict[str, Path], tmp_path: Path
) -> None:
    wheels = [built(artifacts, tmp_path / name) for name in ("here", "there")]
    assert wheels[0].name == wheels[1].name
    assert wheels[0].read_bytes() == wheels[1].read_bytes()


def test_an_artifact_that_is_not_there_is_an_error_with_its_log(tmp_path: Path) -> None:
    folder = tmp_path / "alpha"
    folder.mkdir()
    (folder / "nowhere").symlink_to(tmp_path / "no such file")
    with pytest.raises(LibraryBuildError, match="could not be assembled") as caught:
        built({"alpha": folder}, tmp_path / "work")
    assert "assemble.log" in caught.value.next_step
    assert any("no such file" in line or "nowhere" in line for line in caught.value.details)
