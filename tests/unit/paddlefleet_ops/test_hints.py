"""What messages tell the user to do can be done: the functions, fields and commands in them exist."""

from __future__ import annotations

import ast
import dataclasses
import json
import re

import pytest

from ci.registry import MATRIX, PACKAGE_ROOT, EcosystemLibrary, Target, build_manifest, build_utils

FUNCTION = re.compile(r"\bis_\w+_available\b")
LIBRARIES = build_utils.all_libs()
TARGET = Target("13.0", "3.12", ("9.0",))


def manifest(part, libraries, only):
    """The manifest of a wheel of ``libraries`` that holds ``only``."""
    values = build_manifest.build_manifest(
        cell_id="cu130-cp312",
        target=TARGET,
        selection=build_utils.select_libs(libraries, TARGET, only),
        sources={
            item.name: build_manifest.SourceRecord("", "", "", "", False) for item in libraries
        },
        toolchain={},
        version="0",
        not_publishable_because=(),
    )
    return part("_manifest").parse_manifest(json.dumps(values))


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda item: item.name)
@pytest.mark.parametrize("in_wheel", [True, False])
def test_every_function_in_a_message_exists_in_every_wheel_of_the_set(part, library, in_wheel):
    libraries = build_utils.get_libs(library.library_set)
    found = manifest(part, libraries, [library.name] if in_wheel else [])
    registry = part("_loader").Registry("paddlefleet_ops")
    functions = part("_loader").availability_functions(found, registry)
    message = part("_blocker").blocked_message(
        f"paddlefleet_ops.{library.module}",
        f"paddlefleet_ops.is_{library.availability}_available",
        ["a reason"],
        library.hint,
        failed=False,
    )
    named = set(FUNCTION.findall(message))
    assert f"is_{library.availability}_available" in named
    assert named <= set(functions), named - set(functions)
    # A hint is about its own library: another one may be missing here as well.
    assert set(FUNCTION.findall(library.hint)) <= {f"is_{library.availability}_available"}


def test_every_library_has_a_hint_that_names_its_function():
    without = [item.name for item in LIBRARIES if not FUNCTION.search(item.hint)]
    assert without == []
    assert len({item.availability for item in LIBRARIES}) == len(LIBRARIES)


def texts_of(name):
    tree = ast.parse((PACKAGE_ROOT / "src" / "paddlefleet_ops" / name).read_text("utf-8"))
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
    ]


def test_every_field_of_a_declaration_in_a_mend_exists():
    fields = {field.name for field in dataclasses.fields(EcosystemLibrary)}
    texts = " ".join([*texts_of("_causes.py"), *texts_of("_loader.py")])
    named = set(re.findall(r"(?:to|correct) (\w+_\w+) in", texts))
    assert named == {"compat_scope", "run_requires", "public_names"}
    assert named <= fields


def test_the_session_that_a_message_names_is_one_of_the_matrix():
    named = {
        session
        for path in (PACKAGE_ROOT / "src" / "paddlefleet_ops").glob("*.py")
        for text in texts_of(path.name)
        for session in re.findall(r"nox -s (wheel-cu\d+)", text)
    }
    assert named
    cudas = re.findall(r'(?m)^version = "([\d.]+)"$', MATRIX.read_text("utf-8"))
    assert named <= {f"wheel-cu{cuda.replace('.', '')}" for cuda in cudas}


def test_hints_and_flags_have_the_names_that_paddlefleet_imports(site):
    """``from paddlefleet_ops import CUDNN_FRONTEND_HINT`` is how PaddleFleet's layers above take them."""
    site.add("good", {"good/__init__.py": "used = 1"}, public_names=["used"], hint="go on")
    site.add("high", requires={"cuda": ">=99", "python": "", "capability": "", "cpu_path": False})
    site.leave_out("absent", "not asked for")
    names = "GOOD_HINT, ABSENT_HINT, _GOOD_AVAILABLE, _HIGH_AVAILABLE, _ABSENT_AVAILABLE"
    found = site.result(f"from paddlefleet_ops import {names}\nresult = [{names}]")
    assert found == ["go on", "build it", True, False, False]
