"""One pool for real clients: never more jobs than tokens, all tokens used, none lost."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ci.errors import ConfigError
from ci.graph.jobserver import MOST_TOKENS, TokenPool, makeflags
from ci.graph.shims import nvcc_flags, shim_scripts, write_shims

WAIT = 60.0
JOB = 0.05  # seconds that one job of a build takes
NVCC = shutil.which("nvcc")


def eventually(pool: TokenPool, free: int) -> bool:
    deadline = time.monotonic() + WAIT
    while pool.free != free and time.monotonic() < deadline:
        time.sleep(0.01)
    return pool.free == free


def environment(pool: TokenPool, shims: Path, **more: str) -> dict[str, str]:
    path = [str(shims), str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]
    return {"PATH": os.pathsep.join(path), "MAKEFLAGS": pool.makeflags, **more}


def recorded(job: str, record: Path) -> str:
    """A shell command that records its start and its end; appends of one line are atomic."""
    return f"echo + {job} >>{record}; sleep {JOB}; echo - {job} >>{record}"


def most_at_once(record: Path) -> int:
    now = most = 0
    for line in record.read_text().splitlines():
        now += 1 if line.startswith("+") else -1
        most = max(most, now)
    assert now == 0, "a job has no end"
    return most


def ninja_build(folder: Path, jobs: int, record: Path) -> Path:
    folder.mkdir()
    rules = "".join(
        f"rule r{n}\n  command = {recorded(f'n{n}', record)}\nbuild o{n}: r{n}\n"
        for n in range(jobs)
    )
    (folder / "build.ninja").write_text(rules)
    return folder


def make_build(folder: Path, jobs: int, record: Path) -> Path:
    folder.mkdir()
    names = " ".join(f"o{n}" for n in range(jobs))
    rules = "".join(f"o{n}:\n\t@{recorded(f'm{n}', record)}\n" for n in range(jobs))
    (folder / "Makefile").write_text(f"all: {names}\n{rules}below:\n\t@make -j7 all\n")
    return folder


def test_makeflags_are_what_gnu_make_writes() -> None:
    assert makeflags(Path("/run/pool"), 9) == " -j9 --jobserver-auth=fifo:/run/pool"


def test_tokens_are_taken_and_given_back(tmp_path: Path) -> None:
    with TokenPool.create(tmp_path, 4) as pool:
        assert stat.S_ISFIFO(pool.path.stat().st_mode)
        assert pool.path.stat().st_mode & 0o077 == 0
        assert (pool.acquire(3), pool.free, pool.held) == (3, 1, 3)
        assert (pool.acquire(3), pool.free, pool.held) == (1, 0, 4)
        pool.release(4)
        assert (pool.free, pool.held) == (4, 0)
        with pytest.raises(ValueError, match="1 tokens are given back, but 0"):
            pool.release(1)
    assert not pool.path.exists()
    pool.close()


def test_waiting_ends_when_a_token_comes(tmp_path: Path) -> None:
    with TokenPool.create(tmp_path, 1) as pool:
        pool.acquire(1)
        started = time.monotonic()
        assert pool.acquire(1, wait=0.2) == 0
        assert time.monotonic() - started >= 0.2
        timer = threading.Timer(0.2, lambda: pool.release(1))
        timer.start()
        assert pool.acquire(1, wait=WAIT) == 1
        timer.join()


def test_a_farm_inside_has_its_own_token_and_takes_more_from_the_one_outside(
    tmp_path: Path,
) -> None:
    with TokenPool.create(tmp_path, 3) as outside:
        assert outside.acquire(1) == 1  # for the container
        with TokenPool.attach(outside.path, tokens=3) as inside:
            assert (inside.free, inside.tokens) == (3, 3)
            assert inside.acquire(1) == 1
            assert outside.free == 2  # the own token comes first
            assert inside.acquire(5) == 2
            assert outside.free == 0
            inside.release(2)
            assert outside.free == 2
            assert inside.restore() == 0  # it does not know who else runs
        assert outside.path.exists()
        assert outside.free == 2
        outside.release(1)


def test_closing_gives_back_what_was_held(tmp_path: Path) -> None:
    with TokenPool.create(tmp_path, 3) as outside:
        inside = TokenPool.attach(outside.path)
        inside.acquire(3)
        inside.close()
        assert outside.free == 3


def test_a_pool_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no jobserver at"):
        TokenPool.attach(tmp_path / "gone")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="no jobserver at"):
        TokenPool.attach(tmp_path / "file")


@pytest.mark.parametrize("name", ["a b", "tab\there", "dollar$", "back\\slash", "quo'te"])
def test_a_folder_that_makeflags_cannot_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be named in MAKEFLAGS"):
        TokenPool.create(tmp_path / name, 2)


@pytest.mark.parametrize("tokens", [0, -1, MOST_TOKENS + 1])
def test_an_impossible_number_of_tokens_is_refused(tmp_path: Path, tokens: int) -> None:
    with pytest.raises(ConfigError, match="parallel jobs cannot be had"):
        TokenPool.create(tmp_path, tokens)


def test_the_largest_pool_fits(tmp_path: Path) -> None:
    with TokenPool.create(tmp_path, MOST_TOKENS) as pool:
        assert pool.acquire(MOST_TOKENS) == MOST_TOKENS
        pool.release(MOST_TOKENS)
        assert pool.free == MOST_TOKENS


def test_surplus_is_removed(tmp_path: Path) -> None:
    with TokenPool.create(tmp_path, 2) as pool:
        stranger = os.open(pool.path, os.O_WRONLY | os.O_NONBLOCK)
        os.write(stranger, b"++")
        os.close(stranger)
        assert pool.restore() == -2
        assert pool.free == 2
        pool.acquire(1)
        assert pool.restore() == 0  # not while a task runs
        assert pool.free == 1


def test_pools_of_killed_farms_are_removed_and_those_of_living_ones_not(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from ci.graph.jobserver import TokenPool\n"
        f"pool = TokenPool.create(Path({str(tmp_path)!r}), 2); print(pool.path, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        with TokenPool.create(tmp_path, 1):
            assert theirs.exists()
        other.send_signal(signal.SIGKILL)
    with TokenPool.create(tmp_path, 1) as pool:
        assert [path for path in tmp_path.iterdir() if path.is_fifo()] == [pool.path]


def test_shims_are_written_once_by_several_at_a_time(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: write_shims(tmp_path / "bin"), range(16)))
    written = {path.name: path.read_text() for path in (tmp_path / "bin").iterdir()}
    assert written == shim_scripts()
    before = {path: path.stat().st_ino for path in (tmp_path / "bin").iterdir()}
    (tmp_path / "bin" / "make").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "ninja").chmod(0o644)
    write_shims(tmp_path / "bin")
    assert {path.name: path.read_text() for path in (tmp_path / "bin").iterdir()} == written
    assert os.access(tmp_path / "bin" / "ninja", os.X_OK)
    assert (tmp_path / "bin" / "gmake").stat().st_ino == before[tmp_path / "bin" / "gmake"]


def fake(folder: Path, name: str, version: str) -> Path:
    """A program that says its version, its arguments one a line, and its MAKEFLAGS."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(
        f'#!/bin/sh\ncase ${{1-}} in --version) echo "{version}"; exit ;; esac\n'
        'for word; do echo "[$word]"; done\necho "${MAKEFLAGS-none}"\n'
    )
    (folder / name).chmod(0o755)
    return folder


