"""The engine's seam against a real daemon: what runs, what it leaves, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ci import proc
from ci.errors import ConfigError, InfrastructureError, ToolchainError
from ci.executors.container import ContainerExecutor, owner_label
from ci.executors.engine import find_engine
from ci.executors.model import LABEL, ContainerSpec, Engine, Mount
from ci.proc import Command

from .daemon import Daemon

MARK = "farm.tests.engine"
USER = 12345, 23456
MIB = 2**20


def environ_of(host: str) -> dict[str, str]:
    return {**os.environ, "DOCKER_HOST": host}


def ask(host: str, *arguments: str) -> str:
    done = subprocess.run(
        ("docker", "--host", host, *arguments), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def ours(host: str) -> list[str]:
    return ask(host, "ps", "--all", "--quiet", "--filter", f"label={MARK}").split()


def wait_for(check: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)


@pytest.fixture
def engine(docker_host: str) -> Engine:
    return find_engine("docker", environ_of(docker_host))


@pytest.fixture
def spec(docker_host: str, tiny_image: str) -> Iterator[ContainerSpec]:
    """A container without network. No container of a test is left, nor one of its volumes."""
    before = ask(docker_host, "volume", "ls", "--quiet")
    yield ContainerSpec(tiny_image, network="none", labels={MARK: "1"})
    left = ours(docker_host)
    for identifier in left:
        ask(docker_host, "rm", "--force", "--volumes", identifier)
    assert left == []
    assert ask(docker_host, "volume", "ls", "--quiet") == before


def shell(script: str, **fields: object) -> Command:
    return Command(("sh", "-c", script), label="the step", **{"env": {}, **fields})  # type: ignore[arg-type]


def test_the_engine_says_what_it_is(engine: Engine, docker_host: str) -> None:
    info = json.loads(ask(docker_host, "info", "--format", "{{json .}}"))
    facts = engine.facts
    assert (facts.name, facts.server_version) == ("docker", info["ServerVersion"])
    assert (facts.cpus, facts.memory) == (os.cpu_count(), info["MemTotal"])
    assert facts.architecture == os.uname().machine
    assert facts.data_root == Path(info["DockerRootDir"])
    assert facts.data_root.is_dir()


def test_an_image_is_as_the_engine_has_it(
    engine: Engine, docker_host: str, tiny_image: str, import_tiny: Callable[..., str]
) -> None:
    import_tiny(docker_host, "farm-tests/labels:1", {LABEL + "cuda": "13.0"})
    try:
        image = engine.image("farm-tests/labels:1")
    finally:
        ask(docker_host, "rmi", "farm-tests/labels:1")
    assert image is not None
    assert (image.label("cuda"), image.architecture) == ("13.0", os.uname().machine)
    same = engine.image(tiny_image)
    assert same is not None
    assert same.id == ask(docker_host, "image", "inspect", "--format", "{{.Id}}", tiny_image)
    assert engine.image(same.id) == replace(same, ref=same.id)
    assert engine.image("farm-tests/no-such:1") is None


def test_what_is_written_belongs_to_the_user_of_the_specification(
    engine: Engine, spec: ContainerSpec, tmp_path: Path
) -> None:
    work = tmp_path / "work, with a comma"
    work.mkdir()
    os.chown(work, *USER)
    mounted = replace(
        spec, user=f"{USER[0]}:{USER[1]}", mounts=(Mount(work, work, read_only=False),)
    )
    script = 'id -u; id -g; mkdir a; echo "$GREETING" > a/b; echo error >&2; exit 3'
    log = tmp_path / "logs" / "step.log"
    executor = ContainerExecutor(engine, mounted, "why not")
    done = executor.run(shell(script, cwd=work, env={"GREETING": "grüß\nGott"}), log)
    assert done.returncode == 3, done.output
    assert done.output.splitlines()[-3:] == [*map(str, USER), "error"]
    assert log.read_text("utf-8") == done.output
    assert (work / "a" / "b").read_text("utf-8") == "grüß\nGott\n"
    for path in (work / "a", work / "a" / "b"):
        assert (path.stat().st_uid, path.stat().st_gid) == USER


def test_a_read_only_mount_is_read_only(
    engine: Engine, spec: ContainerSpec, tmp_path: Path
) -> None:
    mounted = replace(spec, mounts=(Mount(tmp_path, tmp_path),))
    done = engine.run(mounted, shell("touch x", cwd=tmp_path), None)
    assert not done.ok
    assert "Read-only file system" in done.output
    assert not (tmp_path / "x").exists()


def test_limits_reach_the_container(engine: Engine, spec: ContainerSpec) -> None:
    limited = replace(spec, memory=64 * MIB, cpus=0.5, shm_size=8 * MIB)
    script = (
        "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null;"
        "cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu.max 2>/dev/null;"
        "stat -f -c '%b %S' /dev/shm"
    )
    memory, quota, shared = engine.run(limited, shell(script), None).output.splitlines()
    assert int(memory) == 64 * MIB
    assert quota.split()[0] == "50000"
    blocks, size = map(int, shared.split())
    assert blocks * size == 8 * MIB


def test_values_are_in_no_command_line_and_others_of_the_host_stay_outside(
    engine: Engine, docker_host: str, spec: ContainerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN_OF_THE_HOST", "outside-value")
    seen: list[bytes] = []
    inspected: list[str] = []

    def watch() -> None:
        wait_for(lambda: ours(docker_host))
        (identifier,) = ours(docker_host)
        wait_for(
            lambda: ask(docker_host, "inspect", "-f", "{{.State.Running}}", identifier) == "true"
        )
        inspected.append(ask(docker_host, "inspect", identifier))
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it ended in between
                seen.append(path.read_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    command = Command(
        ("sh", "-c", "env; sleep 3"), env={"PASSED": "inside-value", "HOME": "/tmp"}, label="x"
    )
    done = engine.run(spec, command, None)
    thread.join()
    assert "PASSED=inside-value" in done.output
    assert "HOME=/tmp" in done.output
    assert "outside-value" not in done.output
    assert "A_TOKEN_OF_THE_HOST" not in inspected[0]
    assert "inside-value" in inspected[0], (
        "what is passed on purpose can be seen by who may inspect"
    )
    assert any(b"start\0--attach" in line for line in seen)
    assert not any(b"inside-value" in line for line in seen)


def test_the_entry_point_of_the_image_is_put_aside(
    engine: Engine, docker_host: str, spec: ContainerSpec, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(
        f'FROM {spec.image}\nENTRYPOINT ["false"]\nVOLUME /left\nCMD ["false"]\n'
    )
    done = subprocess.run(
        ("docker", "--host", docker_host, "build", "--quiet", "--tag", "farm-tests/entry:1", str(tmp_path)),
        env={**os.environ, "DOCKER_BUILDKIT": "0"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    try:
        ran = engine.run(
            replace(spec, image="farm-tests/entry:1"), shell("touch /left/x; echo made"), None
        )
    finally:
        ask(docker_host, "rmi", "farm-tests/entry:1")
    assert (ran.returncode, ran.output) == (0, "made\n")


def test_a_container_killed_for_memory_is_named(engine: Engine, spec: ContainerSpec) -> None:
    small = replace(spec, memory=32 * MIB)
    with pytest.raises(InfrastructureError, match="the step was killed for memory") as caught:
        engine.run(small, shell("head -c 200m /dev/zero | tail"), None)
    assert "32 MiB" in caught.value.message
    assert caught.value.exit_code == 4
    assert engine.run(small, shell("head -c 200m /dev/zero | wc -c"), None).output == "209715200\n"


@pytest.mark.parametrize("program", ["no-such-program", "/bin", "/tmp/none"])
def test_a_program_that_is_not_in_the_image_is_a_missing_tool(
    engine: Engine, spec: ContainerSpec, program: str
) -> None:
    with pytest.raises(ToolchainError, match=f"cannot start {program}") as caught:
        engine.run(spec, Command((program,), env={}, label="the step"), None)
    assert "the step" in caught.value.message


def test_status_127_of_a_script_is_its_own(engine: Engine, spec: ContainerSpec) -> None:
    assert engine.run(spec, shell("no-such-program"), None).returncode == 127


def test_what_the_engine_cannot_give_is_refused(engine: Engine, spec: ContainerSpec) -> None:
    for wrong in (
        replace(spec, cpus=10_000.0),
        replace(spec, memory=MIB),
        replace(spec, network="none-such"),
    ):
        with pytest.raises(ConfigError, match="the step"):
            engine.run(wrong, shell("true"), None)
    with pytest.raises(ToolchainError, match="the step"):
        engine.run(replace(spec, image="farm-tests/no-such:1"), shell("true"), None)


def test_a_timeout_ends_with_sigterm_and_leaves_nothing(
    engine: Engine, spec: ContainerSpec, tmp_path: Path
) -> None:
    mounted = replace(spec, mounts=(Mount(tmp_path, tmp_path, read_only=False),))
    script = "trap 'echo told > told; exit 0' TERM; echo here; while :; do sleep 0.1; done"
    started = time.monotonic()
    done = engine.run(mounted, shell(script, cwd=tmp_path, timeout=2.0), tmp_path / "log")
    assert done.timed_out
    assert not done.ok
    assert "here" in done.output
    assert (tmp_path / "told").read_text() == "told\n"
    assert time.monotonic() - started < 10


def test_a_program_that_ignores_sigterm_is_killed(
    engine: Engine, spec: ContainerSpec, docker_host: str
) -> None:
    script = "trap '' TERM; while :; do sleep 0.1; done"
    started = time.monotonic()
    assert engine.run(spec, shell(script, timeout=1.0), None).timed_out
    assert time.monotonic() - started < 1 + 3 * proc.GRACE_SECONDS
    assert ours(docker_host) == []


CHILD = """
import signal, sys
from pathlib import Path
from ci.executors.container import ContainerExecutor
from ci.executors.engine import find_engine
from ci.executors.model import ContainerSpec
from ci.proc import Command
import os
host, image, mark, log = sys.argv[1:]
engine = find_engine("docker", {**os.environ, "DOCKER_HOST": host})
spec = ContainerSpec(image, network="none", labels={mark: "1"})
try:
    ContainerExecutor(engine, spec, "test").run(Command(("sleep", "600"), env={}), Path(log))
