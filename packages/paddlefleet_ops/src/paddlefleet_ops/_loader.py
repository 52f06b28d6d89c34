"""Loading the libraries of the wheel, each inside its own compat guard.

``start`` decides by the manifest and the observed environment, loads what is to be loaded, and puts
an explanation in the place of everything else. A library that fails leaves the process as it was.

The libraries are found in the package's folder by the package's own finder alone, never by
``sys.path``: so a library that is blocked, or has failed, cannot be imported through another one.
Other threads that import the package, or a part of it, wait until it is there. While a library is
loaded, Paddle's torch proxy is on for its compat scope, and threads that import anything else meanwhile
see it come and go in ``sys.meta_path``, which is how the proxy works (python/paddle/compat/proxy.py):
import the package before starting such threads.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from . import _causes
from ._alias import AliasFinder, attach, detach
from ._blocker import ImportBlocker, blocked_message
from ._causes import Cause, RefusedError, diagnose
from ._decision import Block, Decision, Load, decide
from ._gate import Gate
from ._manifest import LeftOut, Library, Manifest, Source
from ._process_state import (
    ProcessState,
    default_environment,
    lies_below,
    without_forbidden_torch,
)
from ._requires import Environment

LOADED = "loaded"
BLOCKED = "blocked"
FAILED = "failed"

_LOG = logging.getLogger(__package__)


@dataclass(frozen=True)
class LibraryState:
    """What became of one declared library.

    ``state`` is ``"loaded"``; ``"blocked"``: a condition is not met, or the library is not in the
    wheel; or ``"failed"``: every condition is met, and loading it failed all the same. ``reasons``
    is empty exactly for a loaded library. ``source`` says which version it is, ``seconds`` is wall
    time.
    """

    name: str
    module: str
    availability: str
    state: str
    reasons: tuple[str, ...] = ()
    hint: str = ""
    kind: str = ""
    in_wheel: bool = True
    source: Source = field(default_factory=Source)
    seconds: float = 0.0

    @property
    def availability_function(self) -> str:
        """The name of the function of the package that says whether the library is loaded."""
        return f"is_{self.availability}_available"


class LibraryLoadError(ImportError):
    """Libraries that should load failed. ``failures`` holds the state of each, with its cause."""

    def __init__(self, package: str, failures: Sequence[LibraryState], tried: int) -> None:
        lines = [f"{len(failures)} of {tried} libraries that should load here failed:"]
        for state in failures:
            lines += [
                f"  {state.name} ({package}.{state.module})",
                *(f"    - {reason}" for reason in state.reasons),
            ]
        lines.append(
            f"To use the other libraries meanwhile: export PADDLEFLEET_OPS_ON_ERROR=block. "
            f"All libraries with their gates: python -m {package}"
        )
        super().__init__("\n".join(lines), name=package)
        self.failures = tuple(failures)


@dataclass(frozen=True)
class Package:
    """Where the libraries are attached.

    ``namespace`` is the package's global names, ``folder`` holds its files, ``use_compat_guard`` is
    Paddle's context manager, called with ``scope`` and ``silent``.
    """

    name: str
    folder: Path
    namespace: dict[str, Any]
    use_compat_guard: Callable[..., AbstractContextManager[Any]]

    def guard_of(self, library: Library) -> Callable[[], AbstractContextManager[Any]]:
        """A function that opens the library's own guard."""
        return lambda: self.use_compat_guard(scope=set(library.compat_scope), silent=True)


class Registry:
    """The states of the libraries and the messages of those that are not loaded.

    Both are filled while libraries are loaded, so that one library's code sees what is already
    known.
    """

    def __init__(self, package: str) -> None:
        self.package = package
        self.states: dict[str, LibraryState] = {}
        self.blocked_import_messages: dict[str, str] = {}

    def add(self, state: LibraryState, modules: Iterable[str]) -> None:
        """Record what became of a library that brings the top-level ``modules``."""
        self.states[state.name] = state
        if state.state == LOADED:
            return
        for module in modules:
            name = f"{self.package}.{module}"
            self.blocked_import_messages[name] = blocked_message(
                name,
                f"{self.package}.{state.availability_function}",
                state.reasons,
                state.hint,
                failed=state.state == FAILED,
            )

    def is_loaded(self, name: str) -> bool:
        """True when the library ``name`` is loaded; false too as long as that is not known."""
        state = self.states.get(name)
        return state is not None and state.state == LOADED


