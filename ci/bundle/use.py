"""A run that takes everything from a bundle: variables that uv, pip and git's callers honour, and locks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from ci.bundle.model import ENVIRONMENT_LOCKS, WHEELS, Bundle

_OTHER_PLACES = (
    "UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_CONFIG_FILE",
    "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL",
)  # fmt: skip


def offline_environment(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` for a run whose packages come from the wheels of the bundle in ``folder`` alone.

    uv's and pip's own variables say so: every place of the farm that calls them hands them on, and so do
    stages in containers. The folder is given as an address, in which a blank or a comma (which part the
    lists that these variables are) is quoted.
    """
    links = (folder.resolve() / WHEELS).as_uri()
    kept = {name: value for name, value in environ.items() if name not in _OTHER_PLACES}
    return kept | {
        "UV_OFFLINE": "1",
        "UV_NO_CONFIG": "1",
        "UV_FIND_LINKS": links,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": links,
    }


def seed_locks(folder: Path, bundle: Bundle, cache_dir: Path) -> int:
    """Put the locks of environments where the cache keeps them, so that none has to be resolved anew.

    Returns how many there are. The caller has checked them.
    """
    places = [item.path for item in bundle.files if item.path.startswith(f"{ENVIRONMENT_LOCKS}/")]
    target = cache_dir / "locks"
    target.mkdir(parents=True, exist_ok=True)
    for path in places:
        name = Path(path).name
        scratch = target / f"{name}.{os.getpid()}"
        shutil.copyfile(folder / path, scratch)
        os.replace(scratch, target / name)
    return len(places)
