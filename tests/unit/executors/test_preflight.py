from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ci.errors import ConfigError, InfrastructureError
from ci.executors.preflight import check_disk, check_places
from tests.unit.executors.fake_engine import FACTS


def test_the_engines_data_and_a_folder_of_the_farm_must_not_hold_each_other(tmp_path: Path) -> None:
    for name in ("project/docker", "other", "engine/cache"):
        (tmp_path / name).mkdir(parents=True)
    facts = replace(FACTS, data_root=tmp_path / "project" / "docker")
    with pytest.raises(ConfigError) as caught:
        check_places(facts, [tmp_path / "other", tmp_path / "project"])
    assert caught.value.details == (f"{tmp_path / 'project'} holds {facts.data_root}",)
    assert "data-root" in caught.value.next_step
    below = replace(FACTS, data_root=tmp_path / "engine")
    with pytest.raises(ConfigError, match="lie in each other") as caught:
        check_places(below, [tmp_path / "engine" / "cache", tmp_path / "engine"])
    assert len(caught.value.details) == 2
    assert "lies in" in caught.value.details[0]


def test_links_are_followed(tmp_path: Path) -> None:
    data = tmp_path / "project" / "docker"
    data.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "project")
    with pytest.raises(ConfigError):
        check_places(replace(FACTS, data_root=data), [link])


def test_folders_beside_each_other_are_well(tmp_path: Path) -> None:
    (tmp_path / "docker").mkdir()
    facts = replace(FACTS, data_root=tmp_path / "docker")
    check_places(facts, [tmp_path / "docker-cache", tmp_path / "project"])
    check_places(replace(FACTS, data_root=None), [tmp_path])


def test_too_little_room_is_infrastructure(tmp_path: Path) -> None:
    facts = replace(FACTS, data_root=tmp_path)
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(InfrastructureError, match=r"needed") as caught:
        check_disk(facts, free * 2)
    assert "docker system df" in caught.value.next_step
    assert str(tmp_path) in caught.value.next_step
    check_disk(facts, free // 2)
    check_disk(replace(FACTS, data_root=None), 2**80)
