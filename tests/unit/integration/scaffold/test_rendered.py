"""What is rendered passes the linters, and the tests among it find what they are there to find."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ci.integration.scaffold.declaration import declaration_text
from ci.integration.scaffold.files import read_mark, rendered_files
from ci.integration.scaffold.infer import Facts, infer
from ci.integration.scaffold.registry_file import Registry, kinds
from ci.integration.scaffold.request import Exercise, IntegrateRequest
from ci.registry import REPOSITORY, EcosystemLibrary
from tests.unit.integration.scaffold.conftest import SOURCES

LONG = "a_module_with_a_name_that_is_longer_than_most"
EXERCISE = Exercise("scale=paddle.to_tensor([1.0, 2.0, 3.0]), factor=2.0 -> [3]")


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.read(REPOSITORY)


def facts_of(folder: Path, request: IntegrateRequest, registry: Registry) -> Facts:
    for name, text in SOURCES[request.kind][1].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return infer(request, folder, registry.libraries)


REQUESTS = [
    *(IntegrateRequest(name=f"new-{kind}", kind=kind, url="https://example.org/new.git") for kind in kinds()),
    IntegrateRequest(
        name="long",
        kind="cuda_extension",
        url="https://example.org/" + "group/" * 10 + "long.git",
        module=LONG,
        artifacts=((LONG, LONG), ("x", f"{LONG}_cpp")),
        public_names=tuple(f"{LONG}.sub:function_number_{n}" for n in range(12)),
        scope=("triton", "quack"),
        requires_cuda=">=12.9,<14.0",
        requires_python=">=3.12",
        requires_capability=">=9.0,<11.0",
        cpu_path=True,
        build_requires=tuple(f"package-number-{n}>=1.{n},<2" for n in range(9)),
        run_requires=("einops>=0.8",),
        availability=LONG,
        hint="\"quoted\" and 'quoted' " + "w" * 60,
        nested=("third/inner",),
        exercises=(Exercise(f"{LONG}.sub:function_number_1={'paddle.ones([2, 16]), ' * 9}"),),
    ),
]  # fmt: skip
by_name = pytest.mark.parametrize("request_", REQUESTS, ids=lambda item: item.name)


def ruff(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *arguments, "--config", str(REPOSITORY / "pyproject.toml"), "."],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return "" if done.returncode == 0 else done.stdout + done.stderr


@by_name
def test_the_linters_pass_what_is_written(
    tmp_path: Path, registry: Registry, request_: IntegrateRequest
) -> None:
    pytest.importorskip(
        "ruff", reason="ruff belongs to the lint group, which is not installed here"
    )
    facts = facts_of(tmp_path / "source", request_, registry)
    text = registry.with_declaration(declaration_text(request_, facts, "0" * 40))
    library = Registry.of(text, registry.path).find(request_.name)
    assert library is not None
    out = tmp_path / "out"
    tensors = ", ".join(f"paddle.ones([{n}, 16], 'float32')" for n in range(9))
    long_call = Exercise(f"shift={tensors}")
    for number, exercises in enumerate(((), (EXERCISE, long_call))):
        for path, content in rendered_files(library, exercises, "src/layers/w.py").items():
            file = out / f"tests/{number}" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
    (out / "build_utils.py").write_text(text)
    assert ruff(out, "format", "--diff") == ""
    assert ruff(out, "check", "--extend-ignore", "INP001") == ""


@by_name
def test_the_registry_has_one_declaration_more_and_gives_it_back(
    tmp_path: Path, registry: Registry, request_: IntegrateRequest
) -> None:
    facts = facts_of(tmp_path, request_, registry)
    text = registry.with_declaration(declaration_text(request_, facts, "0" * 40))
    more = Registry.of(text, registry.path)
    names = [library.name for library in registry.libraries]
    assert {library.name for library in more.libraries} == {*names, request_.name}
    assert more.without_declaration(request_.name) == registry.text


def test_a_declaration_anywhere_in_the_tuple_can_go(registry: Registry) -> None:
    for library in registry.libraries:
        if library.library_set == "fleet":
            rest = registry.without_declaration(library.name)
            assert library.name not in [
                item.name for item in Registry.of(rest, registry.path).libraries
            ]


# --- the mark -------------------------------------------------------------------------------------


@pytest.fixture
def library(registry: Registry) -> EcosystemLibrary:
    found = registry.find("FlashMLA")
    assert found is not None
    return replace(found, name="fast-ops", module="fast_ops", public_names=("scale", "shift"))


def test_a_mark_tells_an_edited_file(library: EcosystemLibrary) -> None:
    for text in rendered_files(library, (EXERCISE,), "w.py").values():
        mark = read_mark(text)
        assert mark is not None
        assert (mark.library, mark.edited) == ("fast-ops", False)
        changed = read_mark(text.replace("paddlefleet_ops", "paddlefleet_opz", 1))
        assert changed is not None
        assert changed.edited
        assert read_mark("\n" + text) is None


# --- the rendered tests at work -------------------------------------------------------------------

# Stands for the package: `scale` doubles unless it is told otherwise, `available` opens the gate.
PACKAGE = """\
from types import SimpleNamespace
import paddle
available, wrong, lacking = {available}, {wrong}, {lacking}
def is_fast_ops_available():
    return available
