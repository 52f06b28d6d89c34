"""The hash with an index: the same as without one, whatever happens to the tree, and without reading it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ci.registry import REPOSITORY, build_manifest
from ci.sources import tree_cache
from ci.sources.tree_cache import hashed_tree

TICK = 0.02  # seconds; kernels stamp files with a clock of 1 to 10 ms
NAMES = ("a.cu", "src/b.h", "src/deep/c.h", "extern/inner/d.h")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name} one\n")
    (folder / "extern/inner/.git").write_text("gitdir: ../../.git/modules/inner\n")
    (folder / "link").symlink_to("a.cu")
    return folder


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files may be trusted a tick after their last change, so that a test need not wait for seconds."""
    monkeypatch.setattr(tree_cache, "_TRUSTED_AFTER_NS", int(TICK * 1e9))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose contents were read for a hash."""
    seen: list[str] = []
    plain = build_manifest.content_hash

    def counted(name: str, entry: os.DirEntry[str]) -> bytes:
        seen.append(name)
        return plain(name, entry)

    monkeypatch.setattr(build_manifest, "content_hash", counted)
    return seen


def settle() -> None:
    time.sleep(1.5 * TICK)


def same_size_and_time(path: Path) -> None:
    before = path.stat()
    path.write_text(path.read_text().swapcase())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def replaced(path: Path) -> None:
    """Another file takes its place, with the same size and modification time."""
    other = path.with_name("other")
    other.write_text(path.read_text().swapcase())
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)


def relink(tree: Path) -> None:
    (tree / "link").unlink()
    (tree / "link").symlink_to("src/b.h")


CHANGES: dict[str, Callable[[Path], object]] = {
    "content of the same size with the old time": lambda tree: same_size_and_time(tree / "src/b.h"),
    "another file of the same size and time": lambda tree: replaced(tree / "src/b.h"),
    "a name": lambda tree: (tree / "src/b.h").rename(tree / "src/b2.h"),
    "two names exchanged": lambda tree: [
        (tree / "src/b.h").rename(tree / "x"),
        (tree / "a.cu").rename(tree / "src/b.h"),
        (tree / "x").rename(tree / "a.cu"),
    ],
    "the executable bit": lambda tree: (tree / "a.cu").chmod(0o755),
    "an untracked file": lambda tree: (tree / "src/new.h").write_text(""),
    "a link's target": relink,
    "a link that became a file": lambda tree: [
        (tree / "link").unlink(),
        (tree / "link").write_text("a.cu"),
    ],
    "a file of a nested submodule": lambda tree: same_size_and_time(tree / "extern/inner/d.h"),
    "a file less": lambda tree: (tree / "src/deep/c.h").unlink(),
}


@pytest.mark.usefixtures("trusting")
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(tree: Path, tmp_path: Path, name: str) -> None:
    settle()
    before = hashed_tree(tree, tmp_path / "cache")
    assert before == hashed_tree(tree, tmp_path / "cache") == build_manifest.tree_hash(tree)
    CHANGES[name](tree)
    after = hashed_tree(tree, tmp_path / "cache")
    assert after == build_manifest.tree_hash(tree) != before


@pytest.mark.usefixtures("trusting")
def test_what_has_not_changed_is_not_read_again(
    tree: Path, tmp_path: Path, reads: list[str]
) -> None:
    settle()
    first = hashed_tree(tree, tmp_path / "cache")
    assert sorted(reads) == sorted(NAMES)
    reads.clear()
    assert hashed_tree(tree, tmp_path / "cache") == first
    assert reads == []
    os.utime(tree / "a.cu")
    assert hashed_tree(tree, tmp_path / "cache") == first
    assert reads == ["a.cu"]


def test_what_changed_just_now_is_read_again(tree: Path, tmp_path: Path, reads: list[str]) -> None:
    """git calls it racy: a second change in the same tick of the clock leaves size and times."""
    for _ in range(3):
        assert hashed_tree(tree, tmp_path / "cache") == build_manifest.tree_hash(tree)
    assert reads.count("a.cu") == 3


def test_a_change_at_once_after_hashing_is_seen(tree: Path, tmp_path: Path) -> None:
    for text in ("two", "six", "ten"):
        (tree / "a.cu").write_text(text)
        assert hashed_tree(tree, tmp_path / "cache") == build_manifest.tree_hash(tree)


@pytest.mark.usefixtures("trusting")
def test_a_file_from_the_future_is_read_each_time(
    tree: Path, tmp_path: Path, reads: list[str]
) -> None:
    os.utime(tree / "a.cu", (4e9, 4e9))
    settle()
    for _ in range(2):
        hashed_tree(tree, tmp_path / "cache")
    assert sorted(reads) == sorted([*NAMES, "a.cu"])


@pytest.mark.usefixtures("trusting")
@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        "null",
        '{"form": 0, "files": {}}',
        '{"form": 1, "files": {"a.cu": [1]}}',
        '{"form": 1, "files": {"a.cu": [1, 2, 3, 4, "zz"]}}',
        '{"form": 1, "files": {"a.cu": ["x", 2, 3, 4, "00"]}}',
        '{"form": 1, "files": {"a.cu": [1, 2, 3, 4, 5]}}',
        '{"form": 1, "files": []}',
    ],
)
def test_a_damaged_index_is_made_anew(tree: Path, tmp_path: Path, damage: str) -> None:
    settle()
    hashed_tree(tree, tmp_path / "cache")
    (index,) = (tmp_path / "cache" / "trees").iterdir()
    whole = index.read_text()
    index.write_text(damage)
    assert hashed_tree(tree, tmp_path / "cache") == build_manifest.tree_hash(tree)
    assert index.read_text() == whole


def test_a_cache_that_cannot_be_written_costs_only_time(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert hashed_tree(tree, tmp_path / "file") == build_manifest.tree_hash(tree)


@pytest.mark.usefixtures("trusting")
def test_each_folder_has_an_index_of_its_own_and_old_ones_go(tree: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.cu").write_text("another\n")
    settle()
    hashed_tree(tree, cache)
    (index,) = (cache / "trees").iterdir()
    os.utime(index, (1, 1))
    assert hashed_tree(other, cache) == build_manifest.tree_hash(other)
    assert index not in set((cache / "trees").iterdir())
    assert hashed_tree(tree, cache) == build_manifest.tree_hash(tree)
    assert len(list((cache / "trees").iterdir())) == 2


def test_many_processes_share_an_index(tree: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from ci.sources import tree_cache;"
        "tree_cache._TRUSTED_AFTER_NS = 0; tree, cache = map(Path, sys.argv[1:]);"
        "print(len({tree_cache.hashed_tree(tree, cache) for _ in range(40)}),"
        " tree_cache.hashed_tree(tree, cache))"
    )
    argv = (sys.executable, "-c", program, str(tree), str(tmp_path / "cache"))
    settle()
    children = [
        subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    answers = {child.communicate(timeout=60)[0] for child in children}
    assert answers == {f"1 {build_manifest.tree_hash(tree)}\n"}
    (index,) = (tmp_path / "cache" / "trees").iterdir()
    assert set(json.loads(index.read_text())["files"]) == set(NAMES)


EDITS = st.lists(
    st.tuples(
        st.sampled_from(("write", "flip", "mode", "remove", "rename", "link", "touch")),
        st.sampled_from((*NAMES, "new", "build", "src/build", "x.pyc", "src/\udcff.h")),
        st.sampled_from((*NAMES, "other")),
    ),
    min_size=1,
    max_size=6,
)


def apply(tree: Path, edit: tuple[str, str, str]) -> None:
    what, name, other = edit
    path, target = tree / name, tree / other
    for place in (path, target):
        place.parent.mkdir(parents=True, exist_ok=True)
    if what == "write":
        path.unlink(missing_ok=True)
        path.write_text(other)
    elif what == "link":
        path.unlink(missing_ok=True)
        path.symlink_to(other)
    elif path.is_symlink() or not path.exists():
        return
    elif what == "flip":
        same_size_and_time(path)
    elif what == "mode":
        path.chmod(path.stat().st_mode ^ 0o111)
    elif what == "remove":
        path.unlink()
    elif what == "rename":
        path.replace(target)
    else:
        os.utime(path, (1, 1))


@pytest.mark.usefixtures("trusting")
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(EDITS)
def test_it_is_always_the_hash_of_the_tree(tmp_path_factory: Any, edits: Any) -> None:
    tree = tmp_path_factory.mktemp("tree")
    cache = tmp_path_factory.mktemp("cache")
    for name in NAMES:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(name)
    for edit in edits:
        settle()
        hashed_tree(tree, cache)
        apply(tree, edit)
        assert hashed_tree(tree, cache) == build_manifest.tree_hash(tree)
