"""Expressions as text: the formatter leaves them as they are, and Python reads the same expression."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.integration.scaffold.printer import flat, opened, parsed, printed, quoted

EXPRESSIONS = [
    *(f"f({'x' * length!r}, 1)" for length in range(74, 90)),
    "f()",
    "f(1)",
    "f(a, b=2, *c, **d)",
    "(1,)",
    "('only',)",
    "[]",
    "{}",
    "()",
    "{'a': 1, **b}",
    "{1, 2}",
    "paddle.to_tensor([1.0, 2.0], dtype='float32')",
    "f(-1, not x, a + b, lambda: 3, x[1:2])",
    f"f({', '.join(repr('word' * 5) for _ in range(8))})",
    f"f(g({', '.join(str(n) * 9 for n in range(12))}), key=({', '.join('abcdefgh' for _ in range(20))}))",
    f"{{'a': [{', '.join('1234567890' for _ in range(12))}], 'b': ()}}",
    f"({'x' * 120!r},)",
    f"f(a={'word and ' * 30!r}, b=1)",
    f"{{'key': {'paddle.ones([2, 3]), ' * 9!r}, 'other': {'x' * 120!r}}}",
    "f('it\\'s', \"say \\\"hi\\\"\", 'both \\' and \"', 'tab\\t', 'back\\\\slash', 'é')",
]


def formatted(text: str, path: Path) -> str:
    """What ruff makes of a file."""
    path.write_text(text, "utf-8")
    subprocess.run(
        [sys.executable, "-m", "ruff", "format", "-q", "--line-length", "100", "--isolated", str(path)],
        check=True,
    )  # fmt: skip
    return path.read_text("utf-8")


def test_the_formatter_changes_nothing(tmp_path: Path) -> None:
    pytest.importorskip(
        "ruff", reason="ruff belongs to the lint group, which is not installed here"
    )
    lines = []
    for number, text in enumerate(EXPRESSIONS):
        node = parsed(text)
        lines.append(printed(node, before=f"value_{number} = "))
        if isinstance(node, ast.Call) and (node.args or node.keywords):
            lines.append(opened(node, before=f"open_{number} = "))
    text = "\n".join(lines) + "\n"
    assert formatted(text, tmp_path / "printed.py") == text


@pytest.mark.parametrize("text", EXPRESSIONS)
@pytest.mark.parametrize("indent", [0, 4, 40])
def test_python_reads_the_same_expression(text: str, indent: int) -> None:
    node = parsed(text)
    for again in (flat(node), printed(node, indent=indent), opened(node, indent=indent)):
        assert ast.dump(parsed(again)) == ast.dump(node)


@pytest.mark.parametrize("text", EXPRESSIONS[16:28])
def test_lines_fit_where_they_can(text: str) -> None:
    lines = printed(parsed(text), indent=8, before="name=", after=",").splitlines()
    assert 8 + len(lines[0]) <= 100
    assert all(len(line) <= 100 for line in lines[1:])


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_a_literal_is_the_text(text: str) -> None:
    literal = quoted(text)
    assert ast.literal_eval(literal) == text
    assert literal[0] == ('"' if text.count('"') <= text.count("'") else "'")


def test_a_statement_is_no_expression() -> None:
    with pytest.raises(SyntaxError):
        parsed("x = 1")
