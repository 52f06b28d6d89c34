"""Builds the package: Python files as usual, and libfused_norm.so by build_cuda.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

import build_cuda  # noqa: E402  (lies beside this file; a PEP 517 build has no such path entry)


class BuildCudaLibrary(Command):
    """Compile the kernels and the CPU path into one shared library inside the package."""

    description = "compile libfused_norm.so with nvcc and the C++ compiler"
    user_options: ClassVar[list[tuple[str, str, str]]] = [
        ("build-lib=", "b", "folder of the built package"),
        ("build-temp=", "t", "folder of the object files"),
    ]

    def initialize_options(self) -> None:
        """Declare the options, as setuptools wants it."""
        self.build_lib: str | None = None
        self.build_temp: str | None = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        """Take the folders from the ``build`` command."""
        self.set_undefined_options(
            "build", ("build_lib", "build_lib"), ("build_temp", "build_temp")
        )

    def run(self) -> None:
        """Compile and link; a `BuildError` ends the build with its text."""
        library, objects = self._library().absolute(), Path(str(self.build_temp)).absolute()
        try:
            inputs = build_cuda.BuildInputs.from_environment(os.environ)
            tvm_ffi = build_cuda.TvmFfi.installed()
            print(f"capabilities {' '.join(map(str, inputs.capabilities))}, {inputs.jobs} jobs")
            steps = build_cuda.plan(inputs, tvm_ffi, ROOT / "csrc", objects, library)
            build_cuda.execute(steps, inputs.jobs)
        except build_cuda.BuildError as error:
            raise SystemExit(f"fused-norm: {error}") from error

    def _library(self) -> Path:
        package = ROOT / "src" if self.editable_mode else Path(str(self.build_lib))
        return package / "fused_norm" / build_cuda.LIBRARY_NAME

    def get_source_files(self) -> list[str]:
        """Return what a source distribution needs for this command."""
        sources = sorted((ROOT / "csrc").iterdir())
        return [str(path.relative_to(ROOT)) for path in (ROOT / "build_cuda.py", *sources)]

    def get_outputs(self) -> list[str]:
        """Return the files that this command makes."""
        return [str(self._library())]

    def get_output_mapping(self) -> dict[str, str]:
        """Return nothing: no output is a copy of a source file."""
        return {}


class Build(build):
    """The usual build, and the library."""

    sub_commands: ClassVar[list[tuple[str, None]]] = [
        *build.sub_commands,
        ("build_cuda_library", None),
    ]


class BinaryDistribution(Distribution):
    """A distribution for one platform, though it has no extension module for one Python."""

    def has_ext_modules(self) -> bool:
        """Return true, so that the wheel is not called pure."""
        return True


class PlatformWheel(bdist_wheel):
    """The library has no Python symbols: one wheel for all Python versions of a platform."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return any Python 3, no ABI, this platform."""
        return "py3", "none", super().get_tag()[2]


setup(
    distclass=BinaryDistribution,
    cmdclass={
        "build": Build,
        "build_cuda_library": BuildCudaLibrary,
        "bdist_wheel": PlatformWheel,
    },
)
