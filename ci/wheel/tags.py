"""The tag of a wheel, computed from its content; nobody types one.

- Python: that of the cell (``cp312``), because the choice of libraries depends on the Python.
- ABI: ``cp312`` if any ELF file of the wheel touches Python, else ``none``. An ``abi3`` extension counts as
  touching: ``cp312-abi3`` would offer the wheel to later Pythons, whose choice of libraries is another.
- Platform: ``any`` without host ELF files; else what auditwheel's own analysis says, that is the manylinux
  tag of the oldest glibc that the content satisfies (PEP 600), with its aliases.

An installer takes ``cp312-none-any`` on CPython 3.12 only (PEP 425, and ``packaging.tags.compatible_tags``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.tags import Tag, parse_tag

from ci.errors import FindingError, ToolchainError
from ci.findings import Finding
from ci.proc import Command, run
from ci.wheel.facts import WheelFacts

_ANALYZE = Path(__file__).with_name("child") / "analyze.py"
_TIMEOUT = 1800.0


@dataclass(frozen=True)
class Analysis:
    """What auditwheel's analysis says of a wheel.

    ``platforms`` is the platform tag with its aliases (``("any",)`` without ELF files). ``external`` maps
    each library needed from outside to the file on this host, ``None`` when it is nowhere. ``allowed`` is
    the allow list of that policy. ``notes`` are reasons why only ``linux_*`` is left.
    """

    platforms: tuple[str, ...]
    external: Mapping[str, str | None]
    allowed: frozenset[str]
    notes: tuple[str, ...] = ()

    @property
    def is_manylinux(self) -> bool:
        """True when some portable platform tag fits."""
        return self.platforms[0].startswith(("manylinux", "musllinux"))


@dataclass(frozen=True)
class WheelTag:
    """A computed tag. ``platform`` is compressed: aliases are sorted and joined by dots (PEP 425)."""

    python: str
    abi: str
    platform: str

    def __str__(self) -> str:
        return f"{self.python}-{self.abi}-{self.platform}"

    @property
    def expanded(self) -> frozenset[Tag]:
        """One tag for each platform."""
        return parse_tag(str(self))


def compute_tag(facts: WheelFacts, python_tag: str, platforms: Sequence[str]) -> WheelTag:
    """The tag of a wheel with these ``facts``; ``platforms`` come from :func:`analyze`."""
    touches = any(elf.touches_python for elf in facts.host_elfs)
    platform = ".".join(sorted(platforms)) if facts.host_elfs else "any"
    return WheelTag(python_tag, python_tag if touches else "none", platform)


def python_findings(facts: WheelFacts, python_tag: str) -> tuple[Finding, ...]:
    """Extensions that were built for another Python than ``python_tag`` (such as ``cp312``).

    A ``cpython-310`` file in a ``cp312`` wheel installs, and then cannot be imported: the import system
    looks only for the suffixes of its own ABI (PEP 3149).
    """
    wanted = f"cpython-{python_tag.removeprefix('cp')}"
    return tuple(
        Finding(
            "foreign-python",
            elf.path,
            f"it is built for {elf.abi}, and the wheel is for {python_tag}",
            "build the library with the Python of the cell, and clean its build folder first",
        )
        for elf in facts.host_elfs
        if elf.abi not in ("", "abi3", wanted)
    )


def analyze(
    wheel: Path, exclude: Sequence[str], *, graft: bool, env: Mapping[str, str] | None = None
) -> Analysis:
    """Run auditwheel's analysis on ``wheel`` in a process of its own.

    With ``graft`` the answer is for the wheel after a repair on this host, else for the wheel as it is.
    Raises :class:`~ci.errors.ToolchainError` when auditwheel is not installed, and
    :class:`~ci.errors.FindingError` when it cannot read the wheel.
    """
    argv = [sys.executable, str(_ANALYZE), str(wheel.absolute())]
    argv += ["--graft"] if graft else []
    argv += [f"--exclude={pattern}" for pattern in exclude]
    done = run(Command(tuple(argv), env=env, timeout=_TIMEOUT, label="auditwheel's analysis"))
    if done.ok:
        answer = json.loads(done.output.splitlines()[-1])
        return Analysis(
            platforms=tuple(answer["platforms"]),
            external=answer["external"],
            allowed=frozenset(answer["allowed"]),
            notes=tuple(answer["notes"]),
        )
    if "No module named 'auditwheel'" in done.output:
        raise missing_tool("auditwheel")
    raise FindingError(
        f"auditwheel cannot analyse {wheel.name}",
        cause=(done.tail(1) or ("no output",))[0],
        next_step=f"run it by hand: python -m auditwheel show {wheel.name}",
        details=done.tail(20),
    )


def missing_tool(name: str) -> ToolchainError:
    """The error for a tool of the farm's own environment that is not there."""
    return ToolchainError(
        f"{name} is not installed in the farm's environment",
        cause=f"{sys.executable} has no {name}",
        next_step="install the farm with its dependencies: python -m pip install -e .",
    )
