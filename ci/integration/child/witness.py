"""The witness: imports a library under Paddle's compat guard, calls its functions after it, and watches.

A program of its own, for an environment that holds Paddle and the library's requirements and nothing of
the farm::

    python witness.py REQUEST.json RESULT.json

The library is imported as the loader of ``paddlefleet_ops`` does it (``_loader.py``): its folder first
on ``sys.path``, ``preload`` before the guard, ``load_env`` set unless the user set it, and the public
names resolved before the guard closes. Then the guard is closed, every public name is asked for again,
and the exercises are called. The result is written anew before every stage, so it says how far a process
came that was ended by a signal.

What is seen, and how. ``builtins.__import__`` and ``importlib.import_module`` are wrapped, so an import
is seen also where ``sys.modules`` answers it. A finder at the head of ``sys.meta_path`` sees the imports
that go by another way, with the frame that asked. An import while Paddle's proxy is in ``sys.meta_path``
once more than when the stage began was made inside a guard that the call itself had opened.
Source of the proxy's names: python/paddle/compat/proxy.py.
"""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import importlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any

HERE = __file__
STANDARD_LIBRARY = str(Path(os.__file__).parent) + os.sep
INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
JOIN_SECONDS = 10.0
PROXY = "paddle.compat.proxy"


@dataclass(frozen=True)
class Caller:
    """Who asked for an import: file, line (from 1), function and module; ``owner`` is ``library``,
    ``scope`` (a package of the compat scope), ``torch``, ``witness`` or ``other``. ``dynamic`` is True
    when the import stands in code that was made at run time, and ``line`` is that of the call.
    """

    file: str = ""
    line: int = 0
    function: str = ""
    module: str = ""
    owner: str = "other"
    dynamic: bool = False


@dataclass(frozen=True)
class ImportedModule:
    """A module of the library, or of a package of its scope, imported under the guard; ``importer`` is
    the code whose import got it executed, of owner ``witness`` for the package itself.
    """

    name: str
    file: str
    importer: Caller = Caller()


@dataclass
class LateImport:
    """An import after the package was imported.

    ``outcome``: ``failed``, ``real`` (the real torch), ``proxy`` (Paddle as torch), ``module``, or
    ``asked`` where only the question was seen. ``within`` is the late module whose initialisation made
    it, empty for one that code made when called. ``own_context``: inside a guard of the call itself.
    """

    name: str
    stage: str
    caller: Caller
    outcome: str = "asked"
    detail: str = ""
    within: str = ""
    own_context: bool = False


@dataclass(frozen=True)
class Failure:
    """What was raised: type, message, the innermost line of the library, and the innermost of all."""

    kind: str
    message: str
    file: str = ""
    line: int = 0
    module: str = ""
    innermost_file: str = ""
    innermost_line: int = 0
    innermost_module: str = ""
    text: str = ""

    @property
    def shown(self) -> str:
        """``Type: message``, the first line of it."""
        first = self.message.strip().splitlines()
        return f"{self.kind}: {first[0]}" if first else self.kind


@dataclass
class Record:
    """The result, as far as it is known."""

    stage: str = "start"
    finished: bool = False
    environment_problem: str = ""
    imported: list[ImportedModule] = field(default_factory=list)
    import_failure: Failure | None = None
    missing_names: dict[str, Failure] = field(default_factory=dict)
    callables: list[str] = field(default_factory=list)
    late_torch: list[LateImport] = field(default_factory=list)
    late_modules: list[LateImport] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    exercise_failures: dict[str, Failure] = field(default_factory=dict)
    exercised: list[str] = field(default_factory=list)


class Place:
    """Tells whose code a frame, or a module, is."""

    def __init__(
        self, folders: Sequence[str], modules: Sequence[str], scope: Sequence[str]
    ) -> None:
        self.folders = tuple(str(Path(folder)) + os.sep for folder in folders)
        self.modules = frozenset(modules)
        self.watched = frozenset(modules) | {name.partition(".")[0] for name in scope}

    def owner(self, module: str, file: str) -> str:
        """Whose the code is, by the name of its module, and by its file where it has none."""
        top = module.partition(".")[0]
        if top in self.modules or (not top and file.startswith(self.folders)):
            return "library"
        if top in self.watched:
            return "scope"
        return "torch" if top == "torch" else "other"

    def watches(self, name: str) -> bool:
        """True for a module of the library or of a package of its scope."""
        return name.partition(".")[0] in self.watched

    def caller(self, frame: FrameType | None) -> Caller:
        """The innermost frame that is neither the import system's, the standard library's nor made of
        text at run time.
        """
        dynamic = False
        while frame is not None:
            file = frame.f_code.co_filename
            module = str(frame.f_globals.get("__name__") or "")
            if file.startswith("<") and not file.startswith("<frozen"):
                dynamic = True
            elif file == HERE:
                if frame.f_code.co_name in WATCHERS:
                    frame = frame.f_back
                    continue
                return Caller(
                    file, frame.f_lineno, frame.f_code.co_name, module, "witness", dynamic
                )
            elif not is_machinery(file) and module != PROXY:
                owner = self.owner(module, file)
                return Caller(file, frame.f_lineno, frame.f_code.co_name, module, owner, dynamic)
            frame = frame.f_back
        return Caller(dynamic=dynamic)

    def initialised(self, frame: FrameType | None) -> str:
        """The outermost watched module whose code at module level is running here, or nothing."""
        found = ""
        while frame is not None:
            module = str(frame.f_globals.get("__name__") or "")
            if frame.f_code.co_name == "<module>" and self.watches(module):
                found = module
            frame = frame.f_back
        return found


