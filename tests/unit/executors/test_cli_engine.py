from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from ci import proc
from ci.errors import ConfigError, FarmError, InfrastructureError, ToolchainError
from ci.executors import cli_engine
from ci.executors.cli_engine import PULL_PAUSES, CliEngine
from ci.executors.container import ContainerExecutor, owner_label
from ci.executors.engine_facts import docker_facts
from ci.executors.model import LABEL, ContainerSpec, GpuRequest, Mount
from ci.proc import Command
from tests.unit.executors.fake_docker import DOCKER_INFO, NO_DAEMON, FakeDocker

SPEC = ContainerSpec("farm:1")
STEP = Command(("make", "all"), env={}, label="build alpha")
VANISHED = "Error response from daemon: No such container: x\n"


@pytest.fixture
def fake(tmp_path: Path) -> FakeDocker:
    return FakeDocker(tmp_path / "fake")


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def engine(fake: FakeDocker, pauses: list[float]) -> CliEngine:
    facts = docker_facts(
        fake.program, DOCKER_INFO, "28", local=True, buildx=False, environ=fake.environ
    )
    return CliEngine(facts, fake.environ, pauses.append)


def ending(fake: FakeDocker, output: str = "", status: int = 0, **state: object) -> FakeDocker:
    """A container that is created, prints ``output`` and ends."""
    fake.answer("^create", "0123\n").answer("^start", output, status)
    fake.state(**{"ExitCode": status, **state})
    return fake.answer("^stop", VANISHED, 1).answer("^rm", "0123\n")


# -- images ----------------------------------------------------------------------------------------


def test_an_image_is_read(engine: CliEngine, fake: FakeDocker) -> None:
    answer = {
        "Id": "sha256:ab", "Architecture": "arm64", "Size": 12345, "RepoDigests": ["x@sha256:cd"],
        "Config": {"Labels": {LABEL + "cuda": "13.0"}},
    }  # fmt: skip
    fake.inspected("^image inspect farm:1$", answer)
    image = engine.image("farm:1")
    assert image is not None
    assert (image.ref, image.id, image.architecture, image.size) == (
        "farm:1",
        "sha256:ab",
        "aarch64",
        12345,
    )
    assert (image.label("cuda"), image.digest) == ("13.0", "x@sha256:cd")


def test_an_image_of_podman_gets_the_same_kind_of_id(engine: CliEngine, fake: FakeDocker) -> None:
    fake.inspected(
        "^image",
        {
            "Id": "ab",
            "Architecture": "amd64",
            "Size": 1,
            "Labels": {"a": "b"},
            "RepoDigests": ["localhost/x@sha256:cd"],
        },
    )
    image = engine.image("x")
    assert image is not None
    assert (image.id, dict(image.labels), image.repo_digests) == ("sha256:ab", {"a": "b"}, ())


@pytest.mark.parametrize(
    "words", ["Error: No such image: x", "Error: x: image not known", "Error from daemon: no such image: x"]
)  # fmt: skip
def test_an_image_that_is_not_here_is_none(engine: CliEngine, fake: FakeDocker, words: str) -> None:
    fake.answer("^image", words, 1)
    assert engine.image("x") is None


def test_an_engine_that_is_down_has_not_no_image(engine: CliEngine, fake: FakeDocker) -> None:
    fake.answer("^image", NO_DAEMON, 1)
    with pytest.raises(InfrastructureError, match="cannot look at the image x"):
        engine.image("x")


THROTTLED = "Error response from daemon: toomanyrequests: You have reached your pull rate limit.\n"


@pytest.mark.parametrize(
    "words",
    [
        THROTTLED,
        "received unexpected HTTP status: 503 Service Unavailable",
        'Get "https://r/v2/": net/http: TLS handshake timeout',
        "read tcp 1.2.3.4:5->6.7.8.9:443: read: connection reset by peer",
        "Get https://r/v2/: EOF",
    ],
)
def test_what_may_pass_is_tried_again_after_growing_pauses(
    engine: CliEngine, fake: FakeDocker, pauses: list[float], words: str
) -> None:
    fake.answer("^pull", words, 1, times=2).answer("^pull --quiet x$", "x\n")
    fake.inspected("^image", {"Id": "sha256:ab", "Architecture": "amd64"})
    assert engine.pull("x").id == "sha256:ab"
    assert pauses == list(PULL_PAUSES[:2])
    assert pauses == sorted(pauses)
    assert pauses[0] > 0


