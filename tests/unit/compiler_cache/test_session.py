"""Servers of sccache: one for each build, gone afterwards; and storages that are there, die, or only read."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from ci import proc
from ci.compiler_cache.model import CompilerCache, Compilers
from ci.compiler_cache.session import Session
from ci.compiler_cache.stats import of_sccache
from tests.unit.compiler_cache.bench import BARE, GXX, Bench, counted, session, usable

pytestmark = pytest.mark.timeout(120)
TEXT = {"a__cc": "int f(int x) { return x + 1; }\n"}
KEYS = {"AWS_ACCESS_KEY_ID": "the-key", "AWS_SECRET_ACCESS_KEY": "the-secret"}


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def once(made: Session, folder: Path, files: Mapping[str, str] = TEXT) -> tuple[int, int]:
    """Hits and misses of one compilation in a new folder."""
    bench = Bench(folder).write(**files)
    with bench.cached(made) as cached:
        through = cached.compile("a.cc")
    assert through == bench.compile("a.cc")
    return counted(cached.build.stats)


def servers(folder: Path) -> list[int]:
    """Processes of sccache whose socket is below ``folder``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                said = (entry / "environ").read_bytes()
            except OSError:
                continue
            # One that a client starts has its variables from there.
            if b"SCCACHE_SERVER_UDS=" + os.fsencode(folder) in said and b"_START_SERVER=" in said:
                found.append(int(entry.name))
    return found


def gone(folder: Path, seconds: float = 10) -> bool:
    limit = time.monotonic() + seconds
    while servers(folder) and time.monotonic() < limit:
        time.sleep(0.05)
    return not servers(folder)


# -- servers ---------------------------------------------------------------------------------------


def test_a_server_lives_as_long_as_its_build(tmp_path: Path) -> None:
    made, warned = session("sccache", tmp_path / "cache")
    bench = Bench(tmp_path / "build").write(**TEXT)
    with bench.cached(made):
        assert len(servers(tmp_path)) == 1
    assert servers(tmp_path) == []
    assert not list(bench.folder.glob("*.socket"))
    assert warned == []


def test_a_build_that_fails_ends_its_server(tmp_path: Path) -> None:
    made, _ = session("sccache", tmp_path / "cache")
    with pytest.raises(ZeroDivisionError), Bench(tmp_path / "build").cached(made):
        raise ZeroDivisionError
    assert servers(tmp_path) == []


def test_an_interrupt_ends_it(tmp_path: Path) -> None:
    """What the farm does at Ctrl-C, from the thread that hears it."""
    made, warned = session("sccache", tmp_path / "cache")
    with Bench(tmp_path / "build").write(**TEXT).cached(made) as cached:
        proc.end_all()
        assert gone(tmp_path)
        assert cached.compile("a.cc") == Bench(tmp_path / "build").compile("a.cc")
    assert "its server ended before the build" in warned[0]


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="util-linux has no setpriv here")
def test_a_killed_farm_leaves_no_server(tmp_path: Path) -> None:
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "from tests.unit.compiler_cache.bench import Bench, session\n"
        "made, _ = session('sccache', Path(sys.argv[2], 'cache'))\n"
        "with Bench(Path(sys.argv[2], 'build')).cached(made):\n"
        "    print('ready', flush=True); time.sleep(60)\n"
    )
    root = Path(__file__).resolve().parents[3]
    farm = subprocess.Popen(
        (sys.executable, "-c", program, str(root), str(tmp_path)), stdout=subprocess.PIPE, text=True
    )
    assert farm.stdout is not None
    assert farm.stdout.readline() == "ready\n"
    assert len(servers(tmp_path)) == 1
    farm.send_signal(signal.SIGKILL)
    farm.wait()
    farm.stdout.close()
    assert gone(tmp_path)


def test_a_server_that_dies_costs_only_the_cache(tmp_path: Path) -> None:
    made, warned = session("sccache", tmp_path / "cache")
    bench = Bench(tmp_path / "build").write(**TEXT)
    with bench.cached(made) as cached:
        (server,) = servers(tmp_path)
        os.kill(server, signal.SIGKILL)
        assert gone(tmp_path)
        through = cached.compile("a.cc")
    assert through == bench.compile("a.cc")
    assert len(warned) == 1
    assert "its server ended before the build" in warned[0]
    assert servers(tmp_path) == []


