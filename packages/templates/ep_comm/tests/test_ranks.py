"""The launcher of the tests: a rank that fails or hangs is a failure, and nothing survives it."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import ranks

# Each rank writes the number of a child process that would run for an hour, then plays its part.
_SCRIPT = """
import os, pathlib, signal, subprocess, sys, time
rank, folder, part = int(os.environ["RANK"]), pathlib.Path(sys.argv[1]), sys.argv[2]
child = subprocess.Popen(["sleep", "3600"])
(folder / f"child{rank}").write_text(str(child.pid))
if part == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("rank", rank, "started")
if part == "fail" and rank == 1:
    sys.exit(7)
if part == "good":
    child.kill()
    sys.exit(0)
time.sleep(3600)
"""


def start(folder: Path, part: str, timeout: float) -> tuple[list[ranks.RankResult], float]:
    script = folder / "part.py"
    script.write_text(_SCRIPT, encoding="utf-8")
    begin = time.monotonic()
    results = ranks.run_ranks([str(script), str(folder), part], 2, folder, timeout)
    return results, time.monotonic() - begin


def is_running(pid: int) -> bool:
    """A zombie (state Z) that its new parent has not yet reaped does not run."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def assert_nothing_survives(folder: Path) -> None:
    children = [int((folder / f"child{rank}").read_text()) for rank in range(2)]
    deadline = time.monotonic() + 10
    while any(map(is_running, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, children))


def test_good_ranks(tmp_path: Path) -> None:
    results, _ = start(tmp_path, "good", 60)
    assert [result.status for result in results] == [0, 0]
    assert [result.output.strip() for result in results] == ["rank 0 started", "rank 1 started"]


def test_a_failing_rank_ends_the_others(tmp_path: Path) -> None:
    results, _ = start(tmp_path, "fail", 60)
    assert [result.status for result in results] == [-15, 7]
    assert not any(result.timed_out for result in results)
    assert_nothing_survives(tmp_path)
    assert "rank 1: exit status 7" in ranks.explain(results)


def test_hung_ranks_end_at_the_deadline(tmp_path: Path) -> None:
    results, seconds = start(tmp_path, "hang", 3)
    assert [result.status for result in results] == [-15, -15]
    assert all(result.timed_out for result in results)
    assert seconds >= 3
    assert_nothing_survives(tmp_path)
    assert "timed out" in ranks.explain(results)


def test_a_rank_that_ignores_sigterm_ends_too(tmp_path: Path) -> None:
    results, seconds = start(tmp_path, "stubborn", 3)
    assert [result.status for result in results] == [-9, -9]
    assert seconds < 40
    assert_nothing_survives(tmp_path)


def test_ports_are_different_and_free() -> None:
    ports = ranks.free_ports(8)
    assert len(set(ports)) == 8
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


def test_every_rank_has_its_own_environment() -> None:
    found = [ranks.environment(rank, 2, [20001, 20002]) for rank in range(2)]
    assert [one["PADDLE_CURRENT_ENDPOINT"] for one in found] == [
        "127.0.0.1:20001",
        "127.0.0.1:20002",
    ]
    assert {one["MASTER_PORT"] for one in found} == {"20001"}
    assert all(one["PATH"] == os.environ["PATH"] for one in found)
