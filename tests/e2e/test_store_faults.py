"""The store under what happens to it: killed processes, two runs at once, a full disk, other users."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ci.errors import InfrastructureError
from ci.graph.key import Key
from ci.graph.remote import Remote
from ci.graph.store import Store

pytestmark = pytest.mark.timeout(300)
KILLS = 100

# One process imports the store and forks those that are killed: a kill costs milliseconds, not an import.
KENNEL = """
import json, os, pathlib, random, signal, sys, time, traceback
from ci.graph.key import Key
from ci.graph.store import Store

root, scratch, kills, seed = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), *map(int, sys.argv[3:])
chance = random.Random(seed)

def key(number):
    return Key.of({"number": str(number)})

def contents(number):
    return {f"{name}-{number % 3}": (name * 7 + str(number % 5)) * (10 ** (number % 5)) for name in "abcd"}

def complain(text):
    if "all of it is used by builds that run" in text:
        return
    with open(scratch / "complaints", "a") as file:
        file.write(text + chr(10))

def work(seed):
    chance, mine = random.Random(seed), scratch / str(seed)
    mine.mkdir()
    store = Store(root, warn=complain, limit_bytes=chance.choice([None, 300_000]))
    for turn in range(10_000):
        number, act = chance.randrange(12), chance.random()
        if act < 0.08:
            store.gc(chance.choice([None, 0, 200_000]))
            continue
        entry = store.get(key(number)) if act < 0.6 else None
        if entry is None:
            folder = mine / f"result-{turn}"
            folder.mkdir()
            for name, text in contents(number).items():
                (folder / name).write_text(text)
            with store.building(key(number)):
                entry = store.put(key(number), folder, {"library": str(number)})
        out = store.materialise(entry, mine / f"out-{turn}")
        if {path.name: path.read_text() for path in out.iterdir()} != contents(number):
            complain(f"{number} is not what was put")

running, killed, done = {}, 0, 0
while killed < kills:
    while len(running) < 3:
        seed += 1
        pid = os.fork()
        if not pid:
            try:
                work(seed)
            except BaseException:
                complain(traceback.format_exc())
            os._exit(1)
        running[pid] = seed
    time.sleep(chance.uniform(0.001, 0.04))
    pid = chance.choice(list(running))
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    killed += os.WIFSIGNALED(status)
    del running[pid]
for pid in running:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
print(json.dumps({"killed": killed + len(running)}))
"""


def contents(number: int) -> dict[str, str]:
    """What a killed process puts under a number."""
    return {
        f"{name}-{number % 3}": (name * 7 + str(number % 5)) * (10 ** (number % 5))
        for name in "abcd"
    }


def run_kennel(root: Path, scratch: Path, kills: int, seed: int) -> int:
    scratch.mkdir()
    done = subprocess.run(
        (sys.executable, "-c", KENNEL, str(root), str(scratch), str(kills), str(seed)),
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    complaints = scratch / "complaints"
    assert not complaints.exists() or complaints.read_text() == ""
    killed: int = json.loads(done.stdout)["killed"]
    return killed


def test_processes_killed_at_random_moments_leave_a_good_store(tmp_path: Path) -> None:
    root = tmp_path / "store"
    told: list[str] = []
    assert run_kennel(root, tmp_path / "scratch", KILLS, 20261202) >= KILLS
    store = Store(root, warn=told.append)
    problems = [store.problem(digest) for digest in store.digests()]
    assert len(problems) > 0
    assert set(problems) == {""}
    for number in range(12):
        entry = store.get(Key.of({"number": str(number)}))
        if entry is not None:
            out = store.materialise(entry, tmp_path / "out" / str(number))
            assert {path.name: path.read_text() for path in out.iterdir()} == contents(number)
    done = store.gc()
    assert told == []
    assert done.bad == ()
    assert list((store.home / "tmp").iterdir()) == []
    assert [lease.name for lease in store.leases.living()] == [store.leases.name]
    assert set(store.blobs.sizes()) == {
        sha256 for item in store.entries() for sha256 in item.entry.blobs
    }


def test_the_check_above_sees_a_bad_store(tmp_path: Path) -> None:
    """A content that is written in place, not whole or not at all, is found."""
    root = tmp_path / "store"
    run_kennel(root, tmp_path / "scratch", 3, 1)
    store = Store(root, warn=lambda _: None)
    item = next(iter(store.entries()))
    path = store.blobs.path(next(iter(item.entry.blobs)))
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1])
    assert [digest for digest in store.digests() if store.problem(digest)]


# -- killed at every step ---------------------------------------------------------------------------

# A profile function sees every call of C code before it is made; the process kills itself at the one that was
# asked for, so that each moment between two effects on the disk is tried, not only those that chance hits.
CRASHER = """
import json, os, pathlib, shutil, signal, sys, threading
from ci.graph.key import Key
from ci.graph.remote import Remote
from ci.graph.store import Store

