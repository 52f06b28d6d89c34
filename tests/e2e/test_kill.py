"""A run that is killed, two runs at once, builds in other folders: always the one right wheel."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import kill_runs, mixed_libraries
from benchmarks.harness import SHARED, Farm, own_cache
from benchmarks.kill_runs import Scene

from .conftest import REPOSITORY, call

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.timeout(1200)]

KILLS = 6
SEED = 5


def test_a_killed_run_leaves_nothing_that_its_successor_stumbles_over(
    tmp_path: Path, cache_dir: Path
) -> None:
    stories, length = kill_runs.all_stories(Scene(tmp_path, cache_dir), KILLS, SEED)
    moments = [moment for story in stories for moment in story.moments]
    assert len(moments) == KILLS
    assert not [moment for moment in moments if moment.too_late]
    assert min(moment.second for moment in moments) < length / 4
    problems = [(story.moments, story.problems) for story in stories if story.problems]
    assert problems == []
    assert any(story.rebuilt == 0 for story in stories)  # what was ready before the kill is used
    assert any(story.rebuilt == len(kill_runs.PAIR) for story in stories)


def test_what_a_killed_run_leaves_is_seen(tmp_path: Path, cache_dir: Path) -> None:
    """The checks of the kills find what they look for: a wrong wheel, a bad entry, a folder, a process."""
    scene = Scene(tmp_path, cache_dir)
    kill_runs.write_pair(scene)
    farm = scene.farm()
    farm.wheel(*scene.options, out=scene.out)
    assert kill_runs.left_behind(farm, scene) == []
    work = scene.cache / "work" / "left"
    work.mkdir()
    blobs = [path for path in (scene.cache / "store").rglob("*") if path.stat().st_size > 5000]
    large = max(blobs, key=lambda path: path.stat().st_size)
    large.chmod(0o644)
    large.write_bytes(b"x" + large.read_bytes()[1:])
    (scene.out / "other.whl").touch()
    with subprocess.Popen(("sleep", "60"), cwd=work) as sleeper:
        problems = "\n".join(kill_runs.left_behind(farm, scene))
        sleeper.kill()
    assert "left is left in work" in problems
    assert "still running: sleep 60" in problems
    assert "cache verify: " in problems
    assert "wheels in the output folder: " in problems
    assert (
        kill_runs.tell(scene, (), "0" * 64, kill_runs.Pace(1.0))
        .problems[0]
        .startswith("the wheel is not")
    )


def test_two_runs_at_once_build_each_key_once(tmp_path: Path, cache_dir: Path) -> None:
    scene = Scene(tmp_path, cache_dir)
    kill_runs.write_pair(scene)
    kill_runs.undisturbed(scene)  # environments are there; the store is made anew
    farm = scene.farm()
    outs = (tmp_path / "one", tmp_path / "two")
    processes = [
        subprocess.Popen(
            farm.command(scene.options, out),
            cwd=REPOSITORY,
            env=farm.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for out in outs
    ]
    said = [process.communicate(timeout=600) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    rows = [
        (row["key"], row["status"])
        for stdout, _ in said
        for cell in json.loads(stdout)["cells"]
        for row in cell["libraries"]
        if row["status"] != "left out"
    ]
    keys = {key for key, _ in rows}
    assert len(keys) == len(kill_runs.PAIR)
    for key in keys:
        assert sorted(status for one, status in rows if one == key) == ["built", "cached"]
    first, second = (wheel_in(out) for out in outs)
    assert (first.name, digest(first)) == (second.name, digest(second))


def test_other_folders_times_and_jobs_give_the_same_wheel(tmp_path: Path, cache_dir: Path) -> None:
    """Two clones of the commit, each with caches of its own, 1 and 4 jobs, some seconds apart."""
    declaration = mixed_libraries.write_all(
        tmp_path / "declared",
        (
            mixed_libraries.Mixed("repeated-ninja", 4, "ninja", rich=False),
            mixed_libraries.Mixed("repeated-serial", 2, "setuptools", rich=False),
        ),
    )
    wheels = []
    for name, jobs in (("a", "1"), ("a-folder/with/a/much/longer/name", "4")):
        checkout = clone(tmp_path / name / "checkout")
        farm = Farm(copied_cache(tmp_path / name / "cache", cache_dir), checkout)
        declared = shutil.copytree(declaration.parent, tmp_path / name / "declared")
        options = (
            "--cuda", "13.0", "--set", "templates", "--declare", str(declared / "declare.py"),
            "--no-import", "--jobs", jobs, "--executor", "host",
        )  # fmt: skip
        run = farm.wheel(*options, out=tmp_path / name / "dist")
        assert {row["status"] for row in run.rows} == {"built"}
        wheels.append(wheel_in(tmp_path / name / "dist"))
        time.sleep(2.1)  # a ZIP archive counts time in steps of two seconds
    first, second = wheels
    assert first.name == second.name
    assert differences(first, second) == []
    assert digest(first) == digest(second)


def clone(folder: Path) -> Path:
    """A clone of the commit that is tested; what is not committed is not in it."""
    call(("git", "clone", "--quiet", str(REPOSITORY), str(folder)))
    return folder


def copied_cache(folder: Path, warm: Path) -> Path:
    """A cache whose environments are at another place than those of ``warm``: copies, by hard links."""
    own_cache(folder, warm)
    for name in SHARED:
        (folder / name).unlink()
        call(("cp", "--archive", "--link", str(warm / name), str(folder / name)))
    return folder


def wheel_in(folder: Path) -> Path:
    (wheel,) = folder.glob("*.whl")
    return wheel


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def differences(first: Path, second: Path) -> list[str]:
    """The members of two archives that differ: their bytes, their order, or what is said of them."""
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(second) as two:
        entries = [described(one), described(two)]
    names = list(dict.fromkeys(name for entry in entries for name, *_ in entry))
    found = [name for name in names if len({row_of(entry, name) for entry in entries}) > 1]
    return found or ["their order"] * ([e[0] for e in entries[0]] != [e[0] for e in entries[1]])


def described(archive: zipfile.ZipFile) -> list[tuple[str, ...]]:
    return [
        (item.filename, hashlib.sha256(archive.read(item)).hexdigest(), str(item.date_time),
         hex(item.external_attr), str(item.compress_size))
        for item in archive.infolist()
    ]  # fmt: skip


def row_of(rows: Sequence[tuple[str, ...]], name: str) -> tuple[str, ...]:
    return next((row for row in rows if row[0] == name), ())


def test_differences_between_wheels_are_seen(tmp_path: Path) -> None:
    def archive(name: str, members: dict[str, str], minute: int = 0) -> Path:
        with zipfile.ZipFile(tmp_path / name, "w") as target:
            for member, text in members.items():
                target.writestr(zipfile.ZipInfo(member, (2026, 1, 1, 0, minute, 0)), text)
        return tmp_path / name

    same = archive("same.zip", {"a": "1", "b": "2"})
    assert differences(same, archive("again.zip", {"a": "1", "b": "2"})) == []
    assert differences(same, archive("order.zip", {"b": "2", "a": "1"})) == ["their order"]
    assert differences(same, archive("text.zip", {"a": "1", "b": "3"})) == ["b"]
    assert differences(same, archive("more.zip", {"a": "1", "b": "2", "c": "3"})) == ["c"]
    assert differences(same, archive("time.zip", {"a": "1", "b": "2"}, 1)) == ["a", "b"]
