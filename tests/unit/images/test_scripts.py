"""The scripts of the Dockerfiles, run with the programs that a base would have."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ci.registry import REPOSITORY

DOCKER = REPOSITORY / "docker"
OF_THE_SYSTEM = (
    "cat",
    "chmod",
    "cp",
    "cut",
    "dirname",
    "head",
    "ldconfig",
    "ln",
    "mkdir",
    "printf",
    "rm",
    "sort",
)
COMPLETE = dict.fromkeys(("file", "gcc", "git", "make", "unzip", "xz", "zip"), "") | {
    "g++": 'echo "12.2.0"'
}


class Base:
    """A folder of programs that stands for an image; package managers write down what they are asked."""

    def __init__(self, folder: Path, programs: dict[str, str]) -> None:
        self.folder = folder
        self.log = folder / "installed.log"
        for name in ("sh", *OF_THE_SYSTEM):
            found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
            assert found, name
            (folder / name).symlink_to(found)
        for name, body in programs.items():
            self.program(name, body)

    def program(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def manager(self, name: str, gives: str = "") -> None:
        self.program(name, f'echo "{name} $*" >> {self.log}\n{gives}')

    def run(self, script: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (str(self.folder / "sh"), str(DOCKER / script), *arguments),
            env={"PATH": str(self.folder), **env}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    @property
    def installed(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


def test_nothing_is_installed_where_all_is_there(tmp_path: Path) -> None:
    base = Base(tmp_path, COMPLETE)
    base.manager("apt-get")
    done = base.run("install-packages.sh", "build")
    assert done.returncode == 0, done.stderr
    assert base.installed == []
    assert "g++ 12.2.0" in done.stdout


def test_only_what_is_missing_is_installed_by_apt_without_extras(tmp_path: Path) -> None:
    base = Base(
        tmp_path, {name: body for name, body in COMPLETE.items() if name not in ("git", "xz")}
    )
    base.manager("apt-get", gives=f"cp {tmp_path}/make {tmp_path}/git")
    done = base.run("install-packages.sh", "build")
    assert done.returncode == 0, done.stderr
    assert base.installed == [
        "apt-get update",
        "apt-get install -y --no-install-recommends git xz-utils",
    ]


def test_dnf_gets_the_names_of_its_own_distribution(tmp_path: Path) -> None:
    base = Base(tmp_path, {name: body for name, body in COMPLETE.items() if name != "g++"})
    base.manager(
        "dnf",
        gives=f"printf '#!/bin/sh\\necho 13.1.1\\n' > {tmp_path}/g++; chmod +x {tmp_path}/g++",
    )
    done = base.run("install-packages.sh", "build")
    assert done.returncode == 0, done.stderr
    assert base.installed[0].endswith(
        "install -y --setopt=install_weak_deps=0 --setopt=tsflags=nodocs gcc-c++"
    )


def test_an_old_gcc_is_refused_with_what_to_do(tmp_path: Path) -> None:
    base = Base(tmp_path, COMPLETE | {"g++": "echo 8.5.0"})
    done = base.run("install-packages.sh", "build")
    assert done.returncode == 1
    assert "error: g++ 8 is too old, the farm's libraries need 11 or newer" in done.stderr
    assert "GCC_TOOLSET=13" in done.stderr


def test_a_base_without_any_manager_says_what_is_missing(tmp_path: Path) -> None:
    base = Base(tmp_path, {name: body for name, body in COMPLETE.items() if name != "git"})
    done = base.run("install-packages.sh", "build")
    assert done.returncode != 0
    assert "no dnf, yum or apt-get in this base, and git is missing" in done.stderr


def test_a_base_with_its_own_pythons_exports_none(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    base = Base(tmp_path / "bin", {})
    target = tmp_path / "export"
    done = base.run("export-pythons.sh", "image:1", "image:1", str(target))
    assert done.returncode == 0, done.stderr
    assert [str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()] == [
        "farm/pythons"
    ]


def test_another_image_must_have_pythons_to_export(tmp_path: Path) -> None:
    if Path("/opt/python").is_dir():
        pytest.skip("this host is a manylinux image")
    (tmp_path / "bin").mkdir()
    base = Base(tmp_path / "bin", {})
    done = base.run("export-pythons.sh", "image:1", "other:2", str(tmp_path / "export"))
    assert done.returncode == 1
    assert "error: other:2 has no /opt/python" in done.stderr


def test_a_python_that_the_image_lacks_is_named(tmp_path: Path) -> None:
    base = Base(tmp_path, {"tr": "echo 331"})
    done = base.run("install-environments.sh", "pythons", "3.31")
    assert done.returncode == 1
    assert "error: there is no CPython 3.31 in this image" in done.stderr
    assert "PYTHON_VERSIONS" in done.stderr


@pytest.mark.parametrize("script", sorted(DOCKER.glob("*.sh")), ids=lambda path: path.name)
def test_each_script_is_posix_shell_and_stops_at_the_first_error(script: Path) -> None:
    assert subprocess.run(("sh", "-n", str(script)), check=False).returncode == 0
    lines = script.read_text("utf-8").splitlines()
    assert lines[0] == "#!/bin/sh"
    assert "set -eu" in lines[:12]
