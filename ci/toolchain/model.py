"""The values of the toolchain stage: facts about a machine, and the toolchain chosen from them.

Nothing here asks the machine. A fact that turned out useless keeps the reason in ``problem``, so
that a report can say why a compiler that a user can see was not taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

CompilerName = Literal["nvcc", "clang"]
Origin = Literal["CUDA_HOME", "CUDA_PATH", "PATH", "folder", "cache"]

OLDEST_CLANG = 22
"""The oldest clang whose CUDA mode compiles the kernels of the matrix (tried: CUDA 12.6, 12.9)."""

CLANG_NOT_PUBLISHABLE = (
    "device code was made by clang, not by the nvcc of NVIDIA that releases are built with"
)


@dataclass(frozen=True)
class NvccFact:
    """One ``nvcc`` that was looked at.

    ``release`` is ``"13.0"``, ``version`` ``"13.0.88"``. ``newest_gcc`` and ``newest_clang`` are
    the newest major versions that its own ``crt/host_config.h`` accepts (0: unknown).
    """

    path: Path
    home: Path
    origin: Origin
    origin_text: str
    release: str = ""
    version: str = ""
    newest_gcc: int = 0
    newest_clang: int = 0
    problem: str = ""


@dataclass(frozen=True)
class HostCompilerFact:
    """One C++ compiler for host code. ``asked_by`` names the variable that chose it, if one did."""

    cxx: Path
    cc: Path
    family: Literal["gcc", "clang", ""]
    version: str = ""
    asked_by: str = ""
    problem: str = ""

    @property
    def major(self) -> int:
        """The major version, 0 when unknown."""
        head = self.version.split(".", 1)[0]
        return int(head) if head.isdigit() else 0

    @property
    def shown(self) -> str:
        """For messages: ``gcc 12.2.0 (/usr/bin/g++)``."""
        return f"{self.family or 'unknown'} {self.version} ({self.cxx})"


@dataclass(frozen=True)
class ClangFact:
    """One ``clang++``. ``version`` is ``"22.1.8"``, ``full_version`` its own first line."""

    path: Path
    version: str = ""
    full_version: str = ""
    problem: str = ""

    @property
    def major(self) -> int:
        """The major version, 0 when unknown."""
        head = self.version.split(".", 1)[0]
        return int(head) if head.isdigit() else 0


@dataclass(frozen=True)
class PythonFact:
    """One Python interpreter; usable when ``problem`` is empty.

    ``flags`` is the hash of the compiler and linker flags that it was built with: setuptools compiles
    extension modules with them (its ``customize_compiler``).
    """

    path: Path
    origin: str
    version: str = ""
    problem: str = ""
    flags: str = ""


@dataclass(frozen=True)
class PythonSearch:
    """What came of a search for one Python: the interpreter, and why others were passed over."""

    wanted: str
    found: PythonFact | None
    rejected: tuple[PythonFact, ...] = ()


@dataclass(frozen=True)
class MachineFacts:
    """What the probe found, in the order of preference."""

    nvccs: tuple[NvccFact, ...] = ()
    hosts: tuple[HostCompilerFact, ...] = ()
    clangs: tuple[ClangFact, ...] = ()
    machine: str = "x86_64"


@dataclass(frozen=True)
class HostToolchain:
    """The C++ compiler of libraries that have no device code; nothing of CUDA is in its identity."""

    cc: Path
    cxx: Path
    version: str
    digests: tuple[tuple[str, str], ...]

    def environment(self) -> dict[str, str]:
        """The variables that builds of libraries read to find the compiler."""
        return {"CC": str(self.cc), "CXX": str(self.cxx)}

    def identity(self) -> str:
        """Text for a cache key: version and content only."""
        lines = [f"host {self.version}"]
        lines += [f"{name} sha256:{digest}" for name, digest in sorted(self.digests)]
        return "\n".join(lines)


@dataclass(frozen=True)
class Toolchain:
    """The resolved compiler set of a cell: what it is, where it came from, and its identity.

    ``cuda`` is the cell's (``"13.0"``), ``version`` the compiler's own. ``digests`` pairs the name
    of each file that decides the output with its SHA-256, so that two places with the same compiler
    have one identity.
    """

    cuda: str
    compiler: CompilerName
    cuda_home: Path
    version: str
    origin: Origin
    origin_text: str
    cc: Path
    cxx: Path
    cxx_version: str
    ptxas_version: str
    publishable: bool
    not_publishable_because: str
    digests: tuple[tuple[str, str], ...]
    library_path: tuple[Path, ...] = ()

    @property
    def nvcc(self) -> Path:
        """The compiler driver to call."""
        return self.cuda_home / "bin" / "nvcc"

    def environment(self) -> dict[str, str]:
        """The variables that builds of libraries read to find this toolchain.

        ``NVCC_CCBIN`` makes nvcc itself use the chosen host compiler; ``LIBRARY_PATH`` lets the
        linker find the driver's stub, as NVIDIA's own development images do.
        """
        home = str(self.cuda_home)
        variables = {
            "CUDA_HOME": home,
            "CUDA_PATH": home,
            "CUDA_TOOLKIT_ROOT_DIR": home,
            "CUDAToolkit_ROOT": home,
            "CUDACXX": str(self.nvcc),
            "CUDAHOSTCXX": str(self.cxx),
            "NVCC_CCBIN": str(self.cxx),
            "CC": str(self.cc),
            "CXX": str(self.cxx),
        }
        if self.library_path:
            variables["LIBRARY_PATH"] = ":".join(map(str, self.library_path))
        return variables

    def path_entries(self) -> tuple[Path, ...]:
        """Folders to put in front of PATH."""
        return (self.cuda_home / "bin",)

    def identity(self) -> str:
        """Text for a cache key: versions and content only, never a path, a host name or a time."""
        lines = [
            f"cuda {self.cuda}",
            f"compiler {self.compiler} {self.version}",
            f"host {self.cxx_version}",
            f"ptxas {self.ptxas_version}",
        ]
        lines += [f"{name} sha256:{digest}" for name, digest in sorted(self.digests)]
        return "\n".join(lines)

    @property
    def host(self) -> HostToolchain:
        """The part that libraries without device code are built with."""
        digests = tuple(item for item in self.digests if item[0].startswith("host "))
        return HostToolchain(self.cc, self.cxx, self.cxx_version, digests)

    def as_dict(self) -> dict[str, object]:
        """The toolchain as JSON-ready values, for records and reports."""
        return {
            "cuda": self.cuda,
            "compiler": self.compiler,
            "version": self.version,
            "cuda_home": str(self.cuda_home),
            "origin": self.origin,
            "origin_text": self.origin_text,
            "cc": str(self.cc),
            "cxx": str(self.cxx),
            "cxx_version": self.cxx_version,
            "ptxas_version": self.ptxas_version,
            "publishable": self.publishable,
            "not_publishable_because": self.not_publishable_because,
            "identity": self.identity().splitlines(),
        }
