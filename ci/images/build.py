"""From a CUDA and a base to an image: the plan as a value, and running it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.environments.lock import Lock, committed
from ci.errors import ConfigError, InfrastructureError
from ci.executors.model import (
    LABEL,
    REPOSITORY_PREFIX,
    Engine,
    ImageFacts,
    build_image_ref,
    test_image_ref,
)
from ci.images.command import Say, build_environment, engine_command
from ci.images.context import definition, write_context
from ci.images.wheelhouse import Wheels, wheelhouse

FARM_PYTHONS = ("3.12", "3.13", "3.11", "3.10")
"""Which CPython of an image the farm itself runs on there: the first that the image has."""


@dataclass(frozen=True)
class BaseFacts:
    """What images are made from. ``ref`` is what the builder takes, ``digest`` tells its content.

    ``pythons_ref`` is the image whose CPythons are copied (``ref`` itself when the base has them),
    ``compiler`` ``nvcc`` when the base holds a CUDA compiler, else ``packages``; ``gcc_toolset`` is the
    number of Red Hat's gcc-toolset that the base lacks, empty for none; ``glibc`` (``2.28``) decides which
    wheels fit, empty for this host's own; ``complete`` when nothing has to be installed from a network.
    """

    ref: str
    digest: str
    pythons: tuple[str, ...]
    compiler: str
    pythons_ref: str = ""
    gcc_toolset: str = ""
    glibc: str = ""
    complete: bool = False


@dataclass(frozen=True)
class ImageBuild:
    """One image that is to be: its name, and the arguments of its Dockerfile."""

    role: str
    ref: str
    cuda: str
    arguments: Mapping[str, str]
    base: BaseFacts

    @property
    def definition(self) -> str:
        """Hash of all that it is made from."""
        return self.arguments["DEFINITION"]

    @property
    def command(self) -> str:
        """The farm's command that makes it (again)."""
        words = ["python -m ci images", self.cuda]
        name, _, tag = self.base.ref.partition(":")
        if name == f"{REPOSITORY_PREFIX}/base":
            words.append(f"--base airgapped --suite {tag.removesuffix('-clang')}")
            words += ["--with-clang"] if tag.endswith("-clang") else []
        if self.role == "test":
            words.append(f"--python {self.arguments['PYTHON_VERSION']}")
        return " ".join(words)

    def argv(self, program: str, context: Path) -> tuple[str, ...]:
        """The command that builds it from a prepared ``context``."""
        options = [
            word
            for name, value in self.arguments.items()
            for word in ("--build-arg", f"{name}={value}")
        ]
        # --force-rm: the classic builder would leave the container of a step that fails.
        network = ("--network", "none") if self.base.complete else ()
        return (
            program, "build", "--force-rm", *network, "--target", self.role, "--tag", self.ref,
            *options, "--file", str(context / "Dockerfile"), str(context),
        )  # fmt: skip


@dataclass(frozen=True)
class Built:
    """What came of one image: ``status`` is ``built`` or ``kept`` (made from the same things before)."""

    build: ImageBuild
    facts: ImageFacts
    status: str
    seconds: float = 0.0
    log: Path | None = None


def farm_python(versions: Sequence[str]) -> str:
    """The CPython that ``/opt/farm`` is made with."""
    for version in FARM_PYTHONS:
        if version in versions:
            return version
    raise ConfigError(
        "no CPython of this base can run the farm",
        cause=f"it has {', '.join(versions) or 'none'}; the farm needs one of {', '.join(FARM_PYTHONS)}",
        next_step="choose another base with --base, or install one of them on this host",
    )


def plan_build(cuda: str, base: BaseFacts) -> ImageBuild:
    """The build image of a CUDA."""
    own = {"PYTHON_VERSIONS": " ".join(base.pythons), "FARM_PYTHON": farm_python(base.pythons)}
    return _planned("build", build_image_ref(cuda), cuda, base, own)


