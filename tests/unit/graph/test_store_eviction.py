"""What leaves a store and what stays: use, leases of the living and the dead, clocks that differ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ci.graph import leases as leases_module
from ci.graph.key import Key
from ci.graph.leases import FORGOTTEN_SECONDS, SILENT_SECONDS, Leases
from ci.graph.store import Entry, Store

SIZE = 100_000
DAY = 86400.0
pytestmark = pytest.mark.timeout(120)

HOLDER = """
import pathlib, sys
from ci.graph.key import Key
from ci.graph.store import Store
store = Store(pathlib.Path(sys.argv[1]))
for name in sys.argv[2:]:
    assert store.get(Key.of({"library": name})) is not None
print("ready", flush=True)
sys.stdin.read()
"""


def key(name: str) -> Key:
    return Key.of({"library": name})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def fill(root: Path, *names: str) -> dict[str, Entry]:
    """Entries of ``SIZE`` bytes each, the first one used least recently, by a run that has ended."""
    with Store(root) as store:
        entries = {}
        for name in names:
            folder = root.parent / f"result-{name}"
            folder.mkdir()
            (folder / "data").write_bytes(name.encode() * (SIZE // len(name)))
            entries[name] = store.put(key(name), folder, {"library": name})
    for age, name in enumerate(reversed(names)):
        used(root, name, (age + 1) * 60.0)
    return entries


def used(root: Path, name: str, seconds_ago: float) -> None:
    path = Store(root).entry_path(key(name).digest)
    os.utime(path, (time.time() - seconds_ago,) * 2)


def held_here(root: Path) -> list[str]:
    store = Store(root)
    return [name for name in "abcdef" if store.holds(key(name))]


@pytest.fixture
def holder(root: Path) -> Iterator[object]:
    """Starts a process that uses entries until it is killed."""
    running: list[subprocess.Popen[str]] = []

    def start(*names: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            (sys.executable, "-c", HOLDER, str(root), *names),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


# -- by use ----------------------------------------------------------------------------------------


def test_the_least_recently_used_go_first_and_as_few_as_possible(root: Path) -> None:
    fill(root, "a", "b", "c", "d")
    done = Store(root).gc(2 * SIZE)
    assert [item.name for item in done.evicted] == ["a", "b"]
    assert (done.freed_bytes, done.left_bytes, done.left_entries) == (2 * SIZE, 2 * SIZE, 2)
    assert held_here(root) == ["c", "d"]
    assert sum(Store(root).blobs.sizes().values()) == 2 * SIZE
    assert Store(root).gc(2 * SIZE).evicted == ()


def test_a_get_counts_as_use(root: Path) -> None:
    fill(root, "a", "b", "c")
    with Store(root) as store:
        assert store.get(key("a")) is not None
    assert [item.name for item in Store(root).gc(SIZE).evicted] == ["b", "c"]
    assert held_here(root) == ["a"]


def test_a_put_of_what_is_there_counts_as_use(root: Path) -> None:
    fill(root, "a", "b")
    with Store(root) as store:
        store.put(key("a"), root.parent / "result-a", {})
    assert [item.name for item in Store(root).gc(SIZE).evicted] == ["b"]


def test_a_content_goes_with_the_last_entry_that_refers_to_it(root: Path) -> None:
    fill(root, "a", "b")
    with Store(root) as store:
        store.put(key("c"), root.parent / "result-a", {})
    used(root, "c", 1)
    done = Store(root).gc(SIZE)
    assert [item.name for item in done.evicted] == ["a", "b"]
    with Store(root) as store:
        assert store.get(key("c")) is not None
        done = Store(root).gc(0)
        assert (done.freed_bytes, done.kept) == (0, 1)
    assert Store(root).gc(0).freed_bytes == SIZE


def test_a_dry_run_says_the_same_and_changes_nothing(root: Path) -> None:
    fill(root, "a", "b", "c")
    before = sorted(path for path in root.rglob("*") if path.is_file())
    planned = Store(root).gc(SIZE, dry_run=True)
    assert sorted(path for path in root.rglob("*") if path.is_file()) == before
    assert Store(root).gc(SIZE) == planned


def test_without_a_target_only_what_nobody_refers_to_goes(root: Path) -> None:
    entries = fill(root, "a", "b")
    store = Store(root)
    (sha256,) = entries["a"].blobs
    store.entry_path(key("a").digest).unlink()
    done = store.gc()
    assert (done.evicted, done.freed_bytes, done.left_entries) == ((), SIZE, 1)
    assert not store.blobs.path(sha256).exists()
    assert store.get(key("b")) is not None


def test_an_entry_that_cannot_be_read_goes_with_its_contents(root: Path) -> None:
    fill(root, "a", "b")
    Store(root).entry_path(key("a").digest).write_text("{")
    done = Store(root).gc()
    assert done.bad == (key("a").digest,)
    assert done.freed_bytes == SIZE
    assert held_here(root) == ["b"]


def test_the_first_layout_goes(root: Path) -> None:
    fill(root, "a")
    old = root / "ab" / ("ab" + "0" * 62) / "tree"
    old.mkdir(parents=True)
    (old / "data").write_bytes(b"1234")
    (root / "ab" / "x.lock").touch()
    (root / "notes").mkdir()
    assert Store(root).gc(dry_run=True).old_layout_bytes == 4
    assert old.exists()
    assert Store(root).gc().old_layout_bytes == 4
    assert sorted(path.name for path in root.iterdir()) == ["notes", "v2"]
    assert held_here(root) == ["a"]


def test_an_empty_store_has_nothing_to_evict(root: Path) -> None:
    done = Store(root).gc(0)
    assert (done.evicted, done.left_bytes, done.left_entries) == ((), 0, 0)


def test_a_limit_holds_while_results_are_put(root: Path) -> None:
    fill(root, "a", "b", "c")
    told: list[str] = []
    with Store(root, limit_bytes=int(2.5 * SIZE), warn=told.append) as store:
        folder = root.parent / "result-d"
        folder.mkdir()
        (folder / "data").write_bytes(b"d" * SIZE)
        store.put(key("d"), folder, {})
        assert held_here(root) == ["c", "d"]
        (folder / "data").write_bytes(b"e" * SIZE)
        store.put(key("e"), folder, {})
        assert held_here(root) == ["d", "e"]
        assert told == []
        (folder / "data").write_bytes(b"f" * SIZE)
        store.put(key("f"), folder, {})
    assert held_here(root) == ["d", "e", "f"]
    assert len(told) == 1
    assert "used by builds that run" in told[0]


# -- leases ----------------------------------------------------------------------------------------


def test_what_a_living_process_uses_stays_and_goes_when_it_is_killed(
    root: Path, holder: object
) -> None:
    fill(root, "a", "b", "c")
    assert callable(holder)
    process = holder("a", "b")
    done = Store(root).gc(0)
    assert [item.name for item in done.evicted] == ["c"]
    assert done.kept == 2
    assert len(Store(root).leases.living()) == 1
    process.kill()
    process.communicate()
    assert Store(root).leases.living() == []
    assert len(Store(root).gc(0).evicted) == 2
    assert list((root / "v2" / "leases").glob("*.lease")) == []


def test_a_process_that_ends_gives_its_lease_back(root: Path, holder: object) -> None:
    fill(root, "a")
    assert callable(holder)
    process = holder("a")
    assert len(list((root / "v2" / "leases").glob("*.lease"))) == 1
    process.communicate("")
    assert process.returncode == 0
    assert list((root / "v2" / "leases").glob("*.lease")) == []


def test_a_closed_store_gives_its_lease_back_and_may_take_another(root: Path) -> None:
    fill(root, "a")
    store = Store(root)
    store.get(key("a"))
    assert len(store.leases.living()) == 1
    store.close()
    assert store.leases.living() == []
    assert store.get(key("a")) is not None
    assert store.leases.held() == {key("a").digest}


def test_a_forked_process_has_a_lease_of_its_own(root: Path) -> None:
    fill(root, "a", "b")
    store = Store(root)
    store.get(key("a"))
    code = (
        "import os, pathlib, sys\n"
        "from ci.graph.key import Key\n"
        "from ci.graph.store import Store\n"
        "store = Store(pathlib.Path(sys.argv[1]))\n"
        "store.get(Key.of({'library': 'a'}))\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    store.get(Key.of({'library': 'b'}))\n"
        "    print(sorted(len(lease.keys) for lease in store.leases.living()), flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    done = subprocess.run(
        (sys.executable, "-c", code, str(root)), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[1, 1, 1]"


def foreign(root: Path, *names: str, place: str = "another boot") -> Path:
    """A lease of a process on another host, last heard of now."""
    path = root / "v2" / "leases" / "0123456789abcdef.lease"
    path.parent.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"owner": "elsewhere:4711:99", "place": place})
    path.write_text("\n".join([header, *(key(name).digest for name in names), ""]))
    return path


def test_a_lease_of_another_host_counts(root: Path) -> None:
    fill(root, "a", "b")
    foreign(root, "a")
    assert [item.name for item in Store(root).gc(0).evicted] == ["b"]


def test_a_host_of_the_same_name_is_not_taken_for_this_one(root: Path) -> None:
    """Cloned machines, and containers that share the host's network, have equal names."""
    fill(root, "a")
    path = foreign(root, "a")
    owner = f"{os.uname().nodename}:{os.getpid()}:1"
    path.write_text(path.read_text().replace("elsewhere:4711:99", owner))
    assert Store(root).gc(0).evicted == ()
    here = leases_module._place()
    path.write_text(path.read_text().replace("another boot", here))
    assert len(Store(root).gc(0).evicted) == 1


