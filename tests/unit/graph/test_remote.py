"""The remote tier: a shared folder, memory, and S3 by a server that speaks it; dead, slow and lying."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from ci.errors import ConfigError, InfrastructureError
from ci.graph import remote as remote_module
from ci.graph import transfer
from ci.graph.key import Key
from ci.graph.remote import Mode, Remote, open_remote
from ci.graph.store import Store
from ci.graph.transfer import without_credentials

KEY, OTHER = Key.of({"library": "alpha"}), Key.of({"library": "beta"})
BIG = b"0123456789abcdef" * 300_000  # more than a block
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def result(tmp_path: Path) -> Path:
    folder = tmp_path / "result"
    (folder / "alpha").mkdir(parents=True)
    (folder / "alpha" / "__init__.py").write_text("value = 1\n")
    (folder / "alpha" / "big.so").write_bytes(BIG)
    (folder / "alpha" / "run").write_text("#!/bin/sh\n")
    (folder / "alpha" / "run").chmod(0o755)
    (folder / "alpha" / "link.so").symlink_to("big.so")
    return folder


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    """The endpoint of an S3 server with the bucket ``farm``."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "somebody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        fsspec.filesystem("s3", endpoint_url=endpoint, skip_instance_cache=True).mkdir("farm")
        yield endpoint
    server.stop()


