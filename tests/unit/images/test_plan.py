"""Which images a request means, what each is made from, and when one is stale."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ci.cli import build_parser
from ci.cli.images import _request
from ci.errors import ConfigError, InfrastructureError
from ci.executors.model import LABEL, EngineFacts, ImageFacts
from ci.images import context, dry_run, produce
from ci.images.airgapped import Base, load_recipe
from ci.images.bake import bake_text
from ci.images.bases import GCC_TOOLSET, NEWEST_GCC, base_behind, named_base, own_base, pinned_base
from ci.images.build import BaseFacts, farm_python, labels_of, make, plan_build, plan_test, state
from ci.images.dry_run import commands
from ci.images.pins import load_pins
from ci.images.produce import planned, verify
from ci.images.pythons import LeftOut, PythonBuild
from ci.images.wheelhouse import platforms
from ci.matrix.load import load
from ci.registry import MATRIX, REPOSITORY

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
BASE = BaseFacts("paddlefleet-farm/base:bookworm", "sha256:b", PYTHONS, "packages", complete=True)


def engine_facts(**changes: object) -> EngineFacts:
    values: dict[str, object] = {
        "name": "docker", "program": Path("docker"), "client_version": "28", "server_version": "28",
        "rootless": False, "architecture": "x86_64", "data_root": None, "storage_driver": "overlay2",
        "cgroup_version": "2", "cpus": 2, "memory": 1,
    }  # fmt: skip
    return EngineFacts(**(values | changes))  # type: ignore[arg-type]


@dataclass
class FakeEngine:
    """An engine that knows some images and runs nothing."""

    images: dict[str, ImageFacts] = field(default_factory=dict)
    facts: EngineFacts = field(default_factory=engine_facts)

    def image(self, ref: str) -> ImageFacts | None:
        return self.images.get(ref)


def image(ref: str, labels: Mapping[str, str]) -> ImageFacts:
    return ImageFacts(ref, "sha256:i", "x86_64", 1, labels)


def request(*words: str) -> Any:
    return _request(build_parser().parse_args(["images", *words]))


# -- definition ------------------------------------------------------------------------------------


@pytest.fixture
def docker_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of ``docker/`` that a test may edit."""
    for name in ("build.Dockerfile", "test.Dockerfile", *context.SCRIPTS):
        (tmp_path / name).write_bytes((context.DOCKER / name).read_bytes())
    monkeypatch.setattr(context, "DOCKER", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["build.Dockerfile", *context.SCRIPTS])
def test_an_edit_makes_the_image_stale(docker_folder: Path, name: str) -> None:
    before = plan_build("13.0", BASE)
    finished = image(before.ref, labels_of(before))
    assert state(before, finished) == "current"
    with (docker_folder / name).open("a") as file:
        file.write("# another line\n")
    assert state(plan_build("13.0", BASE), finished) == "stale"


def test_a_lock_or_another_base_makes_the_image_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = plan_build("13.0", BASE).definition
    assert plan_build("13.0", replace(BASE, digest="sha256:c")).definition != before
    lock = tmp_path / "lock.txt"
    lock.write_text("pip==1 \\\n    --hash=sha256:0\n")
    monkeypatch.setattr(context, "committed", lambda name: lock)
    assert plan_build("13.0", BASE).definition != before


def test_each_cuda_and_each_python_is_an_image_of_its_own() -> None:
    builds = [plan_build(cuda, BASE) for cuda in ("12.6", "13.0")]
    builds += [plan_test("13.0", python, BASE, "paddlepaddle==3.3.1") for python in PYTHONS]
    assert len({item.ref for item in builds}) == len({item.definition for item in builds}) == 6


def test_labels_are_those_that_executors_read() -> None:
    build = plan_build("13.0", BASE)
    facts = image(build.ref, labels_of(build))
    assert facts.pythons == PYTHONS
    assert [facts.label(name) for name in ("role", "cuda", "compiler", "base", "base-digest")] == [
        "build", "13.0", "packages", BASE.ref, BASE.digest,
    ]  # fmt: skip


