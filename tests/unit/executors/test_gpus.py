from __future__ import annotations

import csv
from pathlib import Path

import pytest

from ci.errors import ConfigError, InfrastructureError, ToolchainError
from ci.executors.gpus import gpu_arguments, gpu_engine_error
from ci.executors.model import EngineFacts, EngineName, GpuRequest

UUID = "GPU-00000000-1111-2222-3333-444444444444"
OTHER = "GPU-55555555-6666-7777-8888-999999999999"
PART = "MIG-aaaaaaaa-0000-0000-0000-000000000001"
CDI = ("nvidia.com/gpu=0", "nvidia.com/gpu=1", "nvidia.com/gpu=all")


def facts(
    name: EngineName = "docker", *, cdi: tuple[str, ...] = (), runtime: bool = False
) -> EngineFacts:
    return EngineFacts(
        name=name, program=Path("/usr/bin") / name, client_version="28.3.0", server_version="28.3.0",
        rootless=False, architecture="x86_64", data_root=None, storage_driver="overlay2",
        cgroup_version="2", cpus=2, memory=1 << 30, gpu_runtime=runtime, cdi_devices=cdi,
    )  # fmt: skip


def asked(*devices: str) -> GpuRequest:
    return GpuRequest(devices)


def test_docker_without_cdi_is_asked_by_gpus_even_if_it_tells_of_no_runtime() -> None:
    assert gpu_arguments(facts(), asked("3")) == ("--gpus", "device=3")


@pytest.mark.parametrize("devices", [("0", "3"), (UUID, OTHER), ("0:1", "2", PART)])
def test_several_devices_are_one_field_of_docker_s_csv(devices: tuple[str, ...]) -> None:
    option, value = gpu_arguments(facts(), asked(*devices))
    (fields,) = csv.reader([value])
    assert option == "--gpus"
    assert fields == [f"device={','.join(devices)}"]


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_cdi_is_taken_where_the_engine_has_it(name: EngineName) -> None:
    found = gpu_arguments(facts(name, cdi=CDI, runtime=True), asked("1", "0"))
    assert found == ("--device=nvidia.com/gpu=1", "--device=nvidia.com/gpu=0")


def test_cdi_devices_of_other_vendors_are_no_gpus_of_nvidia() -> None:
    assert gpu_arguments(facts(cdi=("amd.com/gpu=0",)), asked("0")) == ("--gpus", "device=0")
    with pytest.raises(ToolchainError):
        gpu_arguments(facts("podman", cdi=("amd.com/gpu=0",)), asked("0"))


def test_podman_without_cdi_is_refused_because_it_would_ignore_the_option() -> None:
    with pytest.raises(ToolchainError) as caught:
        gpu_arguments(facts("podman", runtime=True), asked("0"))
    assert "ignores --gpus" in caught.value.cause
    assert caught.value.next_step.startswith("sudo nvidia-ctk cdi generate")


