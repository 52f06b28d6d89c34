from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.wheel import identity
from ci.wheel.identity import wheel_code_identity


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    wheel_code_identity.cache_clear()
    yield
    wheel_code_identity.cache_clear()


def test_it_is_the_same_in_another_process() -> None:
    code = "from ci.wheel.identity import wheel_code_identity as f; print(f())"
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == wheel_code_identity()
    assert len(wheel_code_identity()) == 64


@pytest.mark.parametrize("tool", identity.TOOLS)
def test_another_version_of_a_tool_changes_it(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, plain = wheel_code_identity(), identity._version
    monkeypatch.setattr(identity, "_version", lambda n: "999" if n == tool else plain(n))
    wheel_code_identity.cache_clear()
    assert wheel_code_identity() != before


def test_code_policy_and_the_elf_reader_are_in_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = [name for name, _ in identity._sources()]
    assert {"elf.py", "wheel/policy.toml", "wheel/repair.py", "wheel/child/analyze.py"} < set(names)
    copy = tmp_path / "ci"
    for name, content in identity._sources():
        path = copy / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    before = wheel_code_identity()
    monkeypatch.setattr(identity, "__file__", str(copy / "wheel" / "identity.py"))
    wheel_code_identity.cache_clear()
    assert wheel_code_identity() == before
    (copy / "wheel" / "policy.toml").write_bytes(b"")
    wheel_code_identity.cache_clear()
    assert wheel_code_identity() != before


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    code = (
        "import sys, ci.elf, ci.wheel.repair, ci.wheel.verify, ci.wheel.identity as i\n"
        "i.wheel_code_identity()\n"
        "heavy = {'auditwheel', 'elftools', 'twine', 'check_wheel_contents', 'setuptools'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
