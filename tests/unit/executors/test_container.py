from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ci.executors import container
from ci.executors.container import ContainerExecutor, owner_is_gone, owner_label
from ci.executors.model import ContainerSpec
from ci.proc import Command
from tests.unit.executors.fake_engine import FakeEngine

HOST = socket.gethostname()


def ticks(pid: int) -> str:
    """Field 22 of /proc/PID/stat by ps's reading of it: the start in ticks since boot."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2 :].split()[19]


def test_an_owner_is_host_process_and_start() -> None:
    assert owner_label() == f"{HOST}:{os.getpid()}:{ticks(os.getpid())}"


def test_the_start_is_when_the_kernel_says() -> None:
    """Boot time plus ticks is within a second of what ps calculates from the same clock."""
    started = int(owner_label().rpartition(":")[2]) / os.sysconf("SC_CLK_TCK")
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    done = subprocess.run(
        ("ps", "-o", "etimes=", "-p", str(os.getpid())), capture_output=True, text=True, check=True
    )
    assert uptime - started == pytest.approx(float(done.stdout), abs=2)


def test_this_process_is_not_gone() -> None:
    assert not owner_is_gone(owner_label())


def test_a_process_that_ended_is_gone() -> None:
    child = subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE)
    owner = f"{HOST}:{child.pid}:{ticks(child.pid)}"
    assert not owner_is_gone(owner)
    child.communicate(b"\n")
    assert owner_is_gone(owner)


def test_a_process_that_ended_and_was_not_waited_for_is_gone() -> None:
    child = subprocess.Popen((sys.executable, "-c", ""))
    owner = f"{HOST}:{child.pid}:{ticks(child.pid)}"
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert owner_is_gone(owner)
    child.wait()


def test_a_later_process_with_the_same_number_is_another() -> None:
    assert owner_is_gone(f"{HOST}:{os.getpid()}:{int(ticks(os.getpid())) - 1}")


@pytest.mark.parametrize(
    "owner",
    [f"not-{HOST}:{2**22 + 1}:1", "", "x", f"{HOST}", f"{HOST}:abc:1", f"{HOST}:1:", f"{HOST}:9:-1"],
)  # fmt: skip
def test_what_is_not_of_this_host_or_not_readable_is_left(owner: str) -> None:
    assert not owner_is_gone(owner)


def test_brackets_and_blanks_in_a_programs_name_do_not_shift_the_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "42").mkdir()
    fields = " ".join(str(number) for number in range(4, 53))
    (tmp_path / "42" / "stat").write_text(f"42 (a) b (c d) S {fields}\n")
    monkeypatch.setattr(container, "_PROC", tmp_path)
    assert not owner_is_gone(f"{HOST}:42:22")
    assert owner_is_gone(f"{HOST}:42:21")


def test_the_executor_hands_everything_to_its_engine(tmp_path: Path) -> None:
    engine = FakeEngine()
    spec = ContainerSpec("farm:1")
    executor = ContainerExecutor(engine, spec, "the image is there")
    assert (executor.name, executor.why) == ("container", "the image is there")
    command = Command(("true",), label="x")
    executor.run(command, tmp_path / "log")
    assert engine.ran == [(spec, command)]