WATCHERS = frozenset({"watched_import", "watched_import_module", "seen", "find_spec"})


def is_machinery(file: str) -> bool:
    """True for the files of Python itself."""
    if file.startswith("<frozen"):
        return True
    return file.startswith(STANDARD_LIBRARY) and not any(part in file for part in INSTALLED)


def is_torch(name: str) -> bool:
    """True for ``torch`` and its submodules."""
    return name == "torch" or name.startswith("torch.")


class Watch:
    """Sees imports while a stage runs that should make none. One for the process."""

    def __init__(self, place: Place, record: Record) -> None:
        self.place = place
        self.record = record
        self.late = False
        self.importing = False
        self.importers: dict[str, Caller] = {}
        self.guards_at_start = 0
        self.local = threading.local()
        self.original_import = builtins.__import__
        self.original_import_module = importlib.import_module

    def install(self) -> None:
        """Wrap the two functions that import, before the library can take hold of them."""
        builtins.__import__ = self.watched_import
        importlib.import_module = self.watched_import_module

    @contextlib.contextmanager
    def note_importers(self) -> Iterator[None]:
        """Note who asks for each watched module inside the block. The last one to ask is the one that
        gets it executed: a look without an import can only come before.
        """
        self.importing = True
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            self.importing = False
            self._leave()

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Imports inside the block are late."""
        self.record.stage = name
        self.guards_at_start = proxy_count()
        self.late = True
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            self.late = False
            self._settle()
            self._leave()

    def _leave(self) -> None:
        while self in sys.meta_path:
            sys.meta_path.remove(self)

    def watched_import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """``builtins.__import__``."""
        call = partial(self.original_import, name, globals, locals, fromlist or (), level)
        return self.seen(name, call) if self.late and not level else call()

    def watched_import_module(self, name: str, package: str | None = None) -> ModuleType:
        """``importlib.import_module``."""
        call = partial(self.original_import_module, name, package)
        return self.seen(name, call) if self.late else call()

    def seen(self, name: str, call: Callable[[], ModuleType]) -> ModuleType:
        """Make the import, and tell of it when it is one of torch."""
        if not is_torch(name) or self._depth():
            return call()
        entry = self.tell(name, self.record.late_torch, sys._getframe(1))
        self.local.depth = 1
        try:
            module = call()
        except BaseException as error:
            entry.outcome, entry.detail = "failed", f"{type(error).__name__}: {error}"
            raise
        finally:
            self.local.depth = 0
        entry.outcome = torch_kind(sys.modules.get(name, module))
        return module

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        """Find nothing; tell of new modules, and of torch asked for by another way than the wrapped."""
        if self.importing and self.place.watches(name):
            self.importers[name] = self.place.caller(sys._getframe(1))
        if not self.late or not asks_to_import(sys._getframe(1)):
            return
        if is_torch(name):
            if not self._depth():
                self.tell(name, self.record.late_torch, sys._getframe(1))
        elif self.place.watches(name):
            self.tell(name, self.record.late_modules, sys._getframe(1))

    def tell(self, name: str, into: list[LateImport], frame: FrameType) -> LateImport:
        """A new entry; it is recorded."""
        entry = LateImport(
            name,
            self.record.stage,
            self.place.caller(frame),
            within=self.place.initialised(frame),
            own_context=proxy_count() > self.guards_at_start,
        )
        into.append(entry)
        return entry

    def _settle(self) -> None:
        """Give the entries of which only the question was seen what came of them."""
        for entry in self.record.late_modules + self.record.late_torch:
            if entry.outcome == "asked":
                module = sys.modules.get(entry.name)
                kind = torch_kind(module) if is_torch(entry.name) else "module"
                entry.outcome = "failed" if module is None else kind

    def _depth(self) -> int:
        """1 while this thread is inside an import of torch, whose own imports are no news."""
        return int(getattr(self.local, "depth", 0))


def asks_to_import(frame: FrameType | None) -> bool:
    """False for ``importlib.util.find_spec``, which looks and does not import."""
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        if frame.f_code.co_name.startswith("_find_and_load"):
            return True
        frame = frame.f_back
    return False


# --- the state of the proxy -----------------------------------------------------------------------


def proxy() -> Any:
    """Paddle's module of the proxy."""
    return sys.modules[PROXY]


