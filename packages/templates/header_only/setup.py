"""The compiled part of the build; everything else is declared in ``pyproject.toml``."""

from __future__ import annotations

from pathlib import Path

from pybind11 import get_include
from pybind11.setup_helpers import Pybind11Extension
from setuptools import setup
from setuptools.command.build_ext import build_ext


def compile_flags() -> list[str]:
    """Flags that keep machine paths and needless symbols out of the binary."""
    prefix_maps = [
        f"-ffile-prefix-map={Path.cwd()}=.",
        f"-ffile-prefix-map={get_include()}=pybind11",
    ]
    return ["-O2", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra", *prefix_maps]


class WithoutRunPath(build_ext):
    """Links without the run path that a Python built in its own prefix adds to every extension."""

    def build_extensions(self) -> None:
        """Drops ``-Wl,-rpath,DIR``, also written ``-Wl,-rpath -Wl,DIR``, from the link commands."""
        for name in ("linker_so", "linker_so_cxx"):
            command = getattr(self.compiler, name, None)
            if command:
                kept = [a for a in command if not a.startswith(("-Wl,-rpath", "-Wl,/"))]
                setattr(self.compiler, name, kept)
        super().build_extensions()


setup(
    cmdclass={"build_ext": WithoutRunPath},
    ext_modules=[
        Pybind11Extension(
            "expert_placement._core",
            ["csrc/bindings.cpp"],
            include_dirs=["include"],
            depends=[
                "include/expert_placement/batching.hpp",
                "include/expert_placement/grouping.hpp",
                "include/expert_placement/placement.hpp",
            ],
            cxx_std=17,
            extra_compile_args=compile_flags(),
            extra_link_args=["-s"],
        )
    ],
)
