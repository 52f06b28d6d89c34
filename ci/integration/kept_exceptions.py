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
from ci.integration.modules import Module

Kind = Literal["plain", "incomplete", "kept"]
_GUARDS = ("use_compat_guard", "use_torch_proxy_guard")
_COMMENT_REACH = 12  # lines above an import in which a comment still belongs to it

# That a text speaks of the import at all; without it, other words are about something else.
_PUT_OFF = r"(?:\blaz(?:y|ily)\b|\bdefer\w*|\blate(?:r|ly)?\b|\bcircular|\bcycl\w+|延迟|惰性)"
_PLACED = r"(?:\bhere\b|\binside\b|\blocal(?:ly)?\b|\b(?:module|top)[- ](?:top|level)\b|局部|顶层)"
_IMPORT = r"(?:(?<![A-Za-z0-9_])import\w*|导入)"  # also right after a Chinese character
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
_CIRCULAR = re.compile(
    r"(?<!\bno )(?<!\bnot a )(?:\bcircular|\bcyclic\b|\b(?:import|dependency) cycles?\b"
    r"|循环(?:导入|依赖|引用|\s*import))",
    re.IGNORECASE,
)
# What may stand between a comment and the import that it is about.
_BETWEEN = re.compile(
    r"\s*(?:(?:global|nonlocal|from|import)\b|.*compat_guard|.*torch_proxy|.*:\s*\Z)"
)
_PLAIN_COMMENT = re.compile(r"""(?:[^'"#]|'[^']*'|"[^"]*")*#(.*)""")
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
    return analysis.once(_all_documented)


def _all_documented(analysis: Analysis) -> tuple[Documented, ...]:
    return tuple(_documented(analysis, late) for late in analysis.late_imports)


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
    if circular:
        return "plain"
    if not missing and text:
        return "kept"
    if guarded:
        return "incomplete"
    return "plain" if not text or "the reason" in missing else "incomplete"


def _text(late: LateImport, functions: tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]) -> str:
    """The comments and docstrings that speak of the import, as one text.

    A comment that leads to the import speaks of it; another one nearby only where it says so.
    """
    found = [text for text, leads in _blocks(late, functions) if leads or _MARK.search(text)]
    above = (_comment_above(late.module, function) for function in functions)
    found += [text for text in above if _MARK.search(text)]
    docstrings = (ast.get_docstring(function) or "" for function in functions)
    found += [text for text in docstrings if _MARK_IN_DOCSTRING.search(text)]
    return "\n".join(found)


def _blocks(
    late: LateImport, functions: tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]
) -> Iterator[tuple[str, bool]]:
    """The comments above an import, nearest first, and whether only what belongs to it is between."""
    line, lines = late.imported.line, late.module.lines
    first = max(functions[-1].lineno if functions else line, line - _COMMENT_REACH)
    if not any("#" in text for text in lines[first - 1 : line]):
        return
    inside = _lines_in_strings(functions)
    yield _trailing(lines[line - 1]), True
    block: list[str] = []
    leads = True
    for number in range(line - 1, first - 1, -1):
        text = lines[number - 1]
        if text.lstrip().startswith("#") and number not in inside:
            block.insert(0, text.lstrip(" \t#:"))
            continue
        if block:
            yield " ".join(block), leads
            block = []
        leads = leads and number not in inside and _BETWEEN.match(text) is not None
        if number not in inside:
            yield _trailing(text), leads
    yield " ".join(block), leads


def _lines_in_strings(
    functions: tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...],
) -> frozenset[int]:
    """The lines that begin inside a string."""
    return frozenset(
        number
        for node in (ast.walk(functions[-1]) if functions else ())
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and node.end_lineno != node.lineno
        for number in range(node.lineno + 1, (node.end_lineno or node.lineno) + 1)
    )


def _trailing(line: str) -> str:
    """The comment at the end of a line of code."""
    found = _PLAIN_COMMENT.match(line)
    return found[1].strip() if found else ""


def _comment_above(module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    start = min([function.lineno, *(item.lineno for item in function.decorator_list)])
    found: list[str] = []
    for line in reversed(module.lines[: start - 1]):
        if not line.strip().startswith("#"):
            break
        found.insert(0, line.lstrip(" \t#:"))
    return " ".join(found)


def enclosing_functions(
    module: Module, line: int
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions around a line, the outermost first."""
    body: list[ast.AST] = [module.tree]
    while body:
        for child in ast.iter_child_nodes(body.pop()):
            if isinstance(child, ast.match_case):
                body.append(child)
                continue
            if not isinstance(child, (ast.stmt, ast.excepthandler)):
                continue
            if child.lineno <= line <= (child.end_lineno or child.lineno):
                if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield child
                body.append(child)


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
    if names & {*_GUARDS, *analysis.once(_helpers)}:
        return True
    inside = functions[-1] if functions else late.module.tree
    return bool(names) and any(names & held for held in _held(inside, late.module))


def _held(function: ast.AST, module: Module) -> Iterator[set[str]]:
    """Names of contexts that hold a guard: variables that got one, an ExitStack that entered one."""
    if not module.holds(*(name.encode() for name in _GUARDS)):
        return
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and _mentions_guard(node.value):
            yield {dotted(target).rpartition(".")[2] for target in node.targets}
        elif isinstance(node, ast.Call) and _mentions_guard(node) and _enters(node):
            yield {"ExitStack", "AsyncExitStack"}


def _enters(call: ast.Call) -> bool:
    return dotted(call.func).rpartition(".")[2] in ("enter_context", "enter_async_context")


def _helpers(analysis: Analysis) -> frozenset[str]:
    """Names of the library's functions and classes whose text opens a guard."""
    return frozenset(
        node.name
        for module in analysis.tree.own()
        if module.holds(*(name.encode() for name in _GUARDS))
        for node in ast.walk(module.tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        and _mentions_guard(node)
    )


def _mentions_guard(node: ast.AST) -> bool:
    return any(
        isinstance(part, ast.Call) and dotted(part.func).rpartition(".")[2] in _GUARDS
        for part in ast.walk(node)
    )
