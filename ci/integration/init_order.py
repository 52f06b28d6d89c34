"""Importing a library played through: its imports and names in the order in which Python executes them.

Nothing of the library is run. A module that is imported again while it is still being executed gives what
it has bound so far; asking it for more is what fails. Python's own rules are kept: packages before their
submodules (the import system reference, "Submodules"), a submodule that is being imported counts for a
``from`` import (bpo-30024), a failed import leaves no module behind.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ci.integration.analysis import Analysis
from ci.integration.bindings import names_bound, names_stored
from ci.integration.imports import Import, catches_import_error, copes_with, verdict_of
from ci.integration.modules import Module


@dataclass(frozen=True)
class Unbound:
    """``importer`` asks ``target``, which is still being executed, for a ``name`` it has not bound yet.

    ``attribute`` is true for ``target.name`` in an expression, false for a ``from`` import; ``caught``
    where a module on the way catches the error, so that a fall-back is taken in silence.
    """

    importer: str
    imported: Import
    target: str
    name: str
    attribute: bool = False
    caught: bool = False


def unbound_names(analysis: Analysis) -> tuple[Unbound, ...]:
    """What fails while the library's packages and roots are imported, in that order.

    The first that is not caught is what Python stops at; the others would fail after it was mended.
    """
    play = _Play(analysis)
    for name in (*analysis.tree.packages, *analysis.tree.roots):
        play.execute(name)
    return tuple(play.failures.values())


class _FailedError(Exception):
    """An import failed, and a module on the way catches that."""


class _Play:
    def __init__(self, analysis: Analysis) -> None:
        self.failures: dict[tuple[str, str, str, bool], Unbound] = {}
        self._analysis = analysis
        self._modules = analysis.tree.modules
        self._bound: dict[str, set[str]] = {}
        self._done: set[str] = set()
        self._aliases: dict[str, dict[str, str]] = {}
        self._statements: dict[str, Mapping[tuple[int, int], list[Import]]] = {}
        self._calls: dict[str, tuple[Import, ...]] = {}
        self._catching = 0

    def execute(self, name: str) -> None:
        """Import a module: the packages around it, then itself, unless that has begun already."""
        if name in self._bound:
            return
        parent, _, last = name.rpartition(".")
        if parent:
            self.execute(parent)
        if name in self._bound or name not in self._modules:
            return
        module = self._modules[name]
        self._bound[name] = set()
        self._aliases[name] = {}
        self._statements[name] = _by_position(module)
        self._calls[name] = _calls_that_import(module)
        try:
            self._block(module.tree.body, module, certain=True)
        except _FailedError:
            del self._bound[name]
            raise
        self._done.add(name)
        self._bind_in_parent(parent, last, name)

    def _bind_in_parent(self, parent: str, last: str, name: str) -> None:
        if parent in self._bound:
            self._bound[parent].add(last)
            self._aliases[parent][last] = name

    def _block(self, body: list[ast.stmt], module: Module, *, certain: bool) -> None:
        """``certain``: whatever holds, the block is executed; expressions of others are not looked at."""
        for node in body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import_statement(node, module)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._evaluate([*node.decorator_list, *_defaults(node)], module, certain=certain)
                self._bind(module, node.name)
            elif isinstance(node, ast.ClassDef):
                self._class(node, module, certain=certain)
            else:
                self._compound(node, module, certain=certain)

    def _call(self, node: ast.stmt, module: Module) -> None:
        """The imports that calls in a statement's own expressions make: dynamic ones, and in functions."""
        for item in self._calls[module.name]:
            if item.function:
                made = any(_is_call_of(item.function, part) for part in _own_expressions(node))
            else:
                made = node.lineno <= item.line <= _last_line(node)
            if made:
                self._import(item, module, {})

    def _class(self, node: ast.ClassDef, module: Module, *, certain: bool) -> None:
        parts = [*node.decorator_list, *node.bases, *(item.value for item in node.keywords)]
        self._evaluate(parts, module, certain=certain)
        kept = set(self._bound[module.name]), dict(self._aliases[module.name])
        self._block(node.body, module, certain=certain)
        known = {
            name for name in self._bound[module.name] if f"{module.name}.{name}" in self._bound
        }
        self._bound[module.name], self._aliases[module.name] = kept[0] | known, kept[1]
        self._bind(module, node.name)

    def _compound(self, node: ast.stmt, module: Module, *, certain: bool) -> None:
        self._call(node, module)
        self._evaluate(_expressions(node), module, certain=certain)
        for name in names_stored(node):
            self._bind(module, name)
        if isinstance(node, ast.Try):
            self._try(node, module, certain=certain)
        elif isinstance(node, ast.If):
            self._if(node, module, certain=certain)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            self._with(node, module, certain=certain)
        elif isinstance(node, ast.Match):
            for case in node.cases:
                self._block(case.body, module, certain=False)
        elif isinstance(node, (ast.For, ast.While)):
            self._block(node.body, module, certain=certain)
            self._block(node.orelse, module, certain=certain)

    def _if(self, node: ast.If, module: Module, *, certain: bool) -> None:
        rest: list[ast.stmt] = [node]
        while len(rest) == 1 and isinstance(rest[0], ast.If):
            verdict = verdict_of(rest[0].test)
            decided = verdict in ("true", "not typing")
            if verdict not in ("typing", "main"):
                self._block(rest[0].body, module, certain=certain and decided)
            if decided:
                return
            certain = certain and verdict in ("typing", "main")
            rest = rest[0].orelse
        self._block(rest, module, certain=certain)

    def _try(self, node: ast.Try, module: Module, *, certain: bool) -> None:
        handler = next((h for h in node.handlers if catches_import_error(h.type)), None)
        handler = handler if handler is not None and copes_with(handler) else None
        self._catching += handler is not None
        try:
            self._block(node.body, module, certain=certain)
        except _FailedError:
            self._catching -= 1
            if handler is not None:
                self._block(handler.body, module, certain=certain)
        else:
            self._catching -= handler is not None
            for other in node.handlers:  # what it binds may be bound
                for name in names_bound(other.body):
                    self._bind(module, name)
            self._block(node.orelse, module, certain=certain)
        self._block(node.finalbody, module, certain=certain)

    def _with(self, node: ast.With | ast.AsyncWith, module: Module, *, certain: bool) -> None:
        catches = any(
            isinstance(item.context_expr, ast.Call)
            and ast.unparse(item.context_expr.func).endswith("suppress")
            and any(map(catches_import_error, item.context_expr.args))
            for item in node.items
        )
        self._catching += catches
        try:
            self._block(node.body, module, certain=certain)
        except _FailedError:
            if not catches:
                raise
        finally:
            self._catching -= catches

    def _import_statement(self, node: ast.Import | ast.ImportFrom, module: Module) -> None:
        names = [alias.asname or alias.name.partition(".")[0] for alias in node.names]
        aliases = self._aliases[module.name]
        for name in names:
            aliases.pop(name, None)
        given = {alias.name: name for alias, name in zip(node.names, names, strict=True)}
        for item in self._statements[module.name].get((node.lineno, node.col_offset + 1), ()):
            if item.when in ("init", "fallback"):
                self._import(item, module, given)
        self._bound[module.name] |= {*names} - {"*"}
        for alias, name in zip(node.names, names, strict=True):
            meaning = alias.name if alias.asname else name
            if isinstance(node, ast.Import) and meaning in self._modules:
                aliases[name] = meaning

    def _import(self, item: Import, importer: Module, given: Mapping[str, str]) -> None:
        """``given`` are the names that the statement gives to what it asks for."""
        self.execute(item.module)
        for name in item.names:
            if name == "*":
                self._star(item, importer)
            else:
                self._from(item, name, importer, given.get(name, name))

    def _from(self, item: Import, name: str, importer: Module, given: str) -> None:
        known = self._bound.get(item.module)
        submodule = f"{item.module}.{name}"
        if (known is None or name not in known) and submodule in self._modules:
            self.execute(submodule)
            self._aliases[importer.name][given] = submodule
        elif known is not None and name not in known and "__getattr__" not in known:
            self._missing(Unbound(importer.name, item, item.module, name))
        elif known is not None and name in self._aliases[item.module]:
            self._aliases[importer.name][given] = self._aliases[item.module][name]

    def _star(self, item: Import, importer: Module) -> None:
        source = self._modules.get(item.module)
        if source is None:
            return
        bound = self._bound[item.module]
        bound = self._bound[item.module]
        for name in source.exported or ():  # first the submodules, then the names
            if name not in bound:
                self.execute(f"{item.module}.{name}")
        for name in source.exported or ():
            # Unlike a `from` import of the name, a star import reads the attribute.
            if name not in bound and "__getattr__" not in bound:
                self._missing(Unbound(importer.name, item, item.module, name, attribute=True))
        taken = self._analysis.star_of(source, self._bound[item.module])
        self._bound[importer.name] |= taken
        aliases = self._aliases[item.module]
        self._aliases[importer.name] |= {k: aliases[k] for k in taken if k in aliases}

    def _bind(self, module: Module, name: str) -> None:
        self._bound[module.name].add(name)
        self._aliases[module.name].pop(name, None)

    def _evaluate(self, parts: list[ast.expr], module: Module, *, certain: bool) -> None:
        """Attributes of modules that are still being executed, in expressions of the module level."""
        aliases = self._aliases[module.name]
        if not certain or all(meaning in self._done for meaning in aliases.values()):
            return
        for part in parts:
            for node in _attributes(part):
                self._attribute(node, module)

    def _attribute(self, node: ast.Attribute, module: Module) -> None:
        names = _chain(node)
        meaning = self._aliases[module.name].get(names[0], "") if names else ""
        for name in names[1:]:
            if meaning not in self._bound:
                return
            bound = self._bound[meaning]
            if name not in bound:
                if "__getattr__" not in bound:
                    imported = _import_of(module, meaning, node)
                    self._missing(Unbound(module.name, imported, meaning, name, attribute=True))
                return
            meaning = self._aliases[meaning].get(name, "")

    def _missing(self, unbound: Unbound) -> None:
        # A name that its text never binds may be a compiled submodule, or set by code that is not read.
        submodule = f"{unbound.target}.{unbound.name}"
        known = submodule in self._modules or unbound.name in self._analysis.names_of(
            unbound.target
        )
        running = {unbound.target, submodule} & (self._bound.keys() - self._done)
        if not running or not known:
            return
        caught = bool(self._catching) and not unbound.attribute
        key = (unbound.importer, unbound.target, unbound.name, caught)
        if not (caught and unbound.imported.copes):
            self.failures.setdefault(key, replace(unbound, caught=caught))
        if caught:
            raise _FailedError


