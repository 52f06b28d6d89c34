from __future__ import annotations

import csv
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from ci.executors.create_options import (
    attached_invocation,
    container_options,
    create_invocation,
    mount_value,
)
from ci.executors.model import ContainerSpec, GpuRequest, Mount
from ci.proc import Command
from tests.unit.executors.fake_engine import FACTS

MAKE = Command(("make", "-j2"), cwd=Path("/work"), env={"A": "1"})
PODMAN = replace(FACTS, name="podman", rootless=True, cdi_devices=("nvidia.com/gpu=1",))


def pairs(arguments: tuple[str, ...]) -> set[tuple[str, str]]:
    return set(itertools.pairwise(arguments))


def test_everything_that_the_specification_says_is_an_option() -> None:
    spec = ContainerSpec(
        "farm:1",
        mounts=(Mount(Path("/a"), Path("/b")), Mount(Path("/c"), Path("/c"), read_only=False)),
        user="12:34",
        network="mine",
        cpus=1.5,
        memory=3 * 2**30,
        shm_size=2**26,
        gpus=GpuRequest(("0",)),
    )
    found = container_options(FACTS, spec, MAKE, 4096)
    assert {
        ("--mount", "type=bind,source=/a,target=/b,readonly"),
        ("--mount", "type=bind,source=/c,target=/c"),
        ("--user", "12:34"),
        ("--network", "mine"),
        ("--cpus", "1.5"),
        ("--memory", f"{3 * 2**30}b"),
        ("--memory-swap", f"{3 * 2**30}b"),
        ("--shm-size", f"{2**26}b"),
        ("--ulimit", "nofile=4096:4096"),
        ("--gpus", "device=0"),
        ("--workdir", "/work"),
        ("--env", "A"),
    } <= pairs(found)
    assert {"--init", "--entrypoint="} <= set(found)
    assert found[-3:] == ("farm:1", "make", "-j2")


def test_what_is_not_said_is_no_option() -> None:
    found = container_options(FACTS, ContainerSpec("farm:1"), Command(("true",)))
    options = {part for part in found if part.startswith("--")}
    assert options == {
        "--init", "--entrypoint=", "--security-opt=label=disable", "--userns=host",
    }  # fmt: skip
    assert found[-2:] == ("farm:1", "true")


def test_podman_gets_devices_and_no_proxy_of_the_caller() -> None:
    spec = ContainerSpec("farm:1", gpus=GpuRequest(("1",)))
    found = container_options(PODMAN, spec, MAKE)
    assert "--http-proxy=false" in found
    assert "--device=nvidia.com/gpu=1" in found
    assert not any(part.startswith(("--gpus", "--userns")) for part in found)


def test_a_rootless_docker_maps_users_its_own_way() -> None:
    found = container_options(replace(FACTS, rootless=True), ContainerSpec("farm:1"), MAKE)
    assert "--userns=host" not in found


@pytest.mark.parametrize("path", ["/a,b", '/a"b', "/a b=c", "/plain"])
def test_a_path_of_a_mount_survives_the_reading_as_csv(path: str) -> None:
    """Docker reads the value with a CSV reader (docker/cli, opts/mount.go)."""
    (fields,) = csv.reader([mount_value(Mount(Path(path), Path("/x"), read_only=False))])
    assert fields == ["type=bind", f"source={path}", "target=/x"]


def test_create_neither_pulls_nor_keeps_the_output_a_second_time() -> None:
    spec = ContainerSpec("farm:1", labels={"a": "b=c"})
    call = create_invocation(FACTS, spec, MAKE, {"PATH": "/bin", "X": "y"}, name="n")
    assert call.arguments[:3] == ("create", "--name", "n")
    assert {"--pull=never", "--log-driver=none"} <= set(call.arguments)
    assert ("--label", "a=b=c") in pairs(call.arguments)
    assert call.env == {"PATH": "/bin", "X": "y", "A": "1"}


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_is_asked_for_where_there_is_one(terminal: bool) -> None:
    call = attached_invocation(
        FACTS, ContainerSpec("farm:1"), MAKE, {}, name="n", terminal=terminal
    )
    assert call.arguments[:3] == ("run", "--rm", "--interactive")
    assert ("--tty" in call.arguments) is terminal
    assert call.env == {"A": "1"}
