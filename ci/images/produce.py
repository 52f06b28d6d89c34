"""The verb ``images``: which images, made or checked, and what came of each."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ci.environments.lock import IMPORT_BASE, Lock, lock_for
from ci.errors import ConfigError
from ci.executors.model import Engine, ImageFacts
from ci.executors.preflight import check_disk, check_places
from ci.findings import Finding
from ci.images import airgapped
from ci.images.bases import ChosenBase, base_behind, named_base, own_base, pinned_base
from ci.images.build import Built, ImageBuild, make, plan_build, plan_test, prepare
from ci.images.command import Say
from ci.images.pins import Pins
from ci.images.verify import Layer, absent, judge, look
from ci.matrix.model import CudaEntry, python_tag
from ci.registry import REPOSITORY

AIRGAPPED = "airgapped"
NEEDED_BYTES = 6_000_000_000
"""An image, its layers and the stages that it is made in, at the engine's."""


@dataclass(frozen=True)
class ImagesRequest:
    """What the user asked for. ``base`` is ``airgapped``, ``public``, ``paddle`` or an image; ``tests`` are
    the Pythons of the test images (none: build images only); ``paddle`` is ``cpu`` or ``gpu``.
    """

    cudas: tuple[CudaEntry, ...]
    pythons: tuple[str, ...]
    base: str
    suite: str
    with_clang: bool
    tests: tuple[str, ...]
    paddle: str
    cache_dir: Path
    context: Path | None = None

    @property
    def log_dir(self) -> Path:
        """Where the logs of builders go."""
        return self.cache_dir / "images" / "logs"


@dataclass(frozen=True)
class ImageRow:
    """What came of one image. ``status`` is built, kept, good, bad or absent; sizes are bytes."""

    build: ImageBuild
    status: str
    facts: ImageFacts | None = None
    seconds: float = 0.0
    log: str = ""
    layers: tuple[Layer, ...] = ()
    folders: tuple[tuple[str, int], ...] = ()
    findings: tuple[Finding, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """JSON-ready values."""
        return {
            "ref": self.build.ref,
            "role": self.build.role,
            "cuda": self.build.cuda,
            "status": self.status,
            "definition": self.build.definition,
            "base": self.build.arguments["BASE"],
            "digest": self.facts.digest if self.facts else "",
            "size": self.facts.size if self.facts else 0,
            "layers": [layer.size for layer in self.layers if layer.size],
            "folders": dict(self.folders),
            "seconds": round(self.seconds, 1),
            "log": self.log,
            "findings": [vars(item) for item in self.findings],
        }


def base_plan(request: ImagesRequest) -> airgapped.Base:
    """The air-gapped base that the request means."""
    recipe = airgapped.load_recipe(request.suite, with_clang=request.with_clang)
    return airgapped.plan_base(recipe, request.pythons, os.environ)


def planned(
    request: ImagesRequest, pins: Pins, engine: Engine | None, base: ImageFacts | None
) -> tuple[tuple[ImageBuild, ...], tuple[Finding, ...]]:
    """Every image of the request, and what is to be said about their bases. ``base`` is the air-gapped
    one, when that was asked for.
    """
    builds: list[ImageBuild] = []
    findings: dict[Finding, None] = {}
    for entry in request.cudas:
        for role in ("build", *(("test",) if request.tests else ())):
            chosen = _chosen(request, role, entry.version, pins, engine, base)
            findings |= dict.fromkeys(chosen.findings)
            builds += _of_role(request, role, entry, chosen)
    return tuple(builds), tuple(findings)


def _of_role(
    request: ImagesRequest, role: str, entry: CudaEntry, chosen: ChosenBase
) -> Iterator[ImageBuild]:
    if role == "build":
        yield plan_build(entry.version, chosen.base)
        return
    for python in request.tests:
        yield plan_test(entry.version, python, chosen.base, paddle_of(entry, request.paddle))


def paddle_of(entry: CudaEntry, kind: str) -> str:
    """The requirement for Paddle, of a ``kind``: ``cpu`` or ``gpu``."""
    return entry.paddle.gpu if kind == "gpu" else entry.paddle.cpu


def _chosen(
    request: ImagesRequest,
    role: str,
    cuda: str,
    pins: Pins,
    engine: Engine | None,
    base: ImageFacts | None,
) -> ChosenBase:
    if base is not None:
        return ChosenBase(own_base(base))
    if request.base in ("public", "paddle"):
        use = "test" if role == "test" else {"public": "build", "paddle": "paddle"}[request.base]
        return pinned_base(role, use, cuda, pins, request.pythons)
    return named_base(request.base, engine, request.pythons)


def produce(
    request: ImagesRequest, pins: Pins, engine: Engine, say: Say
) -> tuple[tuple[ImageRow, ...], tuple[Finding, ...]]:
    """Build every image that is not there as it should be. Raises what the parts raise; the first image
    that fails ends the run, those before it stay.
    """
    check_places(engine.facts, (REPOSITORY, request.cache_dir))
    check_disk(engine.facts, NEEDED_BYTES)
    base = None
    if request.base == AIRGAPPED:
        work = request.cache_dir / "images" / "work"
        base = airgapped.make_base(base_plan(request), engine, work, request.log_dir, say)
    builds, notes = planned(request, pins, engine, base)
    rows: list[ImageRow] = []
    for build in builds:
        with _context(request, build) as folder:
            lock, index = _test_lock(request, build)
            prepare(build, folder, request.cache_dir, say, lock, index)
            rows.append(_row(make(build, folder, engine, request.log_dir, say)))
    return tuple(rows), notes


def write_contexts(
    request: ImagesRequest, pins: Pins, engine: Engine | None, say: Say
) -> list[Path]:
    """Only the build contexts, below ``request.context``: for ``docker buildx bake``, or another machine."""
    if request.context is None:
        raise ConfigError("--prepare needs a folder", next_step="add --context DIR")
    builds, _ = planned(request, pins, engine, _present_base(request, engine))
    written = []
    for folder, build in {context_name(build): build for build in builds}.items():
        lock, index = _test_lock(request, build)
        place = request.context / folder
        written.append(prepare(build, place, request.cache_dir, say, lock, index))
    return written


def _present_base(request: ImagesRequest, engine: Engine | None) -> ImageFacts | None:
    if request.base != AIRGAPPED:
        return None
    base = base_plan(request)
    facts = airgapped.present(base, engine) if engine is not None else None
    if facts is None:
        raise ConfigError(
            f"{base.ref} is not there, so no context can be prepared for it",
            cause="the context depends on the CPythons of the base",
            next_step="python -m ci images --base airgapped",
        )
    return facts


def context_name(build: ImageBuild) -> str:
    """The folder of an image's build context; images that can share one have the same."""
    if build.role == "build":
        return "build"
    return f"test-{python_tag(build.arguments['PYTHON_VERSION'])}"


@contextmanager
def _context(request: ImagesRequest, build: ImageBuild) -> Iterator[Path]:
    """A folder for the build context: the user's, which stays, or one of this run."""
    if request.context is not None:
        yield request.context.absolute() / context_name(build)
        return
    parent = request.cache_dir / "images" / "work"
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="context-", dir=parent))
    try:
        yield folder / context_name(build)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _test_lock(request: ImagesRequest, build: ImageBuild) -> tuple[Lock | None, str]:
    """The lock of a test environment with a GPU's Paddle, and the index that has it; else the committed."""
    if build.role != "test" or request.paddle == "cpu":
        return None, ""
    entry = next(item for item in request.cudas if item.version == build.cuda)
    wanted = (*IMPORT_BASE, entry.paddle.gpu)
    python = build.arguments["PYTHON_VERSION"]
    index = entry.paddle.index
    return lock_for(wanted, python, "import", request.cache_dir, index), index


