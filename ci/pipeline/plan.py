"""What a run will do, decided before anything runs: cells, Pythons, libraries, compilers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ci.errors import ConfigError, ToolchainError, raise_together
from ci.executors.choice import ContainerPlace, Place, check_name, choose_place
from ci.executors.model import ContainerOptions, Engine, ImageFacts
from ci.matrix.load import load
from ci.matrix.model import Cell, Decision, version_key
from ci.matrix.resolve import resolve, select
from ci.pipeline.inside import offer_of_image
from ci.registry import MATRIX, EcosystemLibrary, Selection, known_names, libraries_of
from ci.registry import select as select_libraries
from ci.sources.override import Override, parse_overrides
from ci.toolchain import ask_ahead, describe, find_python, require_python


@dataclass(frozen=True)
class WheelRequest:
    """What the command line asks for, checked for form but not yet against the matrix.

    ``remote`` is the address of a shared cache, ``cache_limit`` the bytes that the local one may take,
    ``jobserver`` the FIFO of a farm outside of this container, whose tokens count here too.
    """

    cuda: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    capability_set: tuple[str, ...] = ()
    capabilities: str = ""
    tier: str = ""
    library_set: str = "fleet"
    libs: tuple[str, ...] | None = None
    sources: tuple[str, ...] = ()
    declarations: tuple[Path, ...] = ()
    compiler: str = "auto"
    executor: str = "auto"
    container: ContainerOptions = field(default_factory=ContainerOptions)
    cache_dir: Path = Path()
    out_dir: Path = Path()
    jobs: int = 1
    with_import: bool = True
    rerun_import: bool = False
    remote: str = ""
    remote_writable: bool = True
    cache_limit: int | None = None
    compiler_cache: str = "auto"
    jobserver: Path | None = None
    verb: str = "wheel"
    matrix: Path = MATRIX


@dataclass(frozen=True)
class ChosenCell:
    """A cell, the interpreter that builds for it, and what there is to say about the choice."""

    cell: Cell
    interpreter: Path
    interpreter_version: str
    notes: tuple[str, ...]
    flags: str = ""

    @property
    def compiles_as(self) -> str:
        """The Python as extension modules depend on it: its version, and its own compiler flags' hash."""
        return f"CPython {self.interpreter_version}\nflags sha256:{self.flags}"


@dataclass(frozen=True)
class CellPlan:
    """A cell with everything that is decided before anything runs."""

    chosen: ChosenCell
    selection: Selection
    overrides: Mapping[str, Override]
    request: WheelRequest
    place: Place

    @property
    def cell(self) -> Cell:
        """The cell."""
        return self.chosen.cell

    @property
    def needs_compiler(self) -> bool:
        """True when a selected library is compiled with the CUDA compiler."""
        return any(library.needs_cuda_compiler for library in self.selection.selected)


def plan_cells(request: WheelRequest) -> tuple[CellPlan, ...]:
    """The cells that are asked for, with their libraries; nothing is fetched, built or written.

    Raises :class:`~ci.errors.ConfigError` for what the matrix or the registry does not know, and
    :class:`~ci.errors.ToolchainError` when this host has no Python for a cell.
    """
    decisions = resolve(load(request.matrix))
    libraries = _checked_request(request, decisions)
    cells = select(
        decisions,
        cuda=request.cuda,
        python=request.python,
        capability_set=request.capability_set,
        tier=request.tier,
        capabilities=request.capabilities,
    )
    overrides = parse_overrides(request.sources, [library.name for library in libraries])
    cudas = [cell.cuda for cell in cells]
    place = choose_place(request.executor, cudas, request.container, os.environ, _find_engine)
    plans = []
    for chosen in _choose_pythons(cells, place, every=bool(request.tier or request.python)):
        selection = select_libraries(libraries, chosen.cell, request.libs, overrides)
        if not selection.selected:
            raise _nothing_selected(chosen.cell, selection)
        plans.append(CellPlan(chosen, selection, overrides, request, place))
    _refuse_unused_overrides(plans, overrides)
    return tuple(plans)


def _find_engine(name: str, environ: Mapping[str, str]) -> Engine:
    from ci.executors.engine import find_engine  # the host executor needs none of it

    return find_engine(name, environ)


def _checked_request(
    request: WheelRequest, decisions: Sequence[Decision]
) -> tuple[EcosystemLibrary, ...]:
    """The libraries of the request; everything that is wrong with it is told at once."""
    libraries: list[EcosystemLibrary] = []

    def check_libraries() -> None:
        libraries.extend(libraries_of(request.library_set, request.declarations))

    def check_names() -> None:
        if libraries:
            known_names(libraries, request.libs or ())

    def check_sources() -> None:
        if libraries:
            parse_overrides(request.sources, [library.name for library in libraries])

    raise_together(
        lambda: select(decisions, cuda=request.cuda),
        lambda: select(decisions, python=request.python),
        lambda: select(decisions, capability_set=request.capability_set),
        lambda: select(decisions, tier=request.tier),
        lambda: check_name(request.executor),
        check_libraries,
        check_names,
        check_sources,
    )
    return tuple(libraries)


