"""Which wheels a lock means, judged by packaging, and how they are fetched, from a server of the test."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from packaging.tags import cpython_tags, platform_tags
from packaging.utils import parse_wheel_filename

from ci.bundle import wheels
from ci.bundle.wheels import WheelFile, fetch, kept_place, missing_bytes, verified, wheels_of
from ci.errors import InfrastructureError

CONTENT = b"a wheel, as far as a download goes" * 100_000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def listed(*names: str) -> dict[str, Any]:
    """A package of a PEP 751 lock; the hash of each file is that of its name."""
    files = [
        {"url": f"https://x.example/{name}", "size": 7, "hashes": {"sha256": hash_of(name)}}
        for name in names
    ]
    return {"name": "thing", "version": "1", "wheels": files}


def hash_of(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def chosen(*names: str, python: str = "3.12") -> str:
    return wheels._chosen(
        listed(*names), {hash_of(name) for name in names}, wheels._supported(python)
    ).name


def test_the_wheel_of_the_oldest_glibc_is_taken() -> None:
    newer = "thing-1-cp312-cp312-manylinux_2_28_x86_64.whl"
    older = "thing-1-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
    assert chosen(newer, older) == chosen(older, newer) == older


def test_a_compiled_wheel_goes_before_a_pure_one() -> None:
    compiled = "thing-1-cp312-cp312-manylinux_2_17_x86_64.whl"
    assert chosen("thing-1-py3-none-any.whl", compiled) == compiled


def test_the_wheel_of_this_python_goes_before_an_older_stable_abi() -> None:
    own, stable = (
        f"thing-1-{tag}-manylinux_2_17_x86_64.whl" for tag in ("cp312-cp312", "cp39-abi3")
    )
    assert chosen(stable, own) == own


@pytest.mark.parametrize("python", ["3.10", "3.13"])
def test_every_choice_fits_a_python_that_is_not_this_one(python: str) -> None:
    names = [f"thing-1-cp3{minor}-cp3{minor}-manylinux_2_17_x86_64.whl" for minor in range(9, 15)]
    major, minor = (int(part) for part in python.split("."))
    fitting = set(cpython_tags((major, minor), [f"cp{major}{minor}"], list(platform_tags())))
    assert parse_wheel_filename(chosen(*names, python=python))[3] & fitting


@pytest.mark.parametrize(
    "name",
    [
        "thing-1-cp311-cp311-manylinux_2_17_x86_64.whl",
        "thing-1-cp312-cp312-win_amd64.whl",
        "thing-1-cp312-cp312-manylinux_2_99_x86_64.whl",
        "thing-1.whl",
    ],
)
def test_what_does_not_fit_is_refused(name: str) -> None:
    with pytest.raises(InfrastructureError, match="no wheel of thing 1"):
        chosen(name)


def test_a_file_whose_hash_is_not_in_the_lock_is_refused() -> None:
    package = listed("thing-1-py3-none-any.whl")
    with pytest.raises(InfrastructureError, match="as it is locked"):
        wheels._chosen(package, {DIGEST}, wheels._supported("3.12"))


def test_uv_names_the_files_of_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / "an index, with a comma"
    index.mkdir()
    wheel = index / "thing-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "thing-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1\n"
        )
        archive.writestr("thing-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("thing-1.dist-info/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_FIND_LINKS", index.as_uri().replace(",", "%2C"))
    (found,) = wheels_of(f"thing==1 \\\n    --hash=sha256:{digest}\n", "3.12")
    assert (found.name, found.sha256) == (wheel.name, digest)
    (kept,) = fetch([found], tmp_path / "cache", lambda text: None)
    assert kept.read_bytes() == wheel.read_bytes()
    with pytest.raises(InfrastructureError):
        wheels_of(f"thing==1 \\\n    --hash=sha256:{DIGEST}\n", "3.12")


# -- downloading -----------------------------------------------------------------------------------


class Server:
    """Serves :data:`CONTENT`; ``answers`` are what the next requests get instead: a status, or bytes."""

    def __init__(self) -> None:
        self.answers: list[int | bytes] = []
        self.requests = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests += 1
                answer = server.answers.pop(0) if server.answers else CONTENT
                if isinstance(answer, int):
                    self.send_error(answer)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(CONTENT)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                return

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.wheel = WheelFile(
            "thing-1-py3-none-any.whl",
            f"http://127.0.0.1:{self.http.server_port}/thing",
            DIGEST,
            len(CONTENT),
        )


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever, daemon=True)
    thread.start()
    yield made
    made.http.shutdown()
    made.http.server_close()
    thread.join()


def quiet(_: str) -> None:
    return


def test_a_wheel_is_downloaded_once(server: Server, tmp_path: Path) -> None:
    assert missing_bytes([server.wheel], tmp_path) == len(CONTENT)
    (path,) = fetch([server.wheel], tmp_path, quiet)
    assert path.read_bytes() == CONTENT
    assert missing_bytes([server.wheel], tmp_path) == 0
    assert fetch([server.wheel], tmp_path, quiet) == (path,)
    assert server.requests == 1


@pytest.mark.parametrize(
    "first", [503, CONTENT[:1000], CONTENT[:-1] + b"?"], ids=["503", "cut", "changed"]
)
def test_a_bad_answer_is_asked_for_again(
    server: Server, tmp_path: Path, first: int | bytes
) -> None:
    server.answers = [first]
    (path,) = fetch([server.wheel], tmp_path, quiet)
    assert path.read_bytes() == CONTENT
    assert server.requests == 2


def test_content_with_another_hash_is_never_kept(server: Server, tmp_path: Path) -> None:
    server.answers = [CONTENT[:-1] + b"?"] * wheels.ATTEMPTS
    with pytest.raises(InfrastructureError, match="cannot download") as caught:
        fetch([server.wheel], tmp_path, quiet)
    assert DIGEST in caught.value.cause
    assert not kept_place(server.wheel, tmp_path).exists()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_is_not_there_is_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    server.answers = [404] * wheels.ATTEMPTS
    with pytest.raises(InfrastructureError, match="cannot download"):
        fetch([server.wheel], tmp_path, quiet)
    assert server.requests == 1


def test_a_changed_file_is_not_verified(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    assert not verified(path, DIGEST)
    path.write_bytes(CONTENT)
    assert verified(path, DIGEST)
    path.write_bytes(CONTENT + b"?")
    assert not verified(path, DIGEST)
