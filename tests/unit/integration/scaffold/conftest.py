"""A scratch checkout of the farm, and small libraries to integrate into it."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ci.integration.scaffold import IntegrateRequest
from ci.registry import REPOSITORY

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


@dataclass(frozen=True)
class State:
    """All that may tell one state of a checkout from another: every file outside of git's own folder
    with its mode, git's status, index, configuration and submodules' folders.
    """

    files: tuple[tuple[str, str], ...]
    status: str
    index: str
    config: str
    modules: tuple[str, ...]
    leftovers: tuple[str, ...]


@pytest.fixture(scope="session")
def committed_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout as a clone, with what is not committed here as a commit of its own."""
    target = tmp_path_factory.mktemp("farm") / "checkout"
    call("clone", "-q", str(REPOSITORY), str(target), cwd=REPOSITORY)
    changed = call("ls-files", "-z", "--modified", "--others", "--exclude-standard", cwd=REPOSITORY)
    for name in filter(None, changed.split("\0")):
        source, copy = REPOSITORY / name, target / name
        if source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)
        elif not source.exists():
            copy.unlink(missing_ok=True)
    call("add", "--all", cwd=target)
    identity = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
    call(*identity, "commit", "-q", "--allow-empty", "-m", "as it is here", cwd=target)
    return target


def call(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(("git", *arguments), cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr}"
    return done.stdout


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


def state_of(checkout: Path) -> State:
    """The state of a checkout, read with git and hashlib."""
    git_dir = checkout / ".git"
    files = [
        path
        for path in checkout.rglob("*")
        if git_dir not in path.parents and path != git_dir and "__pycache__" not in path.parts
    ]
    return State(
        files=tuple(sorted((str(path.relative_to(checkout)), fingerprint(path)) for path in files)),
        status=call("status", "--porcelain", "--ignored", cwd=checkout),
        index=call("ls-files", "--stage", cwd=checkout),
        config=(git_dir / "config").read_text(),
        modules=tuple(sorted(str(path) for path in (git_dir / "modules").rglob("*"))),
        leftovers=tuple(sorted(path.name for path in git_dir.glob("integrate*"))),
    )


def fingerprint(path: Path) -> str:
    if path.is_symlink() or path.is_dir():
        return "link" if path.is_symlink() else "folder"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{path.stat().st_mode:o} {digest}"