def test_a_registry_that_keeps_throttling_is_given_up(
    engine: CliEngine, fake: FakeDocker, pauses: list[float]
) -> None:
    fake.answer("^pull", THROTTLED, 1)
    with pytest.raises(InfrastructureError, match=r"cannot pull x \(5 attempts\)") as caught:
        engine.pull("x")
    assert caught.value.exit_code == 4
    assert "docker login" in caught.value.next_step
    assert len(fake.said("pull")) == 5
    assert pauses == list(PULL_PAUSES)


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("pull access denied for x, repository does not exist or may require 'docker login': denied: "
         "requested access to the resource is denied", "wants a login"),
        ("manifest for x:1 not found: manifest unknown: manifest unknown", "no such image, tag"),
        ("no matching manifest for linux/amd64 in the manifest list entries", "other architectures"),
        ("write /var/lib/docker/tmp/GetImageBlob1: no space left on device", "disk"),
        ("dial tcp: lookup registry-1.docker.io on 10.0.0.1:53: no such host", "look up the registry"),
        ("words that nobody knows", "does not know"),
    ],
)  # fmt: skip
def test_what_will_not_pass_is_tried_once(
    engine: CliEngine, fake: FakeDocker, pauses: list[float], words: str, cause: str
) -> None:
    fake.answer("^pull", f"Error response from daemon: {words}\n", 1)
    with pytest.raises(InfrastructureError) as caught:
        engine.pull("x")
    assert cause in caught.value.cause
    assert "attempts" not in caught.value.message
    assert any(words[:30] in line for line in caught.value.details)
    assert (len(fake.said("pull")), pauses) == (1, [])


def test_an_image_that_was_pulled_and_is_gone_is_an_error(
    engine: CliEngine, fake: FakeDocker
) -> None:
    fake.answer("^pull", "x\n").answer("^image", "Error: No such image: x", 1)
    with pytest.raises(InfrastructureError, match="pulled and is not here"):
        engine.pull("x")


# -- a run -----------------------------------------------------------------------------------------


def test_a_command_runs_in_a_container_of_its_own(
    engine: CliEngine, fake: FakeDocker, tmp_path: Path
) -> None:
    ending(fake, "made\n", 3)
    done = ContainerExecutor(engine, SPEC, "asked for").run(STEP, tmp_path / "logs" / "a.log")
    assert (done.returncode, done.ok, done.timed_out) == (3, False, False)
    assert done.command is STEP
    assert done.output == "$ make all\nmade\n"
    assert (tmp_path / "logs" / "a.log").read_text() == done.output
    (create,), (start,), (remove,) = fake.said("create"), fake.said("start"), fake.said("rm")
    name = create.arguments[create.arguments.index("--name") + 1]
    assert start.arguments == ("start", "--attach", name)
    assert remove.arguments == ("rm", "--force", "--volumes", name)
    assert fake.calls[-1].arguments[0] == "rm"
    assert create.arguments[-3:] == ("farm:1", "make", "all")
    assert fake.said("stop") == []


def test_without_a_log_the_output_is_captured(engine: CliEngine, fake: FakeDocker) -> None:
    done = ending(fake, '{"a": 1}\n') and engine.run(SPEC, STEP, None)
    assert (done.output, done.log, done.ok) == ('{"a": 1}\n', None, True)


def test_the_status_is_the_containers_not_the_clients(engine: CliEngine, fake: FakeDocker) -> None:
    ending(fake, "", 0, ExitCode=9)
    assert engine.run(SPEC, STEP, None).returncode == 9


def test_two_runs_have_two_containers(engine: CliEngine, fake: FakeDocker) -> None:
    ending(fake)
    for _ in range(2):
        engine.run(SPEC, STEP, None)
    first, second = (call.arguments[2] for call in fake.said("create"))
    assert first != second


def test_every_container_says_whose_it_is(engine: CliEngine, fake: FakeDocker) -> None:
    ending(fake)
    engine.run(ContainerSpec("farm:1", labels={LABEL + "step": "x"}), STEP, None)
    said = fake.said("create")[0].said
    assert f"--label {LABEL}owner={owner_label()}" in said
    assert f"--label {LABEL}run=" in said
    assert f"--label {LABEL}step=x" in said


