"""Names that two libraries of one process both claim: top-level packages, registered operators."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import Analysis
from ci.integration.imports import dotted
from ci.integration.rule import Rule
from ci.integration.source_tree import Module

RULE = Rule(
    name="name-collision",
    summary="a top-level name or an operator name is claimed twice in one process",
    guide=guide.ONE_NAMESPACE,
)

_REGISTRARS = frozenset({"custom_op", "define", "triton_op", "register_op"})
_WORDS = (b"custom_op", b"torch.library", b"triton_op", b"Library(")


@dataclass(frozen=True)
class Operator:
    """An operator that a module registers with torch, by its full name ``namespace::name``."""

    name: str
    module: Module
    line: int
    column: int


def check(analysis: Analysis) -> Iterator[Finding]:
    """Top-level names that others have, and operators that the library itself registers twice."""
    tree = analysis.tree
    for name in tree.packages:
        owner = tree.taken.get(name) or _of_python(name)
        if owner:
            place = next((m.place for m in tree.own() if m.name == name), name)
            yield RULE.finding(
                place,
                f"the top-level name {name} is also that of {owner}; sys.modules holds one of them",
                "rename the package in the fork, or its target in the declaration's Artifact",
                line=1,
                library=tree.library,
                subject=name,
            )
    yield from between([analysis])


def between(analyses: Sequence[Analysis]) -> Iterator[Finding]:
    """Operators that are registered twice, within a library or by two of them."""
    first: dict[str, tuple[str, Operator]] = {}
    for analysis in analyses:
        for operator in operators(analysis):
            library = analysis.tree.library
            seen = first.setdefault(operator.name, (library, operator))
            if seen[1] is operator or (len(analyses) > 1 and seen[0] == library):
                continue
            yield RULE.finding(
                operator.module.place,
                f"the operator {operator.name} is also registered by {seen[0]} in "
                f"{seen[1].module.place}:{seen[1].line}",
                "give each library its own operator namespace",
                line=operator.line,
                column=operator.column,
                library=library,
                subject=operator.name,
            )


def _of_python(name: str) -> str:
    return "Python's standard library" if name in sys.stdlib_module_names else ""


def operators(analysis: Analysis) -> Iterator[Operator]:
    """The operators that the library registers by constant names."""
    for module in analysis.tree.own():
        if not module.holds(*_WORDS):
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and node.args:
                name = _operator_name(node)
                if name:
                    yield Operator(name, module, node.lineno, node.col_offset + 1)


def _operator_name(call: ast.Call) -> str:
    first = call.args[0]
    if dotted(call.func).rpartition(".")[2] not in _REGISTRARS:
        return ""
    if isinstance(first, ast.Constant) and isinstance(first.value, str) and "::" in first.value:
        return first.value.partition("(")[0]
    return ""
