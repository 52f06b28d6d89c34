"""A build that failed: which step, and whose fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.errors import InfrastructureError, ToolchainError
from ci.executors.model import EngineFacts
from ci.images.command import build_environment, engine_command, failing_step, own_error

CLASSIC = """\
Step 10/36 : COPY --from=pythons /export/ /
 ---> a9cccae489eb
Step 11/36 : RUN sh /farm/install-packages.sh build && rm -r /farm
 ---> Running in 5d1cb0f7e3a3
\x1b[91merror: g++ 8 is too old, the farm's libraries need 11 or newer; set GCC_TOOLSET
\x1b[0mThe command '/bin/sh -c sh /farm/install-packages.sh build' returned a non-zero code: 1
"""
BUILDKIT = """\
#5 [internal] load build definition from Dockerfile
#8 [compilers 3/4] COPY scripts/install-packages.sh /farm/
#9 [compilers 4/4] RUN sh /farm/install-packages.sh build
#9 0.312 error: git is still missing after the installation
#9 ERROR: process "/bin/sh -c sh /farm/install-packages.sh build" did not complete successfully: exit code: 1
"""
PODMAN = """\
STEP 5/9: COPY locks/ /farm/locks/
STEP 6/9: RUN sh /farm/install-environments.sh farm 3.12
Error: building at STEP "RUN sh /farm/...": while running runtime: exit status 1
"""


@pytest.mark.parametrize(
    ("log", "step"),
    [
        (CLASSIC, "step 11/36 (RUN sh /farm/install-packages.sh build && rm -r /farm)"),
        (BUILDKIT, "step [compilers 4/4] (RUN sh /farm/install-packages.sh build)"),
        (PODMAN, "step 6/9 (RUN sh /farm/install-environments.sh farm 3.12)"),
        ("Cannot connect to the Docker daemon", ""),
    ],
)
def test_the_last_step_is_the_one_that_failed(log: str, step: str) -> None:
    assert failing_step(log) == step


def test_a_long_step_is_shortened() -> None:
    step = failing_step(f"Step 1/2 : LABEL {'x' * 500}")
    assert len(step) < 130
    assert step.endswith("…)")


def test_our_scripts_errors_are_told_apart_from_the_engine_s() -> None:
    assert own_error(BUILDKIT) == "git is still missing after the installation"
    assert own_error(PODMAN) == ""


def program(folder: Path, log: str, code: int) -> str:
    text = folder / "log.txt"
    text.write_text(log)
    path = folder / "engine"
    path.write_text(f"#!/bin/sh\ncat {text}\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


def test_what_the_base_lacks_is_a_toolchain_error_with_step_and_log(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    with pytest.raises(ToolchainError, match=r"step 11/36 .*g\+\+ 8 is too old") as caught:
        engine_command((program(tmp_path, CLASSIC, 1), "build"), log, "build x")
    assert str(log) in caught.value.next_step
    assert "non-zero code: 1" in "\n".join(caught.value.details)


def test_anything_else_is_infrastructure(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="step 6/9"):
        engine_command((program(tmp_path, PODMAN, 1), "build"), tmp_path / "a.log", "build x")


NO_HOST = 'Step 3/36 : FROM ${PYTHONS} AS pythons\nGet "https://reg.example/v2/": no such host\n'


def test_a_base_that_cannot_be_fetched_is_told_as_a_pull_that_failed(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="FROM") as caught:
        engine_command((program(tmp_path, NO_HOST, 1), "build"), tmp_path / "a.log", "build x")
    assert "cannot look up the registry" in caught.value.cause


def test_the_same_words_of_a_program_are_not_the_registry_s(tmp_path: Path) -> None:
    log = NO_HOST.replace("FROM ${PYTHONS} AS pythons", "RUN true")
    with pytest.raises(InfrastructureError, match="RUN true") as caught:
        engine_command((program(tmp_path, log, 1), "build"), tmp_path / "a.log", "build x")
    assert "registry" not in caught.value.cause


def test_a_full_disk_is_told_as_such_at_any_step(tmp_path: Path) -> None:
    log = "Step 4/36 : COPY a /a\nwrite /a: no space left on device\n"
    with pytest.raises(InfrastructureError) as caught:
        engine_command((program(tmp_path, log, 1), "build"), tmp_path / "a.log", "build x")
    assert "disk" in caught.value.cause
    assert caught.value.exit_code == 4


def test_the_status_decides_not_the_words(tmp_path: Path) -> None:
    assert engine_command((program(tmp_path, CLASSIC, 0), "build"), tmp_path / "a.log", "x").ok


def facts(**changes: object) -> EngineFacts:
    values: dict[str, object] = {
        "name": "docker", "program": Path("docker"), "client_version": "28", "server_version": "28",
        "rootless": False, "architecture": "x86_64", "data_root": None, "storage_driver": "overlay2",
        "cgroup_version": "2", "cpus": 2, "memory": 1,
    }  # fmt: skip
    return EngineFacts(**(values | changes))  # type: ignore[arg-type]


def test_no_proxy_reaches_the_builder_which_would_keep_it() -> None:
    environ = {"https_proxy": "http://p", "NO_PROXY": "x", "HOME": "/h"}
    assert build_environment(facts(has_buildx=True), environ) == {"HOME": "/h"}


def test_the_classic_builder_where_there_is_no_buildx() -> None:
    assert build_environment(facts(), {}) == {"DOCKER_BUILDKIT": "0"}
    assert build_environment(facts(name="podman"), {}) == {}
