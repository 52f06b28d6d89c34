"""GPUs for a container: how the engine is asked for them, and what it says when it has none.

Which way an engine is asked (:func:`gpu_arguments`):

- CDI (``--device nvidia.com/gpu=0``) wherever the engine knows such devices. The engine then refuses a
  name that it does not know, works rootless, and the device nodes are part of the container's own
  specification, so a reload of systemd's units does not take them away, as it does with devices that a
  hook added behind the engine's back (NVIDIA Container Toolkit documentation, "Support for Container
  Device Interface"; NVIDIA/nvidia-container-toolkit issue 48).
- ``--gpus`` for docker else. Whether that works is known only when it is tried: ``docker info`` tells of a
  configured runtime, not of ``nvidia-container-runtime-hook`` on the daemon's PATH, which is all that
  ``--gpus`` needs.
- podman knows ``--gpus`` only as a flag that does nothing (podman pull request 10430, issue 19330), and from
  6.0 on as another word for CDI, so for podman it is CDI (podman 4.1 or newer) or a refusal.

Whether they came is never taken from the engine's word: ``gpu_check`` looks from inside.
"""

from __future__ import annotations

import re

from ci.errors import ConfigError, InfrastructureError, ToolchainError
from ci.executors.model import EngineFacts, GpuRequest

CDI_KIND = "nvidia.com/gpu"
"""Vendor and class of NVIDIA's devices in CDI: ``nvidia.com/gpu=0``."""

GENERATE_CDI = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
_CONFIGURE = (
    "install nvidia-container-toolkit, then: "
    "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
)
RELOAD_DRIVER = (
    "reboot the host, or unload and load its nvidia kernel modules; nvidia-smi there must work"
)
_ENGINE_SAYS = re.compile(
    r"^(?:docker: |Error response from daemon|Error: |unknown flag)", re.MULTILINE
)
_ENGINE_ERRORS = (
    (
        r'could not select device driver "cdi".*',
        "CDI is not enabled in this docker",
        'put "features": {"cdi": true} into /etc/docker/daemon.json; sudo systemctl restart docker',
    ),
    (
        r"could not select device driver .*",
        "docker found no nvidia-container-runtime-hook when it was started: the toolkit is not installed",
        _CONFIGURE,
    ),
    (
        r"failed to discover GPU vendor from CDI.*",
        "docker has neither NVIDIA's runtime nor a CDI specification of GPUs",
        f"{_CONFIGURE}; or: {GENERATE_CDI}",
    ),
    (
        r"unresolvable CDI devices.*",
        "no CDI specification that the engine can read names these devices; it may be older than them, or "
        "newer than the engine understands",
        f"nvidia-ctk cdi list; then: {GENERATE_CDI}",
    ),
    (
        rf'.*"?{re.escape(CDI_KIND)}=[^ ]*: no such file or directory.*',
        "this engine is too old for CDI (docker 25, podman 4.1)",
        "use a newer engine, or docker with NVIDIA's runtime: " + _CONFIGURE,
    ),
    (
        r"nvidia-container-cli: initialization error:.*version mismatch.*",
        "the host's driver was updated under a running kernel",
        RELOAD_DRIVER,
    ),
    (
        r"nvidia-container-cli: initialization error: load library failed: libnvidia-ml.*",
        "the host has no NVIDIA driver",
        "install the driver on the host; nvidia-smi there must work",
    ),
    (
        r"nvidia-container-cli: initialization error:.*",
        "NVIDIA's runtime cannot use the host's driver",
        "on the host: nvidia-smi, then nvidia-container-cli --load-kmods info",
    ),
    (
        r"nvidia-container-cli: device error:.*",
        "the host does not have a GPU of that name (any more)",
        "nvidia-smi -L lists those that it has",
    ),
    (
        r"nvidia-container-cli: requirement error:.*",
        "the host's driver is older than what the image asks for",
        "update the driver of the host, or take a cell of an older CUDA: python -m ci matrix",
    ),
    (
        r"nvidia-container-cli: .*",
        "NVIDIA's runtime failed to put the GPUs into the container",
        "on the host: nvidia-container-cli --load-kmods info",
    ),
    (
        r"nvidia-container-runtime-hook.*(?:not found|no such file).*",
        "NVIDIA's runtime was removed or moved after docker was started",
        _CONFIGURE,
    ),
    (
        r"unknown or invalid runtime name: nvidia.*|unknown runtime specified nvidia.*",
        "docker knows no runtime of that name",
        _CONFIGURE,
    ),
    (
        r"unknown flag: --gpus.*",
        "this engine is too old for GPUs (docker 19.03, podman 4.1 with CDI)",
        "use a newer engine",
    ),
)  # fmt: skip
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_INDEX = re.compile(r"(?:0|[1-9][0-9]*)(?::(?:0|[1-9][0-9]*))?")
BY_UUID = re.compile(rf"GPU-{_UUID}|MIG-{_UUID}|MIG-GPU-{_UUID}/[0-9]+/[0-9]+")


