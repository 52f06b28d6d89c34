"""The toolchain stage: which compilers a cell uses, where they come from, and their identity."""

from __future__ import annotations

from ci.toolchain.model import PythonSearch, Toolchain
from ci.toolchain.obtain import resolve_toolchain
from ci.toolchain.probe import find_python, require_python
from ci.toolchain.report import describe, rows

__all__ = [
    "PythonSearch",
    "Toolchain",
    "describe",
    "find_python",
    "require_python",
    "resolve_toolchain",
    "rows",
]
