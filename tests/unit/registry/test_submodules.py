"""The submodule check, against real repositories: every missing, nested or drifted one by name."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.errors import ConfigError
from ci.registry import EcosystemLibrary, build_utils
from ci.sources.resolve import check_submodules


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A superproject whose packages/paddlefleet_ops is what the registry takes for its own."""
    root = tmp_path / "super" / "packages" / "paddlefleet_ops"
    root.mkdir(parents=True)
    monkeypatch.setattr(build_utils, "PACKAGE_ROOT", root)
    return root


@pytest.fixture
def checked_out(
    package: Path, tmp_path: Path, git: Any, commit_files: Any, make_library: Any
) -> Callable[..., EcosystemLibrary]:
    """A library whose submodule is checked out at its pin; ``nested`` gives it a submodule of its own."""

    def make(name: str, *, nested: bool = False) -> Any:
        origin = tmp_path / "origins" / name
        commit_files(origin, {"pyproject.toml": f"# {name}\n", "src/code.py": "x = 1\n"})
        if nested:
            inner = tmp_path / "origins" / f"{name}-inner"
            commit_files(inner, {"header.h": "#define A 1\n"})
            git("submodule", "--quiet", "add", str(inner), "deep down/inner", cwd=origin)
        pin = commit_files(origin, {"last": "x"})
        folder = package / "third_party" / name
        git("clone", "--quiet", str(origin), str(folder))
        git("submodule", "--quiet", "update", "--init", "--recursive", cwd=folder)
        return make_library(name, pin=pin)

    return make


def told(library: EcosystemLibrary) -> list[tuple[str, str]]:
    return [(item.path, item.problem) for item in build_utils.submodule_problems([library])]


def test_a_submodule_at_its_pin_is_no_problem(checked_out: Any) -> None:
    assert told(checked_out("plain")) == []
    assert told(checked_out("with-nested", nested=True)) == []


def test_one_that_is_not_checked_out_is_named_with_the_command(
    package: Path, make_library: Any
) -> None:
    (package / "third_party" / "gone").mkdir(parents=True)  # git leaves an empty folder
    (problem,) = build_utils.submodule_problems([make_library("gone", pin="a" * 40)])
    assert (problem.library, problem.path, problem.problem) == (
        "gone",
        "third_party/gone",
        "not checked out",
    )
    assert problem.next_step.endswith("--recursive packages/paddlefleet_ops/third_party/gone")


def test_one_that_has_drifted_is_named_with_both_commits(
    checked_out: Any, commit_files: Any, package: Path
) -> None:
    library = checked_out("drifting")
    head = commit_files(package / "third_party" / "drifting", {"more": "x"})
    assert library.pin is not None
    assert told(library) == [
        ("third_party/drifting", f"at {head[:12]}, but pinned to {library.pin[:12]}")
    ]


def test_a_nested_one_that_is_not_checked_out_is_named(
    checked_out: Any, git: Any, package: Path
) -> None:
    library = checked_out("outer", nested=True)
    git("submodule", "deinit", "--force", "--all", cwd=package / "third_party" / "outer")
    assert told(library) == [("third_party/outer/deep down/inner", "not checked out")]


def test_only_the_nested_ones_that_the_build_reads_are_asked_for(
    checked_out: Any, git: Any, package: Path
) -> None:
    library = checked_out("choosy", nested=True)
    git(
        "submodule", "--quiet", "deinit", "--force", "--all", cwd=package / "third_party" / "choosy"
    )
    missing = [("third_party/choosy/deep down/inner", "not checked out")]
    assert told(library) == missing
    assert told(replace(library, nested=("deep down",))) == missing
    assert told(replace(library, nested=())) == []
    assert told(replace(library, nested=("deep",))) == []
    assert "--recursive" not in build_utils.update_command(replace(library, nested=()))
    assert build_utils.update_command(replace(library, nested=("a", "b"))).endswith(
        "--recursive a b"
    )


def test_a_nested_one_that_has_drifted_is_named_once(
    checked_out: Any, commit_files: Any, package: Path
) -> None:
    library = checked_out("outer", nested=True)
    commit_files(package / "third_party" / "outer" / "deep down" / "inner", {"more": "x"})
    assert told(library) == [("third_party/outer/deep down/inner", "not at its recorded commit")]


@pytest.mark.parametrize("changed", ["src/code.py", "src/new.py", "deep down/inner/header.h"])
def test_edited_sources_do_not_pass_for_the_pinned_ones(
    checked_out: Any, package: Path, changed: str
) -> None:
    library = checked_out("edited", nested=True)
    (package / "third_party" / "edited" / changed).write_text("changed", "utf-8")
    ((path, problem),) = told(library)
    assert path == "third_party/edited"
    assert problem == f"1 changed or untracked files, the first is {changed.split('inner/')[-1]}"


