"""Taking a library out again. What belongs to it follows from its declaration, and from marked files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.errors import ConfigError
from ci.integration.scaffold.checkout import Checkout, ask_git
from ci.integration.scaffold.files import (
    MULTI_CARD_GPUS,
    derived_paths,
    mark_of,
    multi_card_test,
    read_mark,
)
from ci.integration.scaffold.journal import Journal
from ci.integration.scaffold.registry_file import PACKAGE, REGISTRY, Registry
from ci.integration.scaffold.table import names, without_entry
from ci.integration.test_table import TABLE
from ci.registry import REPOSITORY, EcosystemLibrary, known_names

Progress = Callable[[str], None]
_DERIVED = (".gitmodules", ".gitignore")


@dataclass(frozen=True)
class Removal:
    """What goes: ``files`` by path to their new text (``None``: deleted), and ``submodule``, a path
    that is empty when another library builds from the same one. ``left`` is what stays, with why.
    """

    library: EcosystemLibrary
    files: Mapping[str, str | None]
    submodule: str
    left: tuple[str, ...]


def remove(
    name: str,
    *,
    repository: Path = REPOSITORY,
    force: bool = False,
    progress: Progress = lambda _: None,
) -> Removal:
    """Take the library ``name`` out of the checkout ``repository``.

    Raises :class:`~ci.errors.ConfigError` when it is not declared, when another library depends on it,
    and (unless ``force``) when its tests, its table entry or its submodule hold work that would be lost.
    After any exception, an interrupt included, the checkout is what it was.
    """
    checkout = Checkout(repository.resolve())
    registry = Registry.read(checkout.repository)
    removal, edited = removal_of(_known(name, registry), registry, checkout)
    if edited and not force:
        raise ConfigError(
            f"{name}: {edited[0]}" if len(edited) == 1 else f"{name}: {len(edited)} edited places",
            cause="it was changed since it was integrated, and would be lost",
            next_step=f"save what is yours, then: nox -s remove -- {name} --force",
            details=edited if len(edited) > 1 else (),
        )
    with Journal(checkout) as journal:
        _note_places(removal, checkout, journal)
        _apply(removal, checkout, journal, progress)
        progress("done")
    _prune(removal, checkout)
    return removal


def _known(name: str, registry: Registry) -> EcosystemLibrary:
    known_names(registry.libraries, [name])
    library = next(item for item in registry.libraries if item.name == name)
    needing = [item.name for item in registry.libraries if name in item.depends_on]
    if needing:
        raise ConfigError(
            f"{', '.join(needing)} depends on {name}",
            cause="a library goes after those that need it",
            next_step=f"nox -s remove -- {needing[0]}",
        )
    return library


def removal_of(
    library: EcosystemLibrary, registry: Registry, checkout: Checkout
) -> tuple[Removal, tuple[str, ...]]:
    """What goes with ``library``, and every place that holds work of the user."""
    files: dict[str, str | None] = {REGISTRY: registry.without_declaration(library.name)}
    edited: list[str] = []
    for path, text in _marked(library.name, checkout):
        mark = read_mark(text)
        if mark is not None and mark.library == library.name:
            files[path] = None
            edited += [f"{path} was edited"] if mark.edited else []
    left = [
        f"{path}: not made by integrate"
        for path in derived_paths(library)
        if path not in files and (checkout.repository / path).exists()
    ]
    files |= _table(library, checkout.repository, edited, left)
    submodule = _own_submodule(library, registry)
    if submodule:
        edited += _work_in(checkout.repository / submodule, submodule)
    return Removal(library, files, submodule, tuple(left)), tuple(edited)


def _marked(name: str, checkout: Checkout) -> Iterator[tuple[str, str]]:
    """The files whose first line says that they were rendered for ``name``."""
    done = ask_git(
        "grep", "--untracked", "-l", "-z", "-F", mark_of(name), "--", "*.py",
        cwd=checkout.repository,
    )  # fmt: skip
    for path in filter(None, done.output.split("\0")) if done.ok else ():
        yield path, (checkout.repository / path).read_text("utf-8")


def _table(
    library: EcosystemLibrary, repository: Path, edited: list[str], left: list[str]
) -> dict[str, str | None]:
    """The table of GPUs without the entry of the library's test, when it has one."""
    test, path = multi_card_test(library), repository / TABLE
    if not test or not path.is_file():
        return {}
    text = path.read_text("utf-8")
    shorter = without_entry(text, test, MULTI_CARD_GPUS)
    if shorter != text:
        return {TABLE: shorter}
    if names(text, test):
        edited.append(f"the entry of {test} in {TABLE} was edited")
        left.append(f"{TABLE}: the edited entry of {test}")
    return {}


def _own_submodule(library: EcosystemLibrary, registry: Registry) -> str:
    if not library.is_submodule:
        return ""
    others = [item for item in registry.libraries if item.name != library.name]
    shared = any(item.submodule_path == library.submodule_path for item in others)
    return "" if shared else f"{PACKAGE}/{library.submodule_path}"


def _work_in(folder: Path, place: str) -> Iterator[str]:
    """Changes in a submodule that exist nowhere else."""
    if not (folder / ".git").exists():
        return
    done = ask_git("status", "--porcelain", "--ignore-submodules=none", cwd=folder)
    if done.output.strip():
        yield f"{place} has changes that are not committed"
    known = ask_git("rev-list", "HEAD", "--branches", "--not", "--remotes", "--tags", cwd=folder)
    if known.ok and known.output.strip():
        yield f"{place} has {len(known.output.split())} commits that its remote does not have"


def _note_places(removal: Removal, checkout: Checkout, journal: Journal) -> None:
    for path in (*_DERIVED, *removal.files):
        journal.note_file(checkout.repository / path)
    if removal.submodule:
        journal.note_file(checkout.in_git_dir("config"))
        journal.note_gitlink(removal.submodule)


def _apply(removal: Removal, checkout: Checkout, journal: Journal, progress: Progress) -> None:
    for path, text in removal.files.items():
        progress(f"{'deleting' if text is None else 'writing'} {path}")
        if text is None:
            (checkout.repository / path).unlink()
        else:
            (checkout.repository / path).write_text(text, "utf-8")
    progress("writing the derived files")
    checkout.sync()
    if not removal.submodule:
        return
    progress(f"taking {removal.submodule} away")
    journal.set_aside(checkout.repository / removal.submodule)
    journal.set_aside(checkout.in_git_dir(f"modules/{removal.submodule}"))
    progress("taking it out of git's configuration")
    section = f"submodule.{removal.submodule}"
    if ask_git("config", "--get-regexp", f"^{section}[.]", cwd=checkout.repository).ok:
        checkout.git("config", "--local", "--remove-section", section)


def _prune(removal: Removal, checkout: Checkout) -> None:
    """Remove the folders that are empty now, which git does not know."""
    deleted = [checkout.repository / path for path, text in removal.files.items() if text is None]
    gone = [*deleted, checkout.in_git_dir(f"modules/{removal.submodule or 'none'}")]
    for path in gone:
        for parent in path.parents:
            if parent == checkout.repository or not parent.is_dir() or any(parent.iterdir()):
                break
            parent.rmdir()
