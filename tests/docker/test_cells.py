"""Whole cells in containers of the air-gapped image: built, repaired, tested; interrupted, killed, refused.

The farm runs as a user that is not root, as it does for everyone else, in a checkout of that user's.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from .conftest import need
from .daemon import Daemon, missing
from .gpu_hook import HOOK, RecordingHook

REPOSITORY = Path(__file__).resolve().parents[2]
USER = 4242
CAPABILITY = "-all,+dac_read_search"
"""The tests' interpreter may lie in a folder that only root can enter; nothing else of root is kept."""
FAST = ("--libs", "chunk-linear-attention,expert-placement", "--no-import")


@dataclass(frozen=True)
class Ran:
    returncode: int
    stdout: str
    stderr: str

    @property
    def cells(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.stdout)["cells"]
        return found

    @property
    def error(self) -> dict[str, Any]:
        document = json.loads(self.stdout)
        found: dict[str, Any] = (
            document["error"] if "error" in document else document["cells"][0]["error"]
        )
        return found


@dataclass(frozen=True)
class Farm:
    """A checkout, a cache and an output folder of a user, and the engine that the user may use."""

    home: Path
    host: str
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def checkout(self) -> Path:
        return self.home / "checkout"

    @property
    def out(self) -> Path:
        return self.home / "dist"

    def argv(self, *arguments: str) -> list[str]:
        socket = Path(self.host.removeprefix("unix://"))
        return [
            "setpriv", "--reuid", str(USER), "--regid", str(USER), "--groups", str(socket.stat().st_gid),
            "--inh-caps", CAPABILITY, "--ambient-caps", CAPABILITY, "--bounding-set", CAPABILITY,
            sys.executable, "-m", "ci", arguments[0], "--cache-dir", str(self.home / "cache"), *arguments[1:],
        ]  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        own = {"DOCKER_HOST": self.host, "HOME": str(self.home), "COLUMNS": "200", "CI": "true"}
        return kept | own | {"PYTHONPATH": str(self.checkout)} | dict(self.env)

    def run(self, *arguments: str) -> Ran:
        done = subprocess.run(
            self.argv(*arguments), cwd=self.checkout, env=self.environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr)

    def wheel(self, *arguments: str) -> Ran:
        return self.run(*self.wheel_arguments(*arguments))

    def wheel_arguments(self, *arguments: str) -> tuple[str, ...]:
        fixed = ("wheel", "--cuda", "13.0", "--set", "templates", "--out-dir", str(self.out))
        return (*fixed, "--executor", "container", "--network", "host", "--json", *arguments)

    def docker(self, *arguments: str) -> str:
        done = subprocess.run(
            ("docker", "--host", self.host, *arguments), capture_output=True, text=True, check=True
        )
        return done.stdout

    @property
    def containers(self) -> list[str]:
        return self.docker(
            "ps", "--all", "--quiet", "--filter", "label=org.paddlefleet.farm.run"
        ).split()

    def strangers(self) -> list[Path]:
        """What does not belong to the user."""
        return [path for path in self.home.rglob("*") if path.lstat().st_uid != USER]


def make_farm(home: Path, host: str) -> Farm:
    farm = Farm(home, host)
    subprocess.run(
        ("git", "clone", "--quiet", str(REPOSITORY), str(farm.checkout)),
        check=True,
        env=farm.environment,
    )
    (home / "cache").mkdir()
    for path in (home, *home.rglob("*")):
        os.lchown(path, USER, USER)
    for folder in (home, *home.parents):  # pytest makes its folders for their owner alone
        if folder.stat().st_uid == os.getuid() and folder.is_relative_to(home.parents[2]):
            folder.chmod(folder.stat().st_mode | 0o055)
    return farm


@pytest.fixture(scope="module")
def farm(docker_host: str, airgapped_images: str, tmp_path_factory: pytest.TempPathFactory) -> Farm:
    return make_farm(tmp_path_factory.mktemp("farm"), docker_host)


@pytest.fixture(scope="module")
def wheels(farm: Farm) -> Ran:
    """The templates for the oldest and the newest Python."""
    return farm.wheel("--python", "3.10,3.13")


