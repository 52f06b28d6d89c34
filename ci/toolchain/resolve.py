"""From a wanted CUDA and the facts about a machine to what will be used. Pure: asks nothing.

The choice is a value, so that a laptop can tell what any other machine would do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ci.errors import ConfigError, ToolchainError
from ci.toolchain.model import (
    OLDEST_CLANG,
    ClangFact,
    HostCompilerFact,
    MachineFacts,
    NvccFact,
)
from ci.toolchain.recipes import Recipe, assembled_versions, find_recipe

COMPILERS = ("auto", "nvcc", "clang")


@dataclass(frozen=True)
class UseNvcc:
    """Use an nvcc that is installed on this machine."""

    nvcc: NvccFact
    host: HostCompilerFact


@dataclass(frozen=True)
class Assemble:
    """Put a CUDA home together from packages; ``clang`` compiles the device code when given."""

    recipe: Recipe
    host: HostCompilerFact
    clang: ClangFact | None = None


Choice = UseNvcc | Assemble


def choose(cuda: str, compiler: str, facts: MachineFacts) -> Choice:
    """What a cell with this CUDA uses; ``compiler`` is ``auto``, ``nvcc`` or ``clang``.

    An installed nvcc is taken only when its ``major.minor`` is the cell's: a wheel's label must be
    its content. ``auto`` never falls back to clang, since such a wheel cannot be published.

    Raises :class:`~ci.errors.ToolchainError` with the ways to get a compiler, and
    :class:`~ci.errors.ConfigError` for a compiler that is none of these.
    """
    if compiler not in COMPILERS:
        raise ConfigError(
            f"unknown compiler {compiler!r}",
            cause="a compiler is one of " + ", ".join(COMPILERS),
            next_step="--compiler auto",
        )
    if compiler == "clang":
        return _choose_clang(cuda, facts)
    return _choose_nvcc(cuda, facts)


def _choose_nvcc(cuda: str, facts: MachineFacts) -> Choice:
    for nvcc in facts.nvccs:
        if not nvcc.problem and nvcc.release == cuda:
            host = choose_host(facts.hosts, nvcc.newest_gcc, nvcc.newest_clang, f"CUDA {cuda}")
            return UseNvcc(nvcc, host)
    recipe = find_recipe(cuda, "nvcc")
    if recipe is None:
        raise _no_nvcc(cuda, facts)
    _refuse_machine(facts.machine)
    host = choose_host(facts.hosts, recipe.newest_gcc, 0, f"CUDA {cuda}")
    return Assemble(recipe, host)


def _choose_clang(cuda: str, facts: MachineFacts) -> Choice:
    recipe = find_recipe(cuda, "clang")
    if recipe is None:
        can = ", ".join(assembled_versions("clang"))
        raise ToolchainError(
            f"clang cannot be used for CUDA {cuda}",
            cause=_why_no_clang_recipe(cuda, can),
            next_step="--compiler auto",
        )
    _refuse_machine(facts.machine)
    clang = next((fact for fact in facts.clangs if _clang_fits(fact)), None)
    if clang is None:
        raise ToolchainError(
            f"no clang >= {OLDEST_CLANG} on this machine",
            cause=_seen_clangs(facts.clangs),
            next_step=f"apt-get install clang-{OLDEST_CLANG} clang-tools-{OLDEST_CLANG}",
        )
    hosts = [host for host in facts.hosts if host.family != "clang"]
    return Assemble(recipe, choose_host(hosts, 0, 0, "clang"), clang)


def _why_no_clang_recipe(cuda: str, can: str) -> str:
    if find_recipe(cuda, "nvcc") is not None:
        return f"CUDA {cuda} has its real nvcc on the package index; clang serves {can}"
    return f"clang with packages from the index serves CUDA {can}"


def _clang_fits(fact: ClangFact) -> bool:
    return not fact.problem and fact.major >= OLDEST_CLANG


def _seen_clangs(clangs: Sequence[ClangFact]) -> str:
    if not clangs:
        return "there is no clang++ on PATH"
    seen = (f"{fact.path}: {fact.problem or 'clang ' + fact.version}" for fact in clangs)
    return "found " + "; ".join(seen)


def _refuse_machine(machine: str) -> None:
    if machine != "x86_64":
        raise ToolchainError(
            f"a toolchain cannot be put together on {machine}",
            cause="the packages were tried on x86_64 only",
            next_step="install the CUDA toolkit and set CUDA_HOME to its folder",
        )


def _no_nvcc(cuda: str, facts: MachineFacts) -> ToolchainError:
    """The refusal, with every way to get a compiler for this CUDA."""
    ways = [f"install the CUDA {cuda} toolkit and set CUDA_HOME to its folder"]
    if find_recipe(cuda, "clang") is not None:
        ways.append(
            f"--compiler clang: needs clang >= {OLDEST_CLANG} (apt-get install "
            f"clang-{OLDEST_CLANG} clang-tools-{OLDEST_CLANG}); such wheels cannot be published"
        )
    ways.append("--executor container: build in the image of this CUDA")
    seen = [
        f"{fact.path} ({fact.origin_text}): {fact.problem or 'is CUDA ' + fact.version}"
        for fact in facts.nvccs
    ]
    can = ", ".join(assembled_versions("nvcc"))
    return ToolchainError(
        f"no nvcc of CUDA {cuda}",
        cause=f"none is installed, and the package index has nvcc for CUDA {can} only",
        next_step=f"one of these {len(ways)} ways: "
        + "; ".join(f"({number}) {way}" for number, way in enumerate(ways, 1)),
        details=["looked at: " + text for text in seen] or ["looked at: no nvcc anywhere"],
    )


def choose_host(
    hosts: Sequence[HostCompilerFact], newest_gcc: int, newest_clang: int, who: str
) -> HostCompilerFact:
    """The host compiler for ``who``: the one a variable asks for, else the first that is accepted.

    A compiler that the user asked for is never replaced in silence. A limit of 0 means: unknown or
    none for gcc, not accepted for clang.

    Raises :class:`~ci.errors.ToolchainError` when the asked one, or every one, is unusable.
    """
    reasons: list[str] = []
    for host in hosts:
        why_not = _host_problem(host, newest_gcc, newest_clang, who)
        if not why_not:
            return host
        reasons.append(f"{host.cxx}: {why_not}")
        if host.asked_by:
            raise ToolchainError(
                f"{host.asked_by} asks for {host.shown}, which cannot be used with {who}",
                cause=why_not,
                next_step=f"unset {host.asked_by}, or set it to {_wanted_gcc(newest_gcc)}",
            )
    raise ToolchainError(
        f"no C++ compiler for {who}",
        cause="; ".join(reasons) or "there is no g++ on PATH",
        next_step=f"apt-get install {_wanted_gcc(newest_gcc)}",
    )


def _host_problem(host: HostCompilerFact, newest_gcc: int, newest_clang: int, who: str) -> str:
    if host.problem:
        return host.problem
    if host.family == "clang" and newest_clang == 0:
        return f"clang is not accepted as host compiler of {who}; use gcc"
    newest = newest_clang if host.family == "clang" else newest_gcc
    if newest and host.major > newest:
        return f"{who} accepts {host.family} {newest} at most, this is {host.version}"
    return ""


def _wanted_gcc(newest_gcc: int) -> str:
    return f"g++-{newest_gcc}" if newest_gcc else "g++"
