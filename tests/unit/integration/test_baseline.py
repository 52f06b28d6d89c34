"""The baseline of known findings: what it excuses, what it no longer does, what is wrong with the file."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.errors import ConfigError
from ci.findings import Finding
from ci.integration.baseline import Applied, Known, apply, read_baseline, render

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TODAY = dt.date(2026, 12, 2)
FILE = "packages/check_baseline.toml"
RULE = "lazy-torch-import"
Read = Callable[[str], tuple[Known, ...]]


def finding(
    place: str = "quack/x.py", subject: str = "quack.x:f:torch", line: int = 7, **values: str
) -> Finding:
    known = {"rule": RULE, "library": "quack", **values}
    return Finding(place=place, subject=subject, line=line, why="late", mend="hoist it", **known)


def entry(**values: object) -> str:
    fields: dict[str, object] = {
        "library": "quack",
        "rule": RULE,
        "place": "quack/x.py",
        "subject": "quack.x:f:torch",
        "reason": "upstream hoists it soon",
        **values,
    }
    lines = [
        f"{key} = '{value}'" if isinstance(value, str) else f"{key} = {value}"
        for key, value in fields.items()
        if value is not None
    ]
    return "\n".join(("[[known]]", *lines, ""))


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def from_text(text: str) -> tuple[Known, ...]:
        path = tmp_path / "check_baseline.toml"
        path.write_text(text, "utf-8")
        return read_baseline(path, rules=(RULE, "scope-incomplete"), libraries=("quack", "fla"))

    return from_text


def judge(entries: tuple[Known, ...], *findings: Finding, **ran: tuple[str, ...]) -> Applied:
    return apply(findings, entries, place=FILE, ran=ran or {"quack": (RULE,)}, today=TODAY)


def test_a_known_finding_is_told_apart_from_a_new_one(read: Read) -> None:
    old, new = finding(), finding(subject="quack.x:g:torch")
    applied = judge(read(entry()), old, new)
    assert applied.left == (new,)
    assert [(item, known.reason) for item, known in applied.known] == [
        (old, "upstream hoists it soon")
    ]
    assert applied.faults == ()


def test_a_moved_line_and_other_words_change_nothing(read: Read) -> None:
    assert judge(read(entry()), finding(line=99)).left == ()


@pytest.mark.parametrize(
    "other",
    [
        finding(library="fla"),
        finding(rule="scope-incomplete"),
        finding(place="quack/y.py"),
        finding(subject="quack.x:f:triton"),
    ],
)
def test_library_rule_place_and_subject_have_to_agree(read: Read, other: Finding) -> None:
    assert judge(read(entry()), other).left == (other,)


def test_an_entry_that_matches_nothing_is_an_error_with_its_line(read: Read) -> None:
    text = f"# known\n\n{entry()}\n# gone\n{entry(subject='quack.x:gone:torch')}"
    (fault,) = judge(read(text), finding()).faults
    assert (fault.rule, fault.level, fault.place) == ("stale-baseline-entry", "error", FILE)
    assert text.splitlines()[fault.line - 1] == "[[known]]"
    assert fault.line == text[: text.rindex("[[known]]")].count("\n") + 1
    assert "gone" in fault.subject
    assert "delete" in fault.mend


def test_two_stale_entries_of_one_file_are_told_apart(read: Read) -> None:
    text = entry(subject="a") + entry(subject="b")
    faults = judge(read(text)).faults
    assert len({(item.rule, item.place, item.subject) for item in faults}) == 2


def test_what_was_not_looked_for_is_not_missed(read: Read) -> None:
    entries = read(entry() + entry(library="fla"))
    assert judge(entries, fla=("scope-incomplete",)).faults == ()
    assert len(judge(entries, fla=(RULE,)).faults) == 1


def test_patterns_stand_for_many_findings(read: Read) -> None:
    entries = read(entry(place="quack/*.py", subject="quack.?:*:torch"))
    found = (finding(), finding(place="quack/deep/y.py", subject="quack.y:g:torch"))
    assert judge(entries, *found).left == ()
    assert judge(entries, *found).faults == ()
    assert judge(entries, finding(place="other/x.py")).left != ()


def test_a_count_that_shrinks_is_stale_and_one_that_grows_excuses_nothing(read: Read) -> None:
    entries = read(entry(subject="quack.x:*", count=2))
    found = [finding(subject=f"quack.x:{name}:torch") for name in "fgh"]
    assert judge(entries, *found[:2]) == Applied((), tuple((f, entries[0]) for f in found[:2]), ())
    fewer, more = judge(entries, found[0]), judge(entries, *found)
    assert [item.rule for item in (*fewer.faults, *more.faults)] == ["stale-baseline-entry"] * 2
    assert "stands for 2 findings, and there are 1" in fewer.faults[0].why
    assert fewer.left == ()
    assert more.left == tuple(found)
    assert more.known == ()


def test_a_literal_entry_goes_before_a_pattern_wherever_it_stands(read: Read) -> None:
    entries = read(entry(subject="*", reason="all the other ones") + entry())
    applied = judge(entries, finding(), finding(subject="quack.x:g:torch"))
    assert [known.line for _, known in applied.known] == [entries[1].line, entries[0].line]
    assert applied.faults == ()


def test_brackets_of_a_name_match_themselves(read: Read) -> None:
    odd = finding(subject="nvidia-cutlass-dsl[cu13]>=4", place="a[b]/*.py")
    assert judge(read(entry(subject=odd.subject, place=odd.place)), odd).left == ()
    assert judge(read(entry(subject="nvidia-*", place=odd.place)), odd).left == ()
    assert judge(read(entry(subject=odd.subject, place="a*")), odd).left == ()


def test_without_a_subject_an_entry_stands_for_the_whole_file(read: Read) -> None:
    applied = judge(read(entry(subject=None)), finding(), finding(subject="other"))
    assert (len(applied.known), applied.left, applied.faults) == (2, (), ())


@pytest.mark.parametrize(
    ("until", "counts"), [("2026-12-03", True), ("2026-12-02", False), ("2025-01-01", False)]
)
def test_an_entry_counts_before_its_date(read: Read, until: str, counts: bool) -> None:
    entries = read(entry(until=dt.date.fromisoformat(until)))
    applied = judge(entries, finding())
    assert bool(applied.known) is counts
    assert applied.left == (() if counts else (finding(),))
    assert [item.rule for item in applied.faults] == ([] if counts else ["expired-baseline-entry"])
    assert counts or until in applied.faults[0].why


def test_an_expired_entry_without_a_finding_is_to_be_deleted(read: Read) -> None:
    (fault,) = judge(read(entry(until=dt.date(2026, 1, 1)))).faults
    assert (fault.rule, fault.mend) == ("stale-baseline-entry", "delete the entry")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (entry(reason=""), "the reason '' says nothing"),
        (entry(reason="known issue"), "the reason 'known issue' says nothing"),
        (entry(reason=None), "the key 'reason' is missing"),
        (entry(place=None), "the key 'place' is missing"),
        (entry(raeson="x"), "unknown key 'raeson'; did you mean 'reason'?"),
        (entry(rule="lazy-torch-imports"), "did you mean 'lazy-torch-import'?"),
        (entry(library="quak"), "unknown library 'quak'; did you mean 'quack'?"),
        (entry(place=3), "place is 3, which is no text in quotes"),
        (entry(count="2"), "count is '2', which is no whole number from 1"),
        (entry(count=0), "no whole number from 1"),
        (entry(count="true").replace("'true'", "true"), "no whole number from 1"),
        (entry(until="2027-01-31"), "no date such as"),
        (entry(until="T").replace("'T'", "2027-01-31T10:00:00"), "without a time"),
        (entry() + entry(), "line 7: the same entry as in line 1"),
        ("[[knwon]]\nplace = ''\n", "unknown table 'knwon'"),
        ("known = 3\n", "known is no list of tables"),
        ("[[known]\n", "Expected"),
    ],
)
def test_a_wrong_file_is_refused_in_words(read: Read, text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert told in "\n".join((caught.value.message, *caught.value.details))
    assert caught.value.next_step


def test_every_problem_is_told_at_once_with_its_line(read: Read) -> None:
    with pytest.raises(ConfigError) as caught:
        read(f"# a comment\n{entry(reason='')}\n{entry(colour='red', subject=3)}")
    told = [line.partition(":")[0] for line in caught.value.details]
    assert told == ["line 2", "line 9", "line 9"]


def test_a_reason_may_be_chinese(read: Read) -> None:
    assert read(entry(reason="上游尚未修复"))[0].reason == "上游尚未修复"
    with pytest.raises(ConfigError, match="says nothing"):
        read(entry(reason="上游"))


def test_a_file_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_bytes(b"[[known]]\nreason = '\xff'\n")
    with pytest.raises(ConfigError, match=r"b\.toml cannot be used"):
        read_baseline(tmp_path / "b.toml")


def test_no_file_is_an_empty_baseline(tmp_path: Path, read: Read) -> None:
    assert read_baseline(tmp_path / "none.toml") == ()
    assert read("") == ()
    assert judge((), finding()).left == (finding(),)


def test_what_is_written_is_refused_until_reasons_are_there_and_matches_then(read: Read) -> None:
    found = [
        finding(),
        finding(line=8),  # the same function twice: one entry, and it says so
        finding(place='naïve/"模块"\\x.py', subject="tool[cli] > \x7f\n"),
        finding(subject=""),
    ]
    old = f"# kept as it is\n{entry(library='fla')}".rstrip("\n")  # no newline at the end
    text = f"{old}\n{render(found)}"
    assert text.startswith(old)
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert sum("says nothing" in line for line in caught.value.details) == 3
    entries = read(text.replace('reason = ""', 'reason = "as upstream has it"'))
    assert [item.count for item in entries] == [0, 2, 0, 0]
    applied = judge(entries, *found)
    assert (applied.left, applied.faults) == ((), ())


def test_bytes_that_are_no_utf8_become_a_pattern(read: Read) -> None:
    odd = finding(place="tests/\udcff.py")
    text = render([odd])
    assert tomllib.loads(text)["known"][0]["place"] == "tests/?.py"
    assert judge(read(text.replace('""', '"as upstream has it"')), odd).left == ()


def test_a_thousand_findings_in_their_order(read: Read) -> None:
    found = [finding(subject=f"quack.x:f{number}:torch", line=number) for number in range(1000)]
    text = render(found[::2]).replace('""', '"as upstream has it"')
    applied = judge(read(text), *found)
    assert applied.left == tuple(found[1::2])
    assert [item for item, _ in applied.known] == found[::2]
    assert applied.faults == ()
