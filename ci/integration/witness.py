"""What a library does at run time: it is imported and called in a process of its own, and watched.

:func:`run_witness` starts the program ``child/witness.py`` in an environment with CPU Paddle and returns
what it saw; :func:`witness_findings` judges that, and :func:`contradictions` holds it against what
static analysis expected. Both are pure.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ci import proc
from ci.errors import InfrastructureError
from ci.findings import Finding, Level
from ci.integration import guide
from ci.integration.child.witness import Caller, Failure, ImportedModule
from ci.integration.rule import Rule

REAL_TORCH = "real torch"
PROGRAM = Path(__file__).parent / "child" / "witness.py"
LATE_TORCH_IMPORT = Rule(
    "late-torch-import",
    "torch is imported when a function is called, after the compat guard has closed",
    guide.NO_LATE_IMPORT,
)
LATE_SUBMODULE_IMPORT = Rule(
    "late-submodule-import",
    "a submodule that needs the proxy is first imported after the package was imported",
    guide.SUBMODULES_IMPORTED,
)
PROXY_LEFT_ON = Rule(
    "proxy-left-on",
    "Paddle's torch proxy is on after the library's code has returned",
    guide.NO_LEAKED_STATE,
)
IMPORT_LEAVES_TRACES = Rule(
    "import-leaves-traces",
    "the import, or a call, changes what later imports of other libraries get",
    guide.NO_LEAKED_STATE,
)
IMPORT_FAILS = Rule(
    "import-fails",
    "the library cannot be imported under the compat guard",
    guide.LOADER_UNCHANGED,
)
EXERCISE_FAILS = Rule(
    "exercise-fails",
    "a public function fails with the arguments that the declaration gives",
    guide.THREE_TEST_LAYERS,
)
PUBLIC_NAME_MISSING = Rule(
    "public-name-missing",
    "a declared public name is not there after the import",
    guide.THREE_TEST_LAYERS,
)
STATIC_AND_RUN_TIME_DISAGREE = Rule(
    "static-and-run-time-disagree",
    "what is imported is not what the sources say",
    guide.EAGER_IMPORT,
)
RUN_TIME_RULES: tuple[Rule, ...] = (
    LATE_TORCH_IMPORT,
    LATE_SUBMODULE_IMPORT,
    PROXY_LEFT_ON,
    IMPORT_LEAVES_TRACES,
    IMPORT_FAILS,
    EXERCISE_FAILS,
    PUBLIC_NAME_MISSING,
    STATIC_AND_RUN_TIME_DISAGREE,
)


@dataclass(frozen=True)
class WitnessRequest:
    """What to import and what to call.

    ``paths`` are folders in which the top-level packages lie, put first on ``sys.path``. ``module`` is
    imported; ``modules`` are all top-level names of the library. ``exercises``: for a public name the
    text of a call's arguments, over ``paddle`` and ``np``.
    """

    paths: tuple[Path, ...]
    module: str
    modules: tuple[str, ...]
    scope: tuple[str, ...]
    preload: tuple[str, ...] = ()
    load_env: Mapping[str, str] = field(default_factory=dict)
    public_names: tuple[str, ...] = ()
    exercises: Mapping[str, str] = field(default_factory=dict)

    def document(self, dump_after: float) -> dict[str, Any]:
        """The request as the program reads it; after ``dump_after`` seconds it shows where it is."""
        paths = [str(path.absolute()) for path in self.paths]
        return asdict(self) | {"paths": paths, "dump_after": dump_after}


@dataclass(frozen=True)
class LateImport:
    """An import after that of the package.

    ``stage``: ``resolve NAME`` (the public name was asked for, still under the guard), ``access NAME``
    (again, after it) or ``exercise NAME``. ``outcome``: ``failed``, ``real``, ``proxy`` or ``module``.
    ``within``: the late module whose own code made it. ``own_context``: inside a guard of the call.
    """

    name: str
    stage: str
    caller: Caller
    outcome: str
    detail: str = ""
    within: str = ""
    own_context: bool = False

    @property
    def guarded(self) -> bool:
        """True when the proxy was on by right: under the loader's guard, or under one of its own."""
        return self.own_context or self.stage.startswith("resolve ")


