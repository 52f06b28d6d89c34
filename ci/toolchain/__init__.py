"""The toolchain stage: which compilers a cell uses, where they come from, and their identity."""

from __future__ import annotations

from ci.toolchain.model import HostToolchain, PythonSearch, Toolchain
from ci.toolchain.obtain import host_toolchain, resolve_toolchain
from ci.toolchain.probe import ask_ahead, find_python, require_python
from ci.toolchain.report import describe, rows

__all__ = [
    "HostToolchain",
    "PythonSearch",
    "Toolchain",
    "ask_ahead",
    "describe",
    "find_python",
    "host_toolchain",
    "require_python",
    "resolve_toolchain",
    "rows",
]
