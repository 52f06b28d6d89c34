"""Commits in a bundle, judged by git: what is packed, what comes out of it, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ci.bundle import commits
from ci.bundle.commits import (
    check_out,
    check_repository,
    commits_of,
    head_commit,
    write_commit,
    write_repository,
)
from ci.bundle.model import Bundle, BundledCommit
from ci.errors import ConfigError, FindingError
from ci.registry import EcosystemLibrary, build_utils

Commit = Callable[[Path, dict[str, str]], str]
Git = Callable[..., str]
PLACE = "packages/paddlefleet_ops/third_party/alpha"


class Farm:
    """A farm with the submodule ``alpha``, which has the nested submodules ``deep dir`` and ``unread``."""

    def __init__(self, root: Path, git: Git, commit: Commit) -> None:
        self.root, self.git = root, git
        commit(root / "inner", {"header.h": "#pragma once\n"})
        commit(root / "alpha", {"setup.py": "first\n", "old.bin": "x" * 10_000})
        git("rm", "-q", "old.bin", cwd=root / "alpha")
        for name in ("deep dir", "unread"):
            git("submodule", "--quiet", "add", str(root / "inner"), name, cwd=root / "alpha")
        self.pin = commit(root / "alpha", {"setup.py": "second\n", "naïve name.txt": "x"})
        self.home = root / "farm"
        commit(self.home, {"README": "farm"})
        git("submodule", "--quiet", "add", str(root / "alpha"), PLACE, cwd=self.home)
        git("submodule", "--quiet", "update", "--init", "--recursive", cwd=self.home)
        self.commit = commit(self.home, {})

    @property
    def checkout(self) -> Path:
        return self.home / PLACE

    def stand_in(self, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        """From now on ``home`` is the farm's repository."""
        monkeypatch.setattr(commits, "REPOSITORY", home)
        monkeypatch.setattr(commits, "PACKAGE_ROOT", home / "packages" / "paddlefleet_ops")
        monkeypatch.setattr(build_utils, "PACKAGE_ROOT", home / "packages" / "paddlefleet_ops")


@pytest.fixture
def farm(tmp_path: Path, git: Git, commit_files: Commit, monkeypatch: pytest.MonkeyPatch) -> Farm:
    made = Farm(tmp_path, git, commit_files)
    made.stand_in(monkeypatch, made.home)
    return made


@pytest.fixture
def alpha(farm: Farm, make_library: Callable[..., EcosystemLibrary]) -> EcosystemLibrary:
    return make_library(url="https://example.org/alpha.git", pin=farm.pin, nested=("deep dir",))


def packed(farm: Farm, alpha: EcosystemLibrary, out: Path) -> tuple[BundledCommit, ...]:
    items = commits_of([alpha])
    for checkout, item in items:
        write_commit(checkout, item, out)
    return tuple(item for _, item in items)


def bundle_of(items: tuple[BundledCommit, ...], commit: str) -> Bundle:
    return Bundle(commit, (), ("alpha",), ("3.12",), (), (), items, {})