def test_values_of_variables_are_in_no_argument(engine: CliEngine, fake: FakeDocker) -> None:
    ending(fake)
    spec = ContainerSpec("farm:1", env={"INDEX": "below", "BOTH": "spec"})
    command = Command(("make",), env={"TOKEN": "s3cret-value", "BOTH": "command"})
    done = engine.run(spec, command, None)
    (create,) = fake.said("create")
    for name, value in {"TOKEN": "s3cret-value", "INDEX": "below", "BOTH": "command"}.items():
        position = create.arguments.index(name)
        assert create.arguments[position - 1] == "--env"
        assert create.env[name] == value
        assert value not in create.arguments
    assert "s3cret-value" not in " ".join(call.said for call in fake.calls)
    assert "s3cret-value" not in done.output
    others = [call for call in fake.calls if call.arguments[0] != "create"]
    assert others
    assert all("TOKEN" not in call.env for call in others)


def test_the_client_keeps_its_own_variables(engine: CliEngine, fake: FakeDocker) -> None:
    """With the container's HOME the client would read another configuration, or none."""
    ending(fake)
    engine.run(SPEC, Command(("make",), env={"HOME": "/cache/home", "PATH": "/opt/bin"}), None)
    (create,) = fake.said("create")
    assert (create.env["HOME"], create.env["PATH"]) == (
        fake.environ["HOME"],
        fake.environ["PATH"],
    )
    assert "--env HOME=/cache/home" in create.said
    assert "--env PATH=/opt/bin" in create.said


def test_a_command_without_environment_does_not_get_the_hosts(
    engine: CliEngine, fake: FakeDocker
) -> None:
    ending(fake)
    engine.run(SPEC, Command(("make",)), None)
    assert "--env" not in fake.said("create")[0].arguments


def test_a_folder_that_is_not_there_is_not_made_by_the_engine(
    engine: CliEngine, fake: FakeDocker, tmp_path: Path
) -> None:
    spec = ContainerSpec("farm:1", mounts=(Mount(tmp_path, tmp_path),))
    missing = tmp_path / "none" / "here"
    with pytest.raises(ToolchainError, match="build alpha") as caught:
        engine.run(spec, Command(("make",), cwd=missing, label="build alpha"), None)
    assert str(missing) in caught.value.message
    assert fake.calls == []
    ending(fake)
    engine.run(spec, Command(("make",), cwd=Path("/opt/of/the/image")), None)
    assert "--workdir /opt/of/the/image" in fake.said("create")[0].said


# -- faults ----------------------------------------------------------------------------------------


def failing(engine: CliEngine, spec: ContainerSpec = SPEC) -> FarmError:
    with pytest.raises(FarmError) as caught:
        engine.run(spec, STEP, None)
    assert caught.value.cause
    assert caught.value.next_step
    return caught.value


def test_a_container_killed_for_memory_is_named_with_step_and_limit(
    engine: CliEngine, fake: FakeDocker
) -> None:
    ending(fake, "cc1plus\nKilled\n", 137, OOMKilled=True)
    error = failing(engine, ContainerSpec("farm:1", memory=512 * 2**20))
    assert isinstance(error, InfrastructureError)
    assert "build alpha" in error.message
    assert "512 MiB" in error.message
    assert "--jobs 1" in error.next_step
    assert "--memory" in error.next_step
    assert "Killed" in error.details
    assert len(fake.said("rm")) == 1


def test_a_command_that_copes_with_a_killed_child_is_well(
    engine: CliEngine, fake: FakeDocker
) -> None:
    ending(fake, "", 0, OOMKilled=True)
    assert engine.run(SPEC, STEP, None).ok


def test_sigkill_from_nobody_is_a_sign_of_a_limit_on_memory(
    engine: CliEngine, fake: FakeDocker
) -> None:
    """An engine may miss that the kernel did it."""
    ending(fake, "Killed\n", 137)
    assert "for memory" in failing(engine, ContainerSpec("farm:1", memory=2**25)).message


