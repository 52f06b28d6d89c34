"""The verbs ``check``, ``integrate`` and ``remove``: exit codes, documents, files, help."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import ci.cli.scaffolding as scaffolding
import ci.pipeline.run_time as run_time_module
import ci.report
from ci import __main__ as entry
from ci.errors import FindingError, InfrastructureError, ToolchainError
from ci.findings import Finding
from ci.pipeline.check import all_rules
from ci.pipeline.run_time import RunTime
from ci.proc import Command, Completed
from ci.registry import REPOSITORY, build_utils
from tests.unit.integration.scaffold.scratch import call, clone_of_checkout

LATE = "import torch\n\n\ndef f():\n    import torch.nn\n\n    return torch.nn\n"
MENDED = "import torch.nn\n\n\ndef f():\n    return torch.nn\n"
Run = Callable[..., int]
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _outside_of_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def lib(tmp_path: Path) -> Path:
    """A library with one late import."""
    path = tmp_path / "lib" / "inner" / "__init__.py"
    path.parent.mkdir(parents=True)
    path.write_text(LATE)
    return tmp_path / "lib"


@pytest.fixture
def check(tmp_path: Path) -> Run:
    """Runs ``check`` without a run-time part, unless the options say something about it."""

    def run(*options: object) -> int:
        argv = ["check", *map(str, options), "--cache-dir", str(tmp_path / "cache")]
        return entry.main(argv)

    return run


def mend(lib: Path) -> None:
    (lib / "inner" / "__init__.py").write_text(MENDED)


# -- exit codes ------------------------------------------------------------------------------------


def test_findings_are_1_and_none_are_0(check: Run, lib: Path, capsys: Captured) -> None:
    assert check(lib, "--static") == 1
    output = capsys.readouterr()
    assert "inner/__init__.py:5:5: error lazy-torch-import" in output.out
    assert "1 checked, 1 errors, 0 warnings" in output.out
    assert "lazy-torch-import" not in output.err
    mend(lib)
    assert check(lib, "--static") == 0
    assert "0 errors" in capsys.readouterr().out


BAD: Mapping[str, tuple[tuple[str, ...], str]] = {
    "both ways": (("--static", "--run-time"), "--static and --run-time exclude each other"),
    "a call without a run": (("--static", "--exercise", "f=1"), "--static and --exercise exclude"),
    "a rule": (
        ("--static", "--rules", "circular-imports"),
        "unknown rule 'circular-imports'; did you mean 'circular-import'?",
    ),
    "no rule": (("--static", "--rules", ","), "--rules"),
    "a baseline that is not there": (("--static", "--baseline", "none.toml"), "no baseline none"),
    "a baseline that is a folder": (("--static", "--baseline", "."), "no baseline ."),
    "a library": (("fused-nrm", "--static"), "unknown library 'fused-nrm'; nearest: fused-norm"),
    "a release": (("pypi:quack", "--static"), "pypi:quack is not of the form"),
    "a set": (("--static", "--set", "fleets"), "fleets"),
    "an empty set": (("--static", "--set", ""), "--set"),
    "a source": (("--static", "--source", "quack"), "not of the form"),
    "a Python": (("--python", "3.9"), "Python 3.9 is not in the matrix"),
    "an option": (("--statik",), "--static"),
    "a declaration file": (("--static", "--declare", "none.py"), "no declaration file none.py"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_usage_is_2_with_the_next_command_and_writes_nothing(
    check: Run,
    lib: Path,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    options, told = BAD[name]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert check(lib, *options, "--report", "r.json", "--sarif", "s.sarif") == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert told in output.err
    assert "next: " in output.err
    assert "Traceback" not in output.err
    assert list((tmp_path / "here").iterdir()) == []
    assert check(lib, *options, "--json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ToolchainError("no Python here", cause="c", next_step="n"), 3),
        (InfrastructureError("no index", cause="c", next_step="n"), 4),
    ],
)
def test_what_keeps_the_run_time_part_from_running_is_an_exit_code_on_request(
    check: Run,
    lib: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    error: ToolchainError,
    code: int,
) -> None:
    result = RunTime(why_not=error.message, error=error)
    monkeypatch.setattr(run_time_module, "run_subject", lambda *_: result)
    mend(lib)
    assert check(lib, "--run-time") == code
    assert error.message in capsys.readouterr().err
    assert check(lib) == 0
    assert f"run time: {error.message}" in capsys.readouterr().out


# -- documents and files ---------------------------------------------------------------------------


def test_the_document_is_the_only_output_and_keeps_to_its_schema(
    check: Run, lib: Path, tmp_path: Path, capsys: Captured
) -> None:
    report, sarif = tmp_path / "new" / "report.json", tmp_path / "other" / "check.sarif"
    assert check(lib, "--static", "--json", "--report", report, "--sarif", sarif) == 1
    document = json.loads(capsys.readouterr().out)
    schema = Path(ci.report.__file__).with_name("check.schema.json").read_text("utf-8")
    Draft202012Validator(json.loads(schema)).validate(document)
    assert document["exit_code"] == 1
    (library,) = document["libraries"]
    assert [item["rule"] for item in library["findings"]] == ["lazy-torch-import"]
    assert library["in_repository"] is False
    assert json.loads(report.read_text("utf-8")) == document
    (run,) = json.loads(sarif.read_text("utf-8"))["runs"]
    (result,) = run["results"]
    place = result["locations"][0]["physicalLocation"]
    assert (result["ruleId"], place["region"]["startLine"]) == ("lazy-torch-import", 5)
    assert place["artifactLocation"] == {"uri": "inner/__init__.py", "uriBaseId": "lib"}


def test_places_in_the_repository_are_relative_to_it(
    check: Run, tmp_path: Path, capsys: Captured
) -> None:
    """Seen with a warning about a declared library: the committed excuses are left out."""
    (tmp_path / "none.toml").write_text("")
    sarif = tmp_path / "check.sarif"
    assert check("--static", "--baseline", tmp_path / "none.toml", "--sarif", sarif, "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert all(item["in_repository"] for item in document["libraries"])
    (run,) = json.loads(sarif.read_text("utf-8"))["runs"]
    (locations,) = zip(*(item["locations"] for item in run["results"]), strict=True)
    places = [item["physicalLocation"]["artifactLocation"] for item in locations]
    assert places
    for place in places:
        assert place["uriBaseId"] == "%SRCROOT%"
        assert (REPOSITORY / place["uri"]).is_file()


def test_two_checks_of_the_same_are_the_same(check: Run, lib: Path, capsys: Captured) -> None:
    documents = []
    for _ in range(2):
        check(lib, "--static", "--json")
        documents.append({**json.loads(capsys.readouterr().out), "seconds": 0})
    assert documents[0] == documents[1]


def test_notes_are_shown_on_request(check: Run, lib: Path, capsys: Captured) -> None:
    (lib / "inner" / "__init__.py").write_text("from . import a\n")
    (lib / "inner" / "a.py").write_text("from . import b\n")
    (lib / "inner" / "b.py").write_text("from . import a\n")
    assert check(lib, "--static") == 0
    few = capsys.readouterr().out
    assert "note circular-import" not in few
    assert "1 notes (--notes shows them)" in few
    assert check(lib, "--static", "--notes") == 0
    assert "note circular-import" in capsys.readouterr().out


def test_a_baseline_is_written_filled_in_and_goes_stale(
    check: Run, lib: Path, tmp_path: Path, capsys: Captured
) -> None:
    known = tmp_path / "deep" / "known.toml"
    assert check(lib, "--static", "--baseline", known, "--write-baseline", "--json") == 1
    output = capsys.readouterr()
    assert json.loads(output.out)["exit_code"] == 1
    assert "now write the reasons" in output.err
    assert check(lib, "--static", "--baseline", known) == 2
    assert "the reason '' says nothing" in capsys.readouterr().err
    known.write_text(known.read_text().replace('reason = ""', 'reason = "as upstream has it"'))
    assert check(lib, "--static", "--baseline", known) == 0
    assert "known findings (baseline): 1" in capsys.readouterr().out
    mend(lib)
    assert check(lib, "--static", "--baseline", known) == 1
    output = capsys.readouterr()
    assert "stale-baseline-entry" in output.out
    assert "next: correct known.toml:2" in output.out


def test_annotations_come_in_github_actions(
    check: Run, lib: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert check(lib, "--static") == 1
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("::")]
    assert line.startswith("::error title=lazy-torch-import::inner/__init__.py:5:5: ")
    check(lib, "--static", "--json")
    json.loads(capsys.readouterr().out)


# -- lists and help --------------------------------------------------------------------------------


def test_the_rules_are_listed_as_a_table_and_as_a_document(check: Run, capsys: Captured) -> None:
    assert check("--list-rules") == 0
    table = capsys.readouterr().out
    assert check("--list-rules", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [rule["name"] for rule in document["rules"]] == list(all_rules())
    for rule in document["rules"]:
        assert rule["name"] in table
        assert set(rule) == {"name", "summary", "guide", "level"}


@pytest.mark.parametrize("columns", ["80", "200"])
def test_help_names_every_option_with_what_it_does(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit) as left:
        entry.main(["check", "--help"])
    assert left.value.code == 0
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= int(columns)
    _, _, options = told.partition("\noptions:\n")
    for option in (
        "--json", "--set", "--declare", "--source", "--static", "--run-time", "--online", "--python",
        "--exercise", "--rules", "--list-rules", "--baseline", "--write-baseline", "--notes", "--report",
        "--sarif", "--cache-dir",
    ):  # fmt: skip
        described = re.search(
            rf"^  {option}\b(?: \S+)*?\s{{2,}}\S|^  {option}\b.*\n\s+\S", options, re.M
        )
        assert described, option
    words = " ".join(told.split())
    assert "LIBRARY" in words
    assert "pypi:PROJECT==VERSION" in words


# -- integrate and remove --------------------------------------------------------------------------


def finished(code: int, output: str = "") -> Completed:
    return Completed(Command(("x",)), code, output, 0.1)


def said(document: Mapping[str, Any], code: int) -> Callable[[Command], Completed]:
    """A process that writes ``document`` to its ``--report`` and leaves with ``code``."""

    def run(command: Command) -> Completed:
        argv = [*command.argv]
        Path(argv[argv.index("--report") + 1]).write_text(json.dumps(document))
        return finished(code)

    return run


def test_a_library_that_was_just_declared_is_checked_by_a_new_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Finding("lazy-torch-import", "x.py", "why", "mend", 3, 1, "error", "lib", "f")
    asked: list[Command] = []

    def run(command: Command) -> Completed:
        asked.append(command)
        return said({"libraries": [{"findings": [vars(found)]}, {"findings": []}]}, 1)(command)

    monkeypatch.setattr(scaffolding, "run", run)
    assert scaffolding.check_anew("lib", ("--static",)) == (found,)
    assert [*asked[0].argv][1:5] == ["-m", "ci", "check", "lib"]
    assert asked[0].argv[-1] == "--static"
    assert asked[0].cwd == REPOSITORY


def test_a_check_that_cannot_be_made_is_no_clean_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaffolding, "run", lambda _: finished(2, "error: it broke\n"))
    with pytest.raises(FindingError, match="lib cannot be checked") as caught:
        scaffolding.check_anew("lib")
    assert caught.value.cause == "error: it broke"
    assert caught.value.next_step == "python -m ci check lib"


def test_the_check_of_a_declared_library_is_read_back() -> None:
    """With the real process: what it reports can be read as findings."""
    assert scaffolding.check_anew("fused-norm", ("--static",)) == ()


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["integrate", "--json"], "name"),
        (["integrate", "x y", "--kind", "python_dsl", "--url", "/none", "--json"], "x y"),
        (["remove", "--json"], "NAME"),
        (["remove", "fused-nrm", "--json"], "fused-nrm"),
    ],
)
def test_integrate_and_remove_refuse_in_one_document(
    capsys: Captured, argv: list[str], told: str
) -> None:
    registry = (build_utils.PACKAGE_ROOT / "build_utils.py").read_bytes()
    assert entry.main(argv) == 2
    output = capsys.readouterr()
    error = json.loads(output.out)["error"]
    assert told.lower() in json.dumps(error).lower()
    assert error["next_step"]
    assert (build_utils.PACKAGE_ROOT / "build_utils.py").read_bytes() == registry


@pytest.mark.parametrize("verb", ["integrate", "remove"])
def test_help_of_the_scaffolding_is_no_error(capsys: Captured, verb: str) -> None:
    with pytest.raises(SystemExit) as left:
        entry.main([verb, "--help"])
    assert left.value.code == 0
    assert f"usage: python -m ci {verb}" in capsys.readouterr().out


def test_in_and_out_again_are_told_as_documents(
    tmp_path: Path, commit_files: Callable[[Path, dict[str, str]], str]
) -> None:
    """In a clone of this checkout: the documents say what git sees."""
    checkout = clone_of_checkout(tmp_path / "checkout")
    source = tmp_path / "sources" / "scan-ops"
    commit = commit_files(
        source,
        {
            "pyproject.toml": '[build-system]\nrequires = ["setuptools>=70"]\n'
            '[project]\nname = "scan-ops"\nversion = "1"\n',
            "scan_ops/__init__.py": "import torch\n\n\ndef scan(x):\n    return torch.cumsum(x, 0)\n",
        },
    )

    def farm(*arguments: str) -> dict[str, Any]:
        argv = (sys.executable, "-m", "ci", *arguments, "--json")
        done = subprocess.run(argv, cwd=checkout, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return dict(json.loads(done.stdout))

    document = farm(
        "integrate", "scan-ops", "--kind", "python_dsl", "--url", str(source), "--static",
        "--cache-dir", str(tmp_path / "cache"),
    )  # fmt: skip
    submodule = document["submodule"]
    assert (document["library"], document["commit"]) == ("scan-ops", commit)
    listed = call("ls-files", "--stage", submodule, cwd=checkout).split()
    assert listed[:2] == ["160000", commit]
    for path in document["files"]:
        assert (checkout / path).is_file()
    assert document["findings"] == []
    assert ["module", "scan_ops"] in [item[:2] for item in document["inferred"]]
    assert document["next"]

    changed = set(call("diff", "HEAD", "--name-only", cwd=checkout).split())
    removed = farm("remove", "scan-ops")
    assert submodule in removed["removed"]
    assert {*removed["removed"], *removed["edited"]} >= {*document["files"]} & changed
    assert call("status", "--porcelain", cwd=checkout) == ""
