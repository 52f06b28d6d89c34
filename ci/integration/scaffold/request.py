"""What the user asks for, as a value, and everything that is wrong with it before anything is fetched."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from packaging.requirements import Requirement

from ci.integration.scaffold.printer import parsed
from ci.registry import build_utils

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PUBLIC_NAME = re.compile(r"[\w.]+(:[\w.]+)?")
_REQUIRES: Any = build_utils.Requires  # type: ignore[attr-defined]
_HINT_LIMIT = 90
_SHAPE = re.compile(r"->\s*((?:\[[\d,\s]*\]\s*,?\s*)+)\Z")


@dataclass(frozen=True)
class Exercise:
    """A call of a public name: ``arguments`` as Python text, ``shapes`` of the tensors that it returns.

    ``written`` is what the user wrote: ``NAME=ARGUMENTS`` or ``NAME=ARGUMENTS -> [3, 4]``. Arguments may
    use ``paddle`` and ``np``. Shapes that are not given are not checked.
    """

    written: str

    @property
    def name(self) -> str:
        """The public name that is called: ``name``, or ``package.module:name``."""
        return self.written.partition("=")[0].strip()

    @property
    def arguments(self) -> str:
        """The text between the call's brackets."""
        return _SHAPE.sub("", self.written.partition("=")[2]).strip()

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of every tensor of the result, in order."""
        match = _SHAPE.search(self.written.partition("=")[2])
        found = ast.literal_eval(f"({match.group(1).strip().rstrip(',')},)") if match else ()
        return tuple(tuple(shape) for shape in found)

    @property
    def call(self) -> ast.Call:
        """The call as syntax. Raises :class:`SyntaxError` for arguments that are no Python."""
        node = parsed(f"call({self.arguments})")
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            raise SyntaxError("more than the arguments of one call")
        return node

    @property
    def label(self) -> str:
        """The name as part of a test's name: ``fla.ops:chunk`` gives ``fla_ops_chunk``."""
        return re.sub(r"\W", "_", self.name)

    def problem(self) -> str:
        """What is wrong with it; empty when nothing is."""
        if not _PUBLIC_NAME.fullmatch(self.name):
            return f"--exercise {self.written!r}: write NAME=ARGUMENTS, such as 'scale=2.0, axis=1'"
        try:
            _ = self.call, self.shapes
        except (SyntaxError, ValueError) as error:
            return f"--exercise {self.written!r}: no arguments of a call: {error}"
        return ""


@dataclass(frozen=True)
class IntegrateRequest:
    """A library to integrate. Empty values are inferred from its sources.

    ``artifacts`` are pairs of source and target. ``nested`` are the submodules inside it that its build
    reads: ``None`` for none, an empty tuple for all. ``wrapper`` is the file of the upper-layer wrapper,
    relative to the repository, empty for none. ``keep`` leaves everything in place when the check fails.
    """

    name: str
    kind: str
    url: str
    revision: str = ""
    module: str = ""
    artifacts: tuple[tuple[str, str], ...] = ()
    public_names: tuple[str, ...] = ()
    scope: tuple[str, ...] = ()
    requires_cuda: str = ""
    requires_python: str = ""
    requires_capability: str = ""
    cpu_path: bool = False
    build_requires: tuple[str, ...] = ()
    run_requires: tuple[str, ...] = ()
    availability: str = ""
    hint: str = ""
    exercises: tuple[Exercise, ...] = ()
    wrapper: str = ""
    nested: tuple[str, ...] | None = None
    keep: bool = False

    @property
    def is_local(self) -> bool:
        """True when the sources come from a folder of this machine."""
        return self.url.startswith("file://") or not re.match(r"\w+://|[\w.-]+@[\w.-]+:", self.url)

    @property
    def declared_url(self) -> str:
        """The address as the declaration holds it: a folder as an absolute path."""
        if not self.is_local or self.url.startswith("file://"):
            return self.url
        return str(Path(self.url).expanduser().resolve())

    @property
    def submodule_path(self) -> str:
        """The submodule's path below ``packages/paddlefleet_ops``."""
        return f"third_party/{self.name}"


def request_problems(request: IntegrateRequest, kinds: tuple[str, ...]) -> list[str]:
    """Everything in the request that is wrong whatever the sources are."""
    return [
        *_name_problems(request, kinds),
        *_exercise_problems(request),
        *_place_problems(request),
        *_condition_problems(request),
    ]


def _name_problems(request: IntegrateRequest, kinds: tuple[str, ...]) -> Iterator[str]:
    if not _NAME.fullmatch(request.name):
        yield f"library name {request.name!r}: letters, digits, '.', '_' and '-' only"
    if request.kind not in kinds:
        yield f"unknown kind {request.kind!r}; there are: {', '.join(kinds)}"
    for option, value in (("--module", request.module), ("--availability", request.availability)):
        if value and not value.isidentifier():
            yield f"{option} {value!r} is no Python identifier"
    for name in request.scope:
        if not all(part.isidentifier() for part in name.split(".")):
            yield f"--scope {name!r} is no module name"
    for name in request.public_names:
        if not _PUBLIC_NAME.fullmatch(name):
            yield f"--public-name {name!r}: write NAME, or PACKAGE.MODULE:NAME"
    if len(request.hint) > _HINT_LIMIT or "\n" in request.hint:
        yield f"--hint has to be one line of at most {_HINT_LIMIT} characters"


def _exercise_problems(request: IntegrateRequest) -> Iterator[str]:
    yield from filter(None, (exercise.problem() for exercise in request.exercises))
    labels = [exercise.label for exercise in request.exercises]
    for label in sorted({label for label in labels if labels.count(label) > 1}):
        yield f"--exercise: {label} is exercised twice; one test is made for each name"


def _place_problems(request: IntegrateRequest) -> Iterator[str]:
    if not request.url:
        yield "--url: no address is given"
    elif not request.is_local and "@" in urlsplit(request.url).netloc and "http" in request.url[:5]:
        yield "--url holds a user or a password, which would be committed; use a credential helper"
    for source, target in request.artifacts:
        if not source or not target:
            yield f"--artifact {source}:{target}: write SOURCE or SOURCE:TARGET"
    wrapper = PurePosixPath(request.wrapper)
    if request.wrapper and (
        wrapper.is_absolute() or ".." in wrapper.parts or wrapper.suffix != ".py"
    ):
        yield f"--wrapper {request.wrapper!r}: a .py file, relative to the repository"


def _condition_problems(request: IntegrateRequest) -> Iterator[str]:
    for word, value in (
        ("cuda", request.requires_cuda),
        ("python", request.requires_python),
        ("capability", request.requires_capability),
    ):
        yield from _complaint(f"--requires-{word}", value, partial(_requires, word))
    for option, texts in (
        ("--build-requires", request.build_requires),
        ("--run-requires", request.run_requires),
    ):
        for text in texts:
            yield from _complaint(option, text, Requirement)


def _requires(word: str, condition: str) -> object:
    return _REQUIRES(**{word: condition})


def _complaint(option: str, text: str, read: Callable[[str], object]) -> Iterator[str]:
    try:
        read(text)
    except ValueError as error:  # InvalidRequirement is one
        yield f"{option} {text!r}: {str(error).splitlines()[0]}"
