"""What the files of the GPU test suites hold, read by AST: uses of libraries, guards, comparisons.

Terms. A *guard* is a condition on ``is_<availability>_available()`` that skips. A *use* is an import of a
library (``paddlefleet_ops.<module>`` or its top-level name) or an attribute access that leads to it. A
use is *covered* by the guards that are passed before it can happen; a decorator covers the body of what it
decorates, but nothing at module level, which pytest executes while it collects.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ci.integration.imports import dotted
from ci.integration.registry_rules.comparisons import called, compares_numbers

PACKAGE = "paddlefleet_ops"
SINGLE_CARD = "tests/single_card_tests"
MULTI_CARD = "tests/multi_card_tests"
_GUARD = re.compile(r"is_(\w+)_available\Z")
# Calls that end a test, or its collection. A plain `return` ends it as passed, which hides the skip.
_SKIPS = frozenset({"skip", "skipTest", "exit"})


@dataclass(frozen=True)
class Use:
    """A use of a module: ``module`` is its top-level name, ``covered`` the availabilities that guard it.

    ``indirect``: it happens in a helper, or in a ``try`` that copes with a blocked library; every guard of
    the file covers it then, because which test leads to it is not followed.
    """

    module: str
    line: int
    covered: frozenset[str] = frozenset()
    at_module_level: bool = False
    indirect: bool = False


@dataclass(frozen=True)
class SuiteFile:
    """One test file. ``guards`` are the availabilities that some guard in it skips without.

    ``compares`` is true when it compares numbers. ``unreadable`` says why it is no Python.
    """

    place: str
    guards: frozenset[str] = frozenset()
    uses: tuple[Use, ...] = ()
    compares: bool = False
    unreadable: str = ""

    @property
    def multi_card(self) -> bool:
        """True for a test that needs several ranks."""
        return self.place.startswith(f"{MULTI_CARD}/")


def read_suite_files(root: Path) -> tuple[SuiteFile, ...]:
    """Every Python file below the two suites of the repository ``root``, by place."""
    paths = (path for folder in (SINGLE_CARD, MULTI_CARD) for path in (root / folder).rglob("*.py"))
    return tuple(
        read_suite_file(path.read_bytes(), path.relative_to(root).as_posix())
        for path in sorted(paths)
        if "__pycache__" not in path.parts
    )


def read_suite_file(source: bytes | str, place: str) -> SuiteFile:
    """One file; one that is no Python has neither guards nor uses."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        return SuiteFile(place, unreadable=f"{error}")
    reader = _Reader(_conditions(tree), _package_names(tree))
    reader.module(tree)
    return SuiteFile(
        place, frozenset(reader.guards), tuple(reader.uses), compares=compares_numbers(tree)
    )


# --- conditions -----------------------------------------------------------------------------------

_Names = frozenset[str]
_NO_NAMES: _Names = frozenset()


@dataclass(frozen=True)
class _Meaning:
    """What a missing library makes of a condition: it is surely true without those of ``true_without``,
    surely false without those of ``false_without``; ``None`` stands for every library.
    """

    true_without: _Names | None = _NO_NAMES
    false_without: _Names | None = _NO_NAMES

    def negated(self) -> _Meaning:
        """The meaning of ``not`` it."""
        return _Meaning(self.false_without, self.true_without)


_UNKNOWN = _Meaning()
_CONSTANT = {True: _Meaning(None, _NO_NAMES), False: _Meaning(_NO_NAMES, None)}


def _any_of(sets: Iterable[_Names | None]) -> _Names | None:
    found: _Names = _NO_NAMES
    for one in sets:
        if one is None:
            return None
        found |= one
    return found


def _all_of(sets: Iterable[_Names | None]) -> _Names | None:
    found: _Names | None = None
    for one in sets:
        found = one if found is None else found if one is None else found & one
    return found