@dataclass(frozen=True)
class ProxyState:
    """The state of Paddle's proxy and of the import system at one moment."""

    stage: str
    finders_of_proxy: int
    scope: tuple[str, ...]
    globally_enabled: bool
    cache: tuple[str, ...]
    overrides: tuple[str, ...]
    kept_out: tuple[str, ...]
    proxy_modules: tuple[str, ...]
    real_torch: tuple[str, ...]
    path: tuple[str, ...]
    finders: tuple[str, ...]


@dataclass(frozen=True)
class WitnessResult:
    """What was seen.

    ``ending`` is empty for a process that ran to its end, else it says how it ended: by a signal, by a
    timeout, by leaving of its own accord; ``stage`` is then where.
    """

    request: WitnessRequest
    log: Path
    stage: str
    ending: str = ""
    imported: tuple[ImportedModule, ...] = ()
    import_failure: Failure | None = None
    missing_names: Mapping[str, Failure] = field(default_factory=dict)
    callables: tuple[str, ...] = ()
    late_torch: tuple[LateImport, ...] = ()
    late_modules: tuple[LateImport, ...] = ()
    states: tuple[ProxyState, ...] = ()
    exercised: tuple[str, ...] = ()
    exercise_failures: Mapping[str, Failure] = field(default_factory=dict)

    @property
    def not_exercised(self) -> tuple[str, ...]:
        """Public names that can be called and that no exercise calls."""
        return tuple(name for name in self.callables if name not in self.request.exercises)

    @property
    def import_ended(self) -> bool:
        """True when the package was imported, whatever came after."""
        ended_early = bool(self.ending) and self.stage in ("start", "preload", "import")
        return self.import_failure is None and not ended_early


@dataclass(frozen=True)
class StaticAnswer:
    """What static analysis expects, by module name.

    ``eager``: modules that package initialisation imports; ``sensitive``: those that need the proxy;
    ``lazy``: pairs of module and imported name of the imports that it found in function bodies;
    ``conditional``: modules of which it cannot say, so either answer is right.
    """

    eager: frozenset[str] = frozenset()
    sensitive: frozenset[str] = frozenset()
    lazy: frozenset[tuple[str, str]] = frozenset()
    conditional: frozenset[str] = frozenset()


# --- running --------------------------------------------------------------------------------------


def run_witness(request: WitnessRequest, python: Path, work: Path, timeout: float) -> WitnessResult:
    """Run the program with the interpreter ``python`` for at most ``timeout`` seconds.

    ``work`` is a folder of the run's own: it holds the request, the result and ``witness.log``. Raises
    :class:`~ci.errors.InfrastructureError` when the environment has no usable Paddle, and
    :class:`~ci.errors.ToolchainError` when ``python`` cannot be started.
    """
    empty, home = work / "empty", work / "home"
    for folder in (empty, home):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    asked, answer, log = work / "request.json", work / "result.json", work / "witness.log"
    answer.unlink(missing_ok=True)
    asked.write_text(json.dumps(request.document(timeout * 0.9)), encoding="utf-8")
    done = proc.run(
        proc.Command(
            argv=(str(python), str(PROGRAM), str(asked), str(answer)),
            cwd=empty,
            env=_environment(python, home),
            timeout=timeout,
            label="run-time witness",
        ),
        log=log,
    )
    if not answer.exists():
        raise InfrastructureError(
            "the run-time witness said nothing",
            cause=f"{python} ended with status {done.returncode} before it began",
            next_step=f"read {log}",
            details=done.tail(20),
        )
    document = json.loads(answer.read_text(encoding="utf-8"))
    if document["environment_problem"] or document["stage"] == "environment":
        raise InfrastructureError(
            "the environment of the run-time witness has no usable Paddle",
            cause=document["environment_problem"] or f"it {_ending(done)} while it was imported",
            next_step=f"{python} -c 'import numpy, paddle; paddle.use_compat_guard'",
            details=done.tail(20),
        )
    return read_result(document, request, log, _ending(done))


def _environment(python: Path, home: Path) -> dict[str, str]:
    return proc.scrubbed(
        os.environ,
        ("LANG", "LC_ALL", "CUDA_VISIBLE_DEVICES"),
        PATH=os.pathsep.join((str(python.parent), "/usr/bin", "/bin")),
        HOME=str(home),
        TMPDIR=str(home),
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONNOUSERSITE="1",
    )


