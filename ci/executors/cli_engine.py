"""docker or podman, driven by its command line: one container for one command.

A container is created, started with its output attached, asked how it ended, and removed, in four calls:
so that a refusal of the engine, a death for want of memory and the program's own status are told apart,
which ``docker run`` does not do.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ci.errors import FarmError, InfrastructureError, ToolchainError
from ci.executors.container import owner_is_gone, owner_label
from ci.executors.create_options import (
    attached_invocation,
    container_options,
    create_invocation,
)
from ci.executors.engine_errors import (
    CREATE,
    GONE,
    LOST,
    NO_CONTAINER,
    NO_IMAGE,
    OPEN_FILES,
    PULL,
    engine_error,
    said_by_init,
    trouble_of,
)
from ci.executors.engine_facts import ask, first_object, machine_name
from ci.executors.gpus import gpu_engine_error
from ci.executors.model import LABEL, ContainerSpec, EngineFacts, ImageFacts
from ci.proc import GRACE_SECONDS, Command, Completed, run, run_attached

NAME_PREFIX = "paddlefleet-farm"
OPEN_FILE_LIMIT = 4096
"""For a container when the engine's own limit is more than the machine allows the engine to set."""

PULL_SECONDS = 2 * 3600.0
PULL_PAUSES = (5.0, 15.0, 45.0, 120.0)
"""Seconds between attempts to pull; registries count pulls by the minute or longer."""

_CREATE_SECONDS = 300.0
_CLEAN_SECONDS = 120.0
_CLEAN_ATTEMPTS = 20
_CLEAN_PAUSE = 1.0
_KILLED = 128 + signal.SIGKILL
_INIT_STATUS = (1, 126, 127)
"""Of the first process that cannot start the program: tini says 126 or 127, catatonit 1."""

_NEVER = "0001-01-01T00:00:00Z"
_SETTLE_ATTEMPTS, _SETTLE_PAUSE = 10, 0.2


@dataclass(frozen=True)
class ContainerState:
    """How a container stands. ``error`` is the engine's when the program could not be started;
    ``removed`` is true while somebody removes it.
    """

    running: bool
    started: bool
    killed_for_memory: bool
    returncode: int
    error: str
    removed: bool = False


@dataclass(frozen=True)
class _Inside(Command):
    """A call of the engine that a log shows as the command that runs in the container."""

    inside: Command | None = None

    @property
    def shown(self) -> str:
        return self.inside.shown if self.inside is not None else super().shown


