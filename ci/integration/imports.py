"""The imports of one module, each with when it happens: read from the syntax tree, nothing is run.

Imports are statements, so only statements are visited: that keeps a tree of hundreds of files within a
second. What is hidden in expressions (``importlib.import_module``) is looked for only in files that hold
such a word (:mod:`ci.integration.dynamic_imports`).
"""

from __future__ import annotations

import ast
import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

When = Literal["init", "condition", "fallback", "typing", "main", "backend", "call", "getattr"]
How = Literal["import", "from", "import_module", "__import__"]

# Errors whose handler makes an import a fall-back: the module copes with the absence of what it imports.
_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
_FIXED = re.compile(r"\b(sys\.(version_info|platform)|platform\.\w+|os\.name)\b")


@dataclass(frozen=True)
class Import:
    """One import in a module.

    ``module`` is the absolute name that is asked for, ``names`` those of a ``from`` import. ``when`` is
    ``init`` for what importing the module always executes, ``condition`` for what it executes under
    ``condition``, ``fallback`` where the module copes with ImportError, ``typing`` under
    TYPE_CHECKING, ``main`` when run as a program, ``backend`` where another branch takes Paddle instead
    of torch, ``call`` in a function, ``getattr`` in the module's
    own ``__getattr__``. ``function`` is the qualified name of the function. ``contexts`` are the
    dotted names that the surrounding ``with`` statements call. ``copes`` is true inside a ``try`` that
    catches ImportError, also in a function. ``lines`` is the range of the statement.
    """

    module: str
    names: tuple[str, ...]
    how: How
    when: When
    line: int
    column: int
    last_line: int
    function: str = ""
    condition: str = ""
    contexts: tuple[str, ...] = ()
    copes: bool = False

    @property
    def at_init(self) -> bool:
        """True when importing the module executes it, or may."""
        return self.when in ("init", "condition", "fallback")

    @property
    def late(self) -> bool:
        """True when it is executed only after the module was imported."""
        return self.when in ("call", "getattr")

    @property
    def is_statement(self) -> bool:
        """True for an import statement, false for a call that imports."""
        return self.how in ("import", "from")

    @property
    def is_fixed(self) -> bool:
        """True when its condition is decided by the interpreter or the platform alone."""
        subject = self.condition.removeprefix("match ")
        return bool(subject) and _is_fixed(ast.parse(subject, mode="eval").body)

    @property
    def asks_for(self) -> frozenset[str]:
        """The modules that it may execute: the one that it names, and those among its names."""
        return frozenset({self.module, *(f"{self.module}.{name}" for name in self.names)})

    @property
    def statement(self) -> str:
        """The import as a short text for messages."""
        if self.how == "import":
            return f"import {self.module}"
        if self.how == "from":
            names = ", ".join(self.names[:3]) + (", …" if len(self.names) > 3 else "")
            return f"from {self.module} import {names}"
        return f"{self.how}({self.module!r})"


@dataclass(frozen=True)
class Place:
    """Where the visitor is."""

    when: When = "init"
    function: str = ""
    scope: str = ""
    condition: str = ""
    contexts: tuple[str, ...] = ()
    copes: bool = False


def imports_of(
    tree: ast.Module, name: str, *, is_package: bool, lines: Sequence[int] | None = None
) -> tuple[Import, ...]:
    """Every import statement of the module ``name``, in the order of the text.

    ``lines`` are the lines that hold the word, in order, where they are known: functions without one
    are not gone into.
    """
    package = name if is_package else name.rpartition(".")[0]
    visitor = StatementVisitor(package, lines)
    visitor.visit(tree.body, Place())
    return tuple(visitor.found)


