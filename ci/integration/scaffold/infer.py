"""What the sources of a library say about its declaration, read without running any of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from packaging.utils import canonicalize_name

from ci.errors import ConfigError
from ci.integration.analysis import Analysis, top
from ci.integration.imports import dotted
from ci.integration.requirements import Metadata, read_metadata
from ci.integration.scaffold.request import IntegrateRequest
from ci.integration.source_tree import find_packages, locate, read_tree
from ci.registry import EcosystemLibrary

# Distributions whose place Paddle takes: `import torch` is answered by it inside the compat guard.
_TORCH = frozenset({"torch", "paddlepaddle", "paddlepaddle-gpu"})
_DEVICE_SOURCES = ("*.cu", "*.cuh")


@dataclass(frozen=True)
class Note:
    """A value of the declaration that the user did not give, and where it was found."""

    field: str
    value: str
    origin: str


@dataclass(frozen=True)
class Extension:
    """An extension module that ``setup.py`` names: its dotted name, and the class that describes it."""

    name: str
    builder: str
    line: int

    @property
    def by_paddle(self) -> bool:
        """True when Paddle's (or torch's, through the proxy) builder makes it."""
        return self.builder in ("CUDAExtension", "CppExtension")


@dataclass(frozen=True)
class Facts:
    """What was read. ``notes`` name every value that was inferred, ``problems`` what cannot be."""

    module: str
    artifacts: tuple[tuple[str, str], ...]
    public_names: tuple[str, ...]
    scope: tuple[str, ...]
    depends_on: tuple[str, ...]
    build_requires: tuple[str, ...]
    run_requires: tuple[str, ...]
    compiled_by_paddle: bool
    compiled: bool
    device_code: bool
    nested: tuple[str, ...]
    notes: tuple[Note, ...]
    problems: tuple[str, ...]


def infer(request: IntegrateRequest, root: Path, declared: Sequence[EcosystemLibrary]) -> Facts:
    """Complete ``request`` from the sources in ``root``; what the user gave is never changed."""
    reader = _Reader(request, root, declared)
    return reader.facts()


class _Reader:
    """Reads one library; notes and problems are gathered on the way."""

    def __init__(
        self, request: IntegrateRequest, root: Path, declared: Sequence[EcosystemLibrary]
    ) -> None:
        self._request, self._root, self._declared = request, root, declared
        self._notes: list[Note] = []
        self._problems: list[str] = []

    def facts(self) -> Facts:
        module = self._request.module or self._module()
        artifacts = self._request.artifacts or self._artifacts(module)
        tops = tuple(dict.fromkeys((module, *(top(_stem(target)) for _, target in artifacts))))
        names = self._request.public_names or self._public_names(module)
        needed, depends_on = self._neighbours(tops)
        scope = self._request.scope or (module, *needed)
        if not self._request.scope and needed:
            self._note(
                "compat scope", " ".join(scope), "imports of it that import torch themselves"
            )
        return Facts(
            module=module,
            artifacts=tuple(artifacts),
            public_names=tuple(names),
            scope=tuple(dict.fromkeys((module, *scope))),
            depends_on=depends_on,
            build_requires=self._request.build_requires or self._build_requires(),
            run_requires=self._request.run_requires or self._run_requires(),
            compiled_by_paddle=any(item.by_paddle for item in self._extensions),
            compiled=bool(self._extensions),
            device_code=any(True for pattern in _DEVICE_SOURCES for _ in self._root.rglob(pattern)),
            nested=_nested(self._root),
            notes=tuple(self._notes),
            problems=tuple(self._problems),
        )

    def _note(self, field: str, value: str, origin: str) -> None:
        self._notes.append(Note(field, value, origin))

    @cached_property
    def _metadata(self) -> Metadata:
        return read_metadata(self._root)

    @cached_property
    def _extensions(self) -> tuple[Extension, ...]:
        return tuple(_extensions(self._root / "setup.py"))

    # --- module and artifacts ---------------------------------------------------------------------

    def _module(self) -> str:
        try:
            found = find_packages(self._root)
        except ConfigError as error:
            self._problems.append(f"{error.message}; say --module and --artifact")
            return ""
        wanted = {
            canonicalize_name(name)
            for name in (self._request.name, self._metadata.distribution)
            if name
        }
        named = [name for name in found if canonicalize_name(name) in wanted]
        chosen = named if len(named) == 1 else list(found)
        if len(chosen) != 1:
            self._problems.append(f"several packages: {', '.join(found)}; choose with --module")
            return ""
        (module,) = chosen
        self._note("module", module, _place(found[module], self._root))
        return module

    def _artifacts(self, module: str) -> list[tuple[str, str]]:
        if not module:
            return []
        path = locate(self._root, [module]).get(module)
        found = []
        if path is not None:
            found.append(module if path.is_dir() else f"{module}.py")
            self._note("artifact", found[0], _place(path, self._root))
        for extension in self._extensions:
            if "." in extension.name:
                continue  # it lies inside a package, which is an artifact as a whole
            if not extension.by_paddle:
                self._problems.append(
                    f"setup.py:{extension.line}: the file of the extension module {extension.name} "
                    "is named after the Python that builds it; say all --artifact"
                )
                continue
            for name in (f"{extension.name}.py", f"{extension.name}.so"):
                found.append(name)
                self._note("artifact", name, f"setup.py:{extension.line} ({extension.builder})")
        if not found:
            self._problems.append(f"nothing gives the module {module}; say --artifact")
        return [(name, name) for name in found]

    # --- public names -----------------------------------------------------------------------------

    def _public_names(self, module: str) -> tuple[str, ...]:
        path = locate(self._root, [module]).get(module) if module else None
        if path is None:
            if module:
                self._problems.append(f"the sources of {module} are not found; say --public-name")
            return ()
        file = path / "__init__.py" if path.is_dir() else path
        place = _place(file, self._root)
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError) as error:
            self._problems.append(f"{place}: not readable: {error}; say --public-name")
            return ()
        names, how = _offered(tree, module)
        if not names:
            self._problems.append(f"{place} offers no name; say --public-name")
        else:
            self._note("public names", " ".join(names), f"{place} ({how})")
        return names

    # --- scope and dependencies -------------------------------------------------------------------

    def _neighbours(self, modules: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Packages that need the proxy as well, and declared libraries that importing it imports."""
        tree = read_tree(self._request.name, self._root, locate(self._root, filter(None, modules)))
        imported = {top(name) for name in Analysis(tree).external_reached} - set(modules)
        known = {name for library in self._declared for name in library.compat_scope}
        depends_on = tuple(library.name for library in self._declared if library.module in imported)
        for name in depends_on:
            self._note("depends on", name, "an import of it")
        return tuple(sorted(imported & known)), depends_on

    # --- requirements -----------------------------------------------------------------------------

    def _build_requires(self) -> tuple[str, ...]:
        found = [item for item in self._metadata.build if item.name not in _TORCH]
        for item in found:
            self._note("build requirement", item.text, f"{item.place}:{item.line}")
        return tuple(dict.fromkeys(item.text for item in found))

    def _run_requires(self) -> tuple[str, ...]:
        found = [
            item
            for item in self._metadata.run
            if item.name not in _TORCH and not item.extra and not item.condition
        ]
        for item in found:
            self._note("run requirement", item.text, f"{item.place}:{item.line}")
        return tuple(dict.fromkeys(item.text for item in found))


