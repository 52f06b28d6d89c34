"""Every declared library in every cell of the matrix on every device; `packaging` is the other opinion."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ci.errors import ConfigError
from ci.matrix.load import load
from ci.matrix.model import Accepted, Cell
from ci.matrix.resolve import resolve
from ci.pipeline import gates
from ci.pipeline.gates import DEVICES, GateRow, gate_rows, gate_table, runs_on
from ci.registry import MATRIX, REPOSITORY, EcosystemLibrary, build_utils

CELLS = tuple(item.cell for item in resolve(load(MATRIX)) if isinstance(item, Accepted))
LIBRARIES = build_utils.all_libs()


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str, str], GateRow]:
    found = gate_rows(LIBRARIES, CELLS)
    return {(row.cell, row.device, row.library): row for row in found}


def meets(found: str, condition: str) -> bool:
    return Version(found) in SpecifierSet(condition)


def is_built(library: EcosystemLibrary, cell: Cell) -> bool:
    """By the declaration, with PEP 440's own reading of its conditions."""
    requires = library.requires
    capabilities = [f"{item.major}.{item.minor}" for item in cell.capabilities]
    return (
        meets(cell.cuda, requires.cuda)
        and meets(cell.python, requires.python)
        and (
            not requires.capability or any(meets(one, requires.capability) for one in capabilities)
        )
        and all(
            is_built(next(item for item in LIBRARIES if item.name == name), cell)
            for name in library.depends_on
        )
    )


def is_loaded(library: EcosystemLibrary, cell: Cell, device: str) -> bool:
    requires = library.requires
    gate = not requires.capability or (
        requires.cpu_path if device == "no GPU" else meets(device, requires.capability)
    )
    return gate and all(
        is_loaded(next(item for item in LIBRARIES if item.name == name), cell, device)
        for name in library.depends_on
    )


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda item: item.name)
@pytest.mark.parametrize("device", DEVICES)
def test_a_library_is_built_and_loaded_exactly_where_its_conditions_are_met(
    rows: dict[tuple[str, str, str], GateRow], library: EcosystemLibrary, device: str
) -> None:
    assert CELLS
    for cell in CELLS:
        row = rows[cell.id, device, library.name]
        assert (row.outcome != "left out") is is_built(library, cell), row
        if row.outcome != "left out":
            assert (row.outcome != "blocked") is is_loaded(library, cell, device), row
        assert bool(row.reasons) is (row.outcome != "loads"), row


def test_every_cell_device_and_library_is_there_once() -> None:
    found = gate_rows(LIBRARIES, CELLS)
    wanted = itertools.product(CELLS, DEVICES, LIBRARIES)
    assert [(row.cell, row.device, row.library) for row in found] == [
        (cell.id, device, library.name) for cell, device, library in wanted
    ]
    assert {"no GPU", "8.0", "8.9", "9.0", "10.0", "10.3", "12.0"} == {row.device for row in found}


def test_a_reason_is_given_for_every_condition(
    rows: dict[tuple[str, str, str], GateRow],
) -> None:
    left_out = rows["cu126-cp310", "9.0", "sonic-moe"]
    assert left_out.outcome == "left out"
    assert left_out.reasons[:3] == (
        "needs CUDA >=12.9; found 12.6",
        "needs Python >=3.12; found 3.10",
        "needs compute capability >=10.0; found 8.0, 9.0",
    )
    assert "depends on quack" in left_out.reasons[3]
    blocked = rows["cu130-cp312", "9.0", "sonic-moe"]
    assert blocked.outcome == "blocked"
    assert blocked.reasons == ("needs compute capability >=10.0; found 9.0",)
    no_gpu = rows["cu130-cp312", "no GPU", "DeepEP"]
    assert no_gpu.reasons == ("needs compute capability >=9.0; no CUDA device was found",)


@pytest.mark.parametrize(
    ("compiled", "device", "runs"),
    [
        (("8.0",), "8.0", True),
        (("8.0",), "8.9", True),  # "binary code is compatible with later minor revisions"
        (("8.9",), "8.0", False),
        (("9.0",), "10.0", False),  # not across major revisions
        (("9.0+PTX",), "12.0", True),  # PTX is compiled by the driver
        (("9.0+PTX",), "8.9", False),
        (("9.0a",), "9.0", True),
        (("10.0a",), "10.3", False),  # architecture-specific
        (("10.0f",), "10.3", True),  # family-specific
        (("10.3f",), "10.0", False),
        (("10.0f",), "12.0", False),
        (("8.0", "9.0"), "8.9", True),
        ((), "9.0", False),
    ],
)
def test_code_runs_where_nvidia_says_so(compiled: tuple[str, ...], device: str, runs: bool) -> None:
    assert runs_on(compiled, device) is runs


def test_a_library_that_would_load_without_code_is_told(
    rows: dict[tuple[str, str, str], GateRow],
) -> None:
    row = rows["cu130-cp312", "12.0", "fused-norm"]
    assert row.outcome == "no code"
    assert row.reasons == ("compiled for 8.0, 9.0, 10.0, 10.3; nothing of it runs on 12.0",)
    assert rows["cu130-cp312", "10.3", "fused-norm"].outcome == "loads"
    assert rows["cu130-cp312", "no GPU", "fused-norm"].outcome == "loads"
    assert rows["cu130-cp312", "12.0", "DeepGEMM"].outcome == "loads"  # it compiles at run time


def test_libraries_without_sources_are_left_out_when_they_are_named() -> None:
    unpinned = build_utils.without_sources(LIBRARIES)
    assert unpinned
    found = gate_rows(LIBRARIES, CELLS[:1], unpinned=unpinned)
    for row in found:
        if row.library in unpinned:
            assert row.outcome == "left out"
            assert build_utils.NOT_PINNED in row.reasons


def test_a_device_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"9\.5"):
        gate_rows(LIBRARIES, CELLS[:1], devices=("9.5",))


def test_the_table_shows_every_row_once(rows: dict[tuple[str, str, str], GateRow]) -> None:
    headers, lines = gate_table(tuple(rows.values()))
    print()
    widths = [max(map(len, column)) for column in zip(headers, *lines, strict=True)]
    for line in (headers, *lines):
        print("  ".join(map(str.ljust, line, widths)).rstrip())
    assert headers == ("library", "cells", *DEVICES)
    shown: dict[tuple[str, str, str], str] = {}
    for library, cells, *marks in lines:
        for group in cells.split("; "):
            cudas, _, rests = group.partition(": ")
            for cuda, rest in itertools.product(cudas.split(), rests.split()):
                for device, mark in zip(DEVICES, marks, strict=True):
                    assert (f"{cuda}-{rest}", device, library) not in shown
                    shown[f"{cuda}-{rest}", device, library] = mark
    assert shown == {key: gates.MARKS[row.outcome] for key, row in rows.items()}


def test_rows_are_json_ready_and_paddle_is_not_imported() -> None:
    code = (
        "import json, sys\n"
        "from ci.matrix.load import load\nfrom ci.matrix.resolve import resolve\n"
        "from ci.pipeline.gates import gate_rows\nfrom ci.registry import MATRIX, build_utils\n"
        "cells = [item.cell for item in resolve(load(MATRIX)) if hasattr(item, 'cell')][:1]\n"
        "rows = [row.as_dict() for row in gate_rows(build_utils.all_libs(), cells)]\n"
        "print(json.dumps([rows, 'paddle' in sys.modules, 'paddlefleet_ops' in sys.modules]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    found, *imported = json.loads(done.stdout)
    assert imported == [False, False]
    assert len(found) == len(LIBRARIES) * len(DEVICES)