def proxy_count() -> int:
    """How often the proxy's finder is in ``sys.meta_path``."""
    module = sys.modules.get(PROXY)
    return sum(item is getattr(module, "TORCH_PROXY_FINDER", item) for item in list(sys.meta_path))


def torch_kind(module: object) -> str:
    """``proxy`` or ``real``."""
    return "proxy" if isinstance(module, proxy().ProxyModule) else "real"


def state(stage: str) -> dict[str, Any]:
    """What of the process an import of torch depends on, and what an import can leave behind."""
    module = proxy()
    finder = module.TORCH_PROXY_FINDER
    entries = list(sys.modules.items())
    return {
        "stage": stage,
        "finders_of_proxy": proxy_count(),
        "scope": sorted(finder._local_enabled_scope),
        "globally_enabled": bool(finder._globally_enabled),
        "cache": sorted(module.TORCH_MODULES_CACHE),
        "overrides": sorted(module.GLOBAL_OVERRIDES),
        "kept_out": sorted(module.TORCH_PROXY_BLOCKED_MODULES),
        "proxy_modules": sorted(n for n, m in entries if isinstance(m, module.ProxyModule)),
        "real_torch": sorted(
            n for n, m in entries if is_torch(n) and not isinstance(m, module.ProxyModule)
        ),
        "path": list(sys.path),
        "finders": [finder_name(item) for item in sys.meta_path if not isinstance(item, Watch)],
    }


def finder_name(finder: object) -> str:
    """``module.Class`` of a finder that is an instance or a class."""
    kind = finder if isinstance(finder, type) else type(finder)
    return f"{kind.__module__}.{kind.__qualname__}"


class Mended:
    """Puts the proxy back after its state was recorded, so that one fault is not told at every stage."""

    def __init__(self) -> None:
        finder = proxy().TORCH_PROXY_FINDER
        self.scope = set(finder._local_enabled_scope)
        self.globally = finder._globally_enabled

    def restore(self) -> None:
        """Take the proxy out where it was left on, and what it put into ``sys.modules``."""
        module = proxy()
        while module.TORCH_PROXY_FINDER in sys.meta_path:
            module.disable_torch_proxy()
        for name, entry in list(sys.modules.items()):
            if isinstance(entry, module.ProxyModule):
                del sys.modules[name]
        module.TORCH_PROXY_FINDER._local_enabled_scope = set(self.scope)
        module.TORCH_PROXY_FINDER._globally_enabled = self.globally


# --- the run --------------------------------------------------------------------------------------


