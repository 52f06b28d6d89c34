"""``docker/docker-bake.json``: every variant for ``docker buildx bake``, from the matrix and the pins.

With public bases all that an image is made from is committed, so its definition can stand in the file:
an image that bake builds has the labels that one of ``python -m ci images`` has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ci.images.build import ImageBuild
from ci.images.pins import Pins
from ci.images.produce import ImagesRequest, context_name, planned
from ci.matrix.model import MatrixFile, cuda_label, python_tag

BAKE_FILE = "docker/docker-bake.json"
_COMMENT = (
    "Written by `python -m ci sync`; do not edit. First: python -m ci images --prepare --test --context DIR; "
    "then: CONTEXT=DIR docker buildx bake --load -f docker/docker-bake.json [build | test | TARGET ...]"
)


def bake_text(file: MatrixFile, pins: Pins) -> str:
    """The whole file: a target for every CUDA's build image, and for every CUDA and Python's test image."""
    request = ImagesRequest(
        cudas=tuple(file.cudas),
        pythons=tuple(file.pythons),
        base="public",
        suite="",
        with_clang=False,
        tests=tuple(file.pythons),
        paddle="gpu",
        cache_dir=Path(),
    )
    builds, _ = planned(request, pins, None, None)
    targets = {target_name(build): _target(build) for build in builds}
    document = {
        "//": _COMMENT,
        "variable": {"CONTEXT": {"default": "contexts"}},
        "group": {
            "default": {"targets": ["build"]},
            "build": {"targets": [name for name in targets if name.startswith("build-")]},
            "test": {"targets": [name for name in targets if name.startswith("test-")]},
        },
        "target": targets,
    }
    return json.dumps(document, indent=2) + "\n"


def target_name(build: ImageBuild) -> str:
    """``build-cu130``, ``test-cu130-cp312``."""
    parts = [build.role, cuda_label(build.cuda)]
    if build.role == "test":
        parts.append(python_tag(build.arguments["PYTHON_VERSION"]))
    return "-".join(parts)


def _target(build: ImageBuild) -> Mapping[str, object]:
    return {
        "context": f"${{CONTEXT}}/{context_name(build)}",
        "dockerfile": "Dockerfile",
        "target": build.role,
        "args": dict(build.arguments),
        "tags": [build.ref],
    }
