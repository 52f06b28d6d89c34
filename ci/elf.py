"""What one ELF file says about itself, read with pyelftools and never changed.

Sources: ELF gABI chapter 5 (dynamic section), the LSB on symbol versioning (``.gnu.version_r``), and
PEP 3149 / PEP 384 for the suffixes of extension modules. pyelftools is imported when a file is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

MAGIC = b"\x7fELF"
DEVICE_MACHINE = "EM_CUDA"
_DEVICE_SECTIONS = (".nv_fatbin", "__nv_relfatbin")
_MACHINES = {
    "EM_X86_64": "x86_64",
    "EM_AARCH64": "aarch64",
    "EM_CUDA": DEVICE_MACHINE,
    190: DEVICE_MACHINE,
}
_PYTHON_SYMBOL = re.compile(r"_?Py(?:[A-Z][A-Za-z0-9]*)?_[A-Za-z0-9_]+")
_SUFFIX = re.compile(r"\.(?P<abi>cpython-\d+[a-z]*|pypy\d+-pp\d+|abi3t?)(?:-[\w-]+)?\.so$")
_GNU_PREFIXES = ("GLIBC_", "GLIBCXX_", "CXXABI_", "GCC_")


class BrokenElfError(ValueError):
    """A file has the ELF magic, but cannot be read as ELF."""


@dataclass(frozen=True)
class ElfFacts:
    """Facts of one ELF file.

    ``size`` is in bytes. ``needed``, ``rpath`` and ``runpath`` keep the file's order. ``versions`` holds
    names such as ``GLIBC_2.17``, sorted. ``abi`` is the suffix of the file name: ``cpython-312``,
    ``abi3``, or ``""``. ``machine`` is ``x86_64``, ``aarch64``, ``EM_CUDA`` for device code on its own,
    or the name of another ELF machine. ``strings`` are those of the asked byte strings that occur in it.
    """

    path: str
    size: int
    machine: str
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    python_symbols: tuple[str, ...] = ()
    has_init: bool = False
    abi: str = ""
    has_device_code: bool = False
    strings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file name without its folder."""
        return self.path.rsplit("/", 1)[-1]

    @property
    def is_host_code(self) -> bool:
        """False for a cubin: an ELF file that only a GPU can run."""
        return self.machine != DEVICE_MACHINE

    @property
    def touches_python(self) -> bool:
        """True when the file is an extension module, or calls the interpreter's C API."""
        return bool(self.python_symbols) or self.has_init or bool(self.abi)

    @property
    def search_path(self) -> tuple[str, ...]:
        """Every entry of DT_RPATH and DT_RUNPATH."""
        return self.rpath + self.runpath

    def highest(self, prefix: str) -> tuple[int, ...]:
        """The highest needed version of ``GLIBC``, ``GLIBCXX`` or ``CXXABI``; ``()`` for none."""
        texts = [v.removeprefix(f"{prefix}_") for v in self.versions if v.startswith(f"{prefix}_")]
        found = [tuple(int(part) for part in text.split(".")) for text in texts if _is_number(text)]
        return max(found, default=())


def _is_number(text: str) -> bool:
    return all(part.isdigit() for part in text.split("."))


def abi_suffix(name: str) -> str:
    """``cpython-312`` of ``_C.cpython-312-x86_64-linux-gnu.so``, ``abi3`` of ``_C.abi3.so``, else ``""``."""
    match = _SUFFIX.search(name)
    return match["abi"] if match else ""


def read_elf(path: str, source: IO[bytes], size: int, strings: tuple[str, ...] = ()) -> ElfFacts:
    """Read the facts of the seekable file ``source``; ``path`` is only its name.

    Raises :class:`BrokenElfError` for a file that is cut off or no ELF file at all.
    """
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        elf = ELFFile(source)
        return _read(path, elf, size, strings)
    except (ELFError, UnicodeDecodeError, AssertionError, KeyError, ValueError) as error:
        raise BrokenElfError(f"{path}: {error or type(error).__name__}") from error


def _read(path: str, elf: Any, size: int, strings: tuple[str, ...]) -> ElfFacts:
    dynamic = list(_dynamic(elf))
    machine = elf.header["e_machine"]
    undefined, has_init = _python_symbols(elf)
    named = _MACHINES.get(machine, str(machine))
    sections = [section.name for section in elf.iter_sections()]
    return ElfFacts(
        path=path,
        size=size,
        machine=named,
        soname="".join(tag.soname for tag in dynamic if tag.entry.d_tag == "DT_SONAME"),
        needed=tuple(tag.needed for tag in dynamic if tag.entry.d_tag == "DT_NEEDED"),
        rpath=_entries(tag.rpath for tag in dynamic if tag.entry.d_tag == "DT_RPATH"),
        runpath=_entries(tag.runpath for tag in dynamic if tag.entry.d_tag == "DT_RUNPATH"),
        versions=_versions(elf),
        python_symbols=undefined,
        has_init=has_init,
        abi=abi_suffix(path),
        has_device_code=named == DEVICE_MACHINE or any(n in sections for n in _DEVICE_SECTIONS),
        strings=strings,
    )


def _entries(values: Iterator[str]) -> tuple[str, ...]:
    return tuple(entry for value in values for entry in value.split(":"))


def _dynamic(elf: Any) -> Iterator[Any]:
    from elftools.elf.dynamic import DynamicSection

    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            yield from section.iter_tags()


def _versions(elf: Any) -> tuple[str, ...]:
    from elftools.elf.gnuversions import GNUVerNeedSection

    found: set[str] = set()
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for _, auxiliaries in section.iter_versions():
                found |= {aux.name for aux in auxiliaries if aux.name.startswith(_GNU_PREFIXES)}
    return tuple(sorted(found))


def _python_symbols(elf: Any) -> tuple[tuple[str, ...], bool]:
    """Undefined, non-weak symbols of Python's C API, and whether a ``PyInit_*`` is defined.

    A weak symbol is optional: the dynamic linker leaves it at zero when no interpreter defines it.
    """
    from elftools.elf.sections import SymbolTableSection

    undefined: set[str] = set()
    has_init = False
    for section in elf.iter_sections():
        if not isinstance(section, SymbolTableSection) or section.name != ".dynsym":
            continue
        for symbol in section.iter_symbols():
            if symbol["st_shndx"] != "SHN_UNDEF":
                has_init = has_init or symbol.name.startswith(
                    ("PyInit_", "PyInitU_", "PyModExport_")
                )
            elif symbol["st_info"]["bind"] != "STB_WEAK" and _PYTHON_SYMBOL.fullmatch(symbol.name):
                undefined.add(symbol.name)
    return tuple(sorted(undefined)), has_init