def artifacts(wheel: Path) -> dict[str, bytes]:
    """What libraries put into a wheel: all but its metadata and the manifest."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name)
            for name in archive.namelist()
            if ".dist-info/" not in name and not name.endswith("_manifest.json")
        }


def test_two_pythons_are_built_by_cibuildwheel_repaired_and_imported(
    farm: Farm, wheels: Ran
) -> None:
    assert wheels.returncode == 0, wheels.stderr[-4000:]
    assert [cell["cell"] for cell in wheels.cells] == ["cu130-cp310", "cu130-cp313"]
    for cell in wheels.cells:
        assert cell["executor"] == "container"
        assert cell["image"].startswith("sha256:")
        assert cell["compiler"] == "nvcc 13.0.88 (cache)"
        assert {row["imported"] for row in cell["libraries"]} == {"loaded"}
        assert (cell["import_failed"], cell["import_passed"] > 20) == (0, True)
        log = (farm.out / "logs" / cell["cell"] / "cibuildwheel.log").read_text()
        assert "Repairing wheel..." in log
        assert "Testing wheel..." in log


def test_what_cibuildwheel_brought_is_a_wheel_of_the_tag_that_auditwheel_computes(
    wheels: Ran,
) -> None:
    for cell in wheels.cells:
        done = subprocess.run(
            (sys.executable, "-m", "auditwheel", "show", cell["wheel"]),
            capture_output=True,
            text=True,
            check=True,
        )
        assert cell["tag"].rpartition("-")[2] in " ".join(done.stdout.split())


def test_nothing_in_the_users_folders_belongs_to_root_and_the_checkout_is_clean(
    farm: Farm, wheels: Ran
) -> None:
    assert wheels.returncode == 0
    assert farm.strangers() == []
    status = (
        "git",
        "--no-optional-locks",
        "-c",
        "safe.directory=*",
        "status",
        "--porcelain",
        "--ignored",
    )
    done = subprocess.run(status, cwd=farm.checkout, capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if "__pycache__" not in line] == []


def test_no_container_and_no_volume_is_left(farm: Farm, wheels: Ran) -> None:
    assert wheels.returncode == 0
    assert farm.containers == []
    assert farm.docker("volume", "ls", "--quiet", "--filter", "dangling=true").split() == []


def test_the_artifacts_are_those_of_the_host_executor_byte_for_byte(
    farm: Farm, wheels: Ran, tmp_path: Path
) -> None:
    """With a store of its own, so that nothing is taken over. The compilers are the same packages; gcc is the
    host's here and the image's there, so that must be the same too."""
    inside = farm.docker(
        "run",
        "--rm",
        "--network",
        "none",
        "paddlefleet-farm/build:cu130",
        "g++",
        "-dumpfullversion",
    ).strip()
    here = subprocess.run(("g++", "-dumpfullversion"), capture_output=True, text=True, check=True)
    if here.stdout.strip() != inside:
        pytest.skip(f"g++ is {here.stdout.strip()} on the host and {inside} in the image")
    done = wheel_on_the_host(farm, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert {row["status"] for row in done.cells[0]["libraries"]} == {"built"}
    host, container = (
        artifacts(Path(done.cells[0]["wheel"])),
        artifacts(Path(wheels.cells[1]["wheel"])),
    )
    assert host.keys() == container.keys()
    assert [name for name in host if host[name] != container[name]] == []
    assert sum(name.endswith(".so") for name in host) == 2


def wheel_on_the_host(farm: Farm, scratch: Path) -> Ran:
    """The same commit, as the user of the tests, who has the Pythons; nvcc of packages, as inside."""
    checkout = scratch / "checkout"
    subprocess.run(("git", "clone", "--quiet", str(REPOSITORY), str(checkout)), check=True)
    env = farm.environment | {
        "HOME": str(Path.home()),
        "PATH": "/usr/bin:/bin",
        "PADDLEFLEET_FARM_CUDA_ROOTS": "",
        "PYTHONPATH": str(checkout),
    }
    argv = (
        sys.executable, "-m", "ci", "wheel", "--cuda", "13.0", "--set", "templates", "--python", "3.13",
        "--executor", "host", "--no-import", "--json", "--out-dir", str(scratch / "dist"),
        "--cache-dir", str(scratch / "cache"),
    )  # fmt: skip
    done = subprocess.run(argv, cwd=checkout, env=env, capture_output=True, text=True, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


def test_the_suite_of_a_wheel_that_is_there_runs_in_a_container(farm: Farm, wheels: Ran) -> None:
    wheel = wheels.cells[1]["wheel"]
    done = farm.run(
        "import",
        wheel,
        "--executor",
        "container",
        "--network",
        "host",
        "--json",
        "--out-dir",
        str(farm.out),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (cell,) = done.cells
    assert (cell["executor"], cell["import_failed"], cell["import_passed"] > 20) == (
        "container",
        0,
        True,
    )
    assert {row["imported"] for row in cell["libraries"]} == {"loaded"}
    assert farm.strangers() == []


def test_what_has_not_changed_is_not_made_again(farm: Farm, wheels: Ran) -> None:
    again = farm.wheel("--python", "3.10,3.13")
    assert again.returncode == 0, again.stderr[-4000:]
    for before, cell in zip(wheels.cells, again.cells, strict=True):
        assert {row["status"] for row in cell["libraries"]} == {"cached"}
        assert cell["wheel_from"]
        assert cell["suite_from"]
        assert cell["import_passed"] == before["import_passed"]
        assert "cibuildwheel, with its container" not in cell["stage_seconds"]
        assert Path(cell["wheel"]).read_bytes() == Path(before["wheel"]).read_bytes()
    assert farm.strangers() == []


def status_of(ran: Ran, library: str) -> str:
    (row,) = [row for row in ran.cells[0]["libraries"] if row["library"] == library]
    return str(row["status"])


def test_a_shared_store_serves_cells_in_containers_through_the_farm_outside(farm: Farm) -> None:
    shared, store = farm.home / "shared", farm.home / "cache" / "store"
    options = ("--python", "3.13", "--libs", "ep-exchange", "--remote-cache", str(shared))
    shutil.rmtree(store, ignore_errors=True)
    first = farm.wheel(*options)
    assert first.returncode == 0, first.stderr[-4000:]
    assert status_of(first, "ep-exchange") == "built"
    shutil.rmtree(store)
    second = farm.wheel(*options, "--remote-cache-mode", "read")
    assert second.returncode == 0, second.stderr[-4000:]
    assert status_of(second, "ep-exchange") == "cached"
    assert farm.strangers() == []


def test_a_cell_without_compiled_code_gets_its_wheel_too(farm: Farm) -> None:
    done = farm.wheel("--python", "3.13", "--libs", "chunk-linear-attention")
    assert done.returncode == 0, done.stderr[-4000:]
    (cell,) = done.cells
    assert cell["tag"] == "cp313-none-any"
    assert (cell["import_failed"], cell["import_passed"] > 5) == (0, True)


def test_a_wheel_whose_suite_is_red_is_kept_apart_and_told_as_on_the_host(farm: Farm) -> None:
    """Built from a folder outside the checkout, whose library fails when it is imported."""
    folder = farm.home / "red"
    shutil.copytree(farm.checkout / "packages" / "templates" / "header_only", folder)
    with (folder / "src" / "expert_placement" / "__init__.py").open("a") as sink:
        sink.write("raise RuntimeError('broken on purpose')\n")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER, USER)
    done = farm.wheel(
        "--python",
        "3.13",
        "--libs",
        "expert-placement",
        "--source",
        f"expert-placement=path:{folder}",
    )
    assert done.returncode == 1, done.stderr[-4000:]
    (cell,) = done.cells
    assert cell["error"]["kind"] == "test suite"
    assert "broken on purpose" in cell["error"]["cause"]
    wheel = Path(cell["wheel"])
    assert wheel.parent == farm.out / "red"
    assert wheel.is_file()
    assert cell["import_failed"] > 0
    assert farm.strangers() == []
    assert farm.containers == []


def test_a_command_runs_in_a_cells_environment(farm: Farm) -> None:
    done = farm.run(
        "shell", "cu130-cp312", "--set", "templates", "--executor", "container", "--network", "host", "--",
        "sh", "-c", "nvcc --version && python -c 'import pybind11, sys; print(sys.version)' && id -u",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert "release 13.0," in done.stdout
    assert "\n3.12." in done.stdout
    assert done.stdout.split()[-1] == str(USER)
    failing = farm.run(
        "shell", "cu130-cp312", "--set", "templates", "--executor", "container", "--network", "host", "--",
        "sh", "-c", "exit 7",
    )  # fmt: skip
    assert failing.returncode == 7
    assert farm.containers == []


def test_a_secret_of_the_caller_does_not_get_in_and_a_failure_is_that_of_inside(
    farm: Farm, tmp_path: Path
) -> None:
    """A declaration whose build prints its environment and fails."""
    folder = farm.home / "broken"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (folder / "backend.py").write_text(
        "import os\n"
        "def build_wheel(*arguments, **options):\n"
        "    text = ' '.join(open('/proc/%d/environ' % pid, errors='replace').read() for pid in pids())\n"
        "    print('ENVIRONMENT', text)\n"
        "    raise SystemExit('error: nothing works')\n"
        "def pids():\n"
        "    mine = [int(name) for name in os.listdir('/proc') if name.isdigit()]\n"
        "    return [pid for pid in mine if os.access('/proc/%d/environ' % pid, os.R_OK)]\n"
    )
    declaration = farm.home / "declare.py"
    declaration.write_text(
        "from build_utils import Artifact, EcosystemLibrary\n"
        "LIBRARIES = (EcosystemLibrary(name='broken', source_rel_path='broken', kind='python_dsl',\n"
        "    artifacts=(Artifact('broken', 'broken'),), module='broken', hint='none', public_names=('x',),\n"
        "    compat_scope=('broken',), varies_by=frozenset()),)\n"
    )
    for path in (folder, *folder.iterdir(), declaration):
        os.chown(path, USER, USER)
    told = {"GITHUB_TOKEN": "ghp-of-the-caller", "TWINE_PASSWORD": "pw-of-the-caller"}
    done = replace(farm, env=told).wheel(
        "--python", "3.13", "--declare", str(declaration), "--libs", "broken", "--no-import"
    )
    assert done.returncode == 1, done.stderr[-4000:]
    (cell,) = done.cells
    assert cell["error"]["kind"] == "library build"
    assert "broken did not build" in cell["error"]["message"]
    log = Path(
        next(row["log"] for row in cell["libraries"] if row["library"] == "broken")
    ).read_text()
    assert "ENVIRONMENT" in log
    assert "of-the-caller" not in log
    assert "--libs broken" in cell["reproduce"]
    assert "--executor container" in cell["reproduce"]
    assert cell["reproduce"].startswith("python -m ci wheel --cuda 13.0 --python 3.13")


def test_what_a_run_would_start_is_shown_and_nothing_is_made(farm: Farm) -> None:
    before = sorted(farm.home.rglob("*"))
    done = farm.wheel("--python", "3.12", "--dry-run")
    assert done.returncode == 0, done.stderr[-4000:]
    prepare, wheel = done.cells[0]["commands"]
    assert " stage prepare " in prepare
    assert "--init" in prepare
    assert "-m cibuildwheel --only cp312-manylinux_x86_64" in wheel
    assert "stage repair" in wheel
    assert sorted(farm.home.rglob("*")) == before


def test_an_image_whose_compiler_is_of_another_cuda_is_refused(farm: Farm, tmp_path: Path) -> None:
    (tmp_path / "nvcc").write_text(
        '#!/bin/sh\necho "Cuda compilation tools, release 12.9, V12.9.86"\n'
    )
    (tmp_path / "Dockerfile").write_text(
        "FROM paddlefleet-farm/build:cu130\nCOPY nvcc /usr/local/cuda/bin/nvcc\n"
        "RUN chmod 755 /usr/local/cuda/bin/nvcc && mkdir -p /usr/local/cuda/include && "
        "touch /usr/local/cuda/include/cuda_runtime.h\n"
    )
    ref = "farm-tests/foreign:1"
    subprocess.run(
        ("docker", "--host", farm.host, "build", "--network", "none", "--tag", ref, str(tmp_path)),
        check=True, capture_output=True, env=dict(os.environ) | {"DOCKER_BUILDKIT": "0"},
    )  # fmt: skip
    try:
        done = farm.wheel("--python", "3.13", "--image", ref)
    finally:
        farm.docker("rmi", ref)
    assert done.returncode == 3, done.stderr[-4000:]
    assert "is of CUDA 12.9.86, the cell of CUDA 13.0" in done.error["message"]


def test_too_little_memory_is_named(farm: Farm) -> None:
    done = farm.wheel("--python", "3.13", *FAST, "--memory", "32m")
    assert done.returncode == 4, done.stderr[-4000:]
    assert "memory" in done.error["message"] + done.error["cause"]
    assert farm.containers == []


def start(farm: Farm, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        farm.argv(*farm.wheel_arguments(*arguments)), cwd=farm.checkout, env=farm.environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for_a_container(farm: Farm, process: subprocess.Popen[str], step: str = "prepare") -> None:
    """Until the farm's container of ``step`` runs."""
    label = f"label=org.paddlefleet.farm.step={step}"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if farm.docker("ps", "--quiet", "--filter", label).split():
            return
        time.sleep(0.1)
    raise AssertionError(f"no container of {step}: {process.communicate(timeout=60)}")


