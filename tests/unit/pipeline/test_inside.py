"""The containers of the farm: what they are made from, and what an image would compile with."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.errors import InfrastructureError
from ci.executors.choice import ContainerPlace
from ci.executors.model import LABEL, ContainerOptions, ContainerSpec
from ci.pipeline import plan as plan_module
from ci.pipeline.inside import farm_spec, limited_jobs, offer_of_image
from ci.proc import Command
from ci.registry import REPOSITORY
from tests.unit.executors.fake_engine import FACTS, FakeEngine, image

GIB = 1024**3
IMAGE = image("paddlefleet-farm/build:cu130")


def place(engine: FakeEngine | None = None, **options: object) -> ContainerPlace:
    return ContainerPlace(
        "asked",
        engine or FakeEngine(),
        {"13.0": IMAGE},
        ContainerOptions(**options),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("jobs", "cpus", "memory", "wanted"),
    [
        (8, None, None, 8),
        (8, 4.0, None, 4),
        (8, 0.5, None, 1),
        (2, 16.0, None, 2),
        (8, None, 6 * GIB, 3),
        (8, 4.0, 3 * GIB, 1),
        (8, None, GIB, 1),
    ],
)
def test_jobs_stay_within_the_limits_of_the_container(
    jobs: int, cpus: float | None, memory: int | None, wanted: int
) -> None:
    assert limited_jobs(jobs, cpus, memory) == wanted


def spec_of(tmp_path: Path, engine: FakeEngine | None = None, **options: object) -> ContainerSpec:
    cache, logs = tmp_path / "cache", tmp_path / "logs"
    return farm_spec(place(engine, **options), "13.0", cache, writable=(logs,))


def test_the_checkout_is_read_only_and_cache_and_logs_are_not(tmp_path: Path) -> None:
    mounts = {mount.source: mount for mount in spec_of(tmp_path).mounts}
    assert mounts[REPOSITORY].read_only
    assert not mounts[tmp_path / "cache"].read_only
    assert not mounts[tmp_path / "logs"].read_only
    assert all(mount.source == mount.target for mount in mounts.values() if mount.source in (
        REPOSITORY, tmp_path / "cache", tmp_path / "logs"))  # fmt: skip


def test_a_rootful_engine_runs_as_the_caller_a_rootless_one_as_its_root(tmp_path: Path) -> None:
    assert spec_of(tmp_path).user == f"{os.getuid()}:{os.getgid()}"
    rootless = FakeEngine(facts=replace(FACTS, rootless=True))
    assert spec_of(tmp_path, rootless).user == ""


def test_limits_network_image_and_owner_reach_the_container(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, cpus=2.0, memory=GIB, network="none")
    assert (spec.cpus, spec.memory, spec.network, spec.image) == (2.0, GIB, "none", IMAGE.id)
    assert spec.labels[LABEL + "owner"].split(":")[1] == str(os.getpid())


def test_no_path_of_the_host_is_put_in_front_of_the_images(tmp_path: Path) -> None:
    assert "PATH" not in spec_of(tmp_path).env


def document(*nvccs: str) -> str:
    found = [{"tool": "nvcc", "version": version, "path": "/x", "problem": ""} for version in nvccs]
    cudas = [
        {"cuda": "12.6", "usable": False, "error": {"message": "none"}},
        {"cuda": "13.0", "usable": True, "uses": "nvcc of CUDA 13.0", "from": "packages"},
    ]
    return "a warning\n" + json.dumps({"found": found, "cudas": cudas}) + "\nand more"


def offer(output: str, status: int = 0, cuda: str = "13.0") -> dict[str, object]:
    engine = FakeEngine(answer=lambda spec, command: (status, output))
    where = replace(place(engine), images={cuda: IMAGE})
    return dict(offer_of_image(where, cuda, "auto", Path("/nowhere")))


def test_the_offer_is_that_of_the_cells_cuda() -> None:
    assert offer(document())["usable"] is True
    refused = offer(document(), cuda="12.6")
    assert (refused["cuda"], refused["usable"]) == ("12.6", False)
    error = refused["error"]
    assert isinstance(error, dict)
    assert error["message"] == "none"
    assert error["next_step"].startswith("nox -s images -- cu126 --base public")


def test_a_compiler_of_another_cuda_in_the_image_is_refused_though_packages_would_do() -> None:
    refused = offer(document("12.9.86"))
    assert refused["usable"] is False
    error = refused["error"]
    assert isinstance(error, dict)
    assert "is of CUDA 12.9.86, the cell of CUDA 13.0" in str(error["message"])
    assert error["exit_code"] == 3
    assert offer(document("13.0.88"))["usable"] is True
    assert offer(document("13.0.88", "12.9.86"))["usable"] is True


@pytest.mark.parametrize(
    ("output", "status"), [("no module named ci", 1), ("{", 0), (document(), 2)]
)
def test_an_image_in_which_the_farm_does_not_run_is_named(output: str, status: int) -> None:
    with pytest.raises(InfrastructureError, match=f"does not run in {IMAGE.ref}") as refused:
        offer(output, status)
    assert "--verify" in refused.value.next_step


def test_looking_for_compilers_mounts_no_folder_that_is_not_there() -> None:
    engine = FakeEngine(answer=lambda spec, command: (0, document()))
    offer_of_image(place(engine), "13.0", "auto", Path("/nowhere"))
    ((spec, command),) = engine.ran
    assert Path("/nowhere") not in {mount.source for mount in spec.mounts}
    assert isinstance(command, Command)
    assert "toolchain" in command.argv


def test_the_pythons_of_a_cuda_share_one_look_for_compilers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def offer_of(plan: Any) -> dict[str, object]:
        asked.append(plan.cell.cuda)
        return {"cuda": plan.cell.cuda, "usable": True}

    def cell(cuda: str, *, compiled: bool = True) -> Any:
        return SimpleNamespace(cell=SimpleNamespace(cuda=cuda), needs_compiler=compiled)

    monkeypatch.setattr(plan_module, "compiler_offer", offer_of)
    plans = [cell("13.0"), cell("13.0"), cell("12.9"), cell("13.0"), cell("12.6", compiled=False)]
    assert list(plan_module.compiler_offers(plans)) == ["13.0", "12.9"]
    plan_module.check_toolchains(plans)
    assert asked == ["13.0", "12.9", "13.0", "12.9"], "once for each of the two calls"
