from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from ci.errors import FindingError
from ci.wheel.record import read_record, write_record


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "paddlefleet_ops-0.1.0+cu130-cp312-none-any.whl"
    path.write_bytes(b"content of a wheel")
    return path


def test_the_record_names_the_wheel_by_hash_and_size(wheel: Path) -> None:
    path = write_record(wheel, {"cell": "cu130-cp312", "libraries": ["b", "a"]})
    assert path.name == f"{wheel.name}.record.json"
    data = json.loads(path.read_text("utf-8"))
    assert data["cell"] == "cu130-cp312"
    assert data["libraries"] == ["b", "a"]
    assert data["wheel"] == {
        "file": wheel.name,
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "size": 18,
    }
    assert read_record(wheel) == data


def test_equal_content_gives_equal_bytes(wheel: Path) -> None:
    first = write_record(wheel, {"a": 1, "b": 2}).read_bytes()
    assert write_record(wheel, {"b": 2, "a": 1}).read_bytes() == first


def test_a_failed_write_leaves_the_old_record_and_nothing_else(wheel: Path) -> None:
    path = write_record(wheel, {"a": 1})
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_record(wheel, {"a": object()})
    assert path.read_bytes() == before
    assert sorted(p.name for p in wheel.parent.iterdir()) == sorted([wheel.name, path.name])


def test_keys_of_the_record_cannot_be_set_from_outside(wheel: Path) -> None:
    with pytest.raises(ValueError, match="wheel"):
        write_record(wheel, {"wheel": {"sha256": "0"}})


def test_a_wheel_that_changed_after_it_was_recorded_is_refused(wheel: Path) -> None:
    write_record(wheel, {})
    wheel.write_bytes(b"content of a whee1")
    with pytest.raises(FindingError, match="not that of"):
        read_record(wheel)


@pytest.mark.parametrize("text", [None, "{"])
def test_a_missing_or_broken_record_is_refused(wheel: Path, text: str | None) -> None:
    if text is not None:
        wheel.with_name(f"{wheel.name}.record.json").write_text(text, "utf-8")
    with pytest.raises(FindingError, match="no readable build record"):
        read_record(wheel)
