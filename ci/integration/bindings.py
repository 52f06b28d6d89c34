"""The names that executing a module binds at its top level."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ci.integration.imports import verdict_of


def names_bound(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Every name that ``body`` may bind; ``*`` for a star import."""
    pending = [body]
    while pending:
        for node in pending.pop():
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield node.name
            else:
                yield from names_stored(node)
                pending += executed_bodies(node)


def executed_bodies(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The blocks inside a compound statement that may be executed: not those for type checkers only."""
    if isinstance(node, ast.If):
        verdict = verdict_of(node.test)
        if verdict not in ("typing", "main"):
            yield node.body
        if verdict not in ("not typing", "true"):
            yield node.orelse
        return
    for part in ("body", "handlers", "orelse", "finalbody", "cases"):
        inner = getattr(node, part, None) or []
        if inner and isinstance(inner[0], ast.stmt):
            yield inner
        else:
            yield from (item.body for item in inner)


def names_stored(node: ast.stmt) -> Iterator[str]:
    """The names that a statement itself stores, without the statements inside it."""
    pending: list[ast.AST] = [
        child
        for child in ast.iter_child_nodes(node)
        if not isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case))
    ]
    while pending:
        part = pending.pop()
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id
        if not isinstance(part, (ast.Lambda, ast.stmt)):
            pending += ast.iter_child_nodes(part)
