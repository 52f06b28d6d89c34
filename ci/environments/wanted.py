"""What the environments of a cell are made from: the requirements that their locks decide."""

from __future__ import annotations

from collections.abc import Sequence

from ci.environments.lock import BUILD_BASE, IMPORT_BASE
from ci.registry import EcosystemLibrary, Target, build_utils


def build_requirements(libraries: Sequence[EcosystemLibrary], target: Target) -> tuple[str, ...]:
    """The requirements of the environment that ``libraries`` are built in."""
    declared = [build_utils.requirements(library.build_requires, target) for library in libraries]
    return (*BUILD_BASE, *(text for texts in declared for text in texts))


def import_requirements(
    libraries: Sequence[EcosystemLibrary], target: Target, paddle: str
) -> tuple[str, ...]:
    """The requirements of the import suite's environment, beside the wheel itself."""
    declared = [build_utils.requirements(library.run_requires, target) for library in libraries]
    return (*IMPORT_BASE, paddle, *(text for texts in declared for text in texts))
