"""Where commands run, and why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ci.errors import ConfigError, ToolchainError
from ci.executors.base import EXECUTORS, choose
from ci.proc import Command


@pytest.mark.parametrize("name", ["auto", "host"])
def test_the_host_is_chosen_and_says_why(name: str) -> None:
    executor = choose(name)
    assert executor.name == "host"
    assert executor.why


def test_asking_and_choosing_are_told_apart() -> None:
    assert choose("auto").why != choose("host").why


@pytest.mark.parametrize("name", ["docker", "", "Host", "ray"])
def test_an_unknown_executor_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown executor {name!r}") as refused:
        choose(name)
    for known in EXECUTORS:
        assert known in refused.value.next_step


def test_the_container_is_refused_where_there_is_none_with_the_way_out() -> None:
    with pytest.raises(ToolchainError) as refused:
        choose("container")
    assert refused.value.exit_code == 3
    assert "--executor host" in refused.value.next_step


def test_the_host_runs_a_command_into_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = Command((sys.executable, "-c", "print('here'); raise SystemExit(5)"))
    done = choose("host").run(command, log)
    assert (done.returncode, done.ok) == (5, False)
    assert log.read_text().splitlines()[-1] == "here"
