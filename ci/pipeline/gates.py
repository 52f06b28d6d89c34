"""What any host would do with the wheel of any cell: the build gate, then the loader's gate, simulated.

A cell's wheel holds the libraries whose conditions the cell meets; the loader then decides by the GPU of
the host. Both decisions are pure functions of the declarations, so a laptop can tell what a host with
eight Blackwell GPUs will load, and on which GPUs nothing of a library would run.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from ci.matrix.capability import Capability
from ci.matrix.model import Cell
from ci.registry import (
    PACKAGE_ROOT,
    EcosystemLibrary,
    Selection,
    build_manifest,
    build_utils,
    target_of,
)

if TYPE_CHECKING:
    from paddlefleet_ops._decision import Decision as LoadDecision

NO_GPU = "no GPU"
DEVICES = (NO_GPU, "8.0", "8.9", "9.0", "10.0", "10.3", "12.0")
"""Hosts: none of CUDA, A100, L20/L40, H20/H100/H800, B200, B300, RTX PRO Blackwell."""

Outcome = Literal["loads", "no code", "blocked", "left out"]
MARKS: dict[Outcome, str] = {"loads": "yes", "no code": "no code", "blocked": "-", "left out": ""}
"""How the table shows an outcome; what a cell leaves out is empty."""


@dataclass(frozen=True)
class GateRow:
    """What becomes of ``library`` of the wheel of ``cell`` on a host with ``device``.

    ``outcome`` is ``"loads"``; ``"no code"``: it loads, and its kernels were not compiled for the
    device; ``"blocked"`` by the loader; or ``"left out"`` of the wheel. ``reasons`` is empty exactly for
    the first.
    """

    cell: str
    cuda: str
    python: str
    device: str
    library: str
    outcome: Outcome
    reasons: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """JSON-ready values."""
        return asdict(self)


def gate_rows(
    libraries: Sequence[EcosystemLibrary],
    cells: Iterable[Cell],
    devices: Sequence[str] = DEVICES,
    unpinned: Iterable[str] = (),
) -> tuple[GateRow, ...]:
    """Every library in every cell on every device, in that order from the inside.

    A host has the cell's Python, and Paddle with the cell's CUDA. ``unpinned`` names libraries without
    sources (``build_utils.without_sources``); by default their conditions alone decide. Raises
    ``ConfigError`` for a device that is no capability, and ``RegistryError`` for declarations that
    contradict each other.
    """
    without = tuple(unpinned)
    return tuple(
        row
        for cell in cells
        for row in _rows_of_cell(
            libraries,
            cell,
            devices,
            build_utils.select_libs(libraries, target_of(cell), unpinned=without),
        )
    )


def _rows_of_cell(
    libraries: Sequence[EcosystemLibrary],
    cell: Cell,
    devices: Sequence[str],
    selection: Selection,
) -> list[GateRow]:
    left_out = {item.library.name: item.reasons for item in selection.left_out}
    rows = []
    for device in devices:
        decisions = _loader_decisions(cell, device, selection)
        for library in libraries:
            outcome, reasons = _outcome(library, cell, device, left_out, decisions)
            rows.append(
                GateRow(cell.id, cell.cuda, cell.python, device, library.name, outcome, reasons)
            )
    return rows


def _outcome(
    library: EcosystemLibrary,
    cell: Cell,
    device: str,
    left_out: dict[str, tuple[str, ...]],
    decisions: dict[str, LoadDecision],
) -> tuple[Outcome, tuple[str, ...]]:
    if library.name in left_out:
        return "left out", left_out[library.name]
    reasons: tuple[str, ...] = getattr(decisions[library.name], "reasons", ())
    if reasons:
        return "blocked", reasons
    compiled = _compiled_for(library, cell)
    if compiled and device != NO_GPU and not runs_on(compiled, device):
        return "no code", (f"compiled for {', '.join(compiled)}; nothing of it runs on {device}",)
    return "loads", ()


def _compiled_for(library: EcosystemLibrary, cell: Cell) -> tuple[str, ...]:
    """Empty for a library whose kernels are compiled where they run, or are Paddle's own."""
    if not library.needs_cuda_compiler or "capability" not in library.varies_by:
        return ()
    return library.capabilities(target_of(cell))


