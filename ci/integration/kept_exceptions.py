"""Late imports that a library keeps on purpose, and what their documentation lacks.

The guide allows a late import whose module cannot be initialised under the proxy. A comment, or the
function's docstring, then says three things: why the import fails at module level, what triggers it,
and when it can go. A circular dependency is no such reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ci.integration.analysis import Analysis, LateImport
from ci.integration.imports import dotted
from ci.integration.source_tree import Module

Kind = Literal["plain", "incomplete", "kept"]
_GUARDS = ("use_compat_guard", "use_torch_proxy_guard")
_COMMENT_REACH = 12  # lines above an import in which a comment still belongs to it

# That a text speaks of the import at all; without it, other words are about something else.
_PUT_OFF = r"(?:\blaz(?:y|ily)\b|\bdefer\w*|\blate(?:r|ly)?\b|\bcircular|\bcycl\w+|延迟|惰性)"
_PLACED = r"(?:\bhere\b|\binside\b|\blocal(?:ly)?\b|\b(?:module|top)[- ](?:top|level)\b|局部|顶层)"
_IMPORT = r"(?:\bimport\w*|导入)"
_MARK_IN_DOCSTRING = re.compile(
    rf"{_IMPORT}.{{0,60}}?{_PUT_OFF}|{_PUT_OFF}.{{0,60}}?{_IMPORT}", re.IGNORECASE | re.DOTALL
)
_MARK = re.compile(
    rf"{_IMPORT}.{{0,60}}?(?:{_PUT_OFF}|{_PLACED})|(?:{_PUT_OFF}|{_PLACED}).{{0,60}}?{_IMPORT}",
    re.IGNORECASE | re.DOTALL,
)
_ASPECTS = {
    "the reason": re.compile(
        r"\bcauses?\b|\bbecause\b|\breasons?\b|\breflects?\b|\bfails?\b|\braises?\b|\bconflicts?\b"
        r"|\bbreaks?\b|\bcannot\b|\berror\b|原因|冲突|失败|报错|反射",
        re.IGNORECASE,
    ),
    "the trigger path": re.compile(
        r"\btrigger|\bcall path|\bfirst (?:call|use|launch|kernel)|\bonly (?:when|by|on|in)\b"
        r"|\breached (?:by|from|when)|触发|调用路径|调用时|首次",
        re.IGNORECASE,
    ),
    "the removal condition": re.compile(
        r"\bremov(?:e|ed|al|able)\b|\bdelet(?:e|ed)\b|\bdrop(?:ped)?\b|\buntil\b|\bno longer\b"
        r"|\bas soon as\b|\bonce\b.{0,60}\b(?:is|are|has|have)\b|删除|移除|去掉",
        re.IGNORECASE | re.DOTALL,
    ),
}
_CIRCULAR = re.compile(r"\bcircular|\bcycl(?:e|ic)|循环", re.IGNORECASE)
_WITHOUT_PROXY = re.compile(
    r"(?:needs?|uses?|depends? on|requires?) (?:no|neither|not the) (?:torch )?(?:compat|proxy)"
    r"|(?:does|do) not (?:need|use|depend on|require) (?:the |a )?(?:torch |compat )?(?:proxy|compat|context)"
    r"|without (?:the )?proxy|不依赖|不需要",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Documented:
    """A late import with what is written about it. ``missing`` are the aspects that are not there."""

    late: LateImport
    kind: Kind
    missing: tuple[str, ...]
    circular: bool
    says_without_proxy: bool
    opens_guard: bool

    @property
    def function(self) -> str:
        """The qualified name of the function that holds it."""
        return self.late.imported.function


def documented(analysis: Analysis) -> tuple[Documented, ...]:
    """Every late import that needs the proxy, with what is written about it."""
    known = analysis.notes.get("documented")
    if known is None:
        known = tuple(_documented(analysis, late) for late in analysis.late_imports)
        analysis.notes["documented"] = known
    return known  # type: ignore[return-value]


def _documented(analysis: Analysis, late: LateImport) -> Documented:
    functions = tuple(enclosing_functions(late.module, late.imported.line))
    text = _text(late, functions)
    missing = tuple(name for name, words in _ASPECTS.items() if not words.search(text))
    circular = bool(_CIRCULAR.search(text))
    guarded = _opens_guard(analysis, late, functions)
    return Documented(
        late=late,
        kind=_kind(text, missing, circular=circular, guarded=guarded),
        missing=missing,
        circular=circular,
        says_without_proxy=bool(_WITHOUT_PROXY.search(text)),
        opens_guard=guarded,
    )


def _kind(text: str, missing: tuple[str, ...], *, circular: bool, guarded: bool) -> Kind:
    if not missing and text:
        return "kept"
    if guarded:
        return "incomplete"
    if not text or circular or "the reason" in missing:
        return "plain"
    return "incomplete"


def _text(late: LateImport, functions: tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]) -> str:
    """The comments and docstrings that speak of the import, as one text."""
    line, lines = late.imported.line, late.module.lines
    first = functions[-1].lineno if functions else line
    blocks = [_comment(text) for text in lines[max(first, line - _COMMENT_REACH) - 1 : line]]
    texts = [" ".join(filter(None, blocks))]
    texts += [_comment_above(late.module, function) for function in functions]
    found = [text for text in texts if _MARK.search(text)]
    docstrings = (ast.get_docstring(function) or "" for function in functions)
    found += [text for text in docstrings if _MARK_IN_DOCSTRING.search(text)]
    return "\n".join(found)


def _comment(line: str) -> str:
    """The comment of a line; a ``#`` in a string would only add words, which does no harm."""
    return line.partition("#")[2].strip()


def _comment_above(module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    start = min([function.lineno, *(item.lineno for item in function.decorator_list)])
    found: list[str] = []
    for line in reversed(module.lines[: start - 1]):
        if not line.strip().startswith("#"):
            break
        found.insert(0, _comment(line))
    return " ".join(found)


def enclosing_functions(
    module: Module, line: int
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions around a line, the outermost first."""
    body: list[ast.AST] = [module.tree]
    while body:
        node = body.pop()
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt) and not isinstance(child, ast.excepthandler):
                continue
            if child.lineno <= line <= (child.end_lineno or child.lineno):
                if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield child
                body = [child]


def _opens_guard(
    analysis: Analysis,
    late: LateImport,
    functions: tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...],
) -> bool:
    """True when the call site opens a compat context: by itself, a decorator, or a helper that does."""
    names = {name.rpartition(".")[2] for name in late.imported.contexts}
    for function in functions:
        for decorator in function.decorator_list:
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            names.add(dotted(target).rpartition(".")[2])
    return bool(names & {*_GUARDS, *_helpers(analysis)})


def _helpers(analysis: Analysis) -> frozenset[str]:
    """Names of the library's functions whose text opens a guard."""
    known = analysis.notes.get("guard helpers")
    if known is None:
        known = frozenset(
            node.name
            for module in analysis.tree.own()
            if module.holds(*(name.encode() for name in _GUARDS))
            for node in ast.walk(module.tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _mentions_guard(node)
        )
        analysis.notes["guard helpers"] = known
    return known  # type: ignore[return-value]


def _mentions_guard(node: ast.AST) -> bool:
    return any(
        isinstance(part, ast.Call) and dotted(part.func).rpartition(".")[2] in _GUARDS
        for part in ast.walk(node)
    )
