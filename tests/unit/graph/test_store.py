"""Stored results: whole or absent, verified when read, safe for several writers."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest

from ci.graph.key import Key
from ci.graph.store import Store

KEY, OTHER = Key.of({"library": "alpha"}), Key.of({"library": "beta"})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def result(tmp_path: Path) -> Path:
    folder = tmp_path / "result"
    (folder / "alpha" / "lib").mkdir(parents=True)
    (folder / "alpha" / "__init__.py").write_text("value = 1\n")
    (folder / "alpha" / "lib" / "libx.so.1").write_bytes(b"\x7fELF")
    (folder / "alpha" / "lib" / "libx.so").symlink_to("libx.so.1")
    (folder / "alpha" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "alpha" / "run.sh").chmod(0o755)
    return folder


def names_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_what_was_put_comes_back_as_it_was(store: Store, result: Path) -> None:
    assert store.get(KEY) is None
    put = store.put(KEY, result, {"seconds": 1.5})
    got = store.get(KEY)
    assert got == put
    assert got is not None
    assert got.meta["seconds"] == 1.5
    assert got.meta["inputs"] == {"library": "alpha"}
    assert names_below(got.folder) == names_below(result)
    assert (got.folder / "alpha" / "lib" / "libx.so").is_symlink()
    assert (got.folder / "alpha" / "run.sh").stat().st_mode & 0o111
    assert store.get(OTHER) is None


def test_another_store_object_on_the_same_folder_sees_it(store: Store, result: Path) -> None:
    store.put(KEY, result, {})
    assert Store(store.root).get(KEY) is not None


def test_the_folder_that_was_put_stays_the_caller_s(store: Store, result: Path) -> None:
    entry = store.put(KEY, result, {})
    shutil.rmtree(result)
    assert (entry.folder / "alpha" / "__init__.py").read_text() == "value = 1\n"


def flip(folder: Path) -> None:
    (folder / "tree" / "alpha" / "__init__.py").write_text("value = 2\n")


def lose_file(folder: Path) -> None:
    (folder / "tree" / "alpha" / "run.sh").unlink()


def add_file(folder: Path) -> None:
    (folder / "tree" / "alpha" / "more.py").write_text("")


def lose_mode(folder: Path) -> None:
    (folder / "tree" / "alpha" / "run.sh").chmod(0o644)


def lose_tree(folder: Path) -> None:
    shutil.rmtree(folder / "tree")


def lose_meta(folder: Path) -> None:
    (folder / "meta.json").unlink()


def cut_meta(folder: Path) -> None:
    text = (folder / "meta.json").read_text()
    (folder / "meta.json").write_text(text[: len(text) // 2])


def empty_meta(folder: Path) -> None:
    (folder / "meta.json").write_text("")


def other_meta(folder: Path) -> None:
    (folder / "meta.json").write_text("[]")


@pytest.mark.parametrize(
    "damage",
    [flip, lose_file, add_file, lose_mode, lose_tree, lose_meta, cut_meta, empty_meta, other_meta],
)
def test_a_damaged_entry_is_dropped_and_can_be_put_again(
    store: Store, result: Path, damage: object
) -> None:
    home = store.put(KEY, result, {}).folder.parent
    assert callable(damage)
    damage(home)
    assert store.get(KEY) is None
    assert not home.exists()
    store.put(KEY, result, {})
    assert store.get(KEY) is not None


def test_a_put_mends_a_damaged_entry_that_nobody_has_read_yet(store: Store, result: Path) -> None:
    flip(store.put(KEY, result, {}).folder.parent)
    entry = store.put(KEY, result, {})
    assert (entry.folder / "alpha" / "__init__.py").read_text() == "value = 1\n"


def test_a_put_that_fails_leaves_nothing(
    store: Store, result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(json, "dumps", broken)
    with pytest.raises(OSError, match="disk full"):
        store.put(KEY, result, {})
    monkeypatch.undo()
    assert store.get(KEY) is None
    assert [path for path in store.root.rglob("*") if path.is_dir() and len(path.name) > 2] == []


def test_a_good_entry_stays_where_it_is_while_others_put_the_same(
    store: Store, result: Path
) -> None:
    """A process that reads the first entry must not lose files to a second writer."""
    first = store.put(KEY, result, {"seconds": 1})
    inode = (first.folder / "alpha" / "__init__.py").stat().st_ino
    second = store.put(KEY, result, {"seconds": 2})
    assert second.meta["seconds"] == 1
    assert (first.folder / "alpha" / "__init__.py").stat().st_ino == inode


def test_writers_and_readers_at_once_see_whole_entries_only(store: Store, result: Path) -> None:
    problems: list[BaseException | str] = []
    start = threading.Barrier(6)

    def work(writes: bool) -> None:
        try:
            start.wait()
            for _ in range(8):
                entry = store.put(KEY, result, {}) if writes else store.get(KEY)
                if entry is not None and names_below(entry.folder) != names_below(result):
                    problems.append("not whole")
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number % 2 == 0,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert store.get(KEY) is not None
