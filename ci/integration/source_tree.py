"""The Python sources of a library as values: its packages, their modules, the imports of each.

Reading is all that happens here; nothing of the library is imported. Test files are told apart: they do
not belong to what the loader imports.
"""

from __future__ import annotations

import gc
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ci.errors import ConfigError
from ci.integration.at_init import completed
from ci.integration.modules import Module, Unreadable, place_of, read_module

# Folders of a repository that hold no package of the library.
_NOT_PACKAGES = frozenset(
    {"tests", "test", "testing", "benchmarks", "benchmark", "examples", "example", "docs", "doc",
     "scripts", "tools", "evals", "build", "dist", "third_party", "third-party", "csrc", "legacy",
     "node_modules", "site-packages", "__pycache__"}
)  # fmt: skip
_TEST_FOLDERS = frozenset({"tests", "test"})
_TEST_FILE = re.compile(r"(test_.*|.*_test|conftest)\.py\Z")


@dataclass(frozen=True)
class SourceTree:
    """The modules of one library, by name, and what is known about how it is loaded.

    ``packages`` are its top-level names, ``scope`` the packages for which the proxy is on while it is
    loaded, ``roots`` further modules that the loader imports inside the guard. ``modules`` may hold
    modules of other packages of the scope (a library that it depends on): ``own`` tells. ``tests``
    are its test files, by place, ``other_tests`` folders with further ones. ``torch_importers`` are
    packages outside that import torch while they are loaded, with how that is known; ``taken`` are
    top-level names that others own.
    """

    library: str
    root: Path
    packages: tuple[str, ...]
    scope: frozenset[str]
    roots: tuple[str, ...]
    modules: Mapping[str, Module] = field(repr=False)
    unreadable: tuple[Unreadable, ...] = ()
    tests: Mapping[str, Path] = field(default_factory=dict, repr=False)
    other_tests: tuple[Path, ...] = field(default=(), repr=False)
    torch_importers: Mapping[str, str] = field(default_factory=dict, repr=False)
    taken: Mapping[str, str] = field(default_factory=dict, repr=False)

    def own(self) -> Iterator[Module]:
        """The library's own modules, in the order of their names."""
        for name in sorted(self.modules):
            if name.partition(".")[0] in self.packages:
                yield self.modules[name]

    def find(self, name: str) -> Module | None:
        """The module ``name``, or ``None``."""
        return self.modules.get(name)


def find_packages(root: Path) -> dict[str, Path]:
    """Top-level packages of the repository ``root``, by name: below it, below ``src``, or itself.

    Single-file modules at the top of an otherwise empty tree count as well. Raises
    :class:`~ci.errors.ConfigError` when there is none.
    """
    if is_package_folder(root):
        return {root.name: root}
    found: dict[str, Path] = {}
    for base in (root / "src", root / "python", root):
        if base.is_dir():
            found |= {name: path for name, path in _packages_in(base) if name not in found}
    if not found:
        found = {
            path.stem: path
            for path in sorted(root.glob("*.py"))
            if path.name != "setup.py" and not _TEST_FILE.match(path.name)
        }
    if not found:
        raise ConfigError(
            f"no Python package in {root}",
            cause="a package is a folder with __init__.py at the top, or below src/",
            next_step="give the folder that holds the package, or the package itself",
        )
    return found


def is_package_folder(folder: Path) -> bool:
    """True for a package itself; a project around packages may have a stray ``__init__.py``."""
    project = ("pyproject.toml", "setup.py", "setup.cfg")
    is_project = any((folder / name).is_file() for name in project)
    return (folder / "__init__.py").is_file() and not is_project