@pytest.fixture
def empty_store(farm: Farm) -> None:
    """So that there is something to build."""
    shutil.rmtree(farm.home / "cache" / "store", ignore_errors=True)


def test_ctrl_c_ends_the_container_and_the_next_run_goes_on(farm: Farm, empty_store: None) -> None:
    process = start(farm, "--python", "3.13", *FAST)
    wait_for_a_container(farm, process)
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(stdout)["error"]["kind"] == "interrupted"
    assert farm.containers == []
    assert farm.wheel("--python", "3.13", *FAST).returncode == 0
    assert farm.strangers() == []


def test_what_a_killed_farm_left_is_swept_by_the_next_run(farm: Farm, empty_store: None) -> None:
    process = start(farm, "--python", "3.13", *FAST)
    wait_for_a_container(farm, process)
    process.kill()
    process.communicate(timeout=60)
    assert len(farm.containers) == 1
    done = farm.wheel("--python", "3.13", *FAST)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "removed a container that an ended run left" in done.stderr
    assert farm.containers == []
    assert farm.strangers() == []


@dataclass(frozen=True)
class SecondEngine:
    """A farm with an engine that may be killed, which asks ``hook`` for GPUs."""

    farm: Farm
    daemon: Daemon
    hook: RecordingHook


@pytest.fixture(scope="module")
def second(farm: Farm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecondEngine]:
    """The same checkout and cache; the image comes from the first engine."""
    need(missing())
    hook = RecordingHook.write(tmp_path_factory.mktemp("hook"))
    daemon = Daemon.start(Path(tempfile.mkdtemp(prefix="farm-docker-")), path=[hook.folder])
    try:
        ref = "paddlefleet-farm/build:cu130"
        save = subprocess.Popen(
            ("docker", "--host", farm.host, "save", ref), stdout=subprocess.PIPE
        )
        load = ("docker", "--host", daemon.url, "load")
        subprocess.run(load, stdin=save.stdout, check=True, capture_output=True)
        assert save.wait() == 0
        yield SecondEngine(replace(farm, host=daemon.url), daemon, hook)
    finally:
        daemon.stop()