def plan_test(cuda: str, python: str, base: BaseFacts, paddle: str) -> ImageBuild:
    """The test image of a CUDA and a Python. ``paddle`` says what it holds (``cpu`` or ``gpu``)."""
    if python not in base.pythons:
        raise ConfigError(
            f"the base has no CPython {python}",
            cause=f"it has {', '.join(base.pythons)}",
            next_step="choose one of them with --python, or another base with --base",
        )
    own = {"PYTHON_VERSION": python, "PADDLE": paddle}
    return _planned("test", test_image_ref(cuda, python), cuda, base, own)


def _planned(role: str, ref: str, cuda: str, base: BaseFacts, own: Mapping[str, str]) -> ImageBuild:
    arguments = {
        "BASE": base.ref,
        "PYTHONS": base.pythons_ref or base.ref,
        "GCC_TOOLSET": base.gcc_toolset,
        **own,
        "CUDA": cuda,
        "COMPILER": base.compiler,
        "BASE_DIGEST": base.digest,
    }
    arguments["DEFINITION"] = definition(role, arguments)
    return ImageBuild(role, ref, cuda, arguments, base)


def state(build: ImageBuild, facts: ImageFacts | None) -> str:
    """``absent``, ``stale`` (made from something else), or ``current``."""
    if facts is None:
        return "absent"
    return "current" if facts.label("definition") == build.definition else "stale"


def prepare(
    build: ImageBuild,
    folder: Path,
    cache_dir: Path,
    say: Say,
    lock: Lock | None = None,
    index: str = "",
) -> Path:
    """The build context of an image. ``lock`` is the test environment's, None for the committed one;
    ``index`` is a package index beside the usual one that has some of it.
    """
    glibc = build.base.glibc
    if build.role == "build":
        python = build.arguments["FARM_PYTHON"]
        versions = build.arguments["PYTHON_VERSIONS"].split()
        wanted = [("farm", python), *(("pythons", version) for version in versions)]
        houses = [wheelhouse(Wheels(*item, glibc), cache_dir, say) for item in wanted]
        locks = {name: committed(name).read_text("utf-8") for name in ("farm", "pythons")}
    else:
        python = build.arguments["PYTHON_VERSION"]
        houses = [
            wheelhouse(Wheels("farm", python, glibc), cache_dir, say),
            wheelhouse(Wheels("import", python, glibc, index), cache_dir, say, lock),
        ]
        test = committed("import").read_text("utf-8") if lock is None else lock.text
        locks = {"farm": committed("farm").read_text("utf-8"), "test": test}
    return write_context(build.role, folder, houses, locks)


def make(build: ImageBuild, context: Path, engine: Engine, log_dir: Path, say: Say) -> Built:
    """Build the image from its context, unless one with the same definition is there.

    Raises :class:`~ci.errors.ToolchainError` when the base lacks something, and
    :class:`~ci.errors.InfrastructureError` when the engine fails; both name the failing step.
    """
    facts = engine.image(build.ref)
    if facts is not None and state(build, facts) == "current":
        say(f"{build.ref}: there already ({build.definition})")
        return Built(build, facts, "kept")
    say(f"{build.ref}: {state(build, facts)}, building")
    started = time.monotonic()
    name = build.ref.rpartition("/")[2].replace(":", "-")
    log = log_dir / f"{name}.log"
    env = build_environment(engine.facts, os.environ)
    engine_command(build.argv(str(engine.facts.program), context), log, f"build {build.ref}", env)
    made = engine.image(build.ref)
    if made is None or made.label("definition") != build.definition:
        raise InfrastructureError(
            f"{build.ref} was built, but the engine does not have it",
            cause="the builder keeps its images elsewhere (a buildx builder of its own)",
            next_step="docker buildx use default, then the same command again",
        )
    return Built(build, made, "built", time.monotonic() - started, log)


def labels_of(build: ImageBuild) -> dict[str, str]:
    """The farm's labels that the finished image must have."""
    versions = build.arguments.get("PYTHON_VERSIONS") or build.arguments["PYTHON_VERSION"]
    values = {
        "role": build.role,
        "cuda": build.cuda,
        "pythons": versions,
        "compiler": build.arguments["COMPILER"],
        "definition": build.definition,
        "base": build.arguments["BASE"],
        "base-digest": build.arguments["BASE_DIGEST"],
    }
    return {LABEL + name: value for name, value in values.items()}