@pytest.mark.parametrize(
    ("name", "runtime", "devices", "absent"),
    [
        ("docker", False, ("0", "7"), "7"),
        ("docker", True, ("7",), "7"),
        ("docker", False, (UUID,), UUID),
        ("podman", True, (UUID, "1"), UUID),
        ("docker", True, (UUID, "9"), f"{UUID}, 9"),
        ("podman", False, ("0:0",), "0:0"),
    ],
)
def test_a_device_that_cdi_does_not_name_is_refused_with_those_that_it_does(
    name: EngineName, runtime: bool, devices: tuple[str, ...], absent: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        gpu_arguments(facts(name, cdi=CDI, runtime=runtime), asked(*devices))
    assert caught.value.message == f"{name} has no GPU {absent}"
    assert caught.value.cause == "its CDI devices are 0, 1"


def test_the_runtime_of_docker_finds_uuids_where_cdi_has_indices_only() -> None:
    indices = facts(cdi=CDI, runtime=True)
    assert gpu_arguments(indices, asked(UUID)) == ("--gpus", f"device={UUID}")
    uuids = facts(cdi=(*CDI, f"nvidia.com/gpu={OTHER}"), runtime=True)
    with pytest.raises(ConfigError):
        gpu_arguments(uuids, asked(UUID))


@pytest.mark.parametrize(
    "name",
    [
        "", " 0", "00", "-1", "0,1", "all", "none", "GPU-1234", UUID + "0", UUID.replace("GPU", "gpu"),
        "0:", "0:1:2", "0\n", '0"', "１", "MIG-", f"MIG-{UUID}", f"MIG-{UUID}/1",
    ],
)  # fmt: skip
def test_what_is_no_name_of_a_gpu_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        gpu_arguments(facts(), asked("0", name))
    assert caught.value.details == (f"{name!r} is neither an index nor a UUID (GPU-…, MIG-…)",)


@pytest.mark.parametrize(
    "name", ["0", "10", "3:12", UUID, UUID.lower().replace("gpu", "GPU"), PART]
)
def test_names_of_gpus(name: str) -> None:
    assert gpu_arguments(facts(), asked(name)) == ("--gpus", f"device={name}")


def test_the_older_form_of_a_mig_name() -> None:
    assert gpu_arguments(facts(), asked(f"MIG-{UUID}/1/0"))[1] == f"device=MIG-{UUID}/1/0"


def test_all_that_is_wrong_with_the_names_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        gpu_arguments(facts(), asked("1", "first", "1", "GPU-x"))
    assert len(caught.value.details) == 3
    assert caught.value.details[-1] == "'1' is named 2 times"


def test_no_device_is_no_request() -> None:
    with pytest.raises(ConfigError, match="none is named"):
        gpu_arguments(facts(), asked())


# The engines' own words, as users reported them: NVIDIA/nvidia-docker issue 1034,
# NVIDIA/nvidia-container-toolkit issues 63, 146, 154, 394 and 434, podman issue 10420.
WORDS = [
    (
        'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
        "the toolkit is not installed",
        "nvidia-ctk runtime configure",
    ),
    (
        'Error response from daemon: could not select device driver "" with capabilities: [[gpu]]\n'
        "Error: failed to start containers: farm-1",
        "the toolkit is not installed",
        "nvidia-ctk runtime configure",
    ),
    (
        'docker: Error response from daemon: could not select device driver "cdi" with capabilities: [].',
        "CDI is not enabled",
        '"cdi": true',
    ),
    (
        "docker: Error response from daemon: failed to discover GPU vendor from CDI: no known GPU vendor "
        "found",
        "neither NVIDIA's runtime nor a CDI specification",
        "nvidia-ctk cdi generate",
    ),
    (
        "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=5",
        "no CDI specification that the engine can read",
        "nvidia-ctk cdi generate",
    ),
    (
        "docker: Error response from daemon: failed to create task for container: failed to create shim "
        "task: OCI runtime create failed: could not apply required modification to OCI specification: "
        "error modifying OCI spec: failed to inject CDI devices: unresolvable CDI devices "
        "nvidia.com/gpu=5: unknown.",
        "no CDI specification that the engine can read",
        "nvidia-ctk cdi list",
    ),
    ("Error: stat nvidia.com/gpu=0: no such file or directory", "too old for CDI", "newer engine"),
    (
        "docker: Error response from daemon: failed to create shim task: OCI runtime create failed: runc "
        "create failed: unable to start container process: error during container init: error running hook "
        "#0: error running hook: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'\n"
        "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown.",
        "updated under a running kernel",
        "reboot",
    ),
    (
        "docker: Error response from daemon: stderr: Auto-detected mode as 'legacy'\n"
        "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open "
        "shared object file: no such file or directory: unknown.",
        "the host has no NVIDIA driver",
        "install the driver",
    ),
    (
        "docker: Error response from daemon: stderr: \n"
        "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown.",
        "cannot use the host's driver",
        "nvidia-smi",
    ),
    (
        "docker: Error response from daemon: stderr: \nnvidia-container-cli: device error: 7: unknown device",
        "does not have a GPU of that name",
        "nvidia-smi -L",
    ),
    (
        "docker: Error response from daemon: stderr: \nnvidia-container-cli: requirement error: unsatisfied "
        "condition: cuda>=13.0, please update your driver to a newer version: unknown.",
        "older than what the image asks for",
        "update the driver",
    ),
    (
        "docker: Error response from daemon: stderr: \nnvidia-container-cli: mount error: failed to add "
        "device rules: bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted: unknown.",
        "failed to put the GPUs into the container",
        "nvidia-container-cli",
    ),
    ("Error: unknown flag: --gpus\nSee 'podman run --help'", "too old for GPUs", "newer engine"),
    ("unknown flag: --gpus\nSee 'docker run --help'.", "too old for GPUs", "newer engine"),
    (
        "docker: Error response from daemon: unknown or invalid runtime name: nvidia.",
        "no runtime of that name",
        "nvidia-ctk runtime configure",
    ),
]


@pytest.mark.parametrize(("output", "cause", "next_step"), WORDS)
def test_the_engine_s_own_error_gets_its_cause_and_what_to_do(
    output: str, cause: str, next_step: str
) -> None:
    error = gpu_engine_error(f"a line of the client before\n{output}")
    assert isinstance(error, InfrastructureError)
    assert error.exit_code == 4
    assert cause in error.cause
    assert next_step in error.next_step
    assert "\n".join(error.details) == output


@pytest.mark.parametrize(
    "output",
    [
        "",
        "docker: Error response from daemon: No such image: farm:latest",
        'test_engine.py: could not select device driver "" with capabilities: [[gpu]]',
        "the log of nvidia-container-cli: initialization error: is kept",
        "Error: no container with name or ID",
    ],
)
def test_other_words_are_no_error_of_gpus(output: str) -> None:
    assert gpu_engine_error(output) is None
