"""Commits in a bundle: the farm's own with its history, a submodule's without.

A submodule is packed as the objects of its pinned commit alone. Git names every object by its content,
so the pin in the declaration proves the sources on the other side, and their history need not travel
(a ``git bundle`` cannot leave it out, and cannot be made from a shallow checkout).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ci.bundle.model import REPOSITORY_FILE, SOURCES, Bundle, BundledCommit
from ci.errors import ConfigError, FindingError, InfrastructureError
from ci.proc import Command, Completed, run
from ci.registry import PACKAGE_ROOT, REPOSITORY, EcosystemLibrary, build_utils

_FIXED = ("-c", "pack.threads=1", "-c", "core.compression=6", "-c", "pack.writeBitmaps=false")


def head_commit(repository: Path) -> str:
    """The commit that is checked out. Raises :class:`~ci.errors.ConfigError` when git knows none."""
    done = _try(("rev-parse", "--verify", "HEAD^{commit}"), repository)
    if not done.ok:
        raise ConfigError(
            f"git cannot tell which commit {repository.name} is",
            cause=done.output.strip() or "it is no git checkout",
            next_step="make the bundle in a git clone of the farm",
        )
    return done.output.strip()


def write_repository(folder: Path, repository: Path = REPOSITORY) -> Path:
    """``repository.bundle`` with the commit that is checked out, for ``git clone``.

    Raises :class:`~ci.errors.ConfigError` for a shallow clone: git cannot bundle one.
    """
    shallow = _git(("rev-parse", "--is-shallow-repository"), repository).output.strip()
    if shallow == "true":
        raise ConfigError(
            "the farm's checkout is shallow, so it cannot be put into a bundle",
            cause="git bundles the whole history of a commit, and this clone lacks it",
            next_step="git fetch --unshallow",
        )
    target = folder / REPOSITORY_FILE
    with tempfile.TemporaryDirectory(dir=folder, prefix=".repository-") as scratch:
        made = Path(scratch, REPOSITORY_FILE)
        _git((*_FIXED, "bundle", "create", "--quiet", str(made), "HEAD"), repository)
        made.replace(target)
    return target


def check_repository(folder: Path, commit: str) -> str:
    """What is wrong with the farm's own commit in a bundle; empty when it is as it should be."""
    done = _try(("bundle", "list-heads", str(folder / REPOSITORY_FILE), "HEAD"), folder)
    told = done.output.split()
    if not done.ok:
        return f"git cannot read it: {done.output.strip()}"
    return (
        ""
        if told[:1] == [commit]
        else f"it holds {' '.join(told[:1]) or 'no commit'}, not {commit}"
    )


# -- submodules ------------------------------------------------------------------------------------


def commits_of(libraries: Sequence[EcosystemLibrary]) -> tuple[tuple[Path, BundledCommit], ...]:
    """The checked-out commits that the submodules of ``libraries`` need, with those nested in them.

    Each with the folder that it is checked out in; a library comes before what is nested in it.
    """
    found: list[tuple[Path, BundledCommit]] = []
    for library in libraries:
        if library.is_submodule:
            found += _commits_below(library)
    return tuple(found)


def _commits_below(library: EcosystemLibrary) -> Iterator[tuple[Path, BundledCommit]]:
    top = library.source_dir
    folders = [(top, library.url), *_nested(top, library.nested)]
    for index, (folder, url) in enumerate(folders):
        commit = head_commit(folder)
        place = folder.relative_to(REPOSITORY).as_posix()
        path = f"{SOURCES}/{library.name}/{index:02}-{commit}.pack"
        yield folder, BundledCommit(path, library.name, place, commit, url)


def _nested(top: Path, wanted: Sequence[str] | None) -> list[tuple[Path, str]]:
    """The checked-out submodules in ``top`` (only those that its build reads), and those in them."""
    found: list[tuple[Path, str]] = []
    for path, url in _submodules(top):
        folder = top / path
        if (wanted is None or path in wanted) and (folder / ".git").exists():
            found += [(folder, url), *_nested(folder, None)]
    return found


