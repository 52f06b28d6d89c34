"""An offline bundle of cells: from the matrix to a folder, and from the folder to a run without network."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.bundle.commits import (
    check_out,
    commits_of,
    head_commit,
    write_commit,
    write_repository,
)
from ci.bundle.images import entry_of, load_image, save_image
from ci.bundle.model import (
    ENVIRONMENT_LOCKS,
    LOCKS,
    README,
    RECORD,
    REPOSITORY_FILE,
    SOURCES,
    WHEELS,
    Bundle,
    BundledCommit,
    BundledImage,
    read_bundle,
    sha256_of,
)
from ci.bundle.use import offline_environment, seed_locks
from ci.bundle.verify import bundle_findings, lock_findings, part_findings
from ci.bundle.wheels import WheelFile, fetch, missing_bytes, verified, wheels_of
from ci.bundle.write import check_room, hashed, prepare, prune, put, put_text, readme, write_tar
from ci.environments.lock import Lock, lock_for, universe
from ci.environments.wanted import build_requirements, import_requirements
from ci.errors import ConfigError
from ci.executors.model import Engine, ImageFacts, build_image_ref, test_image_ref
from ci.findings import Finding, refuse
from ci.matrix.load import load
from ci.matrix.model import Cell, cuda_label, version_key
from ci.matrix.resolve import resolve
from ci.matrix.resolve import select as select_cells
from ci.pipeline.identity import checkout_problem
from ci.proc import Command, run
from ci.registry import MATRIX, REPOSITORY, EcosystemLibrary, Selection, libraries_of, target_of
from ci.registry import select as select_libraries
from ci.report.progress import Narrator
from ci.sources.resolve import check_submodules
from ci.toolchain.model import CompilerName
from ci.toolchain.recipes import Recipe, find_recipe


@dataclass(frozen=True)
class BundleRequest:
    """What the command line asks for. ``engine`` is None to leave images out."""

    out: Path
    cache_dir: Path
    cuda: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    capability_set: tuple[str, ...] = ()
    tier: str = ""
    library_set: str = "fleet"
    libs: tuple[str, ...] | None = None
    compiler: str = "auto"
    with_paddle: bool = True
    as_tar: bool = False
    engine: Engine | None = None
    matrix: Path = MATRIX


@dataclass(frozen=True)
class Made:
    """A finished bundle: its record, the record's SHA-256, and the one-file form if it was asked for."""

    bundle: Bundle
    digest: str
    archive: Path | None


@dataclass(frozen=True)
class _Content:
    """What goes into a bundle, decided before anything is fetched."""

    commit: str
    cells: tuple[Cell, ...]
    libraries: tuple[EcosystemLibrary, ...]
    recipes: tuple[Recipe, ...]
    images: tuple[ImageFacts, ...]

    @property
    def pythons(self) -> tuple[str, ...]:
        return tuple(sorted({cell.python for cell in self.cells}, key=version_key))


def make_bundle(request: BundleRequest, narrator: Narrator) -> Made:
    """Write the bundle of the cells that are asked for; what is there already and whole is kept.

    Without ``python`` it has all Pythons of the matrix: the other machine's are not known here. Raises
    :class:`~ci.errors.ConfigError` for a checkout that is not a commit, submodules that are not as pinned
    and a folder that holds other things, and :class:`~ci.errors.InfrastructureError` for what cannot be
    fetched or does not fit on the disk.
    """
    selections = _selections(request)
    content = _content(request, selections)
    prepare(request.out)
    locks = _locks(request, selections, content, narrator)
    wheels = _wheels(content, locks, narrator)
    _check_rooms(request, content, wheels)
    paths = [*_put_locks(locks, request.out), *_put_wheels(request, wheels, narrator)]
    commits = _put_sources(content, request.out, narrator)
    images = _put_images(request, content, narrator)
    paths += [REPOSITORY_FILE, *(item.path for item in commits), *(item.path for item in images)]
    bundle = Bundle(
        commit=content.commit,
        cells=tuple(cell.id for cell in content.cells),
        libraries=tuple(library.name for library in content.libraries),
        pythons=content.pythons,
        files=hashed(request.out, paths),
        images=images,
        commits=commits,
        tools=_tools(request.engine),
    )
    return _finish(request, content, bundle)


