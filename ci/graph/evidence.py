"""What one artifact shows of how it was made: read from its name and its bytes, never changed or judged.

Sources: ELF gABI (:mod:`ci.elf`), the ``ar`` format (System V, "Common object file format"), PEP 3149 and
PEP 384 for names of extension modules, and for device code NVIDIA's *CUDA Binary Utilities*: what is told
here of a fat binary's entries was compared with ``cuobjdump --list-elf --list-ptx``.
"""

from __future__ import annotations

import io
import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

from ci.elf import MAGIC, BrokenElfError, ElfFacts, read_elf

Kind = Literal["host code", "device code", "byte code", "other"]

_ARCHIVE = b"!<arch>\n"
_MEMBER = struct.Struct("16s12s6s6s8s10s2s")
_FATBIN_MAGIC = 0xBA55ED50
_FATBIN = struct.Struct("<IHHQ")  # magic, version, size of this header, size of the entries
_ENTRY = struct.Struct(
    "<HHIQ12xI"
)  # kind, version, size of this header, of its payload; architecture
_DEVICE_SUFFIXES = (".cubin", ".fatbin", ".ptx")
_PTX_TARGET = re.compile(rb"^\s*\.target\s+sm_(\d+)", re.MULTILINE)
_WIDE_FLAGS = 8  # EI_ABIVERSION from which e_flags of a cubin hold the architecture one byte higher
_PYTHON_SYMBOL = re.compile(r"_?Py(?:[A-Z][A-Za-z0-9]*)?_[A-Za-z0-9_]+")

CUDA_LIBRARY = (
    r"lib(?:cudart|cublas(?:Lt)?|nvblas|cufft[wM]?\w*|curand|cusolver(?:Mg)?|cusparse(?:Lt)?|cudnn\w*|cupti"
    r"|cufile\w*|nvrtc(?:-builtins)?|nvJitLink|nvfatbin|nvvm|npp\w+|nvjpeg\w*|nvToolsExt|nvtx3interop"
    r"|nccl|nvshmem\w*|cutensor\w*|cudss\w*|nvcomp\w*|nvptxcompiler)"
)
"""Libraries of a CUDA toolkit, or that NVIDIA builds once for each CUDA. The driver's (``libcuda.so.1``,
``libnvidia-ml.so.1``) are not among them: a newer driver serves every older CUDA.
"""

_NAMED_LIBRARY = re.compile(CUDA_LIBRARY.encode() + rb"\.so\.\d+")
_STATIC_RUNTIME = b"/cudart.shm."
"""A text of ``libcudart_static.a``, of CUDA 12.9 as of 13.0: it is in all that was linked with that."""


@dataclass(frozen=True)
class Evidence:
    """What one file shows.

    ``path`` is relative to the package. ``machine`` is the CPU of host code. ``needed`` and
    ``search_path`` are those of the dynamic section, ``python_symbols`` what it takes of the interpreter,
    ``abi`` the suffix of its name (``cpython-312``, ``abi3``). ``architectures`` are the numbers of its
    device code: 90 for ``sm_90``, ``sm_90a`` and PTX for them. ``static_runtime``: CUDA's run time was
    linked into it. ``names`` are libraries of one CUDA major that its text names, to open them when it
    runs. ``problem`` says why it could not be read.
    """

    path: str
    kind: Kind = "other"
    machine: str = ""
    needed: tuple[str, ...] = ()
    search_path: tuple[str, ...] = ()
    python_symbols: tuple[str, ...] = ()
    has_init: bool = False
    abi: str = ""
    has_device_code: bool = False
    architectures: frozenset[int] = frozenset()
    static_runtime: bool = False
    names: tuple[str, ...] = ()
    problem: str = ""

    @property
    def is_binary(self) -> bool:
        """True for what a compiler made."""
        return self.kind in ("host code", "device code")

    @property
    def cuda_libraries(self) -> tuple[str, ...]:
        """The libraries of a CUDA that it is linked with."""
        return tuple(name for name in self.needed if re.match(rf"{CUDA_LIBRARY}\.so", name))


def read_evidence(name: str, path: Path) -> Evidence:
    """What the file at ``path`` shows; ``name`` is its path in the package. Reads what it must, no more.

    A file that starts like a binary and cannot be read gives a ``problem``.
    """
    with path.open("rb") as source:
        start = source.read(len(_ARCHIVE))
        source.seek(0)
        if start.startswith(MAGIC):
            return _of_elf(name, source, path.stat().st_size)
        if start == _ARCHIVE:
            return _of_archive(name, source)
        if path.suffix in _DEVICE_SUFFIXES:
            return _of_device_file(name, source.read())
    return Evidence(name, "byte code" if path.suffix == ".pyc" else "other")


def _of_device_file(name: str, content: bytes) -> Evidence:
    found = frozenset(int(text) for text in _PTX_TARGET.findall(content))
    found |= _fatbin_architectures(content)
    return Evidence(name, "device code", has_device_code=True, architectures=found)


def _of_elf(name: str, source: IO[bytes], size: int) -> Evidence:
    try:
        facts = read_elf(name, source, size)
        source.seek(0)
        sections = _Sections.read(source)
    except BrokenElfError as error:
        return Evidence(name, "host code", problem=str(error))
    if not facts.is_host_code:
        found = frozenset({sections.cubin_architecture})
        return Evidence(name, "device code", has_device_code=True, architectures=found)
    if not sections.count:
        return Evidence(name, "host code", problem="its section table was removed")
    return _of_host_code(facts, sections, source)