@dataclass(frozen=True)
class _Conditions:
    """Module-level names that hold a condition, or a mark that skips without some libraries."""

    meanings: Mapping[str, _Meaning] = field(default_factory=dict)
    marks: Mapping[str, _Names] = field(default_factory=dict)

    def of(self, node: ast.expr) -> _Meaning:
        """The meaning of a condition."""
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            return _CONSTANT[node.value]
        if isinstance(node, ast.Name):
            return self.meanings.get(node.id, _UNKNOWN)
        if isinstance(node, ast.Call):
            match = _GUARD.match(called(node))
            return _Meaning(_NO_NAMES, frozenset({match.group(1)})) if match else _UNKNOWN
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.of(node.operand).negated()
        if isinstance(node, ast.BoolOp):
            return self._joined(node)
        return self._compared(node) if isinstance(node, ast.Compare) else _UNKNOWN

    def _joined(self, node: ast.BoolOp) -> _Meaning:
        parts = [self.of(value) for value in node.values]
        true, false = [one.true_without for one in parts], [one.false_without for one in parts]
        if isinstance(node.op, ast.And):
            return _Meaning(_all_of(true), _any_of(false))
        return _Meaning(_any_of(true), _all_of(false))

    def _compared(self, node: ast.Compare) -> _Meaning:
        """``is_x_available() is False`` and its like."""
        other = node.comparators[0]
        if len(node.ops) > 1 or not isinstance(other, ast.Constant):
            return _UNKNOWN
        if not isinstance(other.value, bool):
            return _UNKNOWN
        same = isinstance(node.ops[0], (ast.Is, ast.Eq)) == other.value
        return self.of(node.left) if same else self.of(node.left).negated()

    def absent(self, node: ast.expr) -> _Names:
        """The availabilities without any of which the condition surely holds."""
        return self.of(node).true_without or _NO_NAMES

    def present(self, node: ast.expr) -> _Names:
        """The availabilities that are surely there where the condition holds."""
        return self.of(node).false_without or _NO_NAMES

    def mark(self, node: ast.expr) -> _Names:
        """The availabilities that a mark or a decorator skips without."""
        if isinstance(node, ast.Name):
            return self.marks.get(node.id, _NO_NAMES)
        if isinstance(node, (ast.List, ast.Tuple)):
            return _NO_NAMES.union(*(self.mark(item) for item in node.elts))
        if not isinstance(node, ast.Call):
            return _NO_NAMES
        condition = _argument(node, "condition")
        if condition is None:
            return _NO_NAMES
        if called(node) in ("skipif", "skipIf"):
            return self.absent(condition)
        return self.present(condition) if called(node) == "skipUnless" else _NO_NAMES

    def with_value(self, names: Iterable[str], value: ast.expr) -> _Conditions:
        """These, and ``names`` with what they mean; a second value leaves what both have in common."""
        meaning, mark = self.of(value), self.mark(value)
        meanings, marks = dict(self.meanings), dict(self.marks)
        for name in names:
            before = meanings.get(name)
            if before is None:
                meanings[name] = meaning
            else:
                meanings[name] = _Meaning(
                    _all_of((before.true_without, meaning.true_without)),
                    _all_of((before.false_without, meaning.false_without)),
                )
            marks[name] = marks.get(name, mark) & mark
        return _Conditions(meanings, marks)


def _argument(node: ast.Call, name: str) -> ast.expr | None:
    named = next((item.value for item in node.keywords if item.arg == name), None)
    return node.args[0] if node.args else named


def _conditions(tree: ast.Module) -> _Conditions:
    """The module-level names that hold conditions and marks, in the order of the file."""
    known = _Conditions()
    for node in _module_level(tree.body):
        if isinstance(node, ast.Assign):
            names = [item.id for item in node.targets if isinstance(item, ast.Name)]
            known = known.with_value(names, node.value)
    return known