class CliEngine:
    """An engine behind a program (:class:`~ci.executors.model.Engine`). ``environ`` is that program's.

    ``sleep`` takes seconds; it is there for tests.
    """

    def __init__(
        self,
        facts: EngineFacts,
        environ: Mapping[str, str],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.facts = facts
        self._environ = {**environ, "DOCKER_CLI_HINTS": "false"}
        self._sleep = sleep
        self._run_id = uuid.uuid4().hex[:12]
        self._open_files: int | None = None

    # -- images ------------------------------------------------------------------------------------

    def image(self, ref: str) -> ImageFacts | None:
        """The image ``ref`` as it is here; ``None`` when it is not here."""
        done = self._ask("image", "inspect", ref)
        if done.ok and (found := first_object(done.output)) is not None:
            return image_facts(ref, found)
        if NO_IMAGE.fits(done.output):
            return None
        raise self._error(f"cannot look at the image {ref}", done)

    def pull(self, ref: str) -> ImageFacts:
        """Get ``ref`` from its registry, again after a pause for what may pass.

        Raises :class:`~ci.errors.InfrastructureError` when it cannot be had, with how often it was tried.
        """
        command = self._command("pull", "--quiet", ref, timeout=PULL_SECONDS)
        for attempt, pause in enumerate((*PULL_PAUSES, None), start=1):
            done = run(command)
            if done.ok:
                break
            trouble = trouble_of(done.output, PULL)
            if pause is None or not (done.timed_out or (trouble and trouble.passing)):
                times = f" ({attempt} attempts)" if attempt > 1 else ""
                message = f"cannot pull {ref}{times}"
                raise engine_error(message, done.output, PULL, self.facts.name)
            self._sleep(pause)
        found = self.image(ref)
        if found is None:
            raise InfrastructureError(
                f"{ref} was pulled and is not here",
                cause="something removed it again at once: a clean-up job, or a full disk",
                next_step=f"{self.facts.name} system df",
            )
        return found

    # -- containers --------------------------------------------------------------------------------

    def run(self, spec: ContainerSpec, command: Command, log: Path | None) -> Completed:
        """Run ``command`` in a new container to its end; its output to ``log``, else captured.

        The container and its anonymous volumes are removed in any case, after SIGTERM and a grace period
        when it has to be ended (timeout, Ctrl-C). Raises :class:`~ci.errors.ToolchainError` for a program
        that the image does not hold, :class:`~ci.errors.ConfigError` for limits or a network that the
        engine refuses, :class:`~ci.errors.InfrastructureError` for a container that was killed for memory
        or vanished, and for an engine that went away.
        """
        _check_folder(spec, command)
        started = time.monotonic()
        done = self._attempt(spec, command, log)
        while done is None:
            self._open_files = OPEN_FILE_LIMIT
            done = self._attempt(spec, command, log)
        return replace(done, command=command, seconds=time.monotonic() - started)

    def run_attached(self, spec: ContainerSpec, command: Command) -> int:
        """Run ``command`` on this terminal; its status. The container is removed afterwards."""
        _check_folder(spec, command)
        name = _new_name()
        terminal = sys.stdin.isatty() and sys.stdout.isatty()
        call = attached_invocation(
            self.facts, self._labelled(spec), command, self._environ, name=name, terminal=terminal
        )
        try:
            return run_attached(Command((str(self.facts.program), *call.arguments), env=call.env))
        finally:
            self._remove(name)

    def shown(self, spec: ContainerSpec, command: Command) -> str:
        """The shell command that does what :meth:`run` does; it takes the variables from the shell."""
        options = container_options(self.facts, spec, command, self._open_files)
        return shlex.join((self.facts.program.name, "run", "--rm", *options))

    def sweep(self) -> tuple[str, ...]:
        """Remove containers whose owner (a farm process of this host) is gone; their names.

        One that cannot be removed is left for the next time.
        """
        done = self._ask("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={LABEL}owner")
        if not done.ok:
            raise self._error("cannot list containers", done)
        removed = []
        for identifier in done.output.split():
            found = first_object(self._ask("container", "inspect", identifier).output)
            if found is None:
                continue
            owner = ((found.get("Config") or {}).get("Labels") or {}).get(f"{LABEL}owner", "")
            if owner_is_gone(str(owner)) and self._remove(identifier):
                removed.append(str(found.get("Name", identifier)).lstrip("/"))
        return tuple(removed)

    def _attempt(self, spec: ContainerSpec, command: Command, log: Path | None) -> Completed | None:
        """One container, made and removed; ``None`` when its limit on open files cannot be set."""
        name = _new_name()
        try:
            try:
                call = create_invocation(
                    self.facts, self._labelled(spec), command, self._environ,
                    name=name, open_files=self._open_files,
                )  # fmt: skip
                created = run(
                    Command(
                        (str(self.facts.program), *call.arguments),
                        env=call.env,
                        timeout=_CREATE_SECONDS,
                    )
                )
                if not created.ok:
                    self._check_second_try(command, created.output)
                    return None
                attached = run(self._attach(name, command), log=log)
                return self._outcome(name, command, spec, attached)
            except BaseException:
                self._stop(name)
                raise
        finally:
            self._remove(name)

    def _attach(self, name: str, command: Command) -> _Inside:
        argv = (str(self.facts.program), "start", "--attach", name)
        return _Inside(argv, env=self._environ, timeout=command.timeout, inside=command)

    def _outcome(
        self, name: str, command: Command, spec: ContainerSpec, attached: Completed
    ) -> Completed | None:
        """What came of the container, by the end of the engine's program and by the engine's record."""
        if attached.timed_out:
            self._stop(name)
            return replace(attached, returncode=attached.returncode or -signal.SIGTERM)
        state = self._settled(name, command, attached)
        if not state.started:
            self._check_second_try(command, state.error or attached.output)
            return None
        if state.running:
            self._stop(name)
            if self._broke(attached.output):
                raise self._lost(command, attached.output)
            # The program was told to end, as all are at an interrupt; docker 28 then says status 0.
            return replace(attached, returncode=-signal.SIGTERM)
        # An engine may miss it (podman, without its monitor's report): then SIGKILL tells, under a limit.
        signs = state.killed_for_memory or (spec.memory is not None and state.returncode == _KILLED)
        if signs and state.returncode:
            raise _killed_for_memory(command, spec.memory, attached)
        if attached.returncode not in (state.returncode, -signal.SIGTERM) and self._broke(
            attached.output
        ):
            raise self._lost(command, attached.output)
        if state.returncode in _INIT_STATUS and (line := said_by_init(attached.output)):
            raise self._not_started(command, line)
        return replace(attached, returncode=state.returncode)

    def _settled(self, name: str, command: Command, attached: Completed) -> ContainerState:
        """The state of a container whose output ended; an engine may record the end a moment later."""
        state = self._state(name, command, attached.output)
        for _ in range(_SETTLE_ATTEMPTS):
            if not state.running or attached.returncode < 0 or self._broke(attached.output):
                break
            time.sleep(_SETTLE_PAUSE)
            state = self._state(name, command, attached.output)
        return state

    def _state(self, name: str, command: Command, output: str) -> ContainerState:
        for _ in range(_CLEAN_ATTEMPTS):
            done = self._ask("container", "inspect", name)
            found = first_object(done.output) if done.ok else None
            state = None if found is None else container_state(found.get("State") or {})
            if (state and state.removed) or NO_CONTAINER.fits(done.output):
                raise self._vanished(command)
            if state is not None:
                return state
            if done.timed_out or trouble_of(done.output, GONE):
                break
            self._sleep(_CLEAN_PAUSE)  # the question itself was ended: see _insist
        raise self._lost(command, f"{output}\n{done.output}")

    def _vanished(self, command: Command) -> FarmError:
        message = f"the container of {_what(command)} vanished while it ran"
        return engine_error(message, "no such container", (NO_CONTAINER,), self.facts.name)

    def _check_second_try(self, command: Command, text: str) -> None:
        """Raise for a container that was not started, but for the one refusal that has a second try."""
        if not OPEN_FILES.fits(text) or self._open_files is not None:
            raise self._not_started(command, text)

    def _not_started(self, command: Command, text: str) -> FarmError:
        shown = command.argv[0] if command.argv else "nothing"
        message = f"cannot start {shown} in a container for {_what(command)}"
        gpu = gpu_engine_error(f"Error: {text}")
        return gpu or engine_error(message, text, CREATE, self.facts.name)

    def _broke(self, output: str) -> bool:
        """True when the last thing that was said is that the connection to the engine broke."""
        lines = [line for line in output.splitlines() if line.strip()]
        return bool(lines) and trouble_of(lines[-1], GONE) is not None

    def _lost(self, command: Command, output: str) -> FarmError:
        error = engine_error(
            f"{self.facts.name} went away while {_what(command)} ran",
            output,
            (LOST,),
            self.facts.name,
        )
        return InfrastructureError(
            error.message,
            cause=LOST.cause,
            next_step=LOST.next_step,
            details=error.details,
        )

    # -- the end of a container --------------------------------------------------------------------

    def _stop(self, name: str) -> None:
        """SIGTERM, then SIGKILL after the grace period; nothing for one that ended or never was."""
        self._insist("stop", "-t", f"{GRACE_SECONDS:.0f}", name)

    def _remove(self, name: str) -> bool:
        return self._insist("rm", "--force", "--volumes", name)

    def _insist(self, *arguments: str) -> bool:
        """Call the engine to clean up, again when the call itself was ended; never raises for that.

        While an interrupt ends the processes of all threads, new ones are ended too, these among them; the
        client of docker 28 then ends with status 0, having done and said nothing. What cannot be removed
        now (the engine is gone) is swept by a later run.
        """
        for _ in range(_CLEAN_ATTEMPTS):
            done = run(self._command(*arguments, timeout=_CLEAN_SECONDS))
            if done.timed_out or NO_CONTAINER.fits(done.output) or trouble_of(done.output, GONE):
                return False
            if done.ok and (done.output.strip() or self._is_gone(arguments[-1])):
                return True
            self._sleep(_CLEAN_PAUSE)
        return False

    def _is_gone(self, name: str) -> bool:
        return NO_CONTAINER.fits(self._ask("container", "inspect", name).output)

    # -- calls -------------------------------------------------------------------------------------

    def _labelled(self, spec: ContainerSpec) -> ContainerSpec:
        own = {f"{LABEL}owner": owner_label(), f"{LABEL}run": self._run_id}
        return replace(spec, labels={**own, **spec.labels})

    def _command(self, *arguments: str, timeout: float) -> Command:
        return Command((str(self.facts.program), *arguments), env=self._environ, timeout=timeout)

    def _ask(self, *arguments: str) -> Completed:
        return ask(self.facts.program, self._environ, *arguments)

    def _error(self, message: str, done: Completed) -> FarmError:
        text = done.output or ("it did not answer in time" if done.timed_out else "")
        return engine_error(message, text, GONE, self.facts.name)


def image_facts(ref: str, found: Mapping[str, Any]) -> ImageFacts:
    """From ``image inspect``. Podman writes ids without ``sha256:``, and gives what never was in a registry
    a digest at ``localhost``.
    """
    identifier = str(found.get("Id", ""))
    labels = (found.get("Config") or {}).get("Labels") or found.get("Labels") or {}
    return ImageFacts(
        ref=ref,
        id=identifier if ":" in identifier else f"sha256:{identifier}",
        architecture=machine_name(str(found.get("Architecture", ""))),
        size=int(found.get("Size") or 0),
        labels={str(key): str(value) for key, value in labels.items()},
        repo_digests=tuple(
            str(text)
            for text in found.get("RepoDigests") or ()
            if not str(text).startswith("localhost/")
        ),
    )


def container_state(found: Mapping[str, Any]) -> ContainerState:
    """From ``.State`` of ``container inspect``."""
    return ContainerState(
        running=bool(found.get("Running")),
        started=str(found.get("StartedAt") or _NEVER) != _NEVER,
        killed_for_memory=bool(found.get("OOMKilled")),
        returncode=int(found.get("ExitCode") or 0),
        error=str(found.get("Error") or ""),
        removed=found.get("Status") in ("removing", "dead"),
    )


def _killed_for_memory(
    command: Command, limit: int | None, attached: Completed
) -> InfrastructureError:
    bound = f"its limit of {limit / 2**20:,.0f} MiB" if limit else "the machine's memory"
    return InfrastructureError(
        f"{_what(command)} was killed for memory: it went over {bound}",
        cause="compilers that run in parallel need more than that together; one file of CUTLASS takes "
        "nvcc some GiB",
        next_step="run again with --jobs 1, or with a higher --memory",
        details=attached.tail(15),
    )


def _check_folder(spec: ContainerSpec, command: Command) -> None:
    """The engine would make a missing folder of the command, as root, and in the caller's tree."""
    cwd = command.cwd
    if cwd is None or cwd.is_dir() or not any(cwd.is_relative_to(m.target) for m in spec.mounts):
        return
    raise ToolchainError(
        f"cannot start {_what(command)} in {cwd}",
        cause="that folder is not there, on this machine and so in the container that shares it",
        next_step=f"ls -ld {shlex.quote(str(cwd.parent))}",
    )


def _what(command: Command) -> str:
    return command.label or json.dumps(command.shown[:60])


def _new_name() -> str:
    return f"{NAME_PREFIX}-{uuid.uuid4().hex[:12]}"