def arguments(name: str, given: list[str], env: Mapping[str, str]) -> tuple[list[str], str, str]:
    program = Path(env["PATH"].split(os.pathsep)[0], name)
    done = subprocess.run([program, *given], env=env, capture_output=True, text=True, check=True)
    *words, flags = done.stdout.splitlines()
    return [word[1:-1] for word in words], flags, done.stderr


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (["-j", "8", "-v"], ["-v"]),
        (["-j8", "all"], ["all"]),
        (["-vj8", "all"], ["-v", "all"]),
        (["-C", "-j", "-j8", "a b", "*"], ["-C", "-j", "a b", "*"]),
        (["-v", "-t", "clean", "-j"], ["-v", "-t", "clean", "-j"]),
        (["-k", "0", "-l", "4", "-j"], ["-k", "0", "-l", "4"]),
        ([], []),
    ],
)
def test_ninja_loses_its_number_of_jobs_and_nothing_else(
    tmp_path: Path, given: list[str], left: list[str]
) -> None:
    shims, real = write_shims(tmp_path / "shims"), fake(tmp_path / "real", "ninja", "1.13.2.git")
    with TokenPool.create(tmp_path, 3) as pool:
        env = environment(pool, shims) | {"PATH": f"{shims}:{real}:/usr/bin:/bin"}
        assert arguments("ninja", given, env) == (left, pool.makeflags, "")
        none = {"PATH": env["PATH"]}
        assert arguments("ninja", given, none) == (given, "none", "")


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (["-j", "8", "-k"], ["-k"]),
        (["-j", "all"], ["all"]),
        (["--jobs=8", "all"], ["all"]),
        (["--jobs", "8", "all"], ["all"]),
        (["--jobs", "-s"], ["-s"]),
        (["-kj8", "-C", "-j8", "X=a b"], ["-k", "-C", "-j8", "X=a b"]),
        (["-sj", "all"], ["-s", "all"]),
        (["--", "-j8"], ["--", "-j8"]),
    ],
)
def test_make_loses_its_number_of_jobs_and_nothing_else(
    tmp_path: Path, given: list[str], left: list[str]
) -> None:
    shims, real = write_shims(tmp_path / "shims"), fake(tmp_path / "real", "make", "GNU Make 4.4.1")
    with TokenPool.create(tmp_path, 3) as pool:
        env = environment(pool, shims) | {"PATH": f"{shims}:{real}:/usr/bin:/bin"}
        assert arguments("make", given, env) == (left, pool.makeflags, "")
        fake(real, "make", "bmake 2023")
        assert arguments("make", given, env) == (given, pool.makeflags, "")


