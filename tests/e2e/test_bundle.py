"""An offline bundle from end to end: made here, used where there is no network, tampered with.

The other machine is this one in a network namespace without interfaces, with an empty home folder, a clone
from the bundle's own repository, an environment from the bundle's wheels, and no nvcc to be found.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .conftest import REPOSITORY, Farm, Ran, call

pytestmark = [pytest.mark.network, pytest.mark.slow]

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
BASE_PYTHON = Path(sys.base_prefix) / "bin" / f"python{PYTHON}"
CELLS = ("--cuda", "13.0", "--set", "templates", "--python", PYTHON)


@pytest.fixture(scope="module")
def committed_farm(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Farm:
    """The commit that is checked out, in a clone: a bundle holds no uncommitted change."""
    home = tmp_path_factory.mktemp("maker") / "farm"
    call(["git", "clone", "--quiet", str(REPOSITORY), str(home)])
    return Farm(home, cache_dir)


@pytest.fixture(scope="module")
def bundle(committed_farm: Farm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "a bundle, here"
    done = make(committed_farm, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def make(farm: Farm, folder: Path, *more: str) -> Ran:
    return farm.run(
        "bundle", "make", *CELLS, "--out", str(folder), "--no-images", "--json", *more,
        "--cache-dir", str(farm.cache),
    )  # fmt: skip


def test_a_second_run_keeps_everything_and_gives_the_same_record(
    committed_farm: Farm, bundle: Path
) -> None:
    record = (bundle / "bundle.json").read_bytes()
    wheels = {path.name: path.stat().st_ino for path in (bundle / "wheels").iterdir()}
    shutil.copy(bundle / "README.txt", bundle / "wheels" / "left-behind.whl")
    done = make(committed_farm, bundle)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (bundle / "bundle.json").read_bytes() == record
    assert {path.name: path.stat().st_ino for path in (bundle / "wheels").iterdir()} == wheels


def test_sha256sum_agrees_with_the_record(bundle: Path) -> None:
    record = json.loads((bundle / "bundle.json").read_text("utf-8"))
    lines = "".join(f"{item['sha256']}  {item['path']}\n" for item in record["files"])
    done = subprocess.run(
        ("sha256sum", "--check", "--quiet"),
        input=lines,
        cwd=bundle,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    on_disk = {path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()}
    assert on_disk == {"bundle.json", *(item["path"] for item in record["files"])}


def test_an_uncommitted_change_is_refused(committed_farm: Farm, tmp_path: Path) -> None:
    stray = committed_farm.checkout / "ci" / "stray.py"
    stray.write_text("")
    try:
        done = make(committed_farm, tmp_path / "b")
    finally:
        stray.unlink()
    assert done.returncode == 2
    assert "uncommitted changes" in done.document["error"]["message"]
    assert not (tmp_path / "b").exists()


# -- without network -------------------------------------------------------------------------------


def without_network() -> list[str]:
    """The command that runs another one in a network namespace of its own."""
    command = ["unshare", *(() if os.geteuid() == 0 else ("--map-root-user",)), "--net", "--"]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"this machine gives no network namespace: {tried.stderr.strip()}")
    return command


class Offline:
    """The other machine: its commands see neither a network nor a cache, nor an nvcc."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prefix = without_network()
        (folder / "home").mkdir()
        self.env = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder / "home"),
            "LANG": "C.UTF-8",
            "COLUMNS": "200",
            "PADDLEFLEET_FARM_CUDA_ROOTS": "",
        }

    def run(self, *argv: str, cwd: Path | None = None) -> Ran:
        done = subprocess.run(
            [*self.prefix, *argv],
            cwd=cwd or self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def need(self, *argv: str, cwd: Path | None = None) -> Ran:
        done = self.run(*argv, cwd=cwd)
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done

    def farm(self, *arguments: str) -> Ran:
        python = self.folder / "farm-python" / "bin" / "python"
        return self.run(str(python), "-m", "ci", *arguments, cwd=self.folder / "farm")


@pytest.fixture(scope="module")
def offline(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Offline:
    """What ``README.txt`` says to do first: the clone, and the farm's own environment."""
    there = Offline(tmp_path_factory.mktemp("offline"))
    there.need("git", "clone", "--quiet", str(bundle / "repository.bundle"), "farm")
    there.need(str(BASE_PYTHON), "-m", "venv", "farm-python")
    there.need(
        "farm-python/bin/pip", "install", "--quiet", "--no-index", "--no-deps", "--require-hashes",
        "--find-links", (bundle / "wheels").as_uri().replace(",", "%2C"),
        "-r", str(bundle / "locks" / f"farm-cp{PYTHON.replace('.', '')}.txt"),
    )  # fmt: skip
    return there


def test_there_is_no_network(offline: Offline) -> None:
    devices = offline.need("cat", "/proc/net/dev").stdout.splitlines()[2:]
    assert [line.split(":")[0].strip() for line in devices] == ["lo"]
    asked = offline.farm("wheel", *CELLS, "--executor", "host", "--json")
    assert asked.returncode == 4, asked.stdout + asked.stderr


def test_the_wheel_is_built_and_imported_from_the_bundle_alone(
    offline: Offline, bundle: Path
) -> None:
    assert offline.farm("bundle", "verify", str(bundle)).returncode == 0
    done = offline.farm(
        "wheel", "--from-bundle", str(bundle), *CELLS, "--executor", "host", "--json"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.cell["import_failed"] == 0
    assert done.cell["import_passed"] > len(done.cell["libraries"])
    assert {row["imported"] for row in done.cell["libraries"]} == {"loaded"}
    assert {row["status"] for row in done.cell["libraries"]} == {"built"}
    assert done.cell["compiler"].endswith("(cache)"), (
        "nvcc is from packages, put together in the cache"
    )
    again = offline.farm(
        "import", "--from-bundle", str(bundle), done.cell["wheel"], "--executor", "host", "--json"
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.cell["import_passed"] == done.cell["import_passed"]


# -- tampered with ---------------------------------------------------------------------------------


@contextmanager
def changed(path: Path) -> Iterator[None]:
    """One bit of the file is another one."""
    content = path.read_bytes()
    position = len(content) // 2
    path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
    try:
        yield
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("pattern", "used"),
    [
        ("wheels/numpy-*.whl", True),
        ("wheels/nvidia_cuda_nvcc-*.whl", True),
        ("locks/environments/*.txt", True),
        ("locks/farm-*.txt", True),
        ("repository.bundle", False),
    ],
)
def test_one_changed_bit_is_found(
    committed_farm: Farm, bundle: Path, tmp_path: Path, pattern: str, used: bool
) -> None:
    path = sorted(bundle.glob(pattern))[0]
    place = path.relative_to(bundle).as_posix()
    with changed(path):
        done = committed_farm.run("bundle", "verify", str(bundle), "--json")
        assert done.returncode == 1
        assert f'"{place}"' in done.stdout
        if used:
            done = committed_farm.run(
                "wheel", "--from-bundle", str(bundle), *CELLS, "--executor", "host",
                "--out-dir", str(tmp_path / "dist"),
            )  # fmt: skip
            assert done.returncode == 1, done.stdout + done.stderr
            assert place in done.stderr
            assert not (tmp_path / "dist").exists()
    assert committed_farm.run("bundle", "verify", str(bundle)).returncode == 0


def test_a_lock_with_a_matching_record_is_refused_all_the_same(
    committed_farm: Farm, bundle: Path, tmp_path: Path
) -> None:
    """Who changes a lock can change the record too; the checkout's own locks still say no."""
    forged = tmp_path / "forged"
    shutil.copytree(bundle, forged, copy_function=os.link)
    lock = sorted((forged / "locks" / "environments").iterdir())[0]
    text = lock.read_text("utf-8").replace("--hash=sha256:", "--hash=sha256:0", 1)
    lock.unlink()
    lock.write_text(text, "utf-8")
    record = json.loads((forged / "bundle.json").read_text("utf-8"))
    for item in record["files"]:
        if item["path"] == lock.relative_to(forged).as_posix():
            item["size"] = len(text.encode())
            item["sha256"] = call(["sha256sum", str(lock)]).split()[0]
    (forged / "bundle.json").unlink()
    (forged / "bundle.json").write_text(json.dumps(record), "utf-8")
    assert committed_farm.run("bundle", "verify", str(forged)).returncode == 0
    told = call(["sha256sum", str(bundle / "bundle.json")]).split()[0]
    done = committed_farm.run("bundle", "verify", str(forged), "--expect", told)
    assert done.returncode == 1
    done = committed_farm.run(
        "wheel", "--from-bundle", str(forged), *CELLS, "--executor", "host",
        "--out-dir", str(tmp_path / "dist"),
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "committed locks" in done.stderr