def _finish(request: BundleRequest, content: _Content, bundle: Bundle) -> Made:
    compilers = {recipe.cuda: recipe.compiler for recipe in content.recipes}
    put_text(readme(bundle, compilers, request.library_set), request.out / README)
    paths = (README, *(item.path for item in bundle.files))
    bundle = Bundle(**{**vars(bundle), "files": (*bundle.files, *hashed(request.out, [README]))})
    prune(request.out, paths)
    put_text(bundle.text(), request.out / RECORD)
    archive = None
    if request.as_tar:
        archive = write_tar(request.out, request.out.with_name(f"{request.out.name}.tar"))
    return Made(bundle, sha256_of(request.out / RECORD), archive)


# -- what goes in ----------------------------------------------------------------------------------


def _selections(request: BundleRequest) -> tuple[tuple[Cell, Selection], ...]:
    cells = select_cells(
        resolve(load(request.matrix)),
        cuda=request.cuda,
        python=request.python,
        capability_set=request.capability_set,
        tier=request.tier,
    )
    libraries = libraries_of(request.library_set)
    chosen = tuple((cell, select_libraries(libraries, cell, request.libs)) for cell in cells)
    empty = [cell.id for cell, selection in chosen if not selection.selected]
    if len(empty) == len(chosen):
        raise ConfigError(
            f"no library is left for {', '.join(empty)}",
            cause="every library that was asked for has a condition that these cells do not meet",
            next_step="take other cells (--cuda, --python), or other --libs",
        )
    return tuple(pair for pair in chosen if pair[1].selected)


def _content(request: BundleRequest, selections: Sequence[tuple[Cell, Selection]]) -> _Content:
    _label, problem = checkout_problem()
    if problem:
        raise ConfigError(
            f"this checkout cannot be bundled: {problem}",
            cause="a bundle holds a commit of the farm, and locks that belong to it",
            next_step="git status; commit what belongs to it, or clone the farm anew",
        )
    libraries = {item.name: item for _, selection in selections for item in selection.selected}
    check_submodules(list(libraries.values()))
    cells = tuple(cell for cell, _ in selections)
    cudas = tuple(
        dict.fromkeys(
            cell.cuda
            for cell, selection in selections
            if any(library.needs_cuda_compiler for library in selection.selected)
        )
    )
    return _Content(
        commit=head_commit(REPOSITORY),
        cells=cells,
        libraries=tuple(libraries.values()),
        recipes=tuple(_recipes(cudas, request.compiler)),
        images=_images(request.engine, cells),
    )


def _recipes(cudas: Sequence[str], compiler: str) -> list[Recipe]:
    """The compiler packages of each CUDA: the real nvcc where there is one, else those for clang."""
    orders: dict[str, tuple[CompilerName, ...]] = {
        "auto": ("nvcc", "clang"),
        "nvcc": ("nvcc",),
        "clang": ("clang",),
    }
    if compiler not in orders:
        raise ConfigError(f"unknown compiler {compiler!r}", next_step="--compiler auto")
    found = []
    for cuda in cudas:
        offers = [recipe for name in orders[compiler] if (recipe := find_recipe(cuda, name))]
        found += offers[:1]
    return found


def _images(engine: Engine | None, cells: Sequence[Cell]) -> tuple[ImageFacts, ...]:
    """The farm's images of the cells that the engine has."""
    if engine is None:
        return ()
    refs = [build_image_ref(cell.cuda) for cell in cells]
    refs += [test_image_ref(cell.cuda, cell.python) for cell in cells]
    found = [engine.image(ref) for ref in dict.fromkeys(refs)]
    return tuple(image for image in found if image is not None)


# -- locks and wheels ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Locks:
    """``wanted`` are pairs of Python and lock; ``texts`` maps paths in the bundle to what they hold."""

    wanted: tuple[tuple[str, Lock], ...]
    texts: Mapping[str, str]


