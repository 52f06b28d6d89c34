"""A library enters a checkout whole, or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.errors import ConfigError, FindingError
from ci.findings import Finding
from ci.integration.scaffold.integrate import integrate
from ci.integration.scaffold.registry_file import REGISTRY, Registry
from ci.integration.scaffold.remove import remove
from ci.integration.scaffold.request import Exercise, IntegrateRequest
from ci.registry import REPOSITORY
from tests.unit.integration.scaffold.conftest import SOURCES
from tests.unit.integration.scaffold.scratch import call, state_of

Source = Callable[..., IntegrateRequest]
THIRD_PARTY = "packages/paddlefleet_ops/third_party"
KINDS = sorted(SOURCES)
BAD = Finding(
    "lazy-torch-import", "scan_ops/kernels.py", "torch is imported late", "import it early"
)


def good(_: str) -> tuple[Finding, ...]:
    return ()


def farm(checkout: Path, *arguments: str) -> str:
    """What ``python -m ci`` of the checkout prints."""
    done = subprocess.run(
        (sys.executable, "-m", "ci", *arguments),
        cwd=checkout, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- what is there afterwards ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_farm_knows_the_library_and_its_sources(
    checkout: Path, source: Source, kind: str
) -> None:
    request = source(kind)
    plan = integrate(request, good, repository=checkout).plan
    assert "0 problems" in farm(checkout, "submodules", "--libs", request.name)
    farm(checkout, "sync", "--check")
    listed = json.loads(farm(checkout, "libraries", "--json"))["libraries"]
    (values,) = (item for item in listed if item["name"] == request.name)
    assert values["kind"] == kind
    assert values["pin"] == plan.commit == call("rev-parse", "HEAD", cwd=Path(request.url)).strip()


@pytest.mark.parametrize("kind", KINDS)
def test_git_sees_a_submodule_at_its_pin(checkout: Path, source: Source, kind: str) -> None:
    request = source(kind)
    plan = integrate(request, good, repository=checkout).plan
    path = f"{THIRD_PARTY}/{request.name}"
    assert call("submodule", "status", path, cwd=checkout).split()[:2] == [plan.commit, path]
    folder = checkout / path
    assert (folder / ".git").is_file()
    assert (folder / ".git").read_text().startswith("gitdir: ../")
    git_dir = Path(call("rev-parse", "--absolute-git-dir", cwd=folder).strip())
    assert git_dir == (checkout / ".git" / "modules" / path).resolve()
    assert call("status", "--porcelain", cwd=folder) == ""


def test_a_clone_of_the_commit_gets_the_same_sources(
    checkout: Path, source: Source, tmp_path: Path
) -> None:
    request = source("python_dsl")
    integrate(request, good, repository=checkout)
    call("add", "--all", cwd=checkout)
    call("commit", "-q", "-m", "one more", cwd=checkout)
    other = tmp_path / "other"
    call("clone", "-q", str(checkout), str(other), cwd=tmp_path)
    path = f"{THIRD_PARTY}/{request.name}"
    call("submodule", "--quiet", "update", "--init", path, cwd=other)
    assert (other / path / "scan_ops" / "kernels.py").is_file()


DECLARED = {
    "header_only": {
        "artifacts": [["token_packing", "token_packing"]],
        "public_names": ["pack"],
        "compat_scope": ["token_packing"],
        "varies_by": ["python"],
        "depends_on": [],
    },
    "cuda_extension": {
        "artifacts": [
            ["axpy", "axpy"], ["axpy_cpp.py", "axpy_cpp.py"], ["axpy_cpp.so", "axpy_cpp.so"],
        ],
        "public_names": ["axpy", "scale"],
        "compat_scope": ["axpy"],
        "varies_by": ["capability", "cuda", "python"],
        "depends_on": [],
    },
    "ep_comm": {
        "artifacts": [["ring_dispatch", "ring_dispatch"]],
        "public_names": ["Buffer"],
        "compat_scope": ["ring_dispatch"],
        "varies_by": [],
        "depends_on": [],
    },
    "python_dsl": {
        "artifacts": [["scan_ops", "scan_ops"]],
        "public_names": ["kernels", "scan"],
        "compat_scope": ["scan_ops", "quack", "triton"],
        "varies_by": [],
        "depends_on": ["quack"],
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_sources_say_is_declared_and_told(
    checkout: Path, source: Source, kind: str
) -> None:
    request = source(kind)
    done = integrate(request, good, repository=checkout)
    listed = json.loads(farm(checkout, "libraries", "--json"))["libraries"]
    (values,) = (item for item in listed if item["name"] == request.name)
    assert {name: values[name] for name in DECLARED[kind]} == DECLARED[kind]
    notes = {note.field: note for note in done.plan.notes}
    assert notes["module"].value == values["module"]
    assert notes["public names"].origin.startswith(
        ("src/" if kind == "header_only" else "") + f"{values['module']}/__init__.py"
    )


def test_what_the_user_says_wins(checkout: Path, source: Source) -> None:
    request = source(
        "python_dsl",
        availability="scanning",
        public_names=("scan_ops.kernels:scan",),
        scope=("triton",),
        requires_cuda=">=12.9",
        requires_python=">=3.12",
        requires_capability=">=9.0,<11.0",
        cpu_path=True,
        run_requires=("einops>=0.8",),
        build_requires=("setuptools>=77",),
        hint='choose "eager" without it',
    )
    integrate(request, good, repository=checkout)
    library = Registry.read(checkout).find("scan-ops")
    assert library is not None
    assert library.availability == "scanning"
    assert library.public_names == ("scan_ops.kernels:scan",)
    assert library.compat_scope == ("scan_ops", "triton")
    assert library.requires.as_dict() == {
        "cuda": ">=12.9", "python": ">=3.12", "capability": ">=9.0,<11.0", "cpu_path": True,
    }  # fmt: skip
    assert library.run_requires == ("einops>=0.8",)
    assert library.build_requires == ("setuptools>=77",)
    assert library.hint.endswith('choose "eager" without it')


@pytest.mark.parametrize("revision", ["main", "v1", "first", "short"])
def test_a_revision_is_pinned_by_its_full_commit(
    checkout: Path, source: Source, commit_files: Any, revision: str
) -> None:
    request = source("ep_comm")
    repository = Path(request.url)
    first = call("rev-parse", "HEAD", cwd=repository).strip()
    call("tag", "-a", "v1", "-m", "one", cwd=repository)
    head = commit_files(repository, {"more.txt": "more"})
    given = {"first": first, "short": first[:9]}.get(revision, revision)
    plan = integrate(replace(request, revision=given), good, repository=checkout).plan
    assert plan.commit == (head if revision == "main" else first)


def test_nested_submodules_are_fetched_when_they_are_asked_for(
    checkout: Path, source: Source, commit_files: Any, tmp_path: Path, git: Any
) -> None:
    inner = tmp_path / "sources" / "inner"
    commit_files(inner, {"inner.h": "#pragma once\n"})
    request = source("ep_comm")
    git("submodule", "--quiet", "add", str(inner), "third/inner", cwd=Path(request.url))
    git("commit", "-q", "-m", "inner", cwd=Path(request.url))
    before = state_of(checkout)
    folder = checkout / THIRD_PARTY / request.name

    done = integrate(request, good, repository=checkout)
    assert not (folder / "third" / "inner" / "inner.h").exists()
    assert [note.value for note in done.plan.notes if "nested" in note.field] == ["none"]
    assert "0 problems" in farm(checkout, "submodules", "--libs", request.name)
    remove(request.name, repository=checkout)
    assert state_of(checkout) == before

    integrate(replace(request, nested=()), good, repository=checkout)
    assert (folder / "third" / "inner" / "inner.h").is_file()
    assert "0 problems" in farm(checkout, "submodules", "--libs", request.name)
    remove(request.name, repository=checkout)
    assert state_of(checkout) == before


# --- nothing of it stays --------------------------------------------------------------------------


class Stop(BaseException):
    """Stands for whatever ends a program."""


def steps_of(checkout: Path, request: IntegrateRequest) -> list[str]:
    steps: list[str] = []
    integrate(request, good, repository=checkout, progress=steps.append)
    remove(request.name, repository=checkout)
    return steps


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt, OSError])
def test_a_failure_at_any_step_leaves_the_checkout_as_it_was(
    checkout: Path, source: Source, error: type[BaseException]
) -> None:
    request = source("ep_comm", wrapper="src/paddlefleet/ring.py")
    before = state_of(checkout)
    steps = steps_of(checkout, request)
    assert len(steps) > 10
    assert state_of(checkout) == before
    for step in steps:

        def stop(told: str, at: str = step) -> None:
            if told == at:
                raise error

        with pytest.raises(error):
            integrate(request, good, repository=checkout, progress=stop)
        assert state_of(checkout) == before, step


@pytest.mark.parametrize("command", ["checkout", "submodule", "update-index", "rev-parse HEAD"])
def test_a_git_that_fails_leaves_the_checkout_as_it_was(
    checkout: Path, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    request = source("ep_comm")
    before = state_of(checkout)
    real = subprocess.run(("which", "git"), capture_output=True, text=True, check=True)
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text(
        f'#!/bin/sh\ncase " $* " in *" {command} "*) [ -e {tmp_path}/undoing ] || '
        f'{{ touch {tmp_path}/undoing; echo "fatal: disk is full" >&2; exit 128; }};; esac\n'
        f'exec {real.stdout.strip()} "$@"\n'
    )
    fake.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{fake.parent}{os.pathsep}{os.environ['PATH']}")
        with pytest.raises(Exception, match=r"git|derived from"):
            integrate(request, good, repository=checkout)
    assert (tmp_path / "undoing").exists()
    assert state_of(checkout) == before


INTERRUPTED = """
import sys, time
from pathlib import Path
from ci.integration.scaffold.integrate import integrate
from ci.integration.scaffold.request import IntegrateRequest

