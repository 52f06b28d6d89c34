"""From a declaration and an optional override to a folder with sources, hashed.

A submodule is checked against its pin; an override is fetched into the cache. What comes out says what
it is (:class:`ResolvedSource`), and only a submodule at its pin counts as pinned: a wheel from anything
else is marked and can't be published.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import platform
import re
import shutil
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from ci.errors import ConfigError, InfrastructureError, ToolchainError
from ci.proc import Command, Completed, run
from ci.registry import EcosystemLibrary, SubmoduleProblem, build_manifest, build_utils
from ci.sources.override import Override
from ci.sources.tree_cache import hashed_tree

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ResolvedSource:
    """The sources of one library: where they are, what they are, and whether they are the pinned ones.

    ``kind`` is ``submodule``, ``template``, ``declared``, ``path``, ``git`` or ``pypi``; ``tree`` is
    the hash of the folder's content.
    """

    library: str
    kind: str
    origin: str
    revision: str
    tree: str
    folder: Path
    pinned: bool

    def record(self) -> build_manifest.SourceRecord:
        """The source as the manifest and the build record hold it: without a path of this machine."""
        return build_manifest.SourceRecord(
            self.kind, self.origin, self.revision, self.tree, self.pinned
        )


def resolve_sources(
    libraries: Sequence[EcosystemLibrary],
    overrides: Mapping[str, Override],
    cache_dir: Path,
    progress: Progress,
) -> dict[str, ResolvedSource]:
    """The sources of every library, fetched where an override asks for it.

    Raises :class:`~ci.errors.ConfigError` with all submodule problems at once, or
    :class:`~ci.errors.InfrastructureError` when an override cannot be fetched.
    """
    check_submodules([library for library in libraries if library.name not in overrides])
    found = {}
    for library in libraries:
        override = overrides.get(library.name)
        if override is None:
            found[library.name] = _declared_source(library, cache_dir)
        else:
            progress(f"source of {library.name}: {override.public_origin}")
            found[library.name] = fetched(override, cache_dir)
    return found


def check_submodules(libraries: Sequence[EcosystemLibrary]) -> None:
    """Raise :class:`~ci.errors.ConfigError` that names every missing, nested or drifted submodule."""
    problems = build_utils.submodule_problems(libraries)
    if problems:
        names = sorted({problem.library for problem in problems})
        raise ConfigError(
            f"the sources of {', '.join(names)} are not there as pinned",
            cause="a submodule is not checked out, not at its pin, or has no pin yet",
            next_step=_next_step(problems),
            details=[
                f"{item.library}: packages/paddlefleet_ops/{item.path}: {item.problem}; "
                f"{item.next_step}"
                for item in problems
            ],
        )


def _next_step(problems: Sequence[SubmoduleProblem]) -> str:
    update = "git submodule update --init --recursive"
    offline = "offline: --set templates builds without any submodule"
    return (
        f"{update} ({offline})"
        if any(p.next_step.startswith("git") for p in problems)
        else (f"give the sources with --source ({offline})")
    )


def _declared_source(library: EcosystemLibrary, cache_dir: Path) -> ResolvedSource:
    folder = library.source_dir
    if not folder.is_dir():
        raise ConfigError(
            f"the source folder of {library.name} does not exist: {folder}",
            cause="its declaration names a folder that is not in this checkout",
            next_step=f"--source {library.name}=path:DIR",
        )
    kind, origin = declared_origin(library)
    return ResolvedSource(
        library=library.name,
        kind=kind,
        origin=origin,
        revision=library.pin or "",
        tree=hashed_tree(folder, cache_dir),
        folder=folder,
        pinned=library.is_submodule,
    )


def declared_origin(library: EcosystemLibrary) -> tuple[str, str]:
    """What kind of source a declaration names, and where from, without a path of this machine."""
    folder = library.source_dir.name
    if library.is_submodule:
        return "submodule", library.url
    if library.library_set == "templates":
        return "template", f"packages/templates/{folder}"
    return "declared", library.url or folder


def fetched(override: Override, cache_dir: Path) -> ResolvedSource:
    """The sources that an override names, brought into the cache where they are not a folder.

    Raises :class:`~ci.errors.ConfigError` for a place that does not exist, and
    :class:`~ci.errors.InfrastructureError` when it cannot be fetched.
    """
    fetch = {"path": _from_path, "git": _from_git, "pypi": _from_pypi}[override.kind]
    folder, revision = fetch(override, cache_dir)
    origin = f"path:{folder.name}" if override.kind == "path" else override.public_origin
    return ResolvedSource(
        library=override.library,
        kind=override.kind,
        origin=origin,
        revision=revision,
        tree=hashed_tree(folder, cache_dir),
        folder=folder,
        pinned=False,
    )


def _from_path(override: Override, _: Path) -> tuple[Path, str]:
    folder = Path(override.place).expanduser().resolve()
    if not folder.is_dir():
        raise ConfigError(
            f"--source {override.library}={override.origin}: no such folder",
            cause=f"{folder} does not exist or is not a folder",
            next_step=f"--source {override.library}=path:DIR with a folder that holds pyproject.toml",
        )
    return folder, ""


# --- git ------------------------------------------------------------------------------------------


def _from_git(override: Override, cache_dir: Path) -> tuple[Path, str]:
    name = hashlib.sha256(override.origin.encode()).hexdigest()[:16]
    home = cache_dir / "sources" / "git" / name
    home.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{home}.lock"):
        if not (home / ".git").is_dir():
            _clone(override, home)
        else:
            _update(override, home)
    return home, _git(override, "rev-parse", "HEAD", cwd=home).output.strip()


def _clone(override: Override, home: Path) -> None:
    with tempfile.TemporaryDirectory(dir=home.parent, prefix="clone-") as scratch:
        tree = Path(scratch, "tree")
        _git(override, "clone", "--no-checkout", override.place, str(tree), cwd=home.parent)
        _check_out(override, tree)
        os.replace(tree, home)


def _update(override: Override, home: Path) -> None:
    """A branch may have moved: ask for it again. A full commit that is there needs no network."""
    asked = ("git", "cat-file", "-e", f"{override.revision}^{{commit}}")
    known = run(Command(asked, cwd=home, env=build_utils.git_environment()))
    if len(override.revision) != 40 or not known.ok:
        # A tag may have moved, a branch may be gone: what the server has counts. Submodules are fetched
        # at checkout, from where that revision says that they are.
        refresh = ("--tags", "--force", "--prune", "--no-recurse-submodules")
        _git(override, "fetch", *refresh, "origin", cwd=home)
    _check_out(override, home)


def _check_out(override: Override, tree: Path) -> None:
    named = f"refs/remotes/origin/{override.revision}"
    remote = run(
        Command(
            ("git", "rev-parse", "--verify", named), cwd=tree, env=build_utils.git_environment()
        )
    )
    wanted = remote.output.strip() if remote.ok else override.revision
    _git(override, "checkout", "--force", "--detach", wanted, cwd=tree)
    _git(override, "clean", "-ffdx", cwd=tree)
    _git(override, "submodule", "sync", "--recursive", cwd=tree)
    _git(override, "submodule", "update", "--init", "--recursive", "--force", cwd=tree)


def _git(override: Override, *arguments: str, cwd: Path) -> Completed:
    done = run(
        Command(("git", *arguments), cwd=cwd, env=build_utils.git_environment(), timeout=900)
    )
    if not done.ok:
        said = [line.replace(override.place, override.public_place) for line in done.tail(8)]
        raise InfrastructureError(
            f"git {arguments[0]} failed for --source {override.library}={override.public_origin}",
            cause=said[-1] if said else "git said nothing",
            next_step=f"git ls-remote {override.public_place}",
            details=said,
        )
    return done


# --- PyPI -----------------------------------------------------------------------------------------


def _from_pypi(override: Override, cache_dir: Path) -> tuple[Path, str]:
    """The source distribution (else the pure wheel) of a release, unpacked and hash-checked.

    The index is asked through uv for a lock of that one release (PEP 751), which names the file and
    its SHA-256; no code of a release that has a wheel runs for it.
    """
    home = cache_dir / "sources" / "pypi" / f"{override.place}-{override.revision}"
    home.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{home}.lock"):
        if not home.is_dir():
            url, digest = _release_file(override)
            _download(override, url, digest, home)
    return home, override.revision


_INDEX_VARIABLE = re.compile(
    r"(?:PATH|HOME|LANG|LC_ALL|TMPDIR|XDG_\w+|UV_\w+|SSL_\w+|(?:HTTPS?|ALL|NO)_PROXY)\Z",
    re.IGNORECASE,
)


def _index_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What uv needs to reach the index. A release without a wheel is built to learn its metadata: that
    code must see nothing else of the user.
    """
    return {name: value for name, value in environ.items() if _INDEX_VARIABLE.match(name)}


