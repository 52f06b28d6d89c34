"""What setuptools is told about the wheel; every value comes from the manifest of the build."""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

PACKAGE = Path(__file__).resolve().parent / "src" / "paddlefleet_ops"
CLASSIFIERS = (
    "Development Status :: 4 - Beta",
    "Intended Audience :: Developers",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: Python :: 3",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
)
# Package indexes refuse a distribution with a "Private ::" classifier, so a wheel that must not be
# published cannot be uploaded by accident. Source: packaging.python.org, "Classifiers".
UNPUBLISHABLE = "Private :: Do Not Upload"


def read_manifest() -> dict[str, Any]:
    """The manifest that the build backend wrote. Raises :class:`FileNotFoundError` without one."""
    path = PACKAGE / "_manifest.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing: build through the backend (pip wheel, python -m build, nox), "
            "which writes it"
        )
    manifest: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return manifest


def get_special_setup_deps() -> list[str]:
    """Run-time requirements of the libraries in this wheel, each named once, in a stable order.

    The name is that of PaddleFleet's ``setup.py``.
    """
    manifest = read_manifest()
    return sorted({text for library in manifest["libraries"] for text in library["run_requires"]})


class BinaryDistribution(Distribution):
    """A distribution that installs to platlib where it holds shared objects."""

    def has_ext_modules(self) -> bool:
        """True when any collected artifact is a shared object."""
        return any(PACKAGE.rglob("*.so"))


class TaggedWheel(bdist_wheel):
    """The raw tag: this Python, its ABI only where an extension is bound to it."""

    def get_tag(self) -> tuple[str, str, str]:
        """Interpreter, ABI and platform tags as PEP 425 says."""
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        objects = list(PACKAGE.rglob("*.so"))
        if not objects:
            return python, "none", "any"
        bound = any(".cpython-" in path.name for path in objects)
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        return python, python if bound else "none", platform


def main() -> None:
    """Run setuptools with the values of the manifest."""
    manifest = read_manifest()
    classifiers = [*CLASSIFIERS, *([] if manifest["publishable"] else [UNPUBLISHABLE])]
    setup(
        version=manifest["version"],
        install_requires=get_special_setup_deps(),
        classifiers=classifiers,
        distclass=BinaryDistribution,
        cmdclass={"bdist_wheel": TaggedWheel},
    )


if __name__ == "__main__":
    main()
