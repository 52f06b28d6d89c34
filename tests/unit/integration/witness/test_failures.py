"""Imports and calls that fail, and processes that do not come to their end."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from ci.errors import InfrastructureError
from ci.findings import Finding
from ci.integration.witness import WitnessRequest, WitnessResult, run_witness, witness_findings
from tests.unit.integration.witness.conftest import PACKAGE, Watch


def only(result: WitnessResult, *, gated: bool = False) -> Finding:
    (finding,) = witness_findings(result, "Seeded", {"seeded": "sources/seeded.py"}, gated=gated)
    return finding


SEGFAULT = "import ctypes\nctypes.string_at(0)\n"

IMPORTS = {
    "an attribute that Paddle lacks": (
        "import torch\n\ntorch.no_such_function\n",
        3,
        "Paddle has no paddle.no_such_function",
    ),
    "a module that Paddle lacks": (
        "import torch\nimport torch.no_such_module\n",
        2,
        "Paddle has no module for torch.no_such_module",
    ),
    "a package that is not installed": ("\nimport no_such_package\n", 2, "it is not installed"),
    "sys.exit": ("import sys\n\nsys.exit(3)\n", 3, "SystemExit: 3"),
    "an error of its own": ("x = 1\nraise ValueError('so it is')\n", 2, "ValueError: so it is"),
    "an exception beyond Exception": (
        "class Odd(BaseException):\n    pass\nraise Odd('odd')\n",
        3,
        "Odd: odd",
    ),
}


@pytest.mark.parametrize(("text", "line", "cause"), IMPORTS.values(), ids=IMPORTS)
def test_a_failed_import_names_its_line_and_its_cause(
    watch: Watch, text: str, line: int, cause: str
) -> None:
    result = watch({"seeded/__init__.py": text})

    finding = only(result)
    assert (finding.rule, finding.place, finding.line) == (
        "import-fails",
        "sources/seeded.py",
        line,
    )
    assert cause in finding.why
    assert result.ending == ""


def test_a_dependency_that_imports_torch_before_the_guard_is_named(watch: Watch) -> None:
    result = watch(
        {"seeded/__init__.py": PACKAGE},
        {"helper/__init__.py": "import torch\n"},
        preload=("helper",),
    )

    assert "helper imports torch" in only(result).why
    assert "take 'helper' out of preload" in only(result).mend


def test_a_library_that_switches_the_proxy_off_while_it_is_imported_is_told(watch: Watch) -> None:
    text = "import paddle\npaddle.disable_compat()\npaddle.disable_compat()\nimport torch\n"
    finding = only(watch({"seeded/__init__.py": text}))

    assert (finding.rule, finding.line) == ("import-fails", 4)
    assert "seeded imports torch where the proxy is off" in finding.why


def test_a_preload_that_is_not_there_fails_the_import(watch: Watch) -> None:
    result = watch({"seeded/__init__.py": PACKAGE}, preload=("no_such_package",))

    assert only(result).rule == "import-fails"
    assert "no_such_package" in only(result).why


def test_load_env_is_set_while_it_is_imported(watch: Watch) -> None:
    text = f"import os\nassert os.environ['SEEDED'] == 'yes'\n{PACKAGE}"
    result = watch({"seeded/__init__.py": text}, load_env={"SEEDED": "yes"})

    assert witness_findings(result, "Seeded", {}) == ()


ENDINGS = {
    "crash": (SEGFAULT, "SIGSEGV"),
    "exit": ("import os\nos._exit(7)\n", "left with status 7"),
    "abort": ("import os\nos.abort()\n", "SIGABRT"),
}


@pytest.mark.parametrize(("text", "how"), ENDINGS.values(), ids=ENDINGS)
def test_an_import_that_ends_the_process_is_told_apart(watch: Watch, text: str, how: str) -> None:
    result = watch({"seeded/__init__.py": text})

    finding = only(result)
    assert finding.rule == "import-fails"
    assert how in finding.why
    assert result.stage == "import"


@pytest.mark.parametrize(("text", "how"), ENDINGS.values(), ids=ENDINGS)
def test_a_call_that_ends_the_process_is_told_with_its_name(
    watch: Watch, text: str, how: str
) -> None:
    body = "".join(f"    {row}\n" for row in text.splitlines())
    result = watch({"seeded/__init__.py": f"import torch\ndef double(x):\n{body}"})

    finding = only(result)
    assert finding.rule == "exercise-fails"
    assert how in finding.why
    assert "exercise double" in finding.why
    assert [module.name for module in result.imported] == ["seeded"]


def test_an_import_that_hangs_is_ended_and_its_line_is_in_the_log(
    watch: Watch, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    text = f"import time\n\nopen({str(begun)!r}, 'w').close(); time.sleep(600)\n"
    # On a busy machine Paddle itself takes longer to start than the first limit.
    for limit in (8.0, 40.0, 160.0):
        with contextlib.suppress(InfrastructureError):
            result = watch({"seeded/__init__.py": text}, timeout=limit)
        if begun.exists():
            break

    finding = only(result)
    assert finding.rule == "import-fails"
    assert f"did not end within {limit:.0f} s" in finding.why
    assert 'seeded/__init__.py", line 3' in result.log.read_text()


def test_an_exercise_that_raises_is_told_and_the_others_go_on(watch: Watch) -> None:
    text = PACKAGE + "\ndef bad(x):\n    raise ValueError('no such shape')\n"
    result = watch(
        {"seeded/__init__.py": text},
        public_names=("bad", "double"),
        exercises={"bad": "1", "double": "paddle.ones([2])"},
    )

    finding = only(result)
    assert (finding.rule, finding.line) == ("exercise-fails", 7)
    assert "bad(1) raised ValueError: no such shape" in finding.why
    assert result.exercised == ("double",)


def test_an_exercise_whose_arguments_fail_is_told(watch: Watch) -> None:
    result = watch({"seeded/__init__.py": PACKAGE}, exercises={"double": "paddle.no_such_thing"})

    assert only(result).rule == "exercise-fails"
    assert "no_such_thing" in only(result).why


def test_public_names_that_are_missing_are_told_and_callables_without_exercise_named(
    watch: Watch,
) -> None:
    result = watch(
        {"seeded/__init__.py": PACKAGE + "ROWS = 3\n"},
        public_names=("double", "ROWS", "gone"),
        exercises={},
    )

    assert only(result).rule == "public-name-missing"
    assert only(result).subject == "gone"
    assert result.not_exercised == ("double",)


@pytest.mark.parametrize("text", ["raise OSError('no driver')\n", SEGFAULT], ids=["error", "crash"])
def test_what_fails_without_the_gpu_that_it_needs_is_a_note(watch: Watch, text: str) -> None:
    finding = only(watch({"seeded/__init__.py": text}), gated=True)

    assert (finding.rule, finding.level) == ("import-fails", "note")
    assert "needs a GPU" in finding.why


def test_an_environment_without_paddle_is_no_fault_of_the_library(tmp_path: Path) -> None:
    import venv

    venv.create(tmp_path / "bare", with_pip=False)
    request = WitnessRequest((tmp_path,), "seeded", ("seeded",), ("seeded",))
    with pytest.raises(InfrastructureError, match="no usable Paddle") as caught:
        run_witness(request, tmp_path / "bare/bin/python", tmp_path / "work", 60.0)

    assert "No module named 'paddle'" in caught.value.cause


def test_the_program_sees_nothing_of_this_process(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    text = (
        "import os, sys\n"
        "assert 'PYTHONPATH' not in os.environ\n"
        "assert os.listdir() == []\n"
        "assert not any('integration' in entry for entry in sys.path)\n"
        "assert 'ci' not in sys.modules\n"
    )
    result = watch({"seeded/__init__.py": text + PACKAGE})

    assert witness_findings(result, "Seeded", {}) == ()
    assert sys.path != []
