"""What an engine, an image, a container and their options are: values, no process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from ci.proc import Command, Completed

LABEL = "org.paddlefleet.farm."
"""Prefix of every label. On images: ``role`` (base, build, test), ``cuda`` (``13.0``), ``pythons``
(``3.10 3.11``, blank separated), ``compiler`` (``packages`` when the image holds no CUDA compiler and the
farm puts one together in its cache, as on a host; else ``nvcc``), ``definition`` (hash of everything that
the image is made from), ``base`` and ``base-digest``. On containers: ``run``, ``owner``, ``cell``, ``step``.
"""

REPOSITORY_PREFIX = "paddlefleet-farm"
FARM_PYTHON = "/opt/farm/bin/python"
"""In every farm image: the interpreter of the environment with the farm's own dependencies."""

EngineName = Literal["docker", "podman"]


@dataclass(frozen=True)
class ContainerOptions:
    """What the command line says of containers.

    ``engine`` and ``image`` are empty for the farm's own choice; ``network`` is ``docker run --network``;
    ``cpus`` and ``memory`` (bytes) are limits, ``None`` for none; ``devices`` are GPU indices or UUIDs.
    """

    engine: str = ""
    image: str = ""
    network: str = ""
    cpus: float | None = None
    memory: int | None = None
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineFacts:
    """What an engine says of itself. ``data_root`` is None when the engine is on another machine.

    ``architecture`` is the engine's, as ``platform.machine()`` would say it (``x86_64``, ``aarch64``).
    ``gpu_runtime`` is true when ``--gpus`` is served by NVIDIA's hook or runtime; ``cdi_devices`` are the
    names of the devices that the engine found through CDI (``nvidia.com/gpu=0``).
    """

    name: EngineName
    program: Path
    client_version: str
    server_version: str
    rootless: bool
    architecture: str
    data_root: Path | None
    storage_driver: str
    cgroup_version: str
    cpus: int
    memory: int
    gpu_runtime: bool = False
    cdi_devices: tuple[str, ...] = ()
    has_buildx: bool = False


@dataclass(frozen=True)
class ImageFacts:
    """An image that is there. ``id`` is ``sha256:…`` of its configuration, ``repo_digests`` those that
    registries know it by (none for an image that was built or imported here), ``size`` is bytes.
    """

    ref: str
    id: str
    architecture: str
    size: int
    labels: Mapping[str, str] = field(default_factory=dict)
    repo_digests: tuple[str, ...] = ()

    def label(self, name: str) -> str:
        """The value of a label of the farm, empty when it has none."""
        return self.labels.get(LABEL + name, "")

    @property
    def digest(self) -> str:
        """What a record names: the registry's digest when there is one, else the image's id."""
        return self.repo_digests[0] if self.repo_digests else self.id

    @property
    def pythons(self) -> tuple[str, ...]:
        """The CPython versions below ``/opt/python``: ``("3.10", "3.13")``."""
        return tuple(self.label("pythons").split())


@dataclass(frozen=True)
class Mount:
    """A bind mount. Folders of the farm have the same path inside, so logs and errors are true outside."""

    source: Path
    target: Path
    read_only: bool = True


@dataclass(frozen=True)
class GpuRequest:
    """GPUs for a container, by index or UUID; the engine must give just these."""

    devices: tuple[str, ...]


@dataclass(frozen=True)
class ContainerSpec:
    """A container, all but its command. ``user`` is ``UID:GID`` or empty for the image's own."""

    image: str
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    network: str = ""
    cpus: float | None = None
    memory: int | None = None
    gpus: GpuRequest | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    shm_size: int | None = None


class Engine(Protocol):
    """A container engine that answers. Every method may raise
    :class:`~ci.errors.InfrastructureError` when the engine went away.
    """

    facts: EngineFacts

    def image(self, ref: str) -> ImageFacts | None:
        """The image ``ref`` (name, digest or id) as it is here; ``None`` when it is not here."""

    def pull(self, ref: str) -> ImageFacts:
        """Get ``ref`` from its registry, again after a pause when that was throttled or unreachable."""

    def run(self, spec: ContainerSpec, command: Command, log: Path | None) -> Completed:
        """Run ``command`` in a new container to its end; the container and its anonymous volumes are
        removed in any case. A non-zero status is not an error here; a container killed for memory is.
        """

    def run_attached(self, spec: ContainerSpec, command: Command) -> int:
        """Run ``command`` on this terminal (``-it`` when it is one); its status. Removed afterwards."""

    def shown(self, spec: ContainerSpec, command: Command) -> str:
        """The one shell command that does what :meth:`run` does, for messages; without values."""

    def sweep(self) -> tuple[str, ...]:
        """Remove containers whose owner (a farm process of this host) is gone; their names."""


def build_image_ref(cuda: str) -> str:
    """The local name of the build image of a CUDA: ``paddlefleet-farm/build:cu130``."""
    return f"{REPOSITORY_PREFIX}/build:cu{cuda.replace('.', '')}"


def test_image_ref(cuda: str, python: str) -> str:
    """The local name of a test image: ``paddlefleet-farm/test:cu130-cp312``."""
    return f"{REPOSITORY_PREFIX}/test:cu{cuda.replace('.', '')}-cp{python.replace('.', '')}"
