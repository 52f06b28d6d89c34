"""The folder that an engine builds an image from, and the hash of all that goes into it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ci.environments.lock import committed
from ci.images.wheelhouse import gather
from ci.registry import REPOSITORY

DOCKER = REPOSITORY / "docker"
SCRIPTS = (
    "export-pythons.sh",
    "finish.sh",
    "install-environments.sh",
    "install-packages.sh",
)
LOCKS = {"build": ("farm", "pythons"), "test": ("farm", "import")}


def dockerfile(role: str) -> Path:
    """The Dockerfile of a role: ``build`` or ``test``."""
    return DOCKER / f"{role}.Dockerfile"


def definition(role: str, arguments: Mapping[str, str]) -> str:
    """SHA-256, shortened, of all that an image is made from: Dockerfile, scripts, locks, and the build
    arguments, which name the base by digest. Two images with one definition hold the same things.
    """
    files = [dockerfile(role), *(DOCKER / name for name in SCRIPTS)]
    files += [committed(name) for name in LOCKS[role]]
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    told = {name: value for name, value in arguments.items() if name != "DEFINITION"}
    text = json.dumps([role, digests, told], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def write_context(
    role: str, folder: Path, houses: Sequence[Path], locks: Mapping[str, str]
) -> Path:
    """A new build context in ``folder``: Dockerfile, scripts, ``locks`` (name to text), wheels."""
    if folder.exists():
        shutil.rmtree(folder)
    (folder / "scripts").mkdir(parents=True)
    (folder / "locks").mkdir()
    shutil.copyfile(dockerfile(role), folder / "Dockerfile")
    for name in SCRIPTS:
        shutil.copyfile(DOCKER / name, folder / "scripts" / name)
    for name, text in locks.items():
        (folder / "locks" / f"{name}.txt").write_text(text, "utf-8")
    gather(houses, folder / "wheelhouse")
    return folder