def gpu_arguments(facts: EngineFacts, request: GpuRequest) -> tuple[str, ...]:
    """What ``run`` of the engine gets so that the container has the GPUs of ``request`` and no others.

    Raises :class:`~ci.errors.ConfigError` for names that are none, all at once, and for devices that the
    engine does not have; :class:`~ci.errors.ToolchainError` for podman without CDI devices.
    """
    check_devices(request)
    known = _cdi_names(facts)
    absent = [name for name in request.devices if name not in known]
    if known and not absent:
        return tuple(f"--device={CDI_KIND}={name}" for name in request.devices)
    if known and not _hook_knows_better(facts, known, absent):
        raise ConfigError(
            f"{facts.name} has no GPU {', '.join(absent)}",
            cause=f"its CDI devices are {', '.join(sorted(known))}",
            next_step=f"choose among these, or describe the machine anew: {GENERATE_CDI}",
        )
    if facts.name == "podman":
        raise ToolchainError(
            "podman has no GPU to give: it knows no CDI device of NVIDIA",
            cause="podman takes GPUs through CDI only (podman 4.1 or newer); it ignores --gpus",
            next_step=GENERATE_CDI,
        )
    return ("--gpus", _gpus_value(request.devices))


def check_devices(request: GpuRequest) -> None:
    """Raise :class:`~ci.errors.ConfigError` with everything that is wrong with the names of the devices.

    A name is an index (``0``), a MIG device by index (``0:1``), or a UUID as ``nvidia-smi -L`` shows it
    (``GPU-…``, ``MIG-…``).
    """
    problems = _problems(request.devices)
    if problems:
        raise ConfigError(
            "GPUs of the container: " + ("; ".join(problems)),
            cause="a GPU is named by its index or by its whole UUID, each GPU once",
            next_step="nvidia-smi -L lists indices and UUIDs",
            details=problems,
        )


def _problems(devices: tuple[str, ...]) -> list[str]:
    if not devices:
        return ["none is named"]
    wrong = [
        f"{name!r} is neither an index nor a UUID (GPU-…, MIG-…)"
        for name in dict.fromkeys(devices)
        if not (_INDEX.fullmatch(name) or BY_UUID.fullmatch(name))
    ]
    twice = [name for name in dict.fromkeys(devices) if devices.count(name) > 1]
    return wrong + [f"{name!r} is named {devices.count(name)} times" for name in twice]


def _cdi_names(facts: EngineFacts) -> frozenset[str]:
    """The names after ``nvidia.com/gpu=``, without ``all``, which is no device."""
    names = (name.partition("=") for name in facts.cdi_devices)
    return frozenset(name for kind, _, name in names if kind == CDI_KIND) - {"all", ""}


def _hook_knows_better(facts: EngineFacts, known: frozenset[str], absent: list[str]) -> bool:
    """True when CDI names devices by index only and docker has NVIDIA's runtime, which knows UUIDs too."""
    by_index_only = all(_INDEX.fullmatch(name) for name in known)
    return (
        facts.name == "docker"
        and facts.gpu_runtime
        and by_index_only
        and all(BY_UUID.fullmatch(name) for name in absent)
    )


def _gpus_value(devices: tuple[str, ...]) -> str:
    """The value of ``--gpus``, which docker reads as a line of CSV: a list of devices is a quoted field."""
    value = f"device={','.join(devices)}"
    return f'"{value}"' if len(devices) > 1 else value


def gpu_engine_error(output: str) -> InfrastructureError | None:
    """The engine's own error when it could not give GPUs; ``None`` when ``output`` tells of no such thing.

    For the output of an engine that failed to start a container (status 125 to 127). Only what follows
    the engine's own error line is looked at, so a program that prints such words is not mistaken for it.
    """
    start = _ENGINE_SAYS.search(output)
    if start is None:
        return None
    said = output[start.start() :]
    for pattern, cause, next_step in _ENGINE_ERRORS:
        match = re.search(pattern, said)
        if match:
            return InfrastructureError(
                f"the engine could not give the container its GPUs: {match.group(0).strip()}",
                cause=cause,
                next_step=next_step,
                details=said.splitlines()[:20],
            )
    return None