def check(name):
    print("checking", flush=True)
    time.sleep(60)

request = IntegrateRequest(name="ring-dispatch", kind="ep_comm", url=sys.argv[1])
integrate(request, check, repository=Path(sys.argv[2]))
"""


def test_ctrl_c_leaves_the_checkout_as_it_was(checkout: Path, source: Source) -> None:
    request = source("ep_comm")
    before = state_of(checkout)
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, request.url, str(checkout)],
        cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "checking\n"
        assert state_of(checkout) != before
        process.send_signal(signal.SIGINT)
        for _ in range(5):  # an impatient user
            time.sleep(0.02)
            process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in said
    assert state_of(checkout) == before


def test_a_failing_check_undoes_everything_and_tells_its_findings(
    checkout: Path, source: Source
) -> None:
    request = source("python_dsl")
    before = state_of(checkout)
    asked = []

    def check(name: str) -> tuple[Finding, ...]:
        asked.append((name, (checkout / THIRD_PARTY / name / "setup.py").exists()))
        assert Registry.read(checkout).find(name) is not None
        return (BAD,)

    with pytest.raises(FindingError) as caught:
        integrate(request, check, repository=checkout)
    assert asked == [("scan-ops", False)]
    assert caught.value.details == (BAD.text,)
    assert state_of(checkout) == before


def test_a_failing_check_can_be_kept(checkout: Path, source: Source) -> None:
    done = integrate(source("python_dsl", keep=True), lambda _: (BAD,), repository=checkout)
    assert done.failing == (BAD,)
    assert (checkout / THIRD_PARTY / "scan-ops" / "scan_ops").is_dir()


def test_a_note_fails_nothing(checkout: Path, source: Source) -> None:
    note = replace(BAD, level="note")
    done = integrate(source("python_dsl"), lambda _: (note,), repository=checkout)
    assert done.findings == (note,)
    assert done.failing == ()


# --- bad input ------------------------------------------------------------------------------------


def problems_of(request: IntegrateRequest, checkout: Path) -> str:
    """All problems as one text; the checkout is as it was."""
    before = state_of(checkout)
    with pytest.raises(ConfigError) as caught:
        integrate(request, good, repository=checkout)
    assert state_of(checkout) == before
    return "\n".join((caught.value.message, *caught.value.details))


def test_everything_wrong_is_told_at_once(checkout: Path, source: Source) -> None:
    (checkout / REGISTRY).write_text((checkout / REGISTRY).read_text() + "# edited\n")
    (checkout / THIRD_PARTY / "Quack").mkdir()
    request = source("ep_comm", revision="mian", module="quack", requires_cuda="x")
    problems = problems_of(replace(request, name="Quack"), checkout)
    for words in (
        "library 'Quack' is declared already, as quack",
        "module 'quack' is given by quack",
        "is_quack_available() is that of quack",
        f"{REGISTRY} has changes that are not committed",
        f"{THIRD_PARTY}/Quack is there already",
        "--rev mian: no branch, tag or commit",
        "nearest: main",
        "--requires-cuda 'x'",
    ):
        assert words in problems


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"url": "/no/such/folder"}, "git cannot read it: fatal: repository '/no/such/folder'"),
        ({"revision": "f" * 40}, "no branch, tag or commit"),
        ({"kind": "header-only"}, "unknown kind"),
        ({"name": "flashmla"}, "library 'flashmla' is declared already, as FlashMLA"),
        ({"artifacts": (("scan_ops", "deep_ep"),)}, "target 'deep_ep' is that of DeepEP"),
        ({"artifacts": (("scan_ops", "../up"),)}, "outside its folder"),
        ({"artifacts": (("other", "other"),)}, "no artifact gives its module"),
        ({"availability": "sonic_moe"}, "is_sonic_moe_available() is that of sonic-moe"),
        ({"wrapper": "ci/proc.py"}, "ci/proc.py is there already"),
    ],
)
def test_one_wrong_thing_is_named(
    checkout: Path, source: Source, changes: dict[str, Any], words: str
) -> None:
    assert words in problems_of(replace(source("python_dsl"), **changes), checkout)


def test_stale_derived_files_are_told(checkout: Path, source: Source) -> None:
    path = checkout / ".gitignore"
    path.write_text(path.read_text().replace("/fla\n", "/flaw\n"))
    call("commit", "-qam", "stale", cwd=checkout)
    assert "python -m ci sync" in problems_of(source("ep_comm"), checkout)


def test_sources_without_a_package_are_told(checkout: Path, source: Source) -> None:
    request = source("ep_comm")
    repository = Path(request.url)
    call("rm", "-rq", "ring_dispatch", cwd=repository)
    call("commit", "-qm", "nothing left", cwd=repository)
    assert "no Python package" in problems_of(request, checkout)


def test_several_packages_are_told(checkout: Path, source: Source) -> None:
    request = source("ep_comm", {"a/__init__.py": "", "b/__init__.py": ""}, name="other")
    (Path(request.url) / "pyproject.toml").unlink()
    call("commit", "-qam", "no name", cwd=Path(request.url))
    problems = problems_of(request, checkout)
    assert "several packages: a, b, ring_dispatch; choose with --module" in problems


def test_an_extension_module_whose_file_cannot_be_known_is_told(
    checkout: Path, source: Source
) -> None:
    setup = (
        "from setuptools import Extension, setup\nsetup(ext_modules=[Extension('fast', ['a.c'])])\n"
    )
    assert "setup.py:2: the file of the extension module fast" in problems_of(
        source("ep_comm", {"setup.py": setup}), checkout
    )


def test_a_folder_that_is_no_checkout_is_told(tmp_path: Path, source: Source) -> None:
    with pytest.raises(Exception, match=r"checkout|git rev-parse"):
        integrate(source("ep_comm"), good, repository=tmp_path)


def test_exercises_are_declared_and_become_calls(checkout: Path, source: Source) -> None:
    exercises = (Exercise("scan="), Exercise("scan_ops.kernels:scan=paddle.ones([2]) -> [2]"))
    names = ("scan", "scan_ops.kernels:scan")
    integrate(
        source("python_dsl", exercises=exercises, public_names=names), good, repository=checkout
    )
    library = Registry.read(checkout).find("scan-ops")
    assert library is not None
    assert library.exercises == {"scan": "", "scan_ops.kernels:scan": "paddle.ones([2])"}
    text = (checkout / "tests/single_card_tests/custom_ops/test_scan_ops.py").read_text()
    assert "result = paddlefleet_ops.scan_ops.scan()" in text
    assert "result = paddlefleet_ops.scan_ops.kernels.scan(paddle.ones([2]))" in text


def test_an_exercise_of_no_public_name_is_told(checkout: Path, source: Source) -> None:
    request = source("python_dsl", exercises=(Exercise("other=1"),))
    assert "'other'" in problems_of(request, checkout)
