"""The report on a console: tables on a terminal, the same tables without colour in a log.

Results go to stdout, progress and errors to stderr (:mod:`ci.report.progress`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ci.errors import FarmError, from_dict
from ci.report.model import CellReport, LibraryRow, RunReport

_COLOURS = {
    "built": "green",
    "cached": "cyan",
    "failed": "red",
    "left out": "dim",
    "loaded": "green",
    "blocked": "yellow",
}
PLAIN_WIDTH = 160


def make_console(*, stderr: bool = False) -> Console:
    """A console that is wide enough for tables where there is no terminal."""
    console = Console(stderr=stderr, highlight=False, soft_wrap=False, emoji=False)
    if not console.is_terminal:
        return Console(
            stderr=stderr, highlight=False, width=PLAIN_WIDTH, soft_wrap=False, emoji=False
        )
    return console


def coloured(status: str) -> str:
    """A status word in the colour of its kind."""
    word = status.split(":")[0]
    colour = _COLOURS.get(word)
    return f"[{colour}]{escape(status)}[/{colour}]" if colour else escape(status)


def megabytes(size: int) -> str:
    """Bytes for people: kB below one megabyte, MB from there, in powers of ten."""
    if not size:
        return ""
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def print_table(
    console: Console, headers: Sequence[str], rows: Sequence[Sequence[str]], title: str = ""
) -> None:
    """A table; texts may hold rich's markup."""
    table = Table(
        title=title or None, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for number, header in enumerate(headers):
        table.add_column(header, overflow="fold", no_wrap=number == 0)  # a name stays whole
    for row in rows:
        table.add_row(*row)
    console.print(table)


def print_report(console: Console, report: RunReport) -> None:
    """The whole report: a table per cell, the wheels, the next command."""
    for cell in report.cells:
        _print_cell(console, cell)
    _print_run(console, report)
    good = sum(cell.ok for cell in report.cells)
    console.print(
        f"[bold]{good} of {len(report.cells)} cells good[/bold], {report.seconds:.1f} s in all"
    )
    if report.next_command:
        console.print(f"next: {escape(report.next_command)}", soft_wrap=True)


TIMELINE_FROM = 5.0
"""Seconds from which on it is worth to see what took them."""


def _print_run(console: Console, report: RunReport) -> None:
    """What took how long, and what the cores and the compiler cache did meanwhile."""
    if report.compiler_cache.get("shown"):
        tool, shown = (str(report.compiler_cache[name]) for name in ("tool", "shown"))
        console.print(f"\ncompiler cache: {escape(tool)}: {escape(shown)}", soft_wrap=True)
    if report.seconds < TIMELINE_FROM or not report.timeline:
        return
    console.print()
    for line in report.timeline:
        console.print(escape(line), soft_wrap=True)
    console.print(escape(report.summary), soft_wrap=True)


def print_cell_errors(console: Console, report: RunReport) -> None:
    """The whole error of every cell that failed."""
    for cell in report.cells:
        if cell.error is None:
            continue
        console.print(f"\n[bold]{cell.cell}[/bold]")
        print_error(console, from_dict(cell.error))


def _print_cell(console: Console, cell: CellReport) -> None:
    console.print(
        f"\n[bold]{cell.cell}[/bold]  executor {cell.executor} ({escape(cell.executor_why)}); "
        f"Python {escape(cell.python)}; compiler {escape(cell.compiler)}",
        soft_wrap=True,
    )
    print_table(
        console,
        ("library", "status", "time", "size", "files", "capabilities", "import", "source / reason"),
        [_row(row) for row in cell.libraries],
    )
    for line in _remarks(cell):
        console.print(escape(line), soft_wrap=True)
    if cell.wheel:
        _print_wheel(console, cell)
    if cell.import_passed or cell.import_failed:
        _print_suite(console, cell)
    stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in cell.stage_seconds.items())
    if stages:
        console.print(f"times: {stages}", soft_wrap=True)
    if cell.error is not None:
        console.print(f"[red]{escape(str(cell.error['message']))}[/red]", soft_wrap=True)
    if cell.reproduce:
        console.print(f"reproduce: {escape(cell.reproduce)}", soft_wrap=True)


def _remarks(cell: CellReport) -> Iterator[str]:
    if cell.image:
        yield f"image: {cell.image}"
    for command in cell.commands:
        yield f"would run: {command}"
    for note in cell.notes:
        yield f"note: {note}"


def _print_wheel(console: Console, cell: CellReport) -> None:
    made = f", unchanged since {cell.wheel_from}" if cell.wheel_from else ""
    console.print(
        f"wheel: {escape(cell.wheel)} ({megabytes(cell.wheel_size)}{made})", soft_wrap=True
    )
    for name, text in (
        ("tag", cell.tag),
        ("repair", cell.repair),
        ("gates passed", ", ".join(cell.gates)),
    ):
        if text:
            console.print(f"{name}: {escape(text)}", soft_wrap=True)
    if not cell.publishable:
        because = "; ".join(cell.not_publishable_because)
        console.print(f"[yellow]not publishable[/yellow]: {escape(because)}", soft_wrap=True)


def _print_suite(console: Console, cell: CellReport) -> None:
    colour = "red" if cell.import_failed else "green"
    ran = (
        f", run {cell.suite_from} on this wheel; --rerun-import runs it again"
        if cell.suite_from
        else ""
    )
    console.print(
        f"import suite: [{colour}]{cell.import_passed} passed, {cell.import_failed} failed"
        f"[/{colour}] ({escape(cell.import_log)}{ran})",
        soft_wrap=True,
    )


def _row(row: LibraryRow) -> tuple[str, ...]:
    seconds = f"{row.seconds:.1f} s" if row.status in ("built", "failed") else ""
    if row.status == "cached":
        where = "" if row.cached in ("", "local") else f", {row.cached}"
        seconds = f"(built in {row.built_in:.1f} s{where})"
    return (
        row.library,
        coloured(row.status),
        seconds,
        megabytes(row.size),
        str(row.files or ""),
        escape(" ".join(row.capabilities)),
        coloured(row.imported),
        escape(row.reason or row.source),
    )


def print_error(console: Console, error: FarmError) -> None:
    """What happened, the details, the likely cause, the next command; hints apart from the error."""
    console.print(f"[red]error[/red]: {escape(error.message)}", soft_wrap=True)
    for line in error.details:
        console.print(f"  {escape(line)}", soft_wrap=True)
    if error.cause:
        console.print(f"\n[bold]likely cause[/bold]: {escape(error.cause)}", soft_wrap=True)
    if error.next_step:
        console.print(f"[bold]next[/bold]: {escape(error.next_step)}", soft_wrap=True)