def _stem(target: str) -> str:
    return Path(target).parts[0].split(".")[0] if target else ""


def _place(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path != root else "."


def _nested(root: Path) -> tuple[str, ...]:
    """The paths of the submodules inside the library."""
    file = root / ".gitmodules"
    lines = file.read_text("utf-8", "replace").splitlines() if file.is_file() else []
    pairs = (line.partition("=") for line in lines)
    return tuple(value.strip() for key, _, value in pairs if key.strip() == "path")


def _extensions(path: Path) -> Iterator[Extension]:
    """The extension modules that a ``setup.py`` names with a literal."""
    if not path.is_file():
        return
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted(node.func).endswith("Extension"):
            given: Mapping[str | None, ast.expr] = {item.arg: item.value for item in node.keywords}
            name = given.get("name", node.args[0] if node.args else None)
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield Extension(name.value, dotted(node.func).rpartition(".")[2], node.lineno)


def _offered(tree: ast.Module, module: str) -> tuple[tuple[str, ...], str]:
    """The public names of a module, and how they are known: ``__all__``, else what it defines."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
        ):
            listed = _strings(node.value)
            if listed:
                return listed, "__all__"
    names = [name for node in tree.body for name in _defined(node, module)]
    public = tuple(dict.fromkeys(name for name in names if not name.startswith("_")))
    return public, "what it defines"


def _strings(node: ast.expr) -> tuple[str, ...]:
    elements: Iterable[ast.expr] = node.elts if isinstance(node, (ast.List, ast.Tuple)) else ()
    return tuple(
        item.value
        for item in elements
        if isinstance(item, ast.Constant)
        and isinstance(item.value, str)
        and not item.value.startswith("_")
    )


def _defined(node: ast.stmt, module: str) -> list[str]:
    """The names that a top-level statement of the library itself gives."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.ImportFrom) and (node.level or top(node.module or "") == module):
        return [item.asname or item.name for item in node.names if item.name != "*"]
    return []
