"""Drives cibuildwheel for one cell: its options from values, its outcome as a value.

cibuildwheel takes options from ``CIBW_*`` variables, from the package's ``[tool.cibuildwheel]``, and from
``--config-file``. Here the variables are the only source: its environment is made from nothing, and the
configuration file is an empty one (cibuildwheel documentation, "Options"; facts about its behaviour are of
version 4.3).

What it does with a container, and what follows:

- A shell that reads its commands from standard input runs everything, so a command that reads standard
  input would eat the following ones: commands of the farm get an empty one.
- ``{wheel}``, ``{dest_dir}``, ``{package}`` and ``{project}`` are replaced in the text of commands, also
  within quotes. :class:`Slot` stands for them; the same letters in a value are kept apart by quoting.
- The front end ``build[uv]`` makes the test environment with the image's ``uv`` and needs no package index
  for it; with ``build`` it would download virtualenv.
- It refuses a raw wheel named ``*none-any.whl`` (status 5): a cell without compiled libraries is none for it.
- The files that it copies out belong to its caller.
"""

from __future__ import annotations

import enum
import importlib.util
import os
import re
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from ci.errors import ConfigError, FarmError, InfrastructureError, ToolchainError
from ci.executors.cli_engine import ContainerState, container_state
from ci.executors.create_options import CLIENT_SETTINGS, create_invocation
from ci.executors.engine_errors import CREATE, GONE, LOST, NO_CONTAINER, engine_error
from ci.executors.engine_facts import ask, first_object
from ci.executors.model import LABEL, ContainerSpec, EngineFacts
from ci.proc import Command, Completed, run, scrubbed

_KEPT = (
    *CLIENT_SETTINGS, "ALL_PROXY", "DBUS_SESSION_BUS_ADDRESS", "HTTPS_PROXY", "HTTP_PROXY", "LOGNAME",
    "NO_PROXY", "SSH_AUTH_SOCK", "USER",
)  # fmt: skip
"""What the engine's program may need of the caller's environment; no other variable gets through."""

_READ_OUTSIDE = re.compile(
    r"CIBW_.*|CI|TRAVIS|APPVEYOR|CIRCLECI|AZURE_HTTP_USER_AGENT|GITHUB_.*|GITLAB_CI|SSL_CERT_\w+|LANG|LC_\w+"
    r"|NO_COLOR|FORCE_COLOR|TMP|TEMP|(ALL|HTTPS?|NO)_PROXY|SSH_AUTH_SOCK|DBUS_SESSION_BUS_ADDRESS|USER|LOGNAME",
    re.IGNORECASE,
)
"""Variables that cibuildwheel, or the engine's program, goes by itself (its ``ci.py``, ``logger.py`` and
``util/file.py``). The container's value of one of these is an argument; all others are passed by name."""

_LABELS = ("run", "owner", "cell", "step")
_UV_CONFIG = "/tmp/paddlefleet-farm-uv.toml"  # noqa: S108 - in a container of its own
_UV_TEXT = "[pip]\nno-deps = true\nno-index = true\n"
_ARCHITECTURES = ("x86_64", "aarch64")
_CLEAN_ATTEMPTS, _CLEAN_PAUSE = 20, 1.0
_KILLED = 137
"""128 + SIGKILL, as shells say it."""


class Slot(enum.Enum):
    """What cibuildwheel fills into a command. The first two are for the repair and the test command."""

    WHEEL = "wheel"
    DEST_DIR = "dest_dir"
    PACKAGE = "package"
    PROJECT = "project"


class Stage(enum.Enum):
    """The stages of a run, in order; the value is what messages call it."""

    OPTIONS = "reading its options"
    CREATE = "creating the container"
    COPY_IN = "copying the package in"
    SET_UP = "setting up the environment"
    BEFORE_BUILD = "the command before the build"
    BUILD = "building the wheel"
    REPAIR = "repairing the wheel"
    TEST = "testing the wheel"
    COPY_OUT = "copying the wheel out"


