"""``paddle.enable_compat`` in a library: it switches the proxy on for everybody, and not off again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import Analysis
from ci.integration.imports import dotted
from ci.integration.rule import Rule

_CALLS = frozenset({"enable_compat", "enable_torch_proxy", "paddle_triton_fun"})

RULE = Rule(
    name="enable-compat",
    summary="paddle.enable_compat is called where use_compat_guard belongs",
    guide=guide.COMPAT_GUARD,
)


def check(analysis: Analysis) -> Iterator[Finding]:
    """Every call in the library's modules; a setup.py runs in a process of its own and may."""
    for module in analysis.tree.own():
        if not module.holds(*(name.encode() for name in _CALLS)):
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and _name(node) in _CALLS:
                yield RULE.finding(
                    module.place,
                    f"{dotted(node.func)} leaves the proxy on after the library's import, for every module "
                    "that imports torch from then on",
                    "leave it to the loader of paddlefleet_ops, or use `with paddle.use_compat_guard(…)`",
                    line=node.lineno,
                    column=node.col_offset + 1,
                    library=analysis.tree.library,
                    subject=f"{module.name}:{dotted(node.func)}",
                )


def _name(call: ast.Call) -> str:
    return dotted(call.func).rpartition(".")[2]
