"""Proxy, module or guard state that outlives the place that set it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import TORCH, Analysis, top
from ci.integration.imports import dotted, leaves
from ci.integration.modules import Module
from ci.integration.rule import Rule

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
_ENTERS_AND_LEAVES = frozenset({"__enter__", "__exit__", "__aenter__", "__aexit__"})
_ENTER_CONTEXT = (".enter_context", ".enter_async_context")
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


_Here = tuple[ast.AST, "_Function | None", str, frozenset[str]]


def _leaks(module: Module) -> Iterator[_Leak]:
    """Each place is visited with its function, that one's name, and the tables that are restored there."""
    tables = _Tables(module)
    ended = frozenset(_ended_guards(module.tree))
    pending: list[_Here] = [(module.tree, None, "", tables.restored_in(module.tree))]
    while pending:
        node, function, name, restored = pending.pop()
        if isinstance(node, (ast.With, ast.AsyncWith)):
            yield from _held_guard(node, function, name)
        elif is_guard(node) and id(node) not in ended:
            yield _entered_by_hand(node, name)
        leak = tables.changed(node, name)
        if leak is not None and leak.what not in restored:
            yield leak
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                inner = tables.restored_in(child)
                if isinstance(node, ast.ClassDef) and child.name in _ENTERS_AND_LEAVES:
                    inner |= tables.restored_by(node)
                pending.append((child, child, _joined(name, child.name), inner))
            elif isinstance(child, ast.ClassDef):
                pending.append((child, function, _joined(name, child.name), restored))
            else:
                pending.append((child, function, name, restored))


def _joined(name: str, inner: str) -> str:
    return f"{name}.{inner}" if name else inner


class _Tables:
    """The tables that the process shares, by the names that a module has for them."""

    def __init__(self, module: Module) -> None:
        self._aliases = {
            alias.asname or alias.name: f"sys.{alias.name}"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ImportFrom) and node.module == "sys"
            for alias in node.names
        }

    def restored_in(self, block: ast.AST) -> frozenset[str]:
        """The tables that a ``finally`` of the block touches, functions inside it left out."""
        return frozenset(
            table
            for node in _own_nodes(block)
            if isinstance(node, ast.Try)
            for last in node.finalbody
            for part in ast.walk(last)
            if (table := self.name(part))
        )

    def restored_by(self, node: ast.ClassDef) -> frozenset[str]:
        """The tables that a context manager touches when it is left."""
        return frozenset(
            table
            for method in node.body
            if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef))
            and method.name in ("__exit__", "__aexit__")
            for part in ast.walk(method)
            if (table := self.name(part))
        )

    def name(self, node: ast.AST) -> str:
        """The table that an expression names: sys.modules, sys.meta_path, or one of the proxy's."""
        if not isinstance(node, (ast.Attribute, ast.Name)):
            return ""
        name = dotted(node)
        name = self._aliases.get(name, name)
        last = name.rpartition(".")[2]
        if name.endswith(("sys.modules", "sys.meta_path")):
            return f"sys.{last}"
        return last if last in _TABLES else ""

    def changed(self, node: ast.AST, function: str) -> _Leak | None:
        """The leak that a statement or a call is, where it changes a table and nothing restores it."""
        table = ""
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.Delete)):
            targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
            value = [] if isinstance(node, ast.Delete) else [node.value]
            for target in targets:
                inside = isinstance(target, ast.Subscript)
                of = target.value if isinstance(target, ast.Subscript) else target
                keys = [target.slice] if isinstance(target, ast.Subscript) else value
                if inside or isinstance(target, ast.Attribute) or isinstance(node, ast.AugAssign):
                    table = table or self._concerned(of, keys)
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
                table = self._concerned(node.func.value, [*node.args, *map(_value, node.keywords)])
            elif dotted(node.func).rpartition(".")[2] == "extend_torch_proxy_blocked_modules":
                table = "TORCH_PROXY_BLOCKED_MODULES"
        if not table or not isinstance(node, (ast.stmt, ast.expr)):
            return None
        return _Leak(
            f"{table} is changed and not restored, so that what {function or 'the module'} did stays for "
            "the whole process",
            "restore it in a `finally`, or leave it alone",
            table,
            function,
            node.lineno,
            node.col_offset + 1,
        )

    def _concerned(self, table: ast.expr, keys: list[ast.expr]) -> str:
        """The table, where its change concerns torch; other modules in sys.modules are not judged."""
        name = self.name(table)
        texts = [
            part.value
            for key in (keys if name == "sys.modules" else ())
            for part in ast.walk(key)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        ]
        return name if name != "sys.modules" or any(top(text) == TORCH for text in texts) else ""


