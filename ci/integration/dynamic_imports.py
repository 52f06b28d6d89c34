"""Imports that are calls: ``importlib.import_module``, ``__import__``, and lazy-loader helpers.

Looked for only in files that hold such a word. A name that is a constant, an f-string over
``__name__`` or over a loop variable with constant values, or a parameter that module-level callers fill
with constants is worked out; any other name stays unknown, which is the run-time witness' part.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ci.integration.imports import How, Import, Place, StatementVisitor, absolute, dotted

WORDS = re.compile(rb"import_module|__import__|[Ll]azy")
_LAZY_NAME = re.compile(
    r"_?Lazy\w*(?:Module|Loader|Import|Importer)|lazy_(?:import|module|loader)\w*"
)
_LAZY_PACKAGES = ("lazy_loader", "lazy_import", "apipkg")
_IMPORTERS = ("importlib.import_module", "__import__", "builtins.__import__")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


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
                arguments = (*node.args.posonlyargs, *node.args.args)
                name = f"{place.scope}.{node.name}" if place.scope else node.name
                self._parameters[name] = tuple(argument.arg for argument in arguments)
            elif isinstance(node, ast.For):
                self._bind_loop(node)
            for call, late in _calls_of(node):
                inner = replace(place, when="call", function=place.function or "<lambda>")
                self._call(call, inner if late and place.when == "init" else place)
            super().visit([node], place)

    def _bind_loop(self, node: ast.For) -> None:
        values = [_texts(item, self.names) for item in getattr(node.iter, "elts", ())]
        if isinstance(node.target, ast.Name) and values and all(values):
            self.names[node.target.id] = tuple(text for texts in values for text in texts)

    def _call(self, call: ast.Call, place: Place) -> None:
        if place.when == "typing":
            return
        if not place.function:
            self.module_level.append((call, place))
        first, dot, rest = dotted(call.func).partition(".")
        name = self._aliases.get(first, first) + dot + rest
        if name in _IMPORTERS:
            if call.args:
                self._import(call, place, "__import__" if "__import__" in name else "import_module")
        elif name.partition(".")[0] in _LAZY_PACKAGES or _LAZY_NAME.fullmatch(
            name.rpartition(".")[2]
        ):
            self.loaders.append(LazyLoader(name, call.lineno, call.col_offset + 1))

    def _import(self, call: ast.Call, place: Place, how: How) -> None:
        where, target = _at(call, place, how), call.args[0]
        names = self._absolute(_texts(target, self.names), how)
        parameters = self._parameters.get(place.function, ())
        if names:
            self.found += [replace(where, module=name) for name in names]
        elif isinstance(target, ast.Name) and target.id in parameters:
            self.by_parameter.append((place.function, parameters.index(target.id), where))
        else:
            self.unknown.append(where)

    def _absolute(self, names: tuple[str, ...], how: How) -> tuple[str, ...]:
        if how == "__import__":
            return names
        levels = ((name.lstrip("."), len(name) - len(name.lstrip("."))) for name in names)
        found = (absolute(name, level, self.package) if level else name for name, level in levels)
        return tuple(name for name in found if name)


def _calls_of(node: ast.stmt) -> Iterator[tuple[ast.Call, bool]]:
    """The calls in a statement's own expressions, each with whether a lambda puts it off."""
    pending: list[tuple[ast.AST, bool]] = [
        (child, False) for child in ast.iter_child_nodes(node) if not _is_inner(child)
    ]
    while pending:
        part, late = pending.pop()
        if isinstance(part, ast.Call):
            yield part, late
        inside = late or isinstance(part, ast.Lambda)
        pending += [(child, inside) for child in ast.iter_child_nodes(part) if not _is_inner(child)]


def _is_inner(node: ast.AST) -> bool:
    return isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case))


def _at(call: ast.Call, place: Place, how: How) -> Import:
    return Import(
        module="",
        names=(),
        how=how,
        when=place.when,
        line=call.lineno,
        column=call.col_offset + 1,
        last_line=call.end_lineno or call.lineno,
        function=place.function,
        condition=place.condition,
        contexts=place.contexts,
        copes=place.copes,
    )


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
