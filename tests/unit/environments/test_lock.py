"""From requirements to locks: what is pinned, what is stale, what cannot be met."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ci.environments import lock as lock_module
from ci.environments.lock import (
    BUILD_BASE,
    Lock,
    check_lock,
    committed,
    lock_for,
    universe,
)
from ci.errors import ConfigError, FindingError, InfrastructureError
from ci.matrix.load import load
from ci.proc import Command, Completed
from ci.registry import REPOSITORY, build_utils

PADDLE = sorted({entry.paddle.cpu for entry in load(REPOSITORY / "matrix.toml").cudas})
TEXT = """\
# a comment==1.0
PyYAML==6.0.2 \\
    --hash=sha256:aaaa \\
    --hash=sha256:bbbb
typing_extensions==4.15.0 ; python_version < '3.13' \\
    --hash=sha256:cccc
zope.interface==7.2
nvidia-cutlass-dsl[cu13]==4.5.2 \\
    --hash=sha256:dddd
ruamel-yaml==0.18;python_version>'3'
"""


def test_the_pins_of_a_lock_are_read_by_canonical_name() -> None:
    assert Lock(TEXT).pins == {
        "pyyaml": "6.0.2",
        "typing-extensions": "4.15.0",
        "zope-interface": "7.2",
        "nvidia-cutlass-dsl": "4.5.2",
        "ruamel-yaml": "0.18",
    }


def test_requirements_are_given_as_the_lock_pins_them_once_and_in_order() -> None:
    asked = ["zope.interface>=5", "PyYAML>=6", "pyyaml", "nvidia-cutlass-dsl[cu13]>=4", "absent>=1"]
    assert Lock(TEXT).pinned(asked) == (
        "nvidia-cutlass-dsl==4.5.2",
        "pyyaml==6.0.2",
        "zope-interface==7.2",
    )


def test_a_digest_is_that_of_the_text() -> None:
    assert Lock("a").digest == Lock("a").digest
    assert Lock("a").digest != Lock("a ").digest
    assert Lock("").pins == {}


# --- the committed locks --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["build", "import"])
def test_a_committed_lock_is_that_of_the_declarations(name: str) -> None:
    check_lock(name, PADDLE)


@pytest.mark.parametrize("name", ["build", "import"])
def test_a_committed_lock_pins_and_hashes_every_requirement_and_names_no_index(name: str) -> None:
    text = committed(name).read_text("utf-8")
    pins = Lock(text).pins
    for requirement in map(Requirement, universe(name, PADDLE)):
        assert canonicalize_name(requirement.name) in pins
    for block in re.split(r"\n(?=\S)", text):
        if "==" in block.split("\n")[0] and not block.startswith("#"):
            assert "--hash=sha256:" in block, block
    assert "://" not in text
    assert "index-url" not in text


def test_a_committed_lock_meets_the_requirements_that_it_was_made_from() -> None:
    versions: dict[str, set[str]] = {}
    text = committed("build").read_text("utf-8")
    for name, version in re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE):
        versions.setdefault(canonicalize_name(name), set()).add(version)
    for requirement in map(Requirement, universe("build", PADDLE)):
        for version in versions[canonicalize_name(requirement.name)]:
            assert requirement.specifier.contains(version, prereleases=True), requirement


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lock_module, "LOCKS", tmp_path / "locks")
    (tmp_path / "locks").mkdir()
    for name in ("build", "import"):
        source = REPOSITORY / "ci" / "environments" / "locks" / f"{name}.txt"
        (tmp_path / "locks" / f"{name}.txt").write_text(source.read_text("utf-8"), "utf-8")
    return tmp_path / "locks"


def stale(name: str, paddle: list[str] = PADDLE) -> None:
    with pytest.raises(FindingError, match=f"the lock {name}.txt is stale") as refused:
        check_lock(name, paddle)
    assert refused.value.next_step == "python -m ci lock"


def test_a_lock_that_is_missing_is_stale(locks: Path) -> None:
    check_lock("build", PADDLE)
    (locks / "build.txt").unlink()
    stale("build")


def test_a_lock_without_its_header_is_stale(locks: Path) -> None:
    path = locks / "build.txt"
    path.write_text(path.read_text().replace("# requirements:", "#"))
    stale("build")


def test_another_paddle_makes_the_import_lock_stale(locks: Path) -> None:
    stale("import", ["paddlepaddle==3.9.9"])


def test_a_new_build_requirement_makes_the_build_lock_stale(
    locks: Path, make_library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = make_library("more", build_requires=("scikit-build-core>=0.10",))
    monkeypatch.setattr(build_utils, "LIBRARIES", (*build_utils.LIBRARIES, more))
    stale("build")
    check_lock("import", PADDLE)


# --- locking --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "a b", "==1.0", "a>=", "a=1", "a @", "a; nonsense"])
def test_what_is_no_requirement_is_a_configuration_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="not a requirement") as refused:
        lock_for([text], "3.12", "build", tmp_path)
    assert refused.value.exit_code == 2
    assert repr(text) in refused.value.message


def answer(monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    def run(command: Command) -> Completed:
        return Completed(command, 2, output, 0.0)

    monkeypatch.setattr(lock_module, "run", run)


def test_requirements_that_exclude_each_other_are_a_configuration_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(
        monkeypatch,
        "error: No solution found when resolving dependencies\n"
        "  cause: Because you require a>=2 and a<1, your requirements are unsatisfiable.\n",
    )
    with pytest.raises(ConfigError, match="cannot be met together") as refused:
        lock_for(["a>=2", "a<1"], "3.12", "build", tmp_path)
    assert any("you require a>=2 and a<1" in line for line in refused.value.details)


def test_an_index_that_does_not_answer_is_infrastructure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, "error: Request failed after 3 retries\n  cause: Failed to fetch\n")
    with pytest.raises(InfrastructureError, match="did not answer") as refused:
        lock_for(["a>=2"], "3.12", "build", tmp_path)
    assert refused.value.exit_code == 4
    assert not list(tmp_path.rglob("*.txt"))


@pytest.mark.network
@pytest.mark.slow
def test_the_index_s_own_words_of_a_conflict_are_understood(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be met together"):
        lock_for(["packaging>=24", "packaging<20"], "3.12", "build", tmp_path)


@pytest.mark.network
@pytest.mark.slow
def test_versions_are_those_of_the_committed_lock_and_need_no_index_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = lock_for(BUILD_BASE, "3.12", "build", tmp_path)
    pins = Lock(committed("build").read_text("utf-8")).pins
    assert lock.pins
    assert lock.pins.items() <= pins.items()
    assert set(lock.pinned(BUILD_BASE)) == {f"{name}=={lock.pins[name]}" for name in lock.pins}
    answer(monkeypatch, "offline")
    assert lock_for(BUILD_BASE, "3.12", "build", tmp_path) == lock
    with pytest.raises(InfrastructureError):
        lock_for(BUILD_BASE, "3.11", "build", tmp_path)


def test_the_committed_hashes_count_and_not_those_that_the_index_gives() -> None:
    committed_text = (
        "# header\none==1.0 ; python_version < '3.13' \\\n    --hash=sha256:aa \\\n"
        "    --hash=sha256:bb\ntwo==2.0 \\\n    --hash=sha256:cc\n"
    )
    answer = (
        "one==1.0 \\\n    --hash=sha256:evil\ntwo==2.1 \\\n    --hash=sha256:new\n"
        "three==3.0 \\\n    --hash=sha256:dd\n"
    )
    assert lock_module.with_committed_hashes(answer, committed_text) == (
        "one==1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
        "two==2.1 \\\n    --hash=sha256:new\n"
        "three==3.0 \\\n    --hash=sha256:dd\n"
    )


@pytest.mark.parametrize("name", ["build", "import"])
def test_a_lock_that_was_edited_by_hand_is_a_finding(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = committed(name).read_text("utf-8")
    monkeypatch.setattr(lock_module, "LOCKS", tmp_path)
    (tmp_path / f"{name}.txt").write_text(text, "utf-8")
    check_lock(name, PADDLE)
    hashed = re.search(r"sha256:([0-9a-f]{64})", text)
    assert hashed is not None
    (tmp_path / f"{name}.txt").write_text(text.replace(hashed.group(1), "0" * 64), "utf-8")
    with pytest.raises(FindingError) as refused:
        check_lock(name, PADDLE)
    assert "not what was written" in refused.value.cause