_MARKS = (
    (re.compile(r"Starting container image .+\.\.\."), Stage.CREATE),
    (re.compile(r"Copying project into container\.\.\."), Stage.COPY_IN),
    (re.compile(r"Setting up build environment\.\.\."), Stage.SET_UP),
    (re.compile(r"Running before_build\.\.\."), Stage.BEFORE_BUILD),
    (re.compile(r"Building wheel\.\.\."), Stage.BUILD),
    (re.compile(r"Repairing wheel\.\.\."), Stage.REPAIR),
    (re.compile(r"Testing wheel\.\.\."), Stage.TEST),
    (re.compile(r"Copying wheels back to host\.\.\."), Stage.COPY_OUT),
)
_STEP_END = re.compile(r"\s*(?:✓|✕|done|failed) (\d+\.\d\d)s")
_FAILED = re.compile(r"cibuildwheel: error: Command .+ failed with code (\d+)\.", re.DOTALL)
_KILL_WORDS = re.compile(
    r"\bKilled\b|signal 9\b|SIGKILL|MemoryError|std::bad_alloc|virtual memory exhausted"
    r"|[Cc]annot allocate memory|[Oo]ut of memory"
)
_ORDER = {stage: index for index, stage in enumerate(Stage)}


@dataclass(frozen=True)
class WheelCell:
    """One wheel to be made by cibuildwheel.

    ``python`` is ``3.12``, ``abi`` ``t`` for a free-threaded one, else empty. ``package`` is the folder that
    is copied into the container as ``/project``; ``output`` gets the wheel and holds none yet; ``scratch`` is
    a folder of the run for cibuildwheel's own cache. ``container`` is the container, all but its user, which
    is root: cibuildwheel writes ``/project`` and ``/output``. Its environment is that of all commands; its
    labels hold at least ``run``, ``owner``, ``cell`` and ``step``, and no other container has the same.
    Commands are argument lists; an empty one is left out. ``timeout`` is seconds for the whole run.
    """

    python: str
    package: Path
    output: Path
    scratch: Path
    container: ContainerSpec
    repair: tuple[str | Slot, ...] = ()
    test: tuple[str | Slot, ...] = ()
    before_build: tuple[str | Slot, ...] = ()
    abi: str = ""
    verbosity: int = 0
    timeout: float | None = None
    open_files: int | None = None

    def identifier(self, architecture: str) -> str:
        """What cibuildwheel calls the cell: ``cp312-manylinux_x86_64``."""
        return f"cp{self.python.replace('.', '')}{self.abi}-manylinux_{architecture}"


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    ``stage`` is the one that failed, ``None`` when none did; ``seconds`` is what cibuildwheel says of each
    stage that ended. ``memory`` says why it looks as if memory ran out, and is empty when it does not.
    """

    returncode: int
    stage: Stage | None
    wheels: tuple[Path, ...]
    seconds: Mapping[Stage, float]
    total_seconds: float
    log: Path
    tail: tuple[str, ...]
    timed_out: bool = False
    memory: str = ""

    @property
    def ok(self) -> bool:
        """True when cibuildwheel ended with status 0 and left one wheel; its output has no say in it."""
        return self.returncode == 0 and not self.timed_out and len(self.wheels) == 1

    @property
    def reason(self) -> str:
        """In one line why it failed; empty when it did not."""
        if self.ok:
            return ""
        where = f" while {self.stage.value}" if self.stage is not None else ""
        if self.timed_out:
            return f"no end after {self.total_seconds:.0f} s{where}"
        if self.returncode == 0:
            return f"cibuildwheel ended well and left {len(self.wheels)} wheels"
        return f"cibuildwheel ended with status {self.returncode}{where}" + (
            f"; {self.memory}" if self.memory else ""
        )


def cibuildwheel_command(
    cell: WheelCell, facts: EngineFacts, environ: Mapping[str, str]
) -> Command:
    """The command that makes the wheel of ``cell`` with the engine of ``facts``.

    Of ``environ`` nothing is taken but what the engine's program needs. Raises
    :class:`~ci.errors.ConfigError` for values that cibuildwheel cannot be given.
    """
    _check(cell, facts)
    identifier = cell.identifier(facts.architecture)
    env = scrubbed(environ, (*_KEPT, *(name.lower() for name in _KEPT if name.endswith("_PROXY"))))
    path = os.pathsep.join((str(facts.program.parent), environ.get("PATH", os.defpath)))
    options, by_name = _create_options(cell, facts)
    return Command(
        argv=(
            # -I: neither the package's folder nor PYTHON* variables decide what is imported.
            sys.executable, "-I", "-X", "utf8", "-m", "cibuildwheel", "--only", identifier,
            "--config-file", os.devnull, "--output-dir", str(cell.output), str(cell.package),
        ),
        cwd=cell.package,
        env={**env, **by_name, "PATH": path, **_variables(cell, facts, options)},
        timeout=cell.timeout,
        label="cibuildwheel",
    )  # fmt: skip


def shown(cell: WheelCell, facts: EngineFacts, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The lines that one can paste into a shell to do the same; the values of the container's environment are
    taken from that shell, as they may be secret. Raises as :func:`cibuildwheel_command` does.
    """
    command = cibuildwheel_command(cell, facts, environ)
    lines = [f"cd {shlex.quote(str(cell.package))} && env -i"]
    for name, value in sorted((command.env or {}).items()):
        told = name.startswith("CIBW_") or name in ("PATH", "SOURCE_DATE_EPOCH")
        lines.append(f"  {name}={shlex.quote(value)}" if told else f'  {name}="${name}"')
    lines.append(f"  {command.shown}")
    return (*(f"{line} \\" for line in lines[:-1]), lines[-1])


