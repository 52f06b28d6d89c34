"""The only file that knows where the registry is, and the types that it shares with the farm.

``packages/paddlefleet_ops`` is not an installed package of the farm: its build files are loaded by
path, because importing ``paddlefleet_ops`` would import Paddle. Everything else in ``ci`` takes these
names from here.
"""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ci.errors import ConfigError
from ci.matrix.model import Cell

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE_ROOT = REPOSITORY / "packages" / "paddlefleet_ops"
MATRIX = REPOSITORY / "matrix.toml"


def _load(name: str) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, PACKAGE_ROOT / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {name}.py of {PACKAGE_ROOT}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    import build_manifest
    import build_steps
    import build_utils
    from build_utils import EcosystemLibrary, LeftOut, Selection, SubmoduleProblem, Target
else:
    build_utils = _load("build_utils")
    build_steps = _load("build_steps")
    build_manifest = _load("build_manifest")
    EcosystemLibrary = build_utils.EcosystemLibrary
    LeftOut = build_utils.LeftOut
    Selection = build_utils.Selection
    SubmoduleProblem = build_utils.SubmoduleProblem
    Target = build_utils.Target

__all__ = [
    "MATRIX",
    "PACKAGE_ROOT",
    "REPOSITORY",
    "EcosystemLibrary",
    "LeftOut",
    "Selection",
    "SubmoduleProblem",
    "Target",
    "build_manifest",
    "build_steps",
    "build_utils",
    "declared",
    "known_names",
    "libraries_of",
    "select",
    "target_of",
]


def libraries_of(
    library_set: str, declarations: Sequence[Path] = ()
) -> tuple[EcosystemLibrary, ...]:
    """The libraries of a set, with those of further declaration files, checked together.

    A declaration file is a Python file with a ``LIBRARIES`` tuple, for a library that is being tried
    before it is added to the registry. Raises :class:`~ci.errors.ConfigError` with every problem.
    """
    try:
        libraries = build_utils.get_libs(library_set)
    except build_utils.RegistryError as error:
        raise ConfigError(
            error.problems[0], next_step="python -m ci libraries --set fleet"
        ) from error
    libraries += tuple(library for path in declarations for library in declared(path))
    _checked(libraries)
    return libraries


def declared(path: Path) -> tuple[EcosystemLibrary, ...]:
    """The libraries that a declaration file adds; their source folders are relative to that file.

    Raises :class:`~ci.errors.ConfigError` when the file cannot be read as one.
    """
    if not path.is_file():
        raise ConfigError(f"no declaration file {path}", next_step="give --declare a Python file")
    if path.suffix != ".py":
        raise ConfigError(f"{path} is not a Python file", next_step="give --declare a .py file")
    module = ModuleType(f"_declared_{path.stem}")
    module.__file__ = str(path)
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))  # noqa: S102 - what it is for
        found = tuple(module.LIBRARIES)
        strangers = [item for item in found if not isinstance(item, EcosystemLibrary)]
        if strangers:
            raise TypeError(f"LIBRARIES holds {strangers[0]!r}, which is no EcosystemLibrary")
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{path} cannot be read as declarations: {type(error).__name__}: {error}",
            cause="a declaration file defines LIBRARIES, a tuple of EcosystemLibrary",
            next_step=f"python {path}",
        ) from error
    return tuple(_anchored(library, path.resolve().parent) for library in found)


def _anchored(library: EcosystemLibrary, folder: Path) -> EcosystemLibrary:
    if library.is_submodule:
        return library
    return replace(library, source_rel_path=str(folder / library.source_rel_path))


def _checked(libraries: Sequence[EcosystemLibrary]) -> None:
    try:
        build_utils.check_registry(libraries)
    except build_utils.RegistryError as error:
        raise ConfigError(
            "the declarations of the libraries contradict each other",
            details=error.problems,
            next_step="mend packages/paddlefleet_ops/build_utils.py (or the --declare file)",
        ) from error


def target_of(cell: Cell) -> Target:
    """What ``cell`` asks of a library build."""
    return Target(cell.cuda, cell.python, tuple(str(item) for item in cell.capabilities))


def select(
    libraries: Sequence[EcosystemLibrary],
    cell: Cell,
    only: Iterable[str] | None,
    overridden: Iterable[str] = (),
) -> Selection:
    """The libraries of ``cell``, and those left out with their reasons.

    A library that is not pinned yet is left out unless ``only`` names libraries or its source is
    ``overridden``. Raises :class:`~ci.errors.ConfigError` for a name that is not declared, with the
    nearest ones.
    """
    wanted = None if only is None else tuple(only)
    known_names(libraries, wanted or ())
    unpinned = build_utils.without_sources(libraries, overridden)
    return build_utils.select_libs(libraries, target_of(cell), wanted, unpinned)


def known_names(libraries: Sequence[EcosystemLibrary], names: Sequence[str]) -> None:
    """Raise :class:`~ci.errors.ConfigError` for names that are not declared, with the nearest ones."""
    known = [library.name for library in libraries]
    problems = []
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            problems.append(f"unknown library {name!r}{hint}")
    if problems:
        raise ConfigError(
            problems[0] if len(problems) == 1 else f"{len(problems)} unknown libraries",
            cause=f"declared in this set: {', '.join(known) or 'none'}",
            next_step="python -m ci libraries",
            details=problems if len(problems) > 1 else (),
        )
