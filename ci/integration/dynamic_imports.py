"""Imports that are calls: ``importlib.import_module``, ``__import__``, and lazy-loader helpers.

Looked for only in files that hold such a word. A name that is a constant, an f-string over
``__name__`` or over a loop variable with constant values, or a parameter that module-level callers fill
with constants is worked out; any other name stays unknown, which is the run-time witness' part.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ci.integration.imports import How, Import, When, absolute, dotted

WORDS = re.compile(rb"import_module|__import__|[Ll]azy")
_LAZY_NAME = re.compile(
    r"_?Lazy\w*(?:Module|Loader|Import|Importer)|lazy_(?:import|module|loader)\w*"
)
_LAZY_PACKAGES = ("lazy_loader", "lazy_import", "lazy_object_proxy", "apipkg")


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


@dataclass
class _Found:
    imports: list[Import] = field(default_factory=list)
    unknown: list[Import] = field(default_factory=list)
    loaders: list[LazyLoader] = field(default_factory=list)


def dynamic_of(tree: ast.Module, name: str, *, is_package: bool) -> Dynamic:
    """The dynamic imports of the module ``name``."""
    package = name if is_package else name.rpartition(".")[0]
    reader = _Reader(tree, name, package)
    reader.read()
    found = reader.found
    return Dynamic(tuple(found.imports), tuple(found.unknown), tuple(found.loaders))


@dataclass(frozen=True)
class _Scope:
    function: str = ""
    qualified: str = ""
    parameters: tuple[str, ...] = ()
    in_getattr: bool = False
    when: When = "init"
    copes: bool = False
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class _Reader:
    def __init__(self, tree: ast.Module, name: str, package: str) -> None:
        self._tree = tree
        self._texts = {"__name__": (name,), "__package__": (package,)}
        self._package = package
        self._aliases = _aliases(tree)
        self.found = _Found()

    def read(self) -> None:
        self._walk(self._tree, _Scope(names=self._texts))

    def _walk(self, node: ast.AST, scope: _Scope) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._walk(child, self._inside(child, scope))
            elif isinstance(child, ast.ClassDef):
                self._walk(child, replace(scope, qualified=_join(scope.qualified, child.name)))
            elif isinstance(child, ast.For):
                self._walk(child, self._looping(child, scope))
            elif isinstance(child, ast.Try):
                self._walk(child, replace(scope, copes=True))
            else:
                if isinstance(child, ast.Call):
                    self._call(child, scope)
                self._walk(child, scope)

    def _inside(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: _Scope) -> _Scope:
        qualified = _join(scope.qualified, node.name)
        arguments = (*node.args.posonlyargs, *node.args.args)
        in_getattr = scope.in_getattr or qualified == "__getattr__"
        return replace(
            scope,
            function=node.name,
            qualified=qualified,
            parameters=tuple(argument.arg for argument in arguments),
            in_getattr=in_getattr,
            when="getattr" if in_getattr else "call",
            copes=False,
        )

    def _looping(self, node: ast.For, scope: _Scope) -> _Scope:
        values = [_text_of(item, scope.names) for item in getattr(node.iter, "elts", ())]
        if not isinstance(node.target, ast.Name) or not values or not all(values):
            return scope
        flat = tuple(text for texts in values for text in texts)
        return replace(scope, names={**scope.names, node.target.id: flat})

    def _call(self, call: ast.Call, scope: _Scope) -> None:
        name = self._resolved(dotted(call.func))
        if name in ("importlib.import_module", "__import__", "builtins.__import__"):
            self._import(call, name.rpartition(".")[2], scope)  # type: ignore[arg-type]
        elif _is_lazy_loader(name):
            self.found.loaders.append(LazyLoader(name, call.lineno, call.col_offset + 1))

    def _resolved(self, name: str) -> str:
        first, dot, rest = name.partition(".")
        return self._aliases.get(first, first) + dot + rest

    def _import(self, call: ast.Call, how: How, scope: _Scope) -> None:
        where = _where(call, how, scope)
        if not call.args:
            return
        target = call.args[0]
        names = self._absolute(_text_of(target, scope.names), call, how)
        if names:
            self.found.imports += [replace(where, module=name) for name in names]
            return
        index = _parameter(target, scope)
        given = tuple(self._given(scope.function, index)) if index is not None else ()
        if given:
            self.found.imports += given
        else:
            self.found.unknown.append(where)

    def _absolute(self, names: tuple[str, ...], call: ast.Call, how: How) -> tuple[str, ...]:
        if how != "import_module":
            return names
        found = []
        for name in names:
            level = len(name) - len(name.lstrip("."))
            found.append(absolute(name.lstrip("."), level, self._package) if level else name)
        return tuple(name for name in found if name)

    def _given(self, function: str, index: int) -> Iterator[Import]:
        """The imports that module-level calls of ``function`` cause with constant arguments."""
        for node in self._module_level():
            if not isinstance(node, ast.Call) or dotted(node.func) != function:
                continue
            if len(node.args) > index:
                for name in _text_of(node.args[index], self._texts):
                    yield replace(_where(node, "import_module", _Scope()), module=name)

    def _module_level(self) -> Iterator[ast.AST]:
        pending: list[ast.AST] = [self._tree]
        while pending:
            node = pending.pop()
            yield node
            pending += [
                child
                for child in ast.iter_child_nodes(node)
                if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            ]


def _where(call: ast.Call, how: How, scope: _Scope) -> Import:
    when: When = "fallback" if scope.when == "init" and scope.copes else scope.when
    return Import(
        module="",
        names=(),
        how=how,
        when=when,
        line=call.lineno,
        column=call.col_offset + 1,
        last_line=call.end_lineno or call.lineno,
        function=scope.qualified if scope.function else "",
        copes=scope.copes,
    )


def _join(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _parameter(node: ast.expr, scope: _Scope) -> int | None:
    if isinstance(node, ast.Name) and node.id in scope.parameters:
        return scope.parameters.index(node.id)
    return None


def _text_of(node: ast.expr, names: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Every text that an expression may have, as far as constants tell; empty when they do not."""
    if isinstance(node, ast.Constant):
        return (node.value,) if isinstance(node.value, str) else ()
    if isinstance(node, ast.Name):
        return names.get(node.id, ())
    if isinstance(node, ast.JoinedStr):
        return _product([_text_of(_inner(part), names) for part in node.values])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        # A name that is put together from pieces of constants hides what it is: left to the witness.
        left, right = _text_of(node.left, names), _text_of(node.right, names)
        plain = isinstance(node.left, ast.Name) or isinstance(node.right, ast.Name)
        return _product([left, right]) if plain else ()
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
            for alias in node.names:
                if alias.asname:
                    found[alias.asname] = alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def _is_lazy_loader(name: str) -> bool:
    top, _, last = name.partition(".")[0], "", name.rpartition(".")[2]
    return top in _LAZY_PACKAGES or _LAZY_NAME.fullmatch(last) is not None