except KeyboardInterrupt:
    sys.exit(130)
"""


def farm(docker_host: str, spec: ContainerSpec, log: Path) -> subprocess.Popen[bytes]:
    """A process that runs a long command in a container, once that runs."""
    argv = (sys.executable, "-c", CHILD, docker_host, spec.image, MARK, str(log))
    child = subprocess.Popen(argv, cwd=Path(__file__).resolve().parents[2])
    running = ("ps", "--quiet", "--filter", f"label={MARK}", "--filter", "status=running")
    wait_for(lambda: ask(docker_host, *running))
    return child


def test_an_interrupt_ends_the_container(
    docker_host: str, spec: ContainerSpec, tmp_path: Path
) -> None:
    child = farm(docker_host, spec, tmp_path / "log")
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130
    assert ours(docker_host) == []


def test_an_interrupt_of_all_threads_ends_their_containers(
    engine: Engine, docker_host: str, spec: ContainerSpec
) -> None:
    got: list[proc.Completed] = []
    threads = [
        threading.Thread(target=lambda: got.append(engine.run(spec, shell("sleep 600"), None)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    running = ("ps", "--quiet", "--filter", f"label={MARK}", "--filter", "status=running")
    wait_for(lambda: len(ask(docker_host, *running).split()) == 2)
    proc.end_all()
    for thread in threads:
        thread.join(60)
    assert len(got) == 2
    assert not any(done.ok for done in got)
    assert ours(docker_host) == []


def test_sweep_takes_what_a_killed_farm_left_and_nothing_else(
    engine: Engine, docker_host: str, spec: ContainerSpec, tmp_path: Path
) -> None:
    child = farm(docker_host, spec, tmp_path / "log")
    (left,) = ours(docker_host)
    others = {
        f"farm-tests-{number}": owner
        for number, owner in enumerate(
            (owner_label(), f"not-{socket.gethostname()}:{child.pid}:1", "odd")
        )
    }
    for name, owner in others.items():
        labels = ("--label", MARK, "--label", f"{LABEL}owner={owner}")
        ask(docker_host, "create", "--name", name, *labels, "--network", "none", spec.image, "true")
    unlabelled = ask(
        docker_host, "create", "--label", MARK, "--network", "none", spec.image, "true"
    )
    try:
        assert engine.sweep() == (), "everybody lives, or is not ours to judge"
        child.kill()
        child.wait()
        (name,) = engine.sweep()
        assert name.startswith("paddlefleet-farm-")
        assert left not in ours(docker_host)
        assert len(ours(docker_host)) == len(others) + 1
        assert engine.sweep() == ()
    finally:
        ask(docker_host, "rm", "--force", unlabelled, *others)


def test_a_container_that_somebody_removes_has_vanished(
    engine: Engine, docker_host: str, spec: ContainerSpec
) -> None:
    def remove() -> None:
        wait_for(lambda: ask(docker_host, "ps", "--quiet", "--filter", f"label={MARK}"))
        ask(docker_host, "rm", "--force", *ours(docker_host))

    thread = threading.Thread(target=remove)
    thread.start()
    with pytest.raises(InfrastructureError, match="the step vanished"):
        engine.run(spec, shell("sleep 600"), None)
    thread.join()


def test_an_engine_that_is_killed_in_between_is_infrastructure_and_the_next_run_is_well(
    start_daemon: Callable[..., Daemon], import_tiny: Callable[..., str], tmp_path: Path
) -> None:
    daemon = start_daemon()
    image = import_tiny(daemon.url)
    engine = find_engine("docker", environ_of(daemon.url))
    spec = ContainerSpec(image, network="none", labels={MARK: "1"})

    def kill() -> None:
        wait_for(lambda: daemon.docker("ps", "--quiet"))
        time.sleep(0.5)
        daemon.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(InfrastructureError, match="docker went away while the step ran") as caught:
        engine.run(spec, shell("echo here; sleep 600"), tmp_path / "log")
    thread.join()
    assert caught.value.exit_code == 4
    assert caught.value.next_step
    with pytest.raises(InfrastructureError, match="no engine answers"):
        find_engine("docker", environ_of(daemon.url))
    daemon.restart()
    again = find_engine("docker", environ_of(daemon.url))
    assert again.run(spec, shell("echo well"), None).output == "well\n"


def test_a_daemon_with_limits_that_cannot_be_set_still_runs_containers(
    start_daemon: Callable[..., Daemon], import_tiny: Callable[..., str]
) -> None:
    """Docker's own unit sets the limit to infinity, which a machine may refuse; the daemon passes it on."""
    most = int(Path("/proc/sys/fs/nr_open").read_text()) + 1
    daemon = start_daemon(options=(f"--default-ulimit=nofile={most}:{most}",))
    spec = ContainerSpec(import_tiny(daemon.url), network="none")
    engine = find_engine("docker", environ_of(daemon.url))
    assert engine.run(spec, shell("ulimit -n"), None).output == "4096\n"
    assert daemon.docker("ps", "--all", "--quiet") == ""
