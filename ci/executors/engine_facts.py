"""Asks an engine's program what it is, and reads the answer, which differs between docker and podman."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from ci.errors import FarmError, InfrastructureError
from ci.executors.engine_errors import PROBE, engine_error
from ci.executors.model import EngineFacts
from ci.proc import Command, Completed, run

ASK_SECONDS = 60.0
_ARCHITECTURES = {"amd64": "x86_64", "x86-64": "x86_64", "arm64": "aarch64"}
_PODMAN_CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""Where podman looks for CDI specifications (containers-common, containers.conf, ``cdi_spec_dirs``)."""

_PODMAN_HOOK_FOLDERS = ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d")
_HOOK = "nvidia-container-runtime-hook"


def machine_name(architecture: str) -> str:
    """An architecture as ``platform.machine()`` says it: ``amd64`` is ``x86_64``, ``arm64`` ``aarch64``."""
    return _ARCHITECTURES.get(architecture.lower(), architecture.lower())


def ask(program: Path, environ: Mapping[str, str], *arguments: str) -> Completed:
    """Ask the engine's program; it gets no longer than :data:`ASK_SECONDS`.

    Raises :class:`~ci.errors.ToolchainError` when the program cannot be started.
    """
    env = {**environ, "DOCKER_CLI_HINTS": "false"}
    return run(Command((str(program), *arguments), env=env, timeout=ASK_SECONDS))


def ask_facts(program: Path, environ: Mapping[str, str]) -> EngineFacts:
    """What the engine behind ``program`` says of itself.

    Which engine it is follows from the answer, not from the name: ``docker`` may be podman. Raises
    :class:`~ci.errors.InfrastructureError` when it does not answer or does not let this user in, and
    :class:`~ci.errors.ToolchainError` when the program cannot be started.
    """
    done = ask(program, environ, "info", "--format", "{{json .}}")
    info = first_object(done.output)
    # docker 20.10 ends with status 0 when there is no daemon, and tells so in its answer.
    if done.timed_out or not done.ok or info is None or info.get("ServerErrors"):
        raise _no_answer(program, done, info)
    versions = first_object(ask(program, environ, "version", "--format", "{{json .}}").output) or {}
    client = _text(_map(versions.get("Client")).get("Version"))
    if isinstance(info.get("host"), dict):
        return podman_facts(program, info, client)
    endpoint = environ.get("DOCKER_HOST") or _endpoint(program, environ)
    local = _is_local(endpoint) and "desktop" not in _text(info.get("OperatingSystem")).lower()
    buildx = ask(program, environ, "buildx", "version").ok
    return docker_facts(program, info, client, local=local, buildx=buildx, environ=environ)


def _no_answer(program: Path, done: Completed, info: Mapping[str, Any] | None) -> FarmError:
    if done.timed_out:
        return InfrastructureError(
            f"{program} does not answer",
            cause=f"`{done.command.shown}` said nothing for {ASK_SECONDS:g} s: the daemon hangs",
            next_step="systemctl status docker; sudo systemctl restart docker",
        )
    errors = _texts((info or {}).get("ServerErrors"))
    text = "\n".join(errors) or "\n".join(
        line for line in done.output.splitlines() if not line.startswith("{")
    )
    return engine_error(f"no engine answers {program}", text, PROBE, program.name)


def docker_facts(
    program: Path,
    info: Mapping[str, Any],
    client: str,
    *,
    local: bool,
    buildx: bool,
    environ: Mapping[str, str],
) -> EngineFacts:
    """From ``docker info``; ``local`` is true when the daemon is on this machine and shares its folders."""
    root = Path(_text(info.get("DockerRootDir")) or "/var/lib/docker")
    options = _texts(info.get("SecurityOptions"))
    here = local and root.exists()
    runtimes = _map(info.get("Runtimes"))
    return EngineFacts(
        name="docker",
        program=program,
        client_version=client,
        server_version=_text(info.get("ServerVersion")),
        rootless=any(option.split(",")[0] == "name=rootless" for option in options),
        architecture=machine_name(_text(info.get("Architecture"))),
        data_root=root if here else None,
        storage_driver=_text(info.get("Driver")),
        cgroup_version=_text(info.get("CgroupVersion")),
        cpus=_number(info.get("NCPU")),
        memory=_number(info.get("MemTotal")),
        # The hook on the daemon's PATH is enough for --gpus, and the daemon does not tell of it.
        gpu_runtime="nvidia" in runtimes
        or (here and shutil.which(_HOOK, path=environ.get("PATH")) is not None),
        cdi_devices=_docker_cdi(info, here=here),
        has_buildx=buildx,
    )