class StatementVisitor:
    """Visits statements; those that hold no statement cost one look into a table."""

    def __init__(self, package: str, lines: Sequence[int] | None = None) -> None:
        self.package = package
        self.found: list[Import] = []
        self._lines = lines

    def visit(self, body: Iterable[ast.stmt], place: Place) -> None:
        """Collect the imports of ``body``, which is at ``place``."""
        for node in body:
            handler = _HANDLERS.get(type(node))
            if handler is not None:
                handler(self, node, place)

    def _plain(self, node: ast.Import, place: Place) -> None:
        for alias in node.names:
            self.found.append(import_at(node, alias.name, (), "import", place))

    def _from(self, node: ast.ImportFrom, place: Place) -> None:
        module = absolute(node.module or "", node.level, self.package)
        names = tuple(alias.name for alias in node.names)
        self.found.append(import_at(node, module, names, "from", place))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, place: Place) -> None:
        if self._may_import(node):
            self.visit(node.body, _in_function(node, place))

    def _may_import(self, node: ast.stmt) -> bool:
        if self._lines is None:
            return True
        index = bisect_left(self._lines, node.lineno)
        return index < len(self._lines) and self._lines[index] <= (node.end_lineno or node.lineno)

    def _class(self, node: ast.ClassDef, place: Place) -> None:
        self.visit(node.body, replace(place, scope=_joined(place.scope, node.name)))

    def _with(self, node: ast.With | ast.AsyncWith, place: Place) -> None:
        self.visit(node.body, _in_with(node, place))

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, place: Place) -> None:
        self.visit(node.body, place)
        self.visit(node.orelse, place)

    def _match(self, node: ast.Match, place: Place) -> None:
        for case in node.cases:
            self.visit(case.body, _under(place, lambda: f"match {ast.unparse(node.subject)}"))

    def _if(self, node: ast.If, place: Place) -> None:
        branches = []
        otherwise = place
        rest: list[ast.stmt] = [node]
        while len(rest) == 1 and isinstance(rest[0], ast.If):  # a chain of elifs, without recursion
            then, otherwise = _branches(rest[0].test, otherwise)
            branches.append(self._branch(rest[0].body, then))
            rest = rest[0].orelse
        branches.append(self._branch(rest, otherwise))
        self._settle_common(branches, place)
        self._tell_backends_apart(branches)

    def _tell_backends_apart(self, branches: Sequence[range]) -> None:
        """Torch in one branch and Paddle in another: a switch, whose torch branch never runs here."""
        tops = [{self.found[index].module.partition(".")[0] for index in part} for part in branches]
        for own, branch in zip(tops, branches, strict=True):
            others = (found for found in tops if found is not own)
            if "paddle" not in own and any("paddle" in found for found in others):
                for index in branch:
                    if _is_torch(self.found[index]):
                        self.found[index] = replace(self.found[index], when="backend")

    def _branch(self, body: Iterable[ast.stmt], place: Place) -> range:
        start = len(self.found)
        self.visit(body, place)
        return range(start, len(self.found))

    def _settle_common(self, branches: Sequence[range], place: Place) -> None:
        """What every branch imports is imported whatever the conditions say."""
        parts = [{name for index in branch for name in self._decided(index)} for branch in branches]
        common = set.intersection(*parts)
        for branch in branches if common else ():
            for index in branch:
                item = self.found[index]
                if item.when != "condition" or not common & self._decided(index):
                    continue
                settled = replace(item, when=place.when, condition=place.condition)
                if _is_torch(item) or item.asks_for <= common:
                    self.found[index] = settled
                elif item.module in common and item.module != self.package:
                    self.found.append(replace(settled, names=()))

    def _decided(self, index: int) -> frozenset[str]:
        item = self.found[index]
        if item.when != "condition":
            return frozenset()
        return frozenset({"torch"}) if _is_torch(item) else item.asks_for

    def _try(self, node: ast.Try, place: Place) -> None:
        copes = any(copes_with(handler) for handler in node.handlers)
        inner = _coping(place) if copes else place
        self.visit(node.body, inner)
        # What a handler imports is a fall-back too, but nothing catches its own ImportError.
        outer = replace(inner, copes=place.copes) if copes else place
        for handler in node.handlers:
            self.visit(handler.body, outer)
        self.visit(node.orelse, outer)
        self.visit(node.finalbody, place)


_HANDLERS: dict[type, Callable[[StatementVisitor, Any, Place], None]] = {
    ast.Import: StatementVisitor._plain,
    ast.ImportFrom: StatementVisitor._from,
    ast.FunctionDef: StatementVisitor._function,
    ast.AsyncFunctionDef: StatementVisitor._function,
    ast.ClassDef: StatementVisitor._class,
    ast.With: StatementVisitor._with,
    ast.AsyncWith: StatementVisitor._with,
    ast.For: StatementVisitor._loop,
    ast.AsyncFor: StatementVisitor._loop,
    ast.While: StatementVisitor._loop,
    ast.Match: StatementVisitor._match,
    ast.If: StatementVisitor._if,
    ast.Try: StatementVisitor._try,
}
if sys.version_info >= (3, 11):
    _HANDLERS[ast.TryStar] = StatementVisitor._try


def _is_torch(item: Import) -> bool:
    return item.module.partition(".")[0] == "torch"


def _is_fixed(test: ast.expr) -> bool:
    if isinstance(test, ast.BoolOp):
        return all(_is_fixed(value) for value in test.values)
    if isinstance(test, ast.UnaryOp):
        return _is_fixed(test.operand)
    return bool(_FIXED.search(ast.unparse(test)))


def import_at(
    node: ast.stmt | ast.expr, module: str, names: tuple[str, ...], how: How, place: Place
) -> Import:
    """The import that ``node``, which is at ``place``, makes."""
    return Import(
        module=module,
        names=names,
        how=how,
        when=place.when,
        line=node.lineno,
        column=node.col_offset + 1,
        last_line=node.end_lineno or node.lineno,
        function=place.function,
        condition=place.condition,
        contexts=place.contexts,
        copes=place.copes,
    )


