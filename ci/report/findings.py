"""The report of a check for people: on a console, and as annotations of GitHub Actions."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from rich.console import Console
from rich.markup import escape

from ci.findings import Finding
from ci.report.check_model import CheckReport, LibraryCheck
from ci.report.console import print_table

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


def print_check(console: Console, report: CheckReport, *, show_notes: bool) -> None:
    """Print every finding by library and file, a table of counts, and the guide's rules behind them."""
    for library in report.libraries:
        _print_library(console, library, show_notes=show_notes)
    for finding in report.stale:
        _print_finding(console, finding)
    shown = [*_shown(report, show_notes=show_notes)]
    _print_rules(console, report, shown)
    _print_counts(console, report)
    _print_end(console, report, show_notes=show_notes)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for finding in shown:
            print(annotation(finding))


def _shown(report: CheckReport, *, show_notes: bool) -> Iterator[Finding]:
    for library in report.libraries:
        yield from (item for item in library.findings if show_notes or item.level != "note")
    yield from report.stale


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
    for finding in library.findings:
        if show_notes or finding.level != "note":
            _print_finding(console, finding)


def _remarks(library: LibraryCheck) -> Iterator[str]:
    if library.told_apart:
        counts = ", ".join(f"{count} {word}" for word, count in library.told_apart.items())
        yield f"told apart and not reported: {counts}"
    yield f"run time: {library.run_time or 'imported under the guard and watched'}"
    if library.not_exercised:
        yield f"not exercised: {', '.join(library.not_exercised)}"
    if library.known:
        yield f"known findings (baseline): {len(library.known)}"


def _print_finding(console: Console, finding: Finding) -> None:
    place = ":".join(str(part) for part in (finding.place, finding.line, finding.column) if part)
    if not console.is_terminal:  # a log of hundreds of findings needs no layout
        print(f"  {place}: {finding.level} {finding.rule}: {finding.why}", file=console.file)
        print(f"    {finding.mend}", file=console.file)
        return
    colour = _COLOURS[finding.level]
    console.print(
        f"  {escape(place)}: [{colour}]{finding.level}[/{colour}] [bold]{escape(finding.rule)}[/bold]: "
        f"{escape(finding.why)}",
        soft_wrap=True,
    )
    console.print(f"    [dim]{escape(finding.mend)}[/dim]", soft_wrap=True)


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


def annotation(finding: Finding) -> str:
    """The workflow command of GitHub Actions that shows a finding in the diff.

    Source: "Workflow commands for GitHub Actions", setting an error, warning or notice message.
    """
    word = "notice" if finding.level == "note" else finding.level
    fields = {"file": finding.place, "line": finding.line, "col": finding.column}
    given = ",".join(f"{name}={_property(str(value))}" for name, value in fields.items() if value)
    message = f"{finding.why}; {finding.mend}"
    return f"::{word} {given},title={_property(finding.rule)}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
