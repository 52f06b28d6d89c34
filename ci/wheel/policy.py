"""Judge, part one: what a wheel may need from outside, and what auditwheel is told to leave there.

The policy is data (``policy.toml``); the decisions here are pure. An exclude is never typed for a CUDA
version: it is derived from what the wheel's own ELF files need (DT_NEEDED) and from the CUDA major of the
cell, so that the step from CUDA 12 to 13 cannot leave a stale list behind.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ci.errors import ConfigError
from ci.findings import Finding, refuse
from ci.wheel.facts import WheelFacts

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

POLICY_FILE = Path(__file__).with_name("policy.toml")
_LIBRARY_KEYS = {"name", "patterns", "cuda", "provider", "why", "source"}
_LIBPYTHON = re.compile(r"libpython\d+(\.\d+)?[a-z]*\.so.*")
_LOADER = re.compile(r"ld-linux.*|ld64\.so\.[12]")
# auditwheel writes libfoo.so.1 as libfoo-<8 hex digits of its hash>.so.1
_GRAFTED = re.compile(r"^(?P<stem>[^.]+)-[0-9a-f]{8}(?P<rest>\..*)$")


@dataclass(frozen=True)
class Kept:
    """A library that stays outside every wheel. ``cuda`` maps a CUDA major to its SONAME patterns."""

    name: str
    patterns: tuple[str, ...]
    cuda: Mapping[int, tuple[str, ...]]
    provider: str
    why: str
    source: str

    def match(self, soname: str) -> str:
        """The first pattern that matches ``soname``, or ``""``."""
        return next((p for p in self.patterns if fnmatchcase(soname, p)), "")

    def fits(self, soname: str, cuda_major: int) -> bool:
        """False when ``soname`` belongs to another CUDA major; names without a CUDA always fit."""
        if not self.cuda:
            return True
        return any(fnmatchcase(soname, p) for p in self.cuda.get(cuda_major, ()))

    def majors_of(self, soname: str) -> tuple[int, ...]:
        """The CUDA majors that ``soname`` belongs to."""
        return tuple(major for major in sorted(self.cuda) if self.fits(soname, major))


@dataclass(frozen=True)
class IgnoredCheck:
    """A check of check-wheel-contents that does not apply, and why; to ``paths`` only, if there are any."""

    code: str
    reason: str
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class Policy:
    """The content of ``policy.toml``."""

    libraries: tuple[Kept, ...]
    ignored_checks: tuple[IgnoredCheck, ...] = ()

    def find(self, soname: str) -> Kept | None:
        """The library that ``soname`` is, or ``None``."""
        return next((kept for kept in self.libraries if kept.match(soname)), None)

    @property
    def patterns(self) -> tuple[str, ...]:
        """All patterns of all libraries."""
        return tuple(pattern for kept in self.libraries for pattern in kept.patterns)


@dataclass(frozen=True)
class Exclude:
    """One ``--exclude`` of auditwheel: ``pattern``, the needed names it ``matched``, and ``why``."""

    pattern: str
    matched: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Needs:
    """What a wheel needs from outside: left there, findings about it, and the rest.

    ``outside`` maps a name that is neither in the wheel, nor excluded, nor in the manylinux allow list to
    the files that need it: auditwheel grafts these.
    """

    excludes: tuple[Exclude, ...]
    findings: tuple[Finding, ...]
    outside: Mapping[str, tuple[str, ...]]


@functools.cache
def load_policy(path: Path = POLICY_FILE) -> Policy:
    """Read the policy. Raises :class:`~ci.errors.ConfigError` that lists every problem at once."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"cannot read the wheel policy {path.name}",
            cause=str(error),
            next_step=f"repair {path.name}: it must be TOML",
        ) from error
    problems = list(_problems(data))
    if problems:
        raise ConfigError(
            f"{path.name} has {len(problems)} problem(s)",
            cause=problems[0],
            next_step=f"repair {path.name}",
            details=problems,
        )
    return Policy(
        libraries=tuple(_kept(row) for row in data["library"]),
        ignored_checks=tuple(
            IgnoredCheck(row["code"], row["reason"], tuple(row.get("paths", ())))
            for row in data.get("ignored_check", [])
        ),
    )


def _problems(data: Mapping[str, Any]) -> list[str]:
    problems = [f"unknown table {key!r}" for key in data if key not in ("library", "ignored_check")]
    if not data.get("library"):
        problems.append("no [[library]]")
    for row in data.get("library", []):
        name = row.get("name", "?")
        problems += [
            f"library {name}: unknown key {key!r}" for key in sorted(set(row) - _LIBRARY_KEYS)
        ]
        missing = sorted(_LIBRARY_KEYS - {"cuda"} - set(row))
        problems += [f"library {name}: {key} is missing" for key in missing]
        problems += [
            f"library {name}: CUDA major {m!r}" for m in row.get("cuda", {}) if not m.isdigit()
        ]
    for row in data.get("ignored_check", []):
        if not row.get("code") or not row.get("reason"):
            problems.append(f"ignored_check {row.get('code', '?')}: needs a code and a reason")
    return problems


