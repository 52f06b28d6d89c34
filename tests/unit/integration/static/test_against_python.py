"""What the analysis says about an import, against what Python does."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings

from ci.integration.analysis import Analysis
from ci.integration.init_order import unbound_names
from ci.integration.rules import circular_import
from ci.integration.source_tree import read_tree
from tests.unit.integration.static.corpus import Seed
from tests.unit.integration.static.graphs import packages
from tests.unit.integration.static.python_oracle import Python
from tests.unit.integration.static.seeds_init import CYCLES, NOT_IMPORTED

_NUMBERS = count()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Python]:
    child = Python(tmp_path_factory.mktemp("torch"))
    yield child
    child.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packages")


@pytest.mark.parametrize("seed", [*CYCLES, *NOT_IMPORTED], ids=lambda seed: seed.name)
def test_seeds_do_in_python_what_they_are_said_to(
    seed: Seed, python: Python, tmp_path: Path
) -> None:
    analysis = Analysis(seed.tree(tmp_path))
    if " _C" in seed.text:  # stands for a compiled module, which is no source to be read
        (tmp_path / "pkg" / "_C.py").write_text("native = 1\n")
    happened = python.imports(tmp_path, "pkg", *analysis.tree.roots)
    failures = [item for item in unbound_names(analysis) if not item.caught]
    assert bool(happened.error) == bool(failures), happened.message
    if not failures:
        assert analysis.definite <= happened.modules <= {*analysis.reached, "pkg._C"}


@settings(
    max_examples=300,
    derandomize=True,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(files=packages())
def test_random_packages(files: dict[str, str], python: Python, folder: Path) -> None:
    root = f"p{next(_NUMBERS)}"
    for place, text in files.items():
        path = folder / place.replace("ROOT", root)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("ROOT", root))
    analysis = Analysis(read_tree("random", folder, {root: folder / root}))
    happened = python.imports(folder, root)
    failures = unbound_names(analysis)
    first = next((item for item in failures if not item.caught), None)
    if first is None and failures:
        event("caught")  # what a module that was given up leaves behind is not played through
        assert happened.modules <= analysis.reached
    elif first is None:
        event("imported")
        assert not happened.is_circular, happened
        if happened.error:  # a name that a star import does not bring: no cycle, for other tools
            return
        assert analysis.definite <= happened.modules == analysis.reached
        needs = bool(analysis.sensitive.keys() & happened.modules)
        assert needs == bool(happened.torch)
    else:
        event(f"failed by {happened.error}")
        assert happened.error, first
        if first == failures[0]:  # nothing was given up before
            assert repr(first.name) in happened.message
            assert first.target in happened.message
    errors = [item for item in circular_import.check(analysis) if item.level == "error"]
    assert bool(errors) == bool(failures)
