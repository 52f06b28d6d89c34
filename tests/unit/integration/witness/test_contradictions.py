"""What was imported, held against what static analysis expected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ci.findings import Finding
from ci.integration.witness import (
    Caller,
    Failure,
    ImportedModule,
    LateImport,
    StaticAnswer,
    WitnessRequest,
    WitnessResult,
    contradictions,
)

REQUEST = WitnessRequest((Path("/built"),), "seeded", ("seeded",), ("seeded", "triton"))
CALLER = Caller("/built/seeded/ops.py", 9, "run", "seeded.ops", "library")
LATE_TORCH = LateImport("torch", "exercise run", CALLER, "failed")
LATE_MODULE = LateImport("seeded.tail", "exercise run", CALLER, "module")
TORCH_OF_TAIL = replace(LATE_TORCH, within="seeded.tail")
RESULT = WitnessResult(
    REQUEST,
    Path("witness.log"),
    "end",
    imported=(
        ImportedModule("seeded", "/built/seeded/__init__.py"),
        ImportedModule(
            "seeded.ops",
            "/built/seeded/ops.py",
            Caller("/built/seeded/__init__.py", 4, "<module>", "seeded", "library"),
        ),
        ImportedModule("seeded._core", "/built/seeded/_core.so"),
        ImportedModule("triton", "/site-packages/triton/__init__.py"),
    ),
)
EAGER = frozenset({"seeded", "seeded.ops"})
PLACES = {
    "seeded": "src/seeded/__init__.py",
    "seeded.ops": "src/seeded/ops.py",
    "seeded.gone": "src/g.py",
}


def told(static: StaticAnswer, result: WitnessResult = RESULT) -> list[Finding]:
    found = list(contradictions(static, result, "Seeded", PLACES))
    assert {finding.rule for finding in found} <= {"static-and-run-time-disagree"}
    return found


def test_agreement_is_silent() -> None:
    """Compiled modules, and other packages of the scope, are not what static analysis speaks of."""
    assert told(StaticAnswer(eager=EAGER)) == []


def test_a_module_expected_and_not_imported() -> None:
    (finding,) = told(StaticAnswer(eager=EAGER | {"seeded.gone"}))

    assert (finding.subject, finding.place) == ("seeded.gone", "src/g.py")
    assert "and it was not" in finding.why


def test_a_module_imported_and_not_expected() -> None:
    (finding,) = told(StaticAnswer(eager=frozenset({"seeded"})))

    assert (finding.subject, finding.place, finding.level) == (
        "seeded.ops",
        "src/seeded/ops.py",
        "error",
    )
    assert "imported with the package by src/seeded/__init__.py:4, which" in finding.why


def test_a_module_that_the_build_made_is_a_note() -> None:
    made = ImportedModule("seeded.version", "/built/seeded/version.py")
    (finding,) = told(StaticAnswer(eager=EAGER), replace(RESULT, imported=(*RESULT.imported, made)))

    assert (finding.level, finding.place) == ("note", "seeded/version.py")


@pytest.mark.parametrize("eager", [EAGER | {"seeded.gone"}, EAGER - {"seeded.ops"}])
def test_of_conditional_modules_either_answer_is_right(eager: frozenset[str]) -> None:
    static = StaticAnswer(eager=eager, conditional=frozenset({"seeded.gone", "seeded.ops"}))

    assert told(static) == []


@pytest.mark.parametrize(
    ("torch", "modules"),
    [
        ((LATE_TORCH,), ()),
        ((TORCH_OF_TAIL,), (LATE_MODULE,)),
    ],
    ids=["torch", "a module whose code imports torch"],
)
def test_a_late_import_that_is_not_listed(
    torch: tuple[LateImport, ...], modules: tuple[LateImport, ...]
) -> None:
    (finding,) = told(
        StaticAnswer(eager=EAGER), replace(RESULT, late_torch=torch, late_modules=modules)
    )

    assert (finding.place, finding.line) == ("src/seeded/ops.py", 9)
    assert "seeded.ops.run imported" in finding.why


def test_a_late_module_that_static_analysis_calls_sensitive_has_to_be_listed() -> None:
    result = replace(RESULT, late_modules=(LATE_MODULE,))

    assert told(StaticAnswer(eager=EAGER), result) == []
    assert len(told(StaticAnswer(EAGER, sensitive=frozenset({"seeded.tail"})), result)) == 1


@pytest.mark.parametrize("target", ["torch", "torch.nn"])
def test_a_late_import_that_is_listed_is_agreed_on(target: str) -> None:
    static = StaticAnswer(eager=EAGER, lazy=frozenset({("seeded.ops", target)}))

    assert told(static, replace(RESULT, late_torch=(LATE_TORCH,))) == []


@pytest.mark.parametrize("listed", [("seeded", "torch"), ("seeded.ops", "torchvision")])
def test_a_list_of_another_place_or_name_does_not_count(listed: tuple[str, str]) -> None:
    static = StaticAnswer(eager=EAGER, lazy=frozenset({listed}))

    assert len(told(static, replace(RESULT, late_torch=(LATE_TORCH,)))) == 1


def test_imports_in_a_guard_of_their_own_contradict_nothing() -> None:
    late = replace(LATE_TORCH, own_context=True)

    assert told(StaticAnswer(eager=EAGER), replace(RESULT, late_torch=(late,))) == []


@pytest.mark.parametrize(
    "failed",
    [
        replace(RESULT, imported=(), import_failure=Failure("ImportError", "no")),
        replace(RESULT, imported=(), ending="was ended by SIGSEGV", stage="import"),
    ],
    ids=["raised", "crashed"],
)
def test_a_failed_import_proves_nothing_about_static_analysis(failed: WitnessResult) -> None:
    assert told(StaticAnswer(eager=EAGER), failed) == []
