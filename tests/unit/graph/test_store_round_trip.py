"""Whatever a folder holds, what comes back from the store, or from another host's, is the same."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import uuid
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ci.graph.key import Key
from ci.graph.remote import Remote
from ci.graph.store import Store

Tree = dict[str, tuple[str, bytes | str]]

NAMES = st.one_of(
    st.sampled_from(
        ["a", "b", "lib", "x y", "ünï", "日本", "-rf", "a.so.1", "…", "'quoted\"", "a\nb"]
    ),
    st.text(
        st.characters(blacklist_categories=["Cs"], blacklist_characters="/\0"),
        min_size=1,
        max_size=12,
    ).filter(lambda name: name not in (".", "..") and len(name.encode()) < 100),
)
CONTENTS = st.one_of(
    st.just(b""),
    st.binary(max_size=200),
    st.integers(1, 3).map(lambda count: b"0123456789" * 10_000 * count),
)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
FILES = st.tuples(st.sampled_from(["file", "executable"]), CONTENTS)
TREES = st.dictionaries(PATHS, FILES, max_size=12)


def write(folder: Path, tree: dict[str, tuple[str, bytes]]) -> None:
    """Make what can be made of ``tree``: a file is not also a folder."""
    folder.mkdir()
    for path, (kind, content) in tree.items():
        place = folder / path
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        except (FileExistsError, IsADirectoryError, NotADirectoryError):
            continue
        place.chmod(0o750 if kind == "executable" else 0o640)


def links(folder: Path, chosen: list[int]) -> None:
    """Some links to what is there, each by the shortest relative way."""
    there = sorted(path for path in folder.rglob("*") if not path.is_symlink())
    for number in chosen:
        if there:
            target = there[number % len(there)]
            parent = there[(number // 7) % len(there)].parent
            place = parent / f"link-{number}"
            if not os.path.lexists(place):
                place.symlink_to(os.path.relpath(target, parent))


def read(folder: Path) -> Tree:
    found: Tree = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        elif path.is_file():
            kind = "executable" if path.stat().st_mode & 0o100 else "file"
            found[name] = (kind, path.read_bytes())
    return found


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tree=TREES, chosen=st.lists(st.integers(0, 200), max_size=4))
def test_what_was_put_comes_back(tree: dict[str, tuple[str, bytes]], chosen: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        told: list[str] = []
        place, key = Path(name), Key.of({"tree": "any"})
        folder = place / "result"
        write(folder, tree)
        links(folder, chosen)
        wanted = read(folder)
        shared = f"memory://{uuid.uuid4().hex}"
        with Store(place / "one", remote=Remote(shared, mode="write"), warn=told.append) as store:
            entry = store.put(key, folder, {})
            assert read(folder) == wanted
            assert read(store.materialise(entry, place / "out")) == wanted
            assert store.get(key) == entry
        with Store(place / "two", remote=Remote(shared), warn=told.append) as other:
            got = other.get(key)
            assert got == entry
            assert read(other.materialise(got, place / "out-two")) == wanted
        assert told == []
        by_hash = {item.path: item.sha256 for item in entry.files if item.link is None}
        assert by_hash == {
            path: hashlib.sha256(content).hexdigest()
            for path, (kind, content) in wanted.items()
            if isinstance(content, bytes)
        }


@settings(max_examples=30, deadline=None)
@given(tree=TREES, number=st.integers(0, 1000), position=st.integers(0, 10**6))
def test_one_changed_bit_is_found(
    tree: dict[str, tuple[str, bytes]], number: int, position: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        told: list[str] = []
        place, key = Path(name), Key.of({"tree": "any"})
        write(place / "result", tree)
        store = Store(place / "store", warn=told.append)
        entry = store.put(key, place / "result", {})
        paths = [store.entry_path(key.digest), *map(store.blobs.path, sorted(entry.blobs))]
        path = paths[number % len(paths)]
        data = bytearray(path.read_bytes())
        if data:
            data[position % len(data)] ^= 1 << (position % 8)
        else:
            data = bytearray(b"!")
        path.chmod(0o644)
        path.write_bytes(data)
        assert store.get(key) is None
        assert len(told) == 1
        assert read(store.materialise(store.put(key, place / "result", {}), place / "out")) == read(
            place / "result"
        )
        shutil.rmtree(place / "store")


def test_the_same_entry_in_other_letters_is_not_as_it_was_put() -> None:
    with tempfile.TemporaryDirectory() as name:
        told: list[str] = []
        place, key = Path(name), Key.of({"tree": "any"})
        write(place / "result", {"ünï": ("file", b"1")})
        store = Store(place / "store", warn=told.append)
        store.put(key, place / "result", {})
        path = store.entry_path(key.digest)
        data = path.read_bytes()
        assert b"\\u00fc" in data
        path.chmod(0o644)
        path.write_bytes(data.replace(b"\\u00fc", b"\\u00FC"))
        assert store.get(key) is None
        assert "it was changed" in told[0]