blocked_import_messages = {{}} if available else {{"paddlefleet_ops.fast_ops": "needs CUDA >=99"}}
def scale(x, factor):
    return x * factor + wrong
if available:
    fast_ops = SimpleNamespace(scale=scale, shift=None if lacking else scale)
"""
ORACLE = """
ORACLES["scale"] = (lambda x, factor: x * factor, Tolerance(relative=1e-6, absolute=1e-6))
"""


@dataclass(frozen=True)
class Suite:
    """The rendered tests of ``fast-ops`` beside a package that stands for paddlefleet_ops."""

    folder: Path
    files: dict[str, str]

    def run(self, name: str, extra: str = "", **package: object) -> tuple[int, str]:
        values = {"available": True, "wrong": 0.0, "lacking": False, **package}
        (self.folder / "paddlefleet_ops.py").write_text(PACKAGE.format(**values))
        (text,) = (text for path, text in self.files.items() if path.endswith(name))
        (self.folder / name).write_text(text + extra)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-rs", "-q", "-p", "no:cacheprovider", name],
            cwd=self.folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout


@pytest.fixture
def suite(tmp_path: Path, library: EcosystemLibrary) -> Suite:
    pytest.importorskip("paddle")
    renamed = replace(library, availability_name="fast_ops")
    return Suite(tmp_path, rendered_files(renamed, (EXERCISE,), ""))


def test_the_functional_test_passes_a_library_that_works(suite: Suite) -> None:
    status, said = suite.run("test_fast_ops.py")
    assert (status, "3 passed" in said) == (0, True)


def test_the_functional_test_finds_a_missing_name(suite: Suite) -> None:
    status, said = suite.run("test_fast_ops.py", lacking=True)
    assert (status, "1 failed, 2 passed" in said) == (1, True)


@pytest.mark.parametrize(
    ("wrong", "words"), [("float('nan')", "not finite"), ("paddle.ones([2, 3])", "shape")]
)
def test_the_functional_test_finds_wrong_numbers(suite: Suite, wrong: str, words: str) -> None:
    status, said = suite.run("test_fast_ops.py", wrong=wrong)
    assert status == 1
    assert words in said


def test_the_functional_test_skips_with_the_loader_s_reason(suite: Suite) -> None:
    status, said = suite.run("test_fast_ops.py", available=False)
    assert status == 0
    assert "needs CUDA >=99" in said
    assert "3 skipped" in said


@pytest.mark.parametrize("available", [True, False])
def test_without_an_oracle_the_precision_test_fails_and_says_what_to_write(
    suite: Suite, available: bool
) -> None:
    status, said = suite.run("test_fast_ops_precision.py", available=available)
    assert status == 1
    assert "write the oracle of scale into ORACLES" in said


def test_with_its_oracle_the_precision_test_passes(suite: Suite) -> None:
    status, said = suite.run("test_fast_ops_precision.py", ORACLE)
    assert (status, "2 passed" in said) == (0, True)


def test_the_precision_test_finds_a_wrong_result(suite: Suite) -> None:
    status, said = suite.run("test_fast_ops_precision.py", ORACLE, wrong="1e-3")
    assert status == 1
    assert "Mismatched elements" in said


def test_where_the_library_is_blocked_the_precision_test_skips_with_the_reason(
    suite: Suite,
) -> None:
    status, said = suite.run("test_fast_ops_precision.py", ORACLE, available=False)
    assert status == 0
    assert "needs CUDA >=99" in said


def test_without_an_exercise_the_precision_test_fails(
    tmp_path: Path, library: EcosystemLibrary
) -> None:
    pytest.importorskip("paddle")
    renamed = replace(library, availability_name="fast_ops")
    status, said = Suite(tmp_path, rendered_files(renamed, (), "")).run(
        "test_fast_ops_precision.py"
    )
    assert status == 1
    assert "no exercise was given" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("round_trip", "available", "status", "words"),
    [
        ("None", True, 1, "write ROUND_TRIP of this file"),
        ("None", False, 1, "write ROUND_TRIP of this file"),
        ("lambda tokens: tokens", True, 0, "4 passed"),
        ("lambda tokens: tokens", False, 0, "needs CUDA >=99"),
        ("lambda tokens: tokens * 1.01", True, 1, "2 failed, 2 passed"),
        ("lambda tokens: tokens.astype('float64')", True, 1, "2 failed, 2 passed"),
    ],
)
def test_the_multi_card_test_on_two_ranks(
    tmp_path: Path,
    library: EcosystemLibrary,
    round_trip: str,
    available: bool,
    status: int,
    words: str,
) -> None:
    pytest.importorskip("paddle")
    renamed = replace(library, availability_name="fast_ops", kind="ep_comm")
    files = rendered_files(renamed, (), "")
    (text,) = (text for path, text in files.items() if path.endswith("_round_trip.py"))
    values = {"available": available, "wrong": 0.0, "lacking": False}
    (tmp_path / "paddlefleet_ops.py").write_text(PACKAGE.format(**values))
    test = tmp_path / "test_fast_ops_round_trip.py"
    test.write_text(
        text.replace("| None = None", f"| None = {round_trip}").replace('"-v"', '"-vrs"')
    )
    done = subprocess.run(
        [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node=2", "--log_dir=log", test.name],
        cwd=tmp_path, env={**os.environ, "PADDLE_DISTRI_BACKEND": "gloo"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode != 0) == bool(status), done.stdout + done.stderr
    logs = [path.read_text() for path in (tmp_path / "log").glob("workerlog.*")]
    assert len(logs) == 2
    assert all(words in log for log in logs)


@pytest.mark.parametrize(
    ("body", "available"), [("raise RuntimeError('blocked')", False), ("fast_ops = 1", True)]
)
def test_the_wrapper_tells_whether_the_library_is_there(
    tmp_path: Path, library: EcosystemLibrary, body: str, available: bool
) -> None:
    renamed = replace(library, availability_name="fast_ops")
    (tmp_path / "wrapped.py").write_text(rendered_files(renamed, (), "wrapped.py")["wrapped.py"])
    (tmp_path / "paddlefleet_ops.py").write_text(
        f"def __getattr__(name):\n    {body}\n" if not available else body
    )
    ask = "import wrapped; print(wrapped.is_fast_ops_available(), wrapped.fast_ops)"
    done = subprocess.run(
        [sys.executable, "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(available), "1" if available else "None"]