def run_cibuildwheel(
    cell: WheelCell, facts: EngineFacts, environ: Mapping[str, str], log: Path
) -> Outcome:
    """Make the wheel of ``cell``; all output goes to ``log``. The container is removed in any case.

    Raises :class:`~ci.errors.ToolchainError` when cibuildwheel is not installed, or when the image cannot
    serve it; :class:`~ci.errors.ConfigError` for options or limits that are refused; and
    :class:`~ci.errors.InfrastructureError` when the engine or the container went away. A build, a repair or a
    test that fails is an :class:`Outcome`.
    """
    _need_cibuildwheel()
    command = cibuildwheel_command(cell, facts, environ)
    cell.output.mkdir(parents=True, exist_ok=True)
    if present := sorted(cell.output.glob("*.whl")):
        raise ConfigError(
            f"{cell.output} holds a wheel already",
            cause=f"{present[0].name} could not be told from the one that is to be made",
            next_step="name an empty folder",
        )
    cell.scratch.mkdir(parents=True, exist_ok=True)
    containers = _Containers(cell, facts, command.env or {})
    try:
        done = run(command, log=log)
        states = () if done.ok else containers.states()
    finally:
        containers.remove()
    return _judge(cell, facts, done, states, log)


# -- options ---------------------------------------------------------------------------------------


def _variables(cell: WheelCell, facts: EngineFacts, create: Iterable[str]) -> dict[str, str]:
    """The ``CIBW_*`` variables. All that cibuildwheel would otherwise look up elsewhere is said."""
    values = {
        "BUILD_FRONTEND": "build[uv]; args: --no-isolation",
        "BUILD_VERBOSITY": str(cell.verbosity),
        "CONTAINER_ENGINE": f"{facts.name}; create_args: {shlex.join(create)}; disable_host_mount: true",
        "DEPENDENCY_VERSIONS": "latest",  # no file of pinned versions: nothing is installed
        f"MANYLINUX_{facts.architecture.upper()}_IMAGE": cell.container.image,
        "REPAIR_WHEEL_COMMAND": _text(cell.repair),
        "BEFORE_BUILD": _text(cell.before_build),
        "AUDIT_COMMAND": "",  # for an abi3 wheel it would install a tool on the host
        "AUDIT_REQUIRES": "",
        "CACHE_PATH": str(cell.scratch / "cibuildwheel-cache"),
        "LOG_FOLD_MODE": "disabled",
        "DEBUG_KEEP_CONTAINER": "1",  # how it ended is asked for, then it is removed here
    }
    if cell.test:
        values |= {
            "BEFORE_TEST": f"printf %s {shlex.quote(_UV_TEXT)} >{_UV_CONFIG}",
            "TEST_ENVIRONMENT": f"UV_CONFIG_FILE={_UV_CONFIG}",
            # The test command is not in cibuildwheel's environment: it makes its own.
            "TEST_COMMAND": f"unset UV_CONFIG_FILE VIRTUAL_ENV; PATH=${{PATH#*:}}; {_text(cell.test)}",
        }
    return {f"CIBW_{name}": value for name, value in values.items()}


def _text(argv: tuple[str | Slot, ...]) -> str:
    """``argv`` as a shell takes it, with an empty standard input."""
    words = (f"'{{{word.value}}}'" if isinstance(word, Slot) else _quoted(word) for word in argv)
    return f"{' '.join(words)} </dev/null" if argv else ""


def _quoted(word: str) -> str:
    """``word`` for a shell, such that it holds no ``{name}`` that cibuildwheel would replace.

    A brace makes ``shlex.quote`` use single quotes; closed and opened again behind it, they change nothing.
    """
    return shlex.quote(word).replace("{", "{''")