def _ending(done: proc.Completed) -> str:
    if done.timed_out:
        return f"did not end within {done.command.timeout or 0:g} s"
    if done.returncode < 0:
        return f"was ended by {signal.Signals(-done.returncode).name}"
    return f"left with status {done.returncode}"


def read_result(
    document: Mapping[str, Any], request: WitnessRequest, log: Path, ending: str
) -> WitnessResult:
    """The program's result as a value; ``ending`` counts where it did not run to its end."""
    failure = document["import_failure"]
    return WitnessResult(
        request=request,
        log=log,
        stage=document["stage"],
        ending="" if document["finished"] else ending,
        imported=tuple(map(_imported, document["imported"])),
        import_failure=None if failure is None else Failure(**failure),
        missing_names=_failures(document["missing_names"]),
        callables=tuple(document["callables"]),
        late_torch=tuple(map(_late, document["late_torch"])),
        late_modules=tuple(map(_late, document["late_modules"])),
        states=tuple(map(_state, document["states"])),
        exercised=tuple(document["exercised"]),
        exercise_failures=_failures(document["exercise_failures"]),
    )


def _failures(items: Mapping[str, Any]) -> dict[str, Failure]:
    return {name: Failure(**item) for name, item in items.items()}


def _imported(item: Mapping[str, Any]) -> ImportedModule:
    return ImportedModule(**{**item, "importer": Caller(**item["importer"])})


def _late(item: Mapping[str, Any]) -> LateImport:
    return LateImport(**{**item, "caller": Caller(**item["caller"])})


def _state(item: Mapping[str, Any]) -> ProxyState:
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in item.items()
    }
    return ProxyState(**values)


# --- judging --------------------------------------------------------------------------------------


def witness_findings(
    result: WitnessResult, library: str, places: Mapping[str, str], *, gated: bool = False
) -> tuple[Finding, ...]:
    """Everything wrong in what was seen, each thing once.

    ``places`` gives the file to report for a module name; other modules are reported by their path below
    the request's paths. ``gated``: the library needs a GPU of some capability, so a failure on a host
    without one proves nothing and is a note.
    """
    judge = _Judge(result, library, places, gated)
    found = [
        *judge.import_fails(),
        *judge.missing_names(),
        *judge.late_modules(),
        *judge.late_torch(),
        *judge.state_changes(),
        *judge.exercises(),
    ]
    return tuple(dict.fromkeys(found))


def contradictions(
    static: StaticAnswer, result: WitnessResult, library: str, places: Mapping[str, str]
) -> tuple[Finding, ...]:
    """Where what was imported is not what static analysis expected; nothing for a failed import."""
    if not result.import_ended:
        return ()
    judge = _Judge(result, library, places, gated=False)
    return tuple(
        dict.fromkeys(
            (
                *judge.not_imported(static),
                *judge.not_expected(static),
                *judge.not_listed(static),
            )
        )
    )


_GATED = "; the library needs a GPU, and this host runs it on the CPU, so this may be right where it counts"


