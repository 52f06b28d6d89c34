"""Puts a CUDA home together from packages of the Python package index, in the farm's cache.

A home is made in a temporary folder beside its place, completed, proven by compiling a kernel,
given its record, and only then renamed into place under a lock: many processes may ask at once, and
a half-made one is never seen. Its name holds the hash of everything that it is made from, so a
changed lock or recipe makes another home and never alters one in use.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ci import proc
from ci.errors import InfrastructureError, ToolchainError
from ci.toolchain import clang, probe, stubs
from ci.toolchain.recipes import Recipe
from ci.toolchain.resolve import Assemble

RECORD = "toolchain.json"
FORMAT = 1
"""Raise it when the way a home is completed changes, so that older ones are not used any more."""

_INSTALL_SECONDS = 1800.0
_NETWORK_WORDS = (
    "error sending request",
    "failed to fetch",
    "dns error",
    "connection",
    "timed out",
    "network",
    "certificate",
    "http status",
)


@dataclass(frozen=True)
class Assembled:
    """A complete CUDA home in the cache, and what its record says."""

    home: Path
    version: str
    digests: tuple[tuple[str, str], ...]
    ptxas_version: str


def home_key(choice: Assemble) -> str:
    """The folder's name: readable, then a hash of all that the home is made from."""
    recipe = choice.recipe
    parts = [str(FORMAT), recipe.cuda, recipe.compiler, recipe.digest()]
    if choice.clang is not None:
        parts += [str(choice.clang.path), choice.clang.full_version, clang.wrapper_digest()]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return f"cuda-{recipe.cuda}-{recipe.compiler}-{digest[:16]}"


def place_of(choice: Assemble, cache_dir: Path) -> Path:
    """Where the home of this choice is, or would be."""
    return cache_dir / "toolchains" / home_key(choice)


