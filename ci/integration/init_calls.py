"""Which functions importing a library calls: module-level calls and decorators, followed by name.

Asked only about libraries that keep late imports on purpose. Names are resolved as far as imports and
definitions tell; a call through a variable or an attribute of an object is not followed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ci.integration.analysis import Analysis
from ci.integration.bindings import executed_bodies
from ci.integration.imports import absolute, dotted
from ci.integration.modules import Module

Function = tuple[str, str]  # module, qualified name
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def called_at_init(analysis: Analysis) -> dict[Function, tuple[Function, ...]]:
    """Every function that importing the library calls, to the chain of callers from module level.

    A chain starts with ``(module, "")`` for the module whose body makes the first call.
    """
    return analysis.once(_follow)


def _follow(analysis: Analysis) -> dict[Function, tuple[Function, ...]]:
    return _Follower(analysis).follow()


class _Follower:
    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._names: dict[str, dict[str, str]] = {}
        self._functions: dict[str, dict[str, ast.AST]] = {}

    def follow(self) -> dict[Function, tuple[Function, ...]]:
        chains: dict[Function, tuple[Function, ...]] = {}
        pending: list[tuple[Function, tuple[Function, ...], ast.AST, Module]] = []
        for name in sorted(self._analysis.reached):
            module = self._analysis.tree.modules[name]
            pending.append(((name, ""), (), module.tree, module))
        while pending:
            caller, chain, node, module = pending.pop()
            for called in self._calls(node, module):
                if called not in chains:
                    chains[called] = (*chain, caller)
                    home = self._analysis.tree.modules[called[0]]
                    body = self._defined(home)[called[1]]
                    pending.append((called, chains[called], body, home))
        return chains

    def _calls(self, node: ast.AST, module: Module) -> Iterator[Function]:
        for part in _executed(node):
            if isinstance(part, ast.Call):
                yield from self._resolve(dotted(part.func), module)
            elif isinstance(part, (*_DEFINITIONS, ast.ClassDef)):
                for decorator in part.decorator_list:
                    yield from self._resolve(dotted(decorator), module)

    def _resolve(self, name: str, module: Module) -> Iterator[Function]:
        if not name:
            return
        defined = self._defined(module)
        for qualified in (name, f"{name}.__init__"):
            if qualified in defined:
                yield module.name, qualified
                return
        first, _, rest = name.partition(".")
        meaning = self._bound(module).get(first)
        if meaning is not None:
            yield from self._elsewhere(f"{meaning}.{rest}" if rest else meaning)

    def _elsewhere(self, name: str) -> Iterator[Function]:
        """``package.module.function`` split where the module ends; re-exports are followed."""
        module_name, function = name, ""
        while module_name and module_name not in self._analysis.tree.modules:
            module_name, _, last = module_name.rpartition(".")
            function = f"{last}.{function}" if function else last
        if module_name and function:
            yield from self._resolve(function, self._analysis.tree.modules[module_name])

    def _defined(self, module: Module) -> dict[str, ast.AST]:
        if module.name not in self._functions:
            self._functions[module.name] = dict(_definitions(module.tree, ""))
        return self._functions[module.name]

    def _bound(self, module: Module) -> dict[str, str]:
        if module.name not in self._names:
            self._names[module.name] = dict(_bindings(module))
        return self._names[module.name]


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that executing ``node``'s own body executes: not the bodies of functions inside it."""
    pending = [*ast.iter_child_nodes(node)]
    while pending:
        part = pending.pop()
        yield part
        if isinstance(part, ast.If):
            pending += [part.test, *(inner for body in executed_bodies(part) for inner in body)]
        elif not isinstance(part, (*_DEFINITIONS, ast.Lambda)):
            pending += ast.iter_child_nodes(part)


def _definitions(node: ast.AST, scope: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*_DEFINITIONS, ast.ClassDef)):
            name = f"{scope}.{child.name}" if scope else child.name
            if not isinstance(child, ast.ClassDef):
                yield name, child
            yield from _definitions(child, name)
        elif isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from _definitions(child, scope)


def _bindings(module: Module) -> Iterator[tuple[str, str]]:
    """Names that import statements bind, to the dotted names that they stand for."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (
                    alias.asname or alias.name.partition(".")[0],
                    (alias.name if alias.asname else alias.name.partition(".")[0]),
                )
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node.module or "", node.level, module.package)
            for alias in node.names:
                yield alias.asname or alias.name, f"{base}.{alias.name}"
