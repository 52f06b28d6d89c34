"""The order of a check: what is asked for is looked at, and what could not be looked at is never green."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ci.pipeline.run_time as run_time_module
from ci.errors import ConfigError, FarmError, LibraryBuildError, ToolchainError
from ci.findings import Finding
from ci.integration.analysis import Analysis
from ci.integration.baseline import read_baseline
from ci.integration.subject import Subject
from ci.pipeline.check import BASELINE, WHEEL, CheckRequest, all_rules, run_check, write_baseline
from ci.pipeline.run_time import RUN_TIME_RULES, RunTime, RunTimeRequest
from ci.registry import REPOSITORY, libraries_of
from ci.report.check_model import CheckReport, LibraryCheck
from ci.report.progress import Narrator

LATE = "import torch\n\n\ndef f():\n    import torch.nn\n\n    return torch.nn\n"
MENDED = "import torch\nimport torch.nn\n\n\ndef f():\n    return torch.nn\n"
CYCLE = {
    "inner/__init__.py": "from . import a\n",
    "inner/a.py": "from .b import y\n\nx = 1\n",
    "inner/b.py": "from .a import x\n\ny = 2\n",
}


class Heard:
    """A narrator that keeps what it hears."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def begin(self, name: str, text: str) -> None:
        self.lines.append(f"{name}: {text}")

    def end(self, name: str, text: str) -> None:
        self.lines.append(f"{name}: {text}")


Ask = Callable[..., CheckRequest]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """A request that only reads, with an empty baseline of its own."""

    def make(*subjects: Any, **values: Any) -> CheckRequest:
        given = CheckRequest(
            cache_dir=tmp_path / "cache",
            subjects=tuple(map(str, subjects)),
            run_time="no",
            baseline=tmp_path / "known.toml",
        )
        return replace(given, **values)

    return make


def run(request: CheckRequest) -> CheckReport:
    return run_check(request, Heard())


def library(root: Path, files: dict[str, str] | str = LATE) -> Path:
    texts = {"inner/__init__.py": files} if isinstance(files, str) else files
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def by_name(report: CheckReport) -> dict[str, LibraryCheck]:
    return {item.name: item for item in report.libraries}


def rules_of(report: CheckReport) -> list[str]:
    return [item.rule for item in report.failing]


# -- subjects --------------------------------------------------------------------------------------


def test_the_templates_are_clean_and_every_library_is_named(ask: Ask) -> None:
    report = run(ask(library_set="templates"))
    names = [item.name for item in libraries_of("templates", ())]
    assert [item.name for item in report.libraries] == names
    assert (report.exit_code, report.failing, report.next_command) == (0, (), "")
    for item in report.libraries:
        assert item.modules > 0
        assert item.in_repository
        assert item.run_time == "left out (--static)"


def test_a_module_is_counted_once_and_tests_are_not(ask: Ask) -> None:
    report = run(ask(library_set="templates"))
    folder = REPOSITORY / "packages" / "templates" / "python_dsl"
    (package,) = folder.glob("**/chunk_linear_attention")
    files = [path for path in package.rglob("*.py") if "tests" not in path.parts]
    assert by_name(report)["chunk-linear-attention"].modules == len(files)


def test_a_finding_has_a_place_that_an_editor_can_open(ask: Ask, tmp_path: Path) -> None:
    folder = library(tmp_path / "lib")
    report = run(ask(folder))
    (found,) = report.failing
    assert (found.rule, found.library, found.level) == ("lazy-torch-import", "lib", "error")
    assert (folder / found.place).read_text().splitlines()[found.line - 1] == "    import torch.nn"
    assert report.exit_code == 1
    assert not by_name(report)["lib"].in_repository
    assert report.next_command.endswith(f"nox -s check -- {folder}")


def test_the_next_command_can_be_pasted(ask: Ask, tmp_path: Path) -> None:
    folder = library(tmp_path / "my lib's")
    command = run(ask(folder)).next_command.partition("nox -s check -- ")[2]
    told = subprocess.run(
        f"printf %s {command}", shell=True, capture_output=True, text=True, check=True
    )
    assert told.stdout == str(folder)


