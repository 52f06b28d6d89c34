"""Fixtures that several folders of tests share."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from xdist.scheduler import LoadFileScheduling

from ci.registry import EcosystemLibrary, build_utils

LibraryMaker = Callable[..., EcosystemLibrary]
Git = Callable[..., str]
DOCKER_TESTS = "tests/docker"
Once = Callable[[str, Callable[[], Any]], Any]


class FileScheduling(LoadFileScheduling):  # type: ignore[misc]
    """pytest-xdist's ``--dist loadfile``, where the tests that share a daemon are one unit too.

    By path, not by ``xdist_group``: pytest-xdist 3.8 writes the group where pytest 9.2 does not look.
    """

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return DOCKER_TESTS if file.startswith(f"{DOCKER_TESTS}/") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling | None:
    """:class:`FileScheduling` for ``--dist loadfile``; other distributions are xdist's own."""
    return FileScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """For ``-n auto``: two workers at least, because much of a test is waiting for a child."""
    chosen = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS")
    return None if chosen else max(2, len(os.sched_getaffinity(0)))


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Once:
    """``once(NAME, make)``: what ``make`` returned (a JSON value), made by one worker for all of them.

    For session fixtures that take long. A ``make`` that raises is tried again by the next worker.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent

    def run(name: str, make: Callable[[], Any]) -> Any:
        kept = shared / f"{name}.json"
        with FileLock(shared / f"{name}.lock"):
            if not kept.exists():
                kept.write_text(json.dumps(make()), "utf-8")
            return json.loads(kept.read_text("utf-8"))

    return run


@pytest.fixture(autouse=True, scope="session")
def _no_engine_by_chance() -> None:
    """Tests do not find the engine of the machine that they run on; those of containers name theirs."""
    os.environ["DOCKER_HOST"] = "unix:///nonexistent/docker.sock"
    os.environ["CONTAINER_HOST"] = "unix:///nonexistent/podman.sock"


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
