"""Where objects are kept, and who gets to know what is needed for that."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ci.compiler_cache.storage import (
    addresses,
    ccache_storage,
    sccache_storage,
    silent_storage,
)
from ci.errors import ConfigError

FOLDER = Path("/cache/sccache")


def test_a_folder_of_the_farm_unless_the_caller_says_another() -> None:
    assert sccache_storage({}, FOLDER, read_only=False) == {"SCCACHE_DIR": str(FOLDER)}
    environ = {"SCCACHE_DIR": "/mine", "SCCACHE_CACHE_SIZE": "20G", "EDITOR": "vi"}
    kept = sccache_storage(environ, FOLDER, read_only=False)
    assert kept == {"SCCACHE_DIR": "/mine", "SCCACHE_CACHE_SIZE": "20G"}


def test_the_callers_server_and_configuration_are_not_the_farms() -> None:
    environ = {
        "SCCACHE_CONF": "/home/user/sccache.toml",
        "SCCACHE_SERVER_PORT": "4226",
        "SCCACHE_SERVER_UDS": "/run/user",
        "SCCACHE_DIRECT": "true",
        "SCCACHE_BASEDIRS": "/",
        "SCCACHE_RECACHE": "1",
    }
    assert sccache_storage(environ, FOLDER, read_only=False) == {"SCCACHE_DIR": str(FOLDER)}


def test_remote_storages_and_their_credentials_go_to_the_server() -> None:
    environ = {
        "SCCACHE_BUCKET": "objects",
        "SCCACHE_ENDPOINT": "http://localhost:1",
        "SCCACHE_REDIS_ENDPOINT": "tcp://localhost:2",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "GITHUB_TOKEN": "token",
    }
    kept = sccache_storage(environ, FOLDER, read_only=False)
    assert set(kept) == {*environ, "SCCACHE_DIR"} - {"GITHUB_TOKEN"}


def test_read_only_wherever_it_is() -> None:
    kept = sccache_storage({"SCCACHE_S3_RW_MODE": "READ_WRITE"}, FOLDER, read_only=True)
    modes = {name: value for name, value in kept.items() if name.endswith("_RW_MODE")}
    assert set(modes.values()) == {"READ_ONLY"}
    assert {f"SCCACHE_{name}_RW_MODE" for name in ("LOCAL", "S3", "REDIS", "GCS")} <= set(modes)
    assert ccache_storage({}, FOLDER, read_only=True)["CCACHE_READONLY"] == "1"


def test_ccache_reads_no_configuration_of_the_user() -> None:
    kept = ccache_storage({"CCACHE_CONFIGPATH": "/home/user/ccache.conf"}, FOLDER, read_only=False)
    assert kept["CCACHE_CONFIGPATH"] == kept["CCACHE_CONFIGPATH2"] == "/dev/null"
    assert kept["CCACHE_DIR"] == str(FOLDER)


@pytest.mark.parametrize(
    "address",
    [
        "redis://user:password@host:6379",
        "redis://:password@host",
        "redis://host http://user@host/objects",
        "http://host/objects|bearer-token=secret",
    ],
)
def test_credentials_in_ccaches_address_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="every build would see them") as raised:
        ccache_storage({"CCACHE_REMOTE_STORAGE": address}, FOLDER, read_only=False)
    text = f"{raised.value} {raised.value.cause} {raised.value.next_step}"
    assert "password" not in text
    assert "secret" not in text
    assert "sccache" in text


def test_an_address_without_credentials_is_taken() -> None:
    environ = {"CCACHE_REMOTE_STORAGE": "redis://host:6379|read-only"}
    kept = ccache_storage(environ, FOLDER, read_only=False)
    assert kept["CCACHE_REMOTE_STORAGE"] == environ["CCACHE_REMOTE_STORAGE"]


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        (
            "SCCACHE_REDIS_ENDPOINT",
            "redis://user:word@cache.example:7000/0",
            ("cache.example", 7000),
        ),
        ("SCCACHE_REDIS", "redis://cache.example", ("cache.example", 6379)),
        ("SCCACHE_ENDPOINT", "minio.example:9000", ("minio.example", 9000)),
        ("SCCACHE_ENDPOINT", "https://minio.example", ("minio.example", 443)),
        ("SCCACHE_ENDPOINT", "minio.example", ("minio.example", 80)),
        ("SCCACHE_MEMCACHED_ENDPOINT", "tcp://10.0.0.1:11211", ("10.0.0.1", 11211)),
    ],
)
def test_addresses_of_storages(variable: str, value: str, expected: tuple[str, int]) -> None:
    assert addresses({variable: value}) == (expected,)


def test_several_addresses_none_and_nonsense() -> None:
    nodes = {"SCCACHE_REDIS_CLUSTER_ENDPOINTS": "redis://a:1,redis://b:2"}
    assert addresses(nodes) == (("a", 1), ("b", 2))
    assert addresses({"SCCACHE_DIR": "/cache", "SCCACHE_BUCKET": "objects"}) == ()
    assert addresses({"SCCACHE_ENDPOINT": "host:notaport"}) == ()


def test_a_storage_that_answers_and_one_that_does_not() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        silent = {"SCCACHE_ENDPOINT": f"127.0.0.1:{port}"}
        assert silent_storage(silent).startswith(f"127.0.0.1:{port}: ")
        server.listen()
        assert silent_storage(silent) == ""
    assert silent_storage({"SCCACHE_DIR": "/cache"}) == ""