base, act = pathlib.Path(sys.argv[1]), sys.argv[2]
os.fsync = lambda descriptor: None  # matters when a machine dies, not when a process does
EFFECTS = {
    "replace", "rename", "unlink", "remove", "mkdir", "rmdir", "open", "write", "fchmod", "utime",
    "copy_file_range", "__exit__", "flush", "chmod", "truncate",
}

def contents(number):
    return {name: f"{name} {number if name == 'own' else ''} " * 10_000 for name in ("own", "common")}

def key(number):
    return Key.of({"number": str(number)})

def result(number):
    folder = base / f"result-{number}"
    if not folder.exists():
        folder.mkdir()
        for name, text in contents(number).items():
            (folder / name).write_text(text)
    return folder

def store_of(root, told):
    remote = Remote(str(base / "shared")) if act == "fetch" else None
    return Store(root, remote=remote, warn=told.append)

def prepare(root):
    with Store(root) as store:
        for number in (1, 2):
            store.put(key(number), result(number), {})
        if act == "mend":
            own = [item for item in store.put(key(3), result(3), {}).files if item.path == "own"]
            path = store.blobs.path(own[0].sha256)
            path.chmod(0o644)
            path.write_bytes(b"bad")

def do(root):
    store = store_of(root, [])
    if act in ("put", "mend"):
        store.put(key(3), result(3), {})
    elif act == "fetch":
        assert store.get(key(3)) is not None
    else:
        store.gc(0)
    store.close()

def run_until(root, target, counted):
    seen = 0

    def profile(frame, event, arg):
        nonlocal seen
        if event == "c_call" and arg.__name__ in EFFECTS:
            seen += 1
            if seen == target:
                os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        return status
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        do(root)
    finally:
        sys.setprofile(None)
        counted.write_text(str(seen))
        os._exit(0)

def check(root, where):
    told = []
    store = store_of(root, told)
    bad = [store.problem(digest) for digest in store.digests()]
    if act == "mend":
        bad = [why for why in bad if "another content" not in why and "bytes, not" not in why]
        store = Store(root, warn=lambda _: None)
    assert not any(bad), (where, bad)
    store.gc()
    assert not any((store.home / "tmp").glob("*/*/*")), where
    assert {sha for item in store.entries() for sha in item.entry.blobs} == set(store.blobs.sizes()), where
    for number in (1, 2, 3):
        entry = store.get(key(number)) or store.put(key(number), result(number), {})
        out = store.materialise(entry, root / f"out-{number}")
        found = {path.name: path.read_text() for path in out.iterdir()}
        assert found == contents(number), (where, number)
    assert told == [], (where, told)

if act == "fetch":
    with Store(base / "other", remote=Remote(str(base / "shared"), mode="write")) as other:
        other.put(key(3), result(3), {})
for number in (1, 2, 3):
    result(number)
first, target, killed = base / "first", 0, 0
prepare(first)
while True:
    target += 1
    root = base / "root"
    shutil.copytree(first, root)
    status = run_until(root, target, base / "counted")
    check(root, target)
    shutil.rmtree(root)
    if not os.WIFSIGNALED(status):
        break
    killed += 1
print(json.dumps({"killed": killed, "steps": int((base / "counted").read_text())}))
"""


@pytest.mark.parametrize("act", ["put", "mend", "gc", "fetch"])
def test_a_process_killed_at_every_step_leaves_a_good_store(tmp_path: Path, act: str) -> None:
    done = subprocess.run(
        (sys.executable, "-c", CRASHER, str(tmp_path), act),
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["killed"] >= 20
    assert (
        found["killed"] >= found["steps"] - 5
    )  # threads do not always take the same number of steps


# -- two runs at once ------------------------------------------------------------------------------

BUILDER = """
import os, pathlib, sys, time
from ci.graph.key import Key
from ci.graph.store import Store
root, counted, scratch = map(pathlib.Path, sys.argv[1:4])
store, waits = Store(root), []
print("ready", flush=True)
sys.stdin.readline()
for number in range(4):
    key = Key.of({"number": str(number)})
    entry = store.get(key)
    if entry is None:
        with store.building(key, lambda: waits.append(number)):
            entry = store.get(key)
            if entry is None:
                with counted.open("a") as file:
                    file.write(f"{number}\\n")
                if "stop" in sys.argv[4:]:
                    print("building", flush=True)
                    time.sleep(600)
                time.sleep(0.2)
                folder = scratch / f"{os.getpid()}-{number}"
                folder.mkdir()
                (folder / "data").write_text(str(number) * 1000)
                entry = store.put(key, folder, {})
    out = store.materialise(entry, scratch / f"out-{os.getpid()}-{number}")
    assert (out / "data").read_text() == str(number) * 1000
