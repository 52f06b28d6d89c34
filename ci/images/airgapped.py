"""The air-gapped base: a Debian suite from debootstrap with this host's CPythons, imported as an image.

Nothing here asks an image registry. ``docker/airgapped.toml`` is the recipe; the image carries the hash of
all that it was made from, and one that is there already is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ci.errors import ConfigError, InfrastructureError, ToolchainError
from ci.executors.model import LABEL, REPOSITORY_PREFIX, Engine, ImageFacts
from ci.images import pythons
from ci.images.command import Say, engine_command
from ci.images.pythons import LeftOut, PythonBuild
from ci.matrix.load import toml_data
from ci.proc import Command, run
from ci.registry import REPOSITORY
from ci.toolchain.probe import ask

RECIPES = REPOSITORY / "docker" / "airgapped.toml"
FORMAT = 2
"""Raise it when the way the base is made changes, so that older ones are not kept any more."""

NEEDED_BYTES = 4_000_000_000
"""The root (1.1 GB), its tar, and the engine's copy, with room to spare."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SECONDS = 3600.0


@dataclass(frozen=True)
class Recipe:
    """What ``docker/airgapped.toml`` says of one suite. ``extra_suite`` is where clang comes from."""

    suite: str
    glibc: str
    mirror: str
    packages: tuple[str, ...]
    trim: tuple[str, ...]
    extra_packages: tuple[str, ...] = ()
    extra_suite: str = ""
    extra_mirror: str = ""


