"""Writing a bundle: what is not its own is safe, what is left over goes, one file is always the same."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from ci.bundle.model import Bundle, BundledImage
from ci.bundle.use import offline_environment, seed_locks
from ci.bundle.write import check_room, hashed, prepare, prune, put, put_text, readme, write_tar
from ci.errors import ConfigError, InfrastructureError


def bundle(folder: Path, *names: str) -> Bundle:
    for name in names:
        put_text(f"content of {name}", folder / name)
    made = Bundle(
        "12" * 20, ("cu130-cp312",), ("a",), ("3.10", "3.12"), hashed(folder, names), (), (), {}
    )
    put_text(made.text(), folder / "bundle.json")
    return made


def test_the_record_goes_first(tmp_path: Path) -> None:
    bundle(tmp_path, "wheels/x.whl")
    prepare(tmp_path)
    assert not (tmp_path / "bundle.json").exists()
    assert (tmp_path / "wheels/x.whl").exists()


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        prepare(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_what_an_earlier_run_left_goes(tmp_path: Path) -> None:
    for name in (
        "wheels/kept.whl",
        "wheels/old.whl",
        "wheels/.x.whl.17",
        "sources/L/00.pack",
        ".locks-1/a",
    ):
        put_text("x", tmp_path / name)
    prune(tmp_path, ["wheels/kept.whl"])
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == [
        "wheels",
        "wheels/kept.whl",
    ]


def test_a_failing_copy_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        put(tmp_path / "absent", tmp_path / "wheels" / "x.whl")
    assert list((tmp_path / "wheels").iterdir()) == []


def test_a_full_disk_is_told_before(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(InfrastructureError, match="not enough disk space for downloads"):
        check_room(tmp_path, free, "downloads")
    check_room(tmp_path, 0, "nothing")


def test_one_file_is_always_the_same(tmp_path: Path) -> None:
    for name in ("one", "two"):
        bundle(tmp_path / name, *(("wheels/x.whl", "README.txt")[:: 1 if name == "one" else -1]))
    (tmp_path / "two/README.txt").chmod(0o600)
    (tmp_path / "two/.scratch").write_text("not of it")
    made = [write_tar(tmp_path / name, tmp_path / f"{name}.tar") for name in ("one", "two")]
    assert made[0].read_bytes() == made[1].read_bytes()
    with tarfile.open(made[0]) as tar:
        assert [(item.name, item.mtime, item.uid, item.mode) for item in tar] == [
            (f"paddlefleet-farm-bundle/{name}", 0, 0, 0o644)
            for name in ("README.txt", "bundle.json", "wheels/x.whl")
        ]


def test_the_readme_names_what_there_is(tmp_path: Path) -> None:
    made = bundle(tmp_path)
    image = BundledImage("images/x.tar", "sha256:" + "ab" * 32, "farm/build:cu130")
    text = readme(Bundle(**{**vars(made), "images": (image,)}), {"13.0": "nvcc"}, "templates")
    for part in (
        made.commit,
        "CUDA 13.0: nvcc",
        image.id,
        "locks/farm-cp312.txt",
        "--set templates",
    ):
        assert part in text


def test_a_run_from_a_bundle_asks_no_index(tmp_path: Path) -> None:
    folder = tmp_path / "a bundle, here"
    environ = {
        "PATH": "/bin",
        "UV_DEFAULT_INDEX": "https://x.example",
        "PIP_EXTRA_INDEX_URL": "https://y",
    }
    found = offline_environment(folder, environ)
    assert found["PATH"] == "/bin"
    assert found.keys() & environ.keys() == {"PATH"}
    assert (found["UV_OFFLINE"], found["PIP_NO_INDEX"]) == ("1", "1")
    for name in ("UV_FIND_LINKS", "PIP_FIND_LINKS"):
        assert " " not in found[name]
        assert "," not in found[name]
        assert found[name].endswith("/a%20bundle%2C%20here/wheels")


def test_locks_go_where_the_cache_keeps_them(tmp_path: Path) -> None:
    made = bundle(
        tmp_path / "b", "locks/environments/key.txt", "locks/farm-cp312.txt", "wheels/x.whl"
    )
    assert seed_locks(tmp_path / "b", made, tmp_path / "cache") == 1
    (kept,) = (tmp_path / "cache" / "locks").iterdir()
    assert (kept.name, kept.read_text()) == ("key.txt", "content of locks/environments/key.txt")
