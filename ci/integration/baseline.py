"""Known findings, each with the reason why it stays: a TOML file beside the registry.

::

    [[known]]
    library = "quack"
    rule = "lazy-torch-import"
    place = "quack/rotary.py"
    subject = "quack.rotary:make*:torch"   # optional; place and subject may hold * (fnmatch)
    count = 4                              # with a pattern: how many findings it stands for
    reason = "upstream; the fork hoists them with its next release"
    until = 2027-03-01                     # optional: an error from then on

An entry that matches nothing any more is an error, so that the file never says more than is true.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ci.errors import ConfigError
from ci.findings import Finding
from ci.integration.rule import Rule

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_OWN = "The baseline says no more than is true. (no rule of the guide: it keeps the check honest)"
STALE = Rule(
    name="stale-baseline-entry",
    summary="an entry of the baseline matches no finding, or another number of them",
    guide=_OWN,
)
EXPIRED = Rule(
    name="expired-baseline-entry",
    summary="an entry of the baseline is past its date",
    guide=_OWN,
)
BASELINE_RULES = (STALE, EXPIRED)
_WORDS_OF_A_REASON = 3


@dataclass(frozen=True)
class Known:
    """One entry. ``line`` is where it begins in the file; ``count`` is 0 where it is not given."""

    library: str
    rule: str
    place: str
    reason: str
    subject: str = ""
    count: int = 0
    until: date | None = None
    line: int = 0

    def matches(self, finding: Finding) -> bool:
        """True for a finding that this entry stands for."""
        return (
            (self.library, self.rule) == (finding.library, finding.rule)
            and fnmatchcase(finding.place, self.place)
            and (not self.subject or fnmatchcase(finding.subject, self.subject))
        )


@dataclass(frozen=True)
class Applied:
    """Findings sorted out: those that are left, the known ones with their entries, faults of the file."""

    left: tuple[Finding, ...]
    known: tuple[tuple[Finding, Known], ...]
    faults: tuple[Finding, ...]


_KEYS = tuple(item.name for item in fields(Known) if item.name != "line")
_NEEDED = ("library", "rule", "place", "reason")


def read_baseline(path: Path) -> tuple[Known, ...]:
    """The entries of the file; none when there is no file.

    Raises :class:`~ci.errors.ConfigError` with everything that is wrong with it.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return ()
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _unreadable(path, [str(error)]) from error
    problems = [f"unknown table {name!r}; write [[known]]" for name in values if name != "known"]
    entries = values.get("known", [])
    if not isinstance(entries, list) or not all(isinstance(item, dict) for item in entries):
        raise _unreadable(path, [*problems, "known is no list of tables; write [[known]]"])
    lines = [n for n, line in enumerate(text.splitlines(), 1) if line.strip() == "[[known]]"]
    lines += [0] * (len(entries) - len(lines))
    found: list[Known] = []
    for entry, line in zip(entries, lines, strict=False):
        wrong = [f"line {line}: {problem}" for problem in _problems(entry)]
        problems += wrong
        if not wrong:
            found.append(Known(**entry, line=line))
    problems += _duplicates(found)
    if problems:
        raise _unreadable(path, problems)
    return tuple(found)


def _unreadable(path: Path, problems: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"{path.name} cannot be used: {problems[0]}",
        cause="the baseline of known findings was edited by hand",
        next_step=f"mend {path.name}; `python -m ci check --write-baseline` appends well-formed entries",
        details=problems if len(problems) > 1 else (),
    )


def _problems(entry: Mapping[str, Any]) -> Iterator[str]:
    for key in entry:
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1, cutoff=0.5)
            yield f"unknown key {key!r}" + (f"; nearest: {near[0]}" if near else "")
    yield from (f"the key {key!r} is missing" for key in _NEEDED if key not in entry)
    kinds: Mapping[str, type] = {"count": int, "until": date}
    for key, value in entry.items():
        kind = kinds.get(key, str)
        if key in _KEYS and (not isinstance(value, kind) or isinstance(value, bool)):
            yield f"{key} is {value!r}, which is no {kind.__name__}"
    reason = entry.get("reason", "")
    if isinstance(reason, str) and "reason" in entry and len(reason.split()) < _WORDS_OF_A_REASON:
        yield f"the reason {reason!r} says nothing; write why this finding stays"


def _duplicates(entries: Sequence[Known]) -> Iterator[str]:
    seen: dict[tuple[str, ...], Known] = {}
    for entry in entries:
        identity = (entry.library, entry.rule, entry.place, entry.subject)
        first = seen.setdefault(identity, entry)
        if first is not entry:
            yield f"line {entry.line}: the same entry as in line {first.line}"


def apply(
    findings: Iterable[Finding],
    entries: Sequence[Known],
    *,
    place: str,
    ran: Mapping[str, Collection[str]],
    today: date,
) -> Applied:
    """Sort the findings out by the entries of the file at ``place``.

    ``ran`` are the rules that ran on each library. An entry is judged only when its rule did: what was
    not looked for cannot be missed.
    """
    in_force = [entry for entry in entries if entry.until is None or today < entry.until]
    matched: dict[Known, int] = dict.fromkeys(in_force, 0)
    left: list[Finding] = []
    known: list[tuple[Finding, Known]] = []
    for finding in findings:
        entry = next((item for item in in_force if item.matches(finding)), None)
        if entry is None:
            left.append(finding)
        else:
            matched[entry] += 1
            known.append((finding, entry))
    judged = [item for item in entries if item.rule in ran.get(item.library, ())]
    faults = [_fault(entry, matched.get(entry), place) for entry in judged]
    return Applied(tuple(left), tuple(known), tuple(item for item in faults if item is not None))


def _fault(entry: Known, count: int | None, place: str) -> Finding | None:
    said = f"{entry.rule} of {entry.library} in {entry.place}"
    if count is None:
        return EXPIRED.finding(
            place,
            f"the entry on {said} ended on {entry.until}",
            "mend the sources, or give the entry a later date and a reason for it",
            line=entry.line,
            subject=said,
        )
    if count and count == (entry.count or count):
        return None
    wanted = f"{entry.count} findings" if entry.count else "a finding"
    return STALE.finding(
        place,
        f"the entry on {said} stands for {wanted}, and there are {count}",
        "correct its count, or its place and subject" if count else "delete the entry",
        line=entry.line,
        subject=said,
    )


def render(findings: Iterable[Finding]) -> str:
    """Entries for ``findings``, to be appended to the file. The reasons are left to be written."""
    return "".join(_entry(item) for item in findings)


def _entry(finding: Finding) -> str:
    values = {
        "library": finding.library,
        "rule": finding.rule,
        "place": finding.place,
        "subject": finding.subject,
    }
    lines = [f"{key} = {_quoted(value)}" for key, value in values.items() if value]
    return "\n".join(("", "[[known]]", *lines, 'reason = ""', ""))


def _quoted(text: str) -> str:
    """A basic TOML string; its escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False)
