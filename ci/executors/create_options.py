"""A container's specification as options of ``docker create`` or ``podman create``."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass

from ci.executors.gpus import gpu_arguments
from ci.executors.model import ContainerSpec, EngineFacts, Mount
from ci.proc import Command

CLIENT_SETTINGS = (
    "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "CONTAINER_CONNECTION", "CONTAINER_HOST",
    "DOCKER_API_VERSION", "DOCKER_CERT_PATH", "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_HOST", "DOCKER_TLS",
    "DOCKER_TLS_VERIFY", "HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR",
)  # fmt: skip
"""Variables by which the engine's program finds its engine and its own files."""

_CLIENT_READS = frozenset({*CLIENT_SETTINGS, "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH"})
"""What the engine's program itself goes by, so that it cannot have the container's values. No secrets."""


@dataclass(frozen=True)
class Invocation:
    """Arguments of the engine's program, and the environment that it runs in."""

    arguments: tuple[str, ...]
    env: Mapping[str, str]


def create_invocation(
    facts: EngineFacts,
    spec: ContainerSpec,
    command: Command,
    environ: Mapping[str, str],
    *,
    name: str,
    open_files: int | None = None,
) -> Invocation:
    """``create`` with everything that ``spec`` and ``command`` say; without a copy of the output in the
    engine's own log.

    Values of the environment are not arguments (those can be read by every user of the machine, and are
    in logs): the program takes them from its own environment by name. Raises what
    :func:`~ci.executors.gpus.gpu_arguments` raises.
    """
    options = container_options(facts, spec, command, open_files)
    own = ("create", "--name", name, "--pull=never", "--log-driver=none", *_labels(spec))
    return Invocation((*own, *options), {**environ, **_by_name(spec, command)})


def attached_invocation(
    facts: EngineFacts,
    spec: ContainerSpec,
    command: Command,
    environ: Mapping[str, str],
    *,
    name: str,
    terminal: bool,
) -> Invocation:
    """``run`` for somebody who sits at it: with input, and a terminal when there is one."""
    own = ("run", "--rm", "--interactive", *(("--tty",) if terminal else ()), "--name", name)
    options = container_options(facts, spec, command)
    arguments = (*own, "--pull=never", "--log-driver=none", *_labels(spec), *options)
    return Invocation(arguments, {**environ, **_by_name(spec, command)})


def container_options(
    facts: EngineFacts, spec: ContainerSpec, command: Command, open_files: int | None = None
) -> tuple[str, ...]:
    """Options, image and program: what ``create`` and ``run`` have in common.

    The image's entry point is put aside, so that just ``command`` runs; below ``--init``, which hands on
    signals and buries orphans.
    """
    env = {**spec.env, **(command.env or {})}
    by_name = (part for key in _by_name(spec, command) for part in ("--env", key))
    apart = ((key, env[key]) for key in env if key in _CLIENT_READS)
    return (
        "--init", "--entrypoint=",
        *_of_engine(facts),
        *_limits(spec, open_files),
        *_where(spec, command),
        *by_name,
        *(part for key, value in apart for part in ("--env", f"{key}={value}")),
        *(gpu_arguments(facts, spec.gpus) if spec.gpus is not None else ()),
        spec.image,
        *command.argv,
    )  # fmt: skip


def _by_name(spec: ContainerSpec, command: Command) -> dict[str, str]:
    """The variables that the engine's program may hold itself, to hand them on."""
    env = {**spec.env, **(command.env or {})}
    return {key: value for key, value in env.items() if key not in _CLIENT_READS}


def _labels(spec: ContainerSpec) -> tuple[str, ...]:
    return tuple(
        part for key, value in spec.labels.items() for part in ("--label", f"{key}={value}")
    )


def _of_engine(facts: EngineFacts) -> tuple[str, ...]:
    """SELinux must not keep a container from the caller's folders, and relabelling those would be worse."""
    if facts.name == "podman":
        # podman would hand over the caller's proxy variables, and a password in one of them.
        return ("--security-opt=label=disable", "--http-proxy=false")
    # Of a daemon that maps users to others (userns-remap), files in mounts would not be the caller's.
    return ("--security-opt=label=disable", *(() if facts.rootless else ("--userns=host",)))


def _limits(spec: ContainerSpec, open_files: int | None) -> list[str]:
    found: list[str] = []
    if spec.cpus is not None:
        found += ["--cpus", f"{spec.cpus:g}"]
    if spec.memory is not None:
        # The same for memory and swap together: no swap, so a limit is one.
        found += ["--memory", f"{spec.memory}b", "--memory-swap", f"{spec.memory}b"]
    if spec.shm_size is not None:
        found += ["--shm-size", f"{spec.shm_size}b"]
    if open_files is not None:
        found += ["--ulimit", f"nofile={open_files}:{open_files}"]
    return found


def _where(spec: ContainerSpec, command: Command) -> list[str]:
    found: list[str] = []
    if spec.user:
        found += ["--user", spec.user]
    if spec.network:
        found += ["--network", spec.network]
    if command.cwd is not None:
        found += ["--workdir", str(command.cwd)]
    return found + [part for mount in spec.mounts for part in ("--mount", mount_value(mount))]


def mount_value(mount: Mount) -> str:
    """The value of ``--mount``: one line of CSV, so a comma in a path is quoted.

    ``--mount`` refuses a source that is not there, where ``--volume`` would make a folder of root's.
    """
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    sink = io.StringIO()
    csv.writer(sink, lineterminator="").writerow(fields + ["readonly"] * mount.read_only)
    return sink.getvalue()
