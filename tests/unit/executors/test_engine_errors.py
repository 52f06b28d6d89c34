from __future__ import annotations

import re

import pytest

from ci.errors import ConfigError, FarmError, InfrastructureError, ToolchainError
from ci.executors.engine_errors import (
    CREATE,
    GONE,
    LOST,
    NO_CONTAINER,
    NO_IMAGE,
    OPEN_FILES,
    PROBE,
    PULL,
    SHOWN_LINES,
    Trouble,
    engine_error,
    said_by_init,
    trouble_of,
)

TABLES = {"probe": PROBE, "pull": PULL, "create": CREATE, "gone": GONE}
ENTRIES = list(
    dict.fromkeys(
        [*(entry for table in TABLES.values() for entry in table), LOST, NO_CONTAINER, NO_IMAGE]
    )
)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.kind)
def test_every_entry_says_what_to_do(entry: Trouble) -> None:
    re.compile(entry.words)
    assert entry.error in (InfrastructureError, ToolchainError, ConfigError)
    assert entry.cause
    shown = entry.next_step.format(engine="podman")
    assert len(shown) > 10
    assert "{" not in shown


@pytest.mark.parametrize(
    ("table", "text", "kind"),
    [
        ("probe", "permission denied while trying to connect to the docker API at unix:///var/run/docker.sock",
         "permission"),
        ("probe", "failed to connect to the docker API at unix:///x; check if the path is correct and if the "
         "daemon is running: dial unix /x: connect: no such file or directory", "down"),
        ("probe", "Cannot connect to Podman. Please verify your connection to the Linux system", "down"),
        ("probe", "client version 1.50 is too new. Maximum supported API version is 1.41", "api version"),
        ("probe", "tls: failed to verify certificate: x509: certificate signed by unknown authority", "tls"),
        # Docker Hub's own words for throttling name the login, which is no refusal.
        ("pull", "toomanyrequests: You have reached your unauthenticated pull rate limit. You may "
         "increase the limit by authenticating and upgrading", "throttled"),
        ("pull", "unauthorized: authentication required", "denied"),
        ("pull", "received unexpected HTTP status: 502 Bad Gateway", "server"),
        ("pull", 'Get "https://registry-1.docker.io/v2/": context deadline exceeded', "timeout"),
        ("pull", "lookup registry.example: Temporary failure in name resolution", "reset"),
        ("pull", "initializing source docker://x:1: reading manifest 1 in x: manifest unknown",
         "unknown"),
        ("pull", "choosing an image from manifest list: no image found in image index for "
         "architecture amd64, variant \"\", OS linux", "architecture"),
        ("create", "crun: executable file `make` not found in $PATH: No such file or directory",
         "no program"),
        ("create", "exec /usr/bin/make: exec format error", "other machine's program"),
        ("create", "crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted", "open files"),
        ("create", 'unable to find network with name or ID none-such: network not found', "network"),
        ("gone", "error during connect: Get http://%2Fvar%2Frun%2Fdocker.sock: EOF", "down"),
    ],
)  # fmt: skip
def test_words_of_engines_are_understood(table: str, text: str, kind: str) -> None:
    found = trouble_of(text, TABLES[table])
    assert found is not None
    assert found.kind == kind


@pytest.mark.parametrize("kind", ["denied", "unknown", "architecture", "disk", "permission"])
def test_what_will_not_pass_is_not_tried_again(kind: str) -> None:
    (entry,) = [entry for entry in PULL if entry.kind == kind]
    assert not entry.passing


def test_unknown_words_are_shown_and_are_infrastructure() -> None:
    lines = [f"line {number}" for number in range(30)]
    error = engine_error("cannot do it", "\n\n".join(lines), PULL, "podman")
    assert type(error) is InfrastructureError
    assert error.details == tuple(lines[-SHOWN_LINES:])
    assert "podman" in error.cause


def test_the_engines_name_is_put_into_the_next_command() -> None:
    error: FarmError = engine_error("x", "no space left on device", CREATE, "podman")
    assert "podman system df" in error.next_step


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("a\n[FATAL tini (7)] exec x failed: No such file or directory\n", True),
        ("[FATAL tini (7)] exec x failed: No such file or directory\nand then more\n", False),
        ("see [FATAL tini (7)] exec x failed: y\n", False),
        ("", False),
    ],
)
def test_only_the_last_line_is_the_first_process_speaking(output: str, expected: bool) -> None:
    assert bool(said_by_init(output)) is expected


def test_a_refused_limit_is_told_from_a_missing_program() -> None:
    text = "error setting rlimit type 7: operation not permitted"
    assert OPEN_FILES.fits(text)
    found = trouble_of(text, CREATE)
    assert found is OPEN_FILES
