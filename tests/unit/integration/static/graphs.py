"""Random small packages whose modules import one another in every way that the language has."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

FORMS = (
    "import", "import as", "from package", "from package relative", "name", "name relative", "star",
    "import_module", "attribute", "attribute of package", "class", "try", "try package", "suppress",
    "late", "typing", "torch", "branches", "loop", "base class", "called", "table",
)  # fmt: skip
NAMES = ("A", "B", "_C")


@dataclass(frozen=True)
class Node:
    """A module. ``kind`` is module, package or namespace (a folder without ``__init__``).

    ``below_namespace``: attributes of a namespace package are not followed by the analysis.
    """

    name: str
    kind: str
    below_namespace: bool = False

    @property
    def package(self) -> str:
        """The package that contains it."""
        return self.name.rpartition(".")[0]

    @property
    def leaf(self) -> str:
        """The last part of its name."""
        return self.name.rpartition(".")[2]

    @property
    def place(self) -> str:
        """The path of its file."""
        path = self.name.replace(".", "/")
        return f"{path}/__init__.py" if self.kind == "package" else f"{path}.py"


@st.composite
def packages(draw: st.DrawFn) -> dict[str, str]:
    """The files of a package ``ROOT``; the word is to be replaced by a name of one's own."""
    nodes = [Node("ROOT", "package")]
    for number in range(draw(st.integers(3, 10))):
        holders = [node for node in nodes if node.kind != "module"]
        holder: Node = draw(st.sampled_from(holders))
        kind: str = draw(st.sampled_from(("module", "module", "package", "namespace")))
        below = holder.below_namespace or holder.kind == "namespace"
        nodes.append(Node(f"{holder.name}.m{number}", kind, below))
    real = [node for node in nodes if node.kind != "namespace"]
    bound = {node.name: draw(st.sets(st.sampled_from(NAMES))) for node in real}
    files = {}
    for node in real:
        lines: list[str] = []
        others = [other for other in real if other is not node]
        for _ in range(draw(st.integers(0, 5)) if others else 0):
            target: Node = draw(st.sampled_from(others))
            form: str = draw(st.sampled_from(FORMS))
            name: str = draw(st.sampled_from(sorted(bound[target.name]) or [""]))
            lines.append(statement(node, target, form, name, len(lines)))
        for name in sorted(bound[node.name]):
            lines.insert(draw(st.integers(0, len(lines))), f"{name} = object")
        exported = draw(st.booleans()) and node.kind == "package" and [*bound[node.name]]
        if exported:
            inner = [other.leaf for other in real if other.package == node.name][:1]
            lines.insert(0, f"__all__ = {sorted([*exported, *inner])}")
        files[node.place] = "\n".join(["import importlib, contextlib, typing", *lines, ""])
    return files


def statement(node: Node, target: Node, form: str, name: str, number: int) -> str:
    """A statement of ``node`` that imports ``target``; ``name`` is one that it binds, if any."""
    plain = f"import {target.name}"
    of_package = f"from {target.package} import {target.leaf}" if target.package else plain
    of_name = f"from {target.name} import {name} as n{number}" if name else plain
    alias = f"x{number}"
    as_alias = f"from {target.package} import {target.leaf} as {alias}"
    named = f"{plain} as {alias}"
    return {
        "import": plain,
        "import as": named,
        "from package": of_package,
        "from package relative": _relative(node, target.package, f"{target.leaf} as {alias}")
        or plain,
        "name": of_name,
        "name relative": (_relative(node, target.name, name) if name else "") or plain,
        "star": f"from {target.name} import *",
        "import_module": f"{alias} = importlib.import_module({target.name!r})",
        "attribute": f"{named}\nv{number} = {alias}.{name}" if name else plain,
        "attribute of package": (
            f"{as_alias}\nv{number} = [{alias}.{name}]" if name and target.package else of_package
        ),
        "class": f"class K{number}:\n    {of_name}",
        "try": f"try:\n    {of_name}\nexcept ImportError:\n    n{number} = None",
        "try package": f"try:\n    {of_package}\nexcept (ValueError, ImportError) as e:\n    raise",
        "suppress": f"with contextlib.suppress(ImportError):\n    {of_name}",
        "late": f"def f{number}():\n    {plain}",
        "typing": f"if typing.TYPE_CHECKING:\n    {of_name}\n    n{number} = object",
        "torch": "import torch.nn as nn",
        "branches": f"if __debug__:\n    {plain}\nelse:\n    {of_package}",
        "loop": f"for _ in range(2):\n    {of_name}",
        "base class": (
            f"{plain}\nclass D{number}({target.name}.{name}):\n    pass"
            if name and not target.below_namespace
            else plain
        ),
        "called": f"def _g{number}():\n    {of_package}\n_g{number}()\ndel _g{number}",
        "table": f"_T = [{target.name!r}]\nfor _m in _T:\n    importlib.import_module(_m)",
    }[form]


def _relative(node: Node, package: str, names: str) -> str:
    """``from ..a import names``, or nothing where the language has no such form."""
    if not package or not names:
        return ""
    here = node.name if node.kind == "package" else node.package
    base, dots = here, "."
    while package != base and not package.startswith(f"{base}."):
        base, dots = base.rpartition(".")[0], f"{dots}."
        if not base:
            return ""
    return f"from {dots}{package[len(base) + 1 :]} import {names}"