def clone(farm: Farm, out: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The farm as another machine has it: cloned from the bundle, without its submodules."""
    write_repository(out, farm.home)
    there = farm.root / "there"
    farm.git("clone", "--quiet", str(out / "repository.bundle"), str(there))
    farm.stand_in(monkeypatch, there)
    return there


def test_the_repository_can_be_cloned(
    farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = clone(farm, tmp_path, monkeypatch)
    assert farm.git("rev-parse", "HEAD", cwd=there) == farm.commit == head_commit(farm.home)
    assert check_repository(tmp_path, farm.commit) == ""


def test_a_repository_of_another_commit_is_told(farm: Farm, tmp_path: Path) -> None:
    write_repository(tmp_path, farm.home)
    assert farm.commit in check_repository(tmp_path, "12" * 20)
    (tmp_path / "repository.bundle").write_bytes(b"no bundle")
    assert "cannot read" in check_repository(tmp_path, farm.commit)


def test_a_shallow_farm_is_refused(farm: Farm, tmp_path: Path) -> None:
    shallow = tmp_path / "shallow"
    farm.git("clone", "--quiet", "--depth=1", f"file://{farm.home}", str(shallow))
    with pytest.raises(ConfigError, match="shallow"):
        write_repository(tmp_path, shallow)


def test_submodules_come_out_as_they_are_pinned(
    farm: Farm, alpha: EcosystemLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = packed(farm, alpha, tmp_path / "b")
    assert [item.place for item in items] == [PLACE, f"{PLACE}/deep dir"]
    there = clone(farm, tmp_path / "b", monkeypatch)
    shutil.rmtree(farm.root / "alpha")  # what the submodules came from is out of reach
    shutil.rmtree(farm.root / "inner")
    done = check_out(bundle_of(items, farm.commit), tmp_path / "b", ["alpha"])
    assert done == tuple(item.place for item in items)
    assert build_utils.submodule_problems([alpha]) == ()
    assert farm.git("rev-parse", "HEAD", cwd=there / PLACE) == farm.pin
    assert (there / PLACE / "setup.py").read_text() == "second\n"
    assert (there / PLACE / "naïve name.txt").read_text() == "x"
    assert (there / PLACE / "deep dir" / "header.h").exists()
    assert not list((there / PLACE / "unread").iterdir())
    assert farm.git("status", "--porcelain", cwd=there) == ""
    farm.git("fsck", "--strict", cwd=there / PLACE)
    # Again: what is there is left alone.
    assert check_out(bundle_of(items, farm.commit), tmp_path / "b", ["alpha"]) == ()


def test_history_does_not_travel_and_a_shallow_submodule_is_enough(
    farm: Farm, alpha: EcosystemLibrary, tmp_path: Path
) -> None:
    (checkout, item), *_ = commits_of([alpha])
    whole = write_commit(checkout, item, tmp_path / "whole").read_bytes()
    old = farm.git("rev-parse", "HEAD~1:old.bin", cwd=checkout)
    listing = farm.git("index-pack", "-v", str(tmp_path / "whole" / item.path), cwd=farm.home)
    assert listing  # git itself takes the pack as whole
    shown = farm.git("verify-pack", "-v", str(tmp_path / "whole" / item.path), cwd=farm.home)
    assert farm.pin in shown
    assert old not in shown
    shallow = tmp_path / "shallow"
    farm.git("clone", "--quiet", "--depth=1", f"file://{farm.root / 'alpha'}", str(shallow))
    assert write_commit(shallow, item, tmp_path / "shallow-pack").read_bytes() == whole


def test_a_library_that_is_not_asked_for_stays_out(
    farm: Farm, alpha: EcosystemLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = packed(farm, alpha, tmp_path / "b")
    there = clone(farm, tmp_path / "b", monkeypatch)
    assert check_out(bundle_of(items, farm.commit), tmp_path / "b", ["beta"]) == ()
    assert not list((there / PLACE).iterdir())


@pytest.mark.parametrize("fault", ["flipped", "other commit"])
def test_sources_that_are_not_the_pinned_commit_are_refused(
    farm: Farm, alpha: EcosystemLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    items = packed(farm, alpha, tmp_path / "b")
    pack = tmp_path / "b" / items[0].path
    if fault == "flipped":
        content = bytearray(pack.read_bytes())
        content[len(content) // 2] ^= 1
        pack.write_bytes(content)
    else:
        shutil.copyfile(tmp_path / "b" / items[1].path, pack)
    there = clone(farm, tmp_path / "b", monkeypatch)
    with pytest.raises(FindingError, match=f"are not commit {farm.pin}"):
        check_out(bundle_of(items, farm.commit), tmp_path / "b", ["alpha"])
    assert not list((there / PLACE).iterdir())
    assert [path.name for path in (there / PLACE).parent.iterdir()] == ["alpha"]


@pytest.mark.parametrize(
    "place", ["ci/new", "packages/paddlefleet_ops/src/x", "packages/third_party"]
)
def test_sources_go_below_third_party_and_nowhere_else(
    farm: Farm, alpha: EcosystemLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    items = packed(farm, alpha, tmp_path / "b")
    there = clone(farm, tmp_path / "b", monkeypatch)
    elsewhere = (replace(items[0], place=place),)
    assert check_out(bundle_of(elsewhere, farm.commit), tmp_path / "b", ["alpha"]) == ()
    assert not (there / place).exists()
