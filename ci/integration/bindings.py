"""What executing a module binds, and when: its import statements and names in the order of execution."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator


def events(body: Iterable[ast.stmt]) -> Iterator[ast.stmt | str]:
    """Import statements, and names that are bound, in the order of execution."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield from (event for event in events(node.body) if isinstance(event, ast.stmt))
            yield node.name
        else:
            yield from _names_bound(node)
            for part in ("body", "handlers", "orelse", "finalbody", "cases"):
                for inner in getattr(node, part, ()):
                    yield from events(
                        [inner] if isinstance(inner, ast.stmt) else getattr(inner, "body", ())
                    )


def _names_bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement itself stores, without the statements inside it."""
    pending: list[ast.AST] = [
        child
        for child in ast.iter_child_nodes(node)
        if not isinstance(child, (ast.stmt, ast.excepthandler))
    ]
    while pending:
        part = pending.pop()
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id
        if not isinstance(part, (ast.Lambda, ast.stmt)):
            pending += ast.iter_child_nodes(part)