def _kept(row: Mapping[str, Any]) -> Kept:
    return Kept(
        name=row["name"],
        patterns=tuple(row["patterns"]),
        cuda={int(major): tuple(names) for major, names in row.get("cuda", {}).items()},
        provider=row["provider"],
        why=row["why"],
        source=row["source"],
    )


def cuda_major(cuda: str) -> int:
    """13 of ``"13.0"``. Raises :class:`~ci.errors.ConfigError` for anything but ``MAJOR.MINOR``."""
    match = re.fullmatch(r"(\d+)\.(\d+)", cuda)
    if match is None:
        raise ConfigError(
            f"{cuda!r} is not a CUDA version",
            cause="a CUDA version is written MAJOR.MINOR",
            next_step="write it like 13.0",
        )
    return int(match[1])


def original_soname(name: str) -> str:
    """``libz.so.1`` of the grafted name ``libz-1a2b3c4d.so.1``; other names come back as they are."""
    match = _GRAFTED.match(name)
    return match["stem"] + match["rest"] if match else name


def bundled(facts: WheelFacts, policy: Policy) -> tuple[tuple[str, Kept], ...]:
    """Members of the wheel that are a library of the policy, under their own or a grafted name."""
    found: dict[str, Kept] = {}
    names = {member.name: {member.name.rsplit("/", 1)[-1]} for member in facts.members}
    for elf in facts.host_elfs:
        names[elf.path] |= {elf.soname} - {""}
    for path, candidates in names.items():
        for name in candidates:
            kept = policy.find(name) or policy.find(original_soname(name))
            if kept is not None:
                found[path] = kept
    return tuple(sorted(found.items(), key=lambda item: item[0]))


def judge_needs(
    facts: WheelFacts,
    cuda_major: int,
    declared: Sequence[str],
    policy: Policy,
    *,
    allowed: frozenset[str] = frozenset(),
    grafted_needs: Mapping[str, tuple[str, ...]] | None = None,
) -> Needs:
    """Decide what stays outside. ``allowed`` is the manylinux allow list of SONAMEs.

    ``grafted_needs`` are needs of the libraries that auditwheel is about to graft, with who needs them:
    a grafted library can pull the driver in as well as the wheel's own can.
    """
    needs = {**(grafted_needs or {}), **facts.external_needs}
    excludes = [*_policy_excludes(needs, policy), *_declared_excludes(needs, declared)]
    patterns = [exclude.pattern for exclude in excludes]
    outside = {
        soname: users
        for soname, users in needs.items()
        if soname not in allowed
        and not _LIBPYTHON.fullmatch(soname)
        and not _LOADER.fullmatch(soname)
        and not any(fnmatchcase(soname, pattern) for pattern in patterns)
    }
    findings = [*_foreign_cuda(needs, cuda_major, policy), *_stale(excludes, declared)]
    return Needs(tuple(e for e in excludes if e.matched), tuple(findings), outside)


def excludes(
    facts: WheelFacts, cuda_major: int, declared: Sequence[str], policy: Policy | None = None
) -> tuple[Exclude, ...]:
    """The excludes of a wheel: the policy's patterns that match a need, and the declared ones.

    Raises :class:`~ci.errors.FindingError` for a declared exclude that matches nothing, and for a CUDA
    library of another major than ``cuda_major``.
    """
    needs = judge_needs(facts, cuda_major, declared, policy or load_policy())
    refuse(f"{facts.path.name} needs libraries that do not fit", needs.findings)
    return needs.excludes


def _policy_excludes(needs: Mapping[str, tuple[str, ...]], policy: Policy) -> list[Exclude]:
    found = []
    for kept in policy.libraries:
        for pattern in kept.patterns:
            matched = tuple(soname for soname in sorted(needs) if kept.match(soname) == pattern)
            if matched:
                why = f"{kept.why}; provided by {kept.provider}"
                found.append(Exclude(pattern, matched, why))
    return found


def _declared_excludes(
    needs: Mapping[str, tuple[str, ...]], declared: Sequence[str]
) -> list[Exclude]:
    return [
        Exclude(
            pattern,
            tuple(soname for soname in sorted(needs) if fnmatchcase(soname, pattern)),
            "declared by a library",
        )
        for pattern in dict.fromkeys(declared)
    ]


def _stale(excludes: Sequence[Exclude], declared: Sequence[str]) -> list[Finding]:
    return [
        Finding(
            "stale-exclude",
            exclude.pattern,
            "this declared exclude matches no library that the wheel needs",
            "remove it from the library's declaration, or correct its spelling",
        )
        for exclude in excludes
        if exclude.pattern in declared and not exclude.matched
    ]


def _foreign_cuda(
    needs: Mapping[str, tuple[str, ...]], cuda_major: int, policy: Policy
) -> list[Finding]:
    findings = []
    for soname, users in sorted(needs.items()):
        kept = policy.find(soname)
        if kept is None or kept.fits(soname, cuda_major):
            continue
        of = " and ".join(f"CUDA {major}" for major in kept.majors_of(soname)) or "another CUDA"
        findings.append(
            Finding(
                "foreign-cuda",
                ", ".join(users),
                f"it needs {soname} of {of}, and the wheel is for CUDA {cuda_major}",
                "build this library with the toolkit of the cell; "
                f"expected {' or '.join(kept.cuda.get(cuda_major, ())) or 'none of this library'}",
            )
        )
    return findings
