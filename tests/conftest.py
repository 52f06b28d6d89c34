"""Fixtures that several folders of tests share."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.registry import EcosystemLibrary, build_utils

LibraryMaker = Callable[..., EcosystemLibrary]
Git = Callable[..., str]


@pytest.fixture
def make_library() -> LibraryMaker:
    """A valid library by name; keyword arguments change single fields."""

    def make(name: str = "alpha", **changes: Any) -> EcosystemLibrary:
        module = changes.pop("module", name.replace("-", "_"))
        fields: dict[str, Any] = {
            "name": name,
            "source_rel_path": f"third_party/{name}",
            "artifacts": (build_utils.Artifact(module, module),),
            "module": module,
            "kind": "python_dsl",
            "hint": f"do without {name}",
            "public_names": ("run",),
            "compat_scope": (module,),
            "varies_by": frozenset(),
        }
        return EcosystemLibrary(**{**fields, **changes})

    return make


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """Runs git, apart from the user's configuration; local repositories may be submodules."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    settings = {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "protocol.file.allow",
        "GIT_CONFIG_VALUE_0": "always",
        "GIT_CONFIG_KEY_1": "init.defaultBranch",
        "GIT_CONFIG_VALUE_1": "main",
    }
    for role in ("AUTHOR", "COMMITTER"):
        settings[f"GIT_{role}_NAME"] = "Somebody"
        settings[f"GIT_{role}_EMAIL"] = "somebody@example.org"
        settings[f"GIT_{role}_DATE"] = "2026-01-02T03:04:05+00:00"
    for name, value in settings.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str, cwd: Path = tmp_path) -> str:
        done = subprocess.run(
            ("git", *arguments), cwd=cwd, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr}"
        return done.stdout.strip()

    return run


@pytest.fixture
def commit_files(git: Git) -> Callable[[Path, dict[str, str]], str]:
    """Writes files into a repository (made when it is not there), commits them, returns the commit."""

    def commit(repository: Path, files: dict[str, str]) -> str:
        if not (repository / ".git").exists():
            repository.mkdir(parents=True, exist_ok=True)
            git("init", "--quiet", cwd=repository)
        for name, text in files.items():
            path = repository / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        git("add", "--all", cwd=repository)
        git("commit", "--quiet", "--allow-empty", "-m", "change", cwd=repository)
        return git("rev-parse", "HEAD", cwd=repository)

    return commit
