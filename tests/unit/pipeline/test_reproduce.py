"""The command that reproduces a failure is read by the command line as the request that failed."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.cli import build_parser
from ci.cli.wheels import wheel_request
from ci.executors.model import ContainerOptions
from ci.pipeline.plan import WheelRequest
from ci.pipeline.reproduce import import_command, wheel_command
from ci.sources.override import parse_overrides

REQUESTS = {
    "plain": WheelRequest(),
    "templates": WheelRequest(library_set="templates", with_import=False),
    "a part": WheelRequest(libs=("alpha", "beta")),
    "sources": WheelRequest(
        libs=("alpha", "beta"),
        sources=("alpha=pypi:alpha==1", "beta=git:https://example.org/b c.git@main"),
        declarations=(Path("/with blank/x.py"),),
        compiler="clang",
    ),
    "capabilities": WheelRequest(capabilities="9.0a;10.0f"),
    "containers": WheelRequest(
        executor="container",
        container=ContainerOptions(
            engine="podman", image="r.example/x:1", network="host", cpus=2.5, memory=3 * 2**30
        ),
    ),
}


def plan(request: WheelRequest, capability_set: str = "", place: str = "host") -> Any:
    cell = SimpleNamespace(cuda="13.0", python="3.12", capability_set=capability_set)
    return SimpleNamespace(
        cell=cell,
        request=request,
        place=SimpleNamespace(name=place),
        overrides=parse_overrides(request.sources, ["a", "alpha", "beta"]),
    )


def read(command: str) -> WheelRequest:
    python, dash, ci, *argv = shlex.split(command)
    assert (python, dash, ci) == ("python", "-m", "ci")
    return wheel_request(build_parser().parse_args(argv))


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("place", ["host", "container"])
def test_the_cell_alone_is_asked_for_again(name: str, place: str) -> None:
    request = REQUESTS[name]
    found = read(wheel_command(plan(request, "hopper", place)))
    assert (found.cuda, found.python, found.capability_set) == (("13.0",), ("3.12",), ("hopper",))
    assert found.executor == place
    for same in ("library_set", "libs", "sources", "declarations", "compiler", "capabilities",
                 "with_import", "container"):  # fmt: skip
        assert getattr(found, same) == getattr(request, same), same


def test_only_the_libraries_that_failed_and_their_sources_are_asked_for_again() -> None:
    found = read(wheel_command(plan(REQUESTS["sources"]), ["beta"]))
    assert found.libs == ("beta",)
    assert found.sources == ("beta=git:https://example.org/b c.git@main",)


def test_credentials_of_a_source_are_not_told() -> None:
    request = WheelRequest(libs=("a",), sources=("a=git:https://me:secret@example.org/a.git@v1",))
    assert "a=git:https://example.org/a.git@v1" in wheel_command(plan(request))


def test_a_suite_is_asked_for_again_with_its_gpus() -> None:
    options = ContainerOptions(network="host", devices=("0", "3"))
    argv = shlex.split(import_command(Path("/a b/x.whl"), "container", options))
    found = build_parser().parse_args(argv[3:])
    assert found.wheel == [Path("/a b/x.whl")]
    assert (found.executor, found.network, found.devices) == ("container", "host", ("0", "3"))