def test_a_lease_that_was_killed_while_it_was_made_holds_nothing(root: Path) -> None:
    fill(root, "a")
    foreign(root, "a").write_bytes(b"")
    assert len(Store(root).gc(0).evicted) == 1
    assert list((root / "v2" / "leases").glob("*.lease")) == []


def test_the_last_key_of_a_lease_may_be_cut(root: Path) -> None:
    fill(root, "a", "b")
    path = foreign(root, "a", "b")
    path.write_bytes(path.read_bytes()[:-10])
    assert [item.name for item in Store(root).gc(0).evicted] == ["b"]


@pytest.mark.parametrize("clock", [-0.9 * FORGOTTEN_SECONDS, -DAY, 0.0, DAY, 30 * DAY, 400 * DAY])
def test_a_living_host_with_another_clock_keeps_its_entries(root: Path, clock: float) -> None:
    """Its lease gets new times as long as it lives, whatever they are."""
    fill(root, "a")
    path = foreign(root, "a")
    for minute in range(3):
        beat = time.time() + clock + 60 * minute
        os.utime(path, (beat, beat))
        for seen in (root / "v2" / "leases" / "seen").rglob("0123*"):
            long_ago = time.time() - 2 * SILENT_SECONDS
            os.utime(seen, (long_ago, long_ago))
        assert Store(root).gc(0).evicted == ()


