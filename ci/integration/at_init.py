"""What importing a module executes beyond its own statements: functions that only module level calls, and
folders whose modules a loop imports.

Both are seen only with all modules at hand: another module may import the function, or be the one imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ci.integration.imports import Import
from ci.integration.modules import Module

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LISTINGS = ("iter_modules", "walk_packages", "glob", "rglob", "listdir", "scandir", "iterdir")


def completed(modules: Mapping[str, Module]) -> dict[str, Module]:
    """The ``modules``, with imports of such functions at init, and imports of such folders by name."""
    found = dict(modules)
    for name, module in modules.items():
        functions = _called_once(module)
        if functions:
            functions -= _asked_of(name, modules.values())
        if functions:
            found[name] = module = _at_init(module, functions)
        if _imports_its_folder(module):
            found[name] = _with_folder(module, modules)
    return found


def _called_once(module: Module) -> frozenset[str]:
    """Private functions with imports, that only the module level calls: ``_register(); del _register``."""
    late = {item.function for item in module.imports if item.when == "call"}
    late = {name for name in late if name.startswith("_") and "." not in name}
    if not late:
        return frozenset()
    called = {
        node.func.id
        for statement in _executed(module.tree.body)
        for node in _outside_functions(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    late &= called
    return frozenset(late - _used_otherwise(module.tree, late)) if late else frozenset()


def _executed(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that importing the module executes whatever holds, those of try and with included."""
    for node in body:
        if isinstance(node, (ast.Try, ast.With)):
            yield from _executed(node.body)
        elif not isinstance(node, (ast.If, ast.ClassDef, *_DEFINITIONS)):
            yield node


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    pending = [node]
    while pending:
        part = pending.pop()
        yield part
        if not isinstance(part, _DEFINITIONS):
            pending += ast.iter_child_nodes(part)


def _used_otherwise(tree: ast.Module, names: set[str]) -> set[str]:
    """Those of ``names`` that a function uses, that are passed on, or that are decorated."""
    found = {
        node.name
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.decorator_list
    }
    outside = set()
    for node in _outside_functions(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            outside.add(id(node.func))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)
            and id(node) not in outside
        ):
            found.add(node.id)
    return found & names


def _asked_of(name: str, modules: Iterable[Module]) -> frozenset[str]:
    return frozenset(
        asked for module in modules for item in module.imports if item.module == name
        for asked in item.names
    )  # fmt: skip


def _at_init(module: Module, functions: frozenset[str]) -> Module:
    def moved(item: Import) -> Import:
        if item.when != "call" or item.function not in functions:
            return item
        return replace(item, when="fallback" if item.copes else "init")

    dynamic = replace(
        module.dynamic,
        imports=tuple(map(moved, module.dynamic.imports)),
        unknown=tuple(map(moved, module.dynamic.unknown)),
    )
    return replace(module, statements=tuple(map(moved, module.statements)), dynamic=dynamic)


def _imports_its_folder(module: Module) -> bool:
    lines = [item.line for item in module.dynamic.unknown if item.at_init]
    if not lines or not module.is_package or not module.holds(*(n.encode() for n in _LISTINGS)):
        return False
    listed = {
        target.id
        for node in module.tree.body
        if isinstance(node, ast.Assign) and _lists_folder(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return any(
        node.lineno <= line <= (node.end_lineno or node.lineno)
        for node in _outside_functions(module.tree)
        if isinstance(node, ast.For) and _lists_folder(node.iter, listed)
        for line in lines
    )


def _lists_folder(node: ast.expr, listed: Iterable[str] = ()) -> bool:
    """True for an expression that calls one of the listings, or names a variable that holds one."""
    names = set(listed)
    return any(
        (isinstance(part, ast.Call) and _last_name(part.func) in _LISTINGS)
        or (isinstance(part, ast.Name) and part.id in names)
        for part in ast.walk(node)
    )


def _last_name(node: ast.expr) -> str:
    """The last name of what is called: ``glob`` of ``Path(__file__).parent.glob``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _with_folder(module: Module, modules: Mapping[str, Module]) -> Module:
    """The module with an import of every module of its folder; of all below for ``walk_packages``."""
    where = next(item for item in module.dynamic.unknown if item.at_init)
    if where.when == "condition":  # which tells modules from other files
        where = replace(where, when="init", condition="")
    below = f"{module.name}."
    deep = module.holds(b"walk_packages", b"**", b"rglob(")
    names = [
        name
        for name in modules
        if name.startswith(below) and (deep or "." not in name.removeprefix(below))
    ]
    imports = (*module.dynamic.imports, *(replace(where, module=name) for name in names))
    return replace(module, dynamic=replace(module.dynamic, imports=imports))
