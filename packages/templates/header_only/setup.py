"""The compiled part of the build; everything else is declared in ``pyproject.toml``."""

from __future__ import annotations

import os

from pybind11 import get_include
from pybind11.setup_helpers import Pybind11Extension
from setuptools import setup


def compile_flags() -> list[str]:
    """Flags that keep machine paths and needless symbols out of the binary."""
    prefix_maps = [
        f"-ffile-prefix-map={os.getcwd()}=.",
        f"-ffile-prefix-map={get_include()}=pybind11",
    ]
    return ["-O2", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra", *prefix_maps]


setup(
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
    ]
)