def test_an_old_ninja_runs_as_many_jobs_as_it_was_granted_and_says_so(tmp_path: Path) -> None:
    shims, real = write_shims(tmp_path / "shims"), fake(tmp_path / "real", "ninja", "1.12.1")
    with TokenPool.create(tmp_path, 3) as pool:
        env = environment(pool, shims, MAX_JOBS="2") | {"PATH": f"{shims}:{real}:/usr/bin:/bin"}
        words, _, said = arguments("ninja", ["-v", "-j8"], env)
    assert words == ["-j", "2", "-v"]
    assert "1.12.1" in said
    assert "runs 2 jobs" in said


def test_two_folders_of_shims_do_not_start_each_other(tmp_path: Path) -> None:
    one, two = write_shims(tmp_path / "one"), write_shims(tmp_path / "two")
    real = fake(tmp_path / "real", "ninja", "1.13.0")
    with TokenPool.create(tmp_path, 3) as pool:
        env = environment(pool, one) | {"PATH": f"{one}:{two}:{one}:{real}:/usr/bin:/bin"}
        assert arguments("ninja", ["-j8"], env)[0] == []


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    shims = write_shims(tmp_path / "shims")
    done = subprocess.run(
        [shims / "ninja"], env={"PATH": str(shims)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 127
    assert "there is no ninja on PATH" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [3, 6])
def test_ninja_and_make_share_one_pool(tmp_path: Path, tokens: int) -> None:
    record, shims = tmp_path / "record", write_shims(tmp_path / "shims")
    builds = [
        (ninja_build(tmp_path / "ninja", 40, record), ["ninja", "-j32"], 40),
        (make_build(tmp_path / "make", 40, record), ["make", "-j32"], 40),
        (make_build(tmp_path / "nested", 40, record), ["make", "-j", "9", "below"], 40),
    ]
    with TokenPool.create(tmp_path, tokens) as pool:
        env = environment(pool, shims)

        def run(build: tuple[Path, list[str], int]) -> None:
            folder, command, _ = build
            assert pool.acquire(1, wait=WAIT) == 1
            try:
                program = [str(shims / command[0]), *command[1:]]
                subprocess.run(program, cwd=folder, env=env, check=True, capture_output=True)
            finally:
                pool.release(1)

        with ThreadPoolExecutor(3) as threads:
            list(threads.map(run, builds))
        assert record.read_text().count("+") == sum(jobs for _, _, jobs in builds)
        assert most_at_once(record) == tokens  # all of them, and never one more
        assert pool.free == tokens
        assert pool.restore() == 0


@pytest.mark.slow
def test_without_the_shims_a_number_of_jobs_breaks_the_limit(tmp_path: Path) -> None:
    """What the shims are for: if this ever fails, they are not needed any more."""
    record, shims = tmp_path / "record", tmp_path / "no shims"
    folder = ninja_build(tmp_path / "ninja", 24, record)
    with TokenPool.create(tmp_path, 2) as pool:
        ninja = str(Path(sys.executable).with_name("ninja"))
        env = environment(pool, shims)
        subprocess.run([ninja, "-j8"], cwd=folder, env=env, check=True, capture_output=True)
    assert most_at_once(record) > 2


@pytest.mark.slow
def test_tokens_of_a_killed_client_are_put_back(tmp_path: Path) -> None:
    record, shims = tmp_path / "record", write_shims(tmp_path / "shims")
    folder = ninja_build(tmp_path / "ninja", 400, record)
    with TokenPool.create(tmp_path, 4) as pool:
        pool.acquire(1)
        with subprocess.Popen(
            [shims / "ninja"],
            cwd=folder,
            env=environment(pool, shims),
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        ) as client:
            assert eventually(pool, 0)
            os.killpg(client.pid, signal.SIGKILL)
        assert pool.free < 3
        pool.release(1)
        missing = pool.tokens - pool.free
        assert pool.restore() == missing > 0
        assert pool.free == 4


@pytest.mark.parametrize(
    ("version", "server", "threads", "flags"),
    [
        ((13, 0), Path("/p"), 4, ("--jobserver", "--threads=4")),
        ((13, 2), Path("/p"), 1, ("--jobserver",)),
        ((12, 9), Path("/p"), 4, ()),
        ((13, 0), None, 4, ()),
    ],
)
def test_nvcc_joins_since_cuda_13(
    version: tuple[int, int], server: Path | None, threads: int, flags: tuple[str, ...]
) -> None:
    assert nvcc_flags(version, server, threads) == flags


@pytest.mark.slow
@pytest.mark.skipif(NVCC is None, reason="there is no nvcc on this machine")
def test_threads_of_nvcc_take_tokens_and_leave_no_trace(tmp_path: Path) -> None:
    assert NVCC is not None
    (tmp_path / "k.cu").write_text(
        "template<int N> __global__ void k(float* p) { p[N] *= N; }\n"
        "template __global__ void k<1>(float*);\n"
    )
    targets = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in (80, 90, 100, 120)]

    def fatbin(name: str, pool: TokenPool | None) -> bytes:
        flags = nvcc_flags((13, 0), pool.path if pool else None, 4)
        env = {"PATH": os.environ["PATH"]} | ({"MAKEFLAGS": pool.makeflags} if pool else {})
        command = [NVCC or "", *flags, "-fatbin", "k.cu", "-o", name, *targets]
        done = subprocess.run(
            command, cwd=tmp_path, env=env, check=True, capture_output=True, text=True
        )
        assert "warning" not in done.stdout + done.stderr  # it found the jobserver
        return (tmp_path / name).read_bytes()

    with TokenPool.create(tmp_path, 4) as pool:
        pool.acquire(1)
        lowest, stop = [pool.free], threading.Event()

        def look() -> None:
            while not stop.wait(0.002):
                lowest.append(pool.free)

        looking = threading.Thread(target=look)
        looking.start()
        try:
            shared = fatbin("shared", pool)
        finally:
            stop.set()
            looking.join()
        assert min(lowest) < 3
        assert pool.free == 3
        pool.release(1)
    assert fatbin("alone", None) == shared
