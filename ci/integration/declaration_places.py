"""Where a library is declared: the line of its ``EcosystemLibrary(`` call and of each of its fields.

Read from the text by AST, so that a finding about a declaration points at the line to change.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

DECLARING = "EcosystemLibrary"


@dataclass(frozen=True)
class DeclarationPlace:
    """``place`` is the file relative to the repository, ``line`` that of the call (0: not found)."""

    place: str
    line: int = 0
    fields: Mapping[str, int] = field(default_factory=dict)

    def line_of(self, name: str) -> int:
        """The line of a field, or of the call where the declaration leaves the field out."""
        return self.fields.get(name, self.line)


def declaration_places(source: str, place: str) -> dict[str, DeclarationPlace]:
    """The declarations of a Python text by library name.

    A call whose name is no literal is left out. Raises :class:`SyntaxError` for a text that is no
    Python.
    """
    found: dict[str, DeclarationPlace] = {}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or _called(node) != DECLARING:
            continue
        fields = {item.arg: item for item in node.keywords if item.arg}
        name = fields["name"].value if "name" in fields else next(iter(node.args), None)
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            lines = {key: item.value.lineno for key, item in fields.items()}
            found.setdefault(name.value, DeclarationPlace(place, node.lineno, lines))
    return found


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