def start(
    package: Package,
    manifest: Manifest,
    environment: Environment,
    registry: Registry,
    *,
    raise_on_failure: bool,
) -> None:
    """Load or block every library of the manifest, in its order, and record it in ``registry``.

    Raises :class:`LibraryLoadError` at the end when a library failed and ``raise_on_failure`` is set.
    Then, and after an interrupt, aliases and finders are taken back. Libraries that did load stay
    imported by their own names, as Python keeps what was imported on the way to an import that
    failed.
    """
    decisions = decide(manifest, environment)
    chosen = [library for library in manifest.libraries if decisions[library.name] == Load()]
    aliases = AliasFinder(
        package.name,
        str(package.folder),
        {module: package.guard_of(library) for library in chosen for module in library.modules},
    )
    _install(aliases, ImportBlocker(registry.blocked_import_messages))
    try:
        _block_left_out(manifest.left_out, decisions, registry)
        first_error = _load_or_block(manifest.libraries, decisions, package, aliases, registry)
        if first_error is not None and raise_on_failure:
            failures = [state for state in registry.states.values() if state.state == FAILED]
            raise LibraryLoadError(package.name, failures, len(chosen)) from first_error
    except BaseException:
        _uninstall()
        detach(package.name, tuple(aliases.guards))
        raise


def _load_or_block(
    libraries: Sequence[Library],
    decisions: Mapping[str, Decision],
    package: Package,
    aliases: AliasFinder,
    registry: Registry,
) -> BaseException | None:
    """The error of the first library that failed, if one did."""
    first_error: BaseException | None = None
    for library in libraries:
        decision = decisions[library.name]
        if isinstance(decision, Block):
            registry.add(_state(library, BLOCKED, decision.reasons), library.modules)
            continue
        error = _load_or_record(library, package, aliases, registry)
        first_error = first_error or error
    return first_error


def _install(*finders: AliasFinder | ImportBlocker) -> None:
    """Put the finders first, after the gate that other threads wait at."""
    _uninstall()
    gates = sum(isinstance(finder, Gate) for finder in sys.meta_path[:1])
    sys.meta_path[gates:gates] = finders


def _uninstall() -> None:
    """Remove the package's finders, also those that an earlier import of the package left."""
    modules = (AliasFinder.__module__, ImportBlocker.__module__)
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if type(finder).__module__ not in modules
    ]


def _block_left_out(
    left_out: Sequence[LeftOut], decisions: Mapping[str, Decision], registry: Registry
) -> None:
    for entry in left_out:
        decision = decisions[entry.name]
        reasons = decision.reasons if isinstance(decision, Block) else ()
        state = LibraryState(
            entry.name,
            entry.module,
            entry.availability,
            BLOCKED,
            reasons,
            entry.hint,
            in_wheel=False,
        )
        registry.add(state, (entry.module,))


def _state(
    library: Library, state: str, reasons: tuple[str, ...] = (), seconds: float = 0.0
) -> LibraryState:
    return LibraryState(
        name=library.name,
        module=library.module,
        availability=library.availability,
        state=state,
        reasons=reasons,
        hint=library.hint,
        kind=library.kind,
        source=library.source,
        seconds=seconds,
    )


def _load_or_record(
    library: Library, package: Package, aliases: AliasFinder, registry: Registry
) -> BaseException | None:
    """Load one library and record how that went. Returns the error of one that failed."""
    started = time.perf_counter()
    error: BaseException | None = None
    cause: Cause | None = None
    try:
        _refuse_after_failed_dependency(library, registry)
        _safe_load_ecosystem_lib(library, package)
    except (Exception, SystemExit) as raised:  # any of them is its failure
        error, cause = raised, diagnose(raised, library, package.folder)
    seconds = time.perf_counter() - started
    if cause is None:
        registry.add(_state(library, LOADED, seconds=seconds), library.modules)
        _LOG.debug("%s.%s loaded in %.3f s", package.name, library.module, seconds)
        return None
    for module in library.modules:
        aliases.guards.pop(module, None)
    registry.add(_state(library, FAILED, (str(cause),), seconds), library.modules)
    _LOG.warning("%s.%s failed to load: %s", package.name, library.module, cause)
    return error


