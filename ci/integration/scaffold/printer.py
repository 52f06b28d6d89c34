"""Python expressions as text, laid out as the farm's formatter would leave it.

``ruff format`` is a lint tool and not there when a library is integrated, so what is written into the
registry and into tests is laid out here: double quotes, 100 columns, and a call, tuple or dictionary that
does not fit is opened with one element a line and a trailing comma, which the formatter then keeps.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

WIDTH = 100
_INDENT = 4


def printed(node: ast.expr, *, indent: int = 0, before: str = "", after: str = "") -> str:
    """``before`` + the expression + ``after``, whose first line starts at column ``indent``.

    Lines after the first are indented absolutely; ``before`` is not repeated on them.
    """
    line = f"{before}{flat(node)}{after}"
    if indent + len(line) <= WIDTH:
        return line
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and before:
        return _in_parts(node.value, indent, before, after)
    return opened(node, indent=indent, before=before, after=after)


def opened(node: ast.expr, *, indent: int = 0, before: str = "", after: str = "") -> str:
    """As :func:`printed`, with every element of the outermost bracket on a line of its own."""
    brackets = _bracketed(node)
    if brackets is None or not brackets[1]:
        return f"{before}{flat(node)}{after}"
    start, elements, end = brackets
    inner = indent + _INDENT
    lines = [
        " " * inner + printed(element, indent=inner, before=label, after=",")
        for label, element in elements
    ]
    return "\n".join((f"{before}{start}", *lines, f"{' ' * indent}{end}{after}"))


def _in_parts(text: str, indent: int, before: str, after: str) -> str:
    """A long string as literals side by side in brackets, broken behind blanks."""
    room = WIDTH - indent - _INDENT - len('""')
    parts = [""]
    for word in re.findall(r"\S*\s*", text):
        if parts[-1] and len(quoted(parts[-1] + word)) - 2 > room:
            parts.append("")
        parts[-1] += word
    if len(parts) == 1:
        return f"{before}{quoted(text)}{after}"
    lines = [" " * (indent + _INDENT) + quoted(part) for part in parts]
    return "\n".join((f"{before}(", *lines, f"{' ' * indent}){after}"))


def _bracketed(node: ast.expr) -> tuple[str, list[tuple[str, ast.expr]], str] | None:
    """Opening text, labelled elements and closing text of what can be opened."""
    if isinstance(node, ast.Call):
        labelled = [("", item) for item in node.args]
        labelled += [(f"{item.arg}=" if item.arg else "**", item.value) for item in node.keywords]
        return f"{flat(node.func)}(", labelled, ")"
    if isinstance(node, ast.Dict):
        pairs = [
            (f"{flat(key)}: " if key else "**", value)
            for key, value in zip(node.keys, node.values, strict=True)
        ]
        return "{", pairs, "}"
    for kind, start, end in ((ast.Tuple, "(", ")"), (ast.List, "[", "]"), (ast.Set, "{", "}")):
        if isinstance(node, kind):
            return start, [("", item) for item in node.elts], end
    return None


def flat(node: ast.expr) -> str:
    """The expression on one line, with double quotes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return quoted(node.value)
    if isinstance(node, ast.Starred):
        return f"*{flat(node.value)}"
    if isinstance(node, ast.Attribute):
        return f"{flat(node.value)}.{node.attr}"
    brackets = _bracketed(node)
    if brackets is None:
        return ast.unparse(node)
    start, elements, end = brackets
    body = ", ".join(f"{label}{flat(element)}" for label, element in elements)
    lonely = isinstance(node, ast.Tuple) and len(elements) == 1
    return f"{start}{body}{',' if lonely else ''}{end}"


def quoted(text: str) -> str:
    """A string literal: in double quotes, unless single ones need fewer escapes."""
    body = repr("'\"" + text)[1:-1].removeprefix("\\'\"").replace("\\'", "'")
    if text.count('"') > text.count("'"):
        escaped = body.replace("'", "\\'")
        return f"'{escaped}'"
    escaped = body.replace('"', '\\"')
    return f'"{escaped}"'


def parsed(text: str) -> ast.expr:
    """The expression that ``text`` is. Raises :class:`SyntaxError`."""
    return ast.parse(text, mode="eval").body


def strings(values: Sequence[str]) -> str:
    """A tuple of string literals, as source text."""
    return flat(ast.Tuple([ast.Constant(value) for value in values], ast.Load()))