def _release_file(override: Override) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as scratch:
        wanted, lock = Path(scratch, "wanted.in"), Path(scratch, "pylock.toml")
        wanted.write_text(f"{override.place}=={override.revision}\n", "utf-8")
        done = run(
            Command(
                (
                    sys.executable, "-m", "uv", "pip", "compile", "--no-deps", "--quiet",
                    "--format", "pylock.toml", "--output-file", str(lock), str(wanted),
                ),
                env=_index_environment(os.environ),
                timeout=600,
            )
        )  # fmt: skip
        if not done.ok and "No solution found" in done.output:
            raise ConfigError(
                f"there is no {override.place}=={override.revision} that fits this Python",
                cause="the project or that version does not exist on the index, or it was yanked",
                next_step=f"python -m pip index versions {override.place}",
                details=done.tail(8),
            )
        if not done.ok:
            raise InfrastructureError(
                f"the package index gives no {override.place}=={override.revision}",
                cause="the index cannot be reached",
                next_step="try again; behind a mirror set UV_DEFAULT_INDEX",
                details=done.tail(8),
            )
        locked = tomllib.loads(lock.read_text("utf-8"))
    package = locked["packages"][0]
    chosen = package.get("sdist") or next(
        (item for item in package.get("wheels", []) if item["url"].endswith("-none-any.whl")), None
    )
    if chosen is None:
        raise ConfigError(
            f"{override.place}=={override.revision} has neither a source distribution nor a pure wheel",
            cause="only sources can be built",
            next_step=f"--source {override.library}=git:URL@REV",
        )
    return str(chosen["url"]), str(chosen["hashes"]["sha256"])


