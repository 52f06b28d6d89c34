"""Fixtures: the private modules of the package without its import, and installed packages to try."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SOURCES = Path(__file__).resolve().parents[3] / "packages/paddlefleet_ops/src/paddlefleet_ops"
STAND_IN = Path(__file__).resolve().parent / "stand_in"
# Without byte code each start of Paddle compiles all of it again.
UNSET = ("PADDLEFLEET_OPS_ON_ERROR", "PYTHONDONTWRITEBYTECODE")
BARE_PACKAGE = "paddlefleet_ops_bare"


@pytest.fixture(scope="session")
def part() -> Iterator[Callable[[str], ModuleType]]:
    """Import one private module, as ``part("_causes")``, without running the package's ``__init__``."""
    package = ModuleType(BARE_PACKAGE)
    package.__path__ = [str(SOURCES)]
    sys.modules[BARE_PACKAGE] = package
    yield lambda name: importlib.import_module(f"{BARE_PACKAGE}.{name}")
    for name in list(sys.modules):
        if name.partition(".")[0] == BARE_PACKAGE:
            del sys.modules[name]


def library_entry(name: str, **changes: Any) -> dict[str, Any]:
    """A library as the manifest lists it; a condition can be given as ``cuda``, ``python``, …"""
    conditions = {"cuda": "", "python": "", "capability": "", "cpu_path": False}
    requires = {key: changes.pop(key, value) for key, value in conditions.items()}
    module = changes.pop("module", name.replace("-", "_"))
    entry = {
        "name": name,
        "module": module,
        "modules": [module],
        "availability": module,
        "kind": "python_dsl",
        "requires": requires,
        "compat_scope": [module],
        "preload": [],
        "public_names": [],
        "hint": f"use Paddle's own operator instead of {name}",
        "depends_on": [],
        "run_requires": [],
        "source": {
            "kind": "submodule",
            "origin": f"https://example.invalid/{name}.git",
            "revision": "0123456789abcdef0123456789abcdef01234567",
            "tree": "sha256:00",
            "pinned": True,
        },
    }
    return {**entry, **changes}


def manifest_values(
    libraries: list[dict[str, Any]], left_out: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    return {
        "schema": 1,
        "version": "0.1.0.dev20261202+cu130",
        "cell": {"id": "cu130-cp312", "cuda": "13.0", "python": "3.12", "capabilities": ["9.0"]},
        "toolchain": {"compiler": "nvcc"},
        "publishable": False,
        "not_publishable_because": ["it was made by a test"],
        "libraries": libraries,
        "left_out": left_out or [],
    }


class Site:
    """A site-packages folder that holds the package as a wheel would install it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder / "paddlefleet_ops"
        self.package.mkdir(parents=True)
        for source in SOURCES.glob("*.py"):
            shutil.copy(source, self.package)
        self.libraries: list[dict[str, Any]] = []
        self.left_out: list[dict[str, Any]] = []
        self.writes_manifest = True

    def add(self, name: str, files: Mapping[str, str] | None = None, **changes: Any) -> None:
        """A library of the wheel; ``files`` are contents by path below the package's folder."""
        entry = library_entry(name, **changes)
        self.libraries.append(entry)
        for path, content in (files or {}).items():
            self.write(f"paddlefleet_ops/{path}", content)

    def leave_out(self, name: str, *reasons: str) -> None:
        entry = {"name": name, "module": name, "availability": name, "hint": "build it"}
        self.left_out.append({**entry, "reasons": list(reasons)})

    def write(self, path: str, content: str) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(textwrap.dedent(content), "utf-8")

    def manifest(self) -> dict[str, Any]:
        return manifest_values(self.libraries, self.left_out)

    def write_manifest(self) -> None:
        (self.package / "_manifest.json").write_text(json.dumps(self.manifest()), "utf-8")

    def python(
        self,
        *arguments: str,
        stand_in: bool = True,
        path: tuple[Path, ...] = (),
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with this folder on its path, and the stand-in for Paddle unless told not to."""
        if self.writes_manifest:
            self.write_manifest()
        places = [*path, *([STAND_IN] if stand_in else []), self.folder]
        environment = {
            **{key: value for key, value in os.environ.items() if key not in UNSET},
            "PYTHONPATH": os.pathsep.join(map(str, places)),
            **({"PYTHONDONTWRITEBYTECODE": "1"} if stand_in else {}),
            **variables,
        }
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def result(self, code: str, **options: Any) -> Any:
        """What ``code`` leaves in the variable ``result``, by way of JSON; it has to exit with 0."""
        text = textwrap.dedent(code) + "\nimport json as _json\nprint(_json.dumps(result))\n"
        done = self.python("-c", text, **options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """An installed package without any library yet."""
    return Site(tmp_path / "site")


@pytest.fixture(scope="session")
def manifest_of(part: Callable[[str], ModuleType]) -> Callable[..., Any]:
    """A typed manifest of the entries given."""

    def build(*libraries: dict[str, Any], left_out: list[dict[str, Any]] | None = None) -> Any:
        return part("_manifest").parse_manifest(
            json.dumps(manifest_values(list(libraries), left_out))
        )

    return build


@pytest.fixture(scope="session")
def entry() -> Callable[..., dict[str, Any]]:
    """:func:`library_entry`, for tests that cannot import this file."""
    return library_entry
