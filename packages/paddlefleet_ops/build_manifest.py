"""The manifest of a wheel: which libraries it holds, from which sources, and which it does not, and why.

The loader reads it, the import suite reads it, the version and the dependencies come from it. Written
by the farm and by a plain ``pip wheel`` through the same functions.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from build_utils import PACKAGE_ROOT, EcosystemLibrary, LeftOut, Selection, Target, requirements

SCHEMA = 1
BASE_VERSION = "0.1.0"


@dataclass(frozen=True)
class SourceRecord:
    """Where a library's sources came from. ``pinned`` is true for a submodule at its recorded commit."""

    kind: str
    origin: str
    revision: str
    tree: str
    pinned: bool


def library_entry(
    library: EcosystemLibrary, target: Target, source: SourceRecord
) -> dict[str, object]:
    """A library's entry in the manifest."""
    return {
        "name": library.name,
        "module": library.module,
        "modules": list(library.modules),
        "availability": library.availability,
        "kind": library.kind,
        "requires": library.requires.as_dict(),
        "compat_scope": list(library.compat_scope),
        "preload": list(library.preload),
        "load_env": dict(library.load_env),
        "public_names": list(library.public_names),
        "hint": library.hint,
        "depends_on": list(library.depends_on),
        "run_requires": list(requirements(library.run_requires, target)),
        "capabilities": list(library.capabilities(target)) if library.needs_cuda_compiler else [],
        "source": asdict(source),
    }


def left_out_entry(left_out: LeftOut) -> dict[str, object]:
    """The entry of a declared library that is not in the wheel."""
    library = left_out.library
    return {
        "name": library.name,
        "module": library.module,
        "availability": library.availability,
        "hint": library.hint,
        "reasons": list(left_out.reasons),
    }


def build_manifest(
    *,
    cell_id: str,
    target: Target,
    selection: Selection,
    sources: Mapping[str, SourceRecord],
    toolchain: Mapping[str, object],
    version: str,
    not_publishable_because: Sequence[str],
) -> dict[str, object]:
    """The whole manifest as JSON-ready values."""
    return {
        "schema": SCHEMA,
        "version": version,
        "cell": {
            "id": cell_id,
            "cuda": target.cuda,
            "python": target.python,
            "capabilities": list(target.capabilities),
        },
        "toolchain": dict(toolchain),
        "publishable": not not_publishable_because,
        "not_publishable_because": list(not_publishable_because),
        "libraries": [
            library_entry(library, target, sources[library.name]) for library in selection.selected
        ],
        "left_out": [left_out_entry(item) for item in selection.left_out],
    }


def stub_text(manifest: Mapping[str, Any]) -> str:
    """The text of ``__init__.pyi``: what a type checker has to know of the package in this wheel.

    The libraries and the functions ``is_<lib>_available`` come into being when the package is imported,
    so the sources alone do not tell a type checker about them. A library that was left out has its
    function and no module, as in the wheel. The files of a library lie in the package's folder, so for a
    type checker it is an ordinary submodule; what it imports by its own top-level name is not found
    there, and is ``Any``. Form: PEP 484 and the typing specification, "Stub files".
    """
    modules = sorted({name for entry in manifest["libraries"] for name in entry["modules"]})
    attached = [entry["module"] for entry in manifest["libraries"]]
    names = sorted(
        entry["availability"] for entry in (*manifest["libraries"], *manifest["left_out"])
    )
    functions = [f"is_{name}_available" for name in names]
    hints = [f"{name.upper()}_HINT" for name in names]
    lines = [
        "# Written from the manifest when the wheel was built.",
        "from typing import Any",
        "",
        *(f"from . import {name} as {name}" for name in modules),
        *(
            f"from .{module} import {name} as {name}"
            for module, names in _STUB_IMPORTS
            for name in names
        ),
        "",
        "__version__: str",
        "blocked_import_messages: dict[str, str]",
        "_wheel: Manifest",
        "_paddle: Any",
        "",
        "def libraries() -> tuple[LibraryState, ...]: ...",
        *(f"def {name}() -> bool: ..." for name in functions),
        *(f"{name}: str" for name in hints),
        *(f"_{name.upper()}_AVAILABLE: bool" for name in names),
        "",
        "__all__ = [",
        *(f'    "{name}",' for name in sorted({*_STUB_PUBLIC, *functions, *hints, *attached})),
        "]",
    ]
    return "\n".join(lines) + "\n"