@dataclass(frozen=True)
class _Judge:
    result: WitnessResult
    library: str
    places: Mapping[str, str]
    gated: bool

    # --- places ---

    def place(self, module: str, file: str = "") -> str:
        """The file of a module, as it is to be reported."""
        if module in self.places:
            return self.places[module]
        for folder in self.result.request.paths:
            if file.startswith(f"{folder.absolute()}{os.sep}"):
                return str(Path(file).relative_to(folder.absolute()))
        return file or self.top

    @property
    def top(self) -> str:
        """The place of the library's own package."""
        module = self.result.request.module
        if module in self.places:
            return self.places[module]
        files = {item.name: item.file for item in self.result.imported}
        return self.place("", files[module]) if files.get(module) else module

    def at_caller(self, rule: Rule, late: LateImport, why: str, mend: str, **more: Any) -> Finding:
        caller = late.caller
        return rule.finding(
            self.place(caller.module, caller.file) if caller.file else self.top,
            why,
            mend,
            line=caller.line,
            library=self.library,
            subject=f"{caller.module}.{caller.function}: {late.name}",
            **more,
        )

    def at_top(
        self, rule: Rule, why: str, mend: str, subject: str, level: Level | None = None
    ) -> Finding:
        return rule.finding(self.top, why, mend, library=self.library, subject=subject, level=level)

    # --- what failed ---

    def import_fails(self) -> Iterator[Finding]:
        """The import raised, or did not come back."""
        result = self.result
        failure = result.import_failure
        if failure is not None:
            why, mend = import_cause(failure, result.request)
            yield self._failed(IMPORT_FAILS, failure, f"the import raised {why}", mend, "import")
        elif not result.import_ended:
            yield self._at_top_gated(
                IMPORT_FAILS,
                f"the process {result.ending} during the {result.stage} of {result.request.module}",
                f"read {result.log.name}, it shows the Python lines that ran",
                "import",
            )

    def missing_names(self) -> Iterator[Finding]:
        """Public names that cannot be resolved."""
        for name, failure in self.result.missing_names.items():
            yield self.at_top(
                PUBLIC_NAME_MISSING,
                f"{name!r} is not there after the import: {failure.shown}",
                f"correct public_names in the declaration of {self.library}, or its sources",
                name,
            )

    def exercises(self) -> Iterator[Finding]:
        """Calls that raised, and the one that the process did not survive."""
        result = self.result
        for name, failure in result.exercise_failures.items():
            if failure.kind in ("ModuleNotFoundError", "ImportError") and self._told(name):
                continue
            yield self._failed(
                EXERCISE_FAILS,
                failure,
                f"{name}({result.request.exercises.get(name, '')}) raised {failure.shown}",
                "mend the function for CPU tensors, or correct exercises in the declaration",
                name,
            )
        if result.ending and result.import_ended:
            yield self._at_top_gated(
                EXERCISE_FAILS,
                f"the process {result.ending} at the stage {result.stage!r}",
                f"read {result.log.name}, it shows the Python lines that ran",
                result.stage,
            )

    def _told(self, exercise: str) -> bool:
        """True when the failure of an exercise is told as a late import of torch."""
        return any(
            late.stage == f"exercise {exercise}" and late.outcome == "failed" and not late.guarded
            for late in self.result.late_torch
        )

    def _failed(self, rule: Rule, failure: Failure, why: str, mend: str, subject: str) -> Finding:
        if not failure.file:
            return self._at_top_gated(rule, why, mend, subject)
        return rule.finding(
            self.place(failure.module, failure.file),
            why + (_GATED if self.gated else ""),
            mend,
            line=failure.line,
            library=self.library,
            subject=subject,
            level="note" if self.gated else None,
        )

    def _at_top_gated(self, rule: Rule, why: str, mend: str, subject: str) -> Finding:
        why += _GATED if self.gated else ""
        return self.at_top(rule, why, mend, subject, "note" if self.gated else None)

    # --- late imports ---

    def late_torch(self) -> Iterator[Finding]:
        """Imports of torch by code that was called when no guard was open."""
        for late in self.result.late_torch:
            if late.guarded or late.within or late.caller.owner == "torch":
                continue
            yield self.at_caller(
                LATE_TORCH_IMPORT,
                late,
                f"{_where(late)} imports {late.name} when it is called ({late.stage}), after the "
                f"guard has closed: {_OUTCOMES[late.outcome].format(name=late.name)}",
                "import it at module level, where the guard of the package import is open",
                level="note" if late.caller.owner in ("other", "witness") else None,
            )

    def late_modules(self) -> Iterator[Finding]:
        """Modules first imported by a call, of which the code asks for torch."""
        for late in self.result.late_modules:
            torch = self._torch_within(late)
            if late.own_context or late.within or not torch:
                continue
            yield self.at_caller(
                LATE_SUBMODULE_IMPORT,
                late,
                f"{late.name}, which imports torch, is first imported {_when(late)}{_came(torch)}",
                "import it level by level from the package's __init__",
            )

    def _torch_within(self, late: LateImport) -> tuple[LateImport, ...]:
        """The imports of torch that a late module's own code made."""
        return tuple(
            item
            for item in self.result.late_torch
            if item.stage == late.stage and item.within == late.name
        )

    # --- traces ---

    def state_changes(self) -> Iterator[Finding]:
        """What the import, and every exercise, left behind."""
        for before, after in _pairs(self.result.states):
            what = "the import" if after.stage == "import" else f"after {after.stage} the library"
            if after.finders_of_proxy > before.finders_of_proxy:
                yield self.at_top(
                    PROXY_LEFT_ON,
                    f"{what} left Paddle's proxy in sys.meta_path "
                    f"({'for all modules' if after.globally_enabled else _names(after.scope)}), so "
                    "any later import of torch gets Paddle",
                    "replace paddle.enable_compat by `with paddle.use_compat_guard(...)`, or leave "
                    "it to the loader",
                    after.stage,
                )
            told = any(
                late.stage == after.stage and late.outcome == "real"
                for late in self.result.late_torch
            )
            for why, subject, level in _traces(before, after, self.result.request):
                if told and subject == REAL_TORCH:
                    continue
                yield self.at_top(
                    IMPORT_LEAVES_TRACES,
                    f"{what} {why}",
                    "undo it where it is done, or do without it",
                    f"{after.stage}: {subject}",
                    level,
                )

    # --- contradictions ---

    def not_imported(self, static: StaticAnswer) -> Iterator[Finding]:
        """Modules that the sources import while the package is imported, and that were not."""
        imported = {item.name for item in self.result.imported}
        for name in sorted(static.eager - static.conditional - imported):
            yield self._disagree(
                name,
                "",
                f"static analysis says that importing the package imports {name}, and it was not",
                "look for a condition or an early return before its import; if the sources are right, "
                "the analysis is wrong: report it",
            )

    def not_expected(self, static: StaticAnswer) -> Iterator[Finding]:
        """Modules of the library that were imported, and that the sources do not seem to import."""
        modules = self.result.request.modules
        for item in self.result.imported:
            if item.name in static.eager or item.name in static.conditional:
                continue
            if item.name.partition(".")[0] not in modules or not item.file.endswith(".py"):
                continue
            known = not self.places or item.name in self.places
            yield self._disagree(
                item.name,
                item.file,
                f"{item.name} was imported with the package{self._by(item.importer)}, which static "
                "analysis did not expect",
                "it is imported by a computed name: write the import as a statement"
                if known
                else "the build made it: nothing to do unless it needs the proxy",
                None if known else "note",
            )

    def _by(self, importer: Caller) -> str:
        """Who imported a module, where that is code with a file that is not the witness' own."""
        if not importer.file or importer.owner == "witness":
            return ""
        return f" by {self.place(importer.module, importer.file)}:{importer.line}"

    def not_listed(self, static: StaticAnswer) -> Iterator[Finding]:
        """Late imports at places where the sources show none."""
        for late in (*self.result.late_torch, *self.result.late_modules):
            if late.own_context or late.within or late.caller.owner != "library":
                continue
            sensitive = is_torch(late.name) or bool(self._torch_within(late))
            if late.name in static.sensitive:
                sensitive = True
            if not sensitive or _listed(late, static):
                continue
            yield self.at_caller(
                STATIC_AND_RUN_TIME_DISAGREE,
                late,
                f"{_where(late)} imported {late.name} when it was called, and static analysis knows "
                "of no such import there",
                "write the import as a statement at module level",
            )

    def _disagree(
        self, name: str, file: str, why: str, mend: str, level: Level | None = None
    ) -> Finding:
        return STATIC_AND_RUN_TIME_DISAGREE.finding(
            self.place(name, file), why, mend, library=self.library, subject=name, level=level
        )


