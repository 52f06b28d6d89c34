"""Wheels made by cibuildwheel in the farm's build image."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ci.errors import ConfigError, InfrastructureError
from ci.executors.cibuildwheel import Outcome, Slot, Stage, WheelCell, run_cibuildwheel, shown
from ci.executors.container import owner_label
from ci.executors.engine import find_engine
from ci.executors.model import LABEL, ContainerSpec, EngineFacts, Mount
from ci.proc import end_all

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="cibuildwheel needs Python 3.11 or newer"
)

SETUP = """\
from setuptools import Extension, setup
setup(ext_modules=[Extension("fastsum", ["fastsum.c"])], py_modules=[])
"""
PROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "fastsum"
version = "1.0"
dependencies = ["no-such-package-anywhere==9"]
[tool.cibuildwheel]
before-all = "exit 9"
"""
SOURCE = """\
#include <Python.h>
static PyObject *add(PyObject *self, PyObject *args) {
    long x, y;
    if (!PyArg_ParseTuple(args, "ll", &x, &y)) return NULL;
    return PyLong_FromLong(x + y);
}
static PyMethodDef methods[] = {{"add", add, METH_VARARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "fastsum", "", -1, methods};
PyMODINIT_FUNC PyInit_fastsum(void) { return PyModule_Create(&module); }
"""
REPAIR = (
    "sh",
    "-c",
    'cp "$1" "$2" && printf %s "$ODD" >"$3/repaired" && chown 1234:1234 "$3/repaired"',
    "x",
)
TEST = ("sh", "-c", 'printf "%s\\n" "$(id -u)" "$1" >"$2/tested"', "x")
ODD = "a 'quoted' \"$HOME\" {wheel}; two\nlines"

Attempt = Callable[..., Outcome]


@pytest.fixture
def environ(docker_host: str) -> dict[str, str]:
    """That of a user who has options of cibuildwheel for other work."""
    return dict(os.environ) | {
        "DOCKER_HOST": docker_host,
        "CIBW_BUILD": "cp39-*",
        "CIBW_TEST_SKIP": "*",
    }


@pytest.fixture
def facts(environ: dict[str, str]) -> EngineFacts:
    return find_engine("docker", environ).facts


@pytest.fixture
def given(tmp_path: Path, airgapped_images: str, environ: dict[str, str]) -> Iterator[WheelCell]:
    """A package with an extension; its container shares a folder, has no network and a variable."""
    package, shared = tmp_path / "the package", tmp_path / "shared, with {wheel}"
    package.mkdir()
    shared.mkdir()
    for name, text in {"setup.py": SETUP, "pyproject.toml": PROJECT, "fastsum.c": SOURCE}.items():
        (package / name).write_text(text)
    labels = {
        LABEL + "run": uuid.uuid4().hex,
        LABEL + "cell": "cu130-cp312",
        LABEL + "step": "wheel",
        LABEL + "owner": owner_label(),
    }
    container = ContainerSpec(
        airgapped_images,
        (Mount(shared, shared, read_only=False),),
        {"ODD": ODD},
        network="none",
        labels=labels,
    )
    yield WheelCell(
        "3.12", package, tmp_path / "wheels", tmp_path / "scratch", container,
        repair=(*REPAIR, Slot.WHEEL, Slot.DEST_DIR, str(shared)),
        test=(*TEST, Slot.WHEEL, str(shared)), timeout=300.0,
    )  # fmt: skip
    assert containers(labels, environ) == []


@pytest.fixture
def attempt(
    given: WheelCell, facts: EngineFacts, environ: dict[str, str], tmp_path: Path
) -> Attempt:
    def run(**changes: object) -> Outcome:
        return run_cibuildwheel(replace(given, **changes), facts, environ, tmp_path / "log")  # type: ignore[arg-type]

    return run


