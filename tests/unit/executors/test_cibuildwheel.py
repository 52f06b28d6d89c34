"""The options that cibuildwheel is given, read back by cibuildwheel's own parser; what its output tells."""

from __future__ import annotations

import csv
import itertools
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.errors import ConfigError, ToolchainError
from ci.executors import cibuildwheel as driver
from ci.executors.cibuildwheel import (
    Outcome,
    Slot,
    Stage,
    WheelCell,
    cibuildwheel_command,
    read_progress,
    run_cibuildwheel,
    shown,
)
from ci.executors.model import LABEL, ContainerSpec, Mount

from .fake_engine import FACTS

needs_cibuildwheel = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="cibuildwheel needs Python 3.11 or newer"
)

ODD = {
    "BLANKS": "two  blanks\tand a tab",
    "QUOTES": """it's "quoted" and `ticked`""",
    "DOLLAR": "$HOME ${HOME} $(id) \\$x \\",
    "BRACES": "{wheel} #{wheel} {dest_dir} {package} {project} {} {{wheel}}",
    "SEMI": "; a; disable_host_mount: false; ;",
    "LINES": "one\ntwo\n",
    "EMPTY": "",
    "EQUAL": "a=b=c",
    "LETTERS": "größe 中文",
    "HASH": "# no comment",
}
"""Values that a shell, a list of options, or a format string would take apart."""


def cell(**changes: Any) -> WheelCell:
    labels = {LABEL + name: name for name in ("run", "owner", "cell", "step")}
    given = WheelCell(
        python="3.12",
        package=Path("/work place/package"),
        output=Path("/work place/wheels"),
        scratch=Path("/work place/scratch"),
        container=ContainerSpec("sha256:" + "a" * 64, labels=labels),
    )
    container = {name: changes.pop(name) for name in ("env", "mounts", "labels") if name in changes}
    return replace(given, container=replace(given.container, **container), **changes)


def environment(given: WheelCell, environ: dict[str, str] | None = None) -> dict[str, str]:
    return dict(cibuildwheel_command(given, FACTS, environ or {}).env or {})


def parsed(given: WheelCell, tmp_path: Path, environ: dict[str, str] | None = None) -> Any:
    """The build options that cibuildwheel computes from the command and its environment."""
    from cibuildwheel.options import CommandLineArguments, compute_options

    command = cibuildwheel_command(given, FACTS, environ or {})
    arguments = CommandLineArguments.defaults()
    arguments.only = command.argv[command.argv.index("--only") + 1]
    arguments.config_file = command.argv[command.argv.index("--config-file") + 1]
    arguments.package_dir = tmp_path
    options = compute_options("linux", arguments, dict(command.env or {}))
    return options.build_options(arguments.only)


def in_shell(template: str, **slots: str) -> list[str]:
    """The arguments that a command of cibuildwheel gets, by cibuildwheel's filling in and a real shell."""
    from cibuildwheel.util.helpers import prepare_command

    show = shlex.join(
        [sys.executable, "-c", "import sys; print(*map(ascii, sys.argv[1:]), sep='\\n')"]
    )
    # The first word of the template is the program: a function that shows its arguments instead.
    script = f'program() {{ {show} "$@"; }}\n{prepare_command(template, **slots)}'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    return [eval(line) for line in done.stdout.splitlines()]


@needs_cibuildwheel
@pytest.mark.parametrize("name", ["before_build", "repair", "test"])
def test_a_commands_arguments_arrive_as_they_were_given(name: str, tmp_path: Path) -> None:
    given = cell(**{name: ("program", *ODD.values())})
    options = parsed(given, tmp_path)
    template = {
        "before_build": options.before_build,
        "repair": options.repair_command,
        "test": options.test_command,
    }[name]

    slots = {"wheel": "/w.whl", "dest_dir": "/dest", "package": "/project", "project": "/project"}
    if name == "before_build":
        slots = {"package": "/project", "project": "/project"}

    assert in_shell(template, **slots) == list(ODD.values())


@needs_cibuildwheel
def test_slots_are_filled(tmp_path: Path) -> None:
    given = cell(repair=("program", Slot.WHEEL, "--to", Slot.DEST_DIR, Slot.PACKAGE, Slot.PROJECT))

    found = in_shell(
        parsed(given, tmp_path).repair_command,
        wheel="/a b/w.whl", dest_dir="/dest", package="/p", project="/q",
    )  # fmt: skip

    assert found == ["/a b/w.whl", "--to", "/dest", "/p", "/q"]


@needs_cibuildwheel
def test_a_command_reads_nothing(tmp_path: Path) -> None:
    """The container's shell takes its commands from standard input; a command must not eat them."""
    template = parsed(cell(repair=("cat",)), tmp_path).repair_command
    done = subprocess.run(
        ["sh", "-c", template], input="next command", capture_output=True, text=True
    )

    assert (done.returncode, done.stdout) == (0, "")


