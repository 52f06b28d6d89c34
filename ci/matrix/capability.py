"""CUDA compute capabilities as people declare them: ``9.0``, ``9.0a``, ``10.0f``, ``8.0+PTX``.

Meaning of the suffixes (NVIDIA, *CUDA Compiler Driver NVCC*, "GPU Compilation"): code for ``9.0``
runs on every later 9.x; ``a`` (architecture-specific) code runs on just that capability; ``f``
(family) code runs on that capability and on later ones of its family. ``+PTX`` adds PTX, which the
driver compiles for GPUs that came later.

Nothing is ever corrected, dropped or replaced here: what cannot be built is refused, with the
reason and the nearest valid values.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ci.errors import ConfigError
from ci.matrix.toolkits import RENAMED, TOOLKITS

_SHAPE = re.compile(r"([1-9][0-9]*)\.([0-9])([af]?)(\+PTX)?")
_LOOSE = re.compile(r"([0-9]+)(?:[.,]([0-9]))?([a-z]?)")
_SEPARATORS = re.compile(r"[;,\s]+")
_TARGETS = ("", "a", "f")
_NEAREST = 3


@dataclass(frozen=True, order=True)
class Capability:
    """One capability to compile for. Ordered by number, then plain before ``a`` before ``f``.

    ``ptx``: PTX is wanted as well. It is always PTX of the plain capability, because PTX for an
    ``a`` target runs nowhere else, so that it would be of no use on a later GPU.
    """

    major: int
    minor: int
    target: str = ""
    ptx: bool = False

    def __post_init__(self) -> None:
        if self.target not in _TARGETS:
            raise ValueError(f"target {self.target!r} is none of {_TARGETS}")

    @classmethod
    def parse(cls, text: str) -> Capability:
        """Read a declared capability; :class:`ConfigError` if no CUDA toolkit knows it."""
        reason = unknown_reason(text)
        found = _SHAPE.fullmatch(text)
        if reason is not None or found is None:
            raise ConfigError(
                reason or f"{text!r} is not a compute capability",
                cause="a capability is MAJOR.MINOR, then a or f where NVIDIA has such a target, "
                "then +PTX if PTX is wanted",
                next_step="take one of the nearest ones, or see `python -m ci matrix`",
            )
        major, minor, target, ptx = found.groups()
        return cls(int(major), int(minor), target, ptx is not None)

    @property
    def name(self) -> str:
        """The capability without ``+PTX``: ``9.0a``."""
        return f"{self.major}.{self.minor}{self.target}"

    @property
    def cc(self) -> tuple[int, int]:
        """The number alone, as the driver reports it for a GPU: ``(9, 0)``."""
        return (self.major, self.minor)

    @property
    def sm(self) -> str:
        """The real architecture for nvcc and cuobjdump: ``sm_90a``."""
        return f"sm_{self.major}{self.minor}{self.target}"

    @property
    def label(self) -> str:
        """Short form for names of files and versions: ``sm90a``, ``sm90ptx``."""
        return f"sm{self.major}{self.minor}{self.target}{'ptx' if self.ptx else ''}"

    def gencode(self) -> tuple[str, ...]:
        """Values for nvcc's ``-gencode``.

        Never ``-arch``: ``-arch=sm_90a`` is short for code=sm_90a,compute_90a, that is, it puts
        PTX into the binary that nobody asked for.
        """
        number = f"{self.major}{self.minor}"
        real = f"arch=compute_{number}{self.target},code={self.sm}"
        return (real, f"arch=compute_{number},code=compute_{number}") if self.ptx else (real,)

    def __str__(self) -> str:
        return self.name + ("+PTX" if self.ptx else "")


def parse_list(text: str) -> tuple[Capability, ...]:
    """Read ``8.0;9.0a`` (or with commas, or spaces) into an ascending tuple.

    :class:`ConfigError` names every entry that is unknown, there twice or in conflict with another,
    or says that the list is empty: an empty list would let the GPU of the build machine decide.
    """
    entries = [entry for entry in _SEPARATORS.split(text) if entry]
    problems = [reason for entry in entries if (reason := unknown_reason(entry)) is not None]
    known = [Capability.parse(entry) for entry in entries if unknown_reason(entry) is None]
    problems += conflict_reasons(known)
    if not entries:
        problems.append("the list has no capability")
    if problems:
        raise ConfigError(
            f"capabilities {text!r}: {problems[0]}",
            cause="each capability is written once, as 8.0, 9.0a, 10.0f or 9.0+PTX",
            next_step="mend the list; `python -m ci matrix` shows those of each cell",
            details=problems if len(problems) > 1 else (),
        )
    return tuple(sorted(known))


def join(capabilities: Iterable[Capability], separator: str = ";") -> str:
    """The list form again: ``8.0;9.0a``, what ``PADDLE_CUDA_ARCH_LIST`` takes."""
    return separator.join(str(capability) for capability in capabilities)


def gencode(capabilities: Iterable[Capability]) -> tuple[str, ...]:
    """``-gencode`` values of all; a value that two of them ask for (PTX) is there once."""
    return tuple(dict.fromkeys(value for item in capabilities for value in item.gencode()))


def conflict_reasons(capabilities: Sequence[Capability]) -> list[str]:
    """Why these cannot stand in one list: one twice (with or without ``+PTX``), or 10.0 with 10.0f.

    Plain and ``a`` of one number are two builds and may both be there. Plain and ``f`` are refused
    by nvcc (seen with 13.0, 13.2 and 13.5): "The same GPU code (`sm_100f`) generated for non
    family-specific and family-specific GPU arch".
    """
    by_name: dict[str, list[str]] = {}
    for capability in capabilities:
        by_name.setdefault(capability.name, []).append(str(capability))
    twice = [
        f"{name} is there {len(written)} times ({', '.join(written)}): write it once"
        for name, written in by_name.items()
        if len(written) > 1
    ]
    return twice + [
        f"{name} and {name}f exclude each other, nvcc refuses them together: write one of them"
        for name in by_name
        if f"{name}f" in by_name
    ]


def unknown_reason(text: str) -> str | None:
    """Why no CUDA toolkit could take this text as a capability; ``None`` if one can."""
    found = _SHAPE.fullmatch(text)
    if found is None:
        return f"{text!r} is not a compute capability; {_offer(text, _all_names())}"
    name = text.removesuffix("+PTX")
    if name in _all_names():
        return None
    return f"no CUDA toolkit knows {name}{_letter_note(found)}; {_offer(name, _all_names())}"


def check(capability: Capability, cuda: str) -> str | None:
    """Why the CUDA toolkit ``cuda`` ("13.0") cannot compile for it; ``None`` if it can."""
    toolkit = TOOLKITS.get(cuda)
    if toolkit is None:
        return (
            f"what CUDA {cuda} can compile for is not known here "
            f"(known releases: {', '.join(TOOLKITS)}): add a row to ci/matrix/toolkits.py"
        )
    if capability.name in toolkit.names:
        return None
    return (
        f"{capability.name} {_history(capability.name, cuda)}; "
        f"CUDA {cuda} knows {', '.join(toolkit.names)}; {_offer(capability.name, toolkit.names)}"
    )


def check_all(capabilities: Iterable[Capability], cuda: str) -> str | None:
    """Why the CUDA toolkit cannot compile for all of them, in short; ``None`` if it can."""
    lacking = [item for item in capabilities if check(item, cuda) is not None]
    if cuda not in TOOLKITS and lacking:
        return check(lacking[0], cuda)
    reasons = [f"{item.name} {_history(item.name, cuda)}" for item in lacking]
    return "; ".join(reasons) or None


def nearest(text: str, names: Sequence[str], count: int = _NEAREST) -> tuple[str, ...]:
    """The valid names that are closest to ``text``: by number, else by spelling."""
    numbers = _LOOSE.search(text.lower())
    if numbers is None:
        return tuple(difflib.get_close_matches(text, names, n=count))
    readings, target = _readings(numbers), numbers[3]

    def distance(name: str) -> tuple[int, bool]:
        gap = min(abs(_number(name) - reading) for reading in readings)
        return (gap, name.lstrip("0123456789.") != target)

    return tuple(sorted(names, key=distance)[:count])


def _readings(found: re.Match[str]) -> list[int]:
    """Tenfold capability numbers that loosely written digits may mean: 90 -> 9.0 or 90.0."""
    whole, minor = found[1], found[2]
    if minor is not None:
        return [int(whole) * 10 + int(minor)]
    return [int(whole) * 10, int(whole)]


def _number(name: str) -> int:
    major, _, rest = name.partition(".")
    return int(major) * 10 + int(rest.rstrip("af"))


def _all_names() -> tuple[str, ...]:
    names = {name for toolkit in TOOLKITS.values() for name in toolkit.names}
    return tuple(sorted(names, key=lambda name: (_number(name), name)))


def _offer(text: str, names: Sequence[str]) -> str:
    close = nearest(text, names)
    return f"nearest: {', '.join(close)}" if close else f"valid: {', '.join(names)}"


def _letter_note(found: re.Match[str]) -> str:
    if found[3] == "a":
        return " (architecture-specific targets begin at 9.0a)"
    if found[3] == "f":
        return " (family targets begin at 10.0f, with CUDA 12.9)"
    return ""


def _history(name: str, cuda: str) -> str:
    """What the table says about the past and future of a capability that ``cuda`` lacks."""
    releases = list(TOOLKITS)
    having = [release for release in releases if name in TOOLKITS[release].names]
    if not having:
        return "is known to no CUDA toolkit"
    if releases.index(having[-1]) < releases.index(cuda):
        gone = releases[releases.index(having[-1]) + 1]
        plain = name.rstrip("af")
        if plain in RENAMED:
            return f"is called {RENAMED[plain]}{name[len(plain) :]} since CUDA {gone}"
        return f"was removed in CUDA {gone}"
    if having[-1] != releases[-1]:
        return f"exists in CUDA {having[0]} to {having[-1]} only"
    return f"needs CUDA {having[0]} or newer"
