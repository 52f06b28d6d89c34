"""The templates' own sources: their exercises run, and nothing in them is a fault."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ci.integration.witness import WitnessRequest, run_witness, witness_findings
from ci.registry import EcosystemLibrary, build_utils

PURE = [
    library
    for library in build_utils.get_libs("templates")
    if library.kind in ("python_dsl", "ep_comm")
]
COMPILED = "chunk_linear_attention.ops.compiled:compiled_linear_attention"


def sources_of(library: EcosystemLibrary) -> Path:
    """The folder of the package in the checkout; these two are pure Python."""
    (found,) = library.source_dir.glob(f"**/{library.module}/__init__.py")
    return found.parent.parent


@pytest.mark.parametrize("library", PURE, ids=lambda library: library.name)
def test_the_exercises_of_a_template_run_and_nothing_is_found(
    library: EcosystemLibrary, tmp_path: Path
) -> None:
    extra = {COMPILED: "*[paddle.ones([1, 4, 2, 8])] * 3"} if library.kind == "python_dsl" else {}
    request = WitnessRequest(
        paths=(sources_of(library),),
        module=library.module,
        modules=library.modules,
        scope=library.compat_scope,
        preload=library.preload,
        load_env=library.load_env,
        public_names=library.public_names,
        exercises={**library.exercises, **extra},
    )
    result = run_witness(request, Path(sys.executable), tmp_path, 120.0)

    assert witness_findings(result, library.name, {}) == ()
    assert set(result.exercised) == set(request.exercises)
    assert result.not_exercised == ()
    # The one kept exception of the templates is seen, and it has a guard of its own.
    assert [late.own_context for late in result.late_torch] == [True] * len(extra)


def test_every_template_declares_an_exercise_for_every_public_name() -> None:
    for library in build_utils.get_libs("templates"):
        assert set(library.exercises) == set(library.public_names), library.name


@pytest.mark.parametrize("text", ["1, (", "1) + f(2", "x = 1; y", "paddle.ones([2])), (1"])
def test_an_exercise_that_is_no_list_of_arguments_is_refused(make: Any, text: str) -> None:
    with pytest.raises(build_utils.RegistryError, match="no list of arguments"):
        build_utils.check_registry([make(exercises={"run": text})])


def test_an_exercise_of_no_public_name_is_refused(make: Any) -> None:
    with pytest.raises(build_utils.RegistryError, match="of no public name"):
        build_utils.check_registry([make(exercises={"walk": "1"})])


@pytest.mark.parametrize(
    "text", ["", "1", "*[paddle.ones([2])] * 3, axis=1", "**{'x': np.ones(2)}"]
)
def test_what_stands_between_brackets_is_accepted(make: Any, text: str) -> None:
    build_utils.check_registry([make(exercises={"run": text})])


@pytest.fixture
def make() -> Any:
    def declaration(**changed: Any) -> EcosystemLibrary:
        return build_utils.EcosystemLibrary(
            name="seeded",
            source_rel_path="third_party/seeded",
            artifacts=(build_utils.Artifact("seeded", "seeded"),),
            module="seeded",
            kind="python_dsl",
            hint="do without it",
            public_names=("run",),
            compat_scope=("seeded",),
            varies_by=frozenset(),
            **changed,
        )

    return declaration
