"""Is an image what it should be, and does it hold nothing that it must not: facts first, then findings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import Version

from ci.errors import InfrastructureError
from ci.executors.model import Engine, ImageFacts
from ci.findings import Finding
from ci.images.build import ImageBuild, labels_of, state
from ci.images.pythons import tag_of
from ci.proc import Command, Completed, run

LOOK = Path(__file__).parent / "child" / "look.py"
_SECONDS = 600.0
OLDEST: Mapping[str, str] = {
    "auditwheel": "6.8",
    "g++": "11",
    "gcc": "11",
    "ninja": "1.13",
    "patchelf": "0.14.5",
    "pyproject-build": "1.2",
    "sccache": "0.10",
    "uv": "0.8",
}
"""Oldest version of each tool: gcc 11 (C++20 of the libraries), ninja 1.13 (GNU Make's jobserver), patchelf
0.14.5 (auditwheel's own minimum), the others as the farm was tried with."""

_VERSION = re.compile(r"\d+(?:\.\d+)+")
# Values that identify somebody, or that belong to one network. Names are as programs read them.
_FORBIDDEN: tuple[tuple[str, str, str], ...] = (
    ("secret", r"-----BEGIN [A-Z ]*PRIVATE KEY", "a private key"),
    ("secret", r"https?://[^/\s:@\"']+:[^/\s:@\"']+@", "a user and a password in an address"),
    ("secret", r"\b(AKIA|ASIA)[0-9A-Z]{16}\b", "a key of a cloud account"),
    ("secret", r"\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_[A-Za-z0-9_]{30,}", "a GitHub token"),
    (
        "secret",
        r"(?i)\b\w*(passw(or)?d|secret|token|api_?key|access_?key|credential)\w*=[^\s\"']",
        "a value that is named like a secret",
    ),
    (
        "pip-configuration",
        r"\b(PIP_(INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|TRUSTED_HOST|CONSTRAINT|PROXY)"
        r"|UV_(INDEX\w*|DEFAULT_INDEX|FIND_LINKS|INSECURE_HOST))=\S",
        "the address of a package index",
    ),
    (
        "certificate",
        r"\b(PIP_CERT|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|GIT_SSL_CAINFO"
        r"|NODE_EXTRA_CA_CERTS)=\S|-----BEGIN CERTIFICATE",
        "a certificate of one network",
    ),
    ("proxy", r"(?i)\b(https?|ftp|all|no)_proxy=\S", "a proxy of one network"),
)


@dataclass(frozen=True)
class Layer:
    """One line of an image's history: what made it, and its size in bytes."""

    created_by: str
    size: int


@dataclass(frozen=True)
class Seen:
    """What was seen of an image. ``config`` is the text of its configuration, ``inside`` what
    ``child/look.py`` printed.
    """

    facts: ImageFacts
    config: str
    layers: tuple[Layer, ...]
    inside: Mapping[str, Any] = field(default_factory=dict)


def look(engine: Engine, facts: ImageFacts) -> Seen:
    """Ask the engine about an image, and run the look inside it, without a network.

    Raises :class:`~ci.errors.InfrastructureError` when the engine does not answer.
    """
    program = str(engine.facts.program)
    config = _ask((program, "image", "inspect", "--format", "{{json .Config}}", facts.ref))
    form = "{{.Size}}\t{{.CreatedBy}}"
    history = _ask((program, "history", "--no-trunc", "--human=false", "--format", form, facts.ref))
    inside = (
        program, "run", "--rm", "--network", "none", "--entrypoint", "/opt/farm/bin/python", facts.ref,
        "-I", "-c", LOOK.read_text("utf-8"),
    )  # fmt: skip
    return Seen(facts, config.output, parse_history(history.output), _inside(inside))


def _ask(argv: tuple[str, ...]) -> Completed:
    done = run(Command(argv, timeout=_SECONDS))
    if not done.ok:
        raise InfrastructureError(
            f"{argv[0].rpartition('/')[2]} {argv[1]} failed",
            cause="the engine went away, or the image was removed meanwhile",
            next_step=f"{argv[0]} info",
            details=done.tail(6),
        )
    return done


def _inside(argv: tuple[str, ...]) -> Mapping[str, Any]:
    done = run(Command(argv, timeout=_SECONDS))
    line = next((line for line in reversed(done.output.splitlines()) if line.startswith("{")), "")
    try:
        return dict(json.loads(line))
    except ValueError:
        return {"problem": " ".join(done.tail(3)) or "it printed nothing"}


def parse_history(text: str) -> tuple[Layer, ...]:
    """The lines of ``docker history``, newest first; a line without a size continues the one before."""
    layers: list[Layer] = []
    for line in text.splitlines():
        size, tab, created_by = line.partition("\t")
        if tab and size.strip().isdigit():
            layers.append(Layer(created_by, int(size)))
        elif layers:
            last = layers[-1]
            layers[-1] = Layer(f"{last.created_by}\n{line}", last.size)
    return tuple(layers)


def judge(build: ImageBuild, seen: Seen, machine: str) -> tuple[Finding, ...]:
    """Everything wrong with an image. ``machine`` is the architecture that it should have."""
    return (
        *_judge_identity(build, seen.facts, machine),
        *judge_texts(build.ref, seen.config, seen.layers),
        *_judge_inside(build, seen.inside),
    )


def absent(build: ImageBuild) -> Finding:
    """The finding for an image that is not there."""
    return Finding(
        rule="image-absent",
        place=build.ref,
        why="the engine has no such image",
        mend=build.command,
    )


def _judge_identity(build: ImageBuild, facts: ImageFacts, machine: str) -> Iterator[Finding]:
    if facts.architecture != machine:
        yield Finding(
            rule="image-architecture",
            place=build.ref,
            why=f"it is for {facts.architecture}, and this engine runs {machine}",
            mend="build it on this machine",
        )
    if state(build, facts) == "stale":
        yield Finding(
            rule="image-stale",
            place=build.ref,
            why=f"it was made from {facts.label('definition') or 'something unknown'}, and the Dockerfile, "
            f"its scripts, locks and base now are {build.definition}",
            mend=build.command,
        )
        return
    for name, value in labels_of(build).items():
        if facts.labels.get(name, "") != value:
            yield Finding(
                rule="image-label",
                place=build.ref,
                why=f"its label {name} is {facts.labels.get(name, '')!r}, not {value!r}",
                mend=build.command,
                subject=name,
            )


def judge_texts(ref: str, config: str, layers: Sequence[Layer]) -> Iterator[Finding]:
    """Findings for what an image's configuration and history tell to everyone who has the image."""
    places = [("configuration", config)]
    places += [
        (f"history, layer {number}", layer.created_by) for number, layer in enumerate(layers, 1)
    ]
    for place, text in places:
        for rule, pattern, what in _FORBIDDEN:
            match = re.search(pattern, text)
            if match:
                name = match[0].partition("=")[0]
                yield Finding(
                    rule=f"image-{rule}",
                    place=f"{ref}, {place}",
                    why=f"it holds {what} ({name[:40]})",
                    mend="pass it when a container is started; anyone with the image can read it",
                    subject=name[:40],
                )


def _judge_inside(build: ImageBuild, inside: Mapping[str, Any]) -> Iterator[Finding]:
    if "tools" not in inside:
        yield _broken(build, "/opt/farm", f"it does not run: {inside.get('problem', 'no answer')}")
        return
    yield from _judge_tools(build, inside["tools"])
    yield from _judge_pythons(build, inside["pythons"])
    yield from _judge_files(build, inside)
    if build.role == "test":
        yield from _judge_test(build, inside)


def _judge_tools(build: ImageBuild, tools: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    for name, told in tools.items():
        if told["problem"]:
            yield _broken(build, name, f"it does not run: {told['problem']}")
        elif name in OLDEST and older(told["said"], OLDEST[name]):
            yield _broken(build, name, f"it is {told['said']!r}, older than {OLDEST[name]}")


def older(said: str, oldest: str) -> bool:
    """Whether the first version in what a tool said is older than ``oldest``; true when there is none."""
    found = _VERSION.search(said)
    return found is None or Version(found[0]) < Version(oldest)


def _judge_pythons(
    build: ImageBuild, pythons: Mapping[str, Mapping[str, Any]]
) -> Iterator[Finding]:
    if build.role != "build":
        return
    for version in build.arguments["PYTHON_VERSIONS"].split():
        told = pythons.get(tag_of(version))
        if told is None:
            yield _broken(build, f"CPython {version}", "there is none below /opt/python")
        elif "problem" in told:
            yield _broken(build, f"CPython {version}", f"it does not run: {told['problem']}")
        elif told["missing"] or not told["header"]:
            lacks = [*told["missing"], *(() if told["header"] else ("Python.h",))]
            yield _broken(build, f"CPython {version}", f"it lacks {'; '.join(lacks)}")
    if "cp39-cp39" not in pythons:
        yield _broken(build, "/opt/python/cp39-cp39", "cibuildwheel runs its own scripts with it")


def _judge_files(build: ImageBuild, inside: Mapping[str, Any]) -> Iterator[Finding]:
    for path in inside["configurations"]:
        yield _unwanted(build, path, "a configuration of one machine or one user")
    for path in inside["extra_certificates"]:
        yield _unwanted(build, path, "a certificate authority that the distribution does not have")
    bundle = inside["bundled_certificates"]
    if bundle and bundle[0] > bundle[1]:
        yield _unwanted(
            build,
            "/etc/ssl/certs/ca-certificates.crt",
            f"{bundle[0] - bundle[1]} certificate authorities more than the distribution has",
        )
    for path in sorted({"/project", "/tmp", "/home/farm"} - set(inside["writable"])):  # noqa: S108
        yield _broken(build, path, "the image's user cannot write there")


def _judge_test(build: ImageBuild, inside: Mapping[str, Any]) -> Iterator[Finding]:
    if inside["uid"] == 0:
        yield _broken(build, "user", "the image runs as root")
    names = {name.lower() for name in inside["test"]}
    for name in ("pytest", "numpy"):
        if name not in names:
            yield _broken(build, "/opt/test", f"{name} is missing")
    if not names & {"paddlepaddle", "paddlepaddle-gpu"}:
        yield _broken(build, "/opt/test", "Paddle is missing")


def _broken(build: ImageBuild, subject: str, why: str) -> Finding:
    return Finding(
        rule="image-content",
        place=f"{build.ref}, {subject}",
        why=why,
        mend=f"{build.command}; if that does not help, the base lacks it",
        subject=subject,
    )


def _unwanted(build: ImageBuild, path: str, why: str) -> Finding:
    return Finding(
        rule="image-configuration",
        place=f"{build.ref}, {path}",
        why=why,
        mend="keep it out of the base; the farm mounts what a container needs",
        subject=path,
    )
