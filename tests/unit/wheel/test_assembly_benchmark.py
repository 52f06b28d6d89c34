"""The benchmark P5 runs to its end, compares equal things, and prints what it claims. No time is judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.assembly import same_content
from tests.unit.wheel.wheels import write_wheel

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_p5_measures_both_sides(tmp_path: Path) -> None:
    answer, scratch = tmp_path / "p5.json", tmp_path / "scratch"
    scratch.mkdir()
    command = (sys.executable, str(ROOT / "benchmarks" / "assembly.py"), "--size", "4")
    places = ("--json", str(answer), "--scratch", str(scratch), "--jobs", "2")
    done = subprocess.run((*command, *places), capture_output=True, text=True, check=False)
    assert "farm : baseline" in done.stdout, done.stdout + done.stderr
    found = json.loads(answer.read_text("utf-8"))
    ratio, memory = found["claims"]
    assert ratio["limit"] == 0.5
    assert ratio["value"] > 0
    assert 20 < memory["value"] < memory["limit"] == 300.0
    assert done.returncode == (0 if found["holds"] else 1)
    assert list(scratch.iterdir()) == []


def test_a_wheel_with_other_content_is_noticed(tmp_path: Path) -> None:
    one = write_wheel(tmp_path / "1", {"paddlefleet_ops/a.bin": b"one"})
    same = write_wheel(tmp_path / "2", {"paddlefleet_ops/a.bin": b"one"}, tag="cp312-none-any")
    other = write_wheel(tmp_path / "3", {"paddlefleet_ops/a.bin": b"two"})
    assert same_content(one, same)
    assert not same_content(one, other)
