"""Whether the GPUs that a container was to have are there and fit to be used, seen from inside.

The engine's word is not enough: podman ignores ``--gpus`` and starts the container, a runtime may bring no
driver in, and a device may be gone, taken or of no use. So before any suite the program of ``gpu_probe``
runs in the container (:func:`probe_command`), and what it saw (:func:`read_probe`) is compared with what
was asked for (:func:`require_gpus`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.errors import InfrastructureError
from ci.executors import gpu_probe
from ci.executors.gpus import BY_UUID, GENERATE_CDI, RELOAD_DRIVER, gpu_engine_error
from ci.executors.model import FARM_PYTHON, GpuRequest
from ci.findings import Finding
from ci.proc import Command

PROBE = Path(gpu_probe.__file__).resolve()
"""The program of :func:`probe_command`; needs nothing but Python."""

MINIMUM_DRIVER = {"11": "450.80.02", "12": "525.60.13", "13": "580.65.06"}
"""The oldest Linux driver that serves any CUDA of a major version (NVIDIA, "CUDA Compatibility", minor
version compatibility: 450, 525, 580; the full numbers are those of the CUDA Toolkit release notes, for 13
that of the driver that came with 13.0).
"""

_STARTING_SECONDS = 60.0
_PROBLEMS = {
    "bad-library": (
        "the driver library in the container cannot be used: it belongs to another system, or the image "
        "brought one of its own along",
        "in the container: ldconfig -p | grep libnvidia-ml; an image must hold no driver library",
    ),
    "mismatch": (
        "driver library and kernel module are of different versions: the driver was updated under a "
        "running kernel, or the image holds a driver library of its own",
        RELOAD_DRIVER,
    ),
    "not-loaded": ("the host's NVIDIA kernel module is not loaded", "on the host: sudo modprobe nvidia"),
    "blocked": (
        "the kernel does not let the container at the GPU: its device cgroup or its user has no right",
        "for a rootless engine: sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place",
    ),
    "lost": (
        "the container lost its GPU: systemd took the device away (daemon-reload), or the GPU failed",
        "start a new container; if it comes again use CDI, and look for Xid in the host's dmesg",
    ),
    "hangs": (
        "the driver does not answer: a GPU or its driver hangs",
        "take this machine out of service and look for Xid in its dmesg; nvidia-smi hangs there too",
    ),
    "failed": ("the driver answers with an error", "on the host: nvidia-smi, and dmesg | grep -i nvrm"),
}  # fmt: skip


@dataclass(frozen=True)
class MigFact:
    """A part of a partitioned GPU. Memory is in bytes."""

    uuid: str
    memory_total: int
    memory_free: int


@dataclass(frozen=True)
class GpuFact:
    """A GPU that a process in the container can use.

    ``index`` counts from 0 inside the container, whatever the host calls it. Memory is in bytes, 0 where
    the driver does not tell. ``capability`` is ``9.0``. ``mig`` are its parts when it is partitioned.
    """

    index: int
    uuid: str
    name: str
    memory_total: int
    memory_free: int
    capability: str
    mig: tuple[MigFact, ...] = ()


@dataclass(frozen=True)
class GpuProblem:
    """What the probe could not do: ``kind`` is one of :data:`ci.executors.gpu_probe.KINDS`."""

    kind: str
    text: str


@dataclass(frozen=True)
class GpuProbe:
    """What the probe saw in the container.

    ``driver`` is the version of the host's driver (``580.65.06``), ``cuda_driver`` the newest CUDA that
    the container's ``libcuda.so.1`` serves (``13.0``, by a compatibility package it may be newer than the
    driver's own); both are empty when not known. ``nodes`` are the device files, ``visible`` the
    variables that choose devices, as they are in the container.
    """

    source: str
    driver: str
    cuda_driver: str
    devices: tuple[GpuFact, ...]
    problems: tuple[GpuProblem, ...]
    nodes: tuple[str, ...]
    visible: Mapping[str, str]


def probe_command(
    request: GpuRequest, *, python: str = FARM_PYTHON, seconds: float = gpu_probe.DEADLINE
) -> Command:
    """The command that looks for GPUs inside the container, for :func:`read_probe` to read.

    ``python`` is an interpreter of the image (3.9 or newer); the file :data:`PROBE` has to be in the
    container at the same path. The probe gives up by itself after ``seconds``; the rest of the command's
    time is for starting the container.
    """
    return Command(
        argv=(python, "-I", str(PROBE), f"{seconds:g}"),
        timeout=seconds + _STARTING_SECONDS,
        label=f"GPU probe: {', '.join(request.devices)}",
    )


def read_probe(output: str) -> GpuProbe:
    """What the probe said; ``output`` may hold more, such as what an image's entry point prints.

    Raises :class:`~ci.errors.InfrastructureError` when there is no answer in it: the engine's own error
    when it is one that :func:`gpu_engine_error` knows.
    """
    lines = [line for line in output.splitlines() if line.startswith(gpu_probe.MARK)]
    try:
        return _probe_of(json.loads(lines[-1][len(gpu_probe.MARK) :]))
    except (IndexError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise (
            gpu_engine_error(output)
            or InfrastructureError(
                "the GPU probe in the container gave no answer",
                cause="it did not start, or was ended before it was done",
                next_step=f"in the container: python3 {PROBE.name}",
                details=output.splitlines()[-20:],
            )
        ) from error


def _probe_of(answer: Mapping[str, Any]) -> GpuProbe:
    """The typed form. Raises ``KeyError``, ``TypeError``, ``ValueError`` or ``AttributeError``."""
    return GpuProbe(
        source=str(answer["source"]),
        driver=str(answer.get("driver", "")),
        cuda_driver=str(answer.get("cuda_driver", "")),
        devices=tuple(_gpu_of(item) for item in answer["devices"]),
        problems=tuple(
            GpuProblem(str(item["kind"]), str(item["text"])) for item in answer["problems"]
        ),
        nodes=tuple(str(item) for item in answer["nodes"]),
        visible={str(name): str(value) for name, value in answer["visible"].items()},
    )


def _gpu_of(item: Mapping[str, Any]) -> GpuFact:
    return GpuFact(
        index=int(item["index"]),
        uuid=str(item["uuid"]),
        name=str(item["name"]),
        memory_total=int(item["memory_total"]),
        memory_free=int(item["memory_free"]),
        capability=str(item["capability"]),
        mig=tuple(
            MigFact(str(part["uuid"]), int(part["memory_total"]), int(part["memory_free"]))
            for part in item["mig"]
        ),
    )


def require_gpus(request: GpuRequest, probe: GpuProbe, *, memory: int = 0, cuda: str = "") -> None:
    """Raise :class:`~ci.errors.InfrastructureError` with all that :func:`judge_gpus` finds."""
    findings = judge_gpus(request, probe, memory=memory, cuda=cuda)
    if findings:
        raise InfrastructureError(
            f"the container lacks the GPUs that it was to have ({', '.join(request.devices)})",
            cause=findings[0].why,
            next_step=findings[0].mend,
            details=[item.text for item in findings],
        )


def judge_gpus(
    request: GpuRequest, probe: GpuProbe, *, memory: int = 0, cuda: str = ""
) -> tuple[Finding, ...]:
    """Everything that makes a suite on these GPUs pointless; empty when it may run.

    ``memory`` is what each device must have free (bytes), ``cuda`` the CUDA of what will run (``13.0``).
    A device that was asked for by index can only be counted: inside, numbers begin at 0.
    """
    findings = [_of_problem(item, request, probe) for item in probe.problems]
    if probe.devices or not findings:
        findings += _device_findings(request, probe)
        findings += _hidden_findings(request, probe)
        findings += _memory_findings(probe, memory)
    return (*findings, *_driver_findings(probe, cuda))


def _of_problem(problem: GpuProblem, request: GpuRequest, probe: GpuProbe) -> Finding:
    if problem.kind == "no-library":
        why, mend = _why_not_injected(request, probe)
    else:
        why, mend = _PROBLEMS.get(problem.kind, _PROBLEMS["failed"])
    return Finding(
        rule=f"gpu-{problem.kind}",
        place="container",
        why=f"{why} ({problem.text})",
        mend=mend,
        subject=problem.text,
    )


def _why_not_injected(request: GpuRequest, probe: GpuProbe) -> tuple[str, str]:
    """Why there is no driver: the engine says by a variable whether it took the request at all."""
    asked = probe.visible.get("NVIDIA_VISIBLE_DEVICES")
    if asked == ",".join(request.devices):
        return (
            "the engine passed the request for GPUs on, but NVIDIA's runtime brought no driver in",
            "on the host: nvidia-container-cli info; it names what is missing",
        )
    if probe.nodes or asked == "void":  # void is what CDI's specifications of NVIDIA set
        return (
            "GPUs were put into the container without the driver library: the driver capability 'utility' "
            "is missing, or the CDI specification is older than the driver",
            "run with -e NVIDIA_DRIVER_CAPABILITIES=compute,utility, or describe the machine to CDI anew: "
            f"{GENERATE_CDI}",
        )
    return (
        "no GPU was put into the container: the engine ignored the request, as podman does with --gpus",
        f"let the engine give GPUs through CDI: {GENERATE_CDI}",
    )


def _device_findings(request: GpuRequest, probe: GpuProbe) -> list[Finding]:
    """Devices that are missing or too many, by UUID where they were asked so, else by their number."""
    by_uuid = [name for name in request.devices if BY_UUID.fullmatch(name)]
    units = _units(request, probe)
    there = {uuid for unit in units for uuid in unit}
    findings = [
        _device_finding("gpu-missing", name, f"{name} was asked for and is not in the container")
        for name in by_uuid
        if name not in there
    ]
    if len(by_uuid) == len(request.devices):
        return findings + [
            _device_finding(
                "gpu-not-asked", unit[0], f"{unit[0]} is in the container, not asked for"
            )
            for unit in units
            if not set(unit) & set(by_uuid)
        ]
    if not findings and len(units) != len(request.devices):
        seen = ", ".join(unit[0] for unit in units) or "none"
        count = f"{len(request.devices)} GPUs were asked for, {len(units)} are in the container"
        findings.append(_device_finding("gpu-count", "container", f"{count}: {seen}"))
    return findings


def _units(request: GpuRequest, probe: GpuProbe) -> list[tuple[str, ...]]:
    """What the container has, in the units of the request: parts of GPUs when it names any, else GPUs.

    Each is its UUIDs: its own, and for a part that of its GPU.
    """
    if any(name.startswith("MIG-") or ":" in name for name in request.devices):
        return [
            unit
            for gpu in probe.devices
            for unit in (tuple((part.uuid, gpu.uuid) for part in gpu.mig) or ((gpu.uuid,),))
        ]
    return [(gpu.uuid,) for gpu in probe.devices]


def _device_finding(rule: str, place: str, why: str) -> Finding:
    return Finding(
        rule=rule, place=place, why=why,
        mend="compare with nvidia-smi -L on the host, and release the lease if a GPU is gone",
        subject=place,
    )  # fmt: skip


def _hidden_findings(request: GpuRequest, probe: GpuProbe) -> list[Finding]:
    """``CUDA_VISIBLE_DEVICES`` of the host in a container, where numbers begin at 0 again."""
    value = probe.visible.get("CUDA_VISIBLE_DEVICES")
    if value is None or not probe.devices:
        return []
    shown = _shown_by(value, probe)
    if shown >= min(len(request.devices), len(probe.devices)):
        return []
    return [
        Finding(
            rule="gpu-hidden",
            place="CUDA_VISIBLE_DEVICES",
            why=f"CUDA_VISIBLE_DEVICES={value!r} shows CUDA {shown} of {len(probe.devices)} GPUs: "
            "inside a container indices begin at 0",
            mend="start the container without CUDA_VISIBLE_DEVICES; the engine chooses the devices",
            subject="CUDA_VISIBLE_DEVICES",
        )
    ]


def _shown_by(value: str, probe: GpuProbe) -> int:
    """How many devices CUDA makes of the list: it stops at the first that it does not have.

    NVIDIA, CUDA C++ Programming Guide, "CUDA Environment Variables".
    """
    uuids = [uuid for gpu in probe.devices for uuid in (gpu.uuid, *(part.uuid for part in gpu.mig))]
    shown = 0
    for name in (item.strip() for item in value.split(",")):
        numbered = name.isdecimal() and int(name) < len(probe.devices)
        named = name.startswith(("GPU-", "MIG-")) and any(uuid.startswith(name) for uuid in uuids)
        if not (numbered or named):
            break
        shown += 1
    return shown


def _memory_findings(probe: GpuProbe, memory: int) -> list[Finding]:
    units: list[GpuFact | MigFact] = [unit for gpu in probe.devices for unit in (gpu.mig or (gpu,))]
    return [
        Finding(
            rule="gpu-memory",
            place=unit.uuid,
            why=f"{unit.uuid} has {_gib(unit.memory_free)} of {_gib(unit.memory_total)} free, "
            f"{_gib(memory)} are needed: another process holds it, or its GPU is too small",
            mend="on the host: nvidia-smi --query-compute-apps=gpu_uuid,pid,name,used_memory --format=csv",
            subject=unit.uuid,
        )
        for unit in units
        if unit.memory_free < memory
    ]


def _gib(amount: int) -> str:
    return f"{amount / 1024**3:.1f} GiB"


def _driver_findings(probe: GpuProbe, cuda: str) -> list[Finding]:
    """Whether the driver serves ``cuda``: any of a major version serves all its minor ones.

    A compatibility package in the image lets an older driver serve a newer CUDA; then ``cuda_driver``
    says so (NVIDIA, "CUDA Compatibility", minor version and forward compatibility).
    """
    if not cuda or not (probe.driver or probe.cuda_driver):
        return []
    major = cuda.partition(".")[0]
    minimum = MINIMUM_DRIVER.get(major, "")
    if probe.cuda_driver:
        serves = _numbers(probe.cuda_driver)[:1] >= _numbers(major)
    else:
        serves = bool(minimum) and _numbers(probe.driver) >= _numbers(minimum)
    if serves:
        return []
    needed = f"driver {minimum} or newer" if minimum else f"a driver that serves CUDA {major}"
    up_to = f", which serves CUDA up to {probe.cuda_driver}" if probe.cuda_driver else ""
    return [
        Finding(
            rule="gpu-driver-old",
            place="driver",
            why=f"CUDA {cuda} needs {needed}; the host has {probe.driver or 'one'}{up_to}",
            mend="update the driver of the host, or take a cell of an older CUDA: python -m ci matrix",
            subject="driver",
        )
    ]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", version))