def _packages_in(base: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(base.iterdir()):
        if path.name in _NOT_PACKAGES or not path.name.isidentifier() or path.is_symlink():
            continue
        if (path / "__init__.py").is_file():
            yield path.name, path


def locate(root: Path, names: Iterable[str]) -> dict[str, Path]:
    """The folders (or files) of the top-level ``names`` below ``root``; compiled ones are left out.

    Looks at the usual places first, then anywhere not deeper than three folders.
    """
    found = {}
    for name in names:
        path = _located(root, name)
        if path is not None:
            found[name] = path
    return found


def _located(root: Path, name: str) -> Path | None:
    for base in (root, root / "src", root / "python"):
        for path in (base / name, base / f"{name}.py"):
            if path.is_file() or (path / "__init__.py").is_file():
                return path
    deeper = (path.parent for path in sorted(root.glob(f"*/**/{name}/__init__.py")))
    return next(
        (path for path in deeper if not _NOT_PACKAGES & set(path.relative_to(root).parts)), None
    )


def read_tree(
    library: str,
    root: Path,
    packages: Mapping[str, Path],
    *,
    base: Path | None = None,
    scope: Iterable[str] = (),
    roots: Iterable[str] = (),
    others: Mapping[str, Path] | None = None,
    extra_tests: Sequence[Path] = (),
    torch_importers: Mapping[str, str] | None = None,
    taken: Mapping[str, str] | None = None,
) -> SourceTree:
    """Read ``packages`` (top-level name to folder or file) below ``root``; places are relative to ``base``.

    ``others`` are packages of the scope that are not the library's own. ``scope`` is completed by the
    library's own packages.
    """
    modules: dict[str, Module] = {}
    unreadable: list[Unreadable] = []
    tests: dict[str, Path] = {}
    base = base or root
    with _no_collection(), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # of an invalid escape in somebody's string: not ours to tell
        for name, path in {**(others or {}), **packages}.items():
            for module_name, file, is_package in _files(name, path):
                if _is_test(file.relative_to(path.parent)):
                    tests[place_of(file, base)] = file
                    continue
                read = read_module(module_name, file, base, is_package=is_package)
                if isinstance(read, Unreadable):
                    unreadable.append(read)
                elif _is_apart(read):
                    tests[read.place] = file
                else:
                    modules[module_name] = read
    for folder in (root / "tests", root / "test"):
        tests |= {place_of(file, base): file for file in sorted(folder.rglob("*.py"))}
    return SourceTree(
        library=library,
        root=root,
        packages=tuple(packages),
        scope=frozenset({*scope, *packages}),
        roots=tuple(roots),
        modules=completed(modules),
        unreadable=tuple(unreadable),
        tests=tests,
        other_tests=tuple(extra_tests),
        torch_importers=torch_importers or {},
        taken=taken or {},
    )


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from going through millions of nodes again and again.

    Syntax trees hold no cycles. What was made meanwhile is frozen, so that a later collection does not
    visit it either.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def _files(name: str, path: Path) -> Iterator[tuple[str, Path, bool]]:
    """Every module below ``path``: its name, its file, and whether it is a package."""
    if path.is_file():
        yield name, path, False
        return
    entries = sorted(os.scandir(path), key=lambda item: item.name)
    packages = {
        f"{entry.name}.py"
        for entry in entries
        if "." not in entry.name and Path(entry.path, "__init__.py").is_file()
    }
    for entry in entries:
        if entry.name in packages:  # Python prefers the package of that name
            continue
        if entry.is_dir(follow_symlinks=False):
            if entry.name.isidentifier() and entry.name != "__pycache__":
                yield from _files(f"{name}.{entry.name}", Path(entry.path))
        elif entry.name == "__init__.py":
            yield name, Path(entry.path), True
        elif entry.name.endswith(".py") and entry.name[:-3].isidentifier():
            yield f"{name}.{entry.name[:-3]}", Path(entry.path), False


def _is_test(relative: Path) -> bool:
    return bool(_TEST_FOLDERS & set(relative.parts[1:-1])) or bool(_TEST_FILE.match(relative.name))


def _is_apart(module: Module) -> bool:
    """True for a build script or a plug-in of pytest inside a package: the loader imports neither."""
    if module.name.rpartition(".")[2].startswith("setup") and module.holds(b"setup("):
        return any(top in ("setuptools", "distutils") for top in _init_tops(module))
    return "pytest" in _init_tops(module)


def _init_tops(module: Module) -> set[str]:
    return {item.module.partition(".")[0] for item in module.statements if item.when == "init"}
