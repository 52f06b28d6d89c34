"""Shared fixtures: one group of processes per framework and size, which runs all scenarios once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import frameworks
import numpy as np
import pytest
import ranks

RANK_MAIN = Path(__file__).with_name("rank_main.py")
TIMEOUT = 240.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--frameworks",
        default="",
        help="frameworks that must be there, such as torch,paddle; by default: those installed",
    )


@pytest.fixture(scope="session", params=frameworks.NAMES)
def framework(request: pytest.FixtureRequest) -> str:
    """The name of a framework that is installed, or asked for."""
    asked = [name for name in request.config.getoption("--frameworks").split(",") if name]
    if asked and request.param not in asked:
        pytest.skip(f"not asked for by --frameworks {','.join(asked)}")
    why_not = frameworks.missing(request.param)
    if why_not and request.param in asked:
        pytest.fail(why_not)
    if why_not:
        pytest.skip(why_not)
    return str(request.param)


@dataclass(frozen=True)
class World:
    """What the ranks of one run recorded."""

    framework: str
    size: int
    folder: Path
    notes: list[dict[str, Any]]

    def arrays(self, scenario: str, rank: int) -> dict[str, np.ndarray]:
        with np.load(self.folder / f"{scenario}.rank{rank}.npz") as archive:
            return dict(archive)


@pytest.fixture(scope="session", params=[1, 2, 3, 4])
def world(
    request: pytest.FixtureRequest, framework: str, tmp_path_factory: pytest.TempPathFactory
) -> World:
    """Run `rank_main.py` on so many ranks; a rank that fails or hangs fails the tests."""
    size = request.param
    folder = tmp_path_factory.mktemp(f"{framework}-{size}-ranks")
    results = ranks.run_ranks([str(RANK_MAIN), framework, str(folder)], size, folder, TIMEOUT)
    if any(result.status for result in results):
        pytest.fail(f"{framework}, {size} ranks:\n{ranks.explain(results)}", pytrace=False)
    notes = [
        json.loads((folder / f"notes.rank{rank}.json").read_text(encoding="utf-8"))
        for rank in range(size)
    ]
    return World(framework, size, folder, notes)