def test_status_137_alone_is_the_programs_own(engine: CliEngine, fake: FakeDocker) -> None:
    ending(fake, "", 137)
    assert engine.run(SPEC, STEP, None).returncode == 137


def test_an_engine_that_dies_in_between_is_infrastructure(
    engine: CliEngine, fake: FakeDocker
) -> None:
    fake.answer("^create", "01\n").answer(
        "^start", "half\nerror waiting for container: unexpected EOF\n", 125
    )
    fake.answer(".", NO_DAEMON, 1)  # fmt: skip
    error = failing(engine)
    assert isinstance(error, InfrastructureError)
    assert "docker went away while build alpha ran" in error.message
    assert "systemctl status docker" in error.next_step
    assert len(fake.said("rm")) == 1, "one that is down is not asked again and again"


def test_an_engine_that_came_back_does_not_pass_its_own_kill_for_the_programs(
    engine: CliEngine, fake: FakeDocker
) -> None:
    ending(fake, "half\nerror waiting for container: unexpected EOF\n", 125, ExitCode=137)
    assert "went away" in failing(engine).message


def test_a_program_that_prints_such_words_is_not_mistaken(
    engine: CliEngine, fake: FakeDocker
) -> None:
    ending(fake, "curl: connection reset by peer\n", 56)
    assert engine.run(SPEC, STEP, None).returncode == 56


def test_a_connection_that_broke_while_the_container_runs_on_ends_it(
    engine: CliEngine, fake: FakeDocker
) -> None:
    fake.answer("^create", "1\n").answer(
        "^start", "error waiting for container: unexpected EOF\n", 1
    )
    fake.state(Running=True)
    fake.answer("^stop", "1\n").answer("^rm", "1\n")
    assert "went away" in failing(engine).message
    assert fake.said("stop")
    assert fake.calls[-1].arguments[0] == "rm"


def test_a_container_that_vanished_is_infrastructure(engine: CliEngine, fake: FakeDocker) -> None:
    fake.answer("^create", "1\n").answer("^start", "", 137).answer(".", VANISHED, 1)
    error = failing(engine)
    assert isinstance(error, InfrastructureError)
    assert "vanished" in error.message
    assert "docker events" in error.next_step


def test_a_container_that_somebody_is_removing_did_not_end_by_itself(
    engine: CliEngine, fake: FakeDocker
) -> None:
    ending(fake, "", 137, Status="removing")
    assert "vanished" in failing(engine).message


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available", ConfigError, "--cpus"),
        ("Minimum memory limit allowed is 6MB", ConfigError, "--memory"),
        ("network nosuch not found", ConfigError, "--network"),
        ("No such image: farm:1", ToolchainError, "never built"),
        ("invalid mount config for type \"bind\": bind source path does not exist: /x", InfrastructureError,
         "does not see a folder"),
        ("mkdir /var/lib/docker/x: no space left on device", InfrastructureError, "disk"),
        ("failed to create endpoint a on network bridge: could not find bridge docker0", InfrastructureError,
         "network"),
    ],
)  # fmt: skip
def test_refusals_of_the_engine_are_told_apart(
    engine: CliEngine, fake: FakeDocker, said: str, kind: type[FarmError], words: str
) -> None:
    fake.answer("^create", f"Error response from daemon: {said}\n", 1)
    fake.answer("^(rm|stop)", VANISHED, 1)
    error = failing(engine)
    assert type(error) is kind
    assert words in error.cause
    assert "build alpha" in error.message
    assert fake.said("start") == []


@pytest.mark.parametrize(
    ("output", "status", "state"),
    [
        ("[FATAL tini (7)] exec make failed: No such file or directory\n", 127, {}),
        ("[FATAL tini (7)] exec make failed: Permission denied\n", 126, {}),
        ("ERROR (catatonit:2): failed to exec pid1: No such file or directory\n", 1, {}),
        ("Error response from daemon: x\n", 1,
         {"StartedAt": "0001-01-01T00:00:00Z", "ExitCode": 127, "Status": "created",
          "Error": 'OCI runtime create failed: exec: "make": executable file not found in $PATH: unknown'}),
    ],
)  # fmt: skip
def test_a_program_that_the_image_does_not_hold_is_a_missing_tool(
    engine: CliEngine, fake: FakeDocker, output: str, status: int, state: dict[str, object]
) -> None:
    ending(fake, output, status, **state)
    error = failing(engine)
    assert type(error) is ToolchainError
    assert "cannot start make" in error.message


