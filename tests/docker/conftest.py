"""Fixtures for tests that need an engine: a daemon of their own, a tiny image, the farm's images.

``PADDLEFLEET_TEST_DOCKER_HOST=unix:///var/run/docker.sock`` uses a daemon that runs already, so that
images last from run to run. ``PADDLEFLEET_TEST_REQUIRE_DOCKER=1`` (set in CI) makes what is missing a
failure instead of a skip.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ci.executors.model import build_image_ref

from .daemon import Daemon, missing

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
HOST_VARIABLE = "PADDLEFLEET_TEST_DOCKER_HOST"
REQUIRE_VARIABLE = "PADDLEFLEET_TEST_REQUIRE_DOCKER"
TINY = "farm-tests/tiny:1"
# Of the C library, the shell and coreutils, which every glibc host has.
TINY_PROGRAMS = (
    "sh", "cat", "chmod", "cp", "dd", "env", "false", "head", "id", "ls", "mkdir", "rm", "sleep",
    "stat", "tail", "touch", "true", "uname", "wc",
)  # fmt: skip
CUDA = "13.0"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is below this folder, before ``-m`` is applied."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.docker)


def absent(*programs: str) -> tuple[str, ...]:
    """Which of the programs this host lacks, each as a reason."""
    return tuple(f"{name} is not on PATH" for name in programs if shutil.which(name) is None)


def need(reasons: tuple[str, ...]) -> None:
    """Skip with the reasons, if any; in CI fail instead."""
    if not reasons:
        return
    told = "needs docker: " + "; ".join(reasons)
    if os.environ.get(REQUIRE_VARIABLE):
        pytest.fail(f"{told}. {REQUIRE_VARIABLE} is set, so this is not skipped", pytrace=False)
    pytest.skip(told)


@pytest.fixture(scope="session")
def docker_host() -> Iterator[str]:
    """What ``DOCKER_HOST`` takes for a daemon of these tests: ``unix://…``."""
    running = os.environ.get(HOST_VARIABLE)
    if running:
        need(absent("docker"))
        yield running
        return
    need(missing())
    daemon = Daemon.start(Path(tempfile.mkdtemp(prefix="farm-docker-")))
    yield daemon.url
    daemon.stop()


@pytest.fixture
def start_daemon() -> Iterator[Callable[..., Daemon]]:
    """Starts a daemon for one test (options of :meth:`Daemon.start`), to kill or to configure."""
    need(missing())
    started: list[Daemon] = []

    def start(**options: object) -> Daemon:
        folder = Path(tempfile.mkdtemp(prefix="farm-docker-"))
        started.append(Daemon.start(folder, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for daemon in started:
        daemon.stop()


@pytest.fixture(scope="session")
def tiny_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system with :data:`TINY_PROGRAMS` of this host and their libraries, as a tar."""
    need(absent("docker", "ldd"))
    archive = tmp_path_factory.mktemp("tiny") / "tiny.tar"
    programs = {f"/bin/{name}": shutil.which(name) for name in TINY_PROGRAMS}
    files = {target: Path(found).resolve() for target, found in programs.items() if found}
    assert files.keys() == programs.keys(), f"not on PATH: {programs.keys() - files.keys()}"
    for program in tuple(files.values()):
        files |= {library: Path(library).resolve() for library in shared_libraries(program)}
    with tarfile.open(archive, "w") as tar:
        for target, source in sorted(files.items()):
            tar.add(source, target.lstrip("/"))
        _add_folder(tar, "tmp", 0o1777)
        _add_text(tar, "etc/passwd", "root:x:0:0:root:/:/bin/sh\n")
        _add_text(tar, "etc/group", "root:x:0:\n")
    return archive


@pytest.fixture(scope="session")
def import_tiny(tiny_archive: Path) -> Callable[..., str]:
    """``import_tiny(host, ref, {label: value})``: the tiny image in a daemon; returns its reference."""

    def run(host: str, ref: str = TINY, labels: dict[str, str] | None = None) -> str:
        changes = [
            "ENV PATH=/bin",
            *(f"LABEL {name}={value!r}" for name, value in (labels or {}).items()),
        ]
        options = [part for change in changes for part in ("--change", change)]
        done = subprocess.run(
            ("docker", "--host", host, "import", *options, str(tiny_archive), ref),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return ref

    return run


@pytest.fixture(scope="session")
def tiny_image(docker_host: str, import_tiny: Callable[..., str]) -> Iterator[str]:
    """An image with a shell, coreutils and nothing else, in the daemon of ``docker_host``."""
    yield import_tiny(docker_host)
    _docker(docker_host, "rmi", "--force", TINY)


@pytest.fixture(scope="session")
def airgapped_images(docker_host: str) -> str:
    """The farm's images for CUDA 13.0, built from nothing by ``python -m ci images``.

    Once a session: all tests of this folder run in one worker. Returns the build image's reference.
    """
    need(absent("debootstrap"))
    done = subprocess.run(
        (sys.executable, "-m", "ci", "images", CUDA, "--base", "airgapped", "--engine", "docker"),
        cwd=REPOSITORY, env=dict(os.environ) | {"DOCKER_HOST": docker_host, "COLUMNS": "200"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return build_image_ref(CUDA)


def shared_libraries(program: Path) -> tuple[str, ...]:
    """The libraries that ``ldd`` names for ``program``, with the dynamic linker."""
    done = subprocess.run(("ldd", str(program)), capture_output=True, text=True, check=False)
    return tuple(re.findall(r"(/\S+) \(0x", done.stdout))


def _docker(host: str, *arguments: str) -> None:
    subprocess.run(("docker", "--host", host, *arguments), capture_output=True, check=False)


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(text.encode())
    tar.addfile(entry, io.BytesIO(text.encode()))


def _add_folder(tar: tarfile.TarFile, name: str, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    tar.addfile(entry)
