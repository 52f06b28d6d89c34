from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.wheel.wheels import Gcc


@pytest.fixture
def gcc(tmp_path: Path) -> Gcc:
    folder = tmp_path / "gcc"
    folder.mkdir()
    return Gcc(folder)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOURCE_DATE_EPOCH", "LD_LIBRARY_PATH", "AUDITWHEEL_LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