def test_findings_belong_to_their_library(ask: Ask, tmp_path: Path) -> None:
    bad = library(tmp_path / "bad")
    good = library(tmp_path / "good", {"other/__init__.py": MENDED})
    libraries = by_name(run(ask(good, bad)))
    assert [item.rule for item in libraries["bad"].findings] == ["lazy-torch-import"]
    assert libraries["good"].findings == ()


def test_a_top_level_name_that_two_claim_is_found_between_them(ask: Ask, tmp_path: Path) -> None:
    one, two = library(tmp_path / "one", MENDED), library(tmp_path / "two", MENDED)
    (found,) = run(ask(one, two)).failing
    assert (found.rule, found.library, found.subject) == ("name-collision", "two", "inner")
    assert "the top-level name inner is also that of one" in found.why
    other = library(tmp_path / "other", {"fused_norm/__init__.py": MENDED, "inner/__init__.py": ""})
    assert run(ask(other)).failing == ()  # it is checked as fused-norm
    assert run(ask(one)).failing == ()


def test_rules_of_the_registry_are_for_declared_libraries(ask: Ask, tmp_path: Path) -> None:
    registry = {"submodule", "not-pinned", "unsatisfiable-together", "ep-without-multi-card-test"}
    folder = {rule.name for rule in run(ask(library(tmp_path / "lib"))).rules}
    borrowed = run(ask(library(tmp_path / "x", {"fused_norm/__init__.py": MENDED})))
    assert [item.name for item in borrowed.libraries] == ["fused-norm"]
    assert not registry & {rule.name for rule in borrowed.rules}
    declared = {rule.name for rule in run(ask("fused-norm")).rules}
    assert not registry & folder
    assert registry <= declared


def test_of_other_sources_nothing_is_said_about_the_submodule(ask: Ask) -> None:
    folder = REPOSITORY / "packages" / "templates" / "cuda_extension"
    report = run(ask("fused-norm", sources=(f"fused-norm=path:{folder}",)))
    names = {rule.name for rule in report.rules}
    assert "submodule" not in names
    assert "ep-without-multi-card-test" in names


# -- nothing is not green --------------------------------------------------------------------------


DECLARED = """\
from build_utils import Artifact, EcosystemLibrary

def library(name, path, pin, url=""):
    return EcosystemLibrary(
        name=name, source_rel_path=path, artifacts=(Artifact("ops", name),), module=name,
        kind="python_dsl", hint="do without it", public_names=("f",), compat_scope=(name,),
        varies_by=frozenset(), library_set="declared", pin=pin, url=url,
    )

LIBRARIES = (
    library("empty", "third_party/empty", "1" * 40, "https://example.org/empty.git"),
    library("unpinned", "third_party/unpinned", None, "https://example.org/unpinned.git"),
    library("nowhere", "no-such-folder", None),
)
"""
ABSENT = {
    "empty": (
        "not checked out",
        "git submodule update --init --recursive packages/paddlefleet_ops/third_party/empty",
    ),
    "unpinned": ("not pinned yet", "--source unpinned=path:DIR"),
    "nowhere": ("/no-such-folder", "--source nowhere=path:DIR"),
}


@pytest.fixture
def declared(ask: Ask, tmp_path: Path) -> Ask:
    """As ``ask``, with three declared libraries whose sources are not there."""
    (tmp_path / "declared.py").write_text(DECLARED)
    return lambda *subjects, **values: ask(
        *subjects, declarations=(tmp_path / "declared.py",), **values
    )


@pytest.mark.parametrize("name", ABSENT)
def test_a_library_that_is_asked_for_and_not_there_is_refused(declared: Ask, name: str) -> None:
    with pytest.raises(ConfigError, match=f"the sources of {name} are not there") as caught:
        run(declared("fused-norm", name))
    why_not, command = ABSENT[name]
    assert why_not in caught.value.cause
    assert caught.value.next_step.startswith(command)


