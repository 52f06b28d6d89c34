"""The report of a check for people: on a console, and as annotations of GitHub Actions."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from rich.console import Console
from rich.markup import escape

from ci.findings import Finding
from ci.report.check_model import CheckReport, LibraryCheck, by_place
from ci.report.console import print_table

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


def print_check(console: Console, report: CheckReport, *, show_notes: bool) -> None:
    """Print every finding by library and file, a table of counts, and the guide's rules behind them."""
    for library in report.libraries:
        _print_library(console, library, show_notes=show_notes)
    for finding in by_place(report.stale):
        _print_finding(console, finding)
    shown = [*_shown(report, show_notes=show_notes)]
    _print_rules(console, report, shown)
    _print_counts(console, report)
    _print_libraries(console, report)
    _print_end(console, report, show_notes=show_notes)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in workflow_commands(report, show_notes=show_notes):
            print(line, file=console.file)


def _of_library(library: LibraryCheck, *, show_notes: bool) -> tuple[Finding, ...]:
    return by_place(item for item in library.findings if show_notes or item.level != "note")


def _shown(report: CheckReport, *, show_notes: bool) -> Iterator[Finding]:
    for library in report.libraries:
        yield from _of_library(library, show_notes=show_notes)
    yield from by_place(report.stale)


def _print_library(console: Console, library: LibraryCheck, *, show_notes: bool) -> None:
    title = f"[bold]{escape(library.name)}[/bold] [dim]{escape(library.source)}[/dim]"
    if library.why_not:
        console.print(f"{title}: not checked: {escape(library.why_not)}", soft_wrap=True)
        console.print(f"  [dim]{escape(library.next_step)}[/dim]", soft_wrap=True)
    elif library.modules:
        console.print(f"{title}: {library.modules} modules", soft_wrap=True)
        for text in (*library.notes, *_remarks(library)):
            console.print(f"  {escape(text)}", soft_wrap=True)
    else:
        console.print(title, soft_wrap=True)
    for finding in _of_library(library, show_notes=show_notes):
        _print_finding(console, finding)
    _print_known(console, library, show_notes=show_notes)


def _remarks(library: LibraryCheck) -> Iterator[str]:
    if library.told_apart:
        counts = ", ".join(f"{count} {word}" for word, count in library.told_apart.items())
        yield f"told apart and not reported: {counts}"
    yield f"run time: {library.run_time or 'imported under the guard and watched'}"
    if library.not_exercised:
        yield f"not exercised: {', '.join(library.not_exercised)}"


def _print_known(console: Console, library: LibraryCheck, *, show_notes: bool) -> None:
    if not library.known:
        return
    hidden = "" if show_notes else " (--notes shows them)"
    console.print(f"  known findings (baseline): {len(library.known)}{hidden}", soft_wrap=True)
    for item in library.known if show_notes else ():
        found = item.finding
        text = f"{_place(found)}: known {found.rule}: {item.reason}"
        console.print(f"  [dim]{escape(_one_line(text))}[/dim]", soft_wrap=True)


def _place(finding: Finding) -> str:
    return ":".join(str(part) for part in (finding.place, finding.line, finding.column) if part)