def _refuse(kind: str, text: str, mend: str) -> NoReturn:
    raise RefusedError(Cause(kind, text, mend))


def _refuse_after_failed_dependency(library: Library, registry: Registry) -> None:
    for name in library.depends_on:
        state = registry.states.get(name)
        if state is not None and state.state == FAILED:
            _refuse(
                _causes.DEPENDENCY_FAILED,
                f"it needs the library {name}, which failed to load",
                f"mend {name} first",
            )


def _safe_load_ecosystem_lib(library: Library, package: Package) -> None:
    """Import a library by its top-level name inside its guard and attach it to the package.

    Raises whatever its import raised, or :class:`~._causes.RefusedError` for a fault that importing
    does not show, after the process was put back into the state before. Interrupts are put back
    too.
    """
    before = ProcessState.capture()
    names_before = dict(package.namespace)
    try:
        _refuse_taken_names(library, package.folder)
        _refuse_missing_files(library, package.folder)
        for name in library.preload:
            importlib.import_module(name)
        environment = default_environment(library.load_env)
        with environment, _unresolved_imports() as unresolved, without_forbidden_torch():
            _import_guarded(library, package, unresolved)
        _refuse_leaked_proxy(before)
        package.namespace.update(attach(package.name, library.modules))
    except BaseException:
        detach(package.name, library.modules)
        before.roll_back(package.folder, library.modules)
        for module in library.modules:
            package.namespace.pop(module, None)
            if module in names_before:
                package.namespace[module] = names_before[module]
        raise


def _refuse_taken_names(library: Library, folder: Path) -> None:
    """Another module of that name would be mixed with the library's by its own absolute imports."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in library.modules or lies_below(module, folder):
            continue
        if module is None:
            text = f"sys.modules[{name!r}] is None, which forbids importing it"
            mend = "remove that entry before importing the package"
        else:
            place = getattr(module, "__file__", None) or "an unknown place"
            text = f"another module {name} was imported before, from {place}"
            mend = "import paddlefleet_ops first, or uninstall the other one"
        _refuse(_causes.NAME_TAKEN, text, mend)


def _refuse_missing_files(library: Library, folder: Path) -> None:
    for module in library.modules:
        if _spec_in(folder, module) is None:
            _refuse(
                _causes.FILES_MISSING,
                f"the wheel declares the module {module}, and there is none in {folder}",
                f"check the artifacts in the declaration of {library.name} and build again; "
                "shared objects cannot be loaded from a zip archive",
            )


def _spec_in(folder: Path, module: str) -> ModuleSpec | None:
    return PathFinder.find_spec(module, [str(folder)])


def _import_guarded(library: Library, package: Package, unresolved: Sequence[str]) -> None:
    with package.guard_of(library)():
        module = importlib.import_module(library.module)
        if not lies_below(module, package.folder):
            place = getattr(module, "__file__", None)
            _refuse(
                _causes.NAME_TAKEN,
                f"importing {library.module} gave the module of {place}",
                "uninstall the other distribution, or disable the import hook that finds it first",
            )
        _check_public_names(library, module, unresolved)


def _check_public_names(library: Library, module: ModuleType, unresolved: Sequence[str]) -> None:
    """That the import went well proves little: a library may swallow the errors of its parts."""
    errors = {name: _resolution_error(module, name) for name in library.public_names}
    missing = {name: error for name, error in errors.items() if error is not None}
    if not missing:
        return
    # An attribute that is not there says nothing about the cause; an import that failed does.
    telling = (error for error in missing.values() if not isinstance(error, AttributeError))
    underlying = next(telling, None) or _swallowed_error(module) or next(iter(missing.values()))
    raise RefusedError(
        _public_names_cause(library, missing, underlying, unresolved)
    ) from underlying


def _public_names_cause(
    library: Library,
    missing: Iterable[str],
    underlying: BaseException,
    unresolved: Sequence[str],
) -> Cause:
    beneath = diagnose(underlying, library, Path(__file__).parent)
    text = f"{', '.join(missing)}; underneath: {beneath.kind}: {beneath.text}"
    mend = f"correct public_names in the declaration of {library.name}, or its sources"
    if beneath.kind != _causes.PYTHON_ERROR:
        mend = beneath.mend
    elif isinstance(underlying, AttributeError) and unresolved:
        text += f"; its import looked in vain for: {', '.join(unresolved)}"
    return Cause(_causes.PUBLIC_NAMES, text, mend, beneath.where)


def _resolution_error(module: ModuleType, public_name: str) -> Exception | None:
    try:
        resolve_public_name(module, public_name)
    except Exception as error:  # whatever it is, the name is not there
        return error
    return None


def resolve_public_name(module: ModuleType, public_name: str) -> Any:
    """The object of ``"name"`` in ``module``, or of ``"package.module:name"``.

    Raises :class:`AttributeError`, or what importing that submodule raises.
    """
    submodule, colon, attribute = public_name.rpartition(":")
    value: Any = importlib.import_module(submodule) if colon else module
    for part in attribute.split("."):
        value = getattr(value, part)
    return value


def _swallowed_error(module: ModuleType) -> BaseException | None:
    """The error of the first direct submodule that cannot be imported, if there is one.

    Asked only after the library failed: an ``__init__`` that swallows ImportError hides its cause.
    """
    for info in pkgutil.iter_modules(getattr(module, "__path__", [])):
        name = f"{module.__name__}.{info.name}"
        if info.name.startswith("_") or name in sys.modules:
            continue
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # it is what was looked for
            return error
    return None


def _refuse_leaked_proxy(before: ProcessState) -> None:
    leaked = before.leaked_proxies()
    if leaked:
        _refuse(
            _causes.PROXY_LEFT_ON,
            f"after its import {', '.join(leaked)} is still in sys.meta_path, so that any "
            "import of torch would get Paddle",
            "the library calls paddle.enable_compat: replace that by "
            "`with paddle.use_compat_guard(...)`, or leave it to this loader",
        )


class _UnresolvedImports:
    """A meta-path finder that finds nothing and remembers what it was asked for."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def find_spec(self, fullname: str, *_: object) -> None:
        """Record a name that no finder before this one knew."""
        if fullname not in self.names:
            self.names.append(fullname)


