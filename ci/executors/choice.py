"""Where the cells of a run are built: on this machine, or in containers of build images.

``auto`` takes containers when an engine answers and the image of every CUDA is there, else this machine,
and says why. ``container`` insists: what is missing is then an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ci.errors import ConfigError, FarmError, ToolchainError
from ci.executors.base import EXECUTORS, HostExecutor
from ci.executors.model import (
    ContainerOptions,
    Engine,
    ImageFacts,
    build_image_ref,
    test_image_ref,
)

FindEngine = Callable[[str, Mapping[str, str]], Engine]


@dataclass(frozen=True)
class HostPlace:
    """Cells are built on this machine."""

    why: str
    name: str = "host"

    @property
    def executor(self) -> HostExecutor:
        """The executor of the steps."""
        return HostExecutor(self.why)


@dataclass(frozen=True)
class ContainerPlace:
    """Cells run in containers. ``images`` maps what decides the image to it: the CUDA of a cell that is
    built, the id of a cell whose wheel is tested.
    """

    why: str
    engine: Engine
    images: Mapping[str, ImageFacts]
    options: ContainerOptions = field(default_factory=ContainerOptions)
    name: str = "container"


Place = HostPlace | ContainerPlace


@dataclass(frozen=True)
class SuiteCell:
    """The cell of a wheel that is there already, as its manifest names it."""

    id: str
    cuda: str
    python: str


def check_name(name: str) -> None:
    """Raise :class:`~ci.errors.ConfigError` for an executor that there is not."""
    if name not in EXECUTORS:
        raise ConfigError(f"unknown executor {name!r}", next_step="--executor auto|host|container")


def choose_place(
    name: str,
    cudas: Sequence[str],
    options: ContainerOptions,
    environ: Mapping[str, str],
    find: FindEngine,
) -> Place:
    """Where the cells with these ``cudas`` are built; ``find`` asks for an engine.

    Raises what :func:`check_name` raises; with ``container`` also what ``find`` raises, and
    :class:`~ci.errors.ToolchainError` for an image that is not there or does not fit.
    """

    def images(engine: Engine) -> dict[str, ImageFacts]:
        return {cuda: build_image(engine, cuda, options) for cuda in dict.fromkeys(cudas)}

    return _choose(name, options, environ, find, images)


def _choose(
    name: str,
    options: ContainerOptions,
    environ: Mapping[str, str],
    find: FindEngine,
    images_of: Callable[[Engine], dict[str, ImageFacts]],
) -> Place:
    check_name(name)
    if name == "host":
        return HostPlace("asked for with --executor host")
    try:
        engine = find(options.engine, environ)
        images = images_of(engine)
    except FarmError as error:
        if name == "container":
            raise
        return HostPlace(f"{error.message}, so the steps run on this machine")
    shown = ", ".join(dict.fromkeys(image.ref for image in images.values()))
    facts = engine.facts
    asked = "asked for with --executor container" if name == "container" else "the images are there"
    return ContainerPlace(
        f"{asked}: {facts.name} {facts.server_version}, {shown}", engine, images, options
    )


def choose_suite_place(
    name: str,
    cells: Sequence[SuiteCell],
    options: ContainerOptions,
    environ: Mapping[str, str],
    find: FindEngine,
) -> Place:
    """Where the suites of the wheels of ``cells`` run: in their test image, else in the build image.

    Raises as :func:`choose_place` does.
    """

    def image(engine: Engine, cell: SuiteCell) -> ImageFacts:
        found = None if options.image else engine.image(test_image_ref(cell.cuda, cell.python))
        return found or build_image(engine, cell.cuda, options, roles=("test", "build"))

    def images(engine: Engine) -> dict[str, ImageFacts]:
        return {cell.id: image(engine, cell) for cell in cells}

    return _choose(name, options, environ, find, images)


def build_image(
    engine: Engine, cuda: str, options: ContainerOptions, roles: Sequence[str] = ("build",)
) -> ImageFacts:
    """The build image of a CUDA; one that is named with ``--image`` is pulled when it is not here."""
    ref = options.image or build_image_ref(cuda)
    image = engine.image(ref)
    if image is None and options.image:
        image = engine.pull(ref)
    if image is None:
        raise ToolchainError(
            f"there is no image {ref}",
            cause="it was not built on this engine yet",
            next_step=f"nox -s images -- cu{cuda.replace('.', '')} (with --base airgapped where no registry "
            "can be reached)",
        )
    _check_fits(image, cuda, engine, roles)
    return image


def _check_fits(image: ImageFacts, cuda: str, engine: Engine, roles: Sequence[str]) -> None:
    if image.architecture != engine.facts.architecture:
        raise ToolchainError(
            f"the image {image.ref} is for {image.architecture}, this engine runs "
            f"{engine.facts.architecture}",
            cause="it was built or pulled for another machine",
            next_step=f"nox -s images -- cu{cuda.replace('.', '')}, on this machine",
        )
    if image.label("role") not in roles:
        raise ToolchainError(
            f"{image.ref} is not a {' or '.join(roles)} image of the farm",
            cause=f"its label says {image.label('role') or 'nothing of the farm'}: the Pythons and the "
            "farm's own environment are missing in other images",
            next_step=f"nox -s images -- cu{cuda.replace('.', '')} --base {image.ref}",
        )
    if image.label("cuda") != cuda:
        raise ToolchainError(
            f"the image {image.ref} is of CUDA {image.label('cuda')}, the cell of CUDA {cuda}",
            cause="a wheel's label must be its content, so a cell is built with its own CUDA",
            next_step=f"nox -s images -- cu{cuda.replace('.', '')}",
        )
