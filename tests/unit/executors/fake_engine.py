"""An engine that holds images and records what it is asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ci.errors import InfrastructureError
from ci.executors.model import LABEL, ContainerSpec, EngineFacts, ImageFacts
from ci.proc import Command, Completed

FACTS = EngineFacts(
    name="docker",
    program=Path("/usr/bin/docker"),
    client_version="28.2",
    server_version="20.10",
    rootless=False,
    architecture="x86_64",
    data_root=Path("/var/lib/docker"),
    storage_driver="overlay2",
    cgroup_version="1",
    cpus=2,
    memory=2**34,
)


def image(ref: str, architecture: str = "x86_64", **labels: str) -> ImageFacts:
    """A build image of CUDA 13.0 unless ``labels`` say otherwise."""
    told = {
        "role": "build",
        "cuda": "13.0",
        "pythons": "3.10 3.12",
        "compiler": "packages",
    } | labels
    named = {LABEL + name.replace("_", "-"): value for name, value in told.items()}
    return ImageFacts(ref, "sha256:" + "a" * 64, architecture, 10**9, named)


class FakeEngine:
    """Images by name; ``registry`` is what can be pulled; ``answer`` is what commands do."""

    def __init__(
        self,
        *images: ImageFacts,
        registry: tuple[ImageFacts, ...] = (),
        answer: Callable[[ContainerSpec, Command], tuple[int, str]] = lambda spec, command: (0, ""),
        facts: EngineFacts = FACTS,
    ) -> None:
        self.facts = facts
        self._images = {item.ref: item for item in images}
        self._registry = {item.ref: item for item in registry}
        self._answer = answer
        self.pulled: list[str] = []
        self.ran: list[tuple[ContainerSpec, Command]] = []

    def image(self, ref: str) -> ImageFacts | None:
        return self._images.get(ref)

    def pull(self, ref: str) -> ImageFacts:
        self.pulled.append(ref)
        if ref not in self._registry:
            raise InfrastructureError(f"cannot pull {ref}")
        return self._registry[ref]

    def run(self, spec: ContainerSpec, command: Command, log: Path | None) -> Completed:
        self.ran.append((spec, command))
        status, output = self._answer(spec, command)
        return Completed(command, status, output, 0.1, log)

    def run_attached(self, spec: ContainerSpec, command: Command) -> int:
        self.ran.append((spec, command))
        return self._answer(spec, command)[0]

    def shown(self, spec: ContainerSpec, command: Command) -> str:
        return f"docker run {spec.image} {command.shown}"

    def sweep(self) -> tuple[str, ...]:
        return ()
