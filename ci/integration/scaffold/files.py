"""Which files integrating a library makes, and their text, rendered from the templates.

A rendered file says so in its first line, with the hash of what follows, so that whoever removes the
library can tell a file that was edited since, without any record kept elsewhere.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ci.integration.scaffold.printer import opened, parsed, printed, quoted, strings
from ci.integration.scaffold.request import Exercise
from ci.registry import EcosystemLibrary

SINGLE_CARD = "tests/single_card_tests/custom_ops"
MULTI_CARD = "tests/multi_card_tests/moe"
MULTI_CARD_GPUS = 2
_MARK = "# Rendered by `nox -s integrate -- {name}`, content {digest}"
_MARK_LINE = re.compile(r"# Rendered by `nox -s integrate -- ([\w.-]+)`, content ([0-9a-f]{16})\n")


@dataclass(frozen=True)
class Marked:
    """What the first line of a rendered file says: its library, and whether it was edited since."""

    library: str
    edited: bool


def read_mark(text: str) -> Marked | None:
    """The mark of a text; ``None`` when it was not rendered by ``integrate``."""
    match = _MARK_LINE.match(text)
    if match is None:
        return None
    return Marked(match.group(1), _digest(text[match.end() :]) != match.group(2))


def mark_of(library: str) -> str:
    """The part of the first line that every file rendered for ``library`` begins with."""
    return _MARK.format(name=library, digest="")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def functional_test(library: EcosystemLibrary) -> str:
    """The path of the single-card test."""
    return f"{SINGLE_CARD}/test_{library.availability}.py"


def precision_test(library: EcosystemLibrary) -> str:
    """The path of the test against an oracle; empty for a kind that has none."""
    if library.kind != "cuda_extension":
        return ""
    return f"{SINGLE_CARD}/test_{library.availability}_precision.py"


def multi_card_test(library: EcosystemLibrary) -> str:
    """The path of the multi-card test; empty for a kind that has none."""
    if library.kind != "ep_comm":
        return ""
    return f"{MULTI_CARD}/test_{library.availability}_round_trip.py"


def derived_paths(library: EcosystemLibrary) -> tuple[str, ...]:
    """The test files of a library: their names follow from its declaration."""
    found = (functional_test(library), precision_test(library), multi_card_test(library))
    return tuple(filter(None, found))


def rendered_files(
    library: EcosystemLibrary, exercises: Sequence[Exercise], wrapper: str
) -> dict[str, str]:
    """Path (relative to the repository) to text of every file that is made for ``library``."""
    values = {
        "library": library,
        "available": f"is_{library.availability}_available",
        "guard": _guard(library),
        "exercises": [_shown(library, exercise) for exercise in exercises],
        "public_names": _public_names(library),
        "gpus": MULTI_CARD_GPUS,
        "instead": library.hint.rpartition("; ")[2],
    }
    wanted = {
        functional_test(library): "functional_test.py.j2",
        precision_test(library): "precision_test.py.j2",
        multi_card_test(library): "multi_card_test.py.j2",
        wrapper: "wrapper.py.j2",
    }
    return {
        path: _rendered(library.name, template, {**values, "path": path})
        for path, template in wanted.items()
        if path
    }


def _rendered(name: str, template: str, values: dict[str, Any]) -> str:
    body = _templates().get_template(template).render(values)
    return _MARK.format(name=name, digest=_digest(body)) + "\n" + body


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("ci.integration.scaffold"),
        autoescape=False,  # noqa: S701 - Python is rendered, not HTML
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )


def _guard(library: EcosystemLibrary) -> str:
    """The mark that skips a test where the loader blocked the library, with the loader's reason."""
    blocked = quoted(f"paddlefleet_ops.{library.module}")
    mark = (
        f"pytest.mark.skipif(not paddlefleet_ops.is_{library.availability}_available(), "
        f'reason=paddlefleet_ops.blocked_import_messages.get({blocked}, ""))'
    )
    return opened(parsed(mark))


def _public_names(library: EcosystemLibrary) -> str:
    """The statement that lists the public names as paths below the package."""
    listed = strings([_dotted(library, name) for name in library.public_names])
    return printed(parsed(listed), before="PUBLIC_NAMES = ")


@dataclass(frozen=True)
class _Shown:
    """An exercise as the templates show it: statements that are laid out already."""

    label: str
    name: str
    checked: str
    call: str
    given: str
    shapes: str


def _shown(library: EcosystemLibrary, exercise: Exercise) -> _Shown:
    called = f"paddlefleet_ops.{_dotted(library, exercise.name)}"
    call = parsed(f"{called}({exercise.arguments})")
    given = parsed(f"given({exercise.arguments})")
    check = parsed(f"check({quoted(exercise.name)}, {called}, *arguments, **options)")
    return _Shown(
        label=exercise.label,
        name=exercise.name,
        checked=printed(check, indent=4),
        call=printed(call, indent=4, before="result = "),
        given=printed(given, indent=4, before="arguments, options = "),
        shapes=repr([list(shape) for shape in exercise.shapes]) if exercise.shapes else "",
    )


def _dotted(library: EcosystemLibrary, public_name: str) -> str:
    """A public name as a path below the package: ``fla.ops.kda.chunk_kda``."""
    module, _, attribute = public_name.rpartition(":")
    return f"{module or library.module}.{attribute}"
