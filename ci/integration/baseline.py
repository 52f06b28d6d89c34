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
    issue = "PFCCLab/quack, issue 12"      # optional: where it is being mended

An entry that matches nothing any more is an error, so that the file never says more than is true. A
finding belongs to one entry: the first that names it literally, else the first whose pattern fits.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ci.errors import ConfigError
from ci.findings import Finding
from ci.integration.rule import Rule
from ci.matrix.places import index_lines
from ci.matrix.schema import suggest

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
_WORD = re.compile(
    r"[\u3400-\u9fff]|[^\W\u3400-\u9fff]+"
)  # Chinese has no spaces: a character counts


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
    issue: str = ""
    line: int = 0

    def names(self, finding: Finding) -> bool:
        """True for a finding that this entry gives letter by letter."""
        return (self.library, self.rule, self.place, self.subject) == _identity(finding)

    def matches(self, finding: Finding) -> bool:
        """True for a finding that this entry stands for; place and subject may be patterns of it."""
        return (
            (self.library, self.rule) == (finding.library, finding.rule)
            and _fits(finding.place, self.place)
            and (not self.subject or _fits(finding.subject, self.subject))
        )


def _identity(finding: Finding) -> tuple[str, str, str, str]:
    return finding.library, finding.rule, finding.place, finding.subject


def _fits(text: str, pattern: str) -> bool:
    """True when the pattern fits, or is the text itself: ``tool[cli]`` holds brackets of its own."""
    return text == pattern or fnmatchcase(text, pattern)


@dataclass(frozen=True)
class Applied:
    """Findings sorted out: those that are left, the known ones with their entries, faults of the file."""

    left: tuple[Finding, ...]
    known: tuple[tuple[Finding, Known], ...]
    faults: tuple[Finding, ...]


_KEYS = tuple(item.name for item in fields(Known) if item.name != "line")
_NEEDED = ("library", "rule", "place", "reason")


def read_baseline(
    path: Path, *, rules: Collection[str] = (), libraries: Collection[str] = ()
) -> tuple[Known, ...]:
    """The entries of the file; none when there is no file.

    ``rules`` and ``libraries`` are those that exist, where they are to be checked: an entry of a rule
    that never runs would never be missed. Raises :class:`~ci.errors.ConfigError` with everything that is
    wrong with the file.
    """
    try:
        text = path.read_text("utf-8")
        values = tomllib.loads(text)
    except FileNotFoundError:
        return ()
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _unreadable(path, [str(error)]) from error
    problems = [
        f"unknown table {name!r}; write [[known]]" for name in sorted(values) if name != "known"
    ]
    entries = values.get("known", [])
    if not isinstance(entries, list) or not all(isinstance(item, dict) for item in entries):
        raise _unreadable(path, [*problems, "known is no list of tables; write [[known]]"])
    lines = index_lines(text)
    found: list[Known] = []
    for number, entry in enumerate(entries):
        line = lines.get(("known", number), 1)
        wrong = [*_problems(entry), *_unknown(entry, "rule", rules)]
        wrong += _unknown(entry, "library", libraries)
        problems += [f"line {line}: {problem}" for problem in wrong]
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
    for key, value in entry.items():
        if key not in _KEYS:
            yield f"unknown key {key!r}; {suggest(key, list(_KEYS))}"
        elif wrong := _wrong_kind(key, value):
            yield f"{key} is {value!r}, which is {wrong}"
    yield from (f"the key {key!r} is missing" for key in _NEEDED if key not in entry)
    reason = entry.get("reason")
    if isinstance(reason, str) and len(_WORD.findall(reason)) < _WORDS_OF_A_REASON:
        yield f"the reason {reason!r} says nothing; write why this finding stays"


def _wrong_kind(key: str, value: object) -> str:
    """What a value is not and has to be; empty for a good one."""
    if key == "count":
        good = isinstance(value, int) and not isinstance(value, bool) and value > 0
        return "" if good else "no whole number from 1"
    if key == "until":  # a datetime is a date as well, and cannot be compared with one
        good = isinstance(value, date) and not isinstance(value, datetime)
        return "" if good else "no date such as 2027-03-01, without quotes and without a time"
    return "" if isinstance(value, str) else "no text in quotes"


def _unknown(entry: Mapping[str, Any], key: str, known: Collection[str]) -> Iterator[str]:
    value = entry.get(key)
    if known and isinstance(value, str) and value not in known:
        yield f"unknown {key} {value!r}; {suggest(value, sorted(known))}"


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
    found = tuple(findings)
    owners = [_owner(finding, entries) for finding in found]
    counts = Counter(owner for owner in owners if owner is not None)
    # An expired entry excuses nothing; nor does one that states fewer findings than there are: one is new.
    void = {
        entry for entry in entries if _is_expired(entry, today) or 0 < entry.count < counts[entry]
    }
    known = tuple(
        (finding, owner)
        for finding, owner in zip(found, owners, strict=True)
        if owner is not None and owner not in void
    )
    left = tuple(
        finding
        for finding, owner in zip(found, owners, strict=True)
        if owner is None or owner in void
    )
    judged = (item for item in entries if item.rule in ran.get(item.library, ()))
    faults = (_fault(entry, counts[entry], place, today) for entry in judged)
    return Applied(left, known, tuple(item for item in faults if item is not None))


def _owner(finding: Finding, entries: Sequence[Known]) -> Known | None:
    literal = (entry for entry in entries if entry.names(finding))
    return next(literal, None) or next((item for item in entries if item.matches(finding)), None)


def _is_expired(entry: Known, today: date) -> bool:
    return entry.until is not None and entry.until <= today


def _fault(entry: Known, count: int, place: str, today: date) -> Finding | None:
    said = f"{entry.rule} of {entry.library} in {entry.place}"
    subject = f"{said}: {entry.subject}" if entry.subject else said
    if count and _is_expired(entry, today):
        return EXPIRED.finding(
            place,
            f"the entry on {said} ended on {entry.until}",
            "mend the sources, or give the entry a later date and a reason for it",
            line=entry.line,
            subject=subject,
        )
    if count and count == (entry.count or count):
        return None
    wanted = f"{entry.count} findings" if entry.count else "a finding"
    return STALE.finding(
        place,
        f"the entry on {said} stands for {wanted}, and there are {count}",
        "correct its count, or its place and subject" if count else "delete the entry",
        line=entry.line,
        subject=subject,
    )


def render(findings: Iterable[Finding]) -> str:
    """Entries for ``findings``, to be appended to the file. The reasons are left to be written.

    Findings that differ in their line only share an entry, which states how many they are.
    """
    counts = Counter(_identity(item) for item in findings)
    return "".join(_entry(identity, count) for identity, count in counts.items())


def _entry(identity: tuple[str, str, str, str], count: int) -> str:
    named = zip(("library", "rule", "place", "subject"), identity, strict=True)
    lines = [f"{key} = {_quoted(value)}" for key, value in named if value]
    if count > 1:
        lines.append(f"count = {count}")
    return "\n".join(("", "[[known]]", *lines, 'reason = ""', ""))


def _quoted(text: str) -> str:
    """A basic TOML string. Its escapes are those of JSON; beyond them it refuses DEL, and bytes of a file
    name that are no UTF-8, for which the pattern of one character stands.
    """
    known = "".join("?" if "\ud800" <= sign <= "\udfff" else sign for sign in text)
    return json.dumps(known, ensure_ascii=False).replace("\x7f", "\\u007f")
