"""Our Dockerfiles keep the rules, and each rule finds what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.images.lint import lint, lint_text, read
from ci.registry import REPOSITORY

DOCKER = REPOSITORY / "docker"
GOOD = """\
ARG BASE
FROM ${BASE} AS base
RUN apt-get install -y --no-install-recommends git && rm -rf /var/lib/apt/lists/*
FROM base AS test
COPY --from=base /etc/hostname /copied
WORKDIR /project
USER 1000:1000
"""
WRONG = [
    ("builder-syntax", "# syntax=docker/dockerfile:1.7\n" + GOOD),
    ("builder-syntax", GOOD + "COPY --link a /a\nUSER 1000\n"),
    ("builder-syntax", GOOD + "COPY --chmod=755 a /a\n"),
    ("builder-syntax", GOOD + "RUN --mount=type=cache,target=/root/.cache true\n"),
    ("builder-syntax", GOOD + "RUN <<EOF\n"),
    ("pinned-base", GOOD.replace("${BASE}", "debian:bookworm")),
    ("no-latest", GOOD.replace("ARG BASE", "ARG BASE=debian:latest")),
    ("apt-recommends", GOOD.replace(" --no-install-recommends", "")),
    ("apt-lists", GOOD.replace("&& rm -rf /var/lib/apt/lists/*", "")),
    ("no-add", GOOD + "ADD https://example.com/a.tar /a\n"),
    ("no-download", GOOD + "RUN curl -O https://example.com/a.tar\n"),
    ("no-sudo", GOOD + "RUN sudo true\n"),
    ("no-secret", GOOD + "ARG GITHUB_TOKEN\n"),
    ("no-secret", GOOD + "ENV INDEX_PASSWORD=x\n"),
    ("no-root", GOOD.replace("USER 1000:1000\n", "")),
    ("no-root", GOOD + "USER root\n"),
    ("no-root", GOOD + "USER 0:0\n"),
    ("pipefail", GOOD + "RUN cat /a | sort\n"),
    ("named-stage", GOOD.replace("--from=base", "--from=0")),
    ("named-stage", GOOD.replace("--from=base", "--from=debian:bookworm")),
    ("workdir", GOOD.replace("WORKDIR /project", "WORKDIR project")),
]


@pytest.mark.parametrize("path", sorted(DOCKER.glob("*.Dockerfile")), ids=lambda path: path.name)
def test_our_files_keep_every_rule(path: Path) -> None:
    assert [item.text for item in lint(path)] == []


def test_there_are_the_two_files() -> None:
    names = {path.name for path in DOCKER.glob("*.Dockerfile")}
    assert names == {"build.Dockerfile", "test.Dockerfile"}


def test_a_good_file_has_no_finding() -> None:
    assert lint_text(GOOD, "test.Dockerfile") == ()


@pytest.mark.parametrize(("rule", "text"), WRONG, ids=[f"{n}-{w[0]}" for n, w in enumerate(WRONG)])
def test_a_rule_finds_what_it_is_for(rule: str, text: str) -> None:
    assert [item.rule for item in lint_text(text, "test.Dockerfile")] == [rule]


def test_a_pipe_is_fine_with_pipefail_on() -> None:
    text = GOOD + 'SHELL ["/bin/bash", "-o", "pipefail", "-c"]\nRUN cat /a | sort\n'
    assert lint_text(text, "test.Dockerfile") == ()


def test_only_a_test_image_must_not_run_as_root() -> None:
    assert lint_text(GOOD + "USER root\n", "build.Dockerfile") == ()


def test_continued_lines_are_one_instruction_at_its_first_line() -> None:
    file = read("FROM a\n\nRUN one \\\n # a comment between\n && two\nUSER me\n", "Dockerfile")
    assert [(item.keyword, item.value, item.line) for item in file.instructions] == [
        ("FROM", "a", 1),
        ("RUN", "one && two", 3),
        ("USER", "me", 6),
    ]


def test_every_script_is_copied_and_every_argument_is_declared() -> None:
    """What a Dockerfile copies is in the build context, and what it uses, it declares."""
    from ci.images.context import SCRIPTS

    for path in DOCKER.glob("*.Dockerfile"):
        text = path.read_text("utf-8")
        copied = {word for word in text.split() if word.startswith("scripts/")}
        assert copied <= {f"scripts/{name}" for name in SCRIPTS}
    assert {path.name for path in DOCKER.glob("*.sh")} == set(SCRIPTS)
