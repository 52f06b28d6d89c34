"""GPUs of a container against a real daemon, with a stand-in for NVIDIA's runtime hook and driver library."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci.errors import InfrastructureError
from ci.executors.gpu_check import PROBE, GpuProbe, probe_command, read_probe, require_gpus
from ci.executors.gpus import gpu_arguments, gpu_engine_error
from ci.executors.model import EngineFacts, GpuRequest
from tests.unit.executors.fake_nvml import FIRST, SECOND, compile_library

from .conftest import need
from .daemon import Daemon, missing
from .gpu_hook import HOOK, RecordingHook

LEASE = GpuRequest(("0", "3"))
DRIVER = "/driver"


@dataclass(frozen=True)
class Engine:
    """A daemon by its address, and an image there."""

    host: str
    image: str
    hook: RecordingHook | None = None

    def run(
        self, *options: str, program: tuple[str, ...] = ("true",)
    ) -> subprocess.CompletedProcess[str]:
        """``docker run``; what goes to standard error is in ``stdout`` too, as in the farm."""
        argv = (
            "docker",
            "--host",
            self.host,
            "run",
            "--rm",
            "--network=none",
            *options,
            self.image,
        )
        return subprocess.run(
            argv + program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )

    def probe(self, *options: str, seconds: float = 20) -> GpuProbe:
        """What the probe says in a container that has the host's Python and system libraries."""
        prefix = Path(sys.base_prefix).resolve()
        folders = (prefix, *(Path(name) for name in ("/lib", "/lib64", "/usr/lib")), PROBE)
        mounts = [f"--volume={path}:{path}:ro" for path in folders if path.exists()]
        python = str(Path(sys.executable).resolve())
        command = probe_command(LEASE, python=python, seconds=seconds)
        return read_probe(self.run(*mounts, *options, program=command.argv).stdout)

    def asked_of_the_hook(self) -> list[dict[str, str]]:
        """The variables of each container that the hook was called for."""
        return self.hook.asked() if self.hook is not None else []


def lease(request: GpuRequest = LEASE) -> tuple[str, ...]:
    """The options of a daemon that tells neither of the hook on its PATH nor of CDI, as 20.10 does."""
    facts = EngineFacts(
        name="docker", program=Path("docker"), client_version="20.10", server_version="20.10",
        rootless=False, architecture="x86_64", data_root=None, storage_driver="overlay2",
        cgroup_version="1", cpus=1, memory=1,
    )  # fmt: skip
    return gpu_arguments(facts, request)


@pytest.fixture(scope="module")
def hooked(
    tmp_path_factory: pytest.TempPathFactory, import_tiny: Callable[..., str]
) -> Iterator[Engine]:
    """A daemon whose PATH begins with a hook that keeps what it is told and brings nothing in."""
    need(missing())
    hook = RecordingHook.write(tmp_path_factory.mktemp("hook"))
    daemon = Daemon.start(Path(tempfile.mkdtemp(prefix="farm-docker-")), path=[hook.folder])
    try:
        yield Engine(daemon.url, import_tiny(daemon.url), hook)
    finally:
        daemon.stop()


@pytest.fixture
def unhooked(docker_host: str, tiny_image: str) -> Engine:
    """A daemon without NVIDIA's runtime."""
    if shutil.which(HOOK):
        pytest.skip(f"this host has a real {HOOK}")
    return Engine(docker_host, tiny_image)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options that bring a driver library of two GPUs into a container, as a runtime would."""
    library = compile_library(tmp_path_factory.mktemp("driver"))
    return (f"--volume={library}:{DRIVER}:ro", f"--env=LD_LIBRARY_PATH={DRIVER}")


@pytest.mark.parametrize("devices", [("0",), ("0", "3"), (FIRST, SECOND)])
def test_the_container_gets_just_the_devices_of_the_lease(
    hooked: Engine, devices: tuple[str, ...]
) -> None:
    before = len(hooked.asked_of_the_hook())
    done = hooked.run(*lease(GpuRequest(devices)), program=("env",))
    assert done.returncode == 0, done.stdout
    assert f"NVIDIA_VISIBLE_DEVICES={','.join(devices)}" in done.stdout.splitlines()
    (told,) = hooked.asked_of_the_hook()[before:]
    assert told["NVIDIA_VISIBLE_DEVICES"] == ",".join(devices)


def test_without_the_inner_quotes_docker_does_not_take_two_devices(hooked: Engine) -> None:
    """Why :func:`gpu_arguments` puts quotes into the value."""
    done = hooked.run("--gpus", "device=0,3", program=("env",))
    assert "NVIDIA_VISIBLE_DEVICES=0,3" not in done.stdout.splitlines()


def test_a_container_that_asks_for_none_gets_none(hooked: Engine) -> None:
    before = len(hooked.asked_of_the_hook())
    done = hooked.run(program=("env",))
    assert "NVIDIA_VISIBLE_DEVICES" not in done.stdout
    assert len(hooked.asked_of_the_hook()) == before


def test_a_daemon_without_the_runtime_is_an_infrastructure_error(unhooked: Engine) -> None:
    done = unhooked.run(*lease())
    assert done.returncode == 125
    error = gpu_engine_error(done.stdout)
    assert error is not None
    assert error.exit_code == 4
    assert "nvidia-ctk" in error.next_step
    with pytest.raises(InfrastructureError, match="could not give the container its GPUs"):
        unhooked.probe(*lease())


def test_a_cdi_device_that_the_daemon_does_not_know(unhooked: Engine) -> None:
    done = unhooked.run("--device=nvidia.com/gpu=0")
    assert done.returncode == 125
    error = gpu_engine_error(done.stdout)
    assert error is not None
    assert "CDI" in error.cause


def test_a_hook_that_brings_no_driver_in_is_found_by_the_probe(hooked: Engine) -> None:
    probe = hooked.probe(*lease())
    assert [item.kind for item in probe.problems] == ["no-library"]
    assert probe.visible["NVIDIA_VISIBLE_DEVICES"] == "0,3"
    with pytest.raises(InfrastructureError) as caught:
        require_gpus(LEASE, probe)
    assert "passed the request for GPUs on" in caught.value.cause


def test_an_engine_that_ignores_the_request_is_found_by_the_probe(hooked: Engine) -> None:
    """podman's ``--gpus`` does nothing: the container starts as if it had not been there."""
    with pytest.raises(InfrastructureError) as caught:
        require_gpus(LEASE, hooked.probe())
    assert "the engine ignored the request" in caught.value.cause


def test_the_probe_tells_what_the_driver_of_the_container_knows(
    hooked: Engine, driver: tuple[str, ...]
) -> None:
    probe = hooked.probe(*lease(), *driver)
    assert [gpu.uuid for gpu in probe.devices] == [FIRST, SECOND]
    assert [gpu.memory_free for gpu in probe.devices] == [149_000_000_000, 20_000_000_000]
    require_gpus(LEASE, probe, memory=20_000_000_000, cuda="13.0")
    with pytest.raises(InfrastructureError) as caught:
        require_gpus(GpuRequest(("0",)), probe, memory=30_000_000_000)
    assert [line.partition(":")[0] for line in caught.value.details] == ["gpu-count", "gpu-memory"]


def test_a_driver_that_hangs_in_a_container_is_given_up(
    hooked: Engine, driver: tuple[str, ...]
) -> None:
    probe = hooked.probe(*lease(), *driver, "--env=FAKE_NVML_HANGS=1", seconds=2)
    with pytest.raises(InfrastructureError, match="lacks the GPUs") as caught:
        require_gpus(LEASE, probe)
    assert "the driver does not answer" in caught.value.cause