@contextmanager
def _unresolved_imports() -> Iterator[Sequence[str]]:
    """The names, in order, that are imported meanwhile and found by no finder."""
    finder = _UnresolvedImports()
    sys.meta_path.append(finder)
    try:
        yield finder.names
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


def availability_functions(manifest: Manifest, registry: Registry) -> dict[str, Callable[[], bool]]:
    """``is_<availability>_available`` for every declared library, by function name."""
    entries: tuple[Library | LeftOut, ...] = (*manifest.libraries, *manifest.left_out)
    functions = (_availability_function(entry, registry) for entry in entries)
    return {function.__name__: function for function in functions}


def hint_constants(manifest: Manifest) -> dict[str, str]:
    """``<AVAILABILITY>_HINT`` for every declared library: what a user does without it.

    Source of the names: PaddleFleet's loader, whose ``CUDNN_FRONTEND_HINT`` its layers above import.
    """
    entries: tuple[Library | LeftOut, ...] = (*manifest.libraries, *manifest.left_out)
    return {f"{entry.availability.upper()}_HINT": entry.hint for entry in entries}


def availability_flags(manifest: Manifest, registry: Registry) -> dict[str, bool]:
    """``_<AVAILABILITY>_AVAILABLE`` for every declared library, as it is when the package is loaded."""
    entries: tuple[Library | LeftOut, ...] = (*manifest.libraries, *manifest.left_out)
    return {
        f"_{entry.availability.upper()}_AVAILABLE": registry.is_loaded(entry.name)
        for entry in entries
    }


def _availability_function(entry: Library | LeftOut, registry: Registry) -> Callable[[], bool]:
    def is_available() -> bool:
        return registry.is_loaded(entry.name)

    is_available.__name__ = is_available.__qualname__ = f"is_{entry.availability}_available"
    is_available.__module__ = registry.package
    is_available.__doc__ = (
        f"True when {registry.package}.{entry.module} is loaded; the reason why not is in "
        "blocked_import_messages."
    )
    return is_available
