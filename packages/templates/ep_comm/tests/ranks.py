"""Start a script as N ranks on this machine, wait with a deadline, and leave no process behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

# Below the ports that systems hand out by themselves (Linux: from 32768, IANA: from 49152), so that
# an outgoing connection can't take a port between our look at it and the ranks' use of it.
_PORTS = range(20000, 32000)


@dataclass(frozen=True)
class RankResult:
    """How one rank ended: its exit status (negative: the signal) and what it printed."""

    rank: int
    status: int
    output: str
    timed_out: bool


def free_ports(count: int) -> list[int]:
    """Return different ports of the loopback device on which nothing listens."""
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
            candidate = stack.enter_context(socket.socket())
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise RuntimeError(f"no {count} free ports from {_PORTS.start} to {_PORTS.stop}")


def environment(rank: int, size: int, ports: list[int]) -> dict[str, str]:
    """Return the environment of one rank, as torchrun and paddle.distributed.launch both set it."""
    addresses = [f"127.0.0.1:{port}" for port in ports]
    own = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(ports[0]),
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": str(size),
        "PADDLE_CURRENT_ENDPOINT": addresses[rank],
        "PADDLE_TRAINER_ENDPOINTS": ",".join(addresses),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    return {**os.environ, **own}


def run_ranks(command: list[str], size: int, folder: Path, timeout: float) -> list[RankResult]:
    """Run ``python *command`` as `size` ranks; print what they printed if one fails.

    When a rank fails or the time is over, the other ranks are killed: they wait for it. Every rank
    is in a session of its own, so that what it started ends with it.
    A rank whose port was taken by another program is tried again on other ports.
    """
    for _ in range(3):
        results = _run_once(command, size, folder, timeout)
        if not any("address already in use" in result.output.lower() for result in results):
            break
    return results


def run_launcher(command: list[str], folder: Path, timeout: float) -> RankResult:
    """Run ``python *command``, which starts the ranks itself; rank 0 of the result is the launcher."""
    return _run_all(command, [dict(os.environ, OMP_NUM_THREADS="1")], folder, timeout)[0]


def _run_once(command: list[str], size: int, folder: Path, timeout: float) -> list[RankResult]:
    ports = free_ports(size)
    environments = [environment(rank, size, ports) for rank in range(size)]
    return _run_all(command, environments, folder, timeout)


def _run_all(
    command: list[str], environments: list[dict[str, str]], folder: Path, timeout: float
) -> list[RankResult]:
    processes: list[subprocess.Popen[bytes]] = []
    logs = [folder / f"rank{rank}.log" for rank in range(len(environments))]
    timed_out: set[int] = set()
    try:
        for log, own in zip(logs, environments, strict=True):
            with log.open("wb") as stream:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-W", "ignore", *command],
                        env=own,
                        stdin=subprocess.DEVNULL,
                        stdout=stream,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        timed_out = _wait(processes, time.monotonic() + timeout)
    finally:
        for process in processes:
            _kill_session(process)
    return [
        RankResult(rank, process.returncode, log.read_text(errors="replace"), rank in timed_out)
        for rank, (process, log) in enumerate(zip(processes, logs, strict=True))
    ]


def _wait(processes: list[subprocess.Popen[bytes]], deadline: float) -> set[int]:
    """Wait until all ended or one failed; return the ranks that ran at the deadline."""
    while True:
        states = [process.poll() for process in processes]
        if None not in states:
            return set()
        if any(state not in (None, 0) for state in states):
            # A moment for the others to say what they saw.
            time.sleep(1.0)
            return set()
        if time.monotonic() > deadline:
            return {rank for rank, state in enumerate(states) if state is None}
        time.sleep(0.02)


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a rank with everything in its session, and reap it.

    SIGTERM first: a launcher passes it on to ranks that it put into sessions of their own.
    """
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def explain(results: list[RankResult]) -> str:
    """Return one text with the end of each rank and the tail of its output."""
    lines = []
    for result in results:
        end = "timed out" if result.timed_out else f"exit status {result.status}"
        lines.append(f"--- rank {result.rank}: {end}\n{result.output[-3000:]}")
    return "\n".join(lines)
