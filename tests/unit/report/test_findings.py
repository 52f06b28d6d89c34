"""The report of a check: nothing is dropped, one order, and no text of a library becomes a command."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, ValidationError
from rich.console import Console

import ci.report
from ci.findings import Finding, Level
from ci.integration.rule import Rule
from ci.report.check_model import CheckReport, KnownFinding, LibraryCheck, by_place
from ci.report.findings import annotation, print_check, workflow_commands

RULES = (
    Rule(
        "lazy-torch-import", "torch is imported late", "Imports stand at module level (guide: 约束)"
    ),
    Rule(
        "scope-incomplete", "a scope lacks a package", "A scope lists them (guide: 范围)", "warning"
    ),
    Rule("stale-baseline-entry", "an entry matches nothing", "It says what is true."),
)
SCHEMA = Path(ci.report.__file__).with_name("check.schema.json")


def finding(
    place: str = "quack/x.py", line: int = 7, column: int = 5, level: Level = "error", **texts: str
) -> Finding:
    fields = {"rule": "lazy-torch-import", "why": "it is late", "mend": "hoist it", **texts}
    return Finding(place=place, line=line, column=column, level=level, library="quack", **fields)


def report(*findings: Finding, **fields: object) -> CheckReport:
    library = LibraryCheck("quack", "pypi quack 1.0", 12, findings)
    values: dict[str, object] = {"libraries": (library,), "rules": RULES, "seconds": 1.25, **fields}
    return CheckReport(**values)  # type: ignore[arg-type]


def text_of(
    value: CheckReport, *, notes: bool = False, terminal: bool = False, width: int = 80
) -> str:
    stream = io.StringIO()
    console = Console(
        file=stream,
        width=width,
        force_terminal=terminal,
        no_color=not terminal,
        highlight=False,
        emoji=False,
    )
    print_check(console, value, show_notes=notes)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def _outside_of_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)


# -- exit code -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("level", "code"), [("error", 1), ("warning", 1), ("note", 0)])
def test_errors_and_warnings_fail_and_notes_do_not(level: Level, code: int) -> None:
    assert report(finding(level=level)).exit_code == code


def test_a_known_finding_fails_nothing_and_a_stale_entry_does() -> None:
    known = LibraryCheck("quack", "x", 1, known=(KnownFinding(finding(), "as upstream"),))
    assert report(libraries=(known,)).exit_code == 0
    assert report(libraries=(known,), stale=(finding(),)).exit_code == 1
    assert report(libraries=()).exit_code == 0


# -- text ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("terminal", [False, True])
def test_a_finding_is_shown_with_place_level_rule_why_and_mend(terminal: bool) -> None:
    shown = text_of(report(finding()), terminal=terminal)
    for part in ("quack/x.py:7:5", "error", "lazy-torch-import", "it is late", "hoist it"):
        assert part in shown
    assert ("\x1b[" in shown) is terminal
    assert shown.count("(guide: 约束)") == 1
    assert "(guide: 范围)" not in shown


def test_findings_come_file_by_file_whatever_order_they_were_found_in() -> None:
    found = [
        finding(place, line, rule=rule)
        for place in ("a.py", "b.py", "b/c.py")
        for line in (2, 10)
        for rule in ("lazy-torch-import", "scope-incomplete")
    ]
    expected = text_of(report(*found))
    places = [line.split()[0] for line in expected.splitlines() if "it is late" in line]
    assert places == [f"{p}:{n}:5:" for p in ("a.py", "b.py", "b/c.py") for n in (2, 2, 10, 10)]
    for seed in range(5):
        shuffled = random.Random(seed).sample(found, len(found))
        assert text_of(report(*shuffled)) == expected
        assert by_place(shuffled) == by_place(found)


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_of_a_thousand_findings_is_dropped_or_broken(terminal: bool) -> None:
    found = [finding(f"quack/{'deep/' * 20}m{n}.py", n, why=f"fact {n}; " * 9) for n in range(1000)]
    lines = text_of(report(*found), terminal=terminal, width=40).splitlines()
    assert (
        sum(f"fact {n}; " * 9 in line for n in range(1000) for line in lines if f"/m{n}.py" in line)
        == 1000
    )
    assert any("1000" in line and "lazy-torch-import" in line for line in lines)


def test_notes_and_known_findings_are_counted_and_shown_on_request() -> None:
    known = KnownFinding(finding("quack/old.py"), "upstream has it so")
    library = LibraryCheck("quack", "x", 12, (finding(level="note"),), (known,))
    value = report(libraries=(library,))
    few, all_ = text_of(value), text_of(value, notes=True)
    assert "it is late" not in few
    assert "1 notes (--notes shows them)" in few
    assert "known findings (baseline): 1 (--notes shows them)" in few
    assert "quack/x.py:7:5" in all_
    assert "quack/old.py:7:5: known lazy-torch-import: upstream has it so" in all_


def test_known_findings_of_what_has_no_modules_are_counted_too() -> None:
    library = LibraryCheck("the wheel", "x", known=(KnownFinding(finding(), "so be it"),))
    assert "known findings (baseline): 1" in text_of(report(libraries=(library,)))


def test_counts_are_told_by_rule_and_by_library() -> None:
    one = LibraryCheck("quack", "x", 1, (finding(), finding(line=9), finding(level="note")))
    two = LibraryCheck("fla", "y", 1, (finding(rule="scope-incomplete", level="warning"),))
    rows = [line.split() for line in text_of(report(libraries=(one, two))).splitlines()]
    assert ["lazy-torch-import", "2", "1"] in rows
    assert ["scope-incomplete", "1"] in rows
    assert ["quack", "2", "1"] in rows
    assert ["fla", "1"] in rows


def test_what_was_not_done_is_said_with_its_reason() -> None:
    gone = LibraryCheck("fla", "submodule", why_not="not checked out", next_step="git submodule x")
    here = LibraryCheck(
        "quack", "x", 3, told_apart={"type-checking imports": 12, "test files": 3},
        run_time="no Paddle here", not_exercised=("quack:softmax",),
    )  # fmt: skip
    shown = text_of(report(libraries=(gone, here), next_command="nox -s check"))
    for part in (
        "not checked: not checked out", "git submodule x", "1 checked, 1 not checked", "no Paddle here",
        "12 type-checking imports, 3 test files", "not exercised: quack:softmax", "next: nox -s check",
    ):  # fmt: skip
        assert part in shown


def test_an_empty_report_is_still_a_report() -> None:
    assert "0 checked, 0 errors, 0 warnings, 0 notes, 3 rules, 1.2 s" in text_of(
        report(libraries=())
    )


@pytest.mark.parametrize("terminal", [False, True])
def test_texts_of_a_library_stay_texts(terminal: bool) -> None:
    odd = finding(
        "naïve/模块[red]:fire:.py", why="a\n::error::b \x1b[31m \udcff", mend="[/bold] {0}\r"
    )
    shown = text_of(report(odd), terminal=terminal)
    assert "naïve/模块[red]:fire:.py:7:5" in shown
    assert "[/bold] {0}\\r" in shown
    assert not [line for line in shown.splitlines() if line.lstrip().startswith("::")]
    assert "\x1b[31m \\" not in shown
    shown.encode()  # a lone surrogate would raise


# -- annotations -----------------------------------------------------------------------------------


def unescaped(text: str) -> str:
    """As the runner reads a value: ``%25`` last. Source: actions/runner, ActionCommand."""
    for code, sign in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, sign)
    return text


@pytest.mark.parametrize(
    ("level", "word"), [("error", "error"), ("warning", "warning"), ("note", "notice")]
)
def test_an_annotation_for_each_level(level: Level, word: str) -> None:
    assert annotation(finding(level=level)) == (
        f"::{word} file=quack/x.py,line=7,col=5,title=lazy-torch-import::it is late; hoist it"
    )


def test_an_annotation_survives_the_runner() -> None:
    place, why = "a,b:c%0A模块.py", "50% off\r\n::error::x, y: z%2C"
    line = annotation(finding(place, why=why))
    assert len(line.splitlines()) == 1
    head, _, message = line.removeprefix("::error ").partition("::")
    fields = dict(part.split("=", 1) for part in head.split(","))
    assert fields["file"] == "a%2Cb%3Ac%250A模块.py"
    assert unescaped(fields["file"]) == place
    assert fields["line"] == "7"
    assert message == "50%25 off%0D%0A::error::x, y: z%252C; hoist it"
    assert unescaped(message) == f"{why}; hoist it"


def test_an_annotation_without_a_line_has_none() -> None:
    assert annotation(finding(line=0, column=0)).startswith("::error file=quack/x.py,title=")


def test_an_annotation_of_other_sources_names_no_file_of_the_repository() -> None:
    library = LibraryCheck("quack", "pypi", 1, (finding(),), in_repository=False)
    (line,) = workflow_commands(report(libraries=(library,)), show_notes=False)
    assert line == "::error title=lazy-torch-import::quack/x.py:7:5: it is late; hoist it"


def test_annotations_are_printed_in_actions_only_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value = report(
        *(finding(line=n + 1) for n in range(25)), finding(level="note"), stale=(finding(),)
    )
    assert "::error" not in text_of(value)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    shown = [line for line in text_of(value).splitlines() if line.startswith("::")]
    assert shown == [*workflow_commands(value, show_notes=False)]
    assert len(shown) == 26
    assert sum(line.startswith("::notice") for line in text_of(value, notes=True).splitlines()) == 1


# -- JSON ------------------------------------------------------------------------------------------


def test_the_document_is_what_its_schema_says() -> None:
    schema = json.loads(SCHEMA.read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    library = LibraryCheck(
        "quack", "pypi", 3, (finding("模块/\udcff.py"), finding(level="note", line=0)),
        (KnownFinding(finding(), "as upstream"),), {"test files": 3}, ("a note",), "", "",
        "no Paddle", ("quack:f",), in_repository=False,
    )  # fmt: skip
    for value in (report(libraries=(library,), stale=(finding(),)), report(libraries=())):
        document = json.loads(json.dumps(value.as_dict()))
        Draft202012Validator(schema).validate(document)
        assert document["exit_code"] == value.exit_code
    document = json.loads(json.dumps(report(finding()).as_dict()))
    for spoil in (
        {"schema": 2},
        {"more": 1},
        {"stale": [{"rule": "x"}]},
        {"libraries": [{**document["libraries"][0], "modules": -1}]},
    ):
        with pytest.raises(ValidationError):
            Draft202012Validator(schema).validate({**document, **spoil})
