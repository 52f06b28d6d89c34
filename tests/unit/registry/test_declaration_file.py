"""``--declare FILE``: libraries that are tried before they are added to the registry."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ci.errors import ConfigError
from ci.registry import build_utils, declared, libraries_of

GOOD = """\
from __future__ import annotations

from build_utils import Artifact, EcosystemLibrary, Requires

LIBRARIES = (
    EcosystemLibrary(
        name="trial",
        source_rel_path="sources/trial",
        artifacts=(Artifact("trial", "trial"),),
        module="trial",
        kind="python_dsl",
        hint="do without",
        public_names=("run",),
        compat_scope=("trial",),
        varies_by=frozenset(),
        requires=Requires(python=">=3.10"),
    ),
)
"""


@pytest.fixture
def declaration(tmp_path: Path) -> Path:
    path = tmp_path / "trial.py"
    path.write_text(GOOD, "utf-8")
    return path


def test_its_sources_are_found_beside_the_file(declaration: Path, tmp_path: Path) -> None:
    (library,) = declared(declaration)
    assert library.name == "trial"
    assert library.source_dir == tmp_path / "sources" / "trial"


def test_a_relative_path_to_the_file_does(
    declaration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (library,) = declared(Path("trial.py"))
    assert library.source_dir == tmp_path / "sources" / "trial"


def test_a_third_party_library_stays_a_submodule_of_this_checkout(declaration: Path) -> None:
    declaration.write_text(GOOD.replace("sources/trial", "third_party/trial"), "utf-8")
    (library,) = declared(declaration)
    assert library.is_submodule
    assert library.source_dir == build_utils.PACKAGE_ROOT / "third_party" / "trial"


def test_its_libraries_join_those_of_the_set(declaration: Path) -> None:
    names = [library.name for library in libraries_of("templates", [declaration])]
    assert names == [*(item.name for item in build_utils.get_libs("templates")), "trial"]


def test_it_is_checked_together_with_the_set(declaration: Path) -> None:
    declaration.write_text(GOOD.replace('"trial"', '"fused_norm"'), "utf-8")
    with pytest.raises(ConfigError, match="contradict each other") as refused:
        libraries_of("templates", [declaration])
    assert "target 'fused_norm' is declared by fused-norm and fused_norm" in refused.value.details
    assert "--declare" in refused.value.next_step


def test_one_file_twice_is_a_contradiction(declaration: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        libraries_of("templates", [declaration, declaration])
    assert "library 'trial' is declared by trial and trial" in refused.value.details


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("LIBRARIES = (", "SyntaxError"),
        ("import no_such_module_anywhere", "ModuleNotFoundError"),
        ("LIBS = ()", "LIBRARIES"),
        ("LIBRARIES = 3", "TypeError"),
        ("LIBRARIES = ({'name': 'x'},)", "which is no EcosystemLibrary"),
        ("raise SystemExit(0)", "SystemExit"),
        (GOOD.replace('kind="python_dsl",', ""), "kind"),
        (GOOD.replace(">=3.10", "three"), "not a condition"),
    ],
)
def test_a_broken_file_is_refused_with_what_is_wrong(
    declaration: Path, text: str, words: str
) -> None:
    declaration.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match="cannot be read as declarations") as refused:
        declared(declaration)
    assert words in refused.value.message
    assert refused.value.exit_code == 2
    assert str(declaration) in refused.value.next_step


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no declaration file"):
        declared(tmp_path / "none.py")


def test_a_file_that_is_not_python_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "libraries.toml"
    path.write_text("", "utf-8")
    with pytest.raises(ConfigError, match="is not a Python file"):
        declared(path)


def test_reading_leaves_nothing_behind(
    declaration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    declared(declaration)
    assert [path.name for path in tmp_path.rglob("*")] == ["trial.py"]


def test_an_unknown_set_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="unknown set 'flet'; there are: fleet, templates"):
        libraries_of("flet")
