"""Imports that are calls: ``importlib.import_module``, ``__import__``, and lazy-loader helpers.

Looked for only in files that hold such a word. A name that is a constant, an entry of a constant table of
the module, an f-string over ``__name__`` or over a loop variable with constant values, or a parameter that
module-level callers fill with constants is worked out; any other name stays unknown, which is the run-time
witness' part.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ci.integration.imports import (
    How,
    Import,
    Place,
    StatementVisitor,
    absolute,
    dotted,
    import_at,
)

_WORDS = (b"import_module", b"__import__", b"Lazy", b"lazy", b"apipkg")
_LAZY_NAME = re.compile(
    r"_?Lazy\w*(?:Module|Loader|Import|Importer)|_?lazy_(?:import|module|loader)\w*"
)
_LAZY_PACKAGES = ("lazy_loader", "lazy_import", "apipkg")
_IMPORTERS = (
    "importlib.import_module",
    "__import__",
    "builtins.__import__",
    "importlib.__import__",
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SAME_ELEMENTS = ("sorted", "list", "tuple", "set", "reversed", "frozenset")


@dataclass(frozen=True)
class LazyLoader:
    """A call of a helper that puts off imports: ``lazy_loader.attach``, ``_LazyModule(...)``."""

    helper: str
    line: int
    column: int


@dataclass(frozen=True)
class Dynamic:
    """What a file holds of it. ``unknown`` are imports whose name could not be worked out."""

    imports: tuple[Import, ...] = ()
    unknown: tuple[Import, ...] = ()
    loaders: tuple[LazyLoader, ...] = ()


def may_hold_dynamic(source: bytes) -> bool:
    """False when a text holds none of the words that make a closer look worth while."""
    return any(word in source for word in _WORDS)


def dynamic_of(tree: ast.Module, name: str, *, is_package: bool) -> Dynamic:
    """The dynamic imports of the module ``name``."""
    package = name if is_package else name.rpartition(".")[0]
    calls = _Calls(package, {"__name__": (name,), "__package__": (package,)}, _aliases(tree))
    calls.visit(tree.body, Place())
    for function, index, where in calls.by_parameter:
        given = [
            replace(_at(call, place, "import_module"), module=text)
            for call, place in calls.module_level
            if dotted(call.func) == function and len(call.args) > index
            for text in _texts(call.args[index], calls.names)
        ]
        # What the function copes with, its callers do not see.
        copes = where.copes
        calls.found += [replace(item, when="fallback") if copes else item for item in given]
        if not given:
            calls.unknown.append(where)
    through = _called_by_getattr(tree)
    found = (item for item in calls.found if not item.is_statement)
    return Dynamic(
        tuple(_through_getattr(found, through)),
        tuple(_through_getattr(calls.unknown, through)),
        tuple(calls.loaders),
    )


class _Calls(StatementVisitor):
    """Collects the calls that import, each with the place of its statement."""

    def __init__(
        self,
        package: str,
        names: Mapping[str, tuple[str, ...]],
        aliases: Mapping[str, str],
    ) -> None:
        super().__init__(package)
        self.names = dict(names)
        self._tables: dict[str, _Table] = {}
        self.unknown: list[Import] = []
        self.loaders: list[LazyLoader] = []
        self.by_parameter: list[tuple[str, int, Import]] = []
        self.module_level: list[tuple[ast.Call, Place]] = []
        self._aliases = aliases
        self._parameters: dict[str, tuple[str, ...]] = {}

    def visit(self, body: Iterable[ast.stmt], place: Place) -> None:
        """Look at the expressions of each statement, then go into it."""
        for node in body:
            if isinstance(node, _FUNCTIONS):
                given = node.args
                arguments = (*given.posonlyargs, *given.args, *given.kwonlyargs)
                name = f"{place.scope}.{node.name}" if place.scope else node.name
                self._parameters[name] = tuple(argument.arg for argument in arguments)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                self._bind_constants(node)
            elif isinstance(node, ast.For):
                self._bind_loop(node.target, node.iter)
            calls, loops = _calls_of(node)
            for loop in loops:
                self._bind_loop(loop.target, loop.iter)
            for call, late in calls:
                inner = replace(place, when="call", function=place.function or "<lambda>")
                self._call(call, inner if late and place.when == "init" else place)
            super().visit([node], place)

    def _bind_constants(self, node: ast.Assign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        table = self._table(node.value) if node.value is not None else None
        for target in targets:
            if not isinstance(target, ast.Name):
                continue
            self._tables.pop(target.id, None)
            self.names.pop(target.id, None)
            if table is not None:
                self._tables[target.id] = table
            elif isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                self.names[target.id] = (node.value.value,)

    def _bind_loop(self, target: ast.expr, over: ast.expr) -> None:
        table = self._table(over)
        variables = target.elts if isinstance(target, ast.Tuple) else [target]
        columns: tuple[tuple[str, ...], ...] = (table.keys if table else (),)
        if table and table.pairs:
            columns = (table.keys, table.values)
        for variable, texts in zip(variables, columns, strict=False):
            if isinstance(variable, ast.Name):
                self.names.pop(variable.id, None)
                if texts and len(variables) == len(columns):
                    self.names[variable.id] = texts

    def _table(self, node: ast.expr) -> _Table | None:
        """The texts that a collection of constants holds, or the name of one."""
        if isinstance(node, ast.Name):
            return self._tables.get(node.id)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            keys = self._all_texts(node.elts)
            return _Table(keys, keys) if keys else None
        if isinstance(node, ast.Dict):
            values = self._all_texts(node.values)
            keys = self._all_texts([key for key in node.keys if key is not None])
            return _Table(keys, values) if values else None
        if isinstance(node, ast.Call):
            return self._table_of_call(node)
        return None

    def _table_of_call(self, call: ast.Call) -> _Table | None:
        if isinstance(call.func, ast.Name) and call.func.id in _SAME_ELEMENTS and call.args:
            return self._table(call.args[0])
        if isinstance(call.func, ast.Attribute) and not call.args:
            table = self._table(call.func.value)
            if table is not None and call.func.attr == "values":
                return _Table(table.values, table.values)
            if table is not None and call.func.attr == "items":
                return replace(table, pairs=True)
            return table if call.func.attr == "keys" else None
        return None

    def _all_texts(self, elements: Sequence[ast.expr]) -> tuple[str, ...]:
        """The texts of ``elements``; empty when one of them is no constant text."""
        texts = [self._texts(item, ()) for item in elements]
        return tuple(text for item in texts for text in item) if all(texts) else ()

    def _call(self, call: ast.Call, place: Place) -> None:
        if place.when == "typing":
            return
        if not place.function:
            self.module_level.append((call, place))
        first, dot, rest = dotted(call.func).partition(".")
        name = self._aliases.get(first, first) + dot + rest
        if name in _IMPORTERS:
            self._import(call, place, "__import__" if "__import__" in name else "import_module")
        elif name.partition(".")[0] in _LAZY_PACKAGES or _LAZY_NAME.fullmatch(
            name.rpartition(".")[2]
        ):
            self.loaders.append(LazyLoader(name, call.lineno, call.col_offset + 1))

    def _import(self, call: ast.Call, place: Place, how: How) -> None:
        where, target = _at(call, place, how), _argument(call, 0, "name")
        if target is None:
            return
        parameters = self._parameters.get(place.function, ())
        texts = self._texts(target, parameters)
        found = self._absolute(call, texts, parameters) if how == "import_module" else texts
        if how == "__import__":
            where = replace(where, names=self._fromlist(call))
            level = _argument(call, 4, "level")
            if isinstance(level, ast.Constant) and isinstance(level.value, int):
                found = tuple(absolute(text, level.value, self.package) for text in texts)
        if found:
            self.found += [replace(where, module=name) for name in found if name]
        elif isinstance(target, ast.Name) and target.id in parameters:
            self.by_parameter.append((place.function, parameters.index(target.id), where))
        else:
            self.unknown.append(where)

    def _absolute(
        self, call: ast.Call, names: tuple[str, ...], parameters: tuple[str, ...]
    ) -> tuple[str, ...]:
        package = _argument(call, 1, "package")
        given = self._texts(package, parameters) if package is not None else ()
        # Without a known package, a relative name is taken for one of this package.
        base = given[0] if len(given) == 1 else self.package
        levels = ((name.lstrip("."), len(name) - len(name.lstrip("."))) for name in names)
        return tuple(absolute(name, level, base) if level else name for name, level in levels)

    def _fromlist(self, call: ast.Call) -> tuple[str, ...]:
        names = _argument(call, 3, "fromlist")
        table = self._table(names) if names is not None else None
        return table.keys if table else ()

    def _texts(self, node: ast.expr, parameters: tuple[str, ...]) -> tuple[str, ...]:
        """Every text that an expression may have where ``parameters`` hide names of the module."""
        if isinstance(node, ast.Subscript):
            table = self._table(node.value)
            return table.values if table else ()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            table = self._table(node.func.value) if node.func.attr == "get" else None
            return table.values if table else ()
        known = {name: texts for name, texts in self.names.items() if name not in parameters}
        return _texts(node, known)


@dataclass(frozen=True)
class _Table:
    """The constant texts of a collection; ``values`` are the ``keys`` where it is no dictionary."""

    keys: tuple[str, ...]
    values: tuple[str, ...]
    pairs: bool = False


def _argument(call: ast.Call, index: int, name: str) -> ast.expr | None:
    if len(call.args) > index:
        return call.args[index]
    return next((item.value for item in call.keywords if item.arg == name), None)


def _calls_of(node: ast.stmt) -> tuple[list[tuple[ast.Call, bool]], list[ast.comprehension]]:
    """The calls in a statement's own expressions, each with whether a lambda puts it off; their loops."""
    calls: list[tuple[ast.Call, bool]] = []
    loops: list[ast.comprehension] = []
    pending: list[tuple[ast.AST, bool]] = [
        (child, False) for child in ast.iter_child_nodes(node) if not _is_inner(child)
    ]
    while pending:
        part, late = pending.pop()
        if isinstance(part, ast.Call):
            calls.append((part, late))
        elif isinstance(part, ast.comprehension):
            loops.append(part)
        inside = late or isinstance(part, ast.Lambda)
        pending += [(child, inside) for child in ast.iter_child_nodes(part) if not _is_inner(child)]
    return calls, loops


