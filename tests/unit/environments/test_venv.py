"""Environments: made once, whole, and with nothing but what the lock holds."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ci.environments import venv as venv_module
from ci.environments.lock import Lock, lock_for
from ci.environments.venv import cached_environment, frozen, make_environment
from ci.errors import InfrastructureError

EMPTY = Lock("# nothing\n")
PYTHON = Path(sys.executable)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Counts the environments that are really made."""
    folders: list[Path] = []
    real = venv_module.make_environment

    def count(lock: Lock, interpreter: Path, folder: Path) -> venv_module.Environment:
        folders.append(folder)
        return real(lock, interpreter, folder)

    monkeypatch.setattr(venv_module, "make_environment", count)
    return folders


def test_an_environment_is_made_once(tmp_path: Path, made: list[Path]) -> None:
    first = cached_environment(EMPTY, PYTHON, tmp_path)
    assert cached_environment(EMPTY, PYTHON, tmp_path) == first
    assert made == [first.folder]
    assert first.python.exists()
    done = subprocess.run(
        (str(first.python), "-c", "import sys; print(sys.prefix != sys.base_prefix)"),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "True\n"


def test_another_lock_gives_another_environment(tmp_path: Path, made: list[Path]) -> None:
    one = cached_environment(EMPTY, PYTHON, tmp_path)
    other = cached_environment(Lock("# nothing else\n"), PYTHON, tmp_path)
    assert one.folder != other.folder
    assert len(made) == 2


def test_a_half_made_one_is_made_anew(tmp_path: Path, made: list[Path]) -> None:
    folder = cached_environment(EMPTY, PYTHON, tmp_path).folder
    (folder / ".complete").unlink()
    (folder / "leftover").write_text("x")
    assert cached_environment(EMPTY, PYTHON, tmp_path).folder == folder
    assert not (folder / "leftover").exists()
    assert len(made) == 2


def test_one_that_failed_is_not_taken_for_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(lock: Lock, interpreter: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "half").write_text("x")
        raise InfrastructureError("no index")

    with monkeypatch.context() as patch:
        patch.setattr(venv_module, "make_environment", broken)
        with pytest.raises(InfrastructureError):
            cached_environment(EMPTY, PYTHON, tmp_path)
    environment = cached_environment(EMPTY, PYTHON, tmp_path)
    assert environment.python.exists()
    assert not (environment.folder / "half").exists()


def test_two_at_once_make_one(tmp_path: Path, made: list[Path]) -> None:
    found: list[Path] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(cached_environment(EMPTY, PYTHON, tmp_path).folder)
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert len(set(found)) == 1
    assert len(made) == 1


def test_an_interpreter_that_is_none_is_told_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="uv venv failed") as refused:
        make_environment(EMPTY, tmp_path / "no-python", tmp_path / "environment")
    assert "no-python" in refused.value.next_step


@pytest.mark.network
def test_it_holds_just_what_the_lock_says(tmp_path: Path) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    lock = lock_for(["packaging>=24.2"], version, "build", tmp_path)
    environment = cached_environment(lock, PYTHON, tmp_path)
    assert frozen(environment) == (f"packaging=={lock.pins['packaging']}",)


@pytest.mark.network
def test_a_hash_that_differs_is_refused(tmp_path: Path) -> None:
    lock = Lock(f"packaging==24.2 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(InfrastructureError) as refused:
        cached_environment(lock, PYTHON, tmp_path)
    assert any("ash" in line for line in refused.value.details)