@dataclass(frozen=True)
class Base:
    """A base that is to be: the recipe, the CPythons that go in, and those that cannot."""

    recipe: Recipe
    builds: tuple[PythonBuild, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def ref(self) -> str:
        """Its name: ``paddlefleet-farm/base:bookworm``, ``…:bookworm-clang``."""
        clang = "-clang" if self.recipe.extra_packages else ""
        return f"{REPOSITORY_PREFIX}/base:{self.recipe.suite}{clang}"

    @property
    def definition(self) -> str:
        """SHA-256 of all that the base is made from, shortened. Mirrors serve the same suite: not in it."""
        recipe = {
            key: value for key, value in asdict(self.recipe).items() if not key.endswith("mirror")
        }
        builds = [(build.full, build.digest) for build in self.builds]
        text = json.dumps([FORMAT, recipe, builds, platform.machine()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def load_recipe(suite: str, *, with_clang: bool, path: Path = RECIPES) -> Recipe:
    """The recipe of ``suite``. Raises :class:`~ci.errors.ConfigError` for a suite that has none."""
    data = toml_data(path.read_text("utf-8"), path.name, "images --dry-run")
    table = data["suites"].get(suite)
    if table is None:
        raise ConfigError(
            f"no recipe for the suite {suite!r}",
            cause=f"docker/{path.name} has {', '.join(data['suites'])}",
            next_step="choose one of them with --suite, or add a table for yours",
        )
    extra: dict[str, object] = {}
    if with_clang:
        if suite not in data["clang"]["suites"]:
            raise ConfigError(
                f"no clang for the suite {suite!r}",
                cause=f"docker/{path.name} has it for {', '.join(data['clang']['suites'])}",
                next_step="leave --with-clang out, or choose that suite with --suite",
            )
        extra = {
            "extra_packages": tuple(data["clang"]["packages"]),
            "extra_suite": data["clang"]["suites"][suite],
            "extra_mirror": data["clang"]["mirror"],
        }
    return Recipe(
        suite=suite,
        glibc=table["glibc"],
        mirror=data["mirror"],
        packages=tuple(sorted({*data["packages"], *table["libraries"]})),
        trim=tuple(data["trim"]),
        **extra,  # type: ignore[arg-type]
    )


def plan_base(recipe: Recipe, versions: Sequence[str], environ: Mapping[str, str]) -> Base:
    """The base of ``recipe`` with this host's CPythons: ``versions``, and cibuildwheel's if it is here."""
    found, left_out = pythons.survey(versions, environ)
    utility, _ = pythons.survey((pythons.UTILITY_PYTHON,), environ)
    if not found:
        raise ToolchainError(
            "no CPython of this host can be put into a base",
            cause="none was found apart from the system's own",
            next_step="pyenv install 3.12, or uv python install 3.12",
            details=[f"{item.version}: {item.reason}" for item in left_out],
        )
    return Base(recipe, (*found, *utility), left_out)


def mirror_of(suite: str, otherwise: str, environ: Mapping[str, str]) -> str:
    """Where this host's apt gets ``suite`` from, else ``otherwise``."""
    answer, problem = ask(
        environ, "apt-get", "indextargets", "--format", "$(SITE)", f"Codename: {suite}"
    )
    sites = [] if problem else answer.split()
    return sites[0] if sites else otherwise


def debootstrap_argv(recipe: Recipe, mirror: str, root: Path) -> tuple[str, ...]:
    """The command that puts the suite together."""
    return (
        "debootstrap",
        "--variant=minbase",
        f"--include={','.join(recipe.packages)}",
        recipe.suite,
        str(root),
        mirror,
    )


def labels_of(base: Base, builds: Sequence[PythonBuild]) -> dict[str, str]:
    """The labels of the base, in which ``builds`` run."""
    versions = [build.version for build in builds if build.version != pythons.UTILITY_PYTHON]
    values = {
        "role": "base",
        "pythons": " ".join(versions),
        "compiler": "packages",
        "definition": base.definition,
        "glibc": base.recipe.glibc,
        "base": f"debian:{base.recipe.suite}",
    }
    return {LABEL + name: value for name, value in values.items()}


def import_argv(
    base: Base, program: str, archive: Path, builds: Sequence[PythonBuild]
) -> tuple[str, ...]:
    """The command that makes an image of the finished root, in which ``builds`` run."""
    changes = [f"ENV PATH={_PATH}", 'CMD ["/bin/bash"]']
    changes += [f'LABEL {name}="{value}"' for name, value in labels_of(base, builds).items()]
    options = [word for change in changes for word in ("--change", change)]
    return (program, "import", *options, str(archive), base.ref)


def pack_argv(root: Path, archive: Path) -> tuple[str, ...]:
    """The command that packs the finished root."""
    return ("tar", "--sort=name", "--numeric-owner", "-C", str(root), "-cf", str(archive), ".")


def present(base: Base, engine: Engine) -> ImageFacts | None:
    """The image of ``base`` when it is there and made from the same things."""
    facts = engine.image(base.ref)
    if facts is not None and facts.label("definition") == base.definition:
        return facts
    return None


def make_base(base: Base, engine: Engine, work_dir: Path, log_dir: Path, say: Say) -> ImageFacts:
    """The image of ``base``, made when it is not there.

    Raises :class:`~ci.errors.ToolchainError` without root or debootstrap, and
    :class:`~ci.errors.InfrastructureError` when packages cannot be had or the disk is full.
    """
    ready = present(base, engine)
    if ready is not None:
        say(f"base {base.ref}: there already ({base.definition})")
        return ready
    require_debootstrap(os.geteuid(), shutil.which("debootstrap"))
    with _scratch(work_dir) as work:
        root = work / "root"
        _bootstrap(base.recipe, root, log_dir, say)
        builds = _install_pythons(base, root, say)
        _trim(base.recipe, root)
        archive = _pack(root, work / "root.tar", log_dir)
        say(f"base {base.ref}: import")
        argv = import_argv(base, str(engine.facts.program), archive, builds)
        engine_command(argv, log_dir / "import.log", f"import {base.ref}")
    facts = engine.image(base.ref)
    if facts is None:
        raise InfrastructureError(
            f"{base.ref} was imported, but the engine does not know it",
            cause="another engine or context answered",
            next_step="docker context show",
        )
    return facts


def require_debootstrap(uid: int, program: str | None) -> None:
    """Raise :class:`~ci.errors.ToolchainError` when this process cannot run debootstrap."""
    if program is None:
        raise ToolchainError(
            "debootstrap is not installed",
            cause="the air-gapped base is put together by it",
            next_step="apt-get install debootstrap, or use a base that is there: --base REF",
        )
    if uid != 0:
        raise ToolchainError(
            "the air-gapped base needs root",
            cause="debootstrap makes device files and changes owners and root folders",
            next_step="sudo python -m ci images --base airgapped, or use a base that is there: --base REF",
        )


@contextlib.contextmanager
def _scratch(work_dir: Path) -> Iterator[Path]:
    work_dir.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(work_dir).free
    if free < NEEDED_BYTES:
        raise InfrastructureError(
            f"not enough disk space in {work_dir}: {free / 1e9:.1f} GB are free",
            cause=f"the base needs {NEEDED_BYTES / 1e9:.0f} GB while it is made",
            next_step="free space, or choose another folder with --cache-dir",
        )
    work = Path(tempfile.mkdtemp(prefix="base-", dir=work_dir))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _bootstrap(recipe: Recipe, root: Path, log_dir: Path, say: Say) -> None:
    mirror = mirror_of(recipe.suite, recipe.mirror, os.environ)
    say(f"base: debootstrap {recipe.suite}, {len(recipe.packages)} packages and what they need")
    _run(debootstrap_argv(recipe, mirror, root), log_dir / "debootstrap.log", "debootstrap")
    if recipe.extra_packages:
        _install_extra(recipe, root, log_dir, say)


def _install_extra(recipe: Recipe, root: Path, log_dir: Path, say: Say) -> None:
    """Install packages of another suite with the new root's own apt, then forget that suite."""
    mirror = mirror_of(recipe.extra_suite, recipe.extra_mirror, os.environ)
    say(f"base: {', '.join(recipe.extra_packages)} from {recipe.extra_suite}")
    source = root / "etc/apt/sources.list.d/extra.list"
    source.write_text(f"deb {mirror} {recipe.extra_suite} main\n", "utf-8")
    for name in ("resolv.conf", "hosts"):
        with contextlib.suppress(OSError):
            shutil.copyfile(Path("/etc", name), root / "etc" / name)
    apt = ("chroot", str(root), "env", "DEBIAN_FRONTEND=noninteractive", "apt-get")
    _run((*apt, "update"), log_dir / "extra-update.log", "apt-get update")
    install = ("install", "-y", "--no-install-recommends", *recipe.extra_packages)
    _run((*apt, *install), log_dir / "extra-install.log", "apt-get install")
    source.unlink()


def _run(argv: tuple[str, ...], log: Path, name: str) -> None:
    done = run(Command(argv, timeout=_SECONDS), log=log)
    if not done.ok:
        raise InfrastructureError(
            f"{name} failed while the base was made",
            cause="the mirror cannot be reached or has no such suite, or the disk is full",
            next_step=f"less {log}",
            details=done.tail(12),
        )


def _install_pythons(base: Base, root: Path, say: Say) -> tuple[PythonBuild, ...]:
    """Those of the CPythons that really run in the new root; the others are taken out again."""
    patchelf = pythons.find_patchelf()
    kept: list[PythonBuild] = []
    left_out = list(base.left_out)
    for build in base.builds:
        say(f"base: CPython {build.full}")
        pythons.install(build, root, patchelf)
        problem = pythons.prove(build, root)
        if problem is None:
            kept.append(build)
        else:
            left_out.append(problem)
            say(f"base: CPython {build.version} is left out: {problem.reason}")
    if all(build.version == pythons.UTILITY_PYTHON for build in kept):
        raise ToolchainError(
            f"no CPython of this host runs in {base.recipe.suite}",
            cause=f"its C library is {base.recipe.glibc}, older than this host's",
            next_step="choose a newer suite with --suite",
            details=[f"{item.version}: {item.reason}" for item in left_out],
        )
    return tuple(kept)


def _trim(recipe: Recipe, root: Path) -> None:
    """Take out what no build reads, and what tells of this host."""
    for pattern in recipe.trim:
        for path in root.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    sources = root / "etc/apt/sources.list"
    sources.write_text(f"deb {recipe.mirror} {recipe.suite} main\n", "utf-8")


def _pack(root: Path, archive: Path, log_dir: Path) -> Path:
    _run(pack_argv(root, archive), log_dir / "tar.log", "tar")
    return archive