def test_a_lease_reaches_the_container_and_a_missing_driver_is_no_test_failure(
    second: SecondEngine, wheels: Ran
) -> None:
    wheel, out = wheels.cells[1]["wheel"], str(second.farm.out)
    done = second.farm.run(
        "import", wheel, "--executor", "container", "--devices", "0,3", "--json", "--out-dir", out
    )
    assert done.returncode == 4, done.stderr[-4000:]
    (told,) = second.hook.asked()
    assert told["NVIDIA_VISIBLE_DEVICES"] == "0,3"
    assert done.error["kind"] == "infrastructure"
    assert "driver" in done.error["message"] + done.error["cause"]
    assert done.cells[0]["import_passed"] == 0, "nothing is tested without the GPUs"
    wanted = f"python -m ci import {wheel} --executor container --devices 0,3"
    assert done.cells[0]["reproduce"] == wanted


def test_an_engine_without_gpus_is_told_as_that(farm: Farm, wheels: Ran) -> None:
    if shutil.which(HOOK):
        pytest.skip(f"this host has a real {HOOK}")
    wheel, out = wheels.cells[1]["wheel"], str(farm.out)
    done = farm.run(
        "import", wheel, "--executor", "container", "--devices", "0", "--json", "--out-dir", out
    )
    assert done.returncode == 4, done.stderr[-4000:]
    assert done.error["kind"] == "infrastructure"
    assert "GPU" in done.error["message"]
    assert done.error["next_step"]


def test_docker_is_killed_in_the_middle_of_a_cell_and_the_next_run_succeeds(
    second: SecondEngine, empty_store: None
) -> None:
    farm, daemon = second.farm, second.daemon
    process = start(farm, "--python", "3.13", *FAST)
    wait_for_a_container(farm, process)
    daemon.kill()
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 4, stderr[-4000:]
    error = json.loads(stdout)["cells"][0]["error"]
    assert error["kind"] == "infrastructure"
    assert error["next_step"]
    daemon.restart()
    absent = farm.run(
        "wheel", "--cuda", "12.9", "--set", "templates", "--executor", "container", "--json"
    )
    assert absent.returncode == 3
    assert "there is no image paddlefleet-farm/build:cu129" in absent.error["message"]
    assert absent.error["next_step"].startswith("nox -s images -- cu129")
    done = farm.wheel("--python", "3.13", *FAST)
    assert done.returncode == 0, done.stderr[-4000:]
    assert farm.containers == []
    assert farm.docker("volume", "ls", "--quiet").split() == []
    assert farm.strangers() == []
