"""What ``images`` would run, as shell lines; nothing is run and nothing is written."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path

from ci.executors.model import Engine, ImageFacts
from ci.findings import Finding
from ci.images import airgapped
from ci.images.build import ImageBuild
from ci.images.command import build_environment
from ci.images.pins import Pins
from ci.images.produce import AIRGAPPED, ImagesRequest, base_plan, context_name, planned

NOT_YET = "(known once the base is made)"


def commands(
    request: ImagesRequest, pins: Pins, engine: Engine | None
) -> tuple[list[str], tuple[Finding, ...]]:
    """The lines, and what is to be said about the bases. Lines that begin with ``#`` explain."""
    program = str(engine.facts.program) if engine is not None else "docker"
    lines: list[str] = []
    base = None
    if request.base == AIRGAPPED:
        planned_base = base_plan(request)
        base = airgapped.present(planned_base, engine) if engine is not None else None
        if base is None:
            lines += _base_lines(planned_base, program)
            base = _not_yet(planned_base)
        else:
            lines.append(f"# {base.ref} is there already ({planned_base.definition})")
        lines += [f"# CPython {item.version}: {item.reason}" for item in planned_base.left_out]
    builds, findings = planned(request, pins, engine, base)
    folder = request.context or request.cache_dir / "images" / "contexts"
    lines += [f"# build contexts: {_prepare_line(request, folder)}"]
    prefix = _prefix(engine)
    for build in map(_honest, builds):
        lines.append(prefix + shlex.join(build.argv(program, folder / context_name(build))))
    return lines, findings


def _honest(build: ImageBuild) -> ImageBuild:
    """``build``, without a definition that depends on a base that is not made yet."""
    if build.base.digest != NOT_YET:
        return build
    return replace(build, arguments={**build.arguments, "DEFINITION": NOT_YET})


def _prefix(engine: Engine | None) -> str:
    """What a person puts before a build command: the classic builder where there is no buildx."""
    value = build_environment(engine.facts, {}).get("DOCKER_BUILDKIT") if engine else None
    return f"DOCKER_BUILDKIT={value} " if value else ""


def _prepare_line(request: ImagesRequest, folder: Path) -> str:
    words = ["python", "-m", "ci", "images", *(entry.version for entry in request.cudas)]
    words += ["--base", request.base, "--prepare", "--context", str(folder)]
    if request.base == AIRGAPPED:
        words += ["--suite", request.suite, *(("--with-clang",) if request.with_clang else ())]
    if request.tests:
        words += ["--python", ",".join(request.tests), "--paddle", request.paddle]
    return shlex.join(words)


def _base_lines(base: airgapped.Base, program: str) -> list[str]:
    root, archive = Path("ROOT"), Path("ROOT.tar")
    mirror = airgapped.mirror_of(base.recipe.suite, base.recipe.mirror, os.environ)
    lines = [shlex.join(airgapped.debootstrap_argv(base.recipe, mirror, root))]
    if base.recipe.extra_packages:
        packages = " ".join(base.recipe.extra_packages)
        lines.append(f"# in ROOT: apt-get install {packages} (suite {base.recipe.extra_suite})")
    lines += [f"# copy {build.prefix} to ROOT/{build.folder}" for build in base.builds]
    lines.append(shlex.join(airgapped.pack_argv(root, archive)))
    lines.append(shlex.join(airgapped.import_argv(base, program, archive, base.builds)))
    return lines


def _not_yet(base: airgapped.Base) -> ImageFacts:
    """The base as it will be, without its id."""
    labels = airgapped.labels_of(base, base.builds)
    return ImageFacts(base.ref, NOT_YET, "", 0, labels)
