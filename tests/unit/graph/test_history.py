"""What is remembered of tasks: robust against odd runs, broken files and other farms."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ci.graph.history import GUESSES, KEPT, UNKNOWN, History, Observation, guess
from ci.graph.model import Expected, Usage

NAME = "build flash_attn (cuda 13.0, sm_90a) / 3.12"


def observation(seconds: float, peak: int = 0, result: str = "done") -> Observation:
    usage = Usage(seconds, seconds * 2, peak)
    return Observation.of(usage, tokens=2, result=result, at=1_700_000_000.0)


def test_nothing_is_known_of_what_was_never_seen(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    assert history.expected(NAME) is None
    assert history.last_inputs(NAME) is None
    assert history.observations(NAME) == ()
    assert not (tmp_path / "history").exists()


def test_time_is_the_median_and_memory_the_largest(tmp_path: Path) -> None:
    history = History(tmp_path)
    for seconds, peak in ((10, 100), (11, 300), (900, 200)):
        history.observe(NAME, observation(seconds, peak))
    assert history.expected(NAME) == Expected(11.0, 22.0, 300, runs=3)


def test_a_failed_run_says_nothing_of_time_but_a_killed_one_says_something_of_memory(
    tmp_path: Path,
) -> None:
    history = History(tmp_path)
    history.observe(NAME, observation(1, 900, "killed"))
    assert history.expected(NAME) is None
    history.observe(NAME, observation(50, 100))
    assert history.expected(NAME) == Expected(50.0, 100.0, 900, runs=1)


def test_old_runs_are_forgotten(tmp_path: Path) -> None:
    history = History(tmp_path)
    for number in range(KEPT + 5):
        history.observe(NAME, observation(number, peak=1000 - number))
    assert [one.seconds for one in history.observations(NAME)] == list(range(5, KEPT + 5))
    expected = history.expected(NAME)
    assert expected is not None
    assert (expected.runs, expected.peak_bytes) == (KEPT, 995)


def test_the_last_key_is_kept_beside_the_runs(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.observe(NAME, observation(1), "abc", {"source tree": "1", "python": "CPython 3.12"})
    history.observe(NAME, observation(2))
    assert history.last_inputs(NAME) == {"source tree": "1", "python": "CPython 3.12"}
    history.keyed(NAME, "def", {"source tree": "2"})
    key = history.last_key(NAME)
    assert key is not None
    assert (key.digest, dict(key.inputs)) == ("def", {"source tree": "2"})
    assert len(history.observations(NAME)) == 2
    before = history.path(NAME).stat().st_ino
    history.keyed(NAME, "def", {"source tree": "2"})
    assert history.path(NAME).stat().st_ino == before  # nothing to write


def test_names_that_look_alike_have_files_of_their_own(tmp_path: Path) -> None:
    history = History(tmp_path)
    names = ["a b", "a/b", "a-b", "../a-b", "a" * 300, "a" * 301, "ü", ""]
    for number, name in enumerate(names):
        history.observe(name, observation(number + 1))
    for number, name in enumerate(names):
        expected = history.expected(name)
        assert expected is not None
        assert expected.seconds == number + 1
    assert len(list(tmp_path.iterdir())) == len(names)
    assert all(path.suffix == ".json" for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe\x00",
        b'{"schema": 99, "name": "NAME", "observations": [], "key": null}',
        b'{"schema": 1, "name": "another", "observations": [], "key": null}',
        b'{"schema": 1, "name": "NAME", "observations": [{}], "key": null}',
        b'{"schema": 1, "name": "NAME", "observations": [{"seconds": NaN, "cpu_seconds": 1,'
        b' "peak_bytes": 1, "tokens": 1, "result": "done", "at": 1}], "key": null}',
        b'{"schema": 1, "name": "NAME", "observations": [{"seconds": -1, "cpu_seconds": 1,'
        b' "peak_bytes": 1, "tokens": 1, "result": "done", "at": 1}], "key": null}',
        b'{"schema": 1, "name": "NAME", "observations": [{"seconds": "1", "cpu_seconds": 1,'
        b' "peak_bytes": 1, "tokens": 1, "result": "done", "at": 1}], "key": null}',
        b'{"schema": 1, "name": "NAME", "observations": 7, "key": null}',
        b'{"schema": 1, "name": "NAME", "observations": [], "key": {"digest": "a"}}',
        b'{"schema": 1, "name": "NAME", "observations": [], "key": {"digest": "a", "inputs": 3}}',
        b"[" * 100_000,
    ],
)
def test_a_broken_file_is_no_history_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    history = History(tmp_path)
    history.path(NAME).write_bytes(content.replace(b"NAME", NAME.encode()))
    assert history.expected(NAME) is None
    assert history.last_key(NAME) is None
    history.observe(NAME, observation(3))
    assert json.loads(history.path(NAME).read_text())["name"] == NAME
    expected = history.expected(NAME)
    assert expected is not None
    assert expected.seconds == 3


def test_a_disk_that_refuses_does_not_end_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    history = History(tmp_path / "file")
    history.observe(NAME, observation(1))
    assert history.expected(NAME) is None
    assert (tmp_path / "file").read_text() == "in the way"


WRITER = """
import sys
from pathlib import Path
from ci.graph.history import History, Observation
history = History(Path(sys.argv[1]))
for number in range(200):
    history.observe("shared", Observation(1.0, 1.0, 5, 1, "done", float(number)), "d", {"a": "b"})
    assert history.last_inputs("shared") == {"a": "b"}, "half a file was read"
    assert 1 <= len(history.observations("shared")) <= 10
"""


def test_several_farms_write_one_name(tmp_path: Path) -> None:
    farms = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)]) for _ in range(4)]
    assert [farm.wait(timeout=120) for farm in farms] == [0, 0, 0, 0]
    assert History(tmp_path).expected("shared") == Expected(1.0, 1.0, 5, runs=KEPT)
    assert len(list(tmp_path.iterdir())) == 1  # no partial file is left


def test_guesses_put_builds_before_what_is_short() -> None:
    assert guess("build").seconds > guess("import").seconds > guess("prepare").seconds
    assert guess("something new") == UNKNOWN
    assert all(one.runs == 0 and one.peak_bytes > 0 for one in GUESSES.values())