def test_status_127_of_the_program_itself_is_its_own(engine: CliEngine, fake: FakeDocker) -> None:
    ending(fake, "sh: 1: nvcc: not found\n", 127)
    assert engine.run(SPEC, STEP, None).returncode == 127


RLIMIT = (
    "error setting rlimits for ready process: error setting rlimit type 7: operation not permitted"
)


def test_a_limit_on_open_files_that_cannot_be_set_is_lowered(
    engine: CliEngine, fake: FakeDocker
) -> None:
    fake.answer("^create", "1\n").answer(
        "^start", f"Error response from daemon: {RLIMIT}\n", 1, times=1
    )
    fake.state(times=1, StartedAt="0001-01-01T00:00:00Z", Error=RLIMIT)
    ending(fake, "made\n")  # fmt: skip
    assert engine.run(SPEC, STEP, None).output == "made\n"
    first, second = fake.said("create")
    assert "--ulimit" not in first.arguments
    assert "--ulimit nofile=4096:4096" in second.said
    assert len(fake.said("rm")) == 2
    engine.run(SPEC, STEP, None)
    assert len(fake.said("create")) == 3, "what was learned is kept"
    assert "--ulimit nofile=4096:4096" in fake.said("create")[2].said


def test_a_limit_that_cannot_be_lowered_either_is_an_error(
    engine: CliEngine, fake: FakeDocker
) -> None:
    fake.answer("^create", f"{RLIMIT}\n", 1).answer("^(rm|stop)", VANISHED, 1)
    error = failing(engine)
    assert isinstance(error, InfrastructureError)
    assert "open files" in error.cause
    assert len(fake.said("create")) == 2


def test_a_gpu_that_the_engine_cannot_give_is_told_by_the_gpus_own_words(
    engine: CliEngine, fake: FakeDocker
) -> None:
    said = 'could not select device driver "" with capabilities: [[gpu]]'
    fake.answer("^create", "1\n").answer("^start", f"Error response from daemon: {said}\n", 1)
    fake.state(StartedAt="0001-01-01T00:00:00Z", Error=said)
    fake.answer("^(rm|stop)", "1\n")
    error = failing(engine, ContainerSpec("farm:1", gpus=GpuRequest(("0",))))
    assert isinstance(error, InfrastructureError)
    assert "nvidia-ctk runtime configure" in error.next_step
    assert "--gpus device=0" in fake.said("create")[0].said


# -- the end ---------------------------------------------------------------------------------------


def test_a_timeout_stops_and_removes(engine: CliEngine, fake: FakeDocker) -> None:
    fake.answer("^create", "1\n").answer("^start", "slow\n", seconds=60)
    fake.answer("^(stop|rm)", "1\n")
    done = engine.run(SPEC, Command(("make",), env={}, timeout=0.5), None)
    assert done.timed_out
    assert done.returncode != 0
    assert done.output == "slow\n"
    assert [call.arguments[0] for call in fake.calls] == ["create", "start", "stop", "rm"]
    assert fake.said("stop")[0].arguments[1:3] == ("-t", "10")


@pytest.mark.parametrize(("said", "status"), [("context canceled\n", 1), ("", 0)])
def test_a_clean_up_that_was_ended_itself_is_done_again(
    engine: CliEngine, fake: FakeDocker, pauses: list[float], said: str, status: int
) -> None:
    fake.answer("^rm", said, status, times=3)
    ending(fake)
    assert engine.run(SPEC, STEP, None).ok
    assert len(fake.said("rm")) == 4
    assert len(pauses) == 3


def test_a_question_that_was_ended_itself_is_asked_again(
    engine: CliEngine, fake: FakeDocker, pauses: list[float]
) -> None:
    fake.answer("^container", "", 0, times=2)
    ending(fake, "", 4)
    assert engine.run(SPEC, STEP, None).returncode == 4
    assert len(pauses) == 2


