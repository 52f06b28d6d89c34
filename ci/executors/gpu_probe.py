"""The GPUs that a process here can use, as one line of JSON. Runs inside a container, by itself.

Needs the standard library of Python 3.9 and nothing of the farm. NVIDIA's management library
(``libnvidia-ml.so.1``, which the container runtime brings in from the host's driver) is asked in a child,
because a call that hangs in the driver can be neither interrupted nor waited for; ``nvidia-smi`` is asked
when the library cannot be. What is missing is said as a problem with a name (``KINDS``).

By hand: ``python3 gpu_probe.py``; the status is 0 when a GPU was seen and nothing was wrong.

Functions and return codes of the library: NVIDIA, "NVML API Reference Guide".
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = "paddlefleet-gpu-probe "
"""What the line of the answer begins with: an image's entry point may print lines of its own."""

LIBRARY = "libnvidia-ml.so.1"
DEADLINE = 60.0
"""Seconds for everything. Without persistence mode the driver wakes each GPU up, for seconds each."""

KINDS = (
    "no-library",  # libnvidia-ml.so.1 is not in the container
    "bad-library",  # it is, and cannot be loaded or used
    "mismatch",  # library and kernel module are of different versions
    "not-loaded",  # the host's kernel module is not loaded
    "blocked",  # the kernel refuses the device: permission, cgroup
    "lost",  # the device was there and is not any more
    "hangs",  # no answer before the deadline
    "failed",  # anything else that the library or nvidia-smi says
)
_KIND_OF_CODE = {
    4: "blocked",  # NO_PERMISSION
    9: "not-loaded",  # DRIVER_NOT_LOADED
    10: "hangs",  # TIMEOUT
    12: "no-library",  # LIBRARY_NOT_FOUND
    13: "bad-library",  # FUNCTION_NOT_FOUND
    15: "lost",  # GPU_IS_LOST
    16: "lost",  # RESET_REQUIRED
    17: "blocked",  # OPERATING_SYSTEM: the cgroup does not let this process at the device
    18: "mismatch",  # LIB_RM_VERSION_MISMATCH
    999: "lost",  # UNKNOWN: what containers get after systemd took their devices away
}
_KIND_OF_WORDS = (
    ("version mismatch", "mismatch"),
    ("unknown error", "lost"),
    ("gpu is lost", "lost"),
    ("couldn't communicate with the nvidia driver", "not-loaded"),
    ("driver not loaded", "not-loaded"),
    ("couldn't find libnvidia-ml", "no-library"),
    ("insufficient permissions", "blocked"),
)
_VISIBLE = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "CUDA_VISIBLE_DEVICES")
_NOT_SUPPORTED = 3
_MIG_ENABLED = 1
_PR_SET_PDEATHSIG = 1
_SMI_FIELDS = "index,uuid,name,memory.total,memory.free,compute_cap,driver_version"
_MIB = 1024 * 1024


class _Memory(ctypes.Structure):
    """``nvmlMemory_t``: bytes."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class NvmlError(Exception):
    """A call of the library failed. ``kind`` is one of :data:`KINDS`."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text

    def as_problem(self) -> dict[str, str]:
        """The failure as a problem of the answer."""
        return {"kind": self.kind, "text": self.text}