@pytest.mark.parametrize("role", ["build", "test"])
def test_the_dockerfile_declares_each_argument_and_writes_each_label(role: str) -> None:
    build = plan_build("13.0", BASE) if role == "build" else plan_test("13.0", "3.12", BASE, "p")
    text = (REPOSITORY / "docker" / f"{role}.Dockerfile").read_text("utf-8")
    declared = {
        line.split()[1].partition("=")[0] for line in text.splitlines() if line.startswith("ARG ")
    }
    assert build.arguments.keys() <= declared
    for label in labels_of(build):
        assert f"{label}=" in text


def test_the_farm_runs_on_the_first_python_that_it_knows() -> None:
    assert farm_python(PYTHONS) == "3.12"
    assert farm_python(("3.10",)) == "3.10"
    with pytest.raises(ConfigError):
        farm_python(("3.8",))


@pytest.mark.parametrize(
    ("ref", "words"),
    [
        ("paddlefleet-farm/base:bookworm", "--base airgapped --suite bookworm"),
        ("paddlefleet-farm/base:trixie-clang", "--base airgapped --suite trixie --with-clang"),
        ("docker.io/nvidia/cuda:13.0.3-devel-rockylinux8", ""),
    ],
)
def test_an_image_knows_the_command_that_makes_it_again(ref: str, words: str) -> None:
    command = plan_build("13.0", replace(BASE, ref=ref)).command
    assert command == f"python -m ci images 13.0 {words}".rstrip()
    assert request(*command.split()[4:]).cudas[0].version == "13.0"


def test_a_test_image_needs_its_python_in_the_base() -> None:
    with pytest.raises(ConfigError, match=r"no CPython 3\.9"):
        plan_test("13.0", "3.9", BASE, "paddlepaddle")


# -- bases -----------------------------------------------------------------------------------------


def test_the_gcc_of_public_images_fits_every_cuda_of_the_matrix() -> None:
    versions = {entry.version for entry in load(MATRIX).cudas}
    assert versions <= NEWEST_GCC.keys()
    assert min(NEWEST_GCC[version] for version in versions) == GCC_TOOLSET


@pytest.mark.parametrize("cuda", ["12.6", "12.9", "13.0"])
def test_a_public_base_takes_its_pythons_from_a_manylinux_image(cuda: str) -> None:
    chosen = pinned_base("build", "build", cuda, load_pins(), PYTHONS)
    assert f"cuda:{cuda}" in chosen.base.ref
    assert "manylinux" in chosen.base.pythons_ref
    assert chosen.base.compiler == "nvcc"
    assert bool(chosen.findings) == ("@" not in chosen.base.ref)


def test_paddle_s_own_image_brings_its_pythons_and_its_compiler() -> None:
    base = pinned_base("build", "paddle", "13.0", load_pins(), PYTHONS).base
    assert (base.pythons_ref, base.gcc_toolset) == ("", "")
    arguments = plan_build("13.0", base).arguments
    assert arguments["PYTHONS"] == arguments["BASE"]


def test_a_named_image_tells_of_itself_by_its_labels() -> None:
    labels = {LABEL + "role": "base", LABEL + "pythons": "3.11", LABEL + "compiler": "packages"}
    here = FakeEngine({"mine:1": image("mine:1", labels)})
    base = named_base("mine:1", here, PYTHONS).base  # type: ignore[arg-type]
    assert (base.pythons, base.compiler, base.complete) == (("3.11",), "packages", True)
    elsewhere = named_base("reg.example/a@sha256:1", here, PYTHONS).base  # type: ignore[arg-type]
    assert (elsewhere.pythons, elsewhere.digest) == (PYTHONS, "sha256:1")


