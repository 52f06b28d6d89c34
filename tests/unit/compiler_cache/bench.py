"""Compilers behind a compiler cache, in folders of builds, and the same compilers alone to compare with."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ci.compiler_cache.choice import choose, probe
from ci.compiler_cache.model import CacheStats, CompilerCache, Compilers
from ci.compiler_cache.session import Build, Session

GCC = Path(shutil.which("gcc") or "gcc")
GXX = Path(shutil.which("g++") or "g++")
SCRUBBED = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "SOURCE_DATE_EPOCH": "315532800"}
BARE = {"PATH": "/usr/bin:/bin"}


def usable(tool: str) -> CompilerCache:
    """The tool of this machine."""
    cache = choose(tool, probe(os.environ))
    assert isinstance(cache, CompilerCache)
    return cache


def session(
    tool: str, folder: Path, environ: Mapping[str, str] = BARE, *, read_only: bool = False
) -> tuple[Session, list[str]]:
    """A session with its objects in ``folder``, and what it warns of."""
    warned: list[str] = []
    made = Session(usable(tool), folder, environ=environ, warn=warned.append, read_only=read_only)
    return made, warned


@dataclass
class Bench:
    """One build's folder: sources below ``source``, compiled with the options that every build gets."""

    folder: Path
    cxx: Path = GXX
    cuda_home: Path | None = None
    identity: str = "compilers of the test"
    build: Build = field(default_factory=Build)

    @property
    def source(self) -> Path:
        return self.folder / "source"

    @property
    def compilers(self) -> Compilers:
        return Compilers(
            GCC, self.cxx, self.cuda_home, self.identity, (str(self.source), sys.prefix)
        )

    @contextmanager
    def cached(self, made: Session) -> Iterator[Bench]:
        """The same with the session's cache in front of its compilers."""
        self.source.mkdir(parents=True, exist_ok=True)
        path = (str(self.cuda_home / "bin"),) if self.cuda_home else ()
        with made.build(self.folder, self.compilers, path) as build:
            yield replace(self, build=build)

    def write(self, **files: str) -> Bench:
        """Write sources; ``__`` in a name stands for the dot."""
        self.source.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = self.source / name.replace("__", ".")
            path.write_text(text, "utf-8")
            os.utime(path, (1_700_000_000, 1_700_000_000))  # nvcc writes it into -lineinfo
        return self

    @property
    def maps(self) -> tuple[str, ...]:
        """As build_steps.py gives them."""
        places = {str(self.source): ".", sys.prefix: "environment"}
        if self.cuda_home:
            places[self.build.environment.get("CUDA_HOME", str(self.cuda_home))] = "cuda"
        return tuple(f"-ffile-prefix-map={place}={name}" for place, name in places.items())

    def compile(self, name: str, *options: str, env: Mapping[str, str] = {}) -> bytes:
        """The object of one C++ source, by an absolute path."""
        program = self.build.environment.get("CXX", str(self.cxx))
        output = self.folder / f"{name}.o"
        argv = (program, "-c", "-fPIC", *self.maps, *options, str(self.source / name))
        self._run((*argv, "-o", str(output)), env)
        return output.read_bytes()

    def nvcc(self, name: str, *options: str, env: Mapping[str, str] = {}) -> bytes:
        """The object of one CUDA source, without symbols: nvcc puts the name of a temporary file there."""
        home = self.build.environment.get("CUDA_HOME", str(self.cuda_home))
        output = self.folder / f"{name}.o"
        flags = {"NVCC_APPEND_FLAGS": " ".join(f"-Xcompiler={option}" for option in self.maps)}
        host = {"NVCC_CCBIN": self.build.environment.get("NVCC_CCBIN", str(self.cxx))}
        argv = (f"{home}/bin/nvcc", "-c", "-gencode", "arch=compute_80,code=sm_80", *options)
        self._run((*argv, str(self.source / name), "-o", str(output)), {**flags, **host, **env})
        subprocess.run(("strip", str(output)), check=True)
        return output.read_bytes()

    def _run(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        done = subprocess.run(
            argv,
            cwd=self.source,
            env={**SCRUBBED, **self.build.environment, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def counted(stats: CacheStats) -> tuple[int, int]:
    """Hits and misses."""
    return stats.hits, stats.misses


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