def _locks(
    request: BundleRequest,
    selections: Sequence[tuple[Cell, Selection]],
    content: _Content,
    narrator: Narrator,
) -> _Locks:
    """The locks of every environment of the cells, and of the farm itself for their Pythons.

    They are made in a cache of their own: what it keeps is what another machine's cache has to have.
    """
    wanted: dict[tuple[str, Lock], None] = {}
    texts: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=request.out, prefix=".locks-") as scratch:
        cache = Path(scratch)
        for cell, selection in selections:
            narrator.say(f"{cell.id}: locks of its environments")
            for name, requirements in _environments(cell, selection).items():
                lock = lock_for(requirements, cell.python, name, cache)
                if (
                    name != "import" or request.with_paddle
                ):  # its lock is asked for without the suite, too
                    wanted[cell.python, lock] = None
        for path in sorted((cache / "locks").glob("*.txt")):
            texts[f"{ENVIRONMENT_LOCKS}/{path.name}"] = path.read_text("utf-8")
        for python in content.pythons:
            narrator.say(f"the farm itself: lock for Python {python}")
            lock = lock_for(universe("farm", ()), python, "farm", cache)
            wanted[python, lock] = None
            texts[f"{LOCKS}/farm-cp{python.replace('.', '')}.txt"] = lock.text
    return _Locks(tuple(wanted), texts)


def _environments(cell: Cell, selection: Selection) -> dict[str, tuple[str, ...]]:
    """The requirements of the cell's environments, by the committed lock that decides them."""
    libraries, target = selection.selected, target_of(cell)
    return {
        "build": build_requirements(libraries, target),
        "import": import_requirements(libraries, target, cell.paddle.cpu),
    }


def _wheels(content: _Content, locks: _Locks, narrator: Narrator) -> tuple[WheelFile, ...]:
    found: dict[WheelFile, None] = {}
    for python, lock in locks.wanted:
        narrator.say(f"asking for the wheels of {len(lock.pins)} packages, Python {python}")
        found |= dict.fromkeys(wheels_of(lock.text, python))
    for recipe in content.recipes:
        narrator.say(f"asking for the packages of CUDA {recipe.cuda} ({recipe.compiler})")
        text = recipe.requirements.read_text("utf-8")
        found |= dict.fromkeys(wheels_of(text, content.pythons[-1]))
    return tuple(sorted(found, key=lambda wheel: wheel.name))


def _check_rooms(request: BundleRequest, content: _Content, wheels: Sequence[WheelFile]) -> None:
    """Disk space, before anything is downloaded; an upper bound where something is there already."""
    downloads = missing_bytes(wheels, request.cache_dir)
    own = sum(
        wheel.size for wheel in wheels if not (request.out / WHEELS / wheel.name).exists()
    ) + sum(image.size for image in content.images)
    request.cache_dir.mkdir(parents=True, exist_ok=True)
    together = request.cache_dir.stat().st_dev == request.out.stat().st_dev
    check_room(request.cache_dir, downloads, "downloads")
    check_room(request.out, own + (downloads if together else 0), "the bundle")


def _put_locks(locks: _Locks, out: Path) -> list[str]:
    for path, text in locks.texts.items():
        put_text(text, out / path)
    return list(locks.texts)


def _put_wheels(
    request: BundleRequest, wheels: Sequence[WheelFile], narrator: Narrator
) -> list[str]:
    folder = request.out / WHEELS
    absent = [wheel for wheel in wheels if not verified(folder / wheel.name, wheel.sha256)]
    narrator.say(
        f"wheels: {len(wheels)}, {sum(wheel.size for wheel in wheels) / 1e6:.0f} MB; "
        f"{len(wheels) - len(absent)} are there already"
    )
    for path in fetch(absent, request.cache_dir, narrator.say):
        put(path, folder / path.name)
    return [f"{WHEELS}/{wheel.name}" for wheel in wheels]


# -- sources and images ----------------------------------------------------------------------------


def _put_sources(content: _Content, out: Path, narrator: Narrator) -> tuple[BundledCommit, ...]:
    narrator.say(f"the farm's commit {content.commit[:12]}")
    write_repository(out)
    items = []
    for checkout, item in commits_of(content.libraries):
        narrator.say(f"sources of {item.library}: commit {item.commit[:12]}")
        write_commit(checkout, item, out)
        items.append(item)
    return tuple(items)