@pytest.mark.parametrize("clock", [-DAY, 0.0, DAY])
def test_a_dead_host_with_another_clock_loses_its_lease_in_time(root: Path, clock: float) -> None:
    fill(root, "a")
    path = foreign(root, "a")
    beat = time.time() + clock
    os.utime(path, (beat, beat))
    assert Store(root).gc(0).evicted == ()
    (seen,) = (root / "v2" / "leases" / "seen").rglob("0123*")
    recently = time.time() - 0.9 * SILENT_SECONDS
    os.utime(seen, (recently, recently))
    assert Store(root).gc(0).evicted == ()
    long_ago = time.time() - 1.1 * SILENT_SECONDS
    os.utime(seen, (long_ago, long_ago))
    assert len(Store(root).gc(0).evicted) == 1
    assert not path.exists()
    assert not seen.exists()


def test_a_lease_nobody_has_heard_of_for_a_week_is_dead_at_first_sight(root: Path) -> None:
    fill(root, "a")
    path = foreign(root, "a")
    long_ago = time.time() - 1.1 * FORGOTTEN_SECONDS
    os.utime(path, (long_ago, long_ago))
    assert len(Store(root).gc(0).evicted) == 1


def test_a_dead_lease_from_the_far_future_ages_from_now_on(root: Path) -> None:
    fill(root, "a")
    path = foreign(root, "a")
    future = time.time() + 300 * DAY
    os.utime(path, (future, future))
    assert Store(root).gc(0).evicted == ()
    assert abs(path.stat().st_mtime - time.time()) < 60