_OUTCOMES = {
    "failed": "it failed, because no torch is installed here",
    "real": "it gave the real torch without a word, and tensors of both frameworks get mixed",
    "proxy": "it gave a proxy that was left behind, which depends on what ran before",
    "module": "it was found",
    "asked": "it was asked for",
}


def is_torch(name: str) -> bool:
    """True for ``torch`` and its submodules."""
    return name == "torch" or name.startswith("torch.")


def _where(late: LateImport) -> str:
    caller = late.caller
    if not caller.file:
        return "code without a file"
    made = "code made at run time in " if caller.dynamic else ""
    return f"{made}{caller.module}.{caller.function}"


def _when(late: LateImport) -> str:
    if late.stage.startswith("resolve "):
        return f"when the public name {late.stage.partition(' ')[2]!r} is asked for"
    return f"by {_where(late)} ({late.stage}), after the guard has closed"


def _came(torch: tuple[LateImport, ...]) -> str:
    first = torch[0]
    return "" if first.guarded else f": {_OUTCOMES[first.outcome]}"


def _listed(late: LateImport, static: StaticAnswer) -> bool:
    return any(
        module == late.caller.module
        and (target == late.name or _is_below(target, late.name) or _is_below(late.name, target))
        for module, target in static.lazy
    )


def _is_below(name: str, parent: str) -> bool:
    return name.startswith(f"{parent}.")


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "no scope"