def _download(override: Override, url: str, digest: str, home: Path) -> None:
    try:
        with urllib.request.urlopen(url, timeout=120) as answer:  # noqa: S310 - the index's own URL
            content = answer.read()
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        raise InfrastructureError(
            f"cannot download {override.place}=={override.revision}",
            cause=f"{type(error).__name__}: {error}",
            next_step="try again, or download it by hand and use --source NAME=path:DIR",
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise InfrastructureError(
            f"the download of {override.place}=={override.revision} is damaged",
            cause=f"SHA-256 is {found}, the index says {digest}",
            next_step="try again",
        )
    with tempfile.TemporaryDirectory(dir=home.parent, prefix="unpack-") as scratch:
        archive = Path(scratch, url.rsplit("/", 1)[-1])
        archive.write_bytes(content)
        try:
            tree = _unpacked(archive, Path(scratch, "tree"))
        except (tarfile.TarError, zipfile.BadZipFile) as error:
            raise InfrastructureError(
                f"{archive.name} of {override.place}=={override.revision} cannot be unpacked",
                cause=f"{type(error).__name__}: {error}",
                next_step=f"look into it by hand: {url}",
            ) from error
        os.replace(tree, home)


def _unpacked(archive: Path, folder: Path) -> Path:
    folder.mkdir()
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(folder)  # noqa: S202 - ZipFile removes absolute and upward paths
        return _as_project(folder)
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as bundle:
            bundle.extractall(folder)  # noqa: S202
    else:
        with tarfile.open(archive) as bundle_tar:
            _extract(bundle_tar, folder)
    roots = list(folder.iterdir())
    return roots[0] if len(roots) == 1 and roots[0].is_dir() else folder


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpack with the filter of PEP 706; the first releases of 3.10 and 3.11 have none."""
    if not hasattr(tarfile, "data_filter"):
        raise ToolchainError(
            "this Python cannot unpack archives safely",
            cause=f"Python {platform.python_version()} lacks the extraction filters of PEP 706",
            next_step="run the farm with Python 3.10.12, 3.11.4 or newer",
        )
    archive.extractall(folder, filter="data")


def _as_project(folder: Path) -> Path:
    """An unpacked pure wheel as a project that pip can install: its files, and a pyproject.toml."""
    metadata = next(folder.glob("*.dist-info"))
    name, version = metadata.name[: -len(".dist-info")].split("-", 1)
    shutil.rmtree(metadata)
    packages = sorted(
        ".".join(path.parent.relative_to(folder).parts) for path in folder.rglob("__init__.py")
    )
    modules = sorted(path.stem for path in folder.glob("*.py"))
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools>=77"]\nbuild-backend = "setuptools.build_meta"\n'
        f'[project]\nname = "{name}"\nversion = "{version}"\n'
        f"[tool.setuptools]\npackages = {packages!r}\npy-modules = {modules!r}\n"
        '[tool.setuptools.package-data]\n"*" = ["**/*"]\n',
        "utf-8",
    )
    return folder
