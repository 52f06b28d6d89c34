"""Where cells run, and why: engines and images are fakes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ci.errors import ConfigError, FarmError, InfrastructureError, ToolchainError
from ci.executors import model
from ci.executors.base import EXECUTORS, HostExecutor
from ci.executors.choice import (
    ContainerPlace,
    HostPlace,
    Place,
    SuiteCell,
    choose_place,
    choose_suite_place,
)
from ci.executors.model import ContainerOptions, build_image_ref
from ci.proc import Command
from tests.unit.executors.fake_engine import FakeEngine, image

CU130 = build_image_ref("13.0")
CU129 = build_image_ref("12.9")


def place(
    name: str,
    engine: FakeEngine | FarmError,
    cudas: tuple[str, ...] = ("13.0",),
    options: ContainerOptions | None = None,
) -> Place:
    def find(wanted: str, environ: object) -> FakeEngine:
        if isinstance(engine, FarmError):
            raise engine
        return engine

    return choose_place(name, cudas, options or ContainerOptions(), {}, find)


NO_ENGINE = ToolchainError("there is no container engine", next_step="install docker")
DENIED = InfrastructureError("docker does not let this user in", next_step="usermod")


@pytest.mark.parametrize("name", ["docker", "", "Host", "ray"])
def test_an_unknown_executor_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown executor {name!r}") as refused:
        place(name, FakeEngine())
    for known in EXECUTORS:
        assert known in refused.value.next_step


def test_host_asks_no_engine() -> None:
    chosen = place("host", AssertionError("asked"))  # type: ignore[arg-type]
    assert chosen == HostPlace("asked for with --executor host")


def test_auto_takes_containers_when_every_image_is_there_and_says_which() -> None:
    chosen = place("auto", FakeEngine(image(CU130)))
    assert isinstance(chosen, ContainerPlace)
    assert "docker 20.10" in chosen.why
    assert CU130 in chosen.why
    assert chosen.images["13.0"].pythons == ("3.10", "3.12")


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        (NO_ENGINE, "there is no container engine"),
        (DENIED, "does not let this user in"),
        (FakeEngine(), f"there is no image {CU130}"),
        (FakeEngine(image(CU130, architecture="aarch64")), "is for aarch64"),
        (FakeEngine(image(CU130, cuda="12.9")), "is of CUDA 12.9"),
        (FakeEngine(image(CU130, role="test")), "is not a build image"),
    ],
    ids=["none", "denied", "no image", "architecture", "cuda", "role"],
)
def test_auto_falls_back_with_the_reason_where_container_refuses(
    engine: FakeEngine | FarmError, why: str
) -> None:
    chosen = place("auto", engine)
    assert isinstance(chosen, HostPlace)
    assert why in chosen.why
    assert "so the steps run on this machine" in chosen.why
    with pytest.raises(FarmError, match=why) as refused:
        place("container", engine)
    assert refused.value.next_step
    assert refused.value.exit_code == (4 if engine is DENIED else 3)


def test_one_missing_image_of_two_is_enough_for_the_host() -> None:
    engine = FakeEngine(image(CU130))
    assert isinstance(place("auto", engine, ("13.0", "12.9")), HostPlace)
    both = FakeEngine(image(CU130), image(CU129, cuda="12.9"))
    chosen = place("auto", both, ("13.0", "12.9", "13.0"))
    assert isinstance(chosen, ContainerPlace)
    assert list(chosen.images) == ["13.0", "12.9"]


def test_only_a_named_image_is_pulled() -> None:
    named = ContainerOptions(image="registry.example/farm:1")
    engine = FakeEngine(registry=(image("registry.example/farm:1"),))
    chosen = place("container", engine, options=named)
    assert engine.pulled == ["registry.example/farm:1"]
    assert isinstance(chosen, ContainerPlace)
    bare = FakeEngine()
    with pytest.raises(ToolchainError, match="there is no image") as refused:
        place("container", bare)
    assert bare.pulled == []
    assert refused.value.next_step.startswith("nox -s images -- cu130 (with --base airgapped")


def test_a_record_names_the_digest_of_the_registry_before_the_id() -> None:
    local = image(CU130)
    assert local.digest == "sha256:" + "a" * 64
    known = replace(local, repo_digests=("farm@sha256:" + "b" * 64,))
    assert known.digest == "farm@sha256:" + "b" * 64


def suite(engine: FakeEngine, options: ContainerOptions | None = None) -> Place:
    cells = [SuiteCell("cu130-cp312-hopper", "13.0", "3.12")]
    return choose_suite_place(
        "container", cells, options or ContainerOptions(), {}, lambda wanted, environ: engine
    )


def test_a_suite_takes_the_test_image_and_else_the_build_image() -> None:
    test_ref = model.test_image_ref("13.0", "3.12")
    both = suite(FakeEngine(image(test_ref, role="test"), image(CU130)))
    only = suite(FakeEngine(image(CU130)))
    assert isinstance(both, ContainerPlace)
    assert isinstance(only, ContainerPlace)
    assert both.images["cu130-cp312-hopper"].ref == test_ref
    assert only.images["cu130-cp312-hopper"].ref == CU130
    with pytest.raises(ToolchainError, match="is not a test or build image"):
        suite(FakeEngine(image("x", role="base")), ContainerOptions(image="x"))


def test_the_host_runs_a_command_into_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = Command((sys.executable, "-c", "print('here'); raise SystemExit(5)"))
    done = HostExecutor("asked for").run(command, log)
    assert (done.returncode, done.ok) == (5, False)
    assert log.read_text().splitlines()[-1] == "here"