def _row(built: Built) -> ImageRow:
    return ImageRow(built.build, built.status, built.facts, built.seconds, str(built.log or ""))


def verify(request: ImagesRequest, pins: Pins, engine: Engine, say: Say) -> tuple[ImageRow, ...]:
    """Look at every image of the request, without building. Without a base in the request, each image is
    compared with what it would be made from now, on the base that it names itself.
    """
    rows = []
    for build in _wanted(request, pins, engine):
        facts = engine.image(build.ref)
        if facts is None:
            rows.append(ImageRow(build, "absent", findings=(absent(build),)))
            continue
        say(f"{build.ref}: looking inside")
        seen = look(engine, facts)
        findings = judge(build, seen, platform.machine())
        folders = tuple(dict(seen.inside.get("sizes", {})).items())
        status = "bad" if findings else "good"
        rows.append(
            ImageRow(build, status, facts, layers=seen.layers, folders=folders, findings=findings)
        )
    return tuple(rows)


def _wanted(request: ImagesRequest, pins: Pins, engine: Engine) -> Sequence[ImageBuild]:
    if request.base == AIRGAPPED:
        base = base_plan(request)
        facts = engine.image(base.ref)
        if facts is None:
            raise ConfigError(
                f"{base.ref} is not there, so no image can be compared with it",
                cause="the base was removed, or never made on this engine",
                next_step="python -m ci images --base airgapped, or --verify without --base",
            )
        return planned(request, pins, engine, facts)[0]
    if request.base:
        return planned(request, pins, engine, None)[0]
    return [build for entry in request.cudas for build in _by_labels(request, entry, pins, engine)]


def _by_labels(
    request: ImagesRequest, entry: CudaEntry, pins: Pins, engine: Engine
) -> Iterator[ImageBuild]:
    """The images of a CUDA as they would be made from the bases that their labels name."""
    for role in ("build", *(("test",) if request.tests else ())):
        default = pinned_base(role, role, entry.version, pins, request.pythons)
        for build in _of_role(request, role, entry, default):
            facts = engine.image(build.ref)
            if facts is None or facts.label("base") == default.base.ref:
                yield build
                continue
            base = base_behind(facts, engine, pins, request.pythons)
            paddle = facts.label("paddle") or paddle_of(entry, request.paddle)
            if role == "build":
                yield plan_build(entry.version, base)
            else:
                yield plan_test(entry.version, build.arguments["PYTHON_VERSION"], base, paddle)