@needs_cibuildwheel
def test_the_test_command_has_the_path_of_the_others(tmp_path: Path) -> None:
    template = parsed(
        cell(test=("sh", "-c", 'echo "$PATH|${VIRTUAL_ENV-}|${UV_CONFIG_FILE-}"')), tmp_path
    )
    env = {
        "PATH": f"/venv/bin:{os.environ['PATH']}",
        "VIRTUAL_ENV": "/venv",
        "UV_CONFIG_FILE": "/x",
    }
    done = subprocess.run(
        ["/bin/sh", "-c", template.test_command],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == f"{os.environ['PATH']}||"


@needs_cibuildwheel
def test_variables_go_by_name_and_keep_their_values(tmp_path: Path) -> None:
    given = cell(env=ODD)
    args = parsed(given, tmp_path).container_engine.create_args
    env = environment(given)

    assert {name: env[name] for name in ODD} == ODD
    assert set(ODD) <= {args[i + 1] for i, arg in enumerate(args) if arg == "--env"}
    assert not any(value in arg for arg in args for value in ODD.values() if value)


OUTSIDE = {
    "PATH": "/inside", "HOME": "/inside home", "LD_LIBRARY_PATH": "/in;side", "SSL_CERT_FILE": "/in/ca.pem",
    "CIBW_BUILD": "cp39-*", "GITHUB_ACTIONS": "true", "DOCKER_HOST": "tcp://inside", "LANG": "C", "CI": "1",
    "https_proxy": "http://inside:1", "TMPDIR": "/in tmp",
}  # fmt: skip


@needs_cibuildwheel
def test_variables_that_would_steer_the_outside_are_the_containers_only(tmp_path: Path) -> None:
    outside = {"PATH": "/usr/bin", "HOME": "/home/me", "DOCKER_HOST": "unix:///run/d.sock"}
    given = cell(env=OUTSIDE)
    args = parsed(given, tmp_path, outside).container_engine.create_args
    env = environment(given, outside)

    told = {arg.removeprefix("--env=") for arg in args} | set(args)
    assert {f"{name}={value}" for name, value in OUTSIDE.items()} <= told
    assert not {name for name in OUTSIDE if env.get(name) == OUTSIDE[name]}
    assert env["HOME"] == "/home/me"
    assert env["DOCKER_HOST"] == "unix:///run/d.sock"


@needs_cibuildwheel
def test_mounts_with_odd_paths(tmp_path: Path) -> None:
    paths = [Path("/a b/c;d"), Path("/comma,here"), Path("/quote\"s'"), Path("/größe{wheel}")]
    given = cell(mounts=tuple(Mount(path, path, read_only=path == paths[0]) for path in paths))
    args = parsed(given, tmp_path).container_engine.create_args

    values = [args[i + 1] for i, arg in enumerate(args) if arg == "--mount"]
    rows = [next(csv.reader([value])) for value in values]  # as docker's opts/mount.go reads it
    assert [row[1:3] for row in rows] == [[f"source={path}", f"target={path}"] for path in paths]
    assert ["readonly" in row for row in rows] == [True, False, False, False]


@needs_cibuildwheel
def test_engine_image_and_limits(tmp_path: Path) -> None:
    given = cell(verbosity=1)
    limited = replace(given.container, cpus=1.5, memory=2**30, network="none", user="1000:1000")
    options = parsed(replace(given, container=limited), tmp_path)
    args = options.container_engine.create_args
    pairs = set(itertools.pairwise(args))

    assert options.container_engine.name == "docker"
    assert options.container_engine.disable_host_mount is True
    assert options.manylinux_images["x86_64"] == given.container.image
    assert options.build_frontend.name == "build[uv]"
    assert list(options.build_frontend.args) == ["--no-isolation"]
    assert options.build_verbosity == 1
    assert options.audit_command == []
    assert (
        options.dependency_constraints.get_for_python_version(version="3.12", tmp_dir=tmp_path)
        is None
    )
    assert {("--user", "0:0"), ("--network", "none"), ("--cpus", "1.5")} <= pairs
    assert ("--memory", f"{2**30}b") in pairs
    assert {f"{LABEL}{name}={name}" for name in ("run", "owner", "cell", "step")} <= set(args)
    assert "--init" in args
    assert "--name" not in args


@needs_cibuildwheel
def test_podman_is_an_engine_too(tmp_path: Path) -> None:
    from cibuildwheel.oci_container import OCIContainerEngineConfig

    facts = replace(FACTS, name="podman", program=Path("/usr/bin/podman"), architecture="aarch64")
    command = cibuildwheel_command(cell(), facts, {})
    config = OCIContainerEngineConfig.from_config_string(
        (command.env or {})["CIBW_CONTAINER_ENGINE"]
    )

    assert config.name == "podman"
    assert "--http-proxy=false" in config.create_args
    assert "cp312-manylinux_aarch64" in command.argv
    assert "CIBW_MANYLINUX_AARCH64_IMAGE" in (command.env or {})


@needs_cibuildwheel
@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_identifiers_are_cibuildwheels(python: str, architecture: str) -> None:
    from cibuildwheel.util.resources import read_python_configs

    known = {config["identifier"] for config in read_python_configs("linux")}
    assert cell(python=python).identifier(architecture) in known


@needs_cibuildwheel
def test_nothing_of_the_user_gets_in(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\nversion = "1"\n'
        '[tool.cibuildwheel]\nbefore-all = "false"\ntest-requires = ["nosuch"]\nenvironment = {A = "b"}\n'
    )
    user = {
        "CIBW_BUILD": "cp39-*", "CIBW_BEFORE_ALL": "false", "CIBW_REPAIR_WHEEL_COMMAND_LINUX": "false",
        "CIBW_ENVIRONMENT": "X=y", "CIBW_TEST_SKIP": "*", "GITHUB_ACTIONS": "true", "AWS_SECRET_KEY": "s",
        "PYTHONPATH": "/mine", "PIP_INDEX_URL": "https://me:secret@index", "LD_PRELOAD": "/mine.so",
    }  # fmt: skip
    options = parsed(cell(), tmp_path, user)

    assert options.before_all == ""
    assert options.test_requires == []
    assert options.environment.assignments == []
    assert options.repair_command == ""
    assert options.test_selector("cp312-manylinux_x86_64")
    assert not user.keys() & environment(cell(), user).keys()


def test_the_chosen_program_is_the_first_on_path() -> None:
    facts = replace(FACTS, program=Path("/opt/engine/docker"))
    command = cibuildwheel_command(cell(), facts, {"PATH": "/usr/local/bin:/usr/bin"})

    assert (command.env or {})["PATH"] == "/opt/engine:/usr/local/bin:/usr/bin"


@pytest.mark.parametrize(
    ("given", "facts", "told"),
    [
        (cell(labels={}), FACTS, "label run"),
        (cell(), replace(FACTS, architecture="riscv64"), "riscv64"),
        (cell(), replace(FACTS, program=Path("/usr/bin/docker-28")), "by this name only"),
        (cell(before_build=("x", Slot.WHEEL)), FACTS, "there is no wheel"),
        (cell(test=("x", Slot.DEST_DIR)), FACTS, "no folder"),
    ],
)
def test_what_cibuildwheel_cannot_be_given(given: WheelCell, facts: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        cibuildwheel_command(given, facts, {})


def test_shown_can_be_pasted_and_holds_no_values(tmp_path: Path) -> None:
    given = replace(
        cell(env={"TOKEN": "secret", **ODD}, repair=("x", *ODD.values())), package=tmp_path
    )
    environ = {"PATH": os.environ["PATH"], "HOME": "/home/me", "CIBW_BUILD": "cp39-*"}
    lines = shown(given, FACTS, environ)

    assert "secret" not in "\n".join(lines)
    program = shlex.join(cibuildwheel_command(given, FACTS, environ).argv)
    assert lines[-1].strip() == program
    # A shell that has the variables gives the program just the environment of the command.
    show = shlex.join([sys.executable, "-c", "import os; print(ascii(dict(os.environb)))"])
    script = "\n".join(lines).replace(program, show)
    carried = {"TOKEN": "secret", **ODD, **environ}
    done = subprocess.run(
        ["sh", "-c", script], env=carried, capture_output=True, text=True, check=True
    )
    expected = {k.encode(): v.encode() for k, v in environment(given, environ).items()}
    assert {k: v for k, v in eval(done.stdout).items() if k != b"LC_CTYPE"} == expected


def test_without_cibuildwheel_the_next_command_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError) as caught:
        run_cibuildwheel(cell(), FACTS, {}, tmp_path / "log")

    assert caught.value.exit_code == 3
    assert "uv run --python" in caught.value.next_step


LOG = """\
Starting container image sha256:aa...

+ docker version -f '{{json .}}'
                                                                       ✓ 0.74s
Copying project into container...

                                                                       ✓ 0.24s

Building cp312-manylinux_x86_64 wheel
Setting up build environment...

                                                                       ✓ 0.08s
Building wheel...

    + python -m build /project
Testing wheel... and more of it
✓ 9.99s
Starting container image other...
                                                                       ✓ 2.99s
Repairing wheel...

                                                                    failed 0.11s
cibuildwheel: error: Command ['sh', '-c', 'x'] failed with code 3.
"""


def test_progress_is_read_from_cibuildwheels_lines() -> None:
    progress = read_progress(LOG.splitlines())

    assert progress.stage is Stage.REPAIR
    assert progress.seconds == {
        Stage.CREATE: 0.74, Stage.COPY_IN: 0.24, Stage.SET_UP: 0.08, Stage.BUILD: 2.99, Stage.REPAIR: 0.11,
    }  # fmt: skip


def test_progress_of_nothing_is_the_first_stage() -> None:
    assert read_progress(["Nothing to do"]).stage is Stage.OPTIONS


def test_the_status_decides_and_one_wheel() -> None:
    wheels = (Path("a.whl"),)
    good = Outcome(0, None, wheels, {}, 1.0, Path("log"), ())

    assert good.ok
    assert not replace(good, returncode=1).ok
    assert not replace(good, timed_out=True).ok
    assert not replace(good, wheels=()).ok
    assert "left 2 wheels" in replace(good, wheels=wheels * 2).reason
    assert "repairing" in replace(good, returncode=1, stage=Stage.REPAIR).reason