def _by_position(module: Module) -> Mapping[tuple[int, int], list[Import]]:
    found: dict[tuple[int, int], list[Import]] = {}
    for item in module.statements:
        found.setdefault((item.line, item.column), []).append(item)
    return found


def _calls_that_import(module: Module) -> tuple[Import, ...]:
    """Imports at init that are no statement of the module level."""
    in_functions = (item for item in module.statements if item.function)
    found = (*in_functions, *module.dynamic.imports)
    return tuple(item for item in found if item.when in ("init", "fallback"))


def _own_expressions(node: ast.stmt) -> Iterator[ast.AST]:
    for expression in _expressions(node):
        yield from ast.walk(expression)


def _is_call_of(function: str, node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function
    )


def _last_line(node: ast.stmt) -> int:
    """The last line of a statement without the block in it."""
    body = getattr(node, "body", None) or getattr(node, "cases", None)
    if not body:
        return node.end_lineno or node.lineno
    first = body[0] if isinstance(body[0], ast.stmt) else body[0].pattern
    return max(node.lineno, first.lineno - 1)


def _import_of(module: Module, name: str, node: ast.Attribute) -> Import:
    """The import that brought a module, at the place where its attribute is read."""
    found = (i for i in module.statements if i.at_init and name in i.asks_for)
    given = next(found, None) or Import(name, (), "import", "init", 0, 0, 0)
    return replace(given, line=node.lineno, column=node.col_offset + 1)


