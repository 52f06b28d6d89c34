"""What is wrong with an image: every rule is made to fail once."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from ci.executors.model import ImageFacts
from ci.images.build import BaseFacts, labels_of, plan_build, plan_test
from ci.images.verify import LOOK, Layer, Seen, judge, judge_texts, older, parse_history

BASE = BaseFacts("base:1", "sha256:b", ("3.12", "3.13"), "packages", complete=True)
BUILD = plan_build("13.0", BASE)
TEST = plan_test("13.0", "3.12", BASE, "paddlepaddle==3.3.1")
GOOD_PYTHON = {"version": "3.12.1", "header": True, "missing": []}
SAID = {
    "auditwheel": "auditwheel 6.8.2 installed at /opt/farm/lib/python3.12/site-packages/auditwheel",
    "g++": "12.2.0",
    "git": "git version 2.39.5",
    "ninja": "1.13.2.git.kitware.jobserver-pipe-1",
    "patchelf": "patchelf 0.19.3",
    "pyproject-build": "build 1.6.1 (/opt/farm/lib)",
    "sccache": "sccache 0.16.0",
    "uv": "uv 0.13.9",
}


def inside(**changes: object) -> dict[str, Any]:
    return {
        "tools": {name: {"said": said, "problem": ""} for name, said in SAID.items()},
        "pythons": {
            "cp312-cp312": GOOD_PYTHON,
            "cp313-cp313": GOOD_PYTHON,
            "cp39-cp39": GOOD_PYTHON,
        },
        "test": {"pytest": "9", "numpy": "2", "paddlepaddle": "3.3.1"},
        "configurations": [],
        "extra_certificates": [],
        "bundled_certificates": [140, 140],
        "writable": ["/project", "/tmp", "/home/farm"],
        "uid": 1000,
    } | changes


def seen(build: Any = BUILD, *, facts: dict[str, Any] | None = None, **changes: object) -> Seen:
    values = {
        "ref": build.ref, "id": "sha256:i", "architecture": "x86_64", "size": 1, "labels": labels_of(build),
    } | (facts or {})  # fmt: skip
    return Seen(ImageFacts(**values), "{}", (), inside(**changes))


def rules(found: Any) -> list[str]:
    return [item.rule for item in found]


@pytest.mark.parametrize("build", [BUILD, TEST], ids=lambda build: build.role)
def test_a_good_image_has_no_finding(build: Any) -> None:
    assert judge(build, seen(build), "x86_64") == ()


def tool(name: str, said: str = "", problem: str = "") -> dict[str, Any]:
    tools = inside()["tools"]
    return {**tools, name: {"said": said, "problem": problem}}


def python(name: str, told: dict[str, Any] | None) -> dict[str, Any]:
    pythons = {**inside()["pythons"], name: told}
    return {key: value for key, value in pythons.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tools": tool("ninja", "1.12.1")}, "older than 1.13"),
        ({"tools": tool("patchelf", "patchelf 0.14.3")}, "older than 0.14.5"),
        ({"tools": tool("g++", "10.2.1")}, "older than 11"),
        ({"tools": tool("uv", problem="No such file")}, "it does not run: No such file"),
        ({"pythons": python("cp313-cp313", None)}, "there is none below /opt/python"),
        (
            {"pythons": python("cp312-cp312", {"problem": "GLIBC_2.36"})},
            "it does not run: GLIBC_2.36",
        ),
        (
            {"pythons": python("cp312-cp312", GOOD_PYTHON | {"missing": ["ssl: no"]})},
            "it lacks ssl: no",
        ),
        ({"pythons": python("cp312-cp312", GOOD_PYTHON | {"header": False})}, "Python.h"),
        ({"pythons": python("cp39-cp39", None)}, "cibuildwheel"),
        ({"configurations": ["/etc/pip.conf"]}, "a configuration of one machine"),
        (
            {"extra_certificates": ["/usr/local/share/ca-certificates/x.crt"]},
            "certificate authority",
        ),
        ({"bundled_certificates": [141, 140]}, "1 certificate authorities more"),
        ({"writable": ["/tmp", "/home/farm"]}, "cannot write"),
    ],
)
def test_each_fault_of_a_build_image_is_found(changes: dict[str, Any], told: str) -> None:
    (finding,) = judge(BUILD, seen(**changes), "x86_64")
    assert told in finding.why
    assert BUILD.ref in finding.place
    assert finding.mend


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"uid": 0}, "runs as root"),
        ({"test": {"pytest": "9", "numpy": "2"}}, "Paddle is missing"),
        ({"test": {"numpy": "2", "paddlepaddle-gpu": "3"}}, "pytest is missing"),
    ],
)
def test_each_fault_of_a_test_image_is_found(changes: dict[str, Any], told: str) -> None:
    (finding,) = judge(TEST, seen(TEST, **changes), "x86_64")
    assert told in finding.why


def test_a_wrong_architecture_is_found() -> None:
    found = judge(BUILD, seen(facts={"architecture": "aarch64"}), "x86_64")
    assert rules(found) == ["image-architecture"]


def test_a_stale_image_is_one_finding_with_the_command_that_renews_it() -> None:
    newer = plan_build("13.0", replace(BASE, digest="sha256:c"))
    (finding,) = judge(newer, seen(), "x86_64")
    assert finding.rule == "image-stale"
    assert finding.mend == "python -m ci images 13.0"


def test_a_label_that_was_changed_is_found() -> None:
    labels = {**labels_of(BUILD), "org.paddlefleet.farm.cuda": "12.6"}
    assert rules(judge(BUILD, seen(facts={"labels": labels}), "x86_64")) == ["image-label"]


def test_an_image_that_does_not_run_is_found() -> None:
    broken = Seen(seen().facts, "{}", (), {"problem": "exec format error"})
    (finding,) = judge(BUILD, broken, "x86_64")
    assert "exec format error" in finding.why


# -- what everyone can read ------------------------------------------------------------------------

HARMLESS = (
    "ENV PATH=/opt/compiler/bin:/usr/bin HOME=/home/farm NVARCH=x86_64 NV_CUDA_LIB_VERSION=13.0.3-1",
    "|2 FARM_PYTHON=3.12 PYTHON_VERSIONS=3.10 3.11 /bin/sh -c sh /farm/finish.sh build",
    'LABEL org.opencontainers.image.source="https://github.com/PaddlePaddle/PaddleFleet"',
    "RUN PIP_CONFIG_FILE=/dev/null PIP_NO_INDEX=1 pip install --require-hashes",
)
LEAKS = [
    ("image-secret", "|1 GITHUB_TOKEN=abcdef /bin/sh -c true"),
    ("image-secret", "ENV AWS_SECRET_ACCESS_KEY=abc"),
    ("image-secret", "ENV INDEX_PASSWORD=x"),
    ("image-secret", "RUN pip install -i https://me:pw@index.example/simple a"),
    ("image-secret", "COPY -----BEGIN RSA PRIVATE KEY-----"),
    ("image-secret", "ENV KEY=AKIAABCDEFGHIJKLMNOP"),
    ("image-secret", f"ENV X=ghp_{'a' * 36}"),
    ("image-pip-configuration", "|1 PIP_INDEX_URL=https://index.example/simple /bin/sh -c true"),
    ("image-pip-configuration", "ENV UV_DEFAULT_INDEX=https://index.example/simple"),
    ("image-certificate", "ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt"),
    ("image-certificate", "ENV SSL_CERT_FILE=/ca.pem"),
    ("image-proxy", "|1 https_proxy=http://proxy.example:3128 /bin/sh -c true"),
    ("image-proxy", "ENV NO_PROXY=localhost"),
]


@pytest.mark.parametrize("text", HARMLESS)
def test_ordinary_lines_of_a_history_are_harmless(text: str) -> None:
    assert list(judge_texts("i:1", text, (Layer(text, 0),))) == []


@pytest.mark.parametrize(
    ("rule", "text"), LEAKS, ids=[f"{n}-{leak[0]}" for n, leak in enumerate(LEAKS)]
)
def test_a_leak_is_found_in_the_history_and_in_the_configuration(rule: str, text: str) -> None:
    assert rules(judge_texts("i:1", "{}", (Layer(text, 0),))) == [rule]
    assert rules(judge_texts("i:1", json.dumps({"Env": [text]}), ())) == [rule]


def test_a_leak_s_value_is_not_told_again() -> None:
    (finding,) = judge_texts("i:1", "GITHUB_TOKEN=abcdef", ())
    assert "abcdef" not in finding.text


def test_a_history_has_sizes_and_instructions_that_span_lines() -> None:
    text = "0\tLABEL a=b\n157000000\tRUN one \\\n  two\n656301234\t\n"
    assert parse_history(text) == (
        Layer("LABEL a=b", 0),
        Layer("RUN one \\\n  two", 157000000),
        Layer("", 656301234),
    )


@pytest.mark.parametrize(
    ("said", "oldest", "is_older"),
    [
        ("1.13.0.git", "1.13", False),
        ("1.9.0", "1.13", True),
        ("patchelf 0.14.5", "0.14.5", False),
        ("no number", "1", True),
    ],
)
def test_versions_are_compared_as_numbers(said: str, oldest: str, is_older: bool) -> None:
    assert older(said, oldest) is is_older


def test_the_look_answers_with_json_on_any_host() -> None:
    """It needs the standard library alone: run as a container runs it, isolated and as text."""
    done = subprocess.run(
        (sys.executable, "-I", "-c", LOOK.read_text("utf-8").replace('"/usr", ', "")),
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["farm_python"] == sys.version.split()[0]
    assert told["tools"].keys() >= {"gcc", "ninja", "patchelf"}
    assert "git version" in told["tools"]["git"]["said"]
