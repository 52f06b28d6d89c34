"""The values of the build matrix: what the file says, and what each combination became.

``MatrixFile`` is the checked content of ``matrix.toml``. Each combination of its axes (CUDA ×
Python × capability set) is decided once, in :mod:`ci.matrix.resolve`, into ``Accepted`` or
``Rejected``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ci.matrix.capability import Capability, gencode

DEFAULT_SET = "default"
"""Name, in the file and on the command line, of the set that every CUDA has: its own list."""


def version_key(version: str) -> tuple[int, ...]:
    """Sort key of a dotted version: "3.10" comes after "3.9"."""
    return tuple(int(part) for part in version.split("."))


@dataclass(frozen=True)
class PaddleRequirement:
    """Which Paddle a cell needs. ``gpu`` and ``cpu`` are PEP 508 requirements.

    ``gpu`` is found on ``index`` (a PEP 503 index of that CUDA) only; ``cpu`` is for hosts without
    a GPU and comes from the normal package index.
    """

    gpu: str
    index: str
    cpu: str

    def as_dict(self) -> dict[str, str]:
        """JSON-ready values."""
        return {"gpu": self.gpu, "index": self.index, "cpu": self.cpu}


@dataclass(frozen=True)
class CudaEntry:
    """One CUDA of the file: ``version`` "13.0", its build image, its own capabilities."""

    version: str
    image: str
    capabilities: tuple[Capability, ...]
    paddle: PaddleRequirement


@dataclass(frozen=True)
class CapabilitySet:
    """A named list of capabilities. It gives cells of its own where the CUDA can compile it."""

    name: str
    capabilities: tuple[Capability, ...]


@dataclass(frozen=True)
class Match:
    """A choice on each axis; an empty tuple takes all. ``sets`` holds "" for the default set."""

    cuda: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()

    def covers(self, cuda: str, python: str, capability_set: str) -> bool:
        """Whether the combination is in the choice."""
        asked = ((self.cuda, cuda), (self.pythons, python), (self.sets, capability_set))
        return all(not wanted or value in wanted for wanted, value in asked)


@dataclass(frozen=True)
class Exclude:
    """Combinations that are not built, and why."""

    match: Match
    reason: str


@dataclass(frozen=True)
class Tier:
    """A named choice of cells, such as those that a pull request builds."""

    name: str
    about: str
    match: Match


@dataclass(frozen=True)
class MatrixFile:
    """The checked content of ``matrix.toml``, versions in ascending order."""

    cudas: tuple[CudaEntry, ...]
    pythons: tuple[str, ...]
    sets: tuple[CapabilitySet, ...]
    excludes: tuple[Exclude, ...]
    tiers: tuple[Tier, ...]


def cell_id(cuda: str, python: str, capability_set: str) -> str:
    """``cu130-cp312``, or ``cu129-cp312-hopper`` with a set."""
    parts = (cuda_label(cuda), python_tag(python), capability_set)
    return "-".join(part for part in parts if part)


def cuda_label(cuda: str) -> str:
    """``cu130`` for "13.0"."""
    return "cu" + cuda.replace(".", "")


def python_tag(python: str) -> str:
    """``cp312`` for "3.12" (PEP 425)."""
    return "cp" + python.replace(".", "")


@dataclass(frozen=True)
class Cell:
    """One point of the matrix: ``cuda`` "13.0", ``python`` "3.12".

    ``capability_set`` is "" for the CUDA's own list; ``capabilities`` are in ascending order.
    """

    cuda: str
    python: str
    capability_set: str
    capabilities: tuple[Capability, ...]
    image: str
    paddle: PaddleRequirement

    @property
    def id(self) -> str:
        """Readable and unique in the matrix: ``cu130-cp312``, ``cu129-cp312-hopper``."""
        return cell_id(self.cuda, self.python, self.capability_set)

    @property
    def cuda_label(self) -> str:
        """``cu130``."""
        return cuda_label(self.cuda)

    @property
    def python_tag(self) -> str:
        """``cp312``."""
        return python_tag(self.python)

    @property
    def gencode(self) -> tuple[str, ...]:
        """Final ``-gencode`` values for nvcc, in the order of the capabilities."""
        return gencode(self.capabilities)

    def as_dict(self) -> dict[str, object]:
        """JSON-ready values, with the flags that nvcc gets."""
        return {
            "id": self.id,
            "cuda": self.cuda,
            "cuda_label": self.cuda_label,
            "python": self.python,
            "python_tag": self.python_tag,
            "capability_set": self.capability_set,
            "capabilities": [str(capability) for capability in self.capabilities],
            "gencode": list(self.gencode),
            "image": self.image,
            "paddle": self.paddle.as_dict(),
        }


@dataclass(frozen=True)
class Accepted:
    """A combination that can be built, and the tiers that build it (maybe none)."""

    cell: Cell
    tiers: tuple[str, ...]

    @property
    def id(self) -> str:
        """Id of the cell."""
        return self.cell.id

    @property
    def cuda(self) -> str:
        """CUDA version of the cell."""
        return self.cell.cuda

    @property
    def python(self) -> str:
        """Python version of the cell."""
        return self.cell.python

    @property
    def capability_set(self) -> str:
        """Capability set of the cell, "" for the default one."""
        return self.cell.capability_set

    def as_dict(self) -> dict[str, object]:
        """JSON-ready values."""
        return {**self.cell.as_dict(), "tiers": list(self.tiers)}


@dataclass(frozen=True)
class Rejected:
    """A combination that is not built. ``reason`` is for people."""

    id: str
    cuda: str
    python: str
    capability_set: str
    reason: str

    def as_dict(self) -> dict[str, object]:
        """JSON-ready values."""
        return {
            "id": self.id,
            "cuda": self.cuda,
            "python": self.python,
            "capability_set": self.capability_set,
            "reason": self.reason,
        }


Decision = Accepted | Rejected
Decisions = Sequence[Decision]