def test_the_base_behind_an_image_is_that_of_its_labels() -> None:
    pins = load_pins()
    labels = {
        LABEL + "role": "base",
        LABEL + "pythons": " ".join(PYTHONS),
        LABEL + "compiler": "packages",
    }
    base = image(BASE.ref, labels)
    build = plan_build("13.0", own_base(base))
    finished = image(build.ref, labels_of(build))
    there = FakeEngine({base.ref: base})
    assert base_behind(finished, there, pins, PYTHONS) == own_base(base)  # type: ignore[arg-type]
    gone = base_behind(finished, FakeEngine(), pins, PYTHONS)  # type: ignore[arg-type]
    assert plan_build("13.0", gone).definition == build.definition


# -- requests --------------------------------------------------------------------------------------


def test_without_names_all_cudas_are_meant() -> None:
    assert [entry.version for entry in request().cudas] == ["12.6", "12.9", "13.0"]


@pytest.mark.parametrize("name", ["cu126", "12.6"])
def test_a_cuda_has_two_names(name: str) -> None:
    assert [entry.version for entry in request(name).cudas] == ["12.6"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("cu118",), "cu118"),
        (("--python", "3.8"), "3.8"),
        (("--with-clang",), "air-gapped"),
    ],
)
def test_a_wrong_request_is_refused(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        request(*words)


def test_tests_are_asked_for_by_flag_or_by_python() -> None:
    assert request().tests == ()
    assert request("--test").tests == PYTHONS
    assert request("--python", "3.12").tests == ("3.12",)


def test_an_air_gapped_image_is_built_without_a_network() -> None:
    labels = {LABEL + "role": "base", LABEL + "pythons": "3.12", LABEL + "compiler": "packages"}
    base = image(BASE.ref, labels)
    builds, _ = planned(request("--base", "airgapped"), load_pins(), None, base)
    for build in builds:
        argv = build.argv("docker", Path("context"))
        assert argv[argv.index("--network") + 1] == "none"


def test_a_dry_run_of_public_images_is_made_of_whole_commands() -> None:
    lines, _ = commands(request("cu126", "--python", "3.12"), load_pins(), FakeEngine())  # type: ignore[arg-type]
    builds = [shlex.split(line) for line in lines if not line.startswith("#")]
    assert [words[words.index("--tag") + 1] for words in builds] == [
        "paddlefleet-farm/build:cu126",
        "paddlefleet-farm/test:cu126-cp312",
    ]
    assert all(words[0] == "DOCKER_BUILDKIT=0" for words in builds)
    assert "--network" not in builds[0]


def test_a_dry_run_does_not_make_up_what_only_the_base_can_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(produce, "base_plan", own_plan)
    monkeypatch.setattr(dry_run, "base_plan", own_plan)
    lines, _ = commands(request("cu130", "--base", "airgapped"), load_pins(), FakeEngine())  # type: ignore[arg-type]
    assert lines[0].startswith("debootstrap --variant=minbase")
    assert any("CPython 3.13: this host has none" in line for line in lines)
    (build,) = [line for line in lines if " build " in line and not line.startswith("#")]
    assert f"BASE_DIGEST={dry_run.NOT_YET}" in build
    assert f"DEFINITION={dry_run.NOT_YET}" in build


def own_plan(request: Any) -> Base:
    build = PythonBuild("3.12", "3.12.1", Path("/own"), "digest")
    recipe = load_recipe(request.suite, with_clang=request.with_clang)
    return Base(recipe, (build,), (LeftOut("3.13", "this host has none"),))


# -- bake ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def baked() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        (REPOSITORY / "docker/docker-bake.json").read_text("utf-8")
    )
    return document


def test_the_bake_file_has_every_variant_of_the_matrix(baked: dict[str, Any]) -> None:
    file = load(MATRIX)
    labels = [entry.version.replace(".", "") for entry in file.cudas]
    tags = [python.replace(".", "") for python in file.pythons]
    wanted = {f"build-cu{label}" for label in labels}
    wanted |= {f"test-cu{label}-cp{tag}" for label in labels for tag in tags}
    assert baked["target"].keys() == wanted
    groups = baked["group"]
    assert {*groups["build"]["targets"], *groups["test"]["targets"]} == wanted


