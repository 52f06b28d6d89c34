"""Proxy, module or guard state that outlives the place that set it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import TORCH, Analysis, top
from ci.integration.imports import dotted
from ci.integration.rule import Rule
from ci.integration.source_tree import Module

RULE = Rule(
    name="leaking-state",
    summary="guard, proxy or module state can outlive the place that set it",
    guide=guide.NO_LEAKED_STATE,
)

_GUARDS = frozenset({"use_compat_guard", "use_torch_proxy_guard"})
_TABLES = frozenset({"GLOBAL_OVERRIDES", "TORCH_MODULES_CACHE", "TORCH_PROXY_BLOCKED_MODULES"})
_CHANGES = frozenset({"update", "setdefault", "pop", "clear", "add", "insert", "append", "extend"})
_WORDS = (
    b"compat_guard",
    b"torch_proxy",
    b"sys.modules",
    b"meta_path",
    *(t.encode() for t in _TABLES),
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def check(analysis: Analysis) -> Iterator[Finding]:
    """Guards that are entered by hand or held over a yield, and changes of shared tables not undone."""
    for module in analysis.tree.own():
        if not module.holds(*_WORDS):
            continue
        for leak in _leaks(module):
            yield RULE.finding(
                module.place,
                leak.why,
                leak.mend,
                line=leak.line,
                column=leak.column,
                library=analysis.tree.library,
                subject=f"{module.name}:{leak.function}:{leak.what}",
            )


@dataclass(frozen=True)
class _Leak:
    why: str
    mend: str
    what: str
    function: str
    line: int
    column: int


def _leaks(module: Module) -> Iterator[_Leak]:
    yield from _visit(module.tree, None, "", restored=False)


def _visit(
    node: ast.AST, function: _Function | None, name: str, *, restored: bool
) -> Iterator[_Leak]:
    """``restored``: a ``finally`` around, or the function's own, touches the same tables again."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inner = f"{name}.{child.name}" if name else child.name
            yield from _visit(child, child, inner, restored=_restores(child))
            continue
        if isinstance(child, ast.ClassDef):
            inner = f"{name}.{child.name}" if name else child.name
            yield from _visit(child, function, inner, restored=restored)
            continue
        if isinstance(child, (ast.With, ast.AsyncWith)):
            yield from _held_guard(child, function, name)
        elif isinstance(child, ast.Call):
            yield from _entered_by_hand(child, name, node, function)
        if not restored:
            yield from _changed_table(child, name)
        yield from _visit(child, function, name, restored=restored)


def _restores(function: _Function) -> bool:
    return any(
        isinstance(node, ast.Try)
        and any(_table_of(part) for last in node.finalbody for part in ast.walk(last))
        for node in ast.walk(function)
    )


def _table_of(node: ast.AST) -> str:
    """The shared table that an expression names: sys.modules, sys.meta_path, or one of the proxy's."""
    if not isinstance(node, (ast.Attribute, ast.Name)):
        return ""
    name = dotted(node)
    if name in ("sys.modules", "sys.meta_path"):
        return name
    last = name.rpartition(".")[2]
    return last if last in _TABLES else ""


def _changed_table(node: ast.AST, function: str) -> Iterator[_Leak]:
    table = ""
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.Delete)):
        targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else [node.target]
        for target in targets:
            if isinstance(target, ast.Subscript) and _concerns(target.value, [target.slice]):
                table = _table_of(target.value)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _CHANGES and _concerns(node.func.value, node.args):
            table = _table_of(node.func.value)
    elif isinstance(node, ast.Call):
        table = ""
    if isinstance(node, ast.Call) and dotted(node.func).endswith(
        "extend_torch_proxy_blocked_modules"
    ):
        table = "TORCH_PROXY_BLOCKED_MODULES"
    if table and isinstance(node, (ast.stmt, ast.expr)):
        yield _Leak(
            f"{table} is changed and not restored, so that what {function or 'the module'} did stays for "
            "the whole process",
            "restore it in a `finally`, or leave it alone",
            table,
            function,
            node.lineno,
            node.col_offset + 1,
        )


def _concerns(table: ast.expr, keys: list[ast.expr]) -> bool:
    """True for a change that concerns torch; entries of other modules in sys.modules are not judged."""
    name = _table_of(table)
    if name != "sys.modules":
        return bool(name)
    texts = [
        part.value
        for key in keys
        for part in ast.walk(key)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    return any(top(text) == TORCH for text in texts)


def _is_guard(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in _GUARDS


def _held_guard(
    node: ast.With | ast.AsyncWith, function: _Function | None, name: str
) -> Iterator[_Leak]:
    if function is None or not any(_is_guard(item.context_expr) for item in node.items):
        return
    decorators = {
        dotted(item.func if isinstance(item, ast.Call) else item).rpartition(".")[2]
        for item in function.decorator_list
    }
    if decorators & {"contextmanager", "asynccontextmanager", "fixture"}:
        return
    for part in ast.walk(node):
        if isinstance(part, (ast.Yield, ast.YieldFrom, ast.Await)):
            word = "an await" if isinstance(part, ast.Await) else "a yield"
            yield _Leak(
                f"{name} holds the guard over {word}, so that other code runs with the proxy on",
                "leave the guard before control goes elsewhere",
                word,
                name,
                part.lineno,
                part.col_offset + 1,
            )
            return


def _entered_by_hand(
    node: ast.Call, name: str, parent: ast.AST, function: _Function | None
) -> Iterator[_Leak]:
    if not _is_guard(node) or isinstance(parent, (ast.withitem, ast.Return)):
        return
    if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):  # a decorator
        return
    if isinstance(parent, ast.Call) and dotted(parent.func).rpartition(".")[2] == "enter_context":
        return
    if isinstance(parent, ast.Assign) and _used_in_with(parent, function):
        return
    yield _Leak(
        f"{dotted(node.func)} is called outside a with statement, so nothing makes sure that it ends",
        "use it in a with statement, or as a decorator",
        "guard",
        name,
        node.lineno,
        node.col_offset + 1,
    )


def _used_in_with(assignment: ast.Assign, function: _Function | None) -> bool:
    names = {dotted(target) for target in assignment.targets if isinstance(target, ast.Name)}
    return function is not None and any(
        isinstance(item.context_expr, ast.Name) and item.context_expr.id in names
        for node in ast.walk(function)
        if isinstance(node, (ast.With, ast.AsyncWith))
        for item in node.items
    )