# What ``paddlefleet_ops/__init__.py`` takes from its private modules.
_STUB_IMPORTS = (
    ("_blocker", ("BlockedAttributeError", "LibraryBlockedError")),
    ("_loader", ("LibraryLoadError", "LibraryState", "_safe_load_ecosystem_lib")),
    ("_manifest", ("Manifest", "ManifestError")),
)
_STUB_PUBLIC = (
    "BlockedAttributeError",
    "LibraryBlockedError",
    "LibraryLoadError",
    "LibraryState",
    "ManifestError",
    "_safe_load_ecosystem_lib",
    "blocked_import_messages",
    "libraries",
)


def package_version(cuda: str, labels: Sequence[str], git_stamp: tuple[str, str] | None) -> str:
    """The version of a wheel, as PEP 440 says: ``0.1.0.dev20261202+cu130.g1a2b3c4``.

    ``labels`` are further segments of the local label that say what is not the pinned source or not
    NVIDIA's compiler. ``git_stamp`` is date and commit of the last change below ``packages/``.
    """
    local = ["cu" + cuda.replace(".", "")]
    development = ""
    if git_stamp is not None:
        date, commit = git_stamp
        development = f".dev{date}"
        local.append(f"g{commit[:7]}")
    local += [re.sub(r"[^a-z0-9]+", ".", label.lower()).strip(".") for label in labels]
    return f"{BASE_VERSION}{development}+{'.'.join(local)}"


def git_stamp() -> tuple[str, str] | None:
    """Date (YYYYMMDD, UTC) and commit of the last change below ``packages/``; ``None`` without git."""
    argv = (
        "git", "log", "-1", "--date=format-local:%Y%m%d", "--format=%cd %H", "--", str(PACKAGE_ROOT.parent),
    )  # fmt: skip
    try:
        done = subprocess.run(
            argv,
            cwd=PACKAGE_ROOT,
            env={
                **os.environ,
                "TZ": "UTC",
            },  # the user's safe.directory decides whether git answers
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    fields = done.stdout.split()
    return (fields[0], fields[1]) if done.returncode == 0 and len(fields) == 2 else None


def overrides_label(overridden: Mapping[str, SourceRecord]) -> str:
    """``srcXXXXXXXX``: a local label that names the sources which are not the pinned ones."""
    text = "\n".join(f"{name} {record.tree}" for name, record in sorted(overridden.items()))
    return "src" + hashlib.sha256(text.encode()).hexdigest()[:8]


ContentHash = Callable[[str, "os.DirEntry[str]"], bytes]


def content_hash(_name: str, entry: os.DirEntry[str]) -> bytes:
    """The SHA-256 of a file's content, 32 bytes."""
    return hashlib.sha256(Path(entry.path).read_bytes()).digest()


def tree_hash(folder: Path, hashed: ContentHash = content_hash) -> str:
    """SHA-256 over the relative paths, modes and contents below ``folder``: ``sha256:…``.

    Version control data, byte code, caches and what setuptools leaves behind are left out, as in the
    copy that a library is built from (``build_steps.NOT_COPIED``); a symbolic link counts by its target.
    ``hashed`` gives the SHA-256 of a regular file, from its relative path and directory entry.
    """
    digest = hashlib.sha256()
    for name, entry in sorted(_source_files(folder), key=lambda item: item[0]):
        encoded = os.fsencode(name)
        if entry.is_symlink():
            digest.update(b"l " + encoded + b"\0" + os.fsencode(os.readlink(entry.path)) + b"\0")  # noqa: PTH115
            continue
        mode = b"x " if entry.stat(follow_symlinks=False).st_mode & 0o111 else b"f "
        digest.update(mode + encoded + b"\0" + hashed(name, entry))
    return f"sha256:{digest.hexdigest()}"


_SKIPPED = {".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"}


def _source_files(folder: Path | str, below: str = "") -> list[tuple[str, os.DirEntry[str]]]:
    """The files and links below ``folder`` by their relative POSIX path, in no order."""
    found: list[tuple[str, os.DirEntry[str]]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in _SKIPPED or entry.name.endswith((".pyc", ".egg-info")):
                continue
            if not below and entry.name == "build":
                continue
            if entry.is_dir(follow_symlinks=False):
                found += _source_files(entry.path, f"{below}{entry.name}/")
            else:
                found.append((below + entry.name, entry))
    return found
