"""PEP 517 backend of ``paddlefleet_ops``: probe, select, build, install, then setuptools.

Plain ``pip wheel packages/paddlefleet_ops`` and ``python -m build`` work: the backend asks the machine
for the target, checks the submodules that it needs, builds every selected library and collects its
artifacts into ``src/paddlefleet_ops``. The farm builds the libraries itself, one step each, and names
the file with the result in ``PADDLEFLEET_OPS_ASSEMBLY``; then the backend only puts them into a wheel, which
is not compressed, because the farm repairs it and writes another.

Nothing happens on import: every effect is inside a hook.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import build_manifest
import build_probe
import build_steps
import build_utils
from setuptools import build_meta

ASSEMBLY_VARIABLE = "PADDLEFLEET_OPS_ASSEMBLY"
SET_VARIABLE = "PADDLEFLEET_OPS_SET"
LIBS_VARIABLE = "PADDLEFLEET_OPS_LIBS"
PACKAGE_SOURCE = build_utils.PACKAGE_SOURCE
GENERATED = ("_manifest.json", "__init__.pyi")
Settings = Mapping[str, Any] | None
_CHUNK = 1 << 18


@dataclass(frozen=True)
class Assembly:
    """What goes into the wheel: the manifest, and for each library the folder of its targets."""

    manifest: Mapping[str, Any]
    artifacts: Mapping[str, Path]

    @classmethod
    def read(cls, path: Path) -> Assembly:
        """The assembly that the farm wrote."""
        values = json.loads(path.read_text("utf-8"))
        folders = {name: Path(folder) for name, folder in values["artifacts"].items()}
        return cls(values["manifest"], folders)


def _libraries() -> tuple[build_utils.EcosystemLibrary, ...]:
    return build_utils.get_libs(os.environ.get(SET_VARIABLE, "fleet"))


def _plain_selection() -> tuple[build_utils.Target, build_utils.Selection]:
    target = build_probe.probe_target()
    named = os.environ.get(LIBS_VARIABLE, "")
    only = [name.strip() for name in named.split(",") if name.strip()] or None
    libraries = _libraries()
    unpinned = build_utils.without_sources(libraries)
    return target, build_utils.select_libs(libraries, target, only, unpinned)


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Build requirements of the selected libraries; PEP 517."""
    if os.environ.get(ASSEMBLY_VARIABLE):
        return []
    target, selection = _plain_selection()
    found = {
        text
        for library in selection.selected
        for text in build_utils.requirements(library.build_requires, target)
    }
    return sorted({"pip", *found} if selection.selected else found)


get_requires_for_build_editable = get_requires_for_build_wheel


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    """A source distribution needs nothing further; PEP 517."""
    return []


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build the raw wheel into ``wheel_directory`` and return its file name; PEP 517.

    setuptools copies every file three times, holds each as a whole in memory and compresses it. So for the
    farm it sees an empty file in place of each artifact: names, modes, tag and metadata come from setuptools,
    and the content goes straight from the artifacts into the wheel.
    """
    contents = _install_assembly(placeholders=True)
    try:
        name: str = build_meta.build_wheel(wheel_directory, dict(config_settings or {}), None)
        if contents:
            _fill(Path(wheel_directory, name), contents)
    finally:
        _remove_targets()
    return name


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: Settings = None
) -> str:
    """Write the wheel's metadata, for which no library has to be built; PEP 517."""
    given = os.environ.get(ASSEMBLY_VARIABLE)
    if given:
        manifest: Mapping[str, Any] = Assembly.read(Path(given)).manifest
    else:
        target, selection = _plain_selection()
        build_utils.check_submodule_updated(selection.selected)
        sources = {library.name: _source_record(library) for library in selection.selected}
        manifest = _plain_manifest(target, selection, sources)
    _install(Assembly(manifest, {}))
    try:
        name: str = build_meta.prepare_metadata_for_build_wheel(
            metadata_directory, dict(config_settings or {})
        )
    finally:
        _remove_targets()
    return name


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Collect the artifacts into the source tree and install it in place; PEP 660."""
    _install_assembly()
    name: str = build_meta.build_editable(wheel_directory, dict(config_settings or {}), None)
    return name


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Refuse: the libraries are git submodules, a source distribution could not be built from."""
    raise build_steps.BuildFailedError(
        "paddlefleet_ops",
        "prepare",
        ["there is no source distribution; ask for a wheel: python -m build --wheel"],
    )


def _install_assembly(*, placeholders: bool = False) -> Mapping[str, Path]:
    """Put what goes into the wheel into the package. With ``placeholders``, the artifacts that the farm names
    are empty files there; returns the real ones by the name that each has in the wheel.
    """
    given = os.environ.get(ASSEMBLY_VARIABLE)
    if given:
        assembly = Assembly.read(Path(given))
        if not placeholders:
            _install(assembly)
            return {}
        _install(Assembly(assembly.manifest, {}))
        return _place_empty(assembly.artifacts.values())
    with tempfile.TemporaryDirectory(prefix="paddlefleet_ops-") as scratch:
        _install(_build_plain(Path(scratch)))
    return {}


