"""What verify finds: everything that was changed, removed, added or made up, all of it at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ci.bundle import verify
from ci.bundle.commits import write_repository
from ci.bundle.model import Bundle, BundledFile, BundledImage, sha256_of
from ci.bundle.verify import bundle_findings, files_below, lock_findings, part_findings

FILES = {
    "README.txt": b"read me",
    "locks/farm-cp312.txt": b"x==1\n",
    "wheels/x.whl": b"wheel",
    "wheels/y.whl": b"",
}


def quiet(_: str) -> None:
    return


@pytest.fixture
def made(
    tmp_path: Path, commit_files: Callable[[Path, dict[str, str]], str]
) -> tuple[Path, Bundle]:
    folder = tmp_path / "b"
    commit = commit_files(tmp_path / "repository", {"a": "b"})
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    write_repository(folder, tmp_path / "repository")
    (folder / "bundle.json").write_text("{}")
    files = tuple(
        BundledFile(name, (folder / name).stat().st_size, sha256_of(folder / name))
        for name in (*FILES, "repository.bundle")
    )
    return folder, Bundle(commit, (), (), ("3.12",), files, (), (), {})


def rules(folder: Path, bundle: Bundle) -> list[tuple[str, str]]:
    return [(item.rule, item.place) for item in bundle_findings(folder, bundle, quiet)]


def test_a_bundle_as_it_was_made_has_no_finding(made: tuple[Path, Bundle]) -> None:
    assert rules(*made) == []


def test_all_differences_are_told_at_once(made: tuple[Path, Bundle]) -> None:
    folder, bundle = made
    (folder / "wheels/x.whl").write_bytes(b"WHEEL")  # as long as before
    (folder / "wheels/y.whl").unlink()
    (folder / "README.txt").write_bytes(b"longer than before")
    (folder / "wheels/z.whl").write_bytes(b"from nowhere")
    (folder / "locks/deep").mkdir()
    (folder / "locks/deep/more.txt").write_bytes(b"")
    assert rules(folder, bundle) == [
        ("bundle-changed", "README.txt"),
        ("bundle-changed", "wheels/x.whl"),
        ("bundle-extra", "locks/deep/more.txt"),
        ("bundle-extra", "wheels/z.whl"),
        ("bundle-missing", "wheels/y.whl"),
    ]


def test_a_link_is_no_file_of_a_bundle(made: tuple[Path, Bundle], tmp_path: Path) -> None:
    folder, bundle = made
    (tmp_path / "same").write_bytes(b"wheel")
    (folder / "wheels/x.whl").unlink()
    (folder / "wheels/x.whl").symlink_to(tmp_path / "same")
    (folder / "sources").symlink_to(tmp_path)
    assert rules(folder, bundle) == [
        ("bundle-extra", "sources"),
        ("bundle-missing", "wheels/x.whl"),
    ]


def test_a_farm_of_another_commit_is_told(made: tuple[Path, Bundle]) -> None:
    folder, bundle = made
    assert rules(folder, replace(bundle, commit="12" * 20)) == [
        ("bundle-commit", "repository.bundle")
    ]


def test_an_archive_that_is_not_its_image_is_told(made: tuple[Path, Bundle]) -> None:
    folder, bundle = made
    (folder / "images").mkdir()
    archive = folder / "images/x.tar"
    archive.write_bytes(b"no archive")
    image = BundledImage("images/x.tar", "sha256:" + "ab" * 32, "farm/build:cu130")
    file = BundledFile("images/x.tar", archive.stat().st_size, sha256_of(archive))
    bundle = replace(bundle, images=(image,), files=(*bundle.files, file))
    assert rules(folder, bundle) == [("bundle-image", "images/x.tar")]
    archive.write_bytes(b"other text")  # a changed file is told once
    assert rules(folder, bundle) == [("bundle-changed", "images/x.tar")]


def test_a_run_checks_what_it_uses(made: tuple[Path, Bundle]) -> None:
    folder, bundle = made
    (folder / "wheels/x.whl").write_bytes(b"WHEEL")
    assert part_findings(folder, bundle, ("locks",), quiet) == ()
    assert [item.place for item in part_findings(folder, bundle, ("locks", "wheels"), quiet)] == [
        "wheels/x.whl"
    ]


def test_every_file_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a/.hidden").mkdir(parents=True)
    (tmp_path / "a/.hidden/x").write_text("")
    os.mkfifo(tmp_path / "pipe")
    assert files_below(tmp_path) == ("a/.hidden/x", "pipe")


# -- locks -----------------------------------------------------------------------------------------

COMMITTED = (
    "# a header\n"
    "x==1 ; python_full_version < '3.11' \\\n    --hash=sha256:aa\n"
    "x==2 \\\n    --hash=sha256:bb\n"
    "y==3 \\\n    --hash=sha256:cc \\\n    --hash=sha256:dd\n"
)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        (
            "x==1 \\\n    --hash=sha256:aa\n"
            "y==3 \\\n    --hash=sha256:cc \\\n    --hash=sha256:dd\n",
            True,
        ),
        ("y==3 \\\n    --hash=sha256:cc\n", False),
        ("x[more]==2 \\\n    --hash=sha256:bb\n", False),
        ("x==2\n", False),
        ("x==2 \\\n    --hash=sha256:bb\n", True),
        ("x==1 \\\n    --hash=sha256:bb\n", False),  # the hash of another version
        ("x==2 \\\n    --hash=sha256:bb \\\n    --hash=sha256:dd\n", False),
        ("x==4 \\\n    --hash=sha256:bb\n", False),
        ("z==1 \\\n    --hash=sha256:aa\n", False),
        ("x @ https://x.example/x.whl\n", False),
        ("--index-url https://x.example\nx==2 \\\n    --hash=sha256:bb\n", False),
    ],
)
def test_a_lock_must_be_part_of_a_committed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, good: bool
) -> None:
    lock = tmp_path / "committed.txt"
    lock.write_text(COMMITTED)
    monkeypatch.setattr(verify, "committed", lambda name: lock)
    (tmp_path / "locks/environments").mkdir(parents=True)
    (tmp_path / "locks/environments/key.txt").write_text(text)
    file = BundledFile("locks/environments/key.txt", len(text), "ab" * 32)
    bundle = Bundle("12" * 20, (), (), (), (file,), (), (), {})
    assert [item.rule for item in lock_findings(tmp_path, bundle)] == (
        [] if good else ["bundle-lock"]
    )