def test_by_default_it_is_listed_with_its_reason(declared: Ask) -> None:
    report = run(declared())
    for name, (why_not, command) in ABSENT.items():
        item = by_name(report)[name]
        assert item.modules == 0
        assert {found.rule for found in item.findings} <= {"not-pinned"}
        assert why_not in item.why_not
        assert item.next_step.startswith(command)
    assert by_name(report)["fused-norm"].why_not == ""


def test_where_none_is_there_all_are_told(declared: Ask) -> None:
    with pytest.raises(ConfigError) as caught:
        run(declared("empty", "nowhere"))
    assert [line.partition(":")[0] for line in caught.value.details] == ["empty", "nowhere"]


def test_a_check_of_nothing_is_refused(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    from ci.pipeline import check

    monkeypatch.setattr(check, "_libraries", lambda _: ())
    with pytest.raises(ConfigError, match="are not there") as caught:
        run(ask())
    assert caught.value.cause == "no library is declared"


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        (("import-fails",), "import-fails could not be applied"),
        (("stale-baseline-entry",), "stale-baseline-entry could not be applied"),
        (("circular-import", "submodule"), "submodule could not be applied"),
    ],
)
def test_a_rule_that_looked_at_nothing_is_not_green(
    ask: Ask, tmp_path: Path, rules: tuple[str, ...], told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        run(ask(library(tmp_path / "lib"), rules=rules))
    assert "left out (--static)" in caught.value.cause


# -- rules -----------------------------------------------------------------------------------------


def test_only_the_rules_that_are_asked_for_are_reported(ask: Ask, tmp_path: Path) -> None:
    folder = library(tmp_path / "lib", {**CYCLE, "inner/late.py": LATE})
    every = run(ask(folder))
    found = {item.rule for item in by_name(every)["lib"].findings}
    assert {"circular-import", "lazy-torch-import"} <= found
    assert [*by_name(every)["lib"].findings] == sorted(by_name(every)["lib"].findings)
    report = run(ask(folder, rules=("circular-import",)))
    assert {item.rule for item in by_name(report)["lib"].findings} == {"circular-import"}
    assert [rule.name for rule in report.rules] == [
        "circular-import", "stale-baseline-entry", "expired-baseline-entry",
    ]  # fmt: skip


def test_every_rule_has_one_name_and_a_sentence_of_the_guide() -> None:
    rules = all_rules()
    for name, rule in rules.items():
        assert rule.name == name
        assert rule.summary
        assert "guide:" in rule.guide or "no rule of the guide" in rule.guide
    assert {rule.name for rule in RUN_TIME_RULES} <= set(rules)


def test_everything_wrong_is_told_at_once_and_nothing_runs(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text("[[known]]\nplace = 3\n")
    heard = Heard()
    request = ask(
        "fused-nrm", "/no/such", library(tmp_path / "lib"), rules=("circular-imports", "x-y-z"),
        sources=("quack=path:.", "quak=path:."), exercises=("muladd",), python="3.9",
    )  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        run_check(request, heard)
    told = "\n".join(caught.value.details)
    for part in (
        "unknown library 'fused-nrm'; nearest: fused-norm", "/no/such is no folder",
        "unknown rule 'circular-imports'; did you mean 'circular-import'?", "unknown rule 'x-y-z'",
        "unknown library 'quak'", "Python 3.9 is not in the matrix",
        "--exercise 'muladd' is not of the form", "known.toml cannot be used",
        "the key 'reason' is missing",
    ):  # fmt: skip
        assert part in told
    assert heard.lines == []


def test_a_source_of_what_is_not_checked_is_refused(ask: Ask) -> None:
    sources = ("quack=path:.",)
    for request in (
        ask("fused-norm", sources=sources),
        ask(library_set="templates", sources=sources),
    ):
        with pytest.raises(ConfigError, match="--source for quack, which is not checked"):
            run(request)


def test_a_set_that_there_is_not(ask: Ask) -> None:
    with pytest.raises(ConfigError, match="fleets"):
        run(ask(library_set="fleets"))


# -- the run-time part -----------------------------------------------------------------------------


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> dict[str, RunTime]:
    """What the run-time part gives, by subject; without an entry it finds nothing."""
    results: dict[str, RunTime] = {}

    def run_subject(subject: Subject, *_: object) -> RunTime:
        asked.append(subject.name)
        return results.get(subject.name, RunTime())

    asked: list[str] = []
    monkeypatch.setattr(run_time_module, "run_subject", run_subject)
    return results


MISSING = ToolchainError("no Python 3.12 here", cause="c", next_step="n")


def test_what_keeps_the_run_time_part_from_running_is_told_and_raised_on_request(
    ask: Ask, tmp_path: Path, watched: dict[str, RunTime]
) -> None:
    folder = library(tmp_path / "lib", MENDED)
    watched["lib"] = RunTime(why_not=MISSING.message, error=MISSING)
    report = run(ask(folder, run_time="can"))
    assert (report.exit_code, by_name(report)["lib"].run_time) == (0, "no Python 3.12 here")
    assert not {rule.name for rule in RUN_TIME_RULES} & {rule.name for rule in report.rules}
    with pytest.raises(ToolchainError) as caught:
        run(ask(folder, run_time="must"))
    assert caught.value is MISSING
    with pytest.raises(ConfigError, match="import-fails could not be applied") as idle:
        run(ask(folder, run_time="can", rules=("import-fails",)))
    assert "no Python 3.12 here" in idle.value.cause


def test_findings_of_the_run_time_part_are_findings(
    ask: Ask, tmp_path: Path, watched: dict[str, RunTime]
) -> None:
    folder = library(tmp_path / "lib", MENDED)
    found = Finding("import-fails", "inner/__init__.py", "why", "mend", library="lib")
    watched["lib"] = RunTime(findings=(found,), not_exercised=("inner:g",))
    report = run(ask(folder, run_time="can"))
    assert report.failing == (found,)
    assert by_name(report)["lib"].not_exercised == ("inner:g",)
    assert by_name(report)["lib"].run_time == ""
    assert {rule.name for rule in RUN_TIME_RULES} <= {rule.name for rule in report.rules}


def test_nothing_is_built_for_static_rules_alone(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> RunTime:
        raise AssertionError("the run-time part ran")

    monkeypatch.setattr(run_time_module, "run_subject", never)
    folder = library(tmp_path / "lib")
    report = run(ask(folder, run_time="can", rules=("lazy-torch-import",)))
    assert by_name(report)["lib"].run_time == "left out (none of its rules is asked for)"
    run(ask(folder))
    with pytest.raises(AssertionError, match="the run-time part ran"):
        run(ask(folder, run_time="can", rules=("lazy-torch-import", "import-fails")))


@pytest.mark.parametrize(
    ("error", "why_not", "rules"),
    [
        (LibraryBuildError("lib does not build", cause="line 3"), "", ["does-not-build"]),
        (MISSING, "no Python 3.12 here", []),
    ],
)
def test_a_build_that_fails_is_a_finding_and_a_host_that_cannot_is_none(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: FarmError,
    why_not: str,
    rules: list[str],
) -> None:
    def fail(_: Subject, __: Analysis, ___: RunTimeRequest, work: Path, ____: Narrator) -> RunTime:
        (work / "half-done").mkdir(parents=True)
        raise error

    monkeypatch.setattr(run_time_module, "_watch_sources", fail)
    from ci.integration.subject import resolve_subjects, tree_of

    (subject,) = resolve_subjects([str(library(tmp_path / "lib"))], [], {}, tmp_path / "cache")
    heard: Narrator = Heard()
    result = run_time_module.run_subject(
        subject, Analysis(tree_of(subject, [])), RunTimeRequest(tmp_path / "cache"), heard
    )
    assert [item.rule for item in result.findings] == rules
    assert result.why_not == why_not
    assert not list((tmp_path / "cache").rglob("half-done"))


def test_exercises_come_as_names_and_arguments(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def run_subject(_: Subject, __: Analysis, request: RunTimeRequest, ___: object) -> RunTime:
        seen.append(request.exercises)
        return RunTime()

    monkeypatch.setattr(run_time_module, "run_subject", run_subject)
    folder = library(tmp_path / "lib", MENDED)
    run(ask(folder, run_time="can", exercises=("f = a=1, b='x=y'", "inner:g=")))
    assert seen == [{"f": "a=1, b='x=y'", "inner:g": ""}]


@pytest.mark.parametrize("text", ["muladd", "=3", " =3", ""])
def test_an_exercise_of_another_form_is_refused(ask: Ask, tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="not of the form NAME=ARGUMENTS"):
        run(ask(library(tmp_path / "lib"), exercises=(text,)))


# -- the baseline ----------------------------------------------------------------------------------


def test_what_is_written_makes_the_same_check_green_once_reasons_are_there(
    ask: Ask, tmp_path: Path
) -> None:
    folder = library(tmp_path / "lib", {**CYCLE, "inner/late.py": LATE})
    request = ask(folder, baseline=tmp_path / "new" / "known.toml")
    report = run(request)
    path = write_baseline(request, report)
    assert path == request.baseline
    with pytest.raises(ConfigError, match="the reason '' says nothing"):
        run(request)
    filled = path.read_text().replace('reason = ""', 'reason = "as upstream has it"')
    path.write_text(filled)
    again = run(request)
    assert (again.exit_code, again.stale) == (0, ())
    known = by_name(again)["lib"].known
    assert [item.finding for item in known] == sorted(report.failing)
    assert {item.reason for item in known} == {"as upstream has it"}
    assert write_baseline(request, again).read_text() == filled

    (folder / "inner" / "late.py").write_text(MENDED)
    mended = run(request)
    assert write_baseline(request, mended).read_text() == filled  # a stale entry is not excused
    assert "stale-baseline-entry" in rules_of(mended)
    assert mended.exit_code == 1
    (stale,) = [item for item in mended.stale if "late.py" in item.subject]
    assert mended.next_command == f"correct known.toml:{mended.failing[0].line}"
    assert path.read_text().splitlines()[stale.line - 1] == "[[known]]"
    assert not {item.finding for item in known} & {*mended.failing}


def test_an_entry_about_what_was_not_looked_for_is_not_missed(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(
        '[[known]]\nlibrary = "lib"\nrule = "import-fails"\nplace = "x"\nreason = "as it is for now"\n'
        '[[known]]\nlibrary = "other"\nrule = "lazy-torch-import"\nplace = "x"\nreason = "as it is too"\n'
        '[[known]]\nlibrary = "lib"\nrule = "dynamic-import"\nplace = "x"\nreason = "as it is as well"\n'
    )
    folder = library(tmp_path / "lib", MENDED)
    assert [item.line for item in run(ask(folder)).stale] == [11]
    assert run(ask(folder, rules=("lazy-torch-import",))).stale == ()


def test_an_entry_of_a_rule_that_there_is_not_is_refused(ask: Ask, tmp_path: Path) -> None:
    """It would never be judged, and so never be missed."""
    (tmp_path / "known.toml").write_text(
        '[[known]]\nlibrary = "quack"\nrule = "lazy-torch-imports"\nplace = "x"\nreason = "as it is now"\n'
    )
    with pytest.raises(ConfigError, match="did you mean 'lazy-torch-import'"):
        run(ask("fused-norm"))


def test_the_committed_baseline_is_readable_and_says_no_more_than_is_true(ask: Ask) -> None:
    report = run(ask(baseline=None))
    assert report.stale == ()
    entries = read_baseline(BASELINE, rules=all_rules())
    known = [item for library in report.libraries for item in library.known]
    assert len(known) >= len(entries) > 0
    assert {item.reason for item in known} == {entry.reason for entry in entries}
    names = {library.name for library in libraries_of("fleet", ())} | {WHEEL}
    assert {entry.library for entry in entries} <= names


def test_nothing_is_written_by_a_check(ask: Ask, tmp_path: Path) -> None:
    folder = library(tmp_path / "lib")
    before = sorted(tmp_path.rglob("*"))
    run(ask(folder))
    assert sorted(tmp_path.rglob("*")) == before
