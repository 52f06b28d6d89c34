"""What a library's own metadata requires, read without running any of its code.

Sources: ``pyproject.toml`` (PEP 518 ``[build-system]``, PEP 621 ``[project]``), ``setup.cfg``, ``setup.py``
by AST, and the ``requirements.txt`` that these refer to. A ``requirements.txt`` that no metadata refers to
counts only where nothing else says what the library needs: it is a developer's list as often as not.
"""

from __future__ import annotations

import ast
import configparser
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ci.integration.imports import dotted

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, order=True)
class RealRequirement:
    """One PEP 508 requirement. ``place`` is the file, relative to the library's folder, with its line.

    ``extra`` is the optional group that holds it, ``condition`` the ``if`` under which ``setup.py`` adds
    it; both are empty for what always holds.
    """

    text: str
    place: str
    line: int = 0
    extra: str = ""
    condition: str = ""

    @property
    def requirement(self) -> Requirement:
        """The text, parsed; it was valid when it was read."""
        return Requirement(self.text)

    @property
    def name(self) -> str:
        """The canonical name of the distribution (PEP 503)."""
        return canonicalize_name(self.requirement.name)


@dataclass(frozen=True, order=True)
class Unread:
    """A statement of requirements that cannot be read without running code, or at all, and why."""

    place: str
    line: int
    why: str


@dataclass(frozen=True)
class Metadata:
    """What a source folder says of itself; ``distribution`` is empty where no name is a literal."""

    distribution: str = ""
    run: tuple[RealRequirement, ...] = ()
    build: tuple[RealRequirement, ...] = ()
    unread: tuple[Unread, ...] = ()


@dataclass
class _Read:
    """What was found so far. ``says`` is true once some file stated the run-time requirements."""

    folder: Path
    distribution: str = ""
    run: list[RealRequirement] = field(default_factory=list)
    build: list[RealRequirement] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    says: bool = False

    def add(self, into: list[RealRequirement], found: Iterable[RealRequirement]) -> None:
        for item in found:
            problem = _problem(item.text)
            if problem:
                self.unread.append(Unread(item.place, item.line, problem))
            elif item not in into:
                into.append(item)


def read_metadata(folder: Path) -> Metadata:
    """The requirements of the library in ``folder``; a file that is not there says nothing."""
    read = _Read(folder)
    for name, reader in (
        ("pyproject.toml", _pyproject),
        ("setup.cfg", _setup_cfg),
        ("setup.py", _setup_py),
    ):
        path = folder / name
        if path.is_file():
            try:
                reader(path.read_text("utf-8"), read)
            except (SyntaxError, ValueError, configparser.Error) as error:
                line = int(getattr(error, "lineno", 0) or 0)
                read.unread.append(Unread(name, line, f"not readable: {error}"))
    if not read.says:
        read.add(read.run, _requirements_file(folder, "requirements.txt"))
    return Metadata(read.distribution, tuple(read.run), tuple(read.build), tuple(read.unread))


def _problem(text: str) -> str:
    try:
        Requirement(text)
    except InvalidRequirement as error:
        return f"{text!r} is no requirement: {str(error).splitlines()[0]}"
    return ""


# --- pyproject.toml -------------------------------------------------------------------------------


def _pyproject(text: str, read: _Read) -> None:
    data = tomllib.loads(text)
    project: Mapping[str, Any] = data.get("project", {})

    def found(texts: Iterable[str], extra: str = "") -> Iterator[RealRequirement]:
        for item in texts:
            yield RealRequirement(item, "pyproject.toml", _line_holding(text, item), extra)

    read.distribution = project.get("name", "")
    read.add(read.build, found(data.get("build-system", {}).get("requires", ())))
    read.add(read.run, found(project.get("dependencies", ())))
    for extra, texts in project.get("optional-dependencies", {}).items():
        read.add(read.run, found(texts, extra))
    dynamic = data.get("tool", {}).get("setuptools", {}).get("dynamic", {})
    files = dynamic.get("dependencies", {}).get("file", ())
    for name in (files,) if isinstance(files, str) else files:
        read.add(read.run, _requirements_file(read.folder, name))
    read.says = bool(files) or (bool(project) and "dependencies" not in project.get("dynamic", ()))


