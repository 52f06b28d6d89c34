"""What decides the output of a host compiler: its programs, the files that it links, the headers it finds.

A compiler is more than its driver. A new assembler, linker, C library or C++ library changes what comes out
under an unchanged ``gcc --version``, so each is in the identity by its content. Headers are those of the
compiler, of the C++ library and of the C library; what else lies in the include folders of a machine (other
development packages) is not, because a library declares what it needs.

Source: GCC's manual, ``-print-search-dirs`` (clang answers it too) and "Directory Options"; GCC internals,
"Initialization" (``crti.o``, ``crtbeginS.o``).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ci.sources.tree_cache import hashed_file, hashed_tree
from ci.toolchain.probe import ask, which

PROGRAMS = ("cc1", "cc1plus", "collect2", "as", "ld")
LINKED = (
    "crti.o", "crtn.o", "crtbeginS.o", "crtendS.o", "libc.so", "libc.so.6", "libc_nonshared.a", "libm.so.6",
    "libgcc.a", "libgcc_s.so.1", "libstdc++.a", "libstdc++.so", "libstdc++_nonshared.a",
)  # fmt: skip
_C_LIBRARY = ("bits", "sys", "gnu", "asm")
"""Folders of the C library (and of the kernel's interface, ``asm``) in an include folder."""

_HEADERS_OF_C = ("features.h", "math.h", "stdio.h", "stdlib.h", "string.h", "pthread.h", "unistd.h")
_SEARCHED = re.compile(r"#include <\.\.\.> search starts here:\n(.*?)End of search list", re.DOTALL)


def host_digests(
    environ: Mapping[str, str], cxx: Path, cache_dir: Path
) -> tuple[tuple[str, str], ...]:
    """Name and SHA-256 of everything that decides what the host compiler ``cxx`` yields.

    What has not changed since the last time is not read: see :mod:`ci.sources.tree_cache`.
    """
    answer, _ = ask(environ, str(cxx), "-print-search-dirs")
    places = dict(re.findall(r"^(programs|libraries): =?(.*)$", answer, re.MULTILINE))
    programs = places.get("programs", "").split(os.pathsep)
    libraries = places.get("libraries", "").split(os.pathsep)
    found = [("host driver", Path(os.path.realpath(cxx)))]
    for name in PROGRAMS:
        path = _first(programs, name) or which(name, environ)
        if path is not None:
            found.append((f"host {name}", Path(os.path.realpath(path))))
    for name in LINKED:
        path = _first(libraries, name)
        if path is not None:
            found.append((f"host {name}", Path(os.path.realpath(path))))
    digests = tuple((name, hashed_file(path, cache_dir)) for name, path in found)
    folders = tuple(_include_folders(environ, cxx))
    return (*digests, ("host headers", _headers_digest(folders, cache_dir)))


def _first(folders: Sequence[str], name: str) -> Path | None:
    """The file in the first of ``folders`` that has it."""
    candidates = (Path(folder, name) for folder in folders if folder)
    return next((path for path in candidates if path.is_file()), None)


def _include_folders(environ: Mapping[str, str], cxx: Path) -> Iterator[str]:
    """The folders that ``#include <...>`` looks in, in their order, without those a variable adds."""
    plain = {name: value for name, value in environ.items() if not name.endswith("INCLUDE_PATH")}
    answer, _ = ask(plain, str(cxx), "-E", "-x", "c++", "-v", os.devnull)
    match = _SEARCHED.search(answer)
    for line in match[1].splitlines() if match else ():
        yield os.path.realpath(line.strip())


def _headers_digest(folders: tuple[str, ...], cache_dir: Path) -> str:
    """One SHA-256 over the headers of the compiler, the C++ library and the C library."""
    lines: list[str] = []
    for folder in map(Path, folders):
        if _is_of_compiler(folder):
            lines.append(hashed_tree(folder, cache_dir))
            continue
        trees = (folder / name for name in _C_LIBRARY)
        lines += [f"{path.name} {hashed_tree(path, cache_dir)}" for path in trees if path.is_dir()]
        files = (folder / name for name in _HEADERS_OF_C)
        lines += [f"{path.name} {hashed_file(path, cache_dir)}" for path in files if path.is_file()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _is_of_compiler(folder: Path) -> bool:
    """True for the C++ library's folders, and for those of gcc and clang themselves."""
    return bool({"c++", "gcc", "clang"} & set(folder.parts))