def _one_line(text: str) -> str:
    """The text with what no terminal and no log should get as escapes: it comes from others' sources.

    A line break would let a file's name begin a line, and so a workflow command; a lone surrogate (a
    byte of a name that is no UTF-8) cannot be printed at all.
    """
    if text.isprintable():
        return text
    escaped = (sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
    return "".join(escaped)


def _print_finding(console: Console, finding: Finding) -> None:
    place, why, mend = map(_one_line, (_place(finding), finding.why, finding.mend))
    if not console.is_terminal:  # a log of hundreds of findings needs no layout
        print(f"  {place}: {finding.level} {finding.rule}: {why}", file=console.file)
        print(f"    {mend}", file=console.file)
        return
    colour = _COLOURS[finding.level]
    console.print(
        f"  {escape(place)}: [{colour}]{finding.level}[/{colour}] [bold]{escape(finding.rule)}[/bold]: "
        f"{escape(why)}",
        soft_wrap=True,
    )
    console.print(f"    [dim]{escape(mend)}[/dim]", soft_wrap=True)


def _print_rules(console: Console, report: CheckReport, shown: Iterable[Finding]) -> None:
    names = {finding.rule for finding in shown}
    rules = [rule for rule in report.rules if rule.name in names]
    if rules:
        console.print("\nThe rules behind them:")
    for rule in rules:
        console.print(f"  {escape(rule.name)}: [dim]{escape(rule.guide)}[/dim]", soft_wrap=True)


def counts(report: CheckReport) -> Mapping[tuple[str, str], int]:
    """How many findings each rule has on each level."""
    found = [item for library in report.libraries for item in library.findings]
    return Counter((item.rule, item.level) for item in (*found, *report.stale))


def _print_counts(console: Console, report: CheckReport) -> None:
    by_rule = counts(report)
    rows = [
        (rule, *(str(by_rule.get((rule, level), "")) for level in _COLOURS))
        for rule in dict.fromkeys(rule for rule, _ in sorted(by_rule))
    ]
    if rows:
        console.print("")
        print_table(console, ("rule", "errors", "warnings", "notes"), rows)


def _print_libraries(console: Console, report: CheckReport) -> None:
    """A row per library, where there are several with something to count."""
    rows = []
    for library in report.libraries:
        levels = Counter[str](item.level for item in library.findings)
        cells = (*(levels[level] for level in _COLOURS), len(library.known))
        if any(cells):
            rows.append((escape(library.name), *(str(number or "") for number in cells)))
    if len(rows) > 1:
        console.print("")
        print_table(console, ("library", "errors", "warnings", "notes", "known"), rows)


def _print_end(console: Console, report: CheckReport, *, show_notes: bool) -> None:
    levels = Counter(item.level for library in report.libraries for item in library.findings)
    checked = sum(1 for library in report.libraries if not library.why_not)
    left = len(report.libraries) - checked
    parts = [f"{checked} checked" + (f", {left} not checked" if left else "")]
    parts += [f"{levels['error'] + len(report.stale)} errors", f"{levels['warning']} warnings"]
    hidden = levels["note"] and not show_notes
    parts.append(f"{levels['note']} notes" + (" (--notes shows them)" if hidden else ""))
    parts.append(f"{len(report.rules)} rules, {report.seconds:.1f} s")
    console.print(f"\n{', '.join(parts)}", soft_wrap=True)
    if report.next_command:
        console.print(f"next: {escape(report.next_command)}", soft_wrap=True)


def workflow_commands(report: CheckReport, *, show_notes: bool) -> Iterator[str]:
    """A workflow command for every finding that is shown."""
    for library in report.libraries:
        for finding in _of_library(library, show_notes=show_notes):
            yield annotation(finding, in_repository=library.in_repository)
    yield from map(annotation, by_place(report.stale))


def annotation(finding: Finding, *, in_repository: bool = True) -> str:
    """The workflow command of GitHub Actions that shows a finding in the diff.

    A place outside the repository has no diff: it is said in the message. Source: "Workflow commands for
    GitHub Actions", setting an error, warning or notice message; values are escaped as by
    ``@actions/core``.
    """
    word = "notice" if finding.level == "note" else finding.level
    message = f"{finding.why}; {finding.mend}"
    fields: dict[str, str | int] = {}
    if in_repository:
        fields = {"file": finding.place, "line": finding.line, "col": finding.column}
    else:
        message = f"{_place(finding)}: {message}"
    fields["title"] = finding.rule
    given = ",".join(f"{name}={_property(str(value))}" for name, value in fields.items() if value)
    return f"::{word} {given}::{_data(message)}"


def _data(text: str) -> str:
    printable = text.encode("utf-8", "backslashreplace").decode()
    return printable.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