def _refuse_unused_overrides(plans: Sequence[CellPlan], overrides: Mapping[str, Override]) -> None:
    """A source that no cell would build from is a mistake, and would go unnoticed."""
    used = {library.name for plan in plans for library in plan.selection.selected}
    unused = [override for name, override in overrides.items() if name not in used]
    if unused:
        reasons = {
            item.library.name: "; ".join(item.reasons)
            for plan in plans
            for item in plan.selection.left_out
        }
        raise ConfigError(
            f"--source for {', '.join(item.library for item in unused)}, which no cell builds",
            cause="; ".join(f"{item.library}: {reasons[item.library]}" for item in unused),
            next_step="leave the --source out, or choose cells and --libs that hold the library",
        )


def _nothing_selected(cell: Cell, selection: Selection) -> ConfigError:
    return ConfigError(
        f"no library is left for {cell.id}",
        cause="every library that was asked for has a condition that this cell does not meet",
        next_step="take another cell (--python, --capability), or other --libs",
        details=[f"{item.library.name}: {'; '.join(item.reasons)}" for item in selection.left_out],
    )


def _choose_pythons(cells: Sequence[Cell], place: Place, *, every: bool) -> tuple[ChosenCell, ...]:
    """Each cell with its interpreter. Without ``every``, for each CUDA and set the cell with the
    newest Python that this host (or the image) has; newer ones that it lacks are noted, not dropped in
    silence.
    """
    if not isinstance(place, ContainerPlace):
        newest_first = sorted({cell.python for cell in cells}, key=version_key, reverse=True)
        ask_ahead(newest_first if every else newest_first[:1], os.environ)
    if every:
        return tuple(_with_interpreter(cell, place, ()) for cell in cells)
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.cuda, cell.capability_set), []).append(cell)
    return tuple(_newest_present(group, place) for group in groups.values())


def _newest_present(cells: Sequence[Cell], place: Place) -> ChosenCell:
    newest_first = sorted(cells, key=lambda cell: version_key(cell.python), reverse=True)
    has = "the image has" if isinstance(place, ContainerPlace) else "this host has"
    for index, cell in enumerate(newest_first):
        if _has_python(cell, place):
            missing = ", ".join(other.python for other in newest_first[:index])
            note = f"Python {cell.python} is the newest of this CUDA's cells that {has}"
            notes = (f"{note} (not found: {missing})",) if missing else ()
            return _with_interpreter(cell, place, notes)
    return _with_interpreter(newest_first[0], place, ())


def _has_python(cell: Cell, place: Place) -> bool:
    if isinstance(place, ContainerPlace):
        return cell.python in place.images[cell.cuda].pythons
    return find_python(cell.python).found is not None


def _with_interpreter(cell: Cell, place: Place, notes: tuple[str, ...]) -> ChosenCell:
    if isinstance(place, ContainerPlace):
        return _in_image(cell, place.images[cell.cuda], notes)
    path = require_python(cell.python)
    found = find_python(cell.python).found
    version = found.version if found is not None else cell.python
    return ChosenCell(cell, path, version, notes, found.flags if found is not None else "")


def _in_image(cell: Cell, image: ImageFacts, notes: tuple[str, ...]) -> ChosenCell:
    if cell.python not in image.pythons:
        raise ToolchainError(
            f"the image {image.ref} has no Python {cell.python}",
            cause=f"it has {', '.join(image.pythons) or 'none'}: its base held no other when it was built",
            next_step=f"nox -s images -- {cell.cuda_label}, after that Python is there",
        )
    interpreter = Path("/opt/python") / f"{cell.python_tag}-{cell.python_tag}" / "bin" / "python"
    return ChosenCell(cell, interpreter, "in the image", notes)


def compiler_offer(plan: CellPlan) -> Mapping[str, object]:
    """What the cell would be compiled with, here or in its image, or the error that it would end with."""
    if isinstance(plan.place, ContainerPlace):
        return offer_of_image(
            plan.place, plan.cell.cuda, plan.request.compiler, plan.request.cache_dir
        )
    document = describe([plan.cell.cuda], plan.request.compiler, plan.request.cache_dir, os.environ)
    cudas = document["cudas"]
    if not isinstance(cudas, list):
        raise TypeError("the toolchain's description has no list of CUDA versions")
    offer: Mapping[str, object] = cudas[0]
    return offer


def compiler_offers(plans: Sequence[CellPlan]) -> dict[str, Mapping[str, object]]:
    """:func:`compiler_offer` for each CUDA with something to compile; the Pythons of one CUDA share it."""
    one_each = {plan.cell.cuda: plan for plan in plans if plan.needs_compiler}
    return {cuda: compiler_offer(plan) for cuda, plan in one_each.items()}


def check_toolchains(plans: Sequence[CellPlan]) -> None:
    """Raise :class:`~ci.errors.ToolchainError` before anything runs when a cell has no compiler."""
    offers = compiler_offers(plans).values()
    refused = [
        error
        for offer in offers
        if not offer["usable"] and isinstance(error := offer.get("error"), Mapping)
    ]
    if not refused:
        return
    first = refused[0]
    others = [str(error["message"]) for error in refused[1:]]
    details = first["details"]
    raise ToolchainError(
        str(first["message"]),
        cause=str(first["cause"]),
        next_step=str(first["next_step"]),
        details=(*(details if isinstance(details, list) else ()), *others),
    )