def _line_holding(text: str, item: str) -> int:
    """The line of a quoted ``item``; 0 where escapes or a table's form hide it."""
    lines = text.splitlines()
    quoted = (f'"{item}"', f"'{item}'")
    return next((at for at, line in enumerate(lines, 1) if any(q in line for q in quoted)), 0)


# --- setup.cfg and requirements.txt ---------------------------------------------------------------


def _setup_cfg(text: str, read: _Read) -> None:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(text)
    read.distribution = read.distribution or parser.get("metadata", "name", fallback="")

    def found(value: str, extra: str = "") -> Iterator[RealRequirement]:
        if value.strip().startswith("file:"):
            for name in value.strip()[len("file:") :].split(","):
                yield from _requirements_file(read.folder, name.strip())
            return
        for item in filter(None, (part.strip() for part in value.splitlines())):
            line = next((at for at, row in enumerate(text.splitlines(), 1) if item in row), 0)
            yield RealRequirement(item, "setup.cfg", line, extra)

    if parser.has_option("options", "install_requires"):
        read.says = True
        read.add(read.run, found(parser.get("options", "install_requires")))
    if parser.has_option("options", "setup_requires"):
        read.add(read.build, found(parser.get("options", "setup_requires")))
    if parser.has_section("options.extras_require"):
        for extra, value in parser.items("options.extras_require"):
            read.add(read.run, found(value, extra))


def _requirements_file(
    folder: Path, name: str, seen: frozenset[str] = frozenset()
) -> Iterator[RealRequirement]:
    """The requirements of a pip requirements file, with those of files that it includes by ``-r``."""
    path = folder / name
    if name in seen or not path.is_file():
        return
    for at, row in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        item = re.sub(r"(^|\s)#.*", "", row).strip()
        included = re.match(r"(?:-r|--requirement)[ =]\s*(\S+)", item)
        if included:
            yield from _requirements_file(folder, included.group(1), seen | {name})
        elif item and not item.startswith("-"):
            yield RealRequirement(re.split(r"\s--", item)[0].strip(), name, at)


# --- setup.py -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Binding:
    """A statement that gives a module-level name a value, or adds to it."""

    value: ast.expr
    condition: str
    adds: bool


def _setup_py(text: str, read: _Read) -> None:
    tree = ast.parse(text)
    bindings = _bindings(tree)
    for given in _setup_arguments(tree):
        name = given.get("name")
        while isinstance(name, ast.Name):
            name = bindings[name.id][0].value if bindings.get(name.id) else None
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            read.distribution = read.distribution or name.value
        for key, into in (("install_requires", read.run), ("setup_requires", read.build)):
            if key in given:
                _take(given[key], "", into, bindings, read)
        extras = given.get("extras_require")
        if isinstance(extras, ast.Dict):
            for label, value in zip(extras.keys, extras.values, strict=True):
                if isinstance(label, ast.Constant):
                    _take(value, str(label.value), read.run, bindings, read)


def _take(
    node: ast.expr,
    extra: str,
    into: list[RealRequirement],
    bindings: Mapping[str, list[_Binding]],
    read: _Read,
) -> None:
    """Add what an argument of ``setup`` lists; what only running it would tell is kept as unread."""
    values = _Values(bindings)
    values.visit(node, "")
    read.add(into, (replace(item, extra=extra) for item in values.found))
    computed = values.computed
    if into is read.run and computed and (read.folder / "requirements.txt").is_file():
        read.add(into, _requirements_file(read.folder, "requirements.txt"))
        computed = []
    read.says = read.says or into is read.run
    read.unread += [
        Unread("setup.py", at.lineno, f"computed: {ast.unparse(at)[:80]}") for at in computed
    ]