def _put_images(
    request: BundleRequest, content: _Content, narrator: Narrator
) -> tuple[BundledImage, ...]:
    items = []
    for image in content.images:
        if request.engine is not None:
            narrator.say(f"image {image.ref}, {image.size / 1e6:.0f} MB")
            item = entry_of(image)
            save_image(request.engine.facts, item, request.out)
            items.append(item)
    return tuple(items)


def _tools(engine: Engine | None) -> dict[str, str]:
    """Versions of what made the bundle: they decide some of its bytes."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    git = run(Command(("git", "--version")))
    if git.ok:
        found["git"] = git.output.strip().removeprefix("git version ")
    if engine is not None:
        found[engine.facts.name] = engine.facts.server_version
    return found


# -- using it --------------------------------------------------------------------------------------


def verify_bundle(
    folder: Path, expected: str, narrator: Narrator
) -> tuple[Bundle, tuple[Finding, ...]]:
    """The record of a bundle and everything that is wrong with it.

    ``expected`` is the SHA-256 that its record should have, empty when nobody said. Raises
    :class:`~ci.errors.ConfigError` when there is no bundle.
    """
    bundle = read_bundle(folder)
    found = bundle_findings(folder, bundle, narrator.say)
    digest = sha256_of(folder / RECORD)
    if expected and digest != expected.lower():
        why = f"its SHA-256 is {digest}, {expected} is expected"
        found = (Finding("bundle-changed", RECORD, why, "get the bundle from its maker"), *found)
    return bundle, found


def use_bundle(
    folder: Path, cache_dir: Path, environ: Mapping[str, str], narrator: Narrator
) -> dict[str, str]:
    """Make a run that takes everything from a bundle possible; returns the environment for it.

    Wheels, locks and sources are checked first; the locks go into the cache, submodules that are not
    checked out are, from the bundle. Raises :class:`~ci.errors.FindingError` with all that is wrong.
    """
    bundle = read_bundle(folder)
    _refuse(folder, part_findings(folder, bundle, (WHEELS, LOCKS, SOURCES), narrator.say))
    _refuse(folder, lock_findings(folder, bundle))
    here = head_commit(REPOSITORY)
    if here != bundle.commit:
        narrator.say(
            f"the bundle was made with the farm's {bundle.commit[:12]}, this is {here[:12]}"
        )
    narrator.say(f"bundle: {seed_locks(folder, bundle, cache_dir)} locks of environments")
    for place in check_out(bundle, folder, bundle.libraries):
        narrator.say(f"bundle: sources into {place}")
    return offline_environment(folder, environ)


def _refuse(folder: Path, found: Sequence[Finding]) -> None:
    refuse(
        f"the bundle {folder} is not as it was made",
        found,
        next_step=f"python -m ci bundle verify {folder}",
    )


def load_images(
    folder: Path, cudas: Sequence[str], engine: Engine, narrator: Narrator
) -> tuple[ImageFacts, ...]:
    """Load the images of these CUDAs ("13.0" or "cu130"; all when there is none) into an engine.

    Raises :class:`~ci.errors.FindingError` when an archive or what was loaded is not the image that the
    record names, and :class:`~ci.errors.ConfigError` when the bundle has no image of a CUDA.
    """
    bundle = read_bundle(folder)
    labels = {cuda_label(cuda.removeprefix("cu")) for cuda in cudas}
    wanted = [item for item in bundle.images if not labels or item.cuda_label in labels]
    missing = sorted(labels - {item.cuda_label for item in wanted})
    if missing or not wanted:
        raise ConfigError(
            f"the bundle has no image of {', '.join(missing) or 'any CUDA'}",
            cause="it was made with --no-images, or where they had not been built",
            next_step="--executor host, or make the bundle where `nox -s images` has run",
        )
    loaded = []
    for item in wanted:
        narrator.say(f"image {item.ref} from the bundle")
        loaded.append(load_image(engine, item, folder))
    return tuple(loaded)
