"""The hash of a source tree: what changes it and what must not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.registry import build_manifest

tree_hash = build_manifest.tree_hash


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    (folder / "src" / "deep").mkdir(parents=True)
    (folder / "setup.py").write_text("setup()\n")
    (folder / "src" / "a.cu").write_text("kernel\n")
    (folder / "src" / "deep" / "b.h").write_text("")
    (folder / "link").symlink_to("src")
    return folder


def edit(path: str) -> Callable[[Path], object]:
    return lambda tree: (tree / path).write_text("other\n")


def swap(tree: Path) -> None:
    (tree / "src" / "a.cu").write_text("")
    (tree / "src" / "deep" / "b.h").write_text("kernel\n")


def relink(target: str) -> Callable[[Path], None]:
    def change(tree: Path) -> None:
        (tree / "link").unlink()
        (tree / "link").symlink_to(target)

    return change


def replace_link_by_file(tree: Path) -> None:
    (tree / "link").unlink()
    (tree / "link").write_text("src")


def add(path: str) -> Callable[[Path], None]:
    def change(tree: Path) -> None:
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text("new")

    return change


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": edit("setup.py"),
    "content of a nested file": edit("src/deep/b.h"),
    "an executable bit": lambda tree: (tree / "setup.py").chmod(0o755),
    "a name": lambda tree: (tree / "setup.py").rename(tree / "setup2.py"),
    "a folder's name": lambda tree: (tree / "src" / "deep").rename(tree / "src" / "deeper"),
    "a file moved up": lambda tree: (tree / "src" / "deep" / "b.h").rename(tree / "src" / "b.h"),
    "contents swapped": swap,
    "a link's target": relink("src/deep"),
    "a link that became a file": replace_link_by_file,
    "a file less": lambda tree: (tree / "src" / "deep" / "b.h").unlink(),
    "a hidden file more": add(".hidden"),
    "a file in a nested folder named build": add("src/build/kernel.cu"),
    "a file named build-something": add("build.py"),
    "a file with a name that is no UTF-8": add(os.fsdecode(b"src/\xff.h")),
}
NO_CHANGES: dict[str, Callable[[Path], object]] = {
    "byte code": add("src/__pycache__/a.cpython-312.pyc"),
    "byte code beside": add("src/a.pyc"),
    "version control": add(".git/HEAD"),
    "a nested submodule's link": add("src/deep/.git"),
    "what setuptools left": add("build/lib/x.py"),
    "an egg-info": add("src/pkg.egg-info/PKG-INFO"),
    "caches": add(".ruff_cache/x"),
    "a time": lambda tree: os.utime(tree / "setup.py", (1, 1)),
    "a write bit of others": lambda tree: (tree / "setup.py").chmod(0o666),
    "an empty folder": lambda tree: (tree / "empty").mkdir(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_it_changes_with(tree: Path, name: str) -> None:
    before = tree_hash(tree)
    CHANGES[name](tree)
    assert tree_hash(tree) != before


@pytest.mark.parametrize("name", NO_CHANGES)
def test_it_does_not_change_with(tree: Path, name: str) -> None:
    before = tree_hash(tree)
    NO_CHANGES[name](tree)
    assert tree_hash(tree) == before


def test_it_is_stable_between_places_and_orders_of_creation(tmp_path: Path) -> None:
    names = ["b", "a", "z/y", "z.x", "z/x", "Z"]
    hashes = set()
    for number, order in enumerate((names, sorted(names), names[::-1])):
        for name in order:
            add(name)(tmp_path / str(number))
        hashes.add(tree_hash(tmp_path / str(number)))
    assert len(hashes) == 1


def test_its_form_does_not_change_unseen(tmp_path: Path) -> None:
    """Worked out by hand; a new form makes every stored result stale, and has to be meant."""
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "b").symlink_to("a")
    # sha256(b"f a\0" + sha256(b"").digest() + b"l b\0a\0")
    expected = "sha256:da9c564c52ff5870755a8f8242da92f42ba39c605632d17d3c6701e73591a877"
    assert tree_hash(tmp_path) == expected