def _module_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements outside of functions and classes, those of inner blocks included."""
    for node in body:
        yield node
        if isinstance(node, (ast.Try, ast.If, ast.With)):
            handlers = [line for item in getattr(node, "handlers", ()) for line in item.body]
            yield from _module_level((*node.body, *handlers, *getattr(node, "orelse", ())))


# --- uses -----------------------------------------------------------------------------------------


def _package_names(tree: ast.Module) -> frozenset[str]:
    """The names under which the file knows ``paddlefleet_ops``."""
    return frozenset(
        item.asname or item.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for item in node.names
        if item.name == PACKAGE or (item.name.startswith(f"{PACKAGE}.") and not item.asname)
    )


@dataclass(frozen=True)
class _Where:
    """``covered``: the guards passed so far; the others are as in :class:`Use`."""

    covered: frozenset[str] = frozenset()
    at_module_level: bool = True
    indirect: bool = False


class _Reader:
    def __init__(self, conditions: _Conditions, package_names: frozenset[str]) -> None:
        self._conditions = conditions
        self._package_names = package_names
        self.guards: set[str] = set()
        self.uses: list[Use] = []

    def module(self, tree: ast.Module) -> None:
        """Read a whole file."""
        self._marked = self._pytestmark(tree.body)
        self.guards |= self._marked
        self._body(tree.body, _Where())
        self.uses = [
            replace(use, covered=use.covered | self.guards) if use.indirect else use
            for use in self.uses
        ]

    def _pytestmark(self, body: Iterable[ast.stmt]) -> frozenset[str]:
        found: frozenset[str] = frozenset()
        for node in body:
            if isinstance(node, ast.Assign) and any(
                isinstance(item, ast.Name) and item.id == "pytestmark" for item in node.targets
            ):
                found |= self._conditions.mark(node.value)
        return found

    def _body(self, body: Iterable[ast.stmt], where: _Where) -> _Where:
        """Read statements in order; what is returned has passed their guards."""
        for node in body:
            where = self._statement(node, where)
        return where

    def _statement(self, node: ast.stmt, where: _Where) -> _Where:
        if isinstance(node, ast.If):
            return self._if(node, where)
        if isinstance(node, ast.ClassDef):
            self._class(node, where)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._function(node, where, self._inherited(where))
        else:
            self._simple(node, where)
        return where

    def _if(self, node: ast.If, where: _Where) -> _Where:
        self._expressions([node.test], where)
        absent = self._conditions.absent(node.test)
        present = self._conditions.present(node.test)
        self._body(node.body, replace(where, covered=where.covered | present))
        without = replace(where, covered=where.covered | absent)
        self._body(node.orelse, without)
        if absent and _leaves(node.body):
            self.guards |= absent
            return without
        if present and node.orelse and _leaves(node.orelse):
            self.guards |= present
            return replace(where, covered=where.covered | present)
        return where

    def _inherited(self, where: _Where) -> frozenset[str]:
        return where.covered | self._marked

    def _class(self, node: ast.ClassDef, where: _Where) -> None:
        own = self._decorated(node) | self._pytestmark(node.body)
        self.guards |= own
        covered = self._inherited(where) | own
        set_up = self._set_up_guards(node)
        self.guards |= set_up
        for item in node.body:
            if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
                passed = frozenset() if item.name.startswith("setUp") else set_up
                self._function(item, where, covered | passed)
            elif not isinstance(item, ast.ClassDef):
                self._simple(item, where)
            else:
                self._class(item, replace(where, covered=covered))

    def _set_up_guards(self, node: ast.ClassDef) -> frozenset[str]:
        """The guards that ``setUp`` and its kin raise before every test of the class."""
        found: frozenset[str] = frozenset()
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and re.match(r"setUp|setup_", item.name):
                for inner in item.body:
                    if isinstance(inner, ast.If) and _leaves(inner.body):
                        found |= self._conditions.absent(inner.test)
        return found

    def _decorated(
        self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    ) -> frozenset[str]:
        return frozenset().union(*(self._conditions.mark(item) for item in node.decorator_list))

    def _function(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef,
        where: _Where,
        inherited: frozenset[str],
    ) -> None:
        own = self._decorated(node)
        self.guards |= own
        self._expressions(node.decorator_list, where)
        is_test = node.name.startswith(("test", "setUp", "setup_")) or _is_fixture(node)
        inner = _Where(
            inherited | own, at_module_level=False, indirect=not is_test or where.indirect
        )
        self._body(node.body, inner)

    def _simple(self, node: ast.stmt, where: _Where) -> None:
        """A statement that is neither a condition nor a definition; blocks in it are read through."""
        copes = isinstance(node, ast.Try) and any(_copes(item) for item in node.handlers)
        for name, value in ast.iter_fields(node):
            if name in ("body", "orelse", "finalbody") and isinstance(value, list):
                inside = replace(where, at_module_level=False, indirect=True) if copes else where
                self._body(value, inside)
            elif name == "handlers":
                for handler in value:
                    self._body(handler.body, where)
            elif isinstance(value, ast.AST):
                self._expressions([value], where)
            elif isinstance(value, list):
                self._expressions([item for item in value if isinstance(item, ast.AST)], where)
        self._imports(node, where)

    def _imports(self, node: ast.stmt, where: _Where) -> None:
        if isinstance(node, ast.Import):
            for item in node.names:
                self._use(item.name, node.lineno, where)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            if node.module == PACKAGE:
                for item in node.names:
                    self._use(f"{PACKAGE}.{item.name}", node.lineno, where)
            else:
                self._use(node.module, node.lineno, where)

    def _expressions(self, nodes: Iterable[ast.AST], where: _Where) -> None:
        for start in nodes:
            for node in ast.walk(start):
                if isinstance(node, ast.Attribute):
                    name, dot, rest = dotted(node).partition(".")
                    if dot and name in self._package_names and "." not in rest:
                        self._use(f"{PACKAGE}.{rest}", node.lineno, where)
                elif isinstance(node, ast.Call):
                    self._imported_by_name(node, where)

    def _imported_by_name(self, node: ast.Call, where: _Where) -> None:
        if called(node) in ("import_module", "importorskip", "__import__") and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                self._use(name.value, node.lineno, where)

    def _use(self, name: str, line: int, where: _Where) -> None:
        first, dot, rest = name.partition(".")
        module = rest.partition(".")[0] if first == PACKAGE and dot else first
        if module and (first != PACKAGE or dot):
            self.uses.append(
                Use(module, line, where.covered, where.at_module_level, where.indirect)
            )


def _is_fixture(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    targets = (item.func if isinstance(item, ast.Call) else item for item in node.decorator_list)
    return any(dotted(item).rpartition(".")[2] == "fixture" for item in targets)


def _copes(handler: ast.ExceptHandler) -> bool:
    """True for a handler that catches the RuntimeError with which a blocked library refuses."""
    kinds: Iterator[ast.expr | None]
    kinds = iter(handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type])
    return any(
        kind is None or dotted(kind) in ("RuntimeError", "Exception", "BaseException")
        for kind in kinds
    )


def _leaves(body: list[ast.stmt]) -> bool:
    """True when a block surely ends the test or the collection, and not as passed."""
    last = body[-1] if body else None
    if isinstance(last, ast.Raise):
        return True
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return called(last.value) in _SKIPS
    return False
