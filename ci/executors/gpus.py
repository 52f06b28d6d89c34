"""GPUs in a container: how the engine is asked for them, and whether they came.

Which way an engine is asked (:func:`gpu_arguments`):

- CDI (``--device nvidia.com/gpu=0``) wherever the engine knows such devices. The engine then refuses a
  name that it does not know, works rootless, and the device nodes are part of the container's own
  specification, so a reload of systemd's units does not take them away, as it does with devices that a
  hook added behind the engine's back (NVIDIA Container Toolkit documentation, "Support for Container
  Device Interface"; NVIDIA/nvidia-container-toolkit issue 48).
- ``--gpus`` for docker else. Whether that works is known only when it is tried: ``docker info`` tells of a
  configured runtime, not of ``nvidia-container-runtime-hook`` on the daemon's PATH, which is all that
  ``--gpus`` needs.
- podman knows ``--gpus`` only as a flag that does nothing (podman pull request 10430, issue 19330), so for
  podman it is CDI (podman 4.1 or newer) or a refusal.
"""

from __future__ import annotations

import re

from ci.errors import ConfigError, ToolchainError
from ci.executors.model import EngineFacts, GpuRequest

CDI_KIND = "nvidia.com/gpu"
"""Vendor and class of NVIDIA's devices in CDI: ``nvidia.com/gpu=0``."""

_GENERATE = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_INDEX = re.compile(r"(?:0|[1-9][0-9]*)(?::(?:0|[1-9][0-9]*))?")
_BY_UUID = re.compile(rf"GPU-{_UUID}|MIG-{_UUID}|MIG-GPU-{_UUID}/[0-9]+/[0-9]+")


def gpu_arguments(facts: EngineFacts, request: GpuRequest) -> tuple[str, ...]:
    """What ``run`` of the engine gets so that the container has the GPUs of ``request`` and no others.

    Raises :class:`~ci.errors.ConfigError` for names that are none, all at once, and for devices that the
    engine does not have; :class:`~ci.errors.ToolchainError` for podman without CDI devices.
    """
    check_devices(request)
    known = _cdi_names(facts)
    if known and not (absent := [name for name in request.devices if name not in known]):
        return tuple(f"--device={CDI_KIND}={name}" for name in request.devices)
    if known and not _hook_knows_better(facts, known, absent):
        raise ConfigError(
            f"{facts.name} has no GPU {', '.join(absent)}",
            cause=f"its CDI devices are {', '.join(sorted(known))}",
            next_step=f"choose among these, or describe the machine anew: {_GENERATE}",
        )
    if facts.name == "podman":
        raise ToolchainError(
            "podman has no GPU to give: it knows no CDI device of NVIDIA",
            cause="podman takes GPUs through CDI only (podman 4.1 or newer); it ignores --gpus",
            next_step=_GENERATE,
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
        if not (_INDEX.fullmatch(name) or _BY_UUID.fullmatch(name))
    ]
    twice = [name for name in dict.fromkeys(devices) if devices.count(name) > 1]
    return wrong + [f"{name!r} is named {devices.count(name)} times" for name in twice]


def _cdi_names(facts: EngineFacts) -> frozenset[str]:
    """The names after ``nvidia.com/gpu=``, without ``all``, which is no device."""
    names = (name.partition("=") for name in facts.cdi_devices)
    return frozenset(name for kind, _, name in names if kind == CDI_KIND) - {"all", ""}


def _hook_knows_better(facts: EngineFacts, known: frozenset[str], absent: list[str]) -> bool:
    """True when the devices are asked for by UUID, CDI names none by UUID, and docker has NVIDIA's runtime."""
    by_index_only = all(_INDEX.fullmatch(name) for name in known)
    return (
        facts.name == "docker"
        and facts.gpu_runtime
        and by_index_only
        and all(_BY_UUID.fullmatch(name) for name in absent)
    )


def _gpus_value(devices: tuple[str, ...]) -> str:
    """The value of ``--gpus``: docker reads it as one line of CSV, so a list of devices is one quoted field."""
    value = f"device={','.join(devices)}"
    return f'"{value}"' if len(devices) > 1 else value
