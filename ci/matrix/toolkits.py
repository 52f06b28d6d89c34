"""What the CUDA toolkits can compile for: one row per toolkit release, and nothing else.

Source of each row: the values that ``ptxas --help`` of that release allows for ``--gpu-name`` (the
same as nvcc's ``--gpu-code``), see "GPU Feature List" in NVIDIA's *CUDA Compiler Driver NVCC*.
``tests/unit/matrix/test_toolkits.py`` compares the rows with every nvcc and ptxas that it finds.

Background (CUDA release notes): 8.9 and 9.0 came with CUDA 11.8; 10.0, 10.1 and 12.0 with 12.8;
10.3, 12.1 and all family targets (``f``) with 12.9; CUDA 13.0 removed everything before 7.5, added
8.8 and renamed 10.1 to 11.0; 10.7 came with 13.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Toolkit:
    """One CUDA release. The three texts list capabilities, separated by spaces.

    ``plain``: code that runs on later minor versions of the same major, too; ``specific``: those
    with an architecture-specific target (``9.0a``); ``family``: with a family target (``10.0f``).
    """

    cuda: str
    plain: str
    specific: str
    family: str

    @property
    def names(self) -> tuple[str, ...]:
        """Every capability in the form that is declared, in ascending order: 9.0, 9.0a, …"""
        specific, family = self.specific.split(), self.family.split()
        return tuple(
            name + target
            for name in self.plain.split()
            for target, owners in (("", [name]), ("a", specific), ("f", family))
            if name in owners
        )


_BEFORE_TURING = "5.0 5.2 5.3 6.0 6.1 6.2 7.0 7.2"
_BLACKWELL = "10.0 10.3 11.0 12.0 12.1"
_RUBIN = "10.0 10.3 10.7 11.0 12.0 12.1"

_ROWS = (
    Toolkit("12.6", f"{_BEFORE_TURING} 7.5 8.0 8.6 8.7 8.9 9.0", "9.0", ""),
    Toolkit(
        "12.8",
        f"{_BEFORE_TURING} 7.5 8.0 8.6 8.7 8.9 9.0 10.0 10.1 12.0",
        "9.0 10.0 10.1 12.0",
        "",
    ),
    Toolkit(
        "12.9",
        f"{_BEFORE_TURING} 7.5 8.0 8.6 8.7 8.9 9.0 10.0 10.1 10.3 12.0 12.1",
        "9.0 10.0 10.1 10.3 12.0 12.1",
        "10.0 10.1 10.3 12.0 12.1",
    ),
    Toolkit("13.0", f"7.5 8.0 8.6 8.7 8.8 8.9 9.0 {_BLACKWELL}", f"9.0 {_BLACKWELL}", _BLACKWELL),
    Toolkit("13.1", f"7.5 8.0 8.6 8.7 8.8 8.9 9.0 {_BLACKWELL}", f"9.0 {_BLACKWELL}", _BLACKWELL),
    Toolkit("13.2", f"7.5 8.0 8.6 8.7 8.8 8.9 9.0 {_BLACKWELL}", f"9.0 {_BLACKWELL}", _BLACKWELL),
    Toolkit("13.3", f"7.5 8.0 8.6 8.7 8.8 8.9 9.0 {_BLACKWELL}", f"9.0 {_BLACKWELL}", _BLACKWELL),
    Toolkit("13.4", f"7.5 8.0 8.6 8.7 8.8 8.9 9.0 {_RUBIN}", f"9.0 {_RUBIN}", _RUBIN),
    Toolkit("13.5", f"7.5 8.0 8.6 8.7 8.8 8.9 9.0 {_RUBIN}", f"9.0 {_RUBIN}", _RUBIN),
)

TOOLKITS: Mapping[str, Toolkit] = MappingProxyType({row.cuda: row for row in _ROWS})
"""All known releases by version ("13.0"), oldest first. A new release is one more row."""

RENAMED: Mapping[str, str] = MappingProxyType({"10.1": "11.0"})
"""Old name of a capability to its new name (CUDA 13.0 release notes: Thor, 10.1 to 11.0)."""
