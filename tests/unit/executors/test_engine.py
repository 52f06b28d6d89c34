from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ci.errors import ConfigError, InfrastructureError, ToolchainError
from ci.executors import engine_facts
from ci.executors.engine import find_engine
from ci.executors.engine_facts import cdi_devices, machine_name
from tests.unit.executors.fake_docker import (
    DOCKER_INFO,
    NO_DAEMON,
    PODMAN_INFO,
    FakeDocker,
    path_of,
)

DENIED = (
    "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: "
    'Get "http://%2Fvar%2Frun%2Fdocker.sock/v1.47/info": dial unix /var/run/docker.sock: connect: '
    "permission denied\n"
)


def test_docker_says_what_it_is(tmp_path: Path) -> None:
    fake = FakeDocker(tmp_path).facts()
    facts = find_engine("", fake.environ).facts
    assert (facts.name, facts.program) == ("docker", fake.program)
    assert (facts.client_version, facts.server_version) == ("28.2.2", "28.1.1")
    assert (facts.architecture, facts.storage_driver, facts.cgroup_version) == (
        "x86_64",
        "overlay2",
        "2",
    )
    assert (facts.cpus, facts.memory) == (8, 64 * 2**30)
    assert facts.data_root == Path("/")
    assert not facts.rootless
    assert not facts.gpu_runtime
    assert facts.cdi_devices == ()
    assert not facts.has_buildx


def test_warnings_around_the_answer_do_not_hide_it(tmp_path: Path) -> None:
    fake = FakeDocker(tmp_path)
    fake.answer("^info ", f"WARNING: old\n{json.dumps(DOCKER_INFO)}\nWARNING: No swap limit\n")
    assert find_engine("docker", fake.facts().environ).facts.server_version == "28.1.1"


def test_rootless_docker_is_recognised(tmp_path: Path) -> None:
    fake = FakeDocker(tmp_path).facts(SecurityOptions=["name=seccomp", "name=rootless,x=y"])
    assert find_engine("docker", fake.environ).facts.rootless


def test_buildx_is_seen(tmp_path: Path) -> None:
    fake = FakeDocker(tmp_path).answer("^buildx version", "github.com/docker/buildx v0.20\n")
    assert find_engine("docker", fake.facts().environ).facts.has_buildx


@pytest.mark.parametrize("host", ["tcp://10.0.0.1:2375", "ssh://me@box"])
def test_the_data_of_an_engine_elsewhere_are_not_here(tmp_path: Path, host: str) -> None:
    fake = FakeDocker(tmp_path).facts()
    assert find_engine("", {**fake.environ, "DOCKER_HOST": host}).facts.data_root is None


def test_a_context_that_leads_elsewhere_counts_as_docker_host_does(tmp_path: Path) -> None:
    fake = FakeDocker(tmp_path).answer("^context inspect", "ssh://me@box\n").facts()
    assert find_engine("", fake.environ).facts.data_root is None