def test_a_nested_submodule_that_git_cannot_tell_of_is_a_problem(
    checked_out: Any, git: Any, package: Path
) -> None:
    """git exits with an error where a gitlink has no section in .gitmodules."""
    library = checked_out("broken", nested=True)
    folder = package / "third_party" / "broken"
    git("rm", "--quiet", "--cached", ".gitmodules", cwd=folder)
    (folder / ".gitmodules").unlink()
    git("commit", "--quiet", "-m", "lose it", cwd=folder)
    head = git("rev-parse", "HEAD", cwd=folder)
    problems = told(replace(library, pin=head))
    assert any("cannot list its nested submodules" in problem for _, problem in problems)


def test_a_folder_without_a_commit_is_a_problem(package: Path, git: Any, make_library: Any) -> None:
    folder = package / "third_party" / "unborn"
    folder.mkdir(parents=True)
    git("init", "--quiet", cwd=folder)
    ((_, problem),) = told(make_library("unborn", pin="a" * 40))
    assert problem.startswith("git cannot tell its commit: ")


def test_a_library_without_a_pin_is_told_to_be_so_and_git_is_not_asked(
    package: Path, make_library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    (problem,) = build_utils.submodule_problems([make_library("young", pin=None)])
    assert problem.problem.startswith("not pinned yet")
    assert "--source young=path:DIR" in problem.next_step


def test_only_the_given_libraries_are_asked_about(
    checked_out: Any, make_library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    real = subprocess.run

    def spy(*arguments: Any, **named: Any) -> Any:
        asked.append(Path(named["cwd"]))
        return real(*arguments, **named)

    one, _other = checked_out("one"), checked_out("other")
    template = make_library("template", source_rel_path="../templates/any")
    monkeypatch.setattr(subprocess, "run", spy)
    assert build_utils.submodule_problems([one, template]) == ()
    assert {path.name for path in asked} == {"one"}


def test_a_library_below_a_submodule_is_checked_at_the_submodule(
    checked_out: Any,
) -> None:
    library = replace(checked_out("whole"), source_rel_path="third_party/whole/src")
    assert library.submodule_path == "third_party/whole"
    assert told(library) == []


def test_what_a_git_hook_exports_does_not_lead_elsewhere(
    checked_out: Any, package: Path, git: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = checked_out("quiet")
    git("init", "--quiet", cwd=package.parent.parent)
    monkeypatch.setenv("GIT_DIR", str(package.parent.parent / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(package / "elsewhere"))
    assert told(library) == []


def test_all_problems_are_raised_at_once(checked_out: Any, make_library: Any) -> None:
    libraries = [
        checked_out("good"),
        make_library("missing", pin="b" * 40),
        make_library("young", pin=None),
    ]
    with pytest.raises(build_utils.RegistryError) as refused:
        build_utils.check_submodule_updated(libraries)
    assert [problem.split(":")[0] for problem in refused.value.problems] == ["missing", "young"]

    with pytest.raises(ConfigError, match="the sources of missing, young are not there") as config:
        check_submodules(libraries)
    assert len(config.value.details) == 2
    assert "git submodule update --init --recursive" in config.value.next_step
    assert "--set templates" in config.value.next_step


def test_the_command_that_is_given_mends_a_drifted_submodule(
    tmp_path: Path, git: Any, commit_files: Any, make_library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = tmp_path / "origin"
    pin = commit_files(origin, {"a": "1"})
    super_project = tmp_path / "super"
    package = super_project / "packages" / "paddlefleet_ops"
    commit_files(super_project, {"README": "x"})
    git(
        "submodule", "--quiet", "add", str(origin), "packages/paddlefleet_ops/third_party/lib",
        cwd=super_project,
    )  # fmt: skip
    commit_files(super_project, {})
    shutil.rmtree(package / "third_party" / "lib")
    (package / "third_party" / "lib").mkdir()
    monkeypatch.setattr(build_utils, "PACKAGE_ROOT", package)
    library = make_library("lib", pin=pin)
    (problem,) = build_utils.submodule_problems([library])
    git(*problem.next_step.split()[1:], cwd=super_project)
    assert told(library) == []


@pytest.mark.parametrize("setting", ["normal", "no"])
def test_files_that_git_ignores_do_not_pass_for_the_pinned_sources(
    checked_out: Any, git: Any, commit_files: Any, package: Path, setting: str
) -> None:
    library = checked_out("ignoring")
    folder = package / "third_party" / "ignoring"
    pin = commit_files(folder, {".gitignore": "*.so\n*.pyc\nbuild/\n"})
    library = replace(library, pin=pin)
    git("config", "status.showUntrackedFiles", setting, cwd=folder)
    for left_behind in ("build/lib/a.py", "src/__pycache__/code.pyc", "src/x.egg-info/PKG-INFO"):
        (folder / left_behind).parent.mkdir(parents=True, exist_ok=True)
        (folder / left_behind).write_text("x")
    assert told(library) == []
    (folder / "src" / "stale.so").write_text("x")
    ((_, problem),) = told(library)
    assert "src/stale.so" in problem
