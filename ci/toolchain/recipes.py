"""Which toolchains can be put together from the Python package index: one row each.

A new CUDA version is one row here and one lock (``locks/README.md`` says how to write it).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ci.toolchain.model import CompilerName

LOCKS = Path(__file__).parent / "locks"


@dataclass(frozen=True)
class Recipe:
    """How to put a toolchain together: ``lock`` is a file in ``locks/``.

    ``newest_gcc`` is the newest gcc major that this CUDA accepts as host compiler: section "Host
    Compiler Support Policy" of NVIDIA's CUDA Installation Guide for Linux, and the version's own
    ``crt/host_config.h``. clang takes any gcc's standard library, so it is 0 (no limit) there.
    """

    cuda: str
    compiler: CompilerName
    lock: str
    newest_gcc: int = 0

    @property
    def requirements(self) -> Path:
        """The lock: every package with its version and hashes."""
        return LOCKS / self.lock

    def packages(self) -> tuple[str, ...]:
        """The pinned packages, as ``name==version``."""
        lines = self.requirements.read_text(encoding="utf-8").splitlines()
        return tuple(line.rstrip("\\ ") for line in lines if "==" in line and line[0].isalnum())

    def digest(self) -> str:
        """SHA-256 of the lock."""
        return hashlib.sha256(self.requirements.read_bytes()).hexdigest()


RECIPES: tuple[Recipe, ...] = (
    Recipe("13.0", "nvcc", "nvcc-13.0.txt", newest_gcc=15),
    Recipe("13.2", "nvcc", "nvcc-13.2.txt", newest_gcc=15),
    Recipe("12.6", "clang", "clang-12.6.txt"),
    Recipe("12.9", "clang", "clang-12.9.txt"),
    Recipe("13.0", "clang", "clang-13.0.txt"),
)


def find_recipe(cuda: str, compiler: CompilerName) -> Recipe | None:
    """The row for this CUDA and compiler, or None: it cannot be put together from packages."""
    for recipe in RECIPES:
        if (recipe.cuda, recipe.compiler) == (cuda, compiler):
            return recipe
    return None


def assembled_versions(compiler: CompilerName) -> tuple[str, ...]:
    """The CUDA versions that can be put together for ``compiler``."""
    return tuple(recipe.cuda for recipe in RECIPES if recipe.compiler == compiler)