@pytest.fixture
def s3_url(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix of its own on the server, which fsspec's user would name by an environment variable."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    return f"s3://farm/{uuid.uuid4().hex}"


@pytest.fixture(params=["folder", "file", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        found: str = request.getfixturevalue("s3_url")
        return found
    return {
        "folder": str(tmp_path / "shared"),
        "file": f"file://{tmp_path / 'shared'}",
        "memory": f"memory://{uuid.uuid4().hex}",
    }[str(request.param)]


class Host:
    """A host with a store of its own, on a remote store that others use too."""

    def __init__(self, root: Path, url: str, mode: Mode = "write", timeout: float = 15.0) -> None:
        self.told: list[str] = []
        self.remote = Remote(url, mode=mode, timeout=timeout)
        self.store = Store(root, remote=self.remote, warn=self.told.append)


@pytest.fixture
def host(tmp_path: Path, url: str) -> Callable[..., Host]:
    def make(name: str, mode: Mode = "write", **options: Any) -> Host:
        return Host(tmp_path / name, url, mode, **options)

    return make


@pytest.fixture
def objects(url: str) -> Callable[[], dict[str, bytes]]:
    """What is in the remote store, asked from a file system of the test's own."""

    def read() -> dict[str, bytes]:
        fs, base = fsspec.url_to_fs(url, skip_instance_cache="memory" not in url)
        fs.invalidate_cache()
        base = base.rstrip("/")
        return {
            str(path).split(base, 1)[1].lstrip("/"): fs.cat_file(path) for path in fs.find(base)
        }

    return read


def overwrite(url: str, name: str, data: bytes | None) -> None:
    fs, base = fsspec.url_to_fs(url, skip_instance_cache="memory" not in url)
    place = f"{base.rstrip('/')}/{name}"
    if data is None:
        fs.rm_file(place)
    else:
        fs.pipe_file(place, data)


def laid_out(store: Store, entry: Any, folder: Path) -> dict[str, tuple[bytes, int]]:
    out = store.materialise(entry, folder)
    return {
        path.relative_to(out).as_posix(): (path.read_bytes(), path.lstat().st_mode & 0o777)
        for path in out.rglob("*")
        if path.is_file()
    }


# -- what is there ---------------------------------------------------------------------------------


def test_a_second_host_gets_what_the_first_put(
    host: Callable[..., Host], result: Path, tmp_path: Path
) -> None:
    first, second = host("one"), host("two", "read")
    put = first.store.put(KEY, result, {"seconds": 1.5})
    assert first.store.flush(60)
    got = second.store.get(KEY)
    assert got == put
    assert got is not None
    assert (put.origin, got.origin) == ("local", "remote")
    files = laid_out(second.store, got, tmp_path / "out")
    assert files["alpha/big.so"] == (BIG, 0o644)
    assert files["alpha/run"] == (b"#!/bin/sh\n", 0o755)
    assert (tmp_path / "out" / "alpha" / "link.so").readlink() == Path("big.so")
    again = second.store.get(KEY)
    assert again is not None
    assert again.origin == "local"
    assert second.store.get(OTHER) is None
    assert first.told == second.told == []


def test_the_layout_is_entries_by_key_and_contents_by_hash(
    host: Callable[..., Host], result: Path, objects: Callable[[], dict[str, bytes]]
) -> None:
    one = host("one")
    entry = one.store.put(KEY, result, {})
    assert one.store.flush(60)
    wanted = {f"blobs/{sha[:2]}/{sha}" for sha in entry.blobs}
    assert set(objects()) == wanted | {f"entries/{entry.key[:2]}/{entry.key}.json"}
    assert BIG in objects().values()


def test_a_run_that_is_not_trusted_writes_nothing(
    host: Callable[..., Host], result: Path, objects: Callable[[], dict[str, bytes]], url: str
) -> None:
    reader = host("reader", "read")
    reader.store.put(KEY, result, {})
    assert reader.store.flush(10)
    assert objects() == {}
    writer = host("writer")
    entry = writer.store.put(KEY, result, {})
    assert writer.store.flush(60)
    name = f"entries/{entry.key[:2]}/{entry.key}.json"
    overwrite(url, name, b"bad")
    before = objects()
    fresh = host("fresh", "read")
    assert fresh.store.get(KEY) is None
    assert len(fresh.told) == 1
    fresh.store.put(KEY, result, {})
    assert fresh.store.flush(10)
    assert objects() == before
    assert before[name] == b"bad"


def test_the_default_is_to_write_nothing(tmp_path: Path) -> None:
    assert Remote(str(tmp_path)).mode == "read"
    assert open_remote(str(tmp_path), writable=False).mode == "read"
    assert open_remote(str(tmp_path), writable=True).mode == "write"


def test_a_content_that_is_there_is_not_sent_again(
    host: Callable[..., Host], result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    real = transfer.put

    def counting(fs: Any, place: str, *rest: Any) -> None:
        sent.append(place)
        real(fs, place, *rest)

    monkeypatch.setattr(transfer, "put", counting)
    first, second = host("one"), host("two")
    first.store.put(KEY, result, {})
    first.store.put(OTHER, result, {})
    assert first.store.flush(60)
    second.store.put(KEY, result, {})
    assert second.store.flush(60)
    assert len([place for place in sent if "/blobs/" in place]) == 3
    assert len([place for place in sent if "/entries/" in place]) == 2


# -- objects that are not what they should be ------------------------------------------------------


def blob_name(entry: Any, path: str) -> str:
    (sha256,) = [item.sha256 for item in entry.files if item.path == path]
    return f"blobs/{sha256[:2]}/{sha256}"


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (BIG[:1_000_000], "bytes, not"),
        (BIG + b"more", "bytes, not"),
        (b"", "bytes, not"),
        (BIG[::-1], "another content"),
        (None, "missing"),
    ],
)
def test_a_bad_content_is_told_not_used_and_replaced_by_the_next_put(
    host: Callable[..., Host],
    result: Path,
    url: str,
    objects: Callable[[], dict[str, bytes]],
    data: bytes | None,
    word: str,
) -> None:
    one, two, three = host("one"), host("two"), host("three")
    entry = one.store.put(KEY, result, {})
    assert one.store.flush(60)
    name = blob_name(entry, "alpha/big.so")
    overwrite(url, name, data)
    assert two.store.get(KEY) is None
    assert len(two.told) == 1
    assert word in two.told[0]
    assert "building it here" in two.told[0]
    assert not two.remote.is_off
    two.store.put(KEY, result, {})
    assert two.store.flush(60)
    assert objects()[name] == BIG
    assert three.store.get(KEY) is not None
    assert three.told == []


@pytest.mark.parametrize("kind", ["cut", "empty", "other key", "outside", "array"])
def test_a_bad_entry_is_told_not_used_and_replaced_by_the_next_put(
    host: Callable[..., Host], result: Path, url: str, tmp_path: Path, kind: str
) -> None:
    one, two, three = host("one"), host("two"), host("three")
    entry = one.store.put(KEY, result, {})
    one.store.put(OTHER, result, {})
    assert one.store.flush(60)
    good = one.store.entry_path(KEY.digest).read_bytes()
    bad = {
        "cut": good[: len(good) // 2],
        "empty": b"",
        "other key": one.store.entry_path(OTHER.digest).read_bytes(),
        "outside": good.replace(b"alpha/run", b"../../run"),
        "array": b"[[[[",
    }[kind]
    overwrite(url, f"entries/{entry.key[:2]}/{entry.key}.json", bad)
    assert two.store.get(KEY) is None
    assert len(two.told) == 1
    assert KEY.digest[:12] in two.told[0]
    assert not (tmp_path / "run").exists()
    assert two.store.put(KEY, result, {})
    assert two.store.flush(60)
    got = three.store.get(KEY)
    assert got is not None
    assert got.content == entry.content
    assert three.told == []


def test_nothing_of_a_bad_download_stays_in_the_store(
    host: Callable[..., Host], result: Path, url: str
) -> None:
    one, two = host("one"), host("two")
    entry = one.store.put(KEY, result, {})
    assert one.store.flush(60)
    overwrite(url, blob_name(entry, "alpha/big.so"), BIG[::-1])
    assert two.store.get(KEY) is None
    assert two.store.digests() == {}
    assert two.store.blobs.sizes() == {}
    assert [path for path in (two.store.home / "tmp").rglob("*") if path.is_file()] == []


# -- a store that fails ----------------------------------------------------------------------------


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Accepts connections, and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def refused_endpoint() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def test_a_server_that_hangs_is_one_warning_and_costs_one_timeout(
    tmp_path: Path,
    result: Path,
    silent_server: str,
    credentials: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", silent_server)
    host = Host(tmp_path / "store", "s3://farm/x", timeout=1.0)
    started = time.monotonic()
    assert host.store.get(KEY) is None
    for number in range(20):
        assert host.store.get(Key.of({"number": str(number)})) is None
    host.store.put(KEY, result, {})
    assert host.store.flush(10)
    assert time.monotonic() - started < 5
    assert host.store.get(KEY) is not None
    assert len(host.told) == 1
    assert "left alone for the rest of this run" in host.told[0]
    assert "no answer within 1 s" in host.told[0]


def test_a_process_ends_though_a_server_hangs(
    tmp_path: Path, silent_server: str, credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", silent_server)
    code = (
        "import sys, pathlib\n"
        "from ci.graph.key import Key\n"
        "from ci.graph.remote import Remote\n"
        "from ci.graph.store import Store\n"
        "root = pathlib.Path(sys.argv[1])\n"
        "(root / 'r').mkdir()\n"
        "store = Store(root / 's', remote=Remote('s3://farm/x', mode='write', timeout=1.0))\n"
        "store.put(Key.of({'a': 'b'}), root / 'r', {})\n"
        "print(store.flush(0.2))\n"
    )
    started = time.monotonic()
    done = subprocess.run(
        (sys.executable, "-c", code, str(tmp_path)), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"
    assert "not uploaded" in done.stderr
    assert time.monotonic() - started < 30


def test_a_server_that_is_not_there_is_one_warning(
    tmp_path: Path, result: Path, credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", refused_endpoint())
    host = Host(tmp_path / "store", "s3://farm/x", timeout=2.0)
    started = time.monotonic()
    assert host.store.get(KEY) is None
    host.store.put(KEY, result, {})
    assert host.store.flush(10)
    assert host.store.get(KEY) is not None
    assert len(host.told) == 1
    assert time.monotonic() - started < 10


def test_a_server_that_dies_in_between_is_one_warning_and_the_run_goes_on(
    tmp_path: Path, result: Path, credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    address, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{address}:{port}")
    fsspec.filesystem(
        "s3", endpoint_url=f"http://{address}:{port}", skip_instance_cache=True
    ).makedirs("farm", exist_ok=True)
    one = Host(tmp_path / "one", "s3://farm/x", timeout=2.0)
    one.store.put(KEY, result, {})
    assert one.store.flush(60)
    two = Host(tmp_path / "two", "s3://farm/x", timeout=2.0)
    assert two.store.get(KEY) is not None
    server.stop()
    assert two.store.get(OTHER) is None
    entry = two.store.put(OTHER, result, {})
    assert two.store.flush(10)
    assert two.store.get(OTHER) == entry
    assert len(two.told) == 1
    assert two.remote.is_off


def test_a_download_that_stops_in_the_middle_is_bounded(
    tmp_path: Path, result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    one, two = Host(tmp_path / "one", url), Host(tmp_path / "two", url, timeout=0.5)
    one.store.put(KEY, result, {})
    assert one.store.flush(10)
    stopped = threading.Event()

    def stuck(*_: object) -> None:
        stopped.wait(60)

    monkeypatch.setattr(transfer, "download", stuck)
    monkeypatch.setattr(remote_module, "SLOWEST_BYTES_PER_SECOND", 10**9)
    started = time.monotonic()
    assert two.store.get(KEY) is None
    assert time.monotonic() - started < 5
    stopped.set()
    assert len(two.told) == 1
    assert two.store.digests() == {}


def test_a_slow_download_that_goes_on_is_not_given_up(
    tmp_path: Path, result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    one, two = Host(tmp_path / "one", url), Host(tmp_path / "two", url, timeout=1.0)
    one.store.put(KEY, result, {})
    assert one.store.flush(10)
    real = transfer.download

    def slow(fs: Any, source: str, target: Path, size: int, tick: Callable[[], None]) -> int:
        for _ in range(8):
            time.sleep(0.25)
            tick()
        return real(fs, source, target, size, tick)

    monkeypatch.setattr(transfer, "download", slow)
    monkeypatch.setattr(remote_module, "SLOWEST_BYTES_PER_SECOND", 10**9)
    assert two.store.get(KEY) is not None
    assert two.told == []


def test_credentials_that_may_only_read_are_a_warning(
    tmp_path: Path, result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared folder that this user may not write to."""
    shared = tmp_path / "shared"
    one = Host(tmp_path / "one", str(shared))
    one.store.put(KEY, result, {})
    assert one.store.flush(10)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(
            "An error occurred (AccessDenied) when calling the PutObject operation"
        )

    monkeypatch.setattr(transfer, "put", refused)
    two = Host(tmp_path / "two", str(shared))
    assert two.store.get(KEY) is not None
    entry = two.store.put(OTHER, result, {})
    assert two.store.flush(10)
    assert two.store.get(OTHER) == entry
    assert len(two.told) == 1
    assert "AccessDenied" in two.told[0]


def test_a_full_disk_here_is_no_failure_of_the_remote_store(
    tmp_path: Path, result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    one, two = Host(tmp_path / "one", url), Host(tmp_path / "two", url)
    one.store.put(KEY, result, {})
    assert one.store.flush(10)

    def full(*_: object) -> None:
        raise transfer.LocalError(OSError(28, "No space left on device"))

    monkeypatch.setattr(transfer, "download", full)
    with pytest.raises(InfrastructureError, match="no room") as caught:
        two.store.get(KEY)
    assert "cache gc" in caught.value.next_step
    assert not two.remote.is_off
    assert two.store.digests() == {}


# -- a shared folder, several at once --------------------------------------------------------------

SHARER = """
import pathlib, sys
from ci.graph.key import Key
from ci.graph.remote import Remote
from ci.graph.store import Store
from ci.graph.transfer import without_credentials
root, shared, number = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
told = []
store = Store(root, remote=Remote(shared, mode="write"), warn=told.append)
for turn in range(12):
    key = Key.of({"turn": str(turn)})
    entry = store.get(key)
    if entry is None:
        folder = root / "results" / str(turn)
        folder.mkdir(parents=True)
        for name in "abc":
            (folder / name).write_text(f"{name} {turn} " * 50_000)
        entry = store.put(key, folder, {"by": number})
    out = store.materialise(entry, root / "out" / str(turn))
    for name in "abc":
        assert (out / name).read_text() == f"{name} {turn} " * 50_000
assert store.flush(60)
assert told == [], told
"""


def test_processes_share_a_folder_at_the_same_time(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    running = [
        subprocess.Popen(
            (
                sys.executable,
                "-c",
                SHARER,
                str(tmp_path / f"host-{number}"),
                str(shared),
                str(number),
            ),
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for process in running:
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors
    names = [path for path in shared.rglob("*") if path.is_file()]
    assert len([path for path in names if "entries" in path.parts]) == 12
    assert len([path for path in names if "blobs" in path.parts]) == 36
    assert len(names) == 48
    for path in names:
        if "entries" in path.parts:
            assert json.loads(path.read_bytes())["entry"]["key"] == path.stem


# -- addresses -------------------------------------------------------------------------------------


def test_an_unknown_protocol_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigError, match="nothing opens nosuch://") as caught:
        Remote("nosuch://me:hunter2@example.org/x")
    assert "hunter2" not in str(caught.value.as_dict())


@pytest.mark.parametrize(("kind", "extra"), [("s3", "s3"), ("gs", "gcs")])
def test_a_missing_package_is_named_with_the_command_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, extra: str
) -> None:
    import fsspec.core

    def missing(*_: object, **__: object) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    store = Store(tmp_path, remote=Remote(f"{kind}://farm/x"), warn=print)
    with pytest.raises(ConfigError) as caught:
        store.get(KEY)
    assert caught.value.exit_code == 2
    assert caught.value.next_step == f"pip install 'paddlefleet-farm[{extra}]'"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("s3://farm/x", "s3://farm/x"),
        ("ftp://me:hunter2@host/x", "ftp://host/x"),
        ("sftp://token@host/x", "sftp://host/x"),
        ("cannot reach http://me:pa@ss@host:1/x?a=b", "cannot reach http://host:1/x?a=b"),
        ("https://h/x?X-Amz-Signature=abc&y=1", "https://h/x?X-Amz-Signature=...&y=1"),
        ("https://h/x?token=abc", "https://h/x?token=..."),
        ("/shared/folder@2", "/shared/folder@2"),
    ],
)
def test_credentials_are_left_out_of_messages(text: str, clean: str) -> None:
    assert without_credentials(text) == clean


def test_no_warning_has_a_password_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(
            "cannot reach ftp://me:hunter2@host/x?token=abc: bad bucket me:hunter2@host, hunter2"
        )

    monkeypatch.setattr(transfer, "open_file_system", fails)
    host = Host(tmp_path, "ftp://me:hunter2@host/x")
    assert host.store.get(KEY) is None
    assert len(host.told) == 1
    assert "hunter2" not in host.told[0]
    assert "abc" not in host.told[0]
    assert "host/x" in host.told[0]


def test_a_folder_of_results_is_not_moved_by_the_remote_tier(tmp_path: Path, result: Path) -> None:
    """What is uploaded stays: the caller's folder, and the local store."""
    host = Host(tmp_path / "store", str(tmp_path / "shared"))
    entry = host.store.put(KEY, result, {})
    assert host.store.flush(10)
    shutil.rmtree(tmp_path / "shared")
    assert (result / "alpha" / "big.so").read_bytes() == BIG
    assert host.store.get(KEY) == entry