class Run:
    """One library, from its import to the last exercise."""

    def __init__(self, request: Mapping[str, Any], result: Path) -> None:
        self.request = request
        self.result = result
        self.record = Record()
        self.place = Place(request["paths"], request["modules"], request["scope"])
        self.watch = Watch(self.place, self.record)
        self.objects: dict[str, Any] = {}

    def run(self) -> None:
        """Everything, in order; what the library raises is recorded, and is no error here."""
        paddle = self._paddle()
        if paddle is None:
            return
        self.watch.install()
        sys.path[:0] = self.request["paths"]
        warm(paddle)
        if self._preloaded():
            self._state("before")
            mended = Mended()
            imported = self._imported(paddle)
            self._state("import")
            if imported:
                mended.restore()
                self._access()
                self._exercises(paddle, mended)
        self.record.stage, self.record.finished = "end", True
        self.write()

    def write(self) -> None:
        """The result as it is now, in the place of the one before."""
        new = self.result.with_suffix(".new")
        new.write_text(json.dumps(asdict(self.record), indent=1), encoding="utf-8")
        new.replace(self.result)

    def _begin(self, stage: str) -> None:
        self.record.stage = stage
        self.write()

    def _state(self, stage: str) -> None:
        self.record.states.append(state(stage))

    def _paddle(self) -> Any:
        self._begin("environment")
        try:
            paddle = importlib.import_module("paddle")
            importlib.import_module("numpy")
            importlib.import_module(PROXY)
            _ = paddle.use_compat_guard
        except Exception as error:
            self.record.environment_problem = f"{type(error).__name__}: {error}"
            self.write()
            return None
        return paddle

    def _preloaded(self) -> bool:
        """True when what is to be imported before the guard could be."""
        self._begin("preload")
        try:
            for name in self.request["preload"]:
                importlib.import_module(name)
        except BaseException as error:  # as for the library itself
            self.record.import_failure = self.failure(error)
            return False
        return True

    def _imported(self, paddle: Any) -> bool:
        """True when the library could be imported. Its public names are resolved under the guard too."""
        self._begin("import")
        before = set(sys.modules)
        try:
            with (
                default_environment(self.request["load_env"]),
                paddle.use_compat_guard(scope=set(self.request["scope"]), silent=True),
            ):
                with self.watch.note_importers():
                    importlib.import_module(self.request["module"])
                self._note_modules(before)
                self._resolve()
        except BaseException as error:  # SystemExit too, and what derives from BaseException alone
            self._note_modules(before)
            self.record.import_failure = self.failure(error)
            return False
        return True

    def _note_modules(self, before: set[str]) -> None:
        if self.record.imported:
            return
        self.record.imported = [
            ImportedModule(
                name,
                str(getattr(module, "__file__", None) or ""),
                self.watch.importers.get(name, Caller()),
            )
            for name, module in list(sys.modules.items())
            if name not in before and self.place.watches(name)
        ]

    def _resolve(self) -> None:
        top = sys.modules[self.request["module"]]
        for name in dict.fromkeys((*self.request["public_names"], *self.request["exercises"])):
            self._begin(f"resolve {name}")
            try:
                with self.watch.stage(f"resolve {name}"):
                    self.objects[name] = resolve(top, name)
            except (
                BaseException
            ) as error:  # SystemExit too, and what derives from BaseException alone
                self.record.missing_names[name] = self.failure(error)
                continue
            if callable(self.objects[name]):
                self.record.callables.append(name)

    def _access(self) -> None:
        """Ask for the names again, as a user does after the guard has closed."""
        top = sys.modules.get(self.request["module"])
        for name in self.objects:
            self._begin(f"access {name}")
            with contextlib.suppress(BaseException), self.watch.stage(f"access {name}"):
                resolve(top, name)

    def _exercises(self, paddle: Any, mended: Mended) -> None:
        for name, arguments in self.request["exercises"].items():
            stage = f"exercise {name}"
            self._begin(stage)
            function = self.objects.get(name)
            if function is None:
                continue
            self.record.states.append(state(f"before {stage}"))
            try:
                given, named = evaluated(arguments, paddle)
                with self.watch.stage(stage):
                    call(function, given, named)
            except (
                BaseException
            ) as error:  # SystemExit too, and what derives from BaseException alone
                self.record.exercise_failures[name] = self.failure(error)
            else:
                self.record.exercised.append(name)
            self._state(stage)
            mended.restore()

    def failure(self, error: BaseException) -> Failure:
        """What was raised, with the innermost line of the library."""
        own: tuple[str, int, str] = ("", 0, "")
        last: tuple[str, int, str] = ("", 0, "")
        entry: TracebackType | None = error.__traceback__
        while entry is not None:
            code = entry.tb_frame.f_code
            module = str(entry.tb_frame.f_globals.get("__name__") or "")
            if code.co_filename != HERE and not is_machinery(code.co_filename):
                last = (code.co_filename, entry.tb_lineno, module)
                if self.place.owner(module, code.co_filename) == "library":
                    own = last
            entry = entry.tb_next
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        return Failure(type(error).__name__, str(error), *own, *last, text="".join(lines)[-6000:])


def warm(paddle: Any) -> None:
    """Open a guard once: the first one fills Paddle's table of overrides, which no library did."""
    with paddle.use_compat_guard(scope={"a_package_that_is_not_there"}, silent=True):
        pass


@contextlib.contextmanager
def default_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Variables that the import reads; what is set already stays as it is."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def resolve(top: Any, public_name: str) -> Any:
    """The object of ``name`` in the library, or of ``package.module:name``."""
    submodule, colon, attribute = public_name.rpartition(":")
    value = importlib.import_module(submodule) if colon else top
    for part in attribute.split("."):
        value = getattr(value, part)
    return value


def evaluated(arguments: str, paddle: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and the named arguments of a call, given as text over ``paddle`` and ``np``."""
    names = {
        "paddle": paddle,
        "np": sys.modules["numpy"],
        "collect": lambda *given, **named: (given, named),
    }
    found: tuple[tuple[Any, ...], dict[str, Any]] = eval(  # noqa: S307
        f"collect({arguments})", names
    )
    return found


def call(function: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Call it, and wait for the threads that it started, which import on its behalf."""
    before = set(threading.enumerate())
    try:
        function(*given, **named)
    finally:
        for thread in threading.enumerate():
            if thread not in before:
                thread.join(JOIN_SECONDS)


def main(arguments: Sequence[str]) -> int:
    """Read the request, run, write the result. Returns 0 whatever became of the library."""
    faulthandler.enable()
    folder = Path(HERE).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != folder]
    request = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    if request.get("dump_after"):
        faulthandler.dump_traceback_later(float(request["dump_after"]))
    Run(request, Path(arguments[1])).run()
    faulthandler.cancel_dump_traceback_later()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