def test_fresh_entries_of_a_host_with_a_slow_clock_are_not_evicted_while_it_runs(
    root: Path,
) -> None:
    fill(root, "a", "b")
    used(root, "b", 400 * DAY)
    foreign(root, "b")
    assert [item.name for item in Store(root).gc(0).evicted] == ["a"]


def test_the_heartbeat_keeps_a_lease_fresh_and_makes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "HEARTBEAT_SECONDS", 0.05)
    leases = Leases(tmp_path)
    leases.hold("k" * 64)
    (path,) = tmp_path.glob("*.lease")
    os.utime(path, (1, 1))
    deadline = time.monotonic() + 10
    while path.stat().st_mtime < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    path.unlink()
    while not path.exists() or not leases.held():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert leases.held() == {"k" * 64}
    leases.close()
    time.sleep(0.2)
    assert not path.exists()


# -- what killed processes left --------------------------------------------------------------------


def test_files_without_a_name_yet_go_when_their_owner_is_dead(root: Path) -> None:
    fill(root, "a")
    living = Store(root)
    living.get(key("a"))
    for owner in (living.leases.name, "of-the-dead"):
        (root / "v2" / "tmp" / owner / "x").mkdir(parents=True)
        (root / "v2" / "tmp" / owner / "x" / "half").write_bytes(b"1")
    Store(root).gc()
    left = sorted(path.name for path in (root / "v2" / "tmp").iterdir())
    assert left == [living.leases.name]


def test_the_first_put_of_a_run_sweeps(root: Path) -> None:
    (root / "v2" / "tmp" / "of-the-dead" / "x").mkdir(parents=True)
    fill(root, "a")
    assert not (root / "v2" / "tmp" / "of-the-dead").exists()


# -- several at once -------------------------------------------------------------------------------


def test_collections_puts_and_gets_at_once_lose_nothing_that_is_in_use(root: Path) -> None:
    problems: list[str] = []
    end = threading.Event()

    def work(name: str) -> None:
        store = Store(root, warn=problems.append)
        for turn in range(15):
            entry = store.get(key(name)) or store.put(key(name), root.parent / name, {})
            out = store.materialise(entry, root.parent / f"out-{name}-{turn}")
            if len(list(out.iterdir())) != 5:
                problems.append(name)
            store.close()

    def sweep() -> None:
        while not end.is_set():
            Store(root, warn=problems.append).gc(0)

    for name in "xyz":
        (root.parent / name).mkdir()
        for number in range(5):
            (root.parent / name / str(number)).write_text(f"{name if number else ''} {number}")
    with ThreadPoolExecutor(4) as pool:
        sweeping = pool.submit(sweep)
        working = [pool.submit(work, name) for name in "xyz"]
        for job in working:
            job.result()
        end.set()
        sweeping.result()
    assert problems == []