def _setup_arguments(tree: ast.Module) -> Iterator[Mapping[str, ast.expr]]:
    """The keyword arguments of calls of ``setup``, and of dictionaries that are passed to one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            given = {item.arg: item.value for item in node.keywords if item.arg}
            called = dotted(node.func).rpartition(".")[2]
            if called.endswith("setup") or (called == "dict" and _is_of_setup(given)):
                yield given
        elif isinstance(node, ast.Dict):
            literal = {
                str(key.value): value
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant)
            }
            if _is_of_setup(literal):
                yield literal


def _is_of_setup(given: Mapping[str, ast.expr]) -> bool:
    return "install_requires" in given or {"name", "packages"} <= given.keys()


def _bindings(tree: ast.Module) -> dict[str, list[_Binding]]:
    """Module-level names, with every statement that fills them, in order."""
    found: dict[str, list[_Binding]] = {}
    for node, condition in _statements(tree.body, ""):
        for name, value, adds in _bound(node):
            found.setdefault(name, []).append(_Binding(value, condition, adds))
    return found


def _statements(body: Iterable[ast.stmt], condition: str) -> Iterator[tuple[ast.stmt, str]]:
    for node in body:
        yield node, condition
        if isinstance(node, ast.If):
            test = ast.unparse(node.test)
            yield from _statements(node.body, _both(condition, test))
            yield from _statements(node.orelse, _both(condition, f"not ({test})"))
        elif isinstance(node, (ast.With, ast.Try)):
            yield from _statements(node.body, condition)


def _both(one: str, other: str) -> str:
    return " and ".join(filter(None, (one, other)))


def _bound(node: ast.stmt) -> Iterator[tuple[str, ast.expr, bool]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value, False
    elif isinstance(node, ast.AnnAssign) and node.value and isinstance(node.target, ast.Name):
        yield node.target.id, node.value, False
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, node.value, True
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node.value.args:
        name, _, method = dotted(node.value.func).rpartition(".")
        if method in ("append", "extend"):
            yield name, node.value.args[0], True


def _in_force(bindings: list[_Binding]) -> list[_Binding]:
    """The bindings from the last assignment that always happens on: it forgets the earlier ones."""
    starts = [at for at, item in enumerate(bindings) if not item.adds and not item.condition]
    return bindings[starts[-1] if starts else 0 :]


class _Values:
    """The literal texts of an expression, each with its condition, and what had to be computed."""

    def __init__(self, bindings: Mapping[str, list[_Binding]]) -> None:
        self._bindings = bindings
        self.found: list[RealRequirement] = []
        self.computed: list[ast.expr] = []

    def visit(self, node: ast.expr, condition: str, names: frozenset[str] = frozenset()) -> None:
        """Collect from ``node``; ``names`` are being followed already."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for item in filter(None, (line.strip() for line in node.value.splitlines())):
                self.found.append(RealRequirement(item, "setup.py", node.lineno, "", condition))
        elif isinstance(node, ast.Constant) and node.value is None:
            return
        elif isinstance(node, ast.IfExp):
            test = ast.unparse(node.test)
            self.visit(node.body, _both(condition, test), names)
            self.visit(node.orelse, _both(condition, f"not ({test})"), names)
        elif isinstance(node, ast.Name) and node.id in self._bindings and node.id not in names:
            for binding in _in_force(self._bindings[node.id]):
                inner = _both(condition, binding.condition)
                self.visit(binding.value, inner, names | {node.id})
        elif (parts := _parts(node)) is not None:
            for part in parts:
                self.visit(part, condition, names)
        else:
            self.computed.append(node)


def _parts(node: ast.expr) -> list[ast.expr] | None:
    """The parts of a list, a sum or an unpacking; ``None`` for anything else."""
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return list(node.elts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [node.left, node.right]
    return [node.value] if isinstance(node, ast.Starred) else None