def _pairs(states: tuple[ProxyState, ...]) -> Iterator[tuple[ProxyState, ProxyState]]:
    """The state before and after the import, and before and after every exercise."""
    by_stage = {state.stage: state for state in states}
    for state in states:
        before = "before" if state.stage == "import" else f"before {state.stage}"
        if before in by_stage:
            yield by_stage[before], state


def _traces(
    before: ProxyState, after: ProxyState, request: WitnessRequest
) -> Iterator[tuple[str, str, Level | None]]:
    """What is different, as reason, subject and level."""
    new = _new(before.real_torch, after.real_torch)
    if new:
        yield f"brought the real torch into sys.modules ({new[0]})", REAL_TORCH, None
    left = _new(before.proxy_modules, after.proxy_modules)
    if left and not after.finders_of_proxy > before.finders_of_proxy:
        yield f"left Paddle's proxy in sys.modules as {', '.join(left)}", "proxy modules", None
    for name, now, then in (
        ("overrides of torch's names", after.overrides, before.overrides),
        ("modules that the proxy never serves", after.kept_out, before.kept_out),
        ("names in the proxy's scope", after.scope, before.scope),
    ):
        added = _new(then, now)
        if added and after.finders_of_proxy == before.finders_of_proxy:
            yield f"added {name}: {', '.join(added)}", name, None
    for finder in _more(before.finders, after.finders):
        top = finder.partition(".")[0]
        if top != "paddle":
            level: Level | None = None if top in request.modules else "note"
            yield f"left the finder {finder} in sys.meta_path", finder, level
    path = _more(before.path, after.path)
    if path:
        yield f"added to sys.path: {', '.join(path)}", "sys.path", "warning"


def _new(before: tuple[str, ...], after: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in after if name not in before)


def _more(before: tuple[str, ...], after: tuple[str, ...]) -> tuple[str, ...]:
    """What is in ``after`` more often than in ``before``."""
    return tuple(name for name in dict.fromkeys(after) if after.count(name) > before.count(name))


def import_cause(failure: Failure, request: WitnessRequest) -> tuple[str, str]:
    """The cause of a failed import in words, and its mend."""
    if missing := re.search(
        r"module '(torch|paddle)([\w.]*)' has no attribute '(\w+)'", failure.message
    ):
        name = f"paddle{missing[2]}.{missing[3]}"
        return (
            f"{failure.shown}: Paddle has no {name}, which the library uses as "
            f"torch{missing[2]}.{missing[3]}",
            f"use another function in the fork, or ask for {name} in Paddle",
        )
    if missing := re.search(r"No module named '(paddle)\.([\w.]+)'", failure.message):
        return (
            f"{failure.shown}: Paddle has no module for torch.{missing[2]}",
            "import what is needed from a module that Paddle has, in the fork",
        )
    if re.search(r"No module named 'torch", failure.message):
        return _torch_missing(failure, request)
    if missing := re.search(r"No module named '([\w.]+)'", failure.message):
        return (
            f"{failure.shown}: it is not installed",
            f"add what brings {missing[1]} to run_requires in the declaration, or mend the import",
        )
    if "undefined symbol" in failure.message or "cannot open shared object" in failure.message:
        return (
            f"{failure.shown}: a compiled module does not fit this environment",
            "build it against the Paddle and the CUDA of this cell",
        )
    if failure.kind == "SystemExit":
        return f"{failure.shown}: it wants to end the process", "raise an error instead of sys.exit"
    return failure.shown, "mend the import in the fork, under the compat guard"


def _torch_missing(failure: Failure, request: WitnessRequest) -> tuple[str, str]:
    """Torch was asked for, and the proxy did not answer. While a module of the scope is executed Paddle
    answers every package, so this is an import before the guard, or one that switched it off.
    """
    asking = failure.innermost_module.partition(".")[0] or "a package"
    why = f"{failure.shown}: {asking} imports torch where the proxy is off"
    if asking in request.preload:
        mend = f"take {asking!r} out of preload: the proxy comes with the guard"
    elif asking in request.scope:
        mend = "leave the guard of the loader on while the package is imported"
    else:
        mend = f"add {asking!r} to compat_scope in the declaration, if it works with Paddle"
    return why, mend