print(len(waits))
"""


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []
    (tmp_path / "scratch").mkdir()

    def start(*words: str) -> subprocess.Popen[str]:
        places = (tmp_path / name for name in ("store", "counted", "scratch"))
        process = subprocess.Popen(
            (sys.executable, "-c", BUILDER, *map(str, places), *words),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_of_several_runs_exactly_one_builds_a_key(
    tmp_path: Path, builder: Callable[..., subprocess.Popen[str]]
) -> None:
    processes = [builder() for _ in range(4)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    waits = 0
    for process in processes:
        output, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors
        waits += int(output)
    assert sorted((tmp_path / "counted").read_text().split()) == ["0", "1", "2", "3"]
    assert waits >= 3


def test_the_next_run_builds_what_a_killed_one_had_begun(
    tmp_path: Path, builder: Callable[..., subprocess.Popen[str]]
) -> None:
    first, second = builder("stop"), builder()
    assert first.stdin is not None
    assert first.stdout is not None
    first.stdin.write("go\n")
    first.stdin.flush()
    assert first.stdout.readline() == "building\n"
    assert second.stdin is not None
    second.stdin.write("go\n")
    second.stdin.flush()
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(0.5)
    first.send_signal(signal.SIGKILL)
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 0, errors
    assert (tmp_path / "counted").read_text().split() == ["0", "0", "1", "2", "3"]


# -- a full disk -----------------------------------------------------------------------------------

DISK_BYTES = 4 * 1024 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=777", "farm-test", str(disk))
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root and the right to mount")
    try:
        yield disk
    finally:
        subprocess.run(("umount", "--lazy", str(disk)), check=True)


def fill_up(disk: Path, left: int) -> Path:
    """A file that leaves so many bytes of the disk."""
    filler = disk / "filler"
    status = os.statvfs(disk)
    filler.write_bytes(bytes(max(0, status.f_bavail * status.f_frsize - left)))
    return filler


def result_of(folder: Path, size: int, name: str = "data") -> Path:
    folder.mkdir()
    (folder / name).write_bytes(random.Random(size).randbytes(size))
    return folder


def test_a_result_that_has_no_room_is_an_error_with_the_next_command(
    tmp_path: Path, small_disk: Path
) -> None:
    told: list[str] = []
    store = Store(small_disk / "store", warn=told.append)
    small, large = Key.of({"size": "small"}), Key.of({"size": "large"})
    folder = result_of(tmp_path / "large", DISK_BYTES + 1)
    store.put(small, result_of(tmp_path / "small", 500_000), {})
    with pytest.raises(InfrastructureError, match="no room") as caught:
        store.put(large, folder, {})
    assert caught.value.exit_code == 4
    assert "python -m ci cache gc --limit" in caught.value.next_step
    assert "No space left" in caught.value.cause
    assert (folder / "data").stat().st_size == DISK_BYTES + 1
    assert store.get(large) is None
    assert store.get(small) is not None
    assert sum(store.blobs.sizes().values()) == 500_000
    assert [path for path in (store.home / "tmp").rglob("*") if path.is_file()] == []
    assert told == []
    again = result_of(tmp_path / "again", 2_000_000)
    assert store.get(Key.of({"size": "again"})) is None
    assert store.put(Key.of({"size": "again"}), again, {}).size == 2_000_000


@pytest.mark.parametrize("left", [0, 4096, 8192, 20480, 65536, 200_000])
def test_wherever_the_disk_gets_full_no_entry_is_half(
    tmp_path: Path, small_disk: Path, left: int
) -> None:
    told: list[str] = []
    root, key = small_disk / "store", Key.of({"a": "b"})
    present = Key.of({"is": "there"})
    with Store(root, warn=told.append) as store:
        store.put(present, result_of(tmp_path / "present", 100_000), {})
    filler = fill_up(small_disk, left)
    folder = result_of(tmp_path / "result", 100_000)
    for number in range(30):
        (folder / str(number)).write_text(f"file {number}")
    with Store(root, warn=told.append) as store:
        assert store.get(present) is not None
        problem = ""
        try:
            store.put(key, folder, {})
        except InfrastructureError as error:
            problem = error.message
        assert "no room" in problem or store.holds(key)
        assert left >= 200_000 or not store.holds(key)
        assert [store.problem(digest) for digest in store.digests()] in ([""], ["", ""])
    filler.unlink()
    with Store(root, warn=told.append) as store:
        entry = store.put(key, folder, {})
        out = store.materialise(entry, tmp_path / "out")
        assert len(list(out.iterdir())) == 31
        assert store.get(present) is not None
    assert told == []


def test_a_result_of_the_remote_store_that_has_no_room_is_an_error(
    tmp_path: Path, small_disk: Path
) -> None:
    shared, key = str(tmp_path / "shared"), Key.of({"a": "b"})
    first = Store(tmp_path / "store", remote=Remote(shared, mode="write"))
    first.put(key, result_of(tmp_path / "result", DISK_BYTES + 1), {})
    assert first.flush(30)
    told: list[str] = []
    second = Store(small_disk / "store", remote=Remote(shared), warn=told.append)
    with pytest.raises(InfrastructureError, match="no room"):
        second.get(key)
    assert second.digests() == {}
    assert second.blobs.sizes() == {}
    assert told == []


def test_a_folder_that_has_no_room_is_an_error_and_is_not_left_half(
    tmp_path: Path, small_disk: Path
) -> None:
    store = Store(tmp_path / "store")
    entry = store.put(Key.of({"a": "b"}), result_of(tmp_path / "result", DISK_BYTES + 1), {})
    with pytest.raises(InfrastructureError, match="no room"):
        store.materialise(entry, small_disk / "out")
    assert list(small_disk.iterdir()) == []


# -- other users -----------------------------------------------------------------------------------

READER = """
import os, pathlib, sys, tempfile
from ci.graph.key import Key
from ci.graph.remote import Remote
from ci.graph.store import Store
with tempfile.TemporaryDirectory() as name:
    # All that is imported is imported now: the interpreter's own files may be closed to others, too.
    place = pathlib.Path(name)
    (place / "result").mkdir()
    with Store(place / "one", remote=Remote(name + "/shared", mode="write")) as rehearsal:
        rehearsal.put(Key.of({"a": "b"}), place / "result", {})
    with Store(place / "two", remote=Remote(name + "/shared")) as rehearsal:
        assert rehearsal.get(Key.of({"a": "b"})) is not None
