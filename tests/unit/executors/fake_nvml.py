"""NVIDIA's management library, compiled from ``fake_nvml.c``, for machines without a GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ci.executors.gpu_probe import LIBRARY

FIRST = "GPU-00000000-1111-2222-3333-444444444444"
SECOND = "GPU-55555555-6666-7777-8888-999999999999"
PARTS = ("MIG-aaaaaaaa-0000-0000-0000-000000000001", "MIG-aaaaaaaa-0000-0000-0000-000000000002")
"""The UUIDs that ``fake_nvml.c`` makes up."""


def compile_library(folder: Path) -> Path:
    """The library in ``folder``, which ``LD_LIBRARY_PATH`` then names."""
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name("fake_nvml.c")
    subprocess.run(
        ("gcc", "-shared", "-fPIC", "-o", str(folder / LIBRARY), str(source)), check=True
    )
    return folder