def _docker_cdi(info: Mapping[str, Any], *, here: bool) -> tuple[str, ...]:
    """Docker 28.2 and newer name the devices; older ones (from 25) only the folders of specifications."""
    found = _list(info.get("DiscoveredDevices"))
    if found:
        devices = (_map(item) for item in found)
        return tuple(_text(item.get("ID")) for item in devices if item.get("Source") == "cdi")
    return cdi_devices(_texts(info.get("CDISpecDirs"))) if here else ()


def podman_facts(program: Path, info: Mapping[str, Any], client: str) -> EngineFacts:
    """From ``podman info``; podman has no daemon, so it is on this machine unless it says otherwise."""
    host, store, version = _map(info["host"]), _map(info.get("store")), _map(info.get("version"))
    root = Path(_text(store.get("graphRoot")) or "/var/lib/containers/storage")
    here = not host.get("serviceIsRemote") and root.exists()
    hooks = [path for folder in _PODMAN_HOOK_FOLDERS for path in Path(folder).glob("*nvidia*.json")]
    server = _text(version.get("Version"))
    return EngineFacts(
        name="podman",
        program=program,
        client_version=client or server,
        server_version=server or client,
        rootless=bool(_map(host.get("security")).get("rootless")),
        architecture=machine_name(_text(host.get("arch"))),
        data_root=root if here else None,
        storage_driver=_text(store.get("graphDriverName")),
        cgroup_version=_text(host.get("cgroupVersion")).removeprefix("v"),
        cpus=_number(host.get("cpus")),
        memory=_number(host.get("memTotal")),
        gpu_runtime=here and bool(hooks),
        cdi_devices=cdi_devices(_PODMAN_CDI_FOLDERS) if here else (),
    )


def cdi_devices(folders: Iterable[str]) -> tuple[str, ...]:
    """``kind=name`` of every device that the CDI specifications in ``folders`` describe, each once.

    The format is CNCF's container-device-interface, SPEC.md: ``kind`` and ``devices[].name``. A file that
    cannot be read describes nothing; the engine does not use it either.
    """
    files = [
        path
        for folder in folders
        for path in sorted(Path(folder).glob("*"))
        if path.suffix in (".yaml", ".yml", ".json")
    ]
    return tuple(dict.fromkeys(name for path in files for name in _described(path)))


def _described(path: Path) -> list[str]:
    try:
        document = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return []
    kind = _text(_map(document).get("kind"))
    devices = (_map(item) for item in _list(_map(document).get("devices")))
    return [f"{kind}={item['name']}" for item in devices if kind and item.get("name") is not None]


def _endpoint(program: Path, environ: Mapping[str, str]) -> str:
    """Where the chosen context of docker points; empty for a client that knows no contexts."""
    done = ask(program, environ, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
    return done.output.strip().splitlines()[-1] if done.ok and done.output.strip() else ""


def _is_local(endpoint: str) -> bool:
    return not endpoint or endpoint.startswith(("unix://", "/", "npipe://"))


def first_object(output: str) -> dict[str, Any] | None:
    """The JSON object that starts a line of ``output``, or the first of a list (``inspect`` gives lists).

    Docker writes what a format asks for as one line, podman as many; warnings may stand around it.
    """
    for start in re.finditer(r"^[{[]", output, re.MULTILINE):
        try:
            found, _ = json.JSONDecoder().raw_decode(output, start.start())
        except ValueError:
            continue
        first = found[0] if isinstance(found, list) and found else found
        return first if isinstance(first, dict) else None
    return None


def _map(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> list[str]:
    return [item for item in _list(value) if isinstance(item, str)]


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
