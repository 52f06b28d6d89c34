"""``cache``: what is stored, whether it is whole, what may go, and what sets two results apart."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from ci import __main__ as entry_point
from ci.graph.inspection import why
from ci.graph.key import Key
from ci.graph.remote import Remote
from ci.graph.store import Entry, Store

FIRST = Key.of({"library": "alpha", "source tree": "1" * 64, "flags": "-O2"})
SECOND = Key.of({"library": "alpha", "source tree": "2" * 64, "toolchain": "gcc 13"})
OTHER = Key.of({"library": "beta", "source tree": "3" * 64})


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REMOTE", "REMOTE_MODE", "CACHE_LIMIT"):
        monkeypatch.delenv(f"PADDLEFLEET_FARM_{name}", raising=False)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with two results of alpha and one of beta, of 1000 bytes each and 1000 that all have."""
    monkeypatch.setattr("time.gmtime", lambda: time.struct_time((2026, 1, 2, 3, 4, 5, 4, 2, 0)))
    with Store(tmp_path / "cache" / "store") as store:
        for number, (key, name) in enumerate(
            ((FIRST, "alpha"), (SECOND, "alpha"), (OTHER, "beta"))
        ):
            folder = tmp_path / f"result-{number}"
            folder.mkdir()
            (folder / "own").write_bytes(str(number).encode() * 1000)
            (folder / "common").write_bytes(b"x" * 1000)
            store.put(key, folder, {"library": name, "seconds": 12.5 + number})
            when = time.time() - 3600 * (3 - number)
            os.utime(store.entry_path(key.digest), (when, when))
    monkeypatch.undo()
    return tmp_path / "cache"


def run(cache: Path, *arguments: str) -> int:
    return entry_point.main(["cache", *arguments, "--cache-dir", str(cache)])