@pytest.mark.parametrize(
    "changes", [{"OperatingSystem": "Docker Desktop"}, {"DockerRootDir": "/no/such/folder"}]
)
def test_the_data_of_an_engine_in_another_file_system_are_not_here(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    fake = FakeDocker(tmp_path).facts(DOCKER_INFO, **changes)
    assert find_engine("", fake.environ).facts.data_root is None


def test_a_gpu_runtime_is_nvidias_runtime_or_its_hook(tmp_path: Path) -> None:
    configured = FakeDocker(tmp_path / "a").facts(Runtimes={"runc": {}, "nvidia": {}})
    assert find_engine("", configured.environ).facts.gpu_runtime
    hooked = FakeDocker(tmp_path / "b").facts()
    hook = hooked.program.with_name("nvidia-container-runtime-hook")
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    assert find_engine("", hooked.environ).facts.gpu_runtime


def test_cdi_devices_are_those_that_docker_discovered(tmp_path: Path) -> None:
    devices = [
        {"Source": "cdi", "ID": "nvidia.com/gpu=0"},
        {"Source": "other", "ID": "x=1"},
        {"Source": "cdi", "ID": "nvidia.com/gpu=all"},
    ]
    fake = FakeDocker(tmp_path).facts(DiscoveredDevices=devices)
    found = find_engine("", fake.environ).facts.cdi_devices
    assert found == ("nvidia.com/gpu=0", "nvidia.com/gpu=all")


def test_cdi_devices_of_an_older_docker_are_read_from_its_folders(tmp_path: Path) -> None:
    specs = tmp_path / "cdi"
    specs.mkdir()
    (specs / "a.yaml").write_text("kind: nvidia.com/gpu\ndevices:\n- name: '0'\n- name: GPU-1\n")
    (specs / "b.json").write_text(json.dumps({"kind": "x.y/z", "devices": [{"name": "q"}]}))
    (specs / "broken.yaml").write_text("kind: [")
    (specs / "note.txt").write_text("kind: nvidia.com/gpu\ndevices: [{name: '9'}]\n")
    fake = FakeDocker(tmp_path / "fake").facts(CDISpecDirs=[str(specs), "/no/such"])
    expected = ("nvidia.com/gpu=0", "nvidia.com/gpu=GPU-1", "x.y/z=q")
    assert find_engine("", fake.environ).facts.cdi_devices == expected
    assert cdi_devices([str(specs)]) == expected


def test_podman_says_what_it_is(tmp_path: Path) -> None:
    fake = FakeDocker(tmp_path, "podman")
    fake.answer("^info ", f"WARN[0000] cgroups\n{json.dumps(PODMAN_INFO, indent=2)}\n")
    fake.answer("^version ", {"Client": {"Version": "5.4.1"}})
    facts = find_engine("podman", fake.environ).facts
    assert (facts.name, facts.client_version, facts.server_version) == ("podman", "5.4.1", "5.4.0")
    assert (facts.architecture, facts.storage_driver, facts.cgroup_version) == (
        "aarch64",
        "overlay",
        "2",
    )
    assert (facts.cpus, facts.memory, facts.data_root) == (4, 16 * 2**30, Path("/"))
    assert facts.rootless


def test_a_docker_that_is_podman_is_podman(tmp_path: Path) -> None:
    fake = FakeDocker(tmp_path).answer("^info ", PODMAN_INFO).answer("^version ", {"Client": {}})
    assert find_engine("docker", fake.environ).facts.name == "podman"


def test_podman_on_another_machine_has_no_data_here(tmp_path: Path) -> None:
    info = {**PODMAN_INFO, "host": {"serviceIsRemote": True}}
    fake = FakeDocker(tmp_path, "podman").answer("^info ", info).answer("^version ", {})
    assert find_engine("", fake.environ).facts.data_root is None


def test_the_first_docker_that_answers_is_taken(tmp_path: Path) -> None:
    dead = FakeDocker(tmp_path / "dead").answer(".", NO_DAEMON, 1)
    alive = FakeDocker(tmp_path / "alive").facts()
    assert find_engine("docker", path_of(dead, alive)).facts.program == alive.program


def test_docker_comes_before_podman_and_podman_stands_in(tmp_path: Path) -> None:
    podman = FakeDocker(tmp_path / "podman", "podman").answer("^info ", PODMAN_INFO)
    podman.answer("^version ", {})
    docker = FakeDocker(tmp_path / "docker").facts()
    dead = FakeDocker(tmp_path / "dead").answer(".", NO_DAEMON, 1)
    assert find_engine("", path_of(podman, docker)).facts.name == "docker"
    assert find_engine("", path_of(dead, podman)).facts.name == "podman"


def test_one_program_with_two_names_is_asked_once(tmp_path: Path) -> None:
    fake = FakeDocker(tmp_path).answer(".", NO_DAEMON, 1)
    fake.program.with_name("podman").symlink_to(fake.program)
    with pytest.raises(InfrastructureError):
        find_engine("", fake.environ)
    assert len(fake.said("info")) == 1


def test_no_engine_at_all_is_a_missing_tool(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="no docker or podman") as caught:
        find_engine("", {"PATH": str(tmp_path)})
    assert caught.value.exit_code == 3
    assert "--executor host" in caught.value.next_step
    with pytest.raises(ToolchainError, match="no podman on"):
        find_engine("podman", {})


def test_an_unknown_engine_is_a_wrong_option() -> None:
    with pytest.raises(ConfigError, match="'lxc'"):
        find_engine("lxc", {})


@pytest.mark.parametrize("status", [0, 1])
def test_a_daemon_that_is_down_is_told_apart(tmp_path: Path, status: int) -> None:
    """The client of docker 20.10 ends with status 0 then, and newer ones with 1."""
    answer = {"ServerErrors": [NO_DAEMON.strip()], "ClientInfo": {}} if status == 0 else NO_DAEMON
    fake = FakeDocker(tmp_path).answer("^info", answer, status)
    with pytest.raises(InfrastructureError) as caught:
        find_engine("", fake.environ)
    assert caught.value.exit_code == 4
    assert "systemctl start docker" in caught.value.next_step
    assert "DOCKER_HOST" in caught.value.cause
    assert any("Is the docker daemon running" in line for line in caught.value.details)


def test_an_answer_of_a_client_without_a_daemon_is_none(tmp_path: Path) -> None:
    """docker 28 prints an empty answer beside the error."""
    text = json.dumps({"ServerVersion": "", "ServerErrors": None}) + "\n" + NO_DAEMON
    fake = FakeDocker(tmp_path).answer("^info", text, 1)
    with pytest.raises(InfrastructureError, match="no engine answers") as caught:
        find_engine("", fake.environ)
    assert not any("ServerVersion" in line for line in caught.value.details)


def test_a_socket_that_is_closed_to_this_user_is_told_apart(tmp_path: Path) -> None:
    fake = FakeDocker(tmp_path).answer("^info", DENIED, 1)
    with pytest.raises(InfrastructureError) as caught:
        find_engine("docker", fake.environ)
    assert "usermod -aG docker" in caught.value.next_step


def test_a_context_that_is_not_there_is_told_apart(tmp_path: Path) -> None:
    text = (
        'Failed to initialize: unable to resolve docker endpoint: context "x": context not found\n'
    )
    fake = FakeDocker(tmp_path).answer(".", text, 1)
    with pytest.raises(InfrastructureError) as caught:
        find_engine("docker", fake.environ)
    assert "docker context use default" in caught.value.next_step


def test_a_daemon_that_hangs_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_facts, "ASK_SECONDS", 0.5)
    fake = FakeDocker(tmp_path).answer("^info", DOCKER_INFO, seconds=30)
    with pytest.raises(InfrastructureError, match="does not answer"):
        find_engine("docker", fake.environ)