def _submodules(folder: Path) -> list[tuple[str, str]]:
    """Path and address of every submodule that ``.gitmodules`` of ``folder`` names."""
    asked = ("config", "--file", ".gitmodules", "--null", "--get-regexp", r"\.(path|url)$")
    listed = _try(asked, folder)
    entries = (
        listed.output.split("\0")[:-1] if listed.ok else []
    )  # a name or a path may hold blanks
    values = dict(entry.split("\n", 1) for entry in entries)
    names = sorted(
        key[len("submodule.") : -len(".path")] for key in values if key.endswith(".path")
    )
    return [
        (values[f"submodule.{name}.path"], values.get(f"submodule.{name}.url", ""))
        for name in names
    ]


def write_commit(checkout: Path, item: BundledCommit, folder: Path) -> Path:
    """The objects of one commit as a pack at ``item.path`` below ``folder``."""
    target = folder / item.path
    target.parent.mkdir(parents=True, exist_ok=True)
    listed = _git(("rev-list", "--objects", "--no-walk", item.commit), checkout).output
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        wanted = Path(scratch, "objects")
        wanted.write_text(listed, "utf-8", errors="surrogateescape")
        script = 'exec git "$@" < objects'
        options = ("pack-objects", "--quiet", "--no-reuse-delta", "--no-reuse-object", "pack")
        done = run(
            Command(
                ("sh", "-c", script, "sh", *_FIXED, f"--git-dir={_git_dir(checkout)}", *options),
                cwd=Path(scratch),
                env=build_utils.git_environment(),
                timeout=1800,
            )
        )
        packs = list(Path(scratch).glob("*.pack"))
        if not done.ok or len(packs) != 1:
            raise InfrastructureError(
                f"git cannot pack the sources of {item.library}",
                cause=done.output.strip() or "it left no pack",
                next_step=f"git -C {checkout} fsck",
            )
        os.replace(packs[0], target)
    return target


def _git_dir(checkout: Path) -> str:
    return _git(("rev-parse", "--absolute-git-dir"), checkout).output.strip()


def check_out(bundle: Bundle, folder: Path, libraries: Sequence[str]) -> tuple[str, ...]:
    """Check the submodules of ``libraries`` out from the bundle, where they are not there; their places.

    One that is checked out already is left alone: the check of submodules tells what is wrong with it.
    Raises :class:`~ci.errors.FindingError` when a pack does not hold its commit.
    """
    done = []
    for item in bundle.commits:
        place = REPOSITORY / item.place
        if item.library in libraries and _may_be_written(place):
            _restore(item, folder / item.path, place)
            done.append(item.place)
    return tuple(done)


def _may_be_written(place: Path) -> bool:
    """An empty folder below ``third_party``, or none: what ``git submodule update`` would fill."""
    inside = place.resolve().is_relative_to(PACKAGE_ROOT.resolve() / "third_party")
    return inside and not (place.is_dir() and any(place.iterdir()))


def _restore(item: BundledCommit, pack: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        _git(("init", "--quiet"), scratch)
        stored = scratch / ".git" / "objects" / "pack" / "pack-bundle.pack"
        shutil.copyfile(pack, stored)
        indexed = _try(("index-pack", str(stored)), scratch)
        (scratch / ".git" / "shallow").write_text(f"{item.commit}\n", "ascii")
        checked = _try(("checkout", "--quiet", "--force", "--detach", item.commit), scratch)
        if not indexed.ok or not checked.ok or head_commit(scratch) != item.commit:
            raise FindingError(
                f"the sources of {item.library} in the bundle are not commit {item.commit}",
                cause=(indexed if not indexed.ok else checked).output.strip() or "another commit",
                next_step=f"python -m ci bundle verify {pack.parents[2]}",
            )
        _git(("remote", "add", "origin", item.url), scratch)
        if place.is_dir():
            place.rmdir()
        scratch.replace(place)
        # As `git submodule update --init` does: a submodule that is not active counts as not checked out.
        _try(("submodule", "init", "--", place.name), place.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _try(arguments: Sequence[str], cwd: Path) -> Completed:
    command = Command(("git", *arguments), cwd=cwd, env=build_utils.git_environment(), timeout=1800)
    return run(command)


def _git(arguments: Sequence[str], cwd: Path) -> Completed:
    done = _try(arguments, cwd)
    if not done.ok:
        raise InfrastructureError(
            f"git {next((word for word in arguments if word.isalpha()), '')} failed in {cwd}",
            cause=done.output.strip() or "git said nothing",
            next_step=done.command.shown,
        )
    return done