def read_record(place: Path) -> Assembled | None:
    """The complete home at ``place``, or None when there is none or parts of it are gone."""
    home = place / "cuda"
    try:
        record = json.loads((place / RECORD).read_text(encoding="utf-8"))
        digests = tuple((str(name), str(digest)) for name, digest in record["digests"])
        if not all((home / name).exists() for name in record["needs"]):
            return None
        return Assembled(home, str(record["version"]), digests, str(record["ptxas_version"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def assemble(
    choice: Assemble,
    cache_dir: Path,
    *,
    environ: Mapping[str, str],
    progress: Callable[[str], None],
) -> Assembled:
    """The CUDA home for ``choice``, made when the cache does not have it.

    Writes below ``cache_dir`` only. Raises :class:`~ci.errors.InfrastructureError` when packages
    cannot be had or the disk fails, :class:`~ci.errors.ToolchainError` when what was put together
    does not compile.
    """
    place = place_of(choice, cache_dir)
    ready = read_record(place)
    if ready is not None:
        return ready
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with locked(place.parent / f"{place.name}.lock", progress):
            ready = read_record(place)
            if ready is None:
                ready = _make(choice, place, cache_dir, environ, progress)
            return ready
    except OSError as error:
        raise InfrastructureError(
            f"cannot write the toolchain into the cache: {error}",
            cause="the disk is full, or the cache folder cannot be written",
            next_step=f"df -h {cache_dir}; or choose another cache folder",
        ) from error


@contextlib.contextmanager
def locked(path: Path, progress: Callable[[str], None]) -> Iterator[None]:
    """Hold an inter-process lock; says so when it has to wait for another process."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0.5)
    except Timeout:
        progress("waiting: another process puts this toolchain together")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(
    choice: Assemble,
    place: Path,
    cache_dir: Path,
    environ: Mapping[str, str],
    progress: Callable[[str], None],
) -> Assembled:
    """Make the home at ``place``; the caller holds its lock."""
    _sweep(place)
    work = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        recipe = choice.recipe
        name = f"CUDA {recipe.cuda} ({recipe.compiler})"
        progress(f"{name}: fetching {len(recipe.packages())} packages")
        site = work / "site"
        install(recipe, site, cache_dir, environ)
        home = work / "cuda"
        _complete(choice, site, home, environ)
        _keep_licences(site, work / "packages")
        shutil.rmtree(site)
        progress(f"{name}: compiling a kernel to prove it")
        version = prove(choice, home, work / "proof", environ)
        shutil.rmtree(work / "proof")
        _write_record(choice, work, version, environ)
        if place.exists():
            shutil.rmtree(place)
        work.replace(place)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    ready = read_record(place)
    if ready is None:
        raise InfrastructureError(
            f"the toolchain at {place} vanished right after it was made",
            cause="something else deletes files in the cache folder",
            next_step="run the same command again",
        )
    return ready


def _sweep(place: Path) -> None:
    """Remove what a killed run left. Safe: the lock of this name is held."""
    for left in place.parent.glob(f".{place.name}.*"):
        shutil.rmtree(left, ignore_errors=True)


# -- packages --------------------------------------------------------------------------------------


def install(recipe: Recipe, site: Path, cache_dir: Path, environ: Mapping[str, str]) -> None:
    """Install the locked packages into ``site`` with uv; each file must have a hash of the lock."""
    uv = probe.find_uv(environ)
    if uv is None:
        raise ToolchainError(
            "uv is not installed, so no toolchain can be fetched",
            cause="the farm's own dependencies are not all installed",
            next_step=f"{sys.executable} -m pip install uv",
        )
    argv = [str(uv), "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    argv += ["--only-binary", ":all:", "--python", sys.executable, "--target", str(site)]
    argv += ["--requirements", str(recipe.requirements)]
    environment = _uv_environment(environ, cache_dir)
    answer = proc.run(
        proc.Command(tuple(argv), cwd=site.parent, env=environment, timeout=_INSTALL_SECONDS)
    )
    if not answer.ok:
        raise _install_error(recipe, answer)


def _uv_environment(environ: Mapping[str, str], cache_dir: Path) -> dict[str, str]:
    """The caller's environment, without what would send the packages elsewhere."""
    drop = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "UV_TARGET", "UV_PREFIX", "UV_SYSTEM_PYTHON")
    kept = {name: value for name, value in environ.items() if name not in drop}
    kept.setdefault("UV_CACHE_DIR", str(cache_dir / "uv"))
    return kept


def _install_error(recipe: Recipe, answer: proc.Completed) -> InfrastructureError:
    text = answer.output.lower()
    if "hash mismatch" in text:
        cause = "the package index served a file whose hash is not in the lock"
        next_step = "check the package index (a mirror?), or renew the lock: ci/toolchain/locks"
    elif answer.timed_out or any(word in text for word in _NETWORK_WORDS):
        cause = "the package index cannot be reached from here"
        next_step = "check the network, then run the same command again"
    else:
        cause = "see the last lines of uv below"
        next_step = f"run it by hand: {answer.command.shown}"
    return InfrastructureError(
        f"cannot fetch the packages of CUDA {recipe.cuda} ({recipe.compiler})",
        cause=cause,
        next_step=next_step,
        details=answer.tail(15),
    )


def _keep_licences(site: Path, target: Path) -> None:
    """Keep each package's metadata (name, version, licence) beside the home."""
    target.mkdir()
    for folder in sorted(site.glob("*.dist-info")):
        folder.replace(target / folder.name)


# -- completing ------------------------------------------------------------------------------------


def _complete(choice: Assemble, site: Path, home: Path, environ: Mapping[str, str]) -> None:
    """From installed packages to a CUDA home with the folders that a toolkit has."""
    if choice.clang is None:
        (site / "nvidia" / _package_folder(choice.recipe.cuda)).replace(home)
    else:
        clang.lay_out(choice.recipe.cuda, site / "nvidia", home)
    link_libraries(home)
    stubs.make_driver_stub(home / "lib" / "stubs", home / "include", choice.host.cc, environ)
    if choice.clang is not None:
        clang.complete(choice, home, environ)


def _package_folder(cuda: str) -> str:
    """NVIDIA's CUDA 13 packages share one folder, ``nvidia/cu13``."""
    return "cu" + cuda.split(".", 1)[0]


def link_libraries(home: Path) -> None:
    """Give ``home`` the names that toolkits have and packages lack.

    ``lib64`` and ``targets/x86_64-linux`` are where builds look; the plain ``libX.so`` is what
    ``-lX`` looks for. All links are relative, so that the home can be renamed.
    """
    lib = home / "lib"
    (home / "lib64").symlink_to("lib")
    target = home / "targets" / "x86_64-linux"
    target.mkdir(parents=True)
    (target / "include").symlink_to("../../include")
    (target / "lib").symlink_to("../../lib")
    for versioned in sorted(lib.glob("lib*.so.*")):
        plain = lib / (versioned.name.partition(".so.")[0] + ".so")
        if not plain.exists():
            plain.symlink_to(versioned.name)


# -- proof and record ------------------------------------------------------------------------------

_KERNEL = """
#include <cuda_fp16.h>
#include <cub/block/block_reduce.cuh>

__global__ void sum(const __half* in, float* out) {
  using Reduce = cub::BlockReduce<float, 128>;
  __shared__ typename Reduce::TempStorage storage;
  float total = Reduce(storage).Sum(__half2float(in[threadIdx.x]));
  if (threadIdx.x == 0) *out = expf(total);
}

extern "C" int launch_sum(const void* in, float* out) {
  sum<<<1, 128>>>(static_cast<const __half*>(in), out);
  return static_cast<int>(cudaGetLastError());
}
"""


def prove(choice: Assemble, home: Path, folder: Path, environ: Mapping[str, str]) -> str:
    """Compile and link a kernel with ``home`` as a build would; returns the compiler's version.

    Raises :class:`~ci.errors.ToolchainError` when it does not compile, or is another CUDA.
    """
    folder.mkdir()
    nvcc = str(home / "bin" / "nvcc")
    kept = proc.scrubbed(environ, ("PATH", "LANG"), TMPDIR=str(folder))
    kept |= {"NVCC_CCBIN": str(choice.host.cxx), "LIBRARY_PATH": str(home / "lib64" / "stubs")}
    told = stubs.checked(kept, nvcc, "--version")
    if f"release {choice.recipe.cuda}," not in told:
        raise ToolchainError(
            f"the assembled nvcc is not CUDA {choice.recipe.cuda}",
            cause="the lock of this CUDA holds packages of another version",
            next_step=f"renew ci/toolchain/locks/{choice.recipe.lock}",
            details=told.splitlines(),
        )
    source = folder / "proof.cu"
    source.write_text(_KERNEL, encoding="utf-8")
    target = folder / "proof.so"
    options = ["-std=c++17", "-O2", "-gencode", "arch=compute_80,code=sm_80"]
    options += ["-Xcompiler", "-fPIC", "-shared", "-o", str(target)]
    stubs.checked(kept, nvcc, *options, str(source), "-lcuda", cwd=folder)
    return next(word[1:] for word in told.replace(",", " ").split() if word.startswith("V1"))


def _write_record(choice: Assemble, work: Path, version: str, environ: Mapping[str, str]) -> None:
    home = work / "cuda"
    digests = probe.cuda_digests(home)
    record = {
        "cuda": choice.recipe.cuda,
        "compiler": choice.recipe.compiler,
        "version": version,
        "ptxas_version": probe.ptxas_version(environ, home),
        "packages": choice.recipe.packages(),
        "digests": digests,
        "needs": ["bin/nvcc", "bin/ptxas", "bin/fatbinary", "include/cuda_runtime.h", "lib64"],
    }
    (work / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
