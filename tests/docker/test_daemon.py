"""The daemon of the tests: it answers, it comes back after a kill, and it leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .daemon import Daemon, DaemonError, mounts_below

Run = Callable[..., str]


def docker(host: str, *arguments: str) -> str:
    done = subprocess.run(
        ("docker", "--host", host, *arguments), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def command_lines() -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended in between
            found.append(path.read_bytes())
    return found


def test_a_container_runs_as_another_user_without_network(
    docker_host: str, tiny_image: str
) -> None:
    run = ("run", "--rm", "--network", "none", "--user", "1234:5678", tiny_image)
    assert docker(docker_host, *run, "sh", "-c", "id -u; id -g").split() == ["1234", "5678"]


@pytest.mark.parametrize(
    "program", ["head --version", "tail --version", "env", "sleep 0", "stat /"]
)
def test_the_tiny_image_has_what_tests_run(docker_host: str, tiny_image: str, program: str) -> None:
    docker(docker_host, "run", "--rm", "--network", "none", tiny_image, *program.split())


def test_labels_reach_an_imported_image(docker_host: str, import_tiny: Callable[..., str]) -> None:
    ref = import_tiny(docker_host, "farm-tests/labelled:1", {"a.b": "3.10 3.11"})
    assert (
        docker(docker_host, "inspect", "--format", '{{index .Config.Labels "a.b"}}', ref)
        == "3.10 3.11"
    )
    docker(docker_host, "rmi", ref)


def interfaces() -> set[str]:
    return {
        path.name for path in Path("/sys/class/net").iterdir() if not path.name.startswith("veth")
    }


def test_the_interfaces_of_the_host_and_of_its_other_daemon_stay(
    start_daemon: Callable[..., Daemon],
) -> None:
    """Such as docker0, that of the daemon of a developer: the real one, or a stand-in of that name."""
    own = "docker0" not in interfaces()
    if own:
        ip("link", "add", "docker0", "type", "bridge")
    try:
        before = interfaces()
        daemon = start_daemon()
        assert interfaces() == before | {daemon.bridge}
        daemon.kill()
        daemon.restart()
        daemon.stop()
        assert interfaces() == before
    finally:
        if own:
            ip("link", "delete", "docker0")


def ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True)


def test_two_daemons_run_beside_each_other(
    docker_host: str, tiny_image: str, start_daemon: Callable[..., Daemon]
) -> None:
    other = start_daemon()
    assert docker(docker_host, "images", "--quiet", tiny_image)
    assert other.docker("images", "--quiet") == ""
    other.stop()
    assert docker(docker_host, "run", "--rm", "--network", "none", tiny_image, "true") == ""


def test_a_killed_daemon_comes_back_with_its_images(
    start_daemon: Callable[..., Daemon], import_tiny: Callable[..., str]
) -> None:
    daemon = start_daemon()
    ref = import_tiny(daemon.url)
    daemon.docker(
        "run",
        "--detach",
        "--name",
        "left",
        "--stop-timeout",
        "1",
        "--network",
        "none",
        ref,
        "sleep",
        "600",
    )
    killed = daemon.pid
    daemon.kill()
    assert not Path(f"/proc/{killed}").exists()
    assert any(b"sleep\x00600\x00" in line for line in command_lines()), "its container runs on"
    daemon.restart()
    assert daemon.pid != killed
    assert daemon.docker("ps", "--all", "--format", "{{.Names}}").split() == ["left"]
    assert daemon.docker("run", "--rm", "--network", "none", ref, "id", "-u").strip() == "0"


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed-first"])
def test_nothing_is_left_of_a_daemon(
    start_daemon: Callable[..., Daemon], import_tiny: Callable[..., str], kill: bool
) -> None:
    daemon = start_daemon()
    ref = import_tiny(daemon.url)
    daemon.docker("run", "--detach", "--network", "none", "--volume", "/v", ref, "sleep", "601")
    assert mounts_below(daemon.root)
    if kill:
        daemon.kill()
    root = os.fsencode(daemon.root)
    daemon.stop()
    assert not daemon.root.exists()
    assert not mounts_below(daemon.root)
    assert not [line for line in command_lines() if root in line or b"sleep\x00601\x00" in line]


def test_path_entries_come_first_for_the_daemon(
    start_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = start_daemon(path=[tmp_path])
    environment = Path(f"/proc/{daemon.pid}/environ").read_bytes().split(b"\0")
    (path,) = (value for value in environment if value.startswith(b"PATH="))
    assert path.startswith(b"PATH=" + os.fsencode(tmp_path) + b":")


def test_a_daemon_that_does_not_start_says_why_and_leaves_nothing(
    start_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    with pytest.raises(DaemonError, match=r"unknown flag: --no-such-option"):
        start_daemon(options=["--no-such-option"])


def test_what_is_missing_is_a_failure_when_docker_is_required(tmp_path: Path) -> None:
    """The same test, on a host with no docker on its PATH: skipped with the reason, or failed."""
    test = f"{Path(__file__)}::test_path_entries_come_first_for_the_daemon"
    outcomes = {}
    for required in ("", "1"):
        done = subprocess.run(
            (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0", test),
            env=dict(os.environ) | {"PATH": str(tmp_path), "PADDLEFLEET_TEST_REQUIRE_DOCKER": required},
            cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
        )  # fmt: skip
        outcomes[required] = done.returncode, "dockerd is not on PATH" in done.stdout
    assert outcomes == {"": (0, True), "1": (1, True)}
