"""Wheels by a lock with hashes, from an index that the test serves as a folder."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

from ci.environments.lock import Lock
from ci.errors import InfrastructureError
from ci.images import wheelhouse as module
from ci.images.wheelhouse import Wheels, gather, pip_environment, wheelhouse

PYTHON = "{}.{}".format(*sys.version_info[:2])


def wheel(folder: Path, name: str, tag: str, content: str = "") -> Path:
    path = folder / f"{name}-1-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", content)
        archive.writestr(
            f"{name}-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
        )
        archive.writestr(f"{name}-1.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        archive.writestr(f"{name}-1.dist-info/RECORD", "")
    return path


def lock_of(*wheels: Path) -> Lock:
    lines = ["farm-test-one==1"]
    lines += [
        f"    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" for path in wheels
    ]
    return Lock(" \\\n".join(lines) + "\n")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    for name, value in (
        ("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(folder)), ("PIP_CONFIG_FILE", "/dev/null"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(module, "pip_of", lambda python, cache_dir: Path(sys.executable))
    return folder


def test_the_wheels_of_a_lock_are_fetched_once(index: Path, tmp_path: Path) -> None:
    one = wheel(index, "farm_test_one", "py3-none-any")
    said: list[str] = []
    wanted = Wheels("farm", PYTHON)
    lock = lock_of(one)
    folder = wheelhouse(wanted, tmp_path / "cache", said.append, lock)
    assert [path.name for path in folder.iterdir()] == [one.name]
    one.unlink()
    assert wheelhouse(wanted, tmp_path / "cache", said.append, lock) == folder
    assert len(said) == 1


def test_a_file_with_another_hash_is_refused_and_nothing_half_stays(
    index: Path, tmp_path: Path
) -> None:
    one = wheel(index, "farm_test_one", "py3-none-any")
    lock = lock_of(one)
    wheel(index, "farm_test_one", "py3-none-any", content="other = True")
    with pytest.raises(InfrastructureError, match="cannot be downloaded") as caught:
        wheelhouse(Wheels("farm", PYTHON), tmp_path / "cache", print, lock)
    assert "hash" in "\n".join(caught.value.details).lower()
    left = [path for path in (tmp_path / "cache/images/wheels").iterdir() if path.suffix != ".lock"]
    assert left == []


def test_the_c_library_of_the_base_decides_which_wheel(index: Path, tmp_path: Path) -> None:
    older = wheel(index, "farm_test_one", "py3-none-manylinux_2_17_x86_64")
    newer = wheel(index, "farm_test_one", "py3-none-manylinux_2_34_x86_64")
    lock = lock_of(older, newer)
    names = {}
    for glibc in ("2.28", "2.36"):
        folder = wheelhouse(Wheels("farm", PYTHON, glibc), tmp_path / "cache", print, lock)
        names[glibc] = [path.name for path in folder.iterdir()]
    assert names == {"2.28": [older.name], "2.36": [newer.name]}


def test_several_folders_become_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    wheel(tmp_path / "a", "one", "py3-none-any")
    wheel(tmp_path / "b", "one", "py3-none-any")
    wheel(tmp_path / "b", "two", "py3-none-any")
    gather([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == [
        "one-1-py3-none-any.whl",
        "two-1-py3-none-any.whl",
    ]


def test_what_would_change_the_download_is_left_out_of_pip_s_environment() -> None:
    environ = {"PIP_TARGET": "/x", "PIP_CERT": "/ca", "PYTHONPATH": "/y", "HOME": "/h"}
    assert pip_environment(environ) == {"PIP_CERT": "/ca", "HOME": "/h"}
