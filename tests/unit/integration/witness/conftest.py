"""Libraries written for a test, watched by the real program with the real Paddle of this interpreter."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from ci.integration.witness import WitnessRequest, WitnessResult, run_witness

Watch = Callable[..., WitnessResult]

PACKAGE = "import torch\n\ndef double(x):\n    return torch.add(x, x)\n"
"""A good library: everything that it needs is imported with it."""


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    """Write files, and watch the library ``seeded`` among them; ``others`` is a second folder."""

    def run(
        files: Mapping[str, str],
        others: Mapping[str, str] | None = None,
        *,
        timeout: float = 120.0,
        **changed: Any,
    ) -> WitnessResult:
        write(tmp_path / "library", files)
        write(tmp_path / "others", others or {})
        request = WitnessRequest(
            paths=(tmp_path / "library", tmp_path / "others"),
            module="seeded",
            modules=("seeded",),
            scope=("seeded",),
            public_names=("double",),
            exercises={"double": "paddle.to_tensor([1.0, 2.0])"},
        )
        return run_witness(
            replace(request, **changed), Path(sys.executable), tmp_path / "work", timeout
        )

    return run