def absolute(module: str, level: int, package: str) -> str:
    """The absolute name of a relative import in ``package`` (PEP 328); too many dots give ``""``."""
    if not level:
        return module
    parts = package.split(".")
    if level > len(parts):
        return ""
    base = ".".join(parts[: len(parts) - level + 1])
    return f"{base}.{module}" if module else base


def _joined(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _in_function(node: ast.FunctionDef | ast.AsyncFunctionDef, place: Place) -> Place:
    name = _joined(place.scope, node.name)
    when: When = place.when if place.when in ("typing", "main") else "call"
    if place.when == "getattr" or (name == "__getattr__" and when == "call"):
        when = "getattr"
    return replace(
        place, when=when, function=name, scope=name, condition="", contexts=(), copes=False
    )


def _under(place: Place, condition: Callable[[], str]) -> Place:
    if place.when not in ("init", "condition"):
        return place
    text = condition()
    text = f"({text})" if " or " in text or " if " in text else text
    both = f"{place.condition} and {text}" if place.condition else text
    return replace(place, when="condition", condition=both)


def _coping(place: Place) -> Place:
    when: When = "fallback" if place.when in ("init", "condition") else place.when
    return replace(place, when=when, copes=True)


def _branches(test: ast.expr, place: Place) -> tuple[Place, Place]:
    """The places of the two branches of ``if test``."""
    verdict = verdict_of(test)
    if verdict == "typing":
        return replace(place, when="typing"), place
    if verdict == "not typing":
        return place, replace(place, when="typing")
    if verdict == "main" and place.when in ("init", "condition"):
        return replace(place, when="main"), place
    if verdict == "true":
        return place, replace(place, when="typing")
    then = _under(place, lambda: ast.unparse(test))
    return then, _under(place, lambda: ast.unparse(ast.UnaryOp(ast.Not(), test)))


def verdict_of(test: ast.expr) -> str:
    """What a condition is known to be: typing (never true at run time), not typing, main, true or ""."""
    if isinstance(test, ast.Constant):
        return "true" if test.value else "typing"
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return {"typing": "not typing", "true": "typing"}.get(verdict_of(test.operand), "")
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        found = {verdict_of(value) for value in test.values}
        return "typing" if "typing" in found else "main" if "main" in found else ""
    if dotted(test).rpartition(".")[2] == "TYPE_CHECKING":
        return "typing"
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq):
        sides = [test.left, *test.comparators]
        names = {dotted(side) for side in sides}
        if "__name__" in names and any(
            isinstance(side, ast.Constant) and side.value == "__main__" for side in sides
        ):
            return "main"
    return ""


def copes_with(handler: ast.excepthandler) -> bool:
    """True for a handler of ImportError that does not end in raising another error."""
    if not isinstance(handler, ast.ExceptHandler) or isinstance(handler.body[-1], ast.Raise):
        return False
    return catches_import_error(handler.type)


def catches_import_error(caught: ast.expr | None) -> bool:
    """True for an ``except`` clause (its expression) that catches ImportError."""
    if caught is None:
        return True
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(dotted(kind).rpartition(".")[2] in _IMPORT_ERRORS for kind in kinds)


def _in_with(node: ast.With | ast.AsyncWith, place: Place) -> Place:
    names = []
    copes = False
    for call in (leaf for item in node.items for leaf in leaves(item.context_expr)):
        name = dotted(call.func if isinstance(call, ast.Call) else call)
        names.append(name)
        if isinstance(call, ast.Call) and name.rpartition(".")[2] == "suppress":
            copes = copes or any(catches_import_error(argument) for argument in call.args)
    inner = replace(place, contexts=(*place.contexts, *(name for name in names if name)))
    return _coping(inner) if copes else inner


def leaves(node: ast.expr) -> Iterator[ast.expr]:
    """The expressions that a conditional or a named expression may give; any other gives itself."""
    if isinstance(node, ast.IfExp):
        yield from leaves(node.body)
        yield from leaves(node.orelse)
    elif isinstance(node, ast.NamedExpr):
        yield from leaves(node.value)
    else:
        yield node


def dotted(node: ast.expr) -> str:
    """``a.b.c`` for a name or a chain of attributes, ``""`` for any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join((node.id, *reversed(parts)))


def told_apart(imports: Sequence[Import]) -> dict[str, int]:
    """How many imports are none of the check's business, by the reason."""
    words = {
        "typing": "type-checking imports",
        "fallback": "fall-backs",
        "main": "run as a program",
        "backend": "imports of another back end",
    }
    counts: dict[str, int] = {}
    for item in imports:
        if item.when in words:
            counts[words[item.when]] = counts.get(words[item.when], 0) + 1
    return counts
