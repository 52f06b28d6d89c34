"""Rules for our Dockerfiles: what no image of the farm may do, and what not every builder can read.

Most of it is what hadolint checks (the numbers are its own, hadolint wiki); the rest keeps the files
readable for docker's classic builder, for BuildKit and for podman.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.findings import Finding

_KEYWORD = re.compile(r"^([A-Za-z]+)\s+(.*)$", re.DOTALL)
_VARIABLE = re.compile(r"\$\{?(\w+)")
_SECRET_NAME = re.compile(r"(?i)passw|secret|token|api_?key|credential|private_?key")
_BUILDKIT_ONLY = (
    (r"^(COPY|ADD) .*--link\b", "COPY --link"),
    (r"^(COPY|ADD) .*--(chmod|parents|exclude)\b", "COPY --chmod"),
    (r"^RUN .*--(mount|network|security)=", "RUN --mount"),
    (r"^(RUN|COPY|ADD) .*<<-?[\"']?[A-Za-z_]", "a heredoc"),
)


@dataclass(frozen=True)
class Instruction:
    """One instruction with its continuation lines joined; ``line`` counts from 1."""

    keyword: str
    value: str
    line: int

    @property
    def text(self) -> str:
        """The instruction as one line."""
        return f"{self.keyword} {self.value}"


@dataclass(frozen=True)
class Dockerfile:
    """A Dockerfile that was read: its instructions, and the first lines that are comments."""

    name: str
    instructions: tuple[Instruction, ...]
    directives: tuple[str, ...]

    @property
    def stages(self) -> tuple[Instruction, ...]:
        """Its FROM instructions."""
        return tuple(item for item in self.instructions if item.keyword == "FROM")


Rule = Callable[[Dockerfile], Iterator[Finding]]


def read(text: str, name: str) -> Dockerfile:
    """Read a Dockerfile (Docker documentation, "Dockerfile reference": format, parser directives)."""
    lines = text.splitlines()
    directives = []
    for line in lines:
        if not line.startswith("#"):
            break
        directives.append(line)
    return Dockerfile(name, tuple(_instructions(lines)), tuple(directives))


def _instructions(lines: Sequence[str]) -> Iterator[Instruction]:
    parts: list[str] = []
    first = 0
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if not parts:
            first = number
        parts.append(stripped.removesuffix("\\").strip())
        if not stripped.endswith("\\"):
            yield _instruction(" ".join(parts), first)
            parts = []
    if parts:
        yield _instruction(" ".join(parts), first)


def _instruction(text: str, line: int) -> Instruction:
    match = _KEYWORD.match(text)
    return Instruction(match[1].upper(), match[2], line) if match else Instruction(text, "", line)


def lint(path: Path) -> tuple[Finding, ...]:
    """Every finding in a Dockerfile."""
    return lint_text(path.read_text("utf-8"), path.name)


def lint_text(text: str, name: str) -> tuple[Finding, ...]:
    """Every finding in the text of a Dockerfile; ``name`` decides whether it is that of a test image."""
    file = read(text, name)
    return tuple(finding for rule in RULES for finding in rule(file))


def _found(file: Dockerfile, rule: str, item: Instruction, why: str, mend: str) -> Finding:
    return Finding(rule=rule, place=file.name, why=why, mend=mend, line=item.line)


def _builder_syntax(file: Dockerfile) -> Iterator[Finding]:
    """Only what the classic builder reads, too."""
    for number, line in enumerate(file.directives, 1):
        if re.match(r"#\s*(syntax|check)\s*=", line):
            yield Finding(
                rule="builder-syntax",
                place=file.name,
                why="a syntax line makes BuildKit fetch a front end from a registry",
                mend="remove it; the file needs no newer syntax",
                line=number,
            )
    for item in file.instructions:
        for pattern, what in _BUILDKIT_ONLY:
            if re.search(pattern, item.text):
                why = f"{what} is for BuildKit alone"
                yield _found(
                    file, "builder-syntax", item, why, "write it so that every builder reads it"
                )


def _pinned_base(file: Dockerfile) -> Iterator[Finding]:
    """A base comes from an argument (which carries a digest), or is a stage (DL3006, DL3007)."""
    stages: set[str] = set()
    for item in file.stages:
        words = [word for word in item.value.split() if not word.startswith("--")]
        base = words[0]
        if not _VARIABLE.match(base) and base not in stages and base != "scratch":
            why = f"the base {base} is written down here, where no digest is checked or renewed"
            yield _found(
                file, "pinned-base", item, why, "take it from an ARG; docker/pins.toml has digests"
            )
        if len(words) == 3 and words[1].upper() == "AS":
            stages.add(words[2])


def _no_latest(file: Dockerfile) -> Iterator[Finding]:
    """No moving tag, wherever an image is named (DL3007)."""
    for item in file.instructions:
        if item.keyword in ("FROM", "ARG", "COPY") and re.search(r":latest\b", item.value):
            yield _found(
                file, "no-latest", item, "`latest` is another image tomorrow", "name a version"
            )


def _packages(file: Dockerfile) -> Iterator[Finding]:
    """apt-get without extras, and its lists removed in the same layer (DL3015, DL3009)."""
    for item in _runs(file):
        if not re.search(r"\bapt(-get)? (-\S+ )*install\b", item.value):
            continue
        if "--no-install-recommends" not in item.value:
            why = "apt-get installs recommended packages, too"
            yield _found(file, "apt-recommends", item, why, "add --no-install-recommends")
        if "/var/lib/apt/lists" not in item.value:
            why = "apt's lists stay in the layer"
            yield _found(
                file, "apt-lists", item, why, "end the RUN with rm -rf /var/lib/apt/lists/*"
            )


def _no_remote_add(file: Dockerfile) -> Iterator[Finding]:
    """Nothing is fetched without a hash (DL3020; ADD of an address, curl and wget)."""
    for item in file.instructions:
        if item.keyword == "ADD":
            why = "ADD fetches addresses and unpacks archives by itself"
            yield _found(file, "no-add", item, why, "COPY from the build context")
        if item.keyword == "RUN" and re.search(r"\b(curl|wget)\b", item.value):
            why = "a download without a hash"
            yield _found(
                file, "no-download", item, why, "prepare it in the build context, by a lock"
            )


def _no_sudo(file: Dockerfile) -> Iterator[Finding]:
    """No sudo: it has no use in a build (DL3004)."""
    for item in _runs(file):
        if re.search(r"\bsudo\b", item.value):
            yield _found(file, "no-sudo", item, "builds run as root already", "remove sudo")


def _no_secret(file: Dockerfile) -> Iterator[Finding]:
    """ARG and ENV are readable in the image's history and configuration."""
    for item in file.instructions:
        if item.keyword in ("ARG", "ENV", "LABEL") and _SECRET_NAME.search(item.value):
            why = f"{item.keyword} can be read by everyone who has the image"
            yield _found(file, "no-secret", item, why, "pass it when a container is started")


