"""Stored results: whole or absent, verified when read, safe for several writers."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.errors import InfrastructureError, InterruptedRunError, LibraryBuildError
from ci.graph.blobs import copy_file, link_problem
from ci.graph.entries import BadEntryError, from_bytes, to_bytes
from ci.graph.key import Key
from ci.graph.store import Entry, Store, StoredFile

KEY, OTHER = Key.of({"library": "alpha"}), Key.of({"library": "beta"})
NAMES = [
    "alpha", "alpha/__init__.py", "alpha/lib", "alpha/lib/libx.so", "alpha/lib/libx.so.1", "alpha/run.sh",
]  # fmt: skip


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, told: list[str]) -> Store:
    return Store(tmp_path / "store", warn=told.append)


@pytest.fixture
def result(tmp_path: Path) -> Path:
    folder = tmp_path / "result"
    (folder / "alpha" / "lib").mkdir(parents=True)
    (folder / "alpha" / "__init__.py").write_text("value = 1\n")
    (folder / "alpha" / "lib" / "libx.so.1").write_bytes(b"\x7fELF")
    (folder / "alpha" / "lib" / "libx.so").symlink_to("libx.so.1")
    (folder / "alpha" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "alpha" / "run.sh").chmod(0o700)
    return folder


def names_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def files_of(store: Store) -> list[str]:
    """Every entry and every content that is there, and every temporary file."""
    return [
        name
        for name in names_below(store.home)
        if name.startswith(("entries/", "blobs/", "tmp/")) and (store.home / name).is_file()
    ]


def blob_of(store: Store, entry: Entry, path: str) -> Path:
    (sha256,) = [item.sha256 for item in entry.files if item.path == path]
    return store.blobs.path(sha256)


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


# -- one result ------------------------------------------------------------------------------------


def test_what_was_put_comes_back_as_it_was(store: Store, result: Path, tmp_path: Path) -> None:
    assert store.get(KEY) is None
    assert not store.holds(KEY)
    put = store.put(KEY, result, {"seconds": 1.5, "library": "alpha"})
    got = store.get(KEY)
    assert got == put
    assert got is not None
    assert store.holds(KEY)
    assert (got.key, got.name, got.origin) == (KEY.digest, "alpha", "local")
    assert got.meta["seconds"] == 1.5
    assert got.inputs == {"library": "alpha"}
    assert got.host == socket.gethostname()
    out = store.materialise(got, tmp_path / "out")
    assert names_below(out) == NAMES == names_below(result)
    assert (out / "alpha" / "lib" / "libx.so").readlink() == Path("libx.so.1")
    assert (out / "alpha" / "__init__.py").read_text() == "value = 1\n"
    assert (out / "alpha" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (out / "alpha" / "__init__.py").stat().st_mode & 0o777 == 0o644
    assert store.get(OTHER) is None


def test_another_process_s_store_on_the_same_folder_sees_it(store: Store, result: Path) -> None:
    put = store.put(KEY, result, {})
    assert Store(store.root).get(KEY) == put


def test_the_folder_that_was_put_is_only_read(store: Store, result: Path, tmp_path: Path) -> None:
    entry = store.put(KEY, result, {})
    assert names_below(result) == NAMES
    shutil.rmtree(result)
    out = store.materialise(entry, tmp_path / "out")
    assert (out / "alpha" / "__init__.py").read_text() == "value = 1\n"


def test_what_is_laid_out_may_be_written_and_the_store_does_not_change(
    store: Store, result: Path, tmp_path: Path
) -> None:
    entry = store.put(KEY, result, {})
    out = store.materialise(entry, tmp_path / "out")
    for path in out.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("ab") as file:
                file.write(b"more")
            assert path.stat().st_nlink == 1
    assert store.problem(KEY.digest) == ""
    assert Store(store.root).get(KEY) == entry


def test_a_folder_that_is_there_is_not_overwritten(store: Store, result: Path) -> None:
    entry = store.put(KEY, result, {})
    with pytest.raises(FileExistsError):
        store.materialise(entry, result)
    assert names_below(result) == NAMES


def test_a_folder_that_cannot_be_filled_is_not_left_half(
    store: Store, result: Path, tmp_path: Path
) -> None:
    entry = store.put(KEY, result, {})
    blob_of(store, entry, "alpha/run.sh").unlink()
    with pytest.raises(InfrastructureError, match="cannot be laid out") as caught:
        store.materialise(entry, tmp_path / "out")
    assert "cache verify" in caught.value.next_step
    assert not (tmp_path / "out").exists()


def test_an_empty_folder_is_not_kept_and_an_empty_result_is_one(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "result" / "nothing").mkdir(parents=True)
    entry = store.put(KEY, tmp_path / "result", {})
    assert entry.files == ()
    assert store.get(KEY) == entry
    assert names_below(store.materialise(entry, tmp_path / "out")) == []


def test_equal_files_are_one_content_and_equal_results_have_one_value(
    store: Store, result: Path
) -> None:
    shutil.copy(result / "alpha" / "__init__.py", result / "alpha" / "again.py")
    first, second = store.put(KEY, result, {}), store.put(OTHER, result, {"seconds": 9})
    assert first.content == second.content
    assert len([name for name in files_of(store) if name.startswith("blobs/")]) == 3
    (result / "alpha" / "run.sh").chmod(0o644)
    assert store.put(Key.of({"library": "gamma"}), result, {}).content != first.content


# -- damage ----------------------------------------------------------------------------------------


def flip(store: Store, entry: Entry) -> None:
    overwrite(blob_of(store, entry, "alpha/__init__.py"), b"value = 2\n")


def grow(store: Store, entry: Entry) -> None:
    overwrite(blob_of(store, entry, "alpha/__init__.py"), b"value = 10\n")


def cut(store: Store, entry: Entry) -> None:
    overwrite(blob_of(store, entry, "alpha/__init__.py"), b"")


def lose_blob(store: Store, entry: Entry) -> None:
    blob_of(store, entry, "alpha/__init__.py").unlink()


def swap_blob(store: Store, entry: Entry) -> None:
    """A good content under the name of another one."""
    other = blob_of(store, entry, "alpha/run.sh").read_bytes()
    overwrite(blob_of(store, entry, "alpha/__init__.py"), other)


def blob_is_a_folder(store: Store, entry: Entry) -> None:
    path = blob_of(store, entry, "alpha/__init__.py")
    path.unlink()
    path.mkdir()


def cut_entry(store: Store, entry: Entry) -> None:
    data = store.entry_path(entry.key).read_bytes()
    store.entry_path(entry.key).write_bytes(data[: len(data) // 2])


def empty_entry(store: Store, entry: Entry) -> None:
    store.entry_path(entry.key).write_bytes(b"")


def other_json(store: Store, entry: Entry) -> None:
    store.entry_path(entry.key).write_bytes(b"[]")


def edited_entry(store: Store, entry: Entry) -> None:
    text = store.entry_path(entry.key).read_text()
    store.entry_path(entry.key).write_text(text.replace("alpha/run.sh", "alpha/run.py"))


def entry_of_another_key(store: Store, entry: Entry) -> None:
    moved = Entry(OTHER.digest, entry.files, entry.meta, entry.inputs)
    store.entry_path(entry.key).write_bytes(to_bytes(moved))


def entry_with_other_inputs(store: Store, entry: Entry) -> None:
    moved = Entry(entry.key, entry.files, entry.meta, {"library": "beta"})
    store.entry_path(entry.key).write_bytes(to_bytes(moved))


DAMAGES = [
    flip, grow, cut, lose_blob, swap_blob, cut_entry, empty_entry, other_json, edited_entry,
    entry_of_another_key, entry_with_other_inputs,
]  # fmt: skip
Damage = Callable[[Store, Entry], None]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_told_dropped_and_can_be_put_again(
    store: Store, result: Path, told: list[str], tmp_path: Path, damage: Damage
) -> None:
    damage(store, store.put(KEY, result, {}))
    assert store.get(KEY) is None
    assert len(told) == 1
    assert KEY.digest[:12] in told[0]
    assert not store.holds(KEY)
    assert store.get(KEY) is None
    assert len(told) == 1
    entry = store.put(KEY, result, {})
    assert Store(store.root).get(KEY) == entry
    out = store.materialise(entry, tmp_path / "out")
    assert (out / "alpha" / "__init__.py").read_text() == "value = 1\n"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_put_mends_a_damaged_entry_that_nobody_has_read_yet(
    store: Store, result: Path, tmp_path: Path, damage: Damage
) -> None:
    damage(store, store.put(KEY, result, {}))
    entry = Store(store.root, warn=lambda _: None).put(KEY, result, {})
    out = store.materialise(entry, tmp_path / "out")
    assert (out / "alpha" / "__init__.py").read_text() == "value = 1\n"
    assert Store(store.root).get(KEY) == entry


def test_a_bad_content_is_not_used_again_for_another_key(
    store: Store, result: Path, tmp_path: Path
) -> None:
    flip(store, store.put(KEY, result, {}))
    entry = store.put(OTHER, result, {})
    out = store.materialise(entry, tmp_path / "out")
    assert (out / "alpha" / "__init__.py").read_text() == "value = 1\n"


@pytest.mark.parametrize("damage", [flip, grow, cut, swap_blob])
def test_a_bad_content_goes_with_its_entry_and_the_good_ones_stay(
    store: Store, result: Path, damage: Damage
) -> None:
    entry = store.put(KEY, result, {})
    bad = blob_of(store, entry, "alpha/__init__.py")
    damage(store, entry)
    assert store.get(KEY) is None
    assert not bad.exists()
    assert set(store.blobs.sizes()) == set(entry.blobs) - {bad.name}


def test_an_unreadable_content_is_told_of(store: Store, result: Path, told: list[str]) -> None:
    blob_is_a_folder(store, store.put(KEY, result, {}))
    assert store.get(KEY) is None
    assert "cannot be read" in told[0]


def test_a_good_entry_stays_where_it_is_while_others_put_the_same(
    store: Store, result: Path
) -> None:
    first = store.put(KEY, result, {"seconds": 1})
    inode = store.entry_path(KEY.digest).stat().st_ino
    second = store.put(KEY, result, {"seconds": 2})
    assert second.meta["seconds"] == 1
    assert second == first
    assert store.entry_path(KEY.digest).stat().st_ino == inode


# -- what cannot be stored -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "../../outside", "lib/../../x", "lib/../run.sh", "../.."]
)
def test_a_link_that_may_leave_is_refused_by_name(store: Store, result: Path, target: str) -> None:
    (result / "alpha" / "bad").symlink_to(target)
    with pytest.raises(LibraryBuildError, match="cannot be stored") as caught:
        store.put(KEY, result, {})
    assert "alpha/bad" in caught.value.cause
    assert files_of(store) == []


@pytest.mark.parametrize("target", ["run.sh", "../alpha/lib", "lib/libx.so", "nowhere"])
def test_a_link_that_stays_inside_is_kept(
    store: Store, result: Path, tmp_path: Path, target: str
) -> None:
    (result / "alpha" / "good").symlink_to(target)
    out = store.materialise(store.put(KEY, result, {}), tmp_path / "out")
    assert str((out / "alpha" / "good").readlink()) == target


def test_a_link_through_another_link_cannot_leave(tmp_path: Path) -> None:
    """The text of both stays inside; the two together would not."""
    (tmp_path / "root" / "p" / "q").mkdir(parents=True)
    (tmp_path / "root" / "a").mkdir()
    (tmp_path / "root" / "p" / "q" / "dir").symlink_to("../../a")
    (tmp_path / "root" / "p" / "q" / "bad").symlink_to("dir/../../x")
    assert tmp_path / "root" not in (tmp_path / "root" / "p" / "q" / "bad").resolve().parents
    assert link_problem("p/q/dir", "../../a") == ""
    assert link_problem("p/q/bad", "dir/../../x") != ""


def test_a_pipe_is_refused(store: Store, result: Path) -> None:
    os.mkfifo(result / "alpha" / "pipe")
    with pytest.raises(LibraryBuildError, match="cannot be stored") as caught:
        store.put(KEY, result, {})
    assert "alpha/pipe" in caught.value.cause


@pytest.mark.parametrize(
    "item",
    [
        StoredFile("../x", "0" * 64, 1),
        StoredFile("/x", "0" * 64, 1),
        StoredFile("a//x", "0" * 64, 1),
        StoredFile("a/./x", "0" * 64, 1),
        StoredFile("", "0" * 64, 1),
        StoredFile("x", "../../../../etc/passwd", 1),
        StoredFile("x", "0" * 63, 1),
        StoredFile("x", "0" * 64, -1),
        StoredFile("x", "", 0, link="../x"),
        StoredFile("x", "", 0, link=""),
        StoredFile("x", "0" * 64, 0, link="y"),
    ],
)
def test_an_entry_that_reaches_outside_is_no_entry(item: StoredFile) -> None:
    data = to_bytes(Entry(KEY.digest, (item,), {}, {}))
    with pytest.raises(BadEntryError):
        from_bytes(data, KEY.digest)


def test_an_entry_with_a_file_below_a_link_is_no_entry() -> None:
    files = (StoredFile("a", "", 0, link="b"), StoredFile("a/x", "0" * 64, 1))
    with pytest.raises(BadEntryError, match="below"):
        from_bytes(to_bytes(Entry(KEY.digest, files, {}, {})), KEY.digest)


def test_an_entry_that_lists_a_path_twice_is_no_entry() -> None:
    files = (StoredFile("a", "1" * 64, 1), StoredFile("a", "0" * 64, 1))
    with pytest.raises(BadEntryError, match="twice"):
        from_bytes(to_bytes(Entry(KEY.digest, files, {}, {})), KEY.digest)


# -- failures while putting ------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_with_the_next_command_and_leaves_nothing(
    store: Store, result: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", full)
    store.leases.__dict__["_own"] = None
    monkeypatch.setattr(store.leases, "hold", lambda *_: None)
    monkeypatch.setattr(type(store.leases), "name", "none")
    with pytest.raises(InfrastructureError, match="no room") as caught:
        store.put(KEY, result, {})
    monkeypatch.undo()
    assert caught.value.exit_code == 4
    assert "cache gc --limit" in caught.value.next_step
    assert os.strerror(number) in caught.value.cause
    assert names_below(result) == NAMES
    assert files_of(store) == []
    assert store.get(KEY) is None
    assert store.get(KEY) is None
    store.put(KEY, result, {})
    assert store.get(KEY) is not None


def test_another_failure_of_a_put_leaves_nothing(
    store: Store, result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(json, "dumps", broken)
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="broken disk"):
        store.put(KEY, result, {})
    monkeypatch.undo()
    assert files_of(store) == []
    assert store.get(KEY) is None


def test_a_file_that_changes_while_it_is_stored_is_no_result(
    store: Store, result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(source: Path, target: Path, mode: int, *, lasting: bool = False) -> None:
        copy_file(source, target, 0o644, lasting=lasting)
        with Path(target).open("ab") as file:
            file.write(b"late")

    monkeypatch.setattr("ci.graph.store.copy_file", late)
    with pytest.raises(InfrastructureError, match="changed while it was stored"):
        store.put(KEY, result, {})
    assert files_of(store) == []


# -- copies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 65537, 3 * 1024 * 1024 + 5])
@pytest.mark.parametrize("refused", ["", "clone", "both"])
def test_a_copy_has_the_content_however_the_kernel_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, refused: str
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, "other disk")

    if refused:
        monkeypatch.setattr(fcntl, "ioctl", refuse)
    if refused == "both":
        monkeypatch.setattr(os, "copy_file_range", refuse)
    data = os.urandom(size)
    (tmp_path / "source").write_bytes(data)
    copy_file(tmp_path / "source", tmp_path / "target", 0o640)
    assert (tmp_path / "target").read_bytes() == data
    assert (tmp_path / "target").stat().st_mode & 0o777 == 0o640


def test_a_copy_that_the_kernel_gives_up_in_the_middle_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.copy_file_range, []

    def once(reading: int, writing: int, count: int) -> int:
        calls.append(count)
        if len(calls) > 1:
            raise OSError(errno.EOPNOTSUPP, "no more")
        return real(reading, writing, 100_000)

    monkeypatch.setattr(os, "copy_file_range", once)
    data = os.urandom(1_000_000)
    (tmp_path / "source").write_bytes(data)
    copy_file(tmp_path / "source", tmp_path / "target", 0o600)
    assert len(calls) == 2
    assert (tmp_path / "target").read_bytes() == data


# -- several at once -------------------------------------------------------------------------------


def test_writers_and_readers_at_once_see_whole_entries_only(
    store: Store, result: Path, tmp_path: Path
) -> None:
    problems: list[BaseException | str] = []
    start = threading.Barrier(6)

    def work(number: int) -> None:
        mine = Store(store.root, warn=problems.append) if number % 3 else store
        try:
            start.wait()
            for turn in range(6):
                entry = mine.put(KEY, result, {}) if number % 2 else mine.get(KEY)
                if entry is not None:
                    out = mine.materialise(entry, tmp_path / f"out-{number}-{turn}")
                    if names_below(out) != NAMES:
                        problems.append("not whole")
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert store.get(KEY) is not None


def test_one_builder_for_a_key_and_the_others_are_told_once(store: Store) -> None:
    inside, most, waits = 0, 0, 0
    lock, begin = threading.Lock(), threading.Barrier(4)

    def waiting() -> None:
        nonlocal waits
        with lock:
            waits += 1

    def work() -> None:
        nonlocal inside, most
        begin.wait()
        with Store(store.root).building(KEY, waiting):
            with lock:
                inside += 1
                most = max(most, inside)
            threading.Event().wait(0.05)
            with lock:
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert waits == 3


def test_two_keys_are_built_at_once(store: Store) -> None:
    waited: list[str] = []
    with store.building(KEY), store.building(OTHER, lambda: waited.append("waited")):
        assert waited == []


def test_a_wait_for_another_builder_ends_when_the_run_does(store: Store) -> None:
    stop = threading.Event()
    with (
        store.building(KEY),
        pytest.raises(InterruptedRunError),
        store.building(KEY, stop.set, stop),
    ):
        raise AssertionError("two builders")
    with store.building(KEY, lambda: pytest.fail("nobody holds it")):
        pass


def test_a_builder_that_fails_lets_the_next_one_in(store: Store) -> None:
    with pytest.raises(ValueError, match="no"), store.building(KEY):
        raise ValueError("no")
    with store.building(KEY, lambda: pytest.fail("nobody holds it")):
        pass


def test_a_store_is_imported_without_fsspec() -> None:
    code = "import sys, ci.graph.store; print([m for m in sys.modules if m.startswith('fsspec')])"
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
