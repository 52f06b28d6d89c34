"""A scratch checkout of the farm, and small libraries to integrate into it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.integration.scaffold.request import IntegrateRequest
from tests.unit.integration.scaffold.scratch import call, clone_of_checkout

# Libraries of the four kinds, as small as their builders allow. Nothing of them is run here.
HEADER_ONLY = {
    "pyproject.toml": '[build-system]\nrequires = ["setuptools>=70", "pybind11>=2.13,<3"]\n'
    '[project]\nname = "token-packing"\nversion = "1"\ndependencies = ["numpy>=1.24", "torch"]\n',
    "setup.py": "from pybind11.setup_helpers import Pybind11Extension\nfrom setuptools import setup\n"
    'setup(ext_modules=[Pybind11Extension("token_packing._core", ["core.cpp"])])\n',
    "src/token_packing/__init__.py": "from ._core import pack as _pack\n\n\ndef pack(lengths):\n"
    "    return _pack(lengths)\n",
}
CUDA_EXTENSION = {
    "setup.py": "import paddle\n\npaddle.enable_compat()\n\nfrom setuptools import setup\n"
    "from torch.utils import cpp_extension\n\n"
    'setup(name="axpy", packages=["axpy"], ext_modules=[\n'
    '    cpp_extension.CUDAExtension(name="axpy_cpp", sources=["axpy.cc"])],\n'
    '    cmdclass={"build_ext": cpp_extension.BuildExtension})\n',
    "axpy/__init__.py": "import torch\n\nimport axpy_cpp\n\n__all__ = ['axpy', 'scale']\n",
    "axpy.cc": "// compiled elsewhere\n",
}
EP_COMM = {
    "pyproject.toml": '[build-system]\nrequires = ["setuptools>=70"]\n'
    '[project]\nname = "ring-dispatch"\nversion = "1"\n',
    "ring_dispatch/__init__.py": "from .buffer import Buffer\n",
    "ring_dispatch/buffer.py": "import torch\n\n\nclass Buffer:\n    pass\n",
}
PYTHON_DSL = {
    "pyproject.toml": '[build-system]\nrequires = ["setuptools>=70"]\n'
    '[project]\nname = "scan-ops"\nversion = "1"\ndependencies = ["triton>=3.3"]\n',
    "scan_ops/__init__.py": "from . import kernels\nfrom .kernels import scan\n",
    "scan_ops/kernels.py": "import torch\nimport triton\nimport quack\n\n\ndef scan(x):\n    return x\n",
}
SOURCES = {
    "header_only": ("token-packing", HEADER_ONLY),
    "cuda_extension": ("axpy", CUDA_EXTENSION),
    "ep_comm": ("ring-dispatch", EP_COMM),
    "python_dsl": ("scan-ops", PYTHON_DSL),
}

Commit = Callable[[Path, dict[str, str]], str]


@pytest.fixture(scope="session")
def committed_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout as a clone, with what is not committed here as a commit of its own."""
    return clone_of_checkout(tmp_path_factory.mktemp("farm") / "checkout")


@pytest.fixture
def checkout(committed_checkout: Path, tmp_path: Path, git: Any) -> Path:
    """A checkout of the farm that a test may change."""
    target = tmp_path / "checkout"
    shutil.copytree(committed_checkout, target, symlinks=True)
    call("update-index", "-q", "--refresh", cwd=target)
    return target


@pytest.fixture
def source(tmp_path: Path, commit_files: Commit) -> Callable[[str], IntegrateRequest]:
    """Makes the repository of a kind, and the request that integrates it."""

    def make(kind: str, files: dict[str, str] | None = None, **changes: Any) -> IntegrateRequest:
        name, own = SOURCES[kind]
        repository = tmp_path / "sources" / name
        commit_files(repository, {**own, **(files or {})})
        return replace(IntegrateRequest(name=name, kind=kind, url=str(repository)), **changes)

    return make