def _no_root(file: Dockerfile) -> Iterator[Finding]:
    """The last stage of a test image ends with another user than root (DL3002)."""
    if not file.name.startswith("test"):
        return
    last = file.stages[-1]
    users = [item for item in file.instructions if item.keyword == "USER" and item.line > last.line]
    if not users:
        yield _found(
            file, "no-root", last, "the image runs as root", "end it with USER ${UID}:${GID}"
        )
    elif re.match(r"(root|0)(:|$)", users[-1].value):
        yield _found(file, "no-root", users[-1], "the image runs as root", "name another user")


def _pipes(file: Dockerfile) -> Iterator[Finding]:
    """A pipe hides the failure of all but its last command, unless pipefail is on (DL4006)."""
    shell = ""
    for item in file.instructions:
        if item.keyword == "SHELL":
            shell = item.value
        piped = item.keyword == "RUN" and re.search(r"[^|]\|[^|]", item.value)
        if piped and "pipefail" not in shell:
            why = "only the last command of a pipe decides whether the RUN fails"
            mend = 'put SHELL ["/bin/bash", "-o", "pipefail", "-c"] before it, or use no pipe'
            yield _found(file, "pipefail", item, why, mend)


def _named_stages(file: Dockerfile) -> Iterator[Finding]:
    """COPY --from names a stage, not a number (DL3022), and one that is there."""
    names = {words[2] for item in file.stages if len(words := item.value.split()) == 3}
    for item in file.instructions:
        match = re.search(r"--from=(\S+)", item.value) if item.keyword == "COPY" else None
        if match and match[1] not in names:
            why = f"COPY --from={match[1]} is no stage of this file"
            yield _found(file, "named-stage", item, why, "name a stage, so that its base is pinned")


def _absolute_workdir(file: Dockerfile) -> Iterator[Finding]:
    """WORKDIR is absolute, and `cd` stays within its RUN (DL3000, DL3003)."""
    for item in file.instructions:
        if item.keyword == "WORKDIR" and not re.match(r"[/$\"]", item.value):
            yield _found(
                file,
                "workdir",
                item,
                f"{item.value} depends on what was before",
                "make it absolute",
            )


def _runs(file: Dockerfile) -> Iterator[Instruction]:
    return (item for item in file.instructions if item.keyword == "RUN")


RULES: tuple[Rule, ...] = (
    _builder_syntax,
    _pinned_base,
    _no_latest,
    _packages,
    _no_remote_add,
    _no_sudo,
    _no_secret,
    _no_root,
    _pipes,
    _named_stages,
    _absolute_workdir,
)
