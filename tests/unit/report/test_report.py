"""The report of a run: one exit code, nothing lost on the way to a table or to JSON."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from ci.errors import (
    ConfigError,
    FarmError,
    FindingError,
    InfrastructureError,
    InterruptedRunError,
    LibraryBuildError,
    SuiteError,
    ToolchainError,
)
from ci.report.console import (
    PLAIN_WIDTH,
    coloured,
    megabytes,
    print_cell_errors,
    print_error,
    print_report,
)
from ci.report.model import CellReport, LibraryRow, RunReport
from ci.report.progress import LiveNarrator, PlainNarrator


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FindingError, 1),
        (LibraryBuildError, 1),
        (SuiteError, 1),
        (ConfigError, 2),
        (ToolchainError, 3),
        (InfrastructureError, 4),
        (InterruptedRunError, 130),
    ],
)
def test_an_exit_code_means_one_thing(error: type[FarmError], code: int) -> None:
    """The table of the design: 0 good, 1 finding, 2 usage, 3 tool, 4 infrastructure, 130 stopped."""
    value = error("what", cause="why", next_step="then", details=["one", "two"])
    assert value.exit_code == code
    assert str(value) == "what"
    assert value.as_dict() == {
        "kind": error.kind,
        "exit_code": code,
        "message": "what",
        "cause": "why",
        "next_step": "then",
        "details": ["one", "two"],
    }
    assert issubclass(error, FarmError)


def test_the_kinds_of_error_can_be_told_apart() -> None:
    def below(kind: type[FarmError]) -> list[type[FarmError]]:
        return [kind, *(item for child in kind.__subclasses__() for item in below(child))]

    kinds = [error.kind for error in below(FarmError)]
    assert len(set(kinds)) == len(kinds)


def cell(name: str = "cu130-cp312", error: FarmError | None = None, **changes: Any) -> CellReport:
    fields: dict[str, Any] = {
        "cell": name,
        "executor": "host",
        "executor_why": "no image",
        "python": "3.12 (3.12.1)",
        "compiler": "nvcc 13.0",
        "libraries": (),
        "error": error.as_dict() if error else None,
    }
    return CellReport(**{**fields, **changes})


def report(*cells: CellReport, next_command: str = "") -> RunReport:
    return RunReport("wheel", cells, 12.3, next_command)


def shown(value: RunReport) -> str:
    stream = io.StringIO()
    print_report(Console(file=stream, width=PLAIN_WIDTH, highlight=False), value)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([None, None], 0),
        ([None, ConfigError("x")], 2),
        ([LibraryBuildError("x"), InfrastructureError("y")], 1),
        ([InfrastructureError("x"), None], 4),
    ],
)
def test_one_exit_code_for_all_cells(errors: list[FarmError | None], code: int) -> None:
    cells = [cell(f"cu130-cp3{number}", error) for number, error in enumerate(errors)]
    assert report(*cells).exit_code == code
    assert report(*cells).as_dict()["exit_code"] == code


def test_the_json_holds_every_field_and_survives_json() -> None:
    row = LibraryRow("quack", "built", source="pypi:quack-kernels==0.6.5", capabilities=("9.0",))
    value = report(cell(libraries=(row,), stage_seconds={"wheel": 1.5}))
    back = json.loads(json.dumps(value.as_dict()))
    assert back["schema"] == 1
    assert back["cells"][0]["cell"] == "cu130-cp312"
    assert back["cells"][0]["stage_seconds"] == {"wheel": 1.5}
    assert back["cells"][0]["libraries"][0]["library"] == "quack"
    assert back["cells"][0]["libraries"][0]["capabilities"] == ["9.0"]


def test_every_library_is_in_the_table_with_its_status_and_reason() -> None:
    rows = (
        LibraryRow("one", "built", seconds=3.25, size=2_500_000, files=7, source="template"),
        LibraryRow("two", "cached", built_in=61.0, size=900, files=1, imported="loaded"),
        LibraryRow("three", "left out", reason="needs CUDA >=12.9; found 12.6"),
        LibraryRow("four", "failed", reason="run_requires nvidia-cutlass-dsl[cu13]==4.5.2"),
    )
    text = shown(report(cell(libraries=rows)))
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "built" in lines["one"]
    assert "3.2 s" in lines["one"]
    assert "2.5 MB" in lines["one"]
    assert "(built in 61.0 s)" in lines["two"]
    assert "0.9 kB" in lines["two"]
    assert "loaded" in lines["two"]
    assert "needs CUDA >=12.9; found 12.6" in lines["three"]
    assert "nvidia-cutlass-dsl[cu13]==4.5.2" in lines["four"]
    assert "1 of 1 cells good" in text


def test_a_failed_cell_is_shown_and_counted() -> None:
    failed = cell("cu126-cp310", LibraryBuildError("quack[x] did not build", details=["a.cu(3)"]))
    value = report(cell(), failed, next_command="python -m ci wheel --libs quack[x]")
    text = shown(value)
    assert "quack[x] did not build" in text
    assert "1 of 2 cells good" in text
    assert "next: python -m ci wheel --libs quack[x]" in text


def test_the_wheel_its_gates_and_its_import_suite_are_shown() -> None:
    name = "/out/paddlefleet_ops-0.1.0+cu130-cp312-cp312-manylinux_2_28_x86_64.whl" + "x" * 200
    text = shown(
        report(
            cell(
                wheel=name,
                wheel_size=1_000_000,
                tag="cp312",
                gates=("tag", "record"),
                not_publishable_because=("source of quack is not pinned",),
                import_passed=3,
                import_failed=1,
                import_log="/out/import.log",
            )
        )
    )
    assert name in text  # whole, on one line, to be copied
    assert "gates passed: tag, record" in text
    assert "not publishable: source of quack is not pinned" in text
    assert "3 passed, 1 failed" in text


def error_text(error: FarmError) -> str:
    stream = io.StringIO()
    print_error(Console(file=stream, width=PLAIN_WIDTH, highlight=False), error)
    return stream.getvalue()


def test_an_error_says_what_why_and_what_next_without_losing_brackets() -> None:
    text = error_text(
        ConfigError(
            "bad [red]thing", cause="a [b] c", next_step="pip install x[y]", details=["[z]"]
        )
    )
    assert "error: bad [red]thing" in text
    assert "likely cause: a [b] c" in text
    assert "next: pip install x[y]" in text
    assert "\n  [z]\n" in text


def test_an_error_without_cause_or_next_step_shows_none() -> None:
    assert error_text(FindingError("only this")) == "error: only this\n"


def test_the_errors_of_all_failed_cells_are_printed_whole() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=PLAIN_WIDTH, highlight=False)
    failed = [
        cell(name, ToolchainError(f"no nvcc for {name}", cause="none", next_step="set CUDA_HOME"))
        for name in ("cu126-cp310", "cu129-cp310")
    ]
    print_cell_errors(console, report(cell(), *failed))
    text = stream.getvalue()
    assert text.count("error: no nvcc for") == 2
    assert text.count("next: set CUDA_HOME") == 2
    assert "cu130-cp312" not in text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, ""),
        (1, "0.0 kB"),
        (999_949, "999.9 kB"),
        (1_000_000, "1.0 MB"),
        (131_000_000, "131.0 MB"),
    ],
)
def test_sizes_are_in_powers_of_ten(size: int, text: str) -> None:
    assert megabytes(size) == text


def test_an_unknown_status_is_shown_without_colour() -> None:
    assert coloured("planned") == "planned"
    assert "[red]" in coloured("failed")
    assert coloured("[odd]") == "\\[odd]"


def test_progress_in_a_log_is_one_line_per_event() -> None:
    stream = io.StringIO()
    narrator = PlainNarrator(Console(file=stream, width=40, highlight=False))
    narrator.say("sources [cu13]")
    narrator.begin("cu130 quack", "building")
    narrator.end("cu130 quack", "built in 1.0 s " + "x" * 100)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].endswith("sources [cu13]")
    assert lines[1].endswith("cu130 quack: building")


def test_live_progress_leaves_a_lasting_line_for_what_ended() -> None:
    stream = io.StringIO()
    with LiveNarrator(Console(file=stream, width=80, force_terminal=False)) as narrator:
        narrator.begin("quack", "building")
        narrator.end("quack", "built")
        narrator.end("never begun", "failed")
    assert "quack: built" in stream.getvalue()
    assert "never begun: failed" in stream.getvalue()