def test_the_bake_file_is_up_to_date(baked: dict[str, Any]) -> None:
    assert json.loads(bake_text(load(MATRIX), load_pins())) == baked


def test_bake_and_the_verb_make_the_same_image(baked: dict[str, Any]) -> None:
    builds, _ = planned(request("cu126"), load_pins(), None, None)
    target = baked["target"]["build-cu126"]
    assert target["args"] == dict(builds[0].arguments)
    assert target["tags"] == [builds[0].ref]


# -- making and looking ----------------------------------------------------------------------------


def test_an_image_with_the_same_definition_is_kept(tmp_path: Path) -> None:
    build = plan_build("13.0", BASE)
    here = FakeEngine({build.ref: image(build.ref, labels_of(build))})
    said: list[str] = []
    made = make(build, tmp_path, here, tmp_path, said.append)  # type: ignore[arg-type]
    assert made.status == "kept"
    assert "there already" in said[0]


def fake_builder(folder: Path) -> Path:
    program = folder / "docker"
    program.write_text('#!/bin/sh\necho "$DOCKER_BUILDKIT $*"\n')
    program.chmod(0o755)
    return program


def test_a_build_whose_image_is_elsewhere_is_an_error(tmp_path: Path) -> None:
    here = FakeEngine(facts=engine_facts(program=fake_builder(tmp_path)))
    with pytest.raises(InfrastructureError, match="does not have it") as caught:
        make(plan_build("13.0", BASE), tmp_path, here, tmp_path, lambda text: None)  # type: ignore[arg-type]
    assert "buildx" in caught.value.next_step
    log = (tmp_path / "build-cu130.log").read_text()
    assert "0 build --force-rm --network none --target build" in log


def test_an_image_that_is_not_there_is_a_finding() -> None:
    (row,) = verify(request("cu130", "--verify"), load_pins(), FakeEngine(), print)  # type: ignore[arg-type]
    assert row.status == "absent"
    assert [item.rule for item in row.findings] == ["image-absent"]


def test_nothing_is_made_by_an_engine_whose_data_is_inside_the_project() -> None:
    inside = FakeEngine(facts=engine_facts(data_root=REPOSITORY / "ci"))
    with pytest.raises(ConfigError, match="lie in each other"):
        produce.produce(request("cu130", "--base", "airgapped"), load_pins(), inside, print)  # type: ignore[arg-type]


def test_a_full_disk_is_told_before_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "NEEDED_BYTES", 1 << 60)
    data = FakeEngine(facts=engine_facts(data_root=tmp_path))
    with pytest.raises(InfrastructureError, match="are needed"):
        produce.produce(request("cu130", "--base", "airgapped"), load_pins(), data, print)  # type: ignore[arg-type]


def test_a_context_holds_scripts_locks_and_wheels_and_nothing_else(tmp_path: Path) -> None:
    house = tmp_path / "house"
    house.mkdir()
    (house / "a-1-py3-none-any.whl").write_text("a")
    (house / "pip.conf").write_text("[global]")
    folder = context.write_context(
        "build", tmp_path / "context", [house, house], {"farm": "a==1\n"}
    )
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    scripts = {f"scripts/{name}" for name in context.SCRIPTS}
    assert files == {"Dockerfile", "locks/farm.txt", "wheelhouse/a-1-py3-none-any.whl", *scripts}


def test_wheels_are_chosen_by_the_c_library_of_the_base() -> None:
    """As packaging numbers them (PEP 600): newest first, none newer than the base's own."""
    tags = platforms("2.28", "x86_64")
    assert tags[0] == "manylinux_2_28_x86_64"
    assert {"manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_5_x86_64"} <= set(tags)
    assert "manylinux_2_29_x86_64" not in tags