def test_a_client_without_a_server_leaves_none(tmp_path: Path) -> None:
    """Of a build that goes on when the farm was killed; its launchers may have looked a moment before."""
    made, _ = session("sccache", tmp_path / "cache")
    bench = Bench(tmp_path / "build").write(**TEXT)
    with bench.cached(made) as cached:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **cached.build.environment}
    argv = (str(usable("sccache").path), str(GXX), "-c", str(bench.source / "a.cc"))
    subprocess.run(argv, env=environment, cwd=tmp_path, capture_output=True, check=False)
    assert len(servers(tmp_path)) == 1
    assert gone(tmp_path)


def test_a_server_of_the_user_is_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "s"
    theirs = {"SCCACHE_SERVER_UDS": str(place), "SCCACHE_DIR": str(tmp_path / "theirs")}
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "SCCACHE_CONF": os.devnull,
        **theirs,
    }
    start = {"SCCACHE_START_SERVER": "1", "SCCACHE_NO_DAEMON": "1"}
    program = str(usable("sccache").path)
    server = subprocess.Popen((program,), env=environment | start)
    try:
        while not place.exists():
            time.sleep(0.01)
        made, _ = session("sccache", tmp_path / "cache", BARE | theirs | {"HOME": str(tmp_path)})
        assert once(made, tmp_path / "build") == (0, 1)
        assert server.poll() is None
        argv = (program, "--show-stats", "--stats-format", "json")
        told = subprocess.run(argv, env=environment, capture_output=True, check=True, text=True)
        assert of_sccache(told.stdout).requests == 0
    finally:
        server.kill()
        server.wait()


def test_the_users_configuration_is_not_read(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".config" / "sccache").mkdir(parents=True)
    (home / ".config" / "sccache" / "config").write_text(
        f'[cache.disk]\ndir = "{tmp_path / "wrong"}"\n', "utf-8"
    )
    made, _ = session("sccache", tmp_path / "cache", BARE | {"HOME": str(home)})
    assert once(made, tmp_path / "build") == (0, 1)
    assert not (tmp_path / "wrong").exists()
    assert list((tmp_path / "cache" / "sccache").rglob("*"))


def test_long_paths_have_their_socket_elsewhere(tmp_path: Path) -> None:
    made, warned = session("sccache", tmp_path / "cache")
    assert once(made, tmp_path / ("long" * 30)) == (0, 1)
    assert warned == []


def test_a_tool_that_does_not_start_is_a_warning(tmp_path: Path) -> None:
    broken = tmp_path / "sccache"
    broken.write_text("#!/bin/sh\necho 'cannot bind' >&2\nexit 2\n")
    broken.chmod(0o755)
    warned: list[str] = []
    cache = CompilerCache("sccache", broken, "0.16.0")
    made = Session(cache, tmp_path / "cache", environ=BARE, warn=warned.append)
    for name in ("one", "two"):
        bench = Bench(tmp_path / name).write(**TEXT)
        with bench.cached(made) as cached:
            assert cached.build.environment == {}
            assert cached.compile("a.cc") == bench.compile("a.cc")
    assert len(warned) == 1
    assert "cannot bind" in warned[0]


def test_what_the_server_uses_is_measured(tmp_path: Path) -> None:
    watched: list[int] = []

    def watch(pid: int) -> Callable[[], proc.Used]:
        watched.append(pid)
        return lambda: proc.Used(1.5, 7)

    made = Session(
        usable("sccache"), tmp_path / "cache", environ=BARE, warn=lambda _: None, watch=watch
    )
    with Bench(tmp_path / "build").write(**TEXT).cached(made) as cached:
        assert servers(tmp_path) == watched
    assert cached.build.used == proc.Used(1.5, 7)


def test_a_build_without_compilers_has_no_server(tmp_path: Path) -> None:
    made, _ = session("sccache", tmp_path / "cache")
    with made.build(tmp_path, Compilers(None, None, None, "", ()), ("/a",)) as build:
        assert servers(tmp_path) == []
        assert (build.environment, build.path) == ({}, ("/a",))


# -- storages --------------------------------------------------------------------------------------


