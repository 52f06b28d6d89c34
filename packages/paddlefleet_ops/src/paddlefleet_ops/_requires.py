"""The conditions under which a library is built and loaded: one value, used by both sides.

``build_utils.py`` loads this file by its path when a wheel is built; the loader imports it from the
wheel. It therefore uses the standard library alone and has no effect on import. Nothing here asks
the machine: what was observed arrives as an :class:`Environment`, so that a laptop can decide what
a host with eight Blackwell GPUs would do.

Version conditions are comma separated comparisons such as ``>=12.9`` or ``>=3.12,<3.14``, a subset
of the version specifiers of PEP 440 that a compute capability can use as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

Version = tuple[int, ...]

_CLAUSE = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)\s*\Z")


def parse_version(text: str) -> Version:
    """``"12.9"`` as ``(12, 9)``. Raises :class:`ValueError` for anything but dotted integers."""
    if not re.fullmatch(r"\d+(\.\d+)*", text.strip()):
        raise ValueError(f"not a version of dotted integers: {text!r}")
    return tuple(int(part) for part in text.strip().split("."))


def format_version(version: Version) -> str:
    """``(12, 9)`` as ``"12.9"``."""
    return ".".join(str(part) for part in version)


def parse_condition(text: str) -> tuple[tuple[str, Version], ...]:
    """``">=3.12,<3.14"`` as pairs of operator and version; an empty text has none.

    Raises :class:`ValueError` that names the clause which cannot be read.
    """
    if text not in _CONDITIONS:
        _CONDITIONS[text] = _parsed(text)
    return _CONDITIONS[text]


# Read once: a matrix asks for the conditions of its libraries in each of its cells.
_CONDITIONS: dict[str, tuple[tuple[str, Version], ...]] = {}


def _parsed(text: str) -> tuple[tuple[str, Version], ...]:
    clauses = []
    for clause in filter(None, (part.strip() for part in text.split(","))):
        match = _CLAUSE.match(clause)
        if match is None:
            raise ValueError(f"not a condition: {clause!r} (write it like '>=12.9')")
        clauses.append((match.group(1), parse_version(match.group(2))))
    return tuple(clauses)


def _compare(found: Version, operator: str, wanted: Version) -> bool:
    width = max(len(found), len(wanted))
    left = found + (0,) * (width - len(found))
    right = wanted + (0,) * (width - len(wanted))
    return {
        ">=": left >= right,
        "<=": left <= right,
        "==": left == right,
        "!=": left != right,
        ">": left > right,
        "<": left < right,
    }[operator]


def satisfies(found: Version, condition: str) -> bool:
    """True when ``found`` meets every clause of ``condition``."""
    return all(_compare(found, operator, wanted) for operator, wanted in parse_condition(condition))


@dataclass(frozen=True)
class Environment:
    """What was observed: at build time of a cell, at load time of the running process.

    ``cuda`` is ``None`` where there is no CUDA (a CPU build of Paddle), ``capabilities`` holds
    every compute capability in question as ``(major, minor)``: those of the cell at build time,
    that of the current device at load time. An empty tuple means that there is no GPU, and
    ``no_gpu`` says why.
    """

    python: Version
    cuda: Version | None
    capabilities: tuple[tuple[int, int], ...] = ()
    no_gpu: str = "no CUDA device was found"
    no_cuda: str = "this Paddle was built without CUDA"


@dataclass(frozen=True)
class Requires:
    """Conditions on CUDA, Python and compute capability; an empty text asks for nothing.

    ``cpu_path`` says that the library also works without a GPU: the capability is then asked for
    only where there is a GPU.
    """

    cuda: str = ""
    python: str = ""
    capability: str = ""
    cpu_path: bool = False

    def __post_init__(self) -> None:
        for condition in (self.cuda, self.python, self.capability):
            parse_condition(condition)

    def unmet(self, environment: Environment) -> tuple[str, ...]:
        """Every condition that ``environment`` does not meet, each with what was found instead.

        A capability condition is met when at least one capability meets it.
        """
        return tuple(
            filter(
                None,
                (
                    self._unmet_cuda(environment),
                    self._unmet_python(environment),
                    self._unmet_capability(environment),
                ),
            )
        )

    def _unmet_cuda(self, environment: Environment) -> str:
        if not self.cuda:
            return ""
        if environment.cuda is None:
            return f"needs CUDA {self.cuda}; {environment.no_cuda}"
        if satisfies(environment.cuda, self.cuda):
            return ""
        return f"needs CUDA {self.cuda}; found {format_version(environment.cuda)}"

    def _unmet_python(self, environment: Environment) -> str:
        if not self.python or satisfies(environment.python, self.python):
            return ""
        return f"needs Python {self.python}; found {format_version(environment.python)}"

    def _unmet_capability(self, environment: Environment) -> str:
        if not self.capability:
            return ""
        if not environment.capabilities:
            if self.cpu_path:
                return ""
            return f"needs compute capability {self.capability}; {environment.no_gpu}"
        if any(satisfies(found, self.capability) for found in environment.capabilities):
            return ""
        found = ", ".join(_sorted_capabilities(environment.capabilities))
        return f"needs compute capability {self.capability}; found {found}"

    def as_dict(self) -> dict[str, object]:
        """The conditions as JSON-ready values, the form that the manifest holds."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Requires:
        """The inverse of :meth:`as_dict`. Raises :class:`ValueError` for a wrong condition."""
        return cls(
            cuda=str(values.get("cuda", "")),
            python=str(values.get("python", "")),
            capability=str(values.get("capability", "")),
            cpu_path=bool(values.get("cpu_path", False)),
        )


def _sorted_capabilities(capabilities: Iterable[tuple[int, int]]) -> list[str]:
    return [f"{major}.{minor}" for major, minor in sorted(set(capabilities))]
