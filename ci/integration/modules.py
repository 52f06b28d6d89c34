"""One module of a library as a value: its text, its syntax tree, and its imports."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ci.integration.bindings import names_bound
from ci.integration.dynamic_imports import Dynamic, dynamic_of, may_hold_dynamic
from ci.integration.imports import Import, imports_of


@dataclass(frozen=True)
class Module:
    """One module. ``place`` is its path relative to the root of the tree, with ``/``."""

    name: str
    path: Path
    place: str
    is_package: bool
    source: bytes = field(repr=False)
    tree: ast.Module = field(repr=False, compare=False)
    statements: tuple[Import, ...] = field(repr=False)
    dynamic: Dynamic = field(repr=False)

    @property
    def imports(self) -> tuple[Import, ...]:
        """Every import whose target is known, statements first."""
        return (*self.statements, *self.dynamic.imports)

    @property
    def package(self) -> str:
        """The package that relative imports start from."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @cached_property
    def names(self) -> frozenset[str]:
        """The names that the module's own text binds at its top level; ``*`` for a star import."""
        bound = set(names_bound(self.tree.body))
        # `from . import _C` in a package binds what it asks itself for: a compiled submodule.
        asked = {
            name for item in self.statements if item.module == self.name for name in item.names
        }
        return frozenset(bound - (asked - {"*"}))

    @cached_property
    def exported(self) -> tuple[str, ...] | None:
        """The constants of ``__all__``, or ``None`` where the module has none that can be read."""
        for node in self.tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            named = any(isinstance(item, ast.Name) and item.id == "__all__" for item in targets)
            if (
                named
                and isinstance(node, ast.Assign)
                and isinstance(node.value, (ast.List, ast.Tuple))
            ):
                values = [getattr(item, "value", None) for item in node.value.elts]
                return tuple(value for value in values if isinstance(value, str))
        return None

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The text, line by line as Python counts: a form feed ends no line."""
        return tuple(line.decode("utf-8", "replace") for line in self.source.splitlines())

    def holds(self, *words: bytes) -> bool:
        """True when the text holds one of ``words``: asked before an expensive look."""
        return any(word in self.source for word in words)


@dataclass(frozen=True)
class Unreadable:
    """A file that is no Python of this interpreter, and why."""

    place: str
    line: int
    why: str


def place_of(path: Path, base: Path) -> str:
    """The path relative to ``base`` where it is below it, with ``/``."""
    return path.relative_to(base).as_posix() if path.is_relative_to(base) else path.as_posix()


def read_module(name: str, path: Path, base: Path, *, is_package: bool) -> Module | Unreadable:
    """Read the file ``path`` as the module ``name``; its place is relative to ``base``."""
    place = place_of(path, base)
    try:
        source = path.read_bytes()
        tree = ast.parse(source, str(path))
        return _module(name, path, place, source, tree, is_package=is_package)
    except (SyntaxError, ValueError) as error:
        why = getattr(error, "msg", "") or str(error)
        return Unreadable(place, getattr(error, "lineno", 0) or 0, why)
    except OSError as error:
        return Unreadable(place, 0, error.strerror or type(error).__name__)
    except (RecursionError, MemoryError):
        return Unreadable(place, 0, "its expressions are nested too deeply")


def _module(
    name: str, path: Path, place: str, source: bytes, tree: ast.Module, *, is_package: bool
) -> Module:
    dynamic = Dynamic()
    if may_hold_dynamic(source):
        dynamic = dynamic_of(tree, name, is_package=is_package)
    lines = _lines_with_import(source)
    statements = imports_of(tree, name, is_package=is_package, lines=lines)
    return Module(name, path, place, is_package, source, tree, statements, dynamic)


def _lines_with_import(source: bytes) -> list[int] | None:
    """The lines that hold the word ``import``; ``None`` where lines end with a bare carriage return."""
    if b"\r" in source:
        return None
    found: list[int] = []
    line, start = 1, 0
    position = source.find(b"import")
    while position >= 0:
        line += source.count(b"\n", start, position)
        found.append(line)
        start = position
        position = source.find(b"import", position + 6)
    return found