@contextmanager
def redis(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    program = shutil.which("redis-server")
    assert program is not None, "redis-server is needed: apt-get install redis-server"
    folder.mkdir()
    argv = (program, "--port", str(port), "--save", "", "--dir", str(folder))
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as server:
        limit = time.monotonic() + 20
        while time.monotonic() < limit:
            with closing(socket.socket()) as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        try:
            yield server
        finally:
            server.kill()


@pytest.mark.parametrize("tool", ["sccache", "ccache"])
def test_redis_and_its_end(tool: str, tmp_path: Path) -> None:
    port = free_port()
    environ = BARE | {
        "SCCACHE_REDIS_ENDPOINT": f"redis://127.0.0.1:{port}",
        "CCACHE_REMOTE_STORAGE": f"redis://127.0.0.1:{port}",
        "CCACHE_REMOTE_ONLY": "1",
    }
    other = {"a__cc": "int g();\n"}
    with redis(tmp_path / "redis", port) as server:
        made, warned = session(tool, tmp_path / "here", environ)
        assert once(made, tmp_path / "one") == (0, 1)
        there, _ = session(tool, tmp_path / "another-machine", environ)
        assert once(there, tmp_path / "two") == (1, 0)
        assert warned == []
        bench = Bench(tmp_path / "three").write(**other)
        with bench.cached(made) as cached:
            server.kill()
            server.wait()
            through = cached.compile("a.cc")
        assert through == bench.compile("a.cc")
        assert cached.build.stats.hits == 0
    assert once(made, tmp_path / "four")[0] == 0
    assert warned


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A server that speaks S3, with a bucket; the variables that say where it is."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1")
    client.create_bucket(Bucket="objects")
    try:
        yield {
            **BARE,
            **KEYS,
            "SCCACHE_BUCKET": "objects",
            "SCCACHE_ENDPOINT": f"{host}:{port}",
            "SCCACHE_S3_USE_SSL": "false",
            "SCCACHE_REGION": "us-east-1",
        }
    finally:
        server.stop()


def test_s3_whose_credentials_no_compiler_sees(
    s3: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KEYS:
        monkeypatch.delenv(name)
    seen = tmp_path / "seen"
    spy = tmp_path / "g++"
    spy.write_text(f'#!/bin/sh\nenv >>"{seen}"\nexec "{GXX}" "$@"\n')
    spy.chmod(0o755)
    made, warned = session("sccache", tmp_path / "here", s3)
    bench = Bench(tmp_path / "one", cxx=spy).write(**TEXT)
    with bench.cached(made) as cached:
        through = cached.compile("a.cc")
        assert not set(cached.build.environment) & {*KEYS, "SCCACHE_BUCKET"}
    assert through == bench.compile("a.cc")
    assert counted(cached.build.stats) == (0, 1)
    told = seen.read_text()
    assert "SOURCE_DATE_EPOCH=315532800" in told
    assert "the-secret" not in told
    assert "SCCACHE_BUCKET" not in told
    there, _ = session("sccache", tmp_path / "another-machine", s3)
    bench = Bench(tmp_path / "two", cxx=spy).write(**TEXT)
    with bench.cached(there) as cached:
        cached.compile("a.cc")
    assert counted(cached.build.stats) == (1, 0)
    assert warned == []


def test_read_only_leaves_nothing_for_others(tmp_path: Path) -> None:
    for tool in ("sccache", "ccache"):
        kept = tmp_path / tool
        reads, _ = session(tool, kept, read_only=True)
        assert once(reads, tmp_path / f"{tool}-one") == (0, 1)
        writes, _ = session(tool, kept)
        assert once(writes, tmp_path / f"{tool}-two") == (0, 1)
        assert once(reads, tmp_path / f"{tool}-three") == (1, 0)


def test_a_broken_object_is_compiled_anew(tmp_path: Path) -> None:
    for tool in ("sccache", "ccache"):
        made, _ = session(tool, tmp_path / "cache")
        assert once(made, tmp_path / f"{tool}-one") == (0, 1)
        for path in (tmp_path / "cache" / tool).rglob("*"):
            if path.is_file() and path.stat().st_size > 200:
                path.write_bytes(path.read_bytes()[:100])
        assert once(made, tmp_path / f"{tool}-two")[0] == 0
