"""The farm inside a container of a cell's build image.

The farm is not steered command by command from outside: one container runs one stage of it, with the host
executor there. Repository (read-only), cache and logs have the same paths inside as outside, so every path
in a log or an error is true on both sides. What a container writes into them belongs to the caller.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ci.errors import InfrastructureError, ToolchainError
from ci.executors.choice import ContainerPlace
from ci.executors.container import owner_label
from ci.executors.model import FARM_PYTHON, LABEL, ContainerSpec, Mount
from ci.executors.passed import passed_through
from ci.proc import Command, run
from ci.registry import REPOSITORY, build_utils

ASK_SECONDS = 300.0
BYTES_PER_COMPILER = 2 * 1024**3
"""Memory that one parallel compiler is counted with when a limit is set: nvcc of one CUTLASS file."""


def limited_jobs(jobs: int, cpus: float | None, memory: int | None) -> int:
    """Parallel compilers within the limits of a container: ``cpus``, ``memory`` in bytes."""
    bounds = [jobs]
    if cpus is not None:
        bounds.append(int(cpus))
    if memory is not None:
        bounds.append(memory // BYTES_PER_COMPILER)
    return max(1, min(bounds))


def home_of(cache_dir: Path) -> Path:
    """The home folder of whoever runs in a container: in the cache, since the caller has none there."""
    return cache_dir / "home"


def farm_environment(cache_dir: Path) -> dict[str, str]:
    """The farm's own variables in a container; the image's PATH stays."""
    found = {
        "HOME": str(home_of(cache_dir)),
        "LANG": "C.UTF-8",
        "PADDLEFLEET_FARM_CACHE": str(cache_dir),
        "PYTHONDONTWRITEBYTECODE": "1",
        "UV_CACHE_DIR": str(cache_dir / "uv"),
        # The checkout is mounted read-only, and may belong to another user.
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }
    return found | {name: os.environ[name] for name in ("CI",) if name in os.environ}


def caller() -> str:
    """``UID:GID`` of this process."""
    return f"{os.getuid()}:{os.getgid()}"


def farm_spec(
    place: ContainerPlace,
    cuda: str,
    cache_dir: Path,
    *,
    writable: Sequence[Path] = (),
    readable: Sequence[Path] = (),
    labels: Mapping[str, str] | None = None,
) -> ContainerSpec:
    """The container that a stage of the farm runs in. A rootless engine's root is the caller already."""
    passed = passed_through(os.environ, Path.home())
    own = [Mount(path, path) for path in (REPOSITORY, *_git_folders(), *readable)]
    own += [Mount(path, path, read_only=False) for path in (cache_dir, *writable)]
    options = place.options
    return ContainerSpec(
        image=place.images[cuda].id,
        mounts=_each_once((*own, *passed.mounts)),
        env={**passed.env, **farm_environment(cache_dir)},
        user="" if place.engine.facts.rootless else caller(),
        network=options.network,
        cpus=options.cpus,
        memory=options.memory,
        labels={LABEL + "owner": owner_label()} | dict(labels or {}),
    )


def withheld() -> tuple[str, ...]:
    """What of this host's settings does not go into containers, each with the reason."""
    return passed_through(os.environ, Path.home()).withheld


def _each_once(mounts: Sequence[Mount]) -> tuple[Mount, ...]:
    """One mount for each target, a writable one before a read-only one; parents before children."""
    chosen: dict[Path, Mount] = {}
    for mount in sorted(mounts, key=lambda item: item.read_only):
        chosen.setdefault(mount.target, mount)
    return tuple(chosen[target] for target in sorted(chosen))


def _git_folders() -> tuple[Path, ...]:
    """The folder of git's data when the checkout is a linked worktree, whose data lie elsewhere."""
    argv = ("git", "rev-parse", "--path-format=absolute", "--git-common-dir")
    done = run(Command(argv, cwd=REPOSITORY, env=build_utils.git_environment()))
    folder = Path(done.output.strip()) if done.ok else REPOSITORY
    return () if folder.is_relative_to(REPOSITORY) else (folder,)


def farm_command(*arguments: str, label: str, timeout: float | None = None) -> Command:
    """``python -m ci ARGUMENTS`` in a container of the farm."""
    argv = (FARM_PYTHON, "-m", "ci", *arguments)
    return Command(argv, cwd=REPOSITORY, env={}, timeout=timeout, label=label)


def offer_of_image(
    place: ContainerPlace, cuda: str, compiler: str, cache_dir: Path
) -> Mapping[str, object]:
    """What the cell's image would compile with, or the error that its build would end with.

    A compiler in the image that is not of the cell's CUDA is refused, though packages could take its
    place: whoever put it there meant it to be used.
    """
    command = farm_command(
        "toolchain", "--json", "--compiler", compiler, "--cache-dir", str(cache_dir),
        label="look for compilers", timeout=ASK_SECONDS,
    )  # fmt: skip
    spec = farm_spec(place, cuda, cache_dir)
    there = tuple(
        mount for mount in spec.mounts if mount.source.exists()
    )  # a first run has no cache
    done = place.engine.run(replace(spec, mounts=there), command, None)
    document = _document(done.output)
    if not done.ok or document is None:
        raise InfrastructureError(
            f"the farm does not run in {place.images[cuda].ref}",
            cause=f"`{command.shown}` ended with status {done.returncode} there",
            next_step=f"nox -s images -- cu{cuda.replace('.', '')} --verify",
            details=done.tail(15),
        )
    return _offer(document, cuda, place.images[cuda].ref)


def _document(output: str) -> Mapping[str, object] | None:
    start = output.find("{")
    try:
        found = json.JSONDecoder().raw_decode(output[max(0, start) :])[0]
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("cudas") else None


def _offer(document: Mapping[str, object], cuda: str, ref: str) -> Mapping[str, object]:
    cudas, found = document["cudas"], document["found"]
    assert isinstance(cudas, list)
    assert isinstance(found, list)
    offer: Mapping[str, object] = next(row for row in cudas if row["cuda"] == cuda)
    versions = [row["version"] for row in found if row["tool"] == "nvcc" and row["version"]]
    label = f"cu{cuda.replace('.', '')}"
    if versions and not any(version.startswith(f"{cuda}.") for version in versions):
        error = ToolchainError(
            f"the compiler in {ref} is of CUDA {', '.join(versions)}, the cell of CUDA {cuda}",
            cause="the image was made from a base of another CUDA, or its label is wrong",
            next_step=f"nox -s images -- {label}",
        )
        return {"cuda": cuda, "usable": False, "error": error.as_dict()}
    told = offer.get("error")
    if isinstance(told, Mapping) and not versions:
        way = f"nox -s images -- {label} --base public: an image with the nvcc of this CUDA"
        return {
            **offer,
            "error": {**told, "next_step": f"{way}; or --compiler clang, where {ref} has it"},
        }
    return offer
