"""The command line: exit codes, one JSON document, nothing written for bad input."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ci import __main__ as entry
from ci import cli, generated
from ci.errors import (
    ConfigError,
    FarmError,
    FindingError,
    InfrastructureError,
    LibraryBuildError,
    SuiteError,
    ToolchainError,
)
from ci.registry import REPOSITORY, build_utils


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that the run would write to; the current folder is inside it as well."""
    folder = tmp_path / "places"
    (folder / "here").mkdir(parents=True)
    monkeypatch.chdir(folder / "here")
    return folder


def wheel(places: Path, *options: str) -> list[str]:
    return [
        "wheel", "--set", "templates", "--cache-dir", str(places / "cache"),
        "--out-dir", str(places / "dist"), *options,
    ]  # fmt: skip


def written(places: Path) -> list[str]:
    return [str(path) for path in places.rglob("*") if path != places / "here"]


BAD: dict[str, tuple[list[str], int, Sequence[str]]] = {
    "a CUDA that is not in the matrix": (
        ["--cuda", "12.7"],
        2,
        ["CUDA 12.7 is not in the matrix", "nearest: 12.6"],
    ),
    "a CUDA that is no version": (["--cuda", "thirteen"], 2, ["thirteen"]),
    "a Python that is not in the matrix": (
        ["--cuda", "13.0", "--python", "3.9"],
        2,
        ["Python 3.9 is not in the matrix", "3.10"],
    ),
    "a capability that no GPU has": (
        ["--cuda", "13.0", "--capability", "9.1"],
        2,
        ["9.1", "9.0"],
    ),
    "a capability that this CUDA cannot compile": (
        ["--cuda", "12.6", "--capability", "10.0"],
        2,
        ["10.0", "12.6", "9.0"],
    ),
    "a capability in nvcc's words": (
        ["--cuda", "13.0", "--capability", "sm_90a"],
        2,
        ["sm_90a", "9.0a"],
    ),
    "a capability set": (
        ["--cuda", "13.0", "--capability-set", "hoper"],
        2,
        ["hoper", "hopper"],
    ),
    "a library": (
        ["--cuda", "13.0", "--libs", "fused-nrm"],
        2,
        ["unknown library 'fused-nrm'", "nearest: fused-norm"],
    ),
    "a library of another set": (
        ["--cuda", "13.0", "--libs", "quack"],
        2,
        ["unknown library 'quack'", "expert-placement, fused-norm"],
    ),
    "a set": (["--cuda", "13.0", "--set", "fleets"], 2, ["'fleets'", "fleet, templates"]),
    "a tier": (["--tier", "nightli"], 2, ["nightli", "nightly"]),
    "an executor": (
        ["--cuda", "13.0", "--libs", "ep-exchange", "--executor", "docker"],
        2,
        ["unknown executor 'docker'", "auto|host|container"],
    ),
    "an executor that is not here": (
        ["--cuda", "13.0", "--libs", "ep-exchange", "--executor", "container"],
        4
        if any(map(shutil.which, ("docker", "podman")))
        else 3,  # an engine that is silent, or none
        ["docker", "next: "],
    ),
    "a source of no form": (
        ["--cuda", "13.0", "--source", "fused-norm"],
        2,
        ["--source fused-norm: not of the form", "pypi:PROJECT==VERSION"],
    ),
    "a source of an unknown library": (
        ["--cuda", "13.0", "--source", "fused-nrm=path:."],
        2,
        ["unknown library 'fused-nrm'", "nearest: fused-norm"],
    ),
    "a compiler": (["--cuda", "13.0", "--compiler", "icc"], 2, ["icc", "nvcc"]),
    "no jobs": (["--jobs", "0"], 2, ["'0' is not a positive number"]),
    "negative jobs": (["--jobs", "-2"], 2, ["--jobs"]),
    "jobs that are no number": (["--jobs", "many"], 2, ["'many' is not a positive number"]),
    "an option": (["--cdua", "13.0"], 2, ["--cdua"]),
    "an option without its value": (["--cuda"], 2, ["--cuda"]),
    "a declaration file that is not there": (
        ["--cuda", "13.0", "--declare", "none.py"],
        2,
        ["no declaration file none.py"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_what_would_do_and_nothing_is_written(
    places: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    options, code, words = BAD[name]
    assert entry.main(wheel(places, *options)) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert "next: " in output.err
    assert "Traceback" not in output.err
    for word in words:
        assert word in output.err
    assert written(places) == []


@pytest.mark.parametrize("name", BAD)
def test_with_json_an_error_is_one_document_on_stdout(
    places: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    options, code, _ = BAD[name]
    assert entry.main(wheel(places, "--json", *options)) == code
    document = json.loads(capsys.readouterr().out)
    error = document["error"]
    assert error["exit_code"] == code
    assert error["message"]
    assert error["next_step"]
    assert written(places) == []


@pytest.mark.parametrize("name", [name for name, bad in BAD.items() if "--jobs" not in bad[0]])
def test_a_dry_run_refuses_the_same(
    places: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    options, code, _ = BAD[name]
    assert entry.main(wheel(places, "--dry-run", *options)) == code
    assert written(places) == []


@pytest.mark.parametrize("argv", [[], ["wheeel"], ["--help-me"], [""]])
def test_an_unknown_verb_is_refused_with_those_that_are(
    capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    assert entry.main(argv) == 2
    error = capsys.readouterr().err
    assert "python -m ci --help" in error
    if argv == ["wheeel"]:
        assert "wheel" in error.replace("wheeel", "")


@pytest.mark.parametrize(
    ("argv", "nearest"),
    [
        (["matrx"], "matrix"),
        (["wheel", "--capabilty", "9.0"], "--capability"),
        (["import", "--outdir", "x"], "--out-dir"),
    ],
)
def test_a_misspelt_verb_or_option_is_told_the_nearest_one(
    argv: list[str], nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry.main(argv) == 2
    assert f"nearest: {nearest}" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["", "matrix", "libraries", "wheel", "import", "lock", "sync"])
def test_help_is_no_error(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    with pytest.raises(SystemExit) as left:
        entry.main([*filter(None, [verb]), "--help"])
    assert left.value.code == 0
    assert "usage: python -m ci" in capsys.readouterr().out


# --- errors become exit codes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FindingError, 1),
        (LibraryBuildError, 1),
        (SuiteError, 1),
        (ConfigError, 2),
        (ToolchainError, 3),
        (InfrastructureError, 4),
    ],
)
def test_an_error_of_a_verb_is_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: type[FarmError],
    code: int,
) -> None:
    def fail(_: object) -> int:
        raise error("it happened", cause="because", next_step="do this", details=["detail"])

    monkeypatch.setattr(cli, "run_verb", fail)
    assert entry.main(["matrix"]) == code
    output = capsys.readouterr()
    assert output.out == ""
    for word in ("it happened", "because", "do this", "detail"):
        assert word in output.err
    assert entry.main(["matrix", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == code


def test_an_interrupt_is_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run_verb", interrupted)
    assert entry.main(["wheel", "--json"]) == 130
    output = capsys.readouterr()
    assert json.loads(output.out)["error"]["kind"] == "interrupted"
    assert "the same command again" in output.err


def test_a_supervisor_s_sigterm_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def terminated(_: object) -> int:
        signal.raise_signal(signal.SIGTERM)
        return 0

    monkeypatch.setattr(cli, "run_verb", terminated)
    assert entry.main(["matrix"]) == 130


def test_the_process_ends_with_the_exit_code() -> None:
    done = subprocess.run(
        (sys.executable, "-m", "ci", "libraries", "--set", "flet"),
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert "unknown set 'flet'; there are: fleet, templates" in done.stderr


# --- verbs that only tell -------------------------------------------------------------------------


def document(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> Any:
    assert entry.main([*argv, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_matrix_is_told_as_json_and_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    cells = json.dumps(document(capsys, "matrix"))
    assert "cu130-cp312" in cells
    assert entry.main(["matrix"]) == 0
    assert "cu130-cp312" in capsys.readouterr().out


@pytest.mark.parametrize("library_set", build_utils.library_sets())
def test_every_library_is_told_as_json_and_in_the_table(
    capsys: pytest.CaptureFixture[str], library_set: str
) -> None:
    told = document(capsys, "libraries", "--set", library_set)
    names = [library.name for library in build_utils.get_libs(library_set)]
    assert [item["name"] for item in told["libraries"]] == names
    assert entry.main(["libraries", "--set", library_set]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in names)


def test_a_submodule_problem_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_utils, "PACKAGE_ROOT", tmp_path)
    told = document(capsys, "submodules", "--libs", "quack,fla-unknown", code=2)
    assert "unknown library 'fla-unknown'" in told["error"]["message"]
    told = document(capsys, "submodules", "--libs", "quack", code=1)
    assert [(item["library"], item["problem"]) for item in told["problems"]] == [
        ("quack", "not checked out")
    ]
    assert document(capsys, "submodules", "--set", "templates") == {"schema": 1, "problems": []}


def test_no_wheel_to_import_is_a_configuration_error(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("import", "--out-dir", str(places / "dist"), "--cache-dir", str(places / "cache"))
    assert "no wheel in" in document(capsys, *argv, code=2)["error"]["message"]
    assert written(places) == []


@pytest.mark.parametrize("found", [(), (".gitignore", "gitlink x")])
def test_a_stale_file_is_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, found: tuple[str, ...]
) -> None:
    monkeypatch.setattr(generated, "stale_files", lambda: found)
    monkeypatch.setattr(generated, "write_files", None)  # a check writes nothing
    assert entry.main(["sync", "--check"]) == (1 if found else 0)
    output = capsys.readouterr()
    assert all(name in output.err for name in found)


def test_a_dry_run_tells_cells_and_libraries_and_writes_nothing(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    options = ("--cuda", "13.0", "--python", python, "--libs", "ep-exchange", "--dry-run")
    told = document(capsys, *wheel(places, *options))
    (cell,) = told["cells"]
    assert cell["cell"] == f"cu130-cp{python.replace('.', '')}"
    assert cell["compiler"] == "none needed"
    planned = [row["library"] for row in cell["libraries"] if row["status"] == "planned"]
    assert planned == ["ep-exchange"]
    assert written(places) == []


def test_the_cache_folder_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PADDLEFLEET_FARM_CACHE", str(tmp_path / "named"))
    assert cli.default_cache_dir() == tmp_path / "named"
    monkeypatch.delenv("PADDLEFLEET_FARM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cli.default_cache_dir() == tmp_path / "xdg" / "paddlefleet-farm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cli.default_cache_dir() == tmp_path / ".cache" / "paddlefleet-farm"


def test_everything_that_is_wrong_is_told_at_once(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (
        "--cuda", "13.1", "--python", "3.99", "--libs", "flashmla,quak", "--executor", "cloud",
        "--tier", "nightlly", "--source", "x=y",
    )  # fmt: skip
    assert entry.main(wheel(places, *options)) == 2
    told = capsys.readouterr().err
    for word in ("13.1", "3.99", "flashmla", "quak", "cloud", "nightlly", "x=y"):
        assert word in told
    assert written(places) == []


def test_a_source_that_no_cell_builds_is_refused(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--cuda", "13.0", "--libs", "ep-exchange", "--source", "fused-norm=path:.")
    assert entry.main(wheel(places, *options)) == 2
    told = capsys.readouterr().err
    assert "fused-norm, which no cell builds" in told
    assert "not asked for" in told


@pytest.mark.parametrize(
    "options",
    [["--cuda", ""], ["--python", " , "], ["--libs", ""], ["--capability", ""], ["--tier", ""]],
)
def test_an_empty_value_is_refused_and_does_not_mean_everything(
    places: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert entry.main(wheel(places, *options)) == 2
    assert "leave the option out" in capsys.readouterr().err


def test_a_repeated_list_adds_and_drops_nothing() -> None:
    options = ["wheel", "--cuda", "13.0", "--cuda", "12.6", "--libs", "a", "--libs", "b,c"]
    arguments = cli.build_parser().parse_args(options)
    assert arguments.cuda == ["13.0", "12.6"]
    assert arguments.libs == ["a", "b", "c"]
    assert cli.build_parser().parse_args(["wheel", "--cuda", "12.9"]).cuda == ["12.9"]


def test_folders_that_cannot_be_used_are_refused_before_anything_is_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    common = ["wheel", "--cuda", "13.0", "--set", "templates", "--libs", "ep-exchange"]
    good = ["--cache-dir", str(tmp_path / "cache")]
    assert entry.main([*common, *good, "--out-dir", str(tmp_path / "file" / "x")]) == 2
    assert "--out-dir" in capsys.readouterr().err
    out = ["--out-dir", str(tmp_path / "out")]
    assert entry.main([*common, *out, "--cache-dir", str(tmp_path / "file")]) == 2
    assert "--cache-dir" in capsys.readouterr().err
    assert entry.main([*common, *out, "--cache-dir", str(tmp_path / "a b")]) == 2
    assert "white space" in capsys.readouterr().err


def test_a_disk_failure_is_infrastructure_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_argv: Sequence[str]) -> int:
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr(cli, "run_verb", full)
    assert entry.main(["matrix", "--json"]) == 4
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"]["cause"] == "the disk is full"
    assert "Traceback" not in captured.err


def test_a_dry_run_without_a_compiler_ends_as_the_run_would(
    places: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PADDLEFLEET_FARM_CUDA_ROOTS", "")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    options = ("--cuda", "12.6", "--set", "templates", "--dry-run")
    code = entry.main(wheel(places, *options))
    captured = capsys.readouterr()
    assert code == 3, captured.out
    assert "fused-norm" in captured.out
    assert "--compiler clang" in captured.err


@pytest.mark.parametrize(
    "manifest", ["[]", "{}", '{"version": "1"}', "not json", '{"libraries": 3}']
)
def test_a_foreign_wheel_is_a_configuration_error(
    manifest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "paddlefleet_ops-1-py3-none-any.whl"
    with zipfile.ZipFile(foreign, "w") as archive:
        archive.writestr("paddlefleet_ops/_manifest.json", manifest)
    assert entry.main(["import", str(foreign), "--out-dir", str(tmp_path / "out")]) == 2
    assert "is not a paddlefleet_ops wheel" in capsys.readouterr().err