def _defaults(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
    return [*node.args.defaults, *(item for item in node.args.kw_defaults if item is not None)]


def _expressions(node: ast.stmt) -> list[ast.expr]:
    """The expressions of a statement; annotations may never be evaluated (PEP 563, PEP 649)."""
    annotation = node.annotation if isinstance(node, ast.AnnAssign) else None
    children = ast.iter_child_nodes(node)
    found = [item for item in children if isinstance(item, ast.expr) and item is not annotation]
    if isinstance(node, (ast.With, ast.AsyncWith)):
        found += [item.context_expr for item in node.items]
    return found


def _attributes(node: ast.expr) -> Iterator[ast.Attribute]:
    """Chains of names in an expression that is evaluated now: not in a lambda."""
    pending: list[ast.AST] = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, ast.Attribute) and _chain(part):
            yield part
        elif not isinstance(part, ast.Lambda):
            pending += ast.iter_child_nodes(part)


def _chain(node: ast.Attribute) -> list[str]:
    """``["a", "b", "c"]`` for ``a.b.c`` that is read, empty for an attribute of anything else."""
    names: list[str] = []
    part: ast.expr = node
    while isinstance(part, ast.Attribute):
        names.insert(0, part.attr)
        part = part.value
    loaded = isinstance(node.ctx, ast.Load) and isinstance(part, ast.Name)
    return [part.id, *names] if loaded and isinstance(part, ast.Name) else []