def _create_options(cell: WheelCell, facts: EngineFacts) -> tuple[list[str], Mapping[str, str]]:
    """Options of ``create``, and the variables that they take by name from the environment."""
    outside = {k: v for k, v in cell.container.env.items() if _READ_OUTSIDE.fullmatch(k)}
    inside = {k: v for k, v in cell.container.env.items() if k not in outside}
    spec = replace(cell.container, user="0:0", env=inside)
    call = create_invocation(facts, spec, Command(()), {}, name="", open_files=cell.open_files)
    _create, _name, _, *options, _image = call.arguments
    return [*options, *(f"--env={k}={v}" for k, v in outside.items())], call.env


def _check(cell: WheelCell, facts: EngineFacts) -> None:
    problems = [
        f"label {name}: it is how the container is found again"
        for name in _LABELS
        if not cell.container.labels.get(LABEL + name)
    ]
    if facts.architecture not in _ARCHITECTURES:
        problems.append(
            f"architecture {facts.architecture}: wheels are for {' and '.join(_ARCHITECTURES)}"
        )
    if facts.program.name != facts.name:
        problems.append(f"{facts.program}: cibuildwheel starts {facts.name} by this name only")
    if any(Slot.WHEEL is word or Slot.DEST_DIR is word for word in cell.before_build):
        problems.append("before the build there is no wheel")
    if Slot.DEST_DIR in cell.test:
        problems.append("a test has no folder for a repaired wheel")
    if problems:
        raise ConfigError(
            "cibuildwheel cannot be given this cell: " + "; ".join(problems),
            cause="the cell, or the engine that was found, is not one that cibuildwheel can use",
            next_step=f"--engine docker, with {facts.name} on PATH; or --executor host",
            details=problems,
        )


def _need_cibuildwheel() -> None:
    if importlib.util.find_spec("cibuildwheel") is None:
        version = ".".join(map(str, sys.version_info[:2]))
        raise ToolchainError(
            f"cibuildwheel is not installed for the Python {version} that runs the farm",
            cause="it needs Python 3.11 or newer"
            if sys.version_info < (3, 11)
            else "it was left out",
            next_step="run the farm with a newer Python: uv run --python 3.12 python -m ci …; "
            "it builds wheels for 3.10 too",
        )


# -- the container ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Containers:
    """The containers that cibuildwheel made for a cell, found by their labels."""

    cell: WheelCell
    facts: EngineFacts
    env: Mapping[str, str] = field(default_factory=dict)

    def states(self) -> tuple[ContainerState, ...]:
        """How they stand. Raises :class:`~ci.errors.InfrastructureError` when the engine does not answer."""
        found = (self._inspect(identifier) for identifier in self._list())
        return tuple(container_state(state) for state in found if state is not None)

    def remove(self) -> None:
        """Remove them with their anonymous volumes; what cannot be removed now is swept by a later run.

        A request that was under way when cibuildwheel was killed may be served a moment later, and while an
        interrupt ends all processes, the ones that clean up are ended too: so it is looked for again.
        """
        for attempt in range(_CLEAN_ATTEMPTS):
            done = self._ask(*self._listing)
            if done.ok and not done.output.split() and attempt > 0:
                return
            if done.ok and done.output.split():
                self._ask("rm", "--force", "--volumes", *done.output.split())
            elif done.returncode > 0:
                return
            time.sleep(_CLEAN_PAUSE if attempt or done.returncode < 0 else _CLEAN_PAUSE / 5)

    @property
    def _listing(self) -> tuple[str, ...]:
        labels = self.cell.container.labels.items()
        filters = (part for key, value in labels for part in ("--filter", f"label={key}={value}"))
        return ("ps", "--all", "--quiet", "--no-trunc", *filters)

    def _list(self) -> list[str]:
        done = self._ask(*self._listing)
        if done.ok:
            return done.output.split()
        if done.returncode < 0:
            return []
        raise engine_error(
            f"{self.facts.name} went away while cibuildwheel ran",
            done.output,
            GONE,
            self.facts.name,
        )

    def _inspect(self, identifier: str) -> Mapping[str, object] | None:
        done = self._ask("container", "inspect", "--format", "{{json .State}}", identifier)
        return first_object(done.output) if done.ok else None

    def _ask(self, *arguments: str) -> Completed:
        return ask(self.facts.program, self.env, *arguments)


# -- the outcome -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    """How far a run came by what it printed: the last stage, and the seconds of each stage that ended."""

    stage: Stage
    seconds: Mapping[Stage, float]


