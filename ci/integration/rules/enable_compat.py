"""``paddle.enable_compat`` in a library: it switches the proxy on for everybody, and not off again."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import Analysis, top
from ci.integration.imports import dotted
from ci.integration.modules import Module
from ci.integration.rule import Rule

_CALLS = frozenset({"enable_compat", "enable_torch_proxy", "paddle_triton_fun"})

RULE = Rule(
    name="enable-compat",
    summary="paddle.enable_compat is called where use_compat_guard belongs",
    guide=guide.COMPAT_GUARD,
)


def check(analysis: Analysis) -> Iterator[Finding]:
    """Every use in the library's modules; a setup.py runs in a process of its own and may."""
    for module in analysis.tree.own():
        if not module.holds(*(name.encode() for name in _CALLS)):
            continue
        names = {"paddle": "paddle", **dict(_of_paddle(module))}
        for node in ast.walk(module.tree):
            name = _meaning(node, names)
            if name.rpartition(".")[2] in _CALLS:
                assert isinstance(node, ast.expr)
                yield RULE.finding(
                    module.place,
                    f"{name} leaves the proxy on after the library's import, for every module that imports "
                    "torch from then on",
                    "leave it to the loader of paddlefleet_ops, or use `with paddle.use_compat_guard(…)`",
                    line=node.lineno,
                    column=node.col_offset + 1,
                    library=analysis.tree.library,
                    subject=f"{module.name}:{name}",
                )


def _of_paddle(module: Module) -> Iterator[tuple[str, str]]:
    """Names that the module's imports give to paddle and what is in it."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if top(alias.name) == "paddle" and alias.asname:
                    yield alias.asname, alias.name
        elif isinstance(node, ast.ImportFrom) and top(node.module or "") == "paddle":
            for alias in node.names if not node.level else ():
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _meaning(node: ast.AST, names: Mapping[str, str]) -> str:
    """The dotted name in paddle that an expression reads, ``""`` for any other."""
    if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
        return ""
    first, dot, rest = dotted(node).partition(".")
    return names[first] + dot + rest if first in names else ""
