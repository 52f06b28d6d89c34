"""What the end-to-end tests share: the farm as a program, a cache, and the wheel of the templates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Once

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ran:
    """What came of a run of the farm. ``document`` is what ``--json`` printed."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.stdout)
        return document

    @property
    def cell(self) -> dict[str, Any]:
        (cell,) = self.document["cells"]
        return dict(cell)


@dataclass(frozen=True)
class Farm:
    """``python -m ci`` of a checkout, with a cache of its own."""

    checkout: Path
    cache: Path

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> Ran:
        cached = arguments[0] in ("wheel", "toolchain", "import")
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "ci",
                *arguments,
                *(("--cache-dir", str(self.cache)) if cached else ()),
            ],
            cwd=self.checkout,
            env=dict(os.environ) | {"COLUMNS": "200"} | dict(env or {}),
            capture_output=True,
            text=True,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The farm's cache of this machine where there is one, so that a compiler is fetched once."""
    named = os.environ.get("PADDLEFLEET_FARM_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "paddlefleet-farm"


@pytest.fixture(scope="session")
def farm(cache_dir: Path) -> Farm:
    return Farm(REPOSITORY, cache_dir)


@pytest.fixture(scope="session")
def templates_run(farm: Farm, once: Once, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run of the main path: the templates for CUDA 13.0 and the newest Python of this host."""

    def build() -> dict[str, Any]:
        out = tmp_path_factory.mktemp("dist")
        ran = farm.run(
            "wheel", "--cuda", "13.0", "--set", "templates", "--json", "--out-dir", str(out)
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return asdict(ran)

    return Ran(**once("templates-run", build))


@pytest.fixture(scope="session")
def templates_wheel(templates_run: Ran) -> Path:
    return Path(templates_run.cell["wheel"])


@pytest.fixture(scope="session")
def templates_wheel_for(
    farm: Farm, once: Once, templates_run: Ran, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """``templates_wheel_for("3.10")``: the wheel of the templates for CUDA 13.0 and that Python."""

    def wheel(python: str) -> Path:
        def build() -> str:
            if templates_run.cell["python"] == python:
                return str(templates_run.cell["wheel"])
            ran = farm.run(
                "wheel", "--cuda", "13.0", "--set", "templates", "--python", python, "--json",
                "--no-import", "--out-dir", str(tmp_path_factory.mktemp("dist")),
            )  # fmt: skip
            assert ran.returncode == 0, ran.stdout + ran.stderr
            return str(ran.cell["wheel"])

        return Path(once(f"templates-wheel-{python}", build))

    return wheel


def call(argv: Sequence[str], cwd: Path | None = None, **env: str) -> str:
    """Run another tool and return what it printed; its failure is the test's."""
    done = subprocess.run(
        list(argv),
        cwd=cwd,
        env=dict(os.environ) | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout
