"""What the registry rules judge, gathered once; the rules themselves ask nothing of the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ci.environments.lock import lock_for
from ci.errors import ConfigError
from ci.integration.analysis import Analysis, top
from ci.integration.declaration_places import DeclarationPlace, declaration_places
from ci.integration.registry_rules.distributions import (
    TORCH_BY_COMPAT,
    distributions_with,
    modules_of,
)
from ci.integration.registry_rules.suite_files import SuiteFile, read_suite_files
from ci.integration.requirements import Metadata, RealRequirement, read_metadata
from ci.integration.source_tree import locate, read_tree
from ci.integration.test_table import TestTable, read_table
from ci.matrix.load import load
from ci.matrix.model import Accepted, Cell
from ci.matrix.resolve import resolve
from ci.registry import (
    PACKAGE_ROOT,
    REPOSITORY,
    EcosystemLibrary,
    SubmoduleProblem,
    build_utils,
    target_of,
)

Kind = Literal["declared", "real"]
DECLARATIONS = "packages/paddlefleet_ops/build_utils.py"
WHEEL = "the wheel"


@dataclass(frozen=True)
class Refusal:
    """What uv said when it was asked for all ``requirements`` of one Python together: the declared ones, or
    those of the libraries' own metadata (``real``).
    """

    kind: Kind
    python: str
    requirements: tuple[str, ...]
    message: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class RegistryFacts:
    """The declarations of one set, and what was observed about them.

    ``cells`` are the accepted cells with the default capabilities, ``places`` where each library is
    declared, ``metadata`` what the sources of those that were found require, ``imported`` the
    top-level modules that importing a library surely imports (known where its metadata has optional
    groups), ``wheel`` what the wheel itself requires, ``suites`` the files of the single-card and
    multi-card tests, ``copies`` the libraries whose sources were read from another folder, ``refusals``
    the package index's answers, empty where it was not asked.
    """

    libraries: tuple[EcosystemLibrary, ...]
    cells: tuple[Cell, ...]
    places: Mapping[str, DeclarationPlace] = field(default_factory=dict)
    submodules: tuple[SubmoduleProblem, ...] = ()
    metadata: Mapping[str, Metadata] = field(default_factory=dict)
    imported: Mapping[str, frozenset[str]] = field(default_factory=dict)
    wheel: Metadata = field(default_factory=Metadata)
    suites: tuple[SuiteFile, ...] = ()
    table: TestTable = field(default_factory=TestTable)
    refusals: tuple[Refusal, ...] = ()
    copies: frozenset[str] = frozenset()

    def place_of(self, library: EcosystemLibrary) -> DeclarationPlace:
        """Where ``library`` is declared; the registry's file where that is not known."""
        return self.places.get(library.name, DeclarationPlace(DECLARATIONS))

    def cells_of(self, library: EcosystemLibrary) -> Iterator[Cell]:
        """The cells whose wheel can hold ``library``; a missing pin does not count."""
        return (cell for cell in self.cells if _can_hold(cell, library))

    def of_cell(self, cell: Cell) -> tuple[EcosystemLibrary, ...]:
        """The libraries that the wheel of ``cell`` can hold."""
        return tuple(item for item in self.libraries if _can_hold(cell, item))

    def distributions_of(self, library: EcosystemLibrary) -> frozenset[str]:
        """The canonical names of the distributions that ``library`` is: its own, and known ones."""
        own = self.metadata.get(library.name, Metadata()).distribution
        names = {canonicalize_name(name) for name in (library.name, own) if name}
        return frozenset({*names, *distributions_with(library.module)})

    def source_place(self, library: EcosystemLibrary, name: str) -> str:
        """A file of the library's sources: its place in the repository, or in the copy that was read."""
        if library.name in self.copies:
            return name
        if library.source_dir.is_relative_to(REPOSITORY):
            return (library.source_dir / name).relative_to(REPOSITORY).as_posix()
        return f"{library.name}/{name}"

    def by_name(self, name: str) -> EcosystemLibrary | None:
        """The library of that name, or ``None``."""
        return next((item for item in self.libraries if item.name == name), None)

    def with_dependencies(self, library: EcosystemLibrary) -> tuple[EcosystemLibrary, ...]:
        """``library`` and, transitively, the libraries that it depends on."""
        found = {library.name: library}
        pending = list(library.depends_on)
        while pending:
            other = self.by_name(pending.pop())
            if other is not None and other.name not in found:
                found[other.name] = other
                pending += other.depends_on
        return tuple(found.values())


def _can_hold(cell: Cell, library: EcosystemLibrary) -> bool:
    return not library.requires.unmet(target_of(cell).environment())


def gather(
    libraries: Sequence[EcosystemLibrary],
    sources: Mapping[str, Path] | None = None,
    root: Path = REPOSITORY,
    *,
    declarations: Sequence[Path] = (),
    analyses: Mapping[str, Analysis] | None = None,
    online: bool = False,
    cache_dir: Path | None = None,
) -> RegistryFacts:
    """Look everything up that the rules need.

    ``sources`` are folders to read instead of a library's own; those libraries need no checked-out
    submodule. ``declarations`` are further files with declarations, ``analyses`` what was read of libraries
    already, so that it is not read again. ``online`` asks the package index,
    through uv, whether the requirements of each Python can be met together, and keeps locks in
    ``cache_dir``. Raises :class:`~ci.errors.ConfigError` for a matrix or a table of tests that cannot be
    read, and :class:`~ci.errors.InfrastructureError` when the index does not answer.
    """
    given = dict(sources or {})
    folders = {item.name: given.get(item.name, item.source_dir) for item in libraries}
    metadata = {
        name: read_metadata(folder) for name, folder in folders.items() if _has_files(folder)
    }
    facts = RegistryFacts(
        copies=frozenset(
            item.name
            for item in libraries
            if given.get(item.name, item.source_dir) != item.source_dir
        ),
        libraries=tuple(libraries),
        cells=_cells(root),
        places=_places(root, declarations),
        submodules=build_utils.submodule_problems(
            [item for item in libraries if item.name not in given]
        ),
        metadata=metadata,
        imported={
            item.name: _imported((analyses or {}).get(item.name) or _read(item, folders[item.name]))
            for item in libraries
            if any(one.extra for one in metadata.get(item.name, Metadata()).run)
        },
        wheel=read_metadata(PACKAGE_ROOT),
        suites=read_suite_files(root),
        table=read_table(root / "tests" / "test_configs.yaml"),
    )
    if online and cache_dir is not None:
        return _with_refusals(facts, cache_dir)
    return facts


def _has_files(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _cells(root: Path) -> tuple[Cell, ...]:
    decisions = resolve(load(root / "matrix.toml"))
    return tuple(
        item.cell for item in decisions if isinstance(item, Accepted) and not item.capability_set
    )


def _places(root: Path, declarations: Sequence[Path]) -> dict[str, DeclarationPlace]:
    found: dict[str, DeclarationPlace] = {}
    for path in (root / DECLARATIONS, *declarations):
        if path.is_file():
            inside = path.resolve().is_relative_to(root.resolve())
            place = path.resolve().relative_to(root.resolve()).as_posix() if inside else path.name
            found = {**declaration_places(path.read_text("utf-8"), place), **found}
    return found


def _read(library: EcosystemLibrary, folder: Path) -> Analysis:
    return Analysis(read_tree(library.name, folder, locate(folder, library.modules)))


def _imported(analysis: Analysis) -> frozenset[str]:
    """The top-level modules that importing a library imports whatever holds."""
    return frozenset(
        top(item.module)
        for name in analysis.definite
        for item in analysis.tree.modules[name].imports
        if item.when == "init"
    )


# --- requirements per cell ------------------------------------------------------------------------


def marker_environment(python: str) -> dict[str, str]:
    """The environment markers (PEP 508) of a cell's Python on the wheel's platform."""
    return {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "platform_machine": "x86_64",
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
        "extra": "",
    }


def applies(requirement: Requirement, python: str, extra: str = "") -> bool:
    """True when the requirement's marker holds for ``python``, with ``extra`` asked for."""
    environment = {**marker_environment(python), "extra": extra}
    return requirement.marker is None or requirement.marker.evaluate(environment)


def declared(library: EcosystemLibrary, cell: Cell, what: str = "run_requires") -> tuple[str, ...]:
    """The declared requirements (``run_requires`` or ``build_requires``) that hold in ``cell``, as texts."""
    texts = build_utils.requirements(getattr(library, what), target_of(cell))
    return tuple(text for text in texts if applies(Requirement(text), cell.python))


def real_run(
    facts: RegistryFacts, library: EcosystemLibrary, python: str
) -> Iterator[RealRequirement]:
    """What the sources of ``library`` require at run time for ``python``, torch aside.

    Of an optional group only what importing the library surely imports counts, and only where nothing
    outside the groups requires that distribution: a group then chooses a variant of it.
    """
    imported = facts.imported.get(library.name, frozenset())
    real = facts.metadata.get(library.name, Metadata()).run
    always = {item.name for item in real if not item.extra}
    for item in real:
        if item.name in TORCH_BY_COMPAT or not applies(item.requirement, python, item.extra):
            continue
        optional = item.name not in always and imported & set(modules_of(item.name))
        if not item.extra or optional:
            yield item


# --- the package index ----------------------------------------------------------------------------


_All = Callable[[RegistryFacts, Cell], tuple[str, ...]]


def _with_refusals(facts: RegistryFacts, cache_dir: Path) -> RegistryFacts:
    asked: dict[tuple[Kind, str, tuple[str, ...]], Refusal | None] = {}
    kinds: tuple[tuple[Kind, _All], ...] = (("declared", _all_declared), ("real", _all_real))
    for cell in facts.cells:
        for kind, all_of in kinds:
            requirements = all_of(facts, cell)
            key = (kind, cell.python, requirements)
            if requirements and key not in asked:
                asked[key] = _refusal(kind, cell.python, requirements, cache_dir)
    return replace(facts, refusals=tuple(item for item in asked.values() if item))


def _all_declared(facts: RegistryFacts, cell: Cell) -> tuple[str, ...]:
    found = {text for library in facts.of_cell(cell) for text in declared(library, cell)}
    return _public(cell, found)


def _all_real(facts: RegistryFacts, cell: Cell) -> tuple[str, ...]:
    own = {name for library in facts.libraries for name in facts.distributions_of(library)}
    found = {
        item.text
        for library in facts.of_cell(cell)
        for item in real_run(facts, library, cell.python)
        if item.name not in own and not item.requirement.url
    }
    return _public(cell, found)


def _public(cell: Cell, found: set[str]) -> tuple[str, ...]:
    """Without what Paddle's own index alone has: GPU builds, and what Paddle repackages.

    Empty where there is nothing to ask for beside Paddle.
    """
    names = (*sorted(found), cell.paddle.cpu) if found else ()
    return tuple(
        text
        for text in names
        if not canonicalize_name(Requirement(text).name).startswith(("paddle-", "paddlepaddle-gpu"))
    )


def _refusal(
    kind: Kind, python: str, requirements: tuple[str, ...], cache_dir: Path
) -> Refusal | None:
    try:
        lock_for(requirements, python, "import", cache_dir)
    except ConfigError as error:
        return Refusal(kind, python, requirements, error.message, tuple(error.details))
    return None
