"""Names that two libraries of one process both claim: top-level packages, registered operators."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ci.findings import Finding
from ci.integration import guide
from ci.integration.analysis import Analysis
from ci.integration.imports import dotted
from ci.integration.modules import Module
from ci.integration.rule import Rule

RULE = Rule(
    name="name-collision",
    summary="a top-level name or an operator name is claimed twice in one process",
    guide=guide.ONE_NAMESPACE,
)

_REGISTRARS = frozenset({"custom_op", "define", "triton_op", "register_op"})
_WORDS = (b"custom_op", b"torch.library", b"triton_op", b"Library(")


Branches = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Operator:
    """An operator that a module registers with torch, by its full name ``namespace::name``.

    ``branches`` are the compound statements around it, each with the branch that it is in.
    """

    name: str
    module: Module
    line: int
    column: int
    branches: Branches = ()

    def excludes(self, other: Operator) -> bool:
        """True when the two are in different branches of one ``if``, ``try`` or ``match``."""
        mine = dict(self.branches)
        return any(mine.get(at, branch) != branch for at, branch in other.branches)


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
    seen: dict[str, list[tuple[str, Operator]]] = {}
    for analysis in analyses:
        library = analysis.tree.library
        for operator in operators(analysis):
            before = seen.setdefault(operator.name, [])
            first = next(
                (item for item in before
                 if (len(analyses) == 1 or item[0] != library) and not item[1].excludes(operator)),
                None,
            )  # fmt: skip
            before.append((library, operator))
            if first is None:
                continue
            yield RULE.finding(
                operator.module.place,
                f"the operator {operator.name} is also registered by {first[0]} in "
                f"{first[1].module.place}:{first[1].line}",
                "give each library its own operator namespace",
                line=operator.line,
                column=operator.column,
                library=library,
                subject=operator.name,
            )


def _of_python(name: str) -> str:
    return "Python's standard library" if name in sys.stdlib_module_names else ""


def operators(analysis: Analysis) -> tuple[Operator, ...]:
    """The operators that the library registers by constant names, in the order of the text."""
    return analysis.once(_operators)


def _operators(analysis: Analysis) -> tuple[Operator, ...]:
    return tuple(operator for part in _by_module(analysis) for operator in part)


def _by_module(analysis: Analysis) -> Iterator[list[Operator]]:
    for module in analysis.tree.own():
        if not module.holds(*_WORDS):
            continue
        namespaces = dict(_libraries(module))
        found = [
            Operator(name, module, node.lineno, node.col_offset + 1, branches)
            for node, branches in _calls(module.tree)
            if (name := _operator_name(node, namespaces))
        ]
        yield sorted(found, key=lambda item: (item.line, item.column))


def _calls(tree: ast.Module) -> Iterator[tuple[ast.Call, Branches]]:
    pending: list[tuple[ast.AST, Branches]] = [(tree, ())]
    while pending:
        node, branches = pending.pop()
        if isinstance(node, ast.Call) and node.args:
            yield node, branches
        for child in ast.iter_child_nodes(node):
            branch = _branch_of(node, child)
            pending.append((child, (*branches, (id(node), branch)) if branch else branches))


def _branch_of(node: ast.AST, child: ast.AST) -> int:
    """Which of the branches that exclude one another ``child`` is in, from 1; 0 where there are none."""
    if isinstance(node, ast.If):
        return 2 if child in node.orelse else 1
    if isinstance(node, ast.Try):
        if isinstance(child, ast.ExceptHandler):
            return 2 + node.handlers.index(child)
        return 0 if child in node.finalbody else 1
    if isinstance(node, ast.Match) and isinstance(child, ast.match_case):
        return 1 + node.cases.index(child)
    return 0


def _libraries(module: Module) -> Iterator[tuple[str, str]]:
    """Variables that hold a ``torch.library.Library``, with its namespace."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.args:
            namespace = node.value.args[0]
            if dotted(node.value.func).rpartition(".")[2] != "Library":
                continue
            if isinstance(namespace, ast.Constant) and isinstance(namespace.value, str):
                yield from ((dotted(target), namespace.value) for target in node.targets)


def _operator_name(call: ast.Call, namespaces: Mapping[str, str]) -> str:
    holder, _, last = dotted(call.func).rpartition(".")
    first = call.args[0]
    if last not in _REGISTRARS or not isinstance(first, ast.Constant):
        return ""
    name = first.value.partition("(")[0].strip() if isinstance(first.value, str) else ""
    if last == "define" and holder in namespaces:
        return f"{namespaces[holder]}::{name}"
    return name if "::" in name else ""
