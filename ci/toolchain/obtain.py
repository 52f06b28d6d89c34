"""From a wanted CUDA to a toolchain that is there: probe, choose, put together what is missing."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from ci.errors import InfrastructureError, ToolchainError
from ci.sources.tree_cache import hashed_file
from ci.toolchain import probe, stubs
from ci.toolchain.assemble import assemble, locked
from ci.toolchain.host_identity import host_digests
from ci.toolchain.model import (
    CLANG_NOT_PUBLISHABLE,
    CompilerName,
    HostCompilerFact,
    HostToolchain,
    Toolchain,
)
from ci.toolchain.resolve import Assemble, UseNvcc, choose


def resolve_toolchain(
    cuda: str,
    compiler: str,
    cache_dir: Path,
    *,
    environ: Mapping[str, str],
    progress: Callable[[str], None],
) -> Toolchain:
    """The toolchain for ``cuda`` (``"13.0"``), ready to compile.

    ``compiler`` is ``auto``, ``nvcc`` or ``clang``. What is not installed is put together below
    ``cache_dir``; nothing is written elsewhere. Safe to call from many processes at once.

    Raises :class:`~ci.errors.ToolchainError` (no compiler; the message has the ways to get one) and
    :class:`~ci.errors.InfrastructureError` (packages cannot be fetched, disk).
    """
    cache_dir = cache_dir.absolute()
    choice = choose(cuda, compiler, probe.probe(environ))
    if isinstance(choice, UseNvcc):
        return _installed(cuda, choice, cache_dir, environ, progress)
    return _assembled(choice, cache_dir, environ, progress)


def host_toolchain(environ: Mapping[str, str], cache_dir: Path) -> HostToolchain:
    """The C++ compiler for libraries without device code: the first usable one. ``cache_dir`` keeps an index
    of what was hashed.

    Raises :class:`~ci.errors.ToolchainError` when there is none.
    """
    facts = tuple(probe.find_hosts(environ))
    for fact in facts:
        if not fact.problem:
            return HostToolchain(
                fact.cc,
                fact.cxx,
                f"{fact.family} {fact.version}",
                host_digests(environ, fact.cxx, cache_dir.absolute()),
            )
    raise ToolchainError(
        "no C++ compiler",
        cause="neither CXX nor PATH names one that works",
        next_step="apt-get install g++, or set CXX",
        details=[f"{fact.cxx}: {fact.problem}" for fact in facts],
    )


def _installed(
    cuda: str,
    choice: UseNvcc,
    cache_dir: Path,
    environ: Mapping[str, str],
    progress: Callable[[str], None],
) -> Toolchain:
    home = choice.nvcc.home
    stub = _driver_stub(home, cache_dir, choice.host, environ, progress)
    return Toolchain(
        cuda=cuda,
        compiler="nvcc",
        cuda_home=home,
        version=choice.nvcc.version,
        origin=choice.nvcc.origin,
        origin_text=f"installed in {home}, found by {choice.nvcc.origin_text}",
        cc=choice.host.cc,
        cxx=choice.host.cxx,
        cxx_version=f"{choice.host.family} {choice.host.version}",
        ptxas_version=probe.ptxas_version(environ, home),
        publishable=True,
        not_publishable_because="",
        digests=probe.cuda_digests(home, lambda path: hashed_file(path, cache_dir))
        + host_digests(environ, choice.host.cxx, cache_dir),
        library_path=(stub, home / "lib64"),
    )


def _assembled(
    choice: Assemble,
    cache_dir: Path,
    environ: Mapping[str, str],
    progress: Callable[[str], None],
) -> Toolchain:
    made = assemble(choice, cache_dir, environ=environ, progress=progress)
    compiler: CompilerName = choice.recipe.compiler
    version = made.version
    digests = made.digests + host_digests(environ, choice.host.cxx, cache_dir)
    if choice.clang is not None:
        version = f"{choice.clang.full_version} with CUDA {made.version}"
        digests += (("clang", hashed_file(choice.clang.path, cache_dir)),)
    return Toolchain(
        cuda=choice.recipe.cuda,
        compiler=compiler,
        cuda_home=made.home,
        version=version,
        origin="cache",
        origin_text="put together from packages of the Python package index: "
        + ", ".join(choice.recipe.packages()),
        cc=choice.host.cc,
        cxx=choice.host.cxx,
        cxx_version=f"{choice.host.family} {choice.host.version}",
        ptxas_version=made.ptxas_version,
        publishable=compiler == "nvcc",
        not_publishable_because="" if compiler == "nvcc" else CLANG_NOT_PUBLISHABLE,
        digests=digests,
        library_path=(made.home / "lib64" / "stubs", made.home / "lib64"),
    )


def _driver_stub(
    home: Path,
    cache_dir: Path,
    host: HostCompilerFact,
    environ: Mapping[str, str],
    progress: Callable[[str], None],
) -> Path:
    """The folder with a ``libcuda.so`` to link with: the toolkit's own, else ours in the cache."""
    own = home / "lib64" / "stubs"
    if (own / stubs.DRIVER_STUB).exists():
        return own
    digest = probe.file_digest(home / "include" / "cuda.h")
    place = cache_dir / "toolchains" / f"driver-stub-{digest[:16]}"
    if (place / stubs.DRIVER_STUB).exists():
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with locked(place.parent / f"{place.name}.lock", progress):
            if not (place / stubs.DRIVER_STUB).exists():
                work = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
                try:
                    stubs.make_driver_stub(work, home / "include", host.cc, environ)
                    work.replace(place)
                finally:
                    shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise InfrastructureError(
            f"cannot write the driver's stub into the cache: {error}",
            cause="the disk is full, or the cache folder cannot be written",
            next_step=f"df -h {cache_dir}; or choose another cache folder",
        ) from error
    return place