class Nvml:
    """The management library, loaded and initialised. Raises :class:`NvmlError`."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            absent = LIBRARY in str(error) and "No such file or directory" in str(error)
            raise NvmlError("no-library" if absent else "bad-library", str(error)) from error
        self.call("nvmlInit_v2")

    def call(self, name: str, *arguments: object) -> None:
        """Call ``name``; raise :class:`NvmlError` for any code but success."""
        self.check(self.code(name, *arguments), name)

    def check(self, code: int, name: str) -> None:
        """Raise :class:`NvmlError` for any code of ``name`` but success."""
        if code:
            raise NvmlError(
                _KIND_OF_CODE.get(code, "failed"), f"{name}: {self._words(code)} (code {code})"
            )

    def code(self, name: str, *arguments: object) -> int:
        """The return code of ``name``; 13 (function not found) when this library lacks it."""
        function = getattr(self._library, name, None)
        if function is None:
            return 13
        function.restype = ctypes.c_int
        return int(function(*arguments))

    def text(self, name: str, *before: object) -> str:
        """What a function writes to a buffer."""
        buffer = ctypes.create_string_buffer(96)
        self.call(name, *before, buffer, ctypes.c_uint(len(buffer)))
        return buffer.value.decode("utf-8", "replace")

    def number(self, name: str, *before: object) -> int:
        """What a function writes to one integer."""
        value = ctypes.c_uint(0)
        self.call(name, *before, ctypes.byref(value))
        return value.value

    def handle(self, name: str, *before: object) -> ctypes.c_void_p:
        """The device handle that a function gives."""
        device = ctypes.c_void_p()
        self.call(name, *before, ctypes.byref(device))
        return device

    def _words(self, code: int) -> str:
        function = getattr(self._library, "nvmlErrorString", None)
        if function is None:
            return "error"
        function.restype = ctypes.c_char_p
        return (function(ctypes.c_int(code)) or b"error").decode("utf-8", "replace")


def ask_library() -> dict[str, object]:
    """What NVML says: driver, CUDA of the driver, devices, problems."""
    devices: list[dict[str, object]] = []
    problems: list[dict[str, str]] = []
    answer: dict[str, object] = {"source": "nvml", "devices": devices, "problems": problems}
    try:
        nvml = Nvml()
        answer["driver"] = nvml.text("nvmlSystemGetDriverVersion")
        answer["cuda_driver"] = _cuda_driver(nvml)
        count = nvml.number("nvmlDeviceGetCount_v2")
    except NvmlError as error:
        problems.append(error.as_problem())
        return answer
    for index in range(count):
        device = _device_or_problem(nvml, index)
        if isinstance(device, NvmlError):
            problems.append({"kind": device.kind, "text": f"GPU {index}: {device.text}"})
        else:
            devices.append(device)
    nvml.code("nvmlShutdown")
    return answer


def _device_or_problem(nvml: Nvml, index: int) -> dict[str, object] | NvmlError:
    try:
        return _device(nvml, index)
    except NvmlError as error:
        return error


def _cuda_driver(nvml: Nvml) -> str:
    """The newest CUDA that ``libcuda.so.1`` of this container serves (``13.0``); empty without one."""
    value = ctypes.c_int(0)
    if nvml.code("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(value)):
        return ""
    return f"{value.value // 1000}.{value.value % 1000 // 10}"


def _device(nvml: Nvml, index: int) -> dict[str, object]:
    device = nvml.handle("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index))
    major, minor = ctypes.c_int(0), ctypes.c_int(0)
    nvml.call(
        "nvmlDeviceGetCudaComputeCapability", device, ctypes.byref(major), ctypes.byref(minor)
    )
    total, free = _memory(nvml, device)
    return {
        "index": index,
        "uuid": nvml.text("nvmlDeviceGetUUID", device),
        "name": nvml.text("nvmlDeviceGetName", device),
        "memory_total": total,
        "memory_free": free,
        "capability": f"{major.value}.{minor.value}",
        "mig": _mig_devices(nvml, device),
    }


def _memory(nvml: Nvml, device: ctypes.c_void_p) -> tuple[int, int]:
    """Bytes in all, and free; 0 and 0 for a GPU without memory of its own, which does not tell."""
    memory = _Memory()
    code = nvml.code("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
    if code == _NOT_SUPPORTED:
        return 0, 0
    nvml.check(code, "nvmlDeviceGetMemoryInfo")
    return int(memory.total), int(memory.free)


def _mig_devices(nvml: Nvml, device: ctypes.c_void_p) -> list[dict[str, object]]:
    """The parts of a GPU that is partitioned; none where it is not, or cannot be."""
    mode, pending, most = ctypes.c_uint(0), ctypes.c_uint(0), ctypes.c_uint(0)
    if nvml.code("nvmlDeviceGetMigMode", device, ctypes.byref(mode), ctypes.byref(pending)):
        return []
    if mode.value != _MIG_ENABLED:
        return []
    nvml.call("nvmlDeviceGetMaxMigDeviceCount", device, ctypes.byref(most))
    found: list[dict[str, object]] = []
    for index in range(most.value):
        part = ctypes.c_void_p()
        number = ctypes.c_uint(index)
        if nvml.code("nvmlDeviceGetMigDeviceHandleByIndex", device, number, ctypes.byref(part)):
            continue  # a place without a part, or a part that this container does not have
        total, free = _memory(nvml, part)
        uuid = nvml.text("nvmlDeviceGetUUID", part)
        found.append({"uuid": uuid, "memory_total": total, "memory_free": free})
    return found


def run_within(argv: list[str], seconds: float) -> tuple[int | None, str]:
    """Status and output of ``argv``; the status is ``None`` when it did not end within ``seconds``.

    A process that hangs in the driver may outlive SIGKILL, so it is left behind, not waited for.
    """
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=max(seconds, 0.1))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, ""
    return process.returncode, output.decode("utf-8", "replace")


def ask_library_within(seconds: float) -> dict[str, object]:
    """:func:`ask_library` in a child, with a deadline."""
    argv = [sys.executable, "-I", str(Path(__file__).resolve()), "--library"]
    status, output = run_within(argv, seconds)
    if status is None:
        text = f"{LIBRARY} gave no answer within {seconds:.0f} s"
        return _nothing("nvml", "hangs", text)
    answer = _last_json(output)
    if status or answer is None:
        tail = " | ".join(output.split("\n")[-4:]).strip(" |")
        text = f"asking {LIBRARY} ended with status {status}: {tail or 'no output'}"
        return _nothing("nvml", "bad-library", text)
    return answer


def ask_program_within(seconds: float) -> dict[str, object]:
    """What ``nvidia-smi`` says, in the form of :func:`ask_library`; ``{}`` where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    status, output = run_within(
        [program, f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader,nounits"], seconds
    )
    if status is None:
        return _nothing("nvidia-smi", "hangs", f"{program} gave no answer within {seconds:.0f} s")
    if status:
        said = " ".join(output.split())
        kind = next((kind for words, kind in _KIND_OF_WORDS if words in said.lower()), "failed")
        return _nothing("nvidia-smi", kind, f"nvidia-smi (status {status}): {said[:500]}")
    return read_program(output)


def read_program(output: str) -> dict[str, object]:
    """The rows of ``nvidia-smi --query-gpu``: memory is MiB there, bytes here."""
    devices: list[dict[str, object]] = []
    problems: list[dict[str, str]] = []
    answer: dict[str, object] = {
        "source": "nvidia-smi",
        "devices": devices,
        "problems": problems,
    }
    for line in filter(str.strip, output.splitlines()):
        fields = [field.strip() for field in line.split(",")]
        try:
            index, uuid, name, total, free, capability, driver = fields
            devices.append(
                {
                    "index": int(index),
                    "uuid": uuid,
                    "name": name,
                    "memory_total": int(total) * _MIB,
                    "memory_free": int(free) * _MIB,
                    "capability": capability,
                    "mig": [],
                }
            )
        except ValueError:
            problems.append({"kind": "failed", "text": f"nvidia-smi: {line.strip()[:200]}"})
        else:
            answer["driver"] = driver
    return answer


def probe(seconds: float) -> dict[str, object]:
    """The whole answer, within about ``seconds``."""
    end = time.monotonic() + seconds
    answer = ask_library_within(seconds)
    problems = answer["problems"]
    hangs = isinstance(problems, list) and any(item.get("kind") == "hangs" for item in problems)
    if not answer["devices"] and problems and not hangs:
        answer = _better(answer, ask_program_within(end - time.monotonic()))
    nodes = sorted(str(path) for path in Path("/dev").glob("nvidia*"))
    visible = {name: os.environ[name] for name in _VISIBLE if name in os.environ}
    return answer | {"nodes": nodes, "visible": visible}


def _better(first: dict[str, object], second: dict[str, object]) -> dict[str, object]:
    """The answer with devices; the problems of both where none has any."""
    if second.get("devices"):
        return second
    problems: list[object] = []
    for answer in (first, second):
        some = answer.get("problems")
        problems += some if isinstance(some, list) else []
    return first | {"problems": problems}


def _nothing(source: str, kind: str, text: str) -> dict[str, object]:
    return {"source": source, "devices": [], "problems": [{"kind": kind, "text": text}]}


def _last_json(output: str) -> dict[str, object] | None:
    for line in reversed(output.splitlines()):
        if line.startswith(MARK):
            found = json.loads(line[len(MARK) :])
            return found if isinstance(found, dict) else None
    return None


def main(arguments: list[str]) -> int:
    """``[SECONDS]``, or ``--library`` for the child. Returns the status."""
    if arguments == ["--library"]:
        # Where the probe is killed, a child that hangs in the driver must not stay behind.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        print(MARK + json.dumps(ask_library()), flush=True)
        return 0
    answer = probe(float(arguments[0]) if arguments else DEADLINE)
    print(MARK + json.dumps(answer), flush=True)
    return 0 if answer["devices"] and not answer["problems"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