def _value(keyword: ast.keyword) -> ast.expr:
    return keyword.value


def _own_nodes(block: ast.AST) -> Iterator[ast.AST]:
    """Everything in a block that runs with it: functions and lambdas inside are left out."""
    pending = [*ast.iter_child_nodes(block)]
    while pending:
        part = pending.pop()
        yield part
        if not isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            pending += ast.iter_child_nodes(part)


def is_guard(node: ast.AST) -> TypeGuard[ast.Call]:
    """True for a call that makes a guard."""
    return isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in _GUARDS


def _held_guard(
    node: ast.With | ast.AsyncWith, function: _Function | None, name: str
) -> Iterator[_Leak]:
    contexts = (leaf for item in node.items for leaf in leaves(item.context_expr))
    if function is None or not any(map(is_guard, contexts)):
        return
    decorators = {
        dotted(item.func if isinstance(item, ast.Call) else item).rpartition(".")[2]
        for item in function.decorator_list
    }
    if decorators & {"contextmanager", "asynccontextmanager", "fixture"}:
        return
    handed_over = [
        part
        for part in _own_nodes(node)
        if isinstance(part, (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith))
    ]
    if handed_over:
        part = min(handed_over, key=lambda item: (item.lineno, item.col_offset))
        word = "a yield" if isinstance(part, (ast.Yield, ast.YieldFrom)) else "an await"
        yield _Leak(
            f"{name} holds the guard over {word}, so that other code runs with the proxy on",
            "leave the guard before control goes elsewhere",
            word,
            name,
            part.lineno,
            part.col_offset + 1,
        )


def _entered_by_hand(node: ast.Call, name: str) -> _Leak:
    return _Leak(
        f"{dotted(node.func)} is called outside a with statement, so nothing makes sure that it ends",
        "use it in a with statement, or as a decorator",
        "guard",
        name,
        node.lineno,
        node.col_offset + 1,
    )


def _ended_guards(tree: ast.Module) -> Iterator[int]:
    """The guards that something ends, by the identity of their calls.

    A with statement, a decorator or an ExitStack does, a function hands its guard to its caller, and a
    variable is entered or left by name.
    """
    kept: list[tuple[str, ast.expr]] = []
    used: set[str] = set()
    for node in ast.walk(tree):
        ends = [*_ends(node)]
        used |= {dotted(leaf) for end in ends for leaf in leaves(end)}
        if isinstance(node, ast.Call) and dotted(node.func).endswith((".__exit__", ".__aexit__")):
            used.add(dotted(node.func).rpartition(".")[0])
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            kept += [(dotted(target), node.value) for target in targets]
        yield from (id(leaf) for end in ends for leaf in leaves(end))
    for name, value in kept:
        if name and name in used:
            yield from (id(leaf) for leaf in leaves(value))


def _ends(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions whose guard a node ends, or hands on."""
    if isinstance(node, ast.withitem):
        yield node.context_expr
    elif isinstance(node, ast.Lambda):
        yield node.body
    elif isinstance(node, ast.Return) and node.value is not None:
        yield node.value
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield from node.decorator_list
    elif isinstance(node, ast.Call) and dotted(node.func).endswith(_ENTER_CONTEXT):
        yield from node.args
