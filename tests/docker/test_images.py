"""The air-gapped images, built from nothing in a daemon of these tests, and looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ci.executors.engine import find_engine
from ci.images.bases import base_behind
from ci.images.build import plan_build
from ci.images.pins import load_pins
from ci.images.verify import judge, look

REPOSITORY = Path(__file__).resolve().parents[2]
LEAKY = "farm-tests/leaky:1"
EXTENSION = r"""
mkdir -p /tmp/one && cd /tmp/one
cat > one.c <<'EOF'
#include <Python.h>
static struct PyModuleDef one = {PyModuleDef_HEAD_INIT, "one", 0, -1, 0};
PyMODINIT_FUNC PyInit_one(void) { return getenv("NOT_ONE") ? NULL : PyModule_Create(&one); }
EOF
cat > pyproject.toml <<'EOF'
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "one"
version = "1"
EOF
cat > setup.py <<'EOF'
from setuptools import Extension, setup
setup(ext_modules=[Extension("one", ["one.c"])])
EOF
"""


def docker(host: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ("docker", "--host", host, *arguments),
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )


def images(host: str, *arguments: str) -> tuple[int, dict[str, object]]:
    done = subprocess.run(
        (sys.executable, "-m", "ci", "images", *arguments, "--json"),
        cwd=REPOSITORY, env={**os.environ, "DOCKER_HOST": host}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    first, _ = json.JSONDecoder().raw_decode(done.stdout)
    return done.returncode, first


def in_image(host: str, image: str, script: str, *options: str) -> str:
    done = docker(host, "run", "--rm", "--network", "none", *options, image, "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_images_are_good_by_their_own_check(airgapped_images: str, docker_host: str) -> None:
    code, told = images(docker_host, "cu130", "--verify")
    (row,) = told["images"]  # type: ignore[misc]
    assert (code, row["status"], row["findings"]) == (0, "good", [])
    assert row["ref"] == airgapped_images


def test_a_second_run_keeps_what_is_there(airgapped_images: str, docker_host: str) -> None:
    before = docker(docker_host, "image", "inspect", "--format", "{{.Id}}", airgapped_images).stdout
    code, told = images(docker_host, "cu130", "--base", "airgapped")
    assert (code, [row["status"] for row in told["images"]]) == (0, ["kept"])  # type: ignore[attr-defined]
    after = docker(docker_host, "image", "inspect", "--format", "{{.Id}}", airgapped_images).stdout
    assert before == after


def test_another_cuda_shares_every_layer(airgapped_images: str, docker_host: str) -> None:
    code, told = images(docker_host, "cu126", "--base", "airgapped")
    assert code == 0
    other = told["images"][0]["ref"]  # type: ignore[index]
    layers = [
        docker(docker_host, "image", "inspect", "--format", "{{json .RootFS.Layers}}", ref).stdout
        for ref in (airgapped_images, other)
    ]
    assert layers[0] == layers[1] != ""


def test_each_python_builds_an_extension_without_a_network(
    airgapped_images: str, docker_host: str
) -> None:
    """A C extension from its source to a wheel that auditwheel knows, by another user than root."""
    script = (
        EXTENSION
        + """
set -eu
for tag in 310 311 312 313; do
    [ -e /opt/python/cp$tag-cp$tag ] || continue
    rm -rf build
    /opt/python/cp$tag-cp$tag/bin/python -m build --wheel --no-isolation --outdir out . > log 2>&1 || cat log
done
for wheel in out/*.whl; do
    auditwheel show "$wheel" | grep -o 'one-1-cp3[0-9]*' | head -n 1
    unzip -qo "$wheel" -d unpacked
done
for library in unpacked/*.so; do patchelf --print-rpath "$library"; done
"""
    )
    said = in_image(docker_host, airgapped_images, script, "--user", "12345:12345").split()
    pythons = docker(
        docker_host, "image", "inspect", "--format",
        '{{index .Config.Labels "org.paddlefleet.farm.pythons"}}', airgapped_images,
    ).stdout.split()  # fmt: skip
    assert said == [f"one-1-cp{python.replace('.', '')}" for python in pythons], (
        "no run path is printed"
    )


def test_no_path_of_this_host_is_in_the_image(airgapped_images: str, docker_host: str) -> None:
    """The old prefixes of the copied CPythons, the checkout and the home folder."""
    homes = {str(Path.home() / ".pyenv"), str(REPOSITORY)}
    words = " ".join(f"-e {home}/" for home in homes)
    script = f"grep -rIl {words} /opt /etc /usr/local 2>/dev/null | head -n 5; true"
    assert in_image(docker_host, airgapped_images, script, "--user", "0").strip() == ""


def test_the_wheelhouse_is_in_no_layer(airgapped_images: str, docker_host: str) -> None:
    script = r"find / -xdev \( -name '*.whl' -o -path /farm \) -not -path '*/ensurepip/*'"
    assert in_image(docker_host, airgapped_images, script, "--user", "0") == ""
    history = docker(
        docker_host, "history", "--no-trunc", "--format", "{{.CreatedBy}}", airgapped_images
    )
    assert "wheelhouse" not in history.stdout


@pytest.fixture
def leaky_image(airgapped_images: str, docker_host: str) -> Iterator[str]:
    """The build image with what must never be in one, under a name of its own."""
    bad = (
        f"FROM {airgapped_images}\n"
        "ENV PIP_INDEX_URL=https://index.example/simple\n"
        "RUN mkdir -p /usr/local/share/ca-certificates && touch /usr/local/share/ca-certificates/own.crt "
        "&& touch /etc/pip.conf && rm /usr/local/bin/ninja\n"
    )
    build = subprocess.run(
        ("docker", "--host", docker_host, "build", "--network", "none", "--tag", LEAKY, "-"),
        input=bad, capture_output=True, text=True, check=False, env={**os.environ, "DOCKER_BUILDKIT": "0"},
    )  # fmt: skip
    assert build.returncode == 0, build.stdout + build.stderr
    yield LEAKY
    docker(docker_host, "rmi", LEAKY)


def test_what_must_not_be_in_an_image_is_found(
    leaky_image: str, docker_host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    engine = find_engine("docker", os.environ)
    facts = engine.image(leaky_image)
    assert facts is not None
    base = base_behind(facts, engine, load_pins(), facts.pythons)
    build = replace(plan_build("13.0", base), ref=leaky_image)
    found = {(item.rule, item.subject) for item in judge(build, look(engine, facts), "x86_64")}
    assert found == {
        ("image-pip-configuration", "PIP_INDEX_URL"),
        ("image-configuration", "/etc/pip.conf"),
        ("image-configuration", "/usr/local/share/ca-certificates/own.crt"),
        ("image-content", "ninja"),
    }


@pytest.mark.slow
def test_a_test_image_runs_paddle_as_an_ordinary_user(
    airgapped_images: str, docker_host: str
) -> None:
    code, told = images(docker_host, "cu130", "--base", "airgapped", "--python", "3.12")
    assert code == 0, told
    ref = "paddlefleet-farm/test:cu130-cp312"
    script = "id -u; readlink /proc/1/exe; python -c 'import paddle; print(int(paddle.ones([2, 3]).sum()))'"
    lines = in_image(docker_host, ref, script).split()
    assert lines == ["1000", "/usr/bin/tini", "6"]
    code, told = images(docker_host, "cu130", "--verify", "--python", "3.12")
    assert [row["status"] for row in told["images"]] == ["good", "good"]  # type: ignore[attr-defined]
