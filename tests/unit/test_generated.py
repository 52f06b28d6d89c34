"""Files that are derived from the declarations, read back by git itself."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ci import generated
from ci.registry import REPOSITORY, EcosystemLibrary, build_utils

PINNED = [
    library
    for library in build_utils.all_libs()
    if library.is_submodule and library.pin is not None
]
PREFIX = "packages/paddlefleet_ops"


def ask(git: Any, cwd: Path, *arguments: str) -> list[str]:
    found: str = git(*arguments, cwd=cwd)
    return found.splitlines()


@pytest.fixture
def checkout(tmp_path: Path, git: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository in which the derived files are written."""
    root = tmp_path / "checkout"
    root.mkdir()
    git("init", "--quiet", cwd=root)
    monkeypatch.setattr(generated, "REPOSITORY", root)
    return root


def without(monkeypatch: pytest.MonkeyPatch, name: str) -> EcosystemLibrary:
    """Remove one declaration, and nothing else."""
    removed = next(library for library in build_utils.all_libs() if library.name == name)
    for registry in ("LIBRARIES", "TEMPLATES"):
        left = tuple(item for item in getattr(build_utils, registry) if item.name != name)
        monkeypatch.setattr(build_utils, registry, left)
    return removed


def test_git_reads_every_pinned_submodule_with_its_url(checkout: Path, git: Any) -> None:
    generated.write_files()
    lines = ask(git, checkout, "config", "-f", ".gitmodules", "--get-regexp", r"\.(path|url)$")
    found = dict(line.split(" ", 1) for line in lines)
    expected = {}
    for library in PINNED:
        path = f"{PREFIX}/{library.submodule_path}"
        expected[f"submodule.{path}.path"] = path
        expected[f"submodule.{path}.url"] = library.url
    assert found == expected
    assert expected


def test_git_s_index_holds_every_pin(checkout: Path, git: Any) -> None:
    generated.write_files()
    assert generated.stale_files() == ()
    lines = ask(git, checkout, "ls-files", "--stage")
    found = {line.split("\t")[1]: line.split()[1] for line in lines if line.startswith("160000")}
    assert found == {f"{PREFIX}/{item.submodule_path}": item.pin for item in PINNED}


def test_a_library_without_a_pin_is_no_submodule(checkout: Path) -> None:
    unpinned = [item for item in build_utils.all_libs() if item.is_submodule and item.pin is None]
    assert unpinned
    text = generated.gitmodules_text()
    for library in unpinned:
        assert f"{PREFIX}/{library.submodule_path}\n" not in text


@pytest.mark.parametrize("library", build_utils.all_libs(), ids=lambda item: item.name)
def test_git_ignores_every_artifact_and_what_is_below_it(
    checkout: Path, git: Any, library: EcosystemLibrary
) -> None:
    generated.write_files()
    for artifact in library.artifacts:
        target = f"{PREFIX}/src/paddlefleet_ops/{artifact.target}"
        assert ask(git, checkout, "check-ignore", target) == [target]
        below = f"{target}/deep/file.py"
        assert ask(git, checkout, "check-ignore", below) == [below]


@pytest.mark.parametrize(
    "path",
    [
        "__init__.py",
        "_loader.py",
        "py.typed",
        "quack_more",
        "deep/quack",
        "../quack",
        "fused_norm.py",
    ],
)
def test_git_ignores_nothing_else_of_the_package(checkout: Path, git: Any, path: str) -> None:
    generated.write_files()
    done = subprocess.run(
        ("git", "check-ignore", "--quiet", f"{PREFIX}/src/paddlefleet_ops/{path}"),
        cwd=checkout, check=False,
    )  # fmt: skip
    assert done.returncode == 1


@pytest.mark.parametrize("library", build_utils.get_libs("templates"), ids=lambda item: item.name)
def test_removing_a_template_s_declaration_removes_its_lines_and_no_other(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, library: EcosystemLibrary
) -> None:
    generated.write_files()
    before = (checkout / ".gitignore").read_text().splitlines()
    without(monkeypatch, library.name)
    assert generated.stale_files() == (".gitignore",)
    generated.write_files()
    after = (checkout / ".gitignore").read_text().splitlines()
    gone = {f"/{PREFIX}/src/paddlefleet_ops/{item.target}" for item in library.artifacts}
    assert [line for line in before if line not in gone] == after
    assert generated.stale_files() == ()


def test_removing_a_submodule_s_declaration_removes_section_and_gitlink(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generated.write_files()
    removed = without(monkeypatch, "quack")
    path = f"{PREFIX}/{removed.submodule_path}"
    assert f"gitlink {path}" in generated.stale_files()
    generated.write_files()
    assert path not in (checkout / ".gitmodules").read_text()
    assert path not in generated.recorded_gitlinks()
    assert generated.stale_files() == ()


def test_a_pin_that_moved_is_stale_until_it_is_written(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generated.write_files()
    moved = tuple(
        build_utils.EcosystemLibrary(**{**vars(item), "pin": "1" * 40})
        if item.name == "quack"
        else item
        for item in build_utils.LIBRARIES
    )
    monkeypatch.setattr(build_utils, "LIBRARIES", moved)
    assert generated.stale_files() == (f"gitlink {PREFIX}/third_party/quack",)
    generated.write_files()
    assert generated.recorded_gitlinks()[f"{PREFIX}/third_party/quack"] == "1" * 40


def test_lines_of_the_user_stay_round_the_block(checkout: Path) -> None:
    (checkout / ".gitignore").write_text("*.log\n")
    generated.write_files()
    path = checkout / ".gitignore"
    path.write_text(path.read_text() + "# mine\nscratch/\n")
    assert generated.stale_files() == ()
    generated.write_files()
    text = path.read_text()
    assert text.startswith("*.log\n")
    assert text.endswith("# mine\nscratch/\n")


@pytest.mark.parametrize("current", ["", "\n", "*.log", "*.log\n\n\n", "a\r\n"])
def test_writing_twice_changes_nothing(current: str) -> None:
    once = generated.gitignore_text(current)
    assert generated.gitignore_text(once) == once


def test_an_edit_inside_the_block_is_stale(checkout: Path) -> None:
    generated.write_files()
    path = checkout / ".gitignore"
    path.write_text(re.sub(r"(?m)^.*/quack\n", "", path.read_text()))
    assert generated.stale_files() == (".gitignore",)


def test_a_missing_file_is_stale(checkout: Path) -> None:
    generated.write_files()
    (checkout / ".gitmodules").unlink()
    assert generated.stale_files() == (".gitmodules",)


def test_the_committed_files_are_up_to_date() -> None:
    assert (REPOSITORY / ".gitmodules").read_text("utf-8") == generated.gitmodules_text()
    committed = (REPOSITORY / ".gitignore").read_text("utf-8")
    assert generated.gitignore_text(committed) == committed
