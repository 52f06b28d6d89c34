"""Small real projects, built by the interpreter that runs the tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.registry import build_steps

PYPROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "alpha-ops"
version = "1.2"
[tool.setuptools]
packages = ["alpha"]
[tool.setuptools.package-data]
alpha = ["**/*"]
"""
FILES = {"pyproject.toml": PYPROJECT, "alpha/__init__.py": "value = 1\n"}


def write_tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return folder


@pytest.fixture
def make_request(tmp_path: Path) -> Callable[..., build_steps.BuildRequest]:
    """A request to build a project that holds ``files``; keyword arguments change single fields."""

    def make(files: dict[str, str] | None = None, **changes: Any) -> build_steps.BuildRequest:
        source = tmp_path / "source"
        source.mkdir()
        fields: dict[str, Any] = {
            "library": "alpha",
            "source": str(write_tree(source, FILES if files is None else files)),
            "work": str(tmp_path / "work"),
            "out": str(tmp_path / "out"),
            "artifacts": (("alpha", "alpha"),),
        }
        return build_steps.BuildRequest(**{**fields, **changes})

    return make