def _build_plain(scratch: Path) -> Assembly:
    target, selection = _plain_selection()
    build_utils.check_submodule_updated(selection.selected)
    nvcc = build_probe.find_nvcc(os.environ)
    folders, sources = {}, {}
    for number, library in enumerate(selection.selected, start=1):
        print(f"[{number}/{len(selection.selected)}] {library.name}", flush=True)
        out = scratch / "out" / library.name
        request = build_steps.BuildRequest(
            library=library.name,
            source=str(library.source_dir),
            work=str(scratch / "work" / library.name),
            out=str(out),
            artifacts=tuple((item.source, item.target) for item in library.artifacts),
            env=_plain_env(nvcc) | library.build_env(target),
            path=(str(nvcc.parent),) if nvcc else (),
            include_dirs=library.include_dirs,
            hooks_before_build=library.hooks_before_build,
            hooks_after_collect=library.hooks_after_collect,
            ignored=library.ignored,
            jobs=os.cpu_count() or 1,
        )
        build_steps.build_library(request)
        folders[library.name] = out
        sources[library.name] = _source_record(library)
    manifest = _plain_manifest(target, selection, sources)
    return Assembly(manifest, folders)


def _plain_env(nvcc: Path | None) -> dict[str, str]:
    """What a library's build needs beyond the scrubbed environment.

    The build requirements of an isolated build are on this process' ``sys.path`` alone: a front end
    puts them there, and a child process would not find them (PaddleFleet #921).
    """
    packages = [entry for entry in sys.path if entry.endswith("site-packages")]
    home = {"CUDA_HOME": str(nvcc.parent.parent)} if nvcc else {}
    return home | {"PYTHONPATH": os.pathsep.join(packages)}


def _source_record(library: build_utils.EcosystemLibrary) -> build_manifest.SourceRecord:
    return build_manifest.SourceRecord(
        kind="submodule" if library.is_submodule else "template",
        origin=library.url or library.source_rel_path,
        revision=library.pin or "",
        tree=build_manifest.tree_hash(library.source_dir),
        pinned=library.pin is not None,
    )


def _plain_manifest(
    target: build_utils.Target,
    selection: build_utils.Selection,
    sources: Mapping[str, build_manifest.SourceRecord],
) -> dict[str, object]:
    because = ["built without the farm: not repaired, no gate was run"]
    return build_manifest.build_manifest(
        cell_id=f"cu{target.cuda.replace('.', '')}-cp{target.python.replace('.', '')}",
        target=target,
        selection=selection,
        sources=sources,
        toolchain={"compiler": "nvcc", "cuda": target.cuda},
        version=build_manifest.package_version(target.cuda, ["local"], build_manifest.git_stamp()),
        not_publishable_because=because,
    )


def _install(assembly: Assembly) -> None:
    """Put the targets, the manifest and its stub into ``src/paddlefleet_ops``, in place of earlier ones."""
    _remove_targets()
    for folder in assembly.artifacts.values():
        shutil.copytree(folder, PACKAGE_SOURCE, dirs_exist_ok=True, symlinks=False)
    text = json.dumps(assembly.manifest, indent=1, sort_keys=True)
    texts = (text + "\n", build_manifest.stub_text(assembly.manifest))
    for name, content in zip(GENERATED, texts, strict=True):
        (PACKAGE_SOURCE / name).write_text(content, "utf-8")


def _place_empty(folders: Iterable[Path]) -> dict[str, Path]:
    """An empty file of the same mode in the package for every file of ``folders``, links followed."""
    contents: dict[str, Path] = {}
    for folder in folders:
        for parent, _, names in os.walk(folder, followlinks=True):
            for name in names:
                path = Path(parent, name)
                relative = path.relative_to(folder)
                target = PACKAGE_SOURCE / relative
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(b"")
                shutil.copymode(path, target)
                contents[f"{PACKAGE_SOURCE.name}/{relative.as_posix()}"] = path
    return contents


def _fill(wheel: Path, contents: Mapping[str, Path]) -> None:
    """Write ``wheel`` anew, stored, with the files ``contents`` in place of the members of these names."""
    filled = wheel.with_name(f".{wheel.name}.filled")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(filled, "x") as new:
        *members, record = old.infolist()  # setuptools writes RECORD last, as PEP 427 recommends
        rows = []
        for member in members:
            path = contents.get(member.filename)
            with path.open("rb") if path is not None else old.open(member) as source:
                size = path.stat().st_size if path is not None else member.file_size
                rows.append(_store(new, member, source, size))
        rows.append([record.filename, "", ""])
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        raw = text.getvalue().encode()
        _store(new, record, io.BytesIO(raw), len(raw))
    os.replace(filled, wheel)


def _store(
    new: zipfile.ZipFile, member: zipfile.ZipInfo, source: IO[bytes], size: int
) -> list[str]:
    """Store ``source`` under the name, time and mode of ``member``, and return its row of RECORD."""
    info = zipfile.ZipInfo(member.filename, member.date_time)
    info.external_attr = member.external_attr
    info.file_size = size  # tells zipfile whether the member needs ZIP64
    digest, written = hashlib.sha256(), 0
    with new.open(info, "w") as sink:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            written += len(chunk)
            sink.write(chunk)
    encoded = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    return [member.filename, f"sha256={encoded}", str(written)]


def _remove_targets() -> None:
    """Leave the source tree as it was: no target, no manifest, nothing of setuptools' build."""
    for name in GENERATED:
        (PACKAGE_SOURCE / name).unlink(missing_ok=True)
    shutil.rmtree(build_utils.PACKAGE_ROOT / "build", ignore_errors=True)
    for library in build_utils.all_libs():
        for artifact in library.artifacts:
            path = PACKAGE_SOURCE / artifact.target
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