def containers(labels: dict[str, str], environ: dict[str, str]) -> list[str]:
    filters = [part for k, v in labels.items() for part in ("--filter", f"label={k}={v}")]
    done = subprocess.run(
        ("docker", "ps", "--all", "--quiet", *filters),
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_a_wheel_is_built_repaired_and_tested(
    attempt: Attempt, given: WheelCell, tmp_path: Path
) -> None:
    outcome = attempt()

    assert outcome.ok, outcome.tail
    [wheel] = outcome.wheels
    assert wheel.name == f"fastsum-1.0-cp312-cp312-linux_{os.uname().machine}.whl"
    assert [n for n in zipfile.ZipFile(wheel).namelist() if n.endswith(".so")]
    shared = given.container.mounts[0].source
    assert (shared / "repaired").read_text() == ODD
    assert (shared / "tested").read_text().splitlines()[0] == "0"
    assert (shared / "tested").read_text().splitlines()[1].endswith(wheel.name)
    assert outcome.stage is None
    assert {
        Stage.CREATE,
        Stage.COPY_IN,
        Stage.BUILD,
        Stage.REPAIR,
        Stage.TEST,
        Stage.COPY_OUT,
    } <= set(outcome.seconds)
    assert sum(outcome.seconds.values()) < outcome.total_seconds
    # The wheel is the caller's, and so is all that was there before.
    assert {p.stat().st_uid for p in (wheel, wheel.parent, *given.package.iterdir())} == {
        os.getuid()
    }
    assert sorted(p.name for p in given.package.iterdir()) == [
        "fastsum.c",
        "pyproject.toml",
        "setup.py",
    ]


@pytest.mark.parametrize(
    ("stage", "changes", "told"),
    [
        (
            Stage.BEFORE_BUILD,
            {"before_build": ("sh", "-c", "echo because-of-this; exit 3")},
            "because-of-this",
        ),
        (Stage.REPAIR, {"repair": ("sh", "-c", "echo because-of-this; exit 3")}, "because-of-this"),
        (Stage.REPAIR, {"repair": ("true",)}, "did not produce a wheel"),
        (Stage.TEST, {"test": ("sh", "-c", "echo because-of-this; exit 3")}, "because-of-this"),
        # Words of cibuildwheel in the output of a test are only words.
        (Stage.TEST, {"test": ("sh", "-c", "echo Building wheel...; exit 1")}, "Building wheel..."),
    ],
)
def test_the_failing_stage_is_named(
    attempt: Attempt, stage: Stage, changes: dict[str, object], told: str
) -> None:
    outcome = attempt(**changes)

    assert not outcome.ok
    assert outcome.stage is stage
    assert stage.value in outcome.reason
    assert told in "\n".join(outcome.tail)
    assert outcome.memory == ""
    assert outcome.wheels == ()


def test_a_build_that_fails(attempt: Attempt, given: WheelCell) -> None:
    (given.package / "fastsum.c").write_text("#error not today\n")
    outcome = attempt()

    assert (outcome.ok, outcome.stage) == (False, Stage.BUILD)
    assert "not today" in outcome.log.read_text()


def test_a_pure_wheel_is_refused_by_cibuildwheel(attempt: Attempt, given: WheelCell) -> None:
    (given.package / "setup.py").write_text("from setuptools import setup\nsetup(py_modules=[])\n")
    outcome = attempt()

    assert (outcome.returncode, outcome.stage) == (5, Stage.BUILD)


def test_a_command_that_is_killed_for_memory(attempt: Attempt, given: WheelCell) -> None:
    limited = replace(given.container, memory=96 * 2**20)
    hog = ("/opt/python/cp312-cp312/bin/python", "-c", "x = bytearray(400 * 2**20)")
    outcome = attempt(container=limited, repair=hog)

    assert (outcome.ok, outcome.stage) == (False, Stage.REPAIR)
    assert "memory" in outcome.memory
    assert "0.1 GiB" in outcome.reason


def test_a_timeout_ends_it(attempt: Attempt) -> None:
    outcome = attempt(repair=("sleep", "600"), timeout=15.0)

    assert (outcome.ok, outcome.timed_out, outcome.stage) == (False, True, Stage.REPAIR)


def test_an_interrupt_removes_the_container(
    attempt: Attempt, given: WheelCell, environ: dict[str, str]
) -> None:
    started = given.container.mounts[0].source / "started"
    outcomes: list[Outcome] = []
    command = ("sh", "-c", 'touch "$1"; sleep 600', "x", str(started))
    thread = threading.Thread(target=lambda: outcomes.append(attempt(repair=command)))
    thread.start()
    wait_for(started.exists)
    assert len(containers(dict(given.container.labels), environ)) == 1

    end_all()  # as a Ctrl-C in the main thread does
    thread.join(60)

    assert [outcome.ok for outcome in outcomes] == [False]
    assert containers(dict(given.container.labels), environ) == []


def test_a_container_that_someone_removes(
    attempt: Attempt, given: WheelCell, environ: dict[str, str]
) -> None:
    started = given.container.mounts[0].source / "started"
    command = ("sh", "-c", 'touch "$1"; sleep 600', "x", str(started))

    def remove() -> None:
        wait_for(started.exists)
        found = containers(dict(given.container.labels), environ)
        subprocess.run(
            ("docker", "rm", "--force", *found), env=environ, capture_output=True, check=True
        )

    thread = threading.Thread(target=remove)
    thread.start()
    with pytest.raises(InfrastructureError, match=r"(vanished|ended) while repairing"):
        attempt(repair=command)
    thread.join()


def test_an_image_that_is_not_there(attempt: Attempt, given: WheelCell) -> None:
    absent = replace(given.container, image="paddlefleet-farm/nosuch:1")
    with pytest.raises(Exception, match="cannot start paddlefleet-farm/nosuch:1") as caught:
        attempt(container=absent)

    assert "nox -s images" in getattr(caught.value, "next_step", "")


def test_a_network_that_is_not_there(attempt: Attempt, given: WheelCell) -> None:
    with pytest.raises(ConfigError) as caught:
        attempt(container=replace(given.container, network="nosuch-network"))

    assert "network" in caught.value.next_step


def test_an_engine_that_is_not_there(
    given: WheelCell, facts: EngineFacts, environ: dict[str, str], tmp_path: Path
) -> None:
    gone = environ | {"DOCKER_HOST": f"unix://{tmp_path}/nosuch.sock"}
    with pytest.raises(InfrastructureError):
        run_cibuildwheel(given, facts, gone, tmp_path / "log")


def test_an_engine_that_goes_away(
    given: WheelCell, facts: EngineFacts, environ: dict[str, str], tmp_path: Path
) -> None:
    """As seen from here: every connection breaks, and no new one is taken."""
    started = given.container.mounts[0].source / "started"
    command = ("sh", "-c", 'touch "$1"; sleep 600', "x", str(started))
    with tempfile.TemporaryDirectory() as folder:  # a short path: a socket's has 108 bytes
        relay = Relay(
            Path(folder) / "engine.sock", Path(environ["DOCKER_HOST"].removeprefix("unix://"))
        )

        def cut() -> None:
            wait_for(started.exists)
            relay.cut()

        thread = threading.Thread(target=cut)
        thread.start()
        through = environ | {"DOCKER_HOST": f"unix://{relay.path}"}
        try:
            with pytest.raises(
                InfrastructureError, match="docker went away while cibuildwheel ran"
            ):
                run_cibuildwheel(replace(given, repair=command), facts, through, tmp_path / "log")
        finally:
            thread.join()
            left = containers(dict(given.container.labels), environ)
            subprocess.run(
                ("docker", "rm", "-f", *left), env=environ, capture_output=True, check=True
            )
    assert len(left) == 1


class Relay:
    """A socket that passes everything on to the engine's, until it is cut."""

    def __init__(self, path: Path, target: Path) -> None:
        self.path = path
        self._target = str(target)
        self._ends: list[socket.socket] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self.path.unlink()
        for end in (self._server, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, engine = self._server.accept()[0], socket.socket(socket.AF_UNIX)
                engine.connect(self._target)
                self._ends += [client, engine]
                for source, sink in ((client, engine), (engine, client)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


def test_an_output_folder_with_a_wheel(attempt: Attempt, given: WheelCell) -> None:
    given.output.mkdir()
    (given.output / "other-1-py3-none-any.whl").touch()
    with pytest.raises(ConfigError, match="holds a wheel already"):
        attempt()


def test_the_shown_command_does_the_same(
    given: WheelCell, facts: EngineFacts, environ: dict[str, str]
) -> None:
    script = "\n".join(shown(given, facts, environ))
    env = environ | dict(given.container.env)
    done = subprocess.run(
        ["sh", "-c", script], env=env, capture_output=True, text=True, check=False
    )
    for identifier in containers(dict(given.container.labels), environ):
        subprocess.run(
            ("docker", "rm", "-f", identifier), env=environ, capture_output=True, check=True
        )

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert len(list(given.output.glob("*.whl"))) == 1
    assert (given.container.mounts[0].source / "repaired").read_text() == ODD


def wait_for(ready: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "it never started"
        time.sleep(0.1)