def _is_inner(node: ast.AST) -> bool:
    return isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case))


def _at(call: ast.Call, place: Place, how: How) -> Import:
    return import_at(call, "", (), how, place)


def _texts(node: ast.expr, names: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Every text that an expression may have, as far as constants tell; empty when they do not."""
    if isinstance(node, ast.Constant):
        return (node.value,) if isinstance(node.value, str) else ()
    if isinstance(node, ast.Name):
        return names.get(node.id, ())
    if isinstance(node, ast.JoinedStr):
        return _product([_texts(_inner(part), names) for part in node.values])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        # A name that is put together from pieces of constants hides what it is: left to the witness.
        plain = isinstance(node.left, ast.Name) or isinstance(node.right, ast.Name)
        return _product([_texts(node.left, names), _texts(node.right, names)]) if plain else ()
    return ()


def _inner(part: ast.expr) -> ast.expr:
    return part.value if isinstance(part, ast.FormattedValue) else part


def _product(parts: list[tuple[str, ...]]) -> tuple[str, ...]:
    texts: tuple[str, ...] = ("",)
    for part in parts:
        texts = tuple(text + piece for text in texts for piece in part)
    return texts


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Names that imports anywhere in the file bind, to what they stand for."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update({alias.asname: alias.name for alias in node.names if alias.asname})
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def _called_by_getattr(tree: ast.Module) -> frozenset[str]:
    """The functions that the module's ``__getattr__`` (PEP 562) calls by name."""
    return frozenset(
        dotted(call.func)
        for node in tree.body
        if isinstance(node, _FUNCTIONS) and node.name == "__getattr__"
        for call in ast.walk(node)
        if isinstance(call, ast.Call)
    )


def _through_getattr(imports: Iterable[Import], functions: frozenset[str]) -> Iterator[Import]:
    for item in imports:
        through = item.when == "call" and item.function in functions
        yield replace(item, when="getattr") if through else item