def test_all_problems_are_told_with_their_programs(tmp_path: Path) -> None:
    broken = FakeDocker(tmp_path / "a")
    broken.program.write_text("#!/no/such/interpreter\n")
    denied = FakeDocker(tmp_path / "b").answer(".", DENIED, 1)
    podman = FakeDocker(tmp_path / "c", "podman").answer(".", "Error: boom\n", 125)
    with pytest.raises(InfrastructureError) as caught:
        find_engine("", path_of(broken, denied, podman))
    assert "usermod" in caught.value.next_step, "an engine that is there comes before a broken file"
    for fake in (broken, denied, podman):
        assert any(str(fake.program) in line for line in caught.value.details)
    assert "Error: boom" in caught.value.details


def test_a_program_that_cannot_run_alone_is_a_missing_tool(tmp_path: Path) -> None:
    broken = FakeDocker(tmp_path)
    broken.program.write_text("#!/no/such/interpreter\n")
    with pytest.raises(ToolchainError, match="cannot start"):
        find_engine("", broken.environ)


def test_relative_folders_of_path_are_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeDocker(tmp_path).facts()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ToolchainError):
        find_engine("", {"PATH": os.pathsep.join(("bin", ""))})


@pytest.mark.parametrize(
    ("name", "expected"), [("amd64", "x86_64"), ("arm64", "aarch64"), ("X86_64", "x86_64"), ("ppc64le",) * 2]
)  # fmt: skip
def test_architectures_are_named_as_python_names_them(name: str, expected: str) -> None:
    assert machine_name(name) == expected