def _of_host_code(facts: ElfFacts, sections: _Sections, source: IO[bytes]) -> Evidence:
    evidence = Evidence(
        path=facts.path,
        kind="host code",
        machine=facts.machine,
        needed=facts.needed,
        search_path=facts.search_path,
        python_symbols=facts.python_symbols or sections.python_symbols,
        has_init=facts.has_init,
        abi=facts.abi,
        has_device_code=facts.has_device_code,
    )
    content = _mapped(source)
    if facts.has_device_code:
        found = [_fatbin_architectures(content, *place) for place in sections.device_code]
        return replace(evidence, architectures=frozenset().union(*found))
    if evidence.cuda_libraries:
        return evidence
    named = sorted({match.decode("ascii") for match in _NAMED_LIBRARY.findall(content)})
    return replace(evidence, static_runtime=content.find(_STATIC_RUNTIME) >= 0, names=tuple(named))


def _mapped(source: IO[bytes]) -> bytes | mmap.mmap:
    try:
        return mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, io.UnsupportedOperation):  # a member of an archive, in memory
        source.seek(0)
        return source.read()


@dataclass(frozen=True)
class _Sections:
    """What :mod:`ci.elf` does not tell: how many sections there are, where device code lies in the file,
    what an object file (it has no dynamic symbols) takes of Python, and the architecture of a cubin.
    """

    count: int
    device_code: tuple[tuple[int, int], ...]
    python_symbols: tuple[str, ...]
    cubin_architecture: int

    @classmethod
    def read(cls, source: IO[bytes]) -> _Sections:
        from elftools.common.exceptions import ELFError
        from elftools.elf.elffile import ELFFile

        try:
            elf = ELFFile(source)
            flags = elf.header["e_flags"]
            wide = elf.header["e_ident"]["EI_ABIVERSION"] >= _WIDE_FLAGS
            return cls(
                count=elf.num_sections(),
                device_code=tuple(
                    (section["sh_offset"], section["sh_offset"] + section["sh_size"])
                    for section in elf.iter_sections()
                    if section.name in (".nv_fatbin", "__nv_relfatbin")
                ),
                python_symbols=tuple(sorted(_undefined_of_object(elf))),
                cubin_architecture=(flags >> 8 if wide else flags) & 0xFF,
            )
        except (ELFError, UnicodeDecodeError, AssertionError, KeyError, ValueError) as error:
            raise BrokenElfError(str(error) or type(error).__name__) from error


def _undefined_of_object(elf: Any) -> Iterator[str]:
    table = elf.get_section_by_name(".symtab") if elf.header["e_type"] == "ET_REL" else None
    for symbol in table.iter_symbols() if table is not None else ():
        needed = symbol["st_shndx"] == "SHN_UNDEF" and symbol["st_info"]["bind"] != "STB_WEAK"
        if needed and _PYTHON_SYMBOL.fullmatch(symbol.name):
            yield symbol.name


def _fatbin_architectures(
    content: bytes | mmap.mmap, start: int = 0, end: int | None = None
) -> frozenset[int]:
    """The architectures of every entry of the fat binaries in a part of a file, compressed ones too."""
    end = len(content) if end is None else min(end, len(content))
    found: set[int] = set()
    magic = struct.pack("<I", _FATBIN_MAGIC)
    place = content.find(magic, start, end)
    while 0 <= place <= end - _FATBIN.size:
        _, _, header, size = _FATBIN.unpack_from(content, place)
        after = min(place + header + size, end)
        entry = place + header
        while entry + _ENTRY.size <= after:
            _, _, own, payload, architecture = _ENTRY.unpack_from(content, entry)
            if own < _ENTRY.size:
                break
            found.add(architecture)
            entry += own + payload
        place = content.find(magic, max(after, place + _FATBIN.size), end)
    return frozenset(found - {0})


def _of_archive(name: str, source: IO[bytes]) -> Evidence:
    """A static library shows what its members show together."""
    shown = [
        _of_elf(name, io.BytesIO(content), len(content))
        for content in _members(source)
        if content.startswith(MAGIC)
    ]
    if not shown:
        return Evidence(name, "host code")
    return Evidence(
        path=name,
        kind="host code",
        machine=next((item.machine for item in shown if item.machine), ""),
        python_symbols=tuple(sorted({text for item in shown for text in item.python_symbols})),
        has_device_code=any(item.has_device_code for item in shown),
        architectures=frozenset().union(*(item.architectures for item in shown)),
        static_runtime=any(item.static_runtime for item in shown),
        names=tuple(sorted({text for item in shown for text in item.names})),
        problem=next((item.problem for item in shown if item.problem), ""),
    )


def _members(source: IO[bytes]) -> Iterator[bytes]:
    source.seek(len(_ARCHIVE))
    while len(header := source.read(_MEMBER.size)) == _MEMBER.size:
        size = _MEMBER.unpack(header)[5].strip()
        if not size.isdigit():
            return
        yield source.read(int(size))
        source.seek(int(size) % 2, io.SEEK_CUR)
