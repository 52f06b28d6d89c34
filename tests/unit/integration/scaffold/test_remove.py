"""A library leaves a checkout as if it had never been there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.errors import ConfigError
from ci.findings import Finding
from ci.integration.scaffold.integrate import integrate
from ci.integration.scaffold.remove import remove
from ci.integration.scaffold.request import Exercise, IntegrateRequest
from ci.integration.test_table import TABLE
from tests.unit.integration.scaffold.conftest import SOURCES
from tests.unit.integration.scaffold.scratch import call, state_of

Source = Callable[..., IntegrateRequest]
THIRD_PARTY = "packages/paddlefleet_ops/third_party"
TEST = "tests/multi_card_tests/moe/test_ring_dispatch_round_trip.py"


def good(_: str) -> tuple[Finding, ...]:
    return ()


@pytest.mark.parametrize("wrapper", ["", "src/paddlefleet/fast/wrapped.py"])
@pytest.mark.parametrize("kind", sorted(SOURCES))
def test_integrate_and_remove_change_nothing(
    checkout: Path, source: Source, kind: str, wrapper: str
) -> None:
    before = state_of(checkout)
    exercises = (Exercise("scan=1 -> [2]"),) if kind == "python_dsl" else ()
    request = source(kind, wrapper=wrapper, exercises=exercises)
    integrate(request, good, repository=checkout)
    assert state_of(checkout) != before
    remove(request.name, repository=checkout)
    assert state_of(checkout) == before


def test_without_a_table_there_is_none_again(checkout: Path, source: Source) -> None:
    call("rm", "-q", TABLE, cwd=checkout)
    call("commit", "-qm", "no table", cwd=checkout)
    before = state_of(checkout)
    integrate(source("ep_comm"), good, repository=checkout)
    assert (checkout / TABLE).is_file()
    remove("ring-dispatch", repository=checkout)
    assert state_of(checkout) == before


def test_two_libraries_go_one_by_one(checkout: Path, source: Source) -> None:
    integrate(source("python_dsl"), good, repository=checkout)
    call("add", "--all", cwd=checkout)
    call("commit", "-qm", "first", cwd=checkout)
    before = state_of(checkout)
    integrate(source("ep_comm"), good, repository=checkout)
    remove("ring-dispatch", repository=checkout)
    assert state_of(checkout) == before


def test_after_a_commit_it_goes_too(checkout: Path, source: Source) -> None:
    tree = call("rev-parse", "HEAD^{tree}", cwd=checkout)
    integrate(source("ep_comm"), good, repository=checkout)
    for remove_it in (False, True):
        if remove_it:
            remove("ring-dispatch", repository=checkout)
        call("add", "--all", cwd=checkout)
        call("commit", "-qm", "step", cwd=checkout)
    assert call("rev-parse", "HEAD^{tree}", cwd=checkout) == tree


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_failure_at_any_step_leaves_the_library_whole(
    checkout: Path, source: Source, error: type[BaseException]
) -> None:
    integrate(source("ep_comm", wrapper="src/ring.py"), good, repository=checkout)
    before = state_of(checkout)
    steps: list[str] = []

    def stop_last(step: str) -> None:
        steps.append(step)
        if step == "done":
            raise error

    with pytest.raises(error):
        remove("ring-dispatch", repository=checkout, progress=stop_last)
    assert len(steps) > 6
    for step in steps:

        def stop(told: str, at: str = step) -> None:
            if told == at:
                raise error

        with pytest.raises(error):
            remove("ring-dispatch", repository=checkout, progress=stop)
        assert state_of(checkout) == before, step
    status = call("submodule", "status", f"{THIRD_PARTY}/ring-dispatch", cwd=checkout)
    assert status.startswith(" ")


# --- work of the user -----------------------------------------------------------------------------


def edit_test(checkout: Path, commit: Any) -> str:
    path = checkout / TEST
    path.write_text(path.read_text().replace("ROUND_TRIP: ", "ROUND_TRIPS: "))
    return f"{TEST} was edited"


def edit_table(checkout: Path, commit: Any) -> str:
    path = checkout / TABLE
    entry = f"[{TEST}]\n    products:\n      - num_gpus: "
    assert f"{entry}2" in path.read_text()
    path.write_text(path.read_text().replace(f"{entry}2", f"{entry}4"))
    return f"the entry of {TEST}"


def edit_sources(checkout: Path, commit: Any) -> str:
    (checkout / THIRD_PARTY / "ring-dispatch" / "new.py").write_text("")
    return "has changes that are not committed"


def commit_in_submodule(checkout: Path, commit: Any) -> str:
    commit(checkout / THIRD_PARTY / "ring-dispatch", {"new.py": ""})
    return "has 1 commits that its remote does not have"


@pytest.mark.parametrize("edit", [edit_test, edit_table, edit_sources, commit_in_submodule])
def test_work_is_not_lost_unless_it_is_forced(
    checkout: Path, source: Source, commit_files: Any, edit: Callable[[Path, Any], str]
) -> None:
    integrate(source("ep_comm"), good, repository=checkout)
    words = edit(checkout, commit_files)
    before = state_of(checkout)
    with pytest.raises(ConfigError) as caught:
        remove("ring-dispatch", repository=checkout)
    assert words in "\n".join((caught.value.message, *caught.value.details))
    assert "--force" in caught.value.next_step
    assert state_of(checkout) == before
    removal = remove("ring-dispatch", repository=checkout, force=True)
    assert not (checkout / THIRD_PARTY / "ring-dispatch").exists()
    assert not (checkout / TEST).exists()
    assert bool(removal.left) == (edit is edit_table)


def test_all_edited_places_are_told(checkout: Path, source: Source, commit_files: Any) -> None:
    integrate(source("ep_comm"), good, repository=checkout)
    words = [edit(checkout, commit_files) for edit in (edit_test, edit_table, edit_sources)]
    with pytest.raises(ConfigError) as caught:
        remove("ring-dispatch", repository=checkout)
    assert len(caught.value.details) == 3
    assert all(word in "\n".join(caught.value.details) for word in words)


def test_a_test_that_integrate_did_not_make_stays(checkout: Path, source: Source) -> None:
    integrate(source("ep_comm"), good, repository=checkout)
    path = checkout / TEST
    path.write_text("# written by hand\n")
    removal = remove("ring-dispatch", repository=checkout)
    assert removal.left == (f"{TEST}: not made by integrate",)
    assert path.read_text() == "# written by hand\n"


def test_a_moved_test_is_found_by_its_mark(checkout: Path, source: Source) -> None:
    integrate(source("ep_comm"), good, repository=checkout)
    moved = checkout / "tests" / "multi_card_tests" / "test_moved.py"
    (checkout / TEST).rename(moved)
    remove("ring-dispatch", repository=checkout)
    assert not moved.exists()


# --- what cannot go -------------------------------------------------------------------------------


def test_a_library_that_another_needs_stays(checkout: Path) -> None:
    before = state_of(checkout)
    for force in (False, True):
        with pytest.raises(ConfigError, match="sonic-moe depends on quack"):
            remove("quack", repository=checkout, force=force)
    assert state_of(checkout) == before


@pytest.mark.parametrize(
    ("name", "words"),
    [("quak", "nearest: quack"), ("fused-norm", "not declared in LIBRARIES")],
)
def test_a_library_that_is_none_of_the_fleet_is_refused(
    checkout: Path, name: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        remove(name, repository=checkout)


def test_a_library_that_was_declared_by_hand_goes_as_well(checkout: Path) -> None:
    remove("MoonEP", repository=checkout)
    assert "MoonEP" not in (checkout / ".gitmodules").read_text()
    assert "moonep" not in (checkout / ".gitignore").read_text()
    assert call("ls-files", f"{THIRD_PARTY}/MoonEP", cwd=checkout) == ""
