"""The values of compiler caches: which tool, why none, and what came of the compilers' calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Tool = Literal["sccache", "ccache"]
CHOICES = ("auto", "sccache", "ccache", "none")

NVCC_BEHIND_CCACHE = (
    "nvcc is not cached by ccache: it compares what `nvcc -E` prints, which is device code only, and "
    "would give an old object after a change of host code; sccache caches nvcc"
)
"""Source: sccache 0.16.0, src/compiler/nvcc.rs (why it takes nvcc apart); a test shows it with ccache
4.7.5.
"""

CLANG_AS_NVCC = (
    "device code made by clang is not cached: the driver that speaks nvcc for clang starts several "
    "compilers itself, and no compiler cache knows it"
)


@dataclass(frozen=True)
class CompilerCache:
    """A usable compiler cache. ``remarks`` are what it does not do, for the report; ``path`` is the
    program, ``death_signal`` the program that ends a server with the farm (``setpriv``), when there is one.
    """

    tool: Tool
    path: Path
    version: str
    remarks: tuple[str, ...] = ()
    death_signal: Path | None = None

    @property
    def shown(self) -> str:
        """For messages: ``sccache 0.16.0``."""
        return f"{self.tool} {self.version}"


@dataclass(frozen=True)
class NoCompilerCache:
    """Compilers run without a cache; ``reason`` says why."""

    reason: str


@dataclass(frozen=True)
class Compilers:
    """The compilers of one library build, and the places that its compilers' options leave out of their
    output.

    ``cc`` and ``cxx`` are programs. ``cuda_home`` is where builds look for ``bin/nvcc``, None without
    device code; ``nvcc_is_clang`` says that it is the driver for clang. ``identity`` is the toolchain's
    text: versions and contents, no paths. ``mapped`` are the folders of ``-ffile-prefix-map`` in
    ``CPPFLAGS``, the one of the sources first.
    """

    cc: Path | None
    cxx: Path | None
    cuda_home: Path | None
    identity: str
    mapped: tuple[str, ...]
    nvcc_is_clang: bool = False


@dataclass(frozen=True)
class CacheStats:
    """What came of compilers' calls. ``languages`` maps a language, as the tool calls it, to hits and
    misses; ``uncacheable`` a reason to a number of calls. ``errors`` counts failures of the cache's
    storage.

    With sccache one call of nvcc is several requests: its front end, its device compiler and assembler for
    each capability, and the host compiler, each of which is found or not.
    """

    tool: str = ""
    requests: int = 0
    hits: int = 0
    misses: int = 0
    errors: int = 0
    languages: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    uncacheable: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: CacheStats) -> CacheStats:
        languages = dict(self.languages)
        for name, (hits, misses) in other.languages.items():
            before = languages.get(name, (0, 0))
            languages[name] = (before[0] + hits, before[1] + misses)
        return CacheStats(
            self.tool or other.tool,
            self.requests + other.requests,
            self.hits + other.hits,
            self.misses + other.misses,
            self.errors + other.errors,
            dict(sorted(languages.items())),
            _added(self.uncacheable, other.uncacheable),
        )

    @classmethod
    def total(cls, parts: Iterable[CacheStats]) -> CacheStats:
        """The sum; nothing where there is nothing."""
        whole = cls()
        for part in parts:
            whole += part
        return whole

    @property
    def shown(self) -> str:
        """For a report: ``12 hits, 3 misses; not cacheable: 2 link``. Empty when nothing was asked."""
        if not (self.requests or self.uncacheable):
            return ""
        text = f"{self.hits} hits, {self.misses} misses"
        if self.uncacheable:
            text += "; not cacheable: " + ", ".join(
                f"{number} {reason}" for reason, number in sorted(self.uncacheable.items())
            )
        return text + (f"; {self.errors} errors of its storage" if self.errors else "")

    def as_dict(self) -> dict[str, object]:
        """JSON-ready values, for records and reports."""
        return {
            "tool": self.tool,
            "requests": self.requests,
            "hits": self.hits,
            "misses": self.misses,
            "errors": self.errors,
            "languages": {
                name: {"hits": hits, "misses": misses}
                for name, (hits, misses) in self.languages.items()
            },
            "uncacheable": dict(self.uncacheable),
        }


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    names = sorted({*one, *other})
    return {name: one.get(name, 0) + other.get(name, 0) for name in names}
