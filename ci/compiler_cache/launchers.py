"""Small programs in front of compilers: builds are told of them by CC, CXX and CUDA_HOME, and need no
change.

One folder for each build, below its work folder::

    bin/g++      calls the cache with behind/g++ (scripts/host.sh)
    behind/g++   what the cache takes for the compiler; starts the real one (behind_host.sh)
    cuda/        links to the CUDA home, but for bin/nvcc, which calls the cache with nvcc (scripts/nvcc.sh)
    settings     the real compilers, and the places of this build

What they do, and why:

- *Places become names.* Options such as ``-ffile-prefix-map=/this/build/source=.`` hold the folder of the
  build, and caches compare options: nothing would be found again in another folder. ``bin/`` writes
  ``/_farm/1`` for the folder, ``behind/`` writes it back. What stands behind ``=`` is compared as before.
- *So do the lines that say where text is from* (``# 12 "/this/build/source/a.h"``) in what is compared, for
  the folders of those options only: what they leave out of the object is left out of the comparison, and a
  call without them is found again only in its own folder. sccache's own ways, ``SCCACHE_BASEDIRS`` and the
  preprocessor cache, take no such care, and are not used.
- *Lines are compared.* sccache preprocesses with ``-P``, which drops them, and would give an object with
  old lines in debug information, ``__builtin_LINE()`` and ``std::source_location``. ``behind/`` leaves it
  out.
- *nvcc's own programs see the names*, and the host compiler maps both: sccache takes nvcc apart, and its
  parts get the preprocessed text. Where lines or names of files go into device code (``-lineinfo``, ``-G``,
  ``__builtin_FILE``), folders stay as they are. Messages get the folders back.
- *The CUDA home of links is never seen by a compiler*: the real one takes its place in every option.
- *Options that only schedule are not compared*: nvcc's ``--jobserver`` is left out (sccache takes nvcc
  apart, so none of its threads would ask), ``-t`` and ``--threads`` are not compared by sccache itself.
- *Variables that sccache does not hand on* to compilers (``SOURCE_DATE_EPOCH``, ``PWD``) go with them under
  other names: without the first, ``__DATE__`` would be the day of the build.
- When the cache's server is gone, the real compiler runs, and what the server left running is ended before.

Sources: sccache 0.16.0, src/compiler/{c,gcc,nvcc}.rs; GCC manual, "-ffile-prefix-map", "-P", "Preprocessor
Output"; NVIDIA, "CUDA Compiler Driver NVCC".
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.compiler_cache.model import CompilerCache, Compilers

SCRIPTS = Path(__file__).parent / "scripts"
"""The launchers, for any POSIX shell."""

CUDA_HOMES = ("CUDA_HOME", "CUDA_PATH", "CUDA_TOOLKIT_ROOT_DIR", "CUDAToolkit_ROOT")
CUDA_HOSTS = ("CUDAHOSTCXX", "NVCC_CCBIN")
_NOTHING = "/_farm/none"


@dataclass(frozen=True)
class Launchers:
    """The launchers of one build: ``environment`` goes over the build's own, ``replaced`` says which
    folders of PATH have another in their place.
    """

    environment: Mapping[str, str]
    replaced: Mapping[str, str]

    def path(self, entries: tuple[str, ...]) -> tuple[str, ...]:
        """Folders of PATH with the launchers' in place of the compilers'."""
        return tuple(self.replaced.get(entry, entry) for entry in entries)


def write_launchers(
    folder: Path,
    cache: CompilerCache,
    compilers: Compilers,
    *,
    server: int = 0,
    hidden: Iterable[str] = (),
) -> Launchers:
    """Write the launchers of one build to ``folder``, which must not exist yet.

    ``server`` is the process id of sccache's server, ``hidden`` are variables of it that no compiler gets.
    Raises :class:`OSError` when the disk fails.
    """
    (folder / "bin").mkdir(parents=True)
    (folder / "behind").mkdir()
    variables: dict[str, str] = {}
    for name, real in (("CC", compilers.cc), ("CXX", compilers.cxx)):
        if real is not None:
            _program(folder / "bin" / real.name, "host", folder)
            _program(folder / "behind" / real.name, "behind_host", folder)
            variables[name] = str(folder / "bin" / real.name)
    overlay, replaced = folder / "cuda", {}
    if compilers.cuda_home is not None:
        lay_over(compilers.cuda_home, overlay)
        _program(overlay / "bin" / "nvcc", "nvcc", folder)
        _program(folder / "behind" / "nvcc", "behind_nvcc", folder)
        variables |= dict.fromkeys(CUDA_HOMES, str(overlay))
        variables["CUDACXX"] = str(overlay / "bin" / "nvcc")
        if "CXX" in variables:
            variables |= dict.fromkeys(CUDA_HOSTS, variables["CXX"])
        replaced[str(compilers.cuda_home / "bin")] = str(overlay / "bin")
    shutil.copy(SCRIPTS / "places.sh", folder / "places.sh")
    settings = _settings(cache, compilers, overlay) | {
        "server": str(server),
        "hidden": " ".join(sorted(hidden)),
    }
    text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in settings.items())
    (folder / "settings").write_text(text, "utf-8")
    return Launchers(variables, replaced)


def caches_nvcc(cache: CompilerCache, compilers: Compilers) -> bool:
    """True when calls of nvcc go through the cache; else they go past it, with the real host compiler."""
    return cache.tool == "sccache" and not compilers.nvcc_is_clang


def _settings(cache: CompilerCache, compilers: Compilers, overlay: Path) -> dict[str, str]:
    """What the launchers read: shell assignments. A place that is not there is a path that nothing has."""
    home = compilers.cuda_home
    places = numbered_places(compilers)
    values = {
        "tool": cache.tool,
        "cache": str(cache.path),
        "identity": "farm 1 " + " ".join(compilers.identity.split()),
        "real_cc": str(compilers.cc or ""),
        "real_cxx": str(compilers.cxx or ""),
        "name_cc": compilers.cc.name if compilers.cc else "",
        "caches_nvcc": "yes" if caches_nvcc(cache, compilers) else "",
        "real_nvcc": str(home / "bin" / "nvcc") if home else "",
        "source": places[0],
        "overlay": str(overlay),
        "overlay_real": os.path.realpath(overlay),
        "home": str(home or overlay),
        "home_real": os.path.realpath(home or overlay),
        "moment": r's|^\(# [0-9]* "\)[^"]*/sccache_nvcc[^/"]*/|\1/_farm/nvcc/|',
        "commands": _script(places, r's|\(--orig_src_[a-z_]*name "\)@PLACE@/|\1@NAME@/|g'),
        "readable": _script(places, "s|@NAME@|@TEXT@|g"),
    }
    return values | {f"place{number}": place for number, place in enumerate(places, start=1)}


def numbered_places(compilers: Compilers) -> tuple[str, ...]:
    """Six places: sources, environment and CUDA home as they are called, then what they are behind links.

    Each build gives a folder of one role the same number. One that is not there is a path that nothing has.
    """
    home = (str(compilers.cuda_home),) if compilers.cuda_home is not None else ()
    called = [*compilers.mapped[:2], *[_NOTHING] * (2 - len(compilers.mapped[:2])), *home]
    called += [_NOTHING] * (3 - len(called))
    behind = [os.path.realpath(place) if place != _NOTHING else place for place in called]
    return (*called, *(_NOTHING if place in called else place for place in behind))


def _script(places: tuple[str, ...], command: str) -> str:
    """A script for sed with ``command`` for each place that there is."""
    return "\n".join(
        command.replace("@PLACE@", _literal(place))
        .replace("@TEXT@", "".join("\\" + c if c in "\\&|" else c for c in place))
        .replace("@NAME@", f"/_farm/{number}")
        for number, place in enumerate(places, start=1)
        if place != _NOTHING
    )


def _literal(path: str) -> str:
    return "".join("\\" + letter if letter in r"\.[]*^$|" else letter for letter in path)


def _program(path: Path, script: str, folder: Path) -> None:
    text = (SCRIPTS / f"{script}.sh").read_text("utf-8")
    path.write_text(text.replace("@HERE@", shlex.quote(str(folder))), "utf-8")
    path.chmod(0o755)


def lay_over(home: Path, overlay: Path) -> None:
    """Make ``overlay`` a CUDA home of links to ``home``, without ``bin/nvcc``.

    Where ``home`` is behind a link, so is ``overlay``: builds that map a folder and what is behind it (as
    ``-ffile-prefix-map`` of both) then map two folders as they would without launchers.
    """
    folder = overlay
    if os.path.realpath(home) != str(home):
        folder = overlay.with_name("cuda-behind")
        overlay.symlink_to(folder.name)
    (folder / "bin").mkdir(parents=True)
    for entry in sorted(home.iterdir()):
        if entry.name != "bin":
            (folder / entry.name).symlink_to(entry)
    for entry in sorted((home / "bin").iterdir()):
        if entry.name != "nvcc":
            (folder / "bin" / entry.name).symlink_to(entry)