def runs_on(compiled: Iterable[str], device: str) -> bool:
    """True when code for one of the capabilities ``compiled`` runs on a device such as ``"8.9"``.

    Binary code runs on the same major and the same or a later minor, ``a`` code on its capability alone,
    ``f`` code on later ones of its family, PTX on everything later. Sources: NVIDIA, *CUDA C++
    Programming Guide*, "Binary Compatibility" and "PTX Compatibility"; *NVCC*, "GPU Compilation".
    """
    found = Capability.parse(device)
    return any(_code_runs(Capability.parse(text), found) for text in compiled)


def _code_runs(code: Capability, device: Capability) -> bool:
    if code.ptx and device.cc >= code.cc:
        return True
    if code.target == "a":
        return device.cc == code.cc
    return device.major == code.major and device.minor >= code.minor


def _loader_decisions(cell: Cell, device: str, selection: Selection) -> dict[str, LoadDecision]:
    """The answer of the loader's own code to the manifest that the cell's wheel would have."""
    manifest = _part("_manifest")._manifest(
        build_manifest.build_manifest(
            cell_id=cell.id,
            target=target_of(cell),
            selection=selection,
            sources={library.name: _NO_SOURCE for library in selection.selected},
            toolchain={},
            version="0",
            not_publishable_because=(),
        )
    )
    environment = _part("_requires").Environment(
        python=_version(cell.python),
        cuda=_version(cell.cuda),
        capabilities=() if device == NO_GPU else (Capability.parse(device).cc,),
    )
    decisions: dict[str, LoadDecision] = _part("_decision").decide(manifest, environment)
    return decisions


_NO_SOURCE = build_manifest.SourceRecord("", "", "", "", pinned=False)
_BARE = "_paddlefleet_ops_parts"


def _part(name: str) -> Any:
    """A private module of the loader, without importing the package, which would import Paddle."""
    if _BARE not in sys.modules:
        package = ModuleType(_BARE)
        package.__path__ = [str(PACKAGE_ROOT / "src" / "paddlefleet_ops")]
        sys.modules[_BARE] = package
    return importlib.import_module(f"{_BARE}.{name}")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def gate_table(
    rows: Sequence[GateRow],
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """``(headers, rows)``: a row for each library and for the cells where it fares alike.

    The outcome on each device is shown as in :data:`MARKS`.
    """
    devices = tuple(dict.fromkeys(row.device for row in rows))
    marks = {(row.library, row.cell, row.device): MARKS[row.outcome] for row in rows}
    cells = tuple(dict.fromkeys(row.cell for row in rows))
    shown = []
    for library in dict.fromkeys(row.library for row in rows):
        alike: dict[tuple[str, ...], list[str]] = {}
        for cell in cells:
            alike.setdefault(tuple(marks[library, cell, one] for one in devices), []).append(cell)
        shown += [(library, _cells_text(group), *line) for line, group in alike.items()]
    return ("library", "cells", *devices), tuple(shown)


def _cells_text(cells: Sequence[str]) -> str:
    """``cu126: cp310 cp311; cu129-…``: the cells of a CUDA together."""
    by_cuda: dict[str, list[str]] = {}
    for cell in cells:
        cuda, _, rest = cell.partition("-")
        by_cuda.setdefault(cuda, []).append(rest)
    grouped: dict[str, list[str]] = {}
    for cuda, rests in by_cuda.items():
        grouped.setdefault(" ".join(rests), []).append(cuda)
    return "; ".join(f"{' '.join(cudas)}: {rests}" for rests, cudas in grouped.items())