os.setgroups([]); os.setgid(65534); os.setuid(65534)
told = []
where, scratch = pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
if sys.argv[1] == "remote":
    store = Store(scratch / "store", remote=Remote(str(where), mode="write"), warn=told.append)
else:
    store = Store(where, warn=told.append)
entry = store.get(Key.of({"a": "b"}))
assert entry is not None, told
out = store.materialise(entry, scratch / "out")
assert (out / "data").stat().st_size == 1000
if sys.argv[1] == "remote":
    store.put(Key.of({"c": "d"}), out, {})
    assert store.flush(30)
    assert store.get(Key.of({"c": "d"})) is not None
    assert len(told) == 1 and "left alone" in told[0], told
    print(told[0])
else:
    assert told == [], told
"""


def as_nobody(kind: str, where: Path) -> str:
    """Run the reader as a user who owns nothing here."""
    if os.geteuid():
        pytest.skip("becoming another user needs root")
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        scratch = Path(name)
        scratch.chmod(0o755)
        shutil.copytree(where, scratch / "given")
        (scratch / "own").mkdir()
        os.chown(scratch / "own", 65534, 65534)
        done = subprocess.run(
            (sys.executable, "-c", READER, kind, str(scratch / "given"), str(scratch / "own")),
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_store_that_may_only_be_read_gives_its_results(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        store.put(Key.of({"a": "b"}), result_of(tmp_path / "result", 1000), {})
    as_nobody("local", tmp_path / "store")


def test_a_remote_store_that_may_only_be_read_is_one_warning(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    with Store(tmp_path / "store", remote=Remote(str(shared), mode="write")) as store:
        store.put(Key.of({"a": "b"}), result_of(tmp_path / "result", 1000), {})
    assert "Permission denied" in as_nobody("remote", shared)