def read_progress(lines: Iterable[str]) -> Progress:
    """Read cibuildwheel's own lines among all that was printed.

    A build can print the same words. Stages only go on, never back, so that the worst it can do is to have a
    later stage named; whether the run failed is never read from here. Of several ends of a stage the last is
    cibuildwheel's own: nothing else prints between it and the next stage.
    """
    stage, seconds = Stage.OPTIONS, dict[Stage, float]()
    for line in lines:
        text = line.rstrip("\r\n")
        marked = next((mark for pattern, mark in _MARKS if pattern.fullmatch(text)), None)
        if marked is not None and _ORDER[marked] > _ORDER[stage]:
            stage = marked
        elif (end := _STEP_END.fullmatch(text)) is not None:
            seconds[stage] = float(end.group(1))
    return Progress(stage, MappingProxyType(seconds))


def _judge(
    cell: WheelCell,
    facts: EngineFacts,
    done: Completed,
    states: tuple[ContainerState, ...],
    log: Path,
) -> Outcome:
    progress = read_progress(_lines(log))
    wheels = tuple(sorted(cell.output.glob("*.whl")))
    failed = not done.ok or len(wheels) != 1
    outcome = Outcome(
        returncode=done.returncode,
        stage=progress.stage if failed else None,
        wheels=wheels,
        seconds=progress.seconds,
        total_seconds=done.seconds,
        log=log,
        tail=done.tail(),
        timed_out=done.timed_out,
    )
    if done.ok or done.timed_out or done.returncode < 0:
        return outcome
    memory = _memory(cell, done, states)
    error = None if memory else _error(cell, facts, outcome, states)
    if error is not None:
        raise error
    return replace(outcome, memory=memory)


def _lines(log: Path) -> Iterator[str]:
    with log.open(encoding="utf-8", errors="replace") as source:
        yield from source


def _memory(cell: WheelCell, done: Completed, states: tuple[ContainerState, ...]) -> str:
    """Why memory probably ran out: the engine says so, or SIGKILL ended the command, or its last words."""
    limit = cell.container.memory
    bound = (
        f"its limit is {limit / 2**30:.1f} GiB" if limit else "it has no limit but the machine's"
    )
    if any(state.killed_for_memory for state in states):
        return f"the container ran out of memory; {bound}"
    failed = _FAILED.search(done.output)
    killed = failed is not None and int(failed.group(1)) == _KILLED
    words = any(
        _KILL_WORDS.search(line) for line in done.tail(60) if "cibuildwheel: error" not in line
    )
    if killed or (failed is not None and words):
        return f"a process was killed, probably because the container ran out of memory; {bound}"
    return ""


def _error(
    cell: WheelCell,
    facts: EngineFacts,
    outcome: Outcome,
    states: tuple[ContainerState, ...],
) -> FarmError | None:
    """The error when not the package's own commands failed, but what is around them."""
    image, stage = cell.container.image, outcome.stage
    if stage is Stage.OPTIONS:
        return ConfigError(
            f"cibuildwheel refuses the cell (status {outcome.returncode})",
            cause="its own words are below; one reason is a Python that requires-python excludes",
            next_step=f"read {outcome.log}",
            details=outcome.tail,
        )
    if stage is Stage.CREATE and not states:
        said = "\n".join(outcome.tail)
        return engine_error(f"cibuildwheel cannot start {image}", said, CREATE, facts.name)
    if not states:
        return engine_error(
            f"the container vanished while {stage.value if stage else 'it ran'}", "no such container",
            (NO_CONTAINER,), facts.name,
        )  # fmt: skip
    if all(state.returncode != 0 and not state.running for state in states):
        return InfrastructureError(
            f"the container ended while {stage.value if stage else 'it ran'}",
            cause=f"its first process ended with status {states[0].returncode}, and no command of the "
            f"package does that; {LOST.cause}",
            next_step=LOST.next_step,
            details=outcome.tail,
        )
    if stage in (Stage.CREATE, Stage.SET_UP):
        return ToolchainError(
            f"the image {image} cannot serve cibuildwheel ({stage.value})",
            cause=f"it needs /opt/python/{cell.identifier('').partition('-')[0]}-…, uv, tar and bash",
            next_step="nox -s images",
            details=outcome.tail,
        )
    if stage in (Stage.COPY_IN, Stage.COPY_OUT):
        return engine_error(
            f"cibuildwheel failed while {stage.value}", "\n".join(outcome.tail), GONE, facts.name
        )
    return None