def document(capsys: pytest.CaptureFixture[str], cache: Path, *arguments: str) -> Any:
    assert run(cache, *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def damage(cache: Path) -> Path:
    """Change the content that only the first result has."""
    store = Store(cache / "store")
    (item,) = [item for item in store.read(FIRST.digest).files if item.path == "own"]
    path = store.blobs.path(item.sha256)
    path.chmod(0o644)
    path.write_bytes(b"?" * 1000)
    return path


def test_stats_count_contents_once_and_results_by_library(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, cache, "stats")
    assert (found["entries"], found["blobs"]) == (3, 4)
    assert (found["blob_bytes"], found["file_bytes"], found["saved_bytes"]) == (4000, 6000, 2000)
    assert found["by_name"] == [
        {"name": "alpha", "entries": 2, "bytes": 4000},
        {"name": "beta", "entries": 1, "bytes": 2000},
    ]
    assert 3590 < found["newest_use_seconds"] < 3700
    assert 3 * 3590 < found["oldest_use_seconds"] < 3 * 3700
    assert (found["users"], found["remote"]) == ([], None)


def test_stats_for_people(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(cache / "store") as store:
        store.get(OTHER)
        assert run(cache, "stats") == 0
    output = capsys.readouterr().out
    assert "3 results, 4 contents, 4.0 kB" in output
    assert "save 2.0 kB" in output
    assert "the least recent 3 h ago" in output
    assert f"in use by process {os.getpid()}" in output
    assert "shared store: none" in output


def test_stats_say_whether_the_shared_store_answers(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, cache, "stats", "--remote-cache", str(tmp_path / "shared"))
    assert found["remote"] == {"url": str(tmp_path / "shared"), "answer": "answers"}
    (tmp_path / "file").write_text("")
    found = document(capsys, cache, "stats", "--remote-cache", f"{tmp_path / 'file'}/below")
    assert "cannot read an entry" in found["remote"]["answer"]


def test_an_empty_store_is_shown_and_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert document(capsys, tmp_path, "stats")["entries"] == 0
    assert document(capsys, tmp_path, "verify")["problems"] == []
    assert document(capsys, tmp_path, "gc", "--limit", "1k")["evicted"] == []


def test_verify_reads_everything_and_names_what_is_bad(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cache, "verify") == 0
    assert "3 results and 4 contents (4.0 kB) are as they were put" in capsys.readouterr().out
    damage(cache)
    assert run(cache, "verify") == 1
    output = capsys.readouterr()
    text = output.out + output.err
    assert FIRST.digest[:12] in text
    assert "alpha: the content of own has another content" in text
    assert SECOND.digest[:12] not in text
    assert "python -m ci cache verify --remove" in text
    assert Store(cache / "store").holds(FIRST)


def test_verify_reads_contents_that_nobody_refers_to(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(cache)
    Store(cache / "store").entry_path(FIRST.digest).unlink()
    assert run(cache, "verify", "--remove") == 1
    assert "a content that has another content" in "".join(capsys.readouterr())
    assert run(cache, "verify") == 0


def test_verify_drops_what_is_bad_when_asked_to_and_no_more(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = damage(cache)
    store = Store(cache / "store")
    store.entry_path(SECOND.digest).write_bytes(b"{")
    assert run(cache, "verify", "--remove") == 1
    capsys.readouterr()
    assert [store.holds(key) for key in (FIRST, SECOND, OTHER)] == [False, False, True]
    assert not path.exists()
    assert run(cache, "verify") == 0
    assert store.get(OTHER) is not None


def test_gc_evicts_down_to_a_size_by_use(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned = document(capsys, cache, "gc", "--limit", "2k", "--dry-run")
    assert [item["key"] for item in planned["evicted"]] == [FIRST.digest, SECOND.digest]
    assert document(capsys, cache, "stats")["entries"] == 3
    assert run(cache, "gc", "--limit", "2k") == 0
    output = capsys.readouterr().out
    assert FIRST.digest[:12] in output
    assert "2.0 kB freed; 1 results, 2.0 kB stay" in output
    assert Store(cache / "store").get(OTHER) is not None


def test_gc_without_a_size_keeps_what_is_whole(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cache / "store" / "ab" / "x").mkdir(parents=True)
    (cache / "store" / "ab" / "x" / "data").write_bytes(b"1234" * 100)
    done = document(capsys, cache, "gc")
    assert (done["evicted"], done["left_entries"], done["old_layout_bytes"]) == ([], 3, 400)
    assert not (cache / "store" / "ab").exists()


def test_gc_takes_its_limit_from_the_environment(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PADDLEFLEET_FARM_CACHE_LIMIT", "2k")
    assert document(capsys, cache, "gc")["left_entries"] == 1


@pytest.mark.parametrize("limit", ["0", "-1", "much", "20gg"])
def test_gc_refuses_what_is_no_size(
    cache: Path, capsys: pytest.CaptureFixture[str], limit: str
) -> None:
    assert run(cache, "gc", f"--limit={limit}") == 2
    assert limit in capsys.readouterr().err
    assert Store(cache / "store").holds(FIRST)


@pytest.mark.parametrize("digits", [64, 12, 6])
def test_why_names_the_inputs_that_differ_from_the_other_result(
    cache: Path, capsys: pytest.CaptureFixture[str], digits: int
) -> None:
    found = document(capsys, cache, "why", SECOND.digest[:digits])
    assert found["key"] == SECOND.digest
    assert found["inputs"] == dict(SECOND.inputs)
    assert found["made"] == "2026-01-02T03:04:05Z"
    assert (found["size"], found["files"]) == (2000, 2)
    assert found["meta"]["seconds"] == 13.5
    assert found["compared_with"]["key"] == FIRST.digest
    assert found["changes"] == [
        {"name": "flags", "old": "-O2", "new": None},
        {"name": "source tree", "old": "1" * 64, "new": "2" * 64},
        {"name": "toolchain", "old": None, "new": "gcc 13"},
    ]


def test_why_for_people(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cache, "why", SECOND.digest[:10]) == 0
    output = capsys.readouterr().out
    assert f"compared with {FIRST.digest[:12]}" in output
    assert "there  -O2" in output
    assert "here   (not an input)" in output
    assert run(cache, "why", "beta") == 0
    output = capsys.readouterr().out
    assert OTHER.digest in output
    assert "no other result of it" in output


def test_why_of_an_unknown_key_names_the_nearest(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cache, "why", "alpah") == 2
    assert "(alpha)" in capsys.readouterr().err
    digits = OTHER.digest[:11] + ("0" if OTHER.digest[11] != "0" else "1")
    assert run(cache, "why", digits) == 2
    assert f"{OTHER.digest[:12]} (beta)" in capsys.readouterr().err


def test_why_in_an_empty_store_says_that_it_is_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "why", "alpha") == 2
    assert "the store is empty" in capsys.readouterr().err


def test_a_prefix_of_several_keys_is_not_guessed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "result").mkdir()
    store = Store(tmp_path / "store")
    for number in range(20):
        store.put(Key.of({"number": str(number)}), tmp_path / "result", {})
    first = [digest[0] for digest in store.digests()]
    twice = next(digit for digit in first if first.count(digit) > 1)
    assert run(tmp_path, "why", twice) == 2
    assert "give more digits" in capsys.readouterr().err


def test_the_newest_other_result_is_the_one_to_compare_with(tmp_path: Path) -> None:
    (tmp_path / "result").mkdir()
    store = Store(tmp_path / "store", remote=Remote(str(tmp_path / "shared")))
    keys = [Key.of({"library": "alpha", "number": str(number)}) for number in range(3)]
    for number, key in enumerate(keys):
        made = f"2026-01-0{number + 1}T00:00:00Z"
        path = store.entry_path(key.digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        put = Entry(key.digest, (), {}, dict(key.inputs), made)
        from ci.graph.entries import to_bytes

        path.write_bytes(to_bytes(put))
    other = why(store, keys[0].digest).other
    assert other is not None
    assert other.key == keys[2].digest
    assert why(store, "alpha").entry.key == keys[2].digest