def test_a_silent_removal_is_believed_when_the_container_is_gone(
    engine: CliEngine, fake: FakeDocker, pauses: list[float]
) -> None:
    """``podman rm --force`` says nothing of a container that is not there."""
    fake.state(times=1).answer("^container inspect paddle", VANISHED, 1).answer("^rm", "")
    ending(fake)
    assert engine.run(SPEC, STEP, None).ok
    assert (len(fake.said("rm")), pauses) == (1, [])


def test_an_interrupt_of_all_children_returns_and_removes(
    engine: CliEngine, fake: FakeDocker
) -> None:
    """What the main thread does at Ctrl-C while others wait for their containers."""
    fake.answer("^create", "1\n").answer("^start", "", seconds=60)
    fake.state(Running=True).answer("^(stop|rm)", "1\n")
    got: list[proc.Completed] = []
    thread = threading.Thread(target=lambda: got.append(engine.run(SPEC, STEP, None)))
    thread.start()
    deadline = time.monotonic() + 20
    while not fake.said("start") and time.monotonic() < deadline:
        time.sleep(0.05)
    proc.end_all()
    thread.join(20)
    assert got[0].returncode == -15
    assert not got[0].ok
    assert [call.arguments[0] for call in fake.calls][-2:] == ["stop", "rm"]


# -- on a terminal, and by hand --------------------------------------------------------------------


def test_an_attached_run_is_removed_and_gives_the_status(
    engine: CliEngine, fake: FakeDocker
) -> None:
    fake.answer("^run", "", 5).answer("^rm", VANISHED, 1)
    assert engine.run_attached(SPEC, Command(("bash",), env={"A": "value"})) == 5
    (call,) = fake.said("run")
    assert call.said.startswith("run --rm --interactive")
    assert call.arguments[-2:] == ("farm:1", "bash")
    assert call.env["A"] == "value"
    assert "value" not in call.said
    assert fake.said("rm")


def test_the_command_to_reproduce_is_complete_and_without_values(engine: CliEngine) -> None:
    spec = ContainerSpec("farm:1", mounts=(Mount(Path("/a b"), Path("/a b")),), user="1:2")
    shown = engine.shown(spec, Command(("sh", "-c", "a b"), cwd=Path("/a b"), env={"T": "s3cret"}))
    assert shown.startswith("docker run --rm ")
    assert "--mount 'type=bind,source=/a b,target=/a b,readonly'" in shown
    assert "--user 1:2" in shown
    assert "--workdir '/a b'" in shown
    assert shown.endswith("--env T farm:1 sh -c 'a b'")
    assert "s3cret" not in shown


# -- sweep -----------------------------------------------------------------------------------------


def test_sweep_removes_what_belongs_to_the_dead_of_this_host(
    engine: CliEngine, fake: FakeDocker
) -> None:
    host = socket.gethostname()
    owners = {
        "aa": owner_label(),
        "bb": f"{host}:{2**22 + 1}:77",
        "cc": f"elsewhere:{2**22 + 1}:77",
        "dd": f"{host}:{os.getpid()}:1",
        "ee": "nonsense",
    }
    fake.answer("^ps", "\n".join(owners) + "\n")
    for identifier, owner in owners.items():
        labels = {"Labels": {LABEL + "owner": owner}}
        fake.inspected(f"inspect.*{identifier}$", {"Name": f"/name-{identifier}", "Config": labels})
    fake.answer("^rm", "x\n")
    assert engine.sweep() == ("name-bb", "name-dd")
    assert [call.arguments[-1] for call in fake.said("rm")] == ["bb", "dd"]
    assert f"label={LABEL}owner" in fake.said("ps")[0].said


def test_sweep_of_an_engine_that_is_down_is_an_error(engine: CliEngine, fake: FakeDocker) -> None:
    fake.answer("^ps", NO_DAEMON, 1)
    with pytest.raises(InfrastructureError, match="cannot list"):
        engine.sweep()


def test_sweep_passes_over_what_another_sweep_removed(engine: CliEngine, fake: FakeDocker) -> None:
    fake.answer("^ps", "aa\n").answer("^container", VANISHED, 1)
    assert engine.sweep() == ()


def test_states_and_answers_of_an_engine_may_lack_fields() -> None:
    state = cli_engine.container_state(json.loads("{}"))
    assert (state.running, state.started, state.returncode) == (False, False, 0)
    assert cli_engine.image_facts("x", {"Id": "sha256:a", "Config": None}).labels == {}
