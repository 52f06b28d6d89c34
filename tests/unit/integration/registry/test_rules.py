"""Every registry rule: seeded faults found, with their place, and the mended variant clean."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ci.errors import UnmetTogetherError
from ci.findings import Finding
from ci.integration.registry_rules import (
    dotted_scope,
    ep_without_multi_card_test,
    facts,
    gated_without_precision_test,
    not_pinned,
    pip_exception,
    scope_of_dependency,
    submodule,
    undeclared_requirement,
    unguarded_test,
    unsatisfiable_together,
)
from ci.integration.registry_rules.facts import RegistryFacts
from ci.registry import EcosystemLibrary, SubmoduleProblem, build_utils

Make = Callable[..., EcosystemLibrary]
Requires = build_utils.Requires
DSL = "nvidia-cutlass-dsl"


def project(*dependencies: str, build: tuple[str, ...] = (), name: str = "x", **groups: Any) -> str:
    return (
        f"[build-system]\nrequires = {list(build)!r}\n"
        f'[project]\nname = "{name}"\ndependencies = {list(dependencies)!r}\n'
        f"[project.optional-dependencies]\n"
        + "".join(f"{group} = {list(texts)!r}\n" for group, texts in groups.items())
    )


# --- submodule, not-pinned ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("third_party/alpha", "not checked out"),
        ("third_party/alpha", "at 0123456789ab, but pinned to 123456789abc"),
        ("third_party/alpha/csrc/cutlass", "not checked out"),
    ],
)
def test_a_submodule_that_is_not_as_pinned(make_library: Make, path: str, problem: str) -> None:
    library = make_library(pin="1" * 40)
    seen = SubmoduleProblem("alpha", path, problem, "git submodule update")
    given = RegistryFacts((library,), (), submodules=(seen,))
    (found,) = submodule.check(given)
    assert (found.library, found.subject, found.mend) == ("alpha", path, "git submodule update")
    assert problem in found.why
    assert list(not_pinned.check(given)) == []


def test_real_submodules_are_asked_for_unless_a_source_is_given(
    scratch: Any, make_library: Make, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_utils, "PACKAGE_ROOT", tmp_path / "packages")
    pinned, unpinned = make_library("alpha", pin="1" * 40), make_library("beta")
    gathered = facts.gather((pinned, unpinned), {}, scratch.root)
    assert [item.library for item in gathered.submodules] == ["alpha", "beta"]
    (found,) = submodule.check(gathered)
    assert (found.library, "not checked out" in found.why) == ("alpha", True)
    (warned,) = not_pinned.check(gathered)
    assert (warned.library, warned.level) == ("beta", "warning")
    assert scratch.findings(submodule, pinned, unpinned) == []
    assert scratch.findings(not_pinned, pinned, unpinned) == []


# --- undeclared-requirement -----------------------------------------------------------------------

RUN_FAULTS = {
    "missing": (project("einops>=0.8"), (), "is not declared"),
    "other version": (project(f"{DSL}==4.4.2"), (f"{DSL}==4.5.2",), "declared as ==4.5.2"),
    "too wide": (project("einops>=0.8"), ("einops>=0.7",), "declared as >=0.7"),
    "no version": (project("einops<1"), ("einops",), "declared as any version"),
    "extra": (project(f"{DSL}[cu13]==4.5.2"), (f"{DSL}==4.5.2",), "without its extra cu13"),
    "beyond Paddle's": (project("numpy<2"), (), "declared as >=1.21"),
    "another name": (project("triton>=3.3"), ("pytorch-triton>=3.3",), "is not declared"),
}


@pytest.mark.parametrize("name", RUN_FAULTS)
def test_a_run_time_requirement_that_is_not_covered(
    scratch: Any, only: Any, make_library: Make, name: str
) -> None:
    text, declared, words = RUN_FAULTS[name]
    scratch.source("alpha", {"pyproject.toml": text})
    found: Finding = only(undeclared_requirement, make_library(run_requires=declared))
    assert words in found.why
    assert found.place.endswith("pyproject.toml")
    assert found.line == 5
    assert found.level == "error"


RUN_CLEAN = {
    "torch": (project("torch>=2.7", "torch-c-dlpack-ext"), ()),
    "Paddle": (project("paddlepaddle-gpu>=3.3"), ()),
    "what Paddle brings": (project("numpy", "opt-einsum", "Typing.Extensions"), ()),
    "narrower": (project("einops>=0.7,<2"), ("einops>=0.8,<1",)),
    "spelling": (project("PyYAML>=6"), ("pyyaml>=6.0.2",)),
    "another platform": (project("colorama; sys_platform == 'win32'"), ()),
    "an older Python": (project("tomli; python_version < '3.10'"), ()),
    "a group that is not imported": (project(bench=["pandas"]), ()),
}


@pytest.mark.parametrize("name", RUN_CLEAN)
def test_a_run_time_requirement_that_is_covered(
    scratch: Any, make_library: Make, name: str
) -> None:
    text, declared = RUN_CLEAN[name]
    scratch.source("alpha", {"pyproject.toml": text, "alpha/__init__.py": "import torch\n"})
    library = make_library(run_requires=declared)
    assert scratch.findings(undeclared_requirement, library) == []


def test_a_requirement_of_some_pythons_names_their_cells(
    scratch: Any, only: Any, make_library: Make
) -> None:
    text = project("exceptiongroup; python_version < '3.11'")
    scratch.source("alpha", {"pyproject.toml": text})
    found: Finding = only(undeclared_requirement, make_library())
    assert "(in cu126-cp310, cu129-cp310, cu130-cp310)" in found.why
    gated = make_library(requires=Requires(python=">=3.12"))
    assert scratch.findings(undeclared_requirement, gated) == []


@pytest.mark.parametrize("build", ["cmake>=3.18", "pybind11[global]>=2.13", "ninja==1.11.1.1"])
def test_a_build_requirement_that_is_not_covered(
    scratch: Any, only: Any, make_library: Make, build: str
) -> None:
    text = project(build=("setuptools>=80", "wheel", "torch", build))
    scratch.source("alpha", {"pyproject.toml": text})
    declared = ("pybind11>=2.13", "ninja>=1.11.1", "setuptools>=77")
    found: Finding = only(undeclared_requirement, make_library(build_requires=declared))
    assert found.subject == f"build_requires: {build}"
    mended = make_library(build_requires=(*declared, build))
    assert scratch.findings(undeclared_requirement, mended) == []


def test_a_group_counts_when_importing_the_library_imports_it(
    scratch: Any, only: Any, make_library: Make
) -> None:
    text = project(cuda=["triton>=3.3"], other=["triton>=3.5"], late=["pandas"])
    files = {
        "pyproject.toml": text,
        "alpha/__init__.py": "from alpha import ops\n",
        "alpha/ops.py": "import triton.language\n\ndef plot():\n    import pandas\n",
    }
    scratch.source("alpha", files)
    found = scratch.findings(undeclared_requirement, make_library())
    assert [item.subject for item in found] == [
        "run_requires: triton>=3.3",
        "run_requires: triton>=3.5",
    ]
    # Groups are alternatives: what covers one of them is enough.
    library = make_library(run_requires=("triton>=3.3",))
    assert scratch.findings(undeclared_requirement, library) == []


def test_a_declared_library_is_a_dependency_and_no_requirement(
    scratch: Any, only: Any, make_library: Make
) -> None:
    scratch.source("quack", {"pyproject.toml": project(name="quack-kernels")})
    scratch.source("alpha", {"pyproject.toml": project("quack-kernels>=0.3.7")})
    quack = make_library("quack")
    found: Finding = only(undeclared_requirement, quack, make_library())
    assert "is the declared library quack" in found.why
    middle = make_library("middle", depends_on=("quack",))
    through = make_library(depends_on=("middle",))
    assert scratch.findings(undeclared_requirement, quack, middle, through) == []


def test_setup_py_counts_and_its_conditions_are_warnings(scratch: Any, make_library: Make) -> None:
    text = """\
        from setuptools import setup
        needs = ["typing_extensions"]
        if FA4:
            needs += ["nvidia-cutlass==4.2.0.0"]
        setup(name="alpha", install_requires=needs + computed())
        """
    scratch.source("alpha", {"setup.py": textwrap.dedent(text)})
    note, warning = sorted(
        scratch.findings(undeclared_requirement, make_library()), key=lambda item: item.level
    )
    assert (warning.level, warning.line) == ("warning", 4)
    assert "added if `FA4`" in warning.why
    assert (note.level, note.line) == ("note", 5)


# --- unsatisfiable-together -----------------------------------------------------------------------

CONFLICTS = {
    "MoonEP and an older flash-attention": (f"{DSL}==4.5.2", f"{DSL}>=4.4.1,<=4.4.2"),
    "two versions": ("einops==0.8.0", "Einops==0.7.0"),
    "disjoint ranges": ("apache-tvm-ffi>=0.1.12", "apache_tvm_ffi>=0.1.6,<0.1.12"),
    "with an extra": (f"{DSL}[cu13]==4.5.2", f"{DSL}>=4.7"),
}


@pytest.mark.parametrize("name", CONFLICTS)
@pytest.mark.parametrize("kind", ["declared", "real"])
def test_requirements_that_exclude_each_other(
    scratch: Any, only: Any, make_library: Make, name: str, kind: str
) -> None:
    first, second = CONFLICTS[name]
    if kind == "declared":
        pair = (
            make_library("alpha", run_requires=(first,)),
            make_library("beta", run_requires=(second,)),
        )
    else:
        scratch.source("alpha", {"pyproject.toml": project(first)})
        scratch.source("beta", {"requirements.txt": f"torch\n{second}\n"})
        pair = make_library("alpha"), make_library("beta")
    found: Finding = only(unsatisfiable_together, *pair)
    for words in ("alpha requires", "beta requires", first, second):
        assert words in found.why
    assert "(in " not in found.why
    assert found.subject.startswith(kind)
    if kind == "real":
        assert found.place in ("pyproject.toml", "requirements.txt")
        assert found.line in (5, 2)


def test_owners_of_one_requirement_are_one_side(
    scratch: Any, only: Any, make_library: Make
) -> None:
    old = make_library("old", run_requires=(f"{DSL}>=4.4.1,<=4.4.2",))
    new = [make_library(f"new{at}", run_requires=(f"{DSL}==4.5.2",)) for at in range(3)]
    found: Finding = only(unsatisfiable_together, old, *new)
    assert f"new0, new1 and new2 require {DSL}==4.5.2" in found.why
    assert f"old requires {DSL}>=4.4.1,<=4.4.2" in found.why


def test_libraries_that_share_no_cell_may_differ(scratch: Any, make_library: Make) -> None:
    old = make_library("old", run_requires=("einops==0.7.0",), requires=Requires(python="<3.12"))
    new = make_library("new", run_requires=("einops==0.8.0",), requires=Requires(python=">=3.12"))
    assert scratch.findings(unsatisfiable_together, old, new) == []
    blackwell = replace(old, requires=Requires(capability=">=10.0"))
    (found,) = scratch.findings(unsatisfiable_together, blackwell, new)
    assert "(in cu129-cp312, cu129-cp313, cu130-cp312, cu130-cp313)" in found.why


def test_markers_are_those_of_each_python(scratch: Any, only: Any, make_library: Make) -> None:
    old = make_library("old", run_requires=("einops==0.7.0; python_version < '3.11'",))
    new = make_library("new", run_requires=("einops==0.8.0; python_version >= '3.11'",))
    assert scratch.findings(unsatisfiable_together, old, new) == []
    always = make_library("new", run_requires=("einops==0.8.0",))
    assert "(in cu126-cp310," in only(unsatisfiable_together, old, always).why


def test_what_depends_on_the_cuda_is_asked_per_cell(
    scratch: Any, only: Any, make_library: Make
) -> None:
    def by_cuda(target: Any) -> str:
        return "einops==0.7.0" if target.cuda == "12.6" else "einops==0.8.0"

    one = make_library("one", run_requires=(by_cuda,))
    other = make_library("other", run_requires=("einops==0.8.0",))
    assert "(in cu126-cp310, cu126-cp311," in only(unsatisfiable_together, one, other).why


def test_a_library_against_the_wheel(scratch: Any, only: Any, make_library: Make) -> None:
    found: Finding = only(unsatisfiable_together, make_library(run_requires=("paddlepaddle<3.3",)))
    assert "the wheel requires paddlepaddle>=3.3" in found.why
    assert found.library == "alpha"


def test_three_that_only_together_exclude_each_other(
    scratch: Any, only: Any, make_library: Make
) -> None:
    texts = ("einops>=0.8", "einops<=0.8", "einops!=0.8", "einops>=0.1")
    libraries = [make_library(f"l{at}", run_requires=(text,)) for at, text in enumerate(texts)]
    found: Finding = only(unsatisfiable_together, *libraries)
    assert all(f"l{at} requires" in found.why for at in range(3))
    assert "l3" not in found.why


COMPATIBLE = {
    "overlap": ("einops>=0.7", "einops<0.9"),
    "one point": ("einops==0.8.0", "einops>=0.8,<0.8.1"),
    "other names": ("einops==0.8.0", "einops-exts==0.1"),
    "torch is Paddle's part": ("torch==2.7.1", "torch==2.9.1"),
}


@pytest.mark.parametrize("name", COMPATIBLE)
def test_requirements_that_can_be_met(scratch: Any, make_library: Make, name: str) -> None:
    for library, text in zip(("alpha", "beta"), COMPATIBLE[name], strict=True):
        scratch.source(library, {"pyproject.toml": project(text)})
    pair = (make_library("alpha"), make_library("beta"))
    assert scratch.findings(unsatisfiable_together, *pair) == []


def test_the_index_is_asked_for_everything_and_its_refusal_names_both_sides(
    scratch: Any, make_library: Make, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def refuse(requirements: tuple[str, ...], python: str, name: str, cache: Any) -> None:
        asked.append((python, *requirements))
        if python == "3.12" and f"{DSL}==4.5.2" in requirements:
            raise UnmetTogetherError(
                "cannot be met together",
                details=("Because old-dsl-user==1.0 depends on", f"{DSL}<4.5 and you require both"),
            )

    monkeypatch.setattr(facts, "lock_for", refuse)
    libraries = (
        make_library("alpha", run_requires=(f"{DSL}==4.5.2", "paddle-nvidia-nvshmem-cu13>=3")),
        make_library("beta", run_requires=("old-dsl-user==1.0", "einops")),
    )
    found = scratch.findings(unsatisfiable_together, *libraries, online=True, cache_dir=tmp_path)
    assert len(found) == 1
    assert f"{DSL}==4.5.2 of alpha; old-dsl-user==1.0 of beta" in found[0].why
    assert "Python 3.12" in found[0].why
    assert "einops of" not in found[0].why
    assert {python for python, *_ in asked} == {"3.10", "3.11", "3.12", "3.13"}
    assert not any("nvshmem" in text for texts in asked for text in texts)
    assert scratch.findings(unsatisfiable_together, *libraries) == []


@pytest.mark.network
def test_the_index_finds_what_no_specifier_shows(
    scratch: Any, make_library: Make, tmp_path: Any
) -> None:
    """pandas 2.0.3 says in its own metadata that it needs python-dateutil >= 2.8.2."""
    old = Requires(python="<3.11")
    libraries = (
        make_library("alpha", run_requires=("pandas==2.0.3",), requires=old),
        make_library("beta", run_requires=("python-dateutil==2.8.1",), requires=old),
    )
    assert scratch.findings(unsatisfiable_together, *libraries) == []
    found = scratch.findings(unsatisfiable_together, *libraries, online=True, cache_dir=tmp_path)
    named = [item for item in found if "Python 3.10" in item.why]
    assert named
    assert "pandas==2.0.3 of alpha" in named[0].why
    assert "python-dateutil==2.8.1 of beta" in named[0].why


# --- pip-exception --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requirement", "library", "module"),
    [
        ("quack-kernels>=0.3.7", "quack", "quack"),
        ("sonic-moe", "sonic-moe", "sonicmoe"),
        ("nvidia-cudnn-frontend>=1.23", "cudnn-frontend", "cudnn"),
        ("fla-core", "flash-linear-attention", "fla"),
        ("Flash_Linear_Attention", "flash-linear-attention", "fla"),
    ],
)
def test_a_requirement_on_a_declared_library(
    only: Any, make_library: Make, requirement: str, library: str, module: str
) -> None:
    other = make_library(library, module=module)
    asking = make_library(run_requires=("einops", requirement))
    found: Finding = only(pip_exception, other, asking)
    assert found.library == "alpha"
    assert f"depends_on=({library!r},)" in found.mend


def test_a_distribution_is_known_by_the_name_in_its_sources(
    scratch: Any, only: Any, make_library: Make
) -> None:
    scratch.source("beta", {"setup.py": "from setuptools import setup\nsetup(name='beta_gpu')\n"})
    asking = make_library(run_requires=("beta-gpu",))
    assert "is the declared library beta" in only(pip_exception, make_library("beta"), asking).why


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "tilelang-paddle", "module": "tilelang"},
        {"name": "TileLang", "module": "tilelang"},
        {"name": "tilelang_paddle", "module": "tl"},
    ],
)
def test_the_exception_is_not_declared(only: Any, make_library: Make, changes: Any) -> None:
    found: Finding = only(pip_exception, make_library(**changes))
    assert "tilelang-paddle" in found.why


def test_another_distribution_of_the_exceptions_module(only: Any, make_library: Make) -> None:
    found: Finding = only(pip_exception, make_library(run_requires=("tilelang>=0.1.9",)))
    assert "tilelang-paddle" in found.why


def test_plain_requirements_and_the_exception_itself_are_no_second_copy(
    scratch: Any, make_library: Make
) -> None:
    library = make_library(run_requires=("einops", "tilelang-paddle", "nvidia-cudnn-cu13"))
    cudnn = make_library("cudnn-frontend", module="cudnn")
    assert scratch.findings(pip_exception, library, cudnn) == []


# --- dotted-scope, scope-of-dependency ------------------------------------------------------------


@pytest.mark.parametrize("entry", ["triton.language", "cutlass.cute.runtime", "alpha_cpp.ops"])
def test_a_dotted_scope_without_its_package(only: Any, make_library: Make, entry: str) -> None:
    found: Finding = only(dotted_scope, make_library(compat_scope=("alpha", entry)))
    assert found.subject == entry
    assert f"name {entry.split('.')[0]!r} instead" in found.mend


def test_a_dotted_scope_beside_its_package(scratch: Any, make_library: Make) -> None:
    library = make_library(compat_scope=("alpha", "alpha.ops", "triton", "triton.language"))
    assert scratch.findings(dotted_scope, library) == []


@pytest.mark.parametrize(
    ("depends_on", "scope", "lacking"),
    [
        (("quack",), ("alpha",), ["quack"]),
        (("quack",), ("alpha", "triton"), ["quack"]),
        (("user",), ("alpha", "user"), ["quack"]),  # through another library
        (("user",), ("alpha",), ["user", "quack"]),
    ],
)
def test_a_scope_without_a_dependency(
    scratch: Any, make_library: Make, depends_on: Any, scope: Any, lacking: list[str]
) -> None:
    quack = make_library("quack")
    user = make_library("user", depends_on=("quack",), compat_scope=("user", "quack"))
    library = make_library(depends_on=depends_on, compat_scope=scope)
    found = scratch.findings(scope_of_dependency, quack, user, library)
    assert [(item.library, item.subject) for item in found] == [("alpha", name) for name in lacking]


def test_a_scope_with_its_dependencies(scratch: Any, make_library: Make) -> None:
    library = make_library(depends_on=("quack",), compat_scope=("alpha", "quack"))
    assert scratch.findings(scope_of_dependency, make_library("quack"), library) == []


# --- ep-without-multi-card-test -------------------------------------------------------------------

EXCHANGE = """\
import pytest, paddlefleet_ops
pytestmark = pytest.mark.skipif(not paddlefleet_ops.is_alpha_available(), reason="r")

def test():
    from paddlefleet_ops import alpha
    alpha.run()
"""
TEST = "tests/multi_card_tests/moe/test_alpha.py"


def table(*entries: tuple[str, int]) -> str:
    lines = [
        f"- {{test_case: [{pattern}], products: [{{num_gpus: {gpus}}}]}}"
        for pattern, gpus in entries
    ]
    return "tests:\n" + "\n".join(lines) + "\n"


EP_FAULTS = {
    "no test": ("", table(), "no test below"),
    "another library's test": (
        EXCHANGE.replace("alpha", "beta"),
        table((TEST, 2)),
        "no test below",
    ),
    "no guard": (EXCHANGE.replace("pytestmark", "mark"), table((TEST, 2)), "no guard by"),
    "not registered": (EXCHANGE, "tests: []\n", "is not registered"),
    "a typo in the pattern": (EXCHANGE, table((TEST.replace("moe", "mo"), 2)), "is not registered"),
    "one GPU": (EXCHANGE, table((TEST, 1)), "gets 1 GPU"),
    "shadowed": (EXCHANGE, table(("tests/multi_card_tests/*", 1), (TEST, 2)), "gets 1 GPU"),
}


@pytest.mark.parametrize("name", EP_FAULTS)
def test_an_exchange_without_a_multi_card_test(
    scratch: Any, only: Any, make_library: Make, name: str
) -> None:
    text, registered, words = EP_FAULTS[name]
    if text:
        scratch.write(TEST, text)
    scratch.write("tests/test_configs.yaml", registered)
    # A single-card test of it does not help.
    scratch.write("tests/single_card_tests/custom_ops/test_alpha.py", EXCHANGE)
    found: Finding = only(ep_without_multi_card_test, make_library(kind="ep_comm"))
    assert words in found.why
    if name == "shadowed":
        assert (found.place, found.line) == ("tests/test_configs.yaml", 2)


@pytest.mark.parametrize("entries", [[(TEST, 2)], [("tests/multi_card_tests/*.py", 8)]])
def test_an_exchange_with_a_multi_card_test(
    scratch: Any, make_library: Make, entries: list[tuple[str, int]]
) -> None:
    scratch.write(TEST, EXCHANGE)
    # One that is not registered does not spoil it.
    scratch.write("tests/multi_card_tests/other/test_more.py", EXCHANGE)
    scratch.write("tests/test_configs.yaml", table(*entries))
    library = make_library(kind="ep_comm")
    assert scratch.findings(ep_without_multi_card_test, library) == []
    assert scratch.findings(ep_without_multi_card_test, make_library("other")) == []


# --- gated-without-precision-test -----------------------------------------------------------------

PRECISE = EXCHANGE + "    np.testing.assert_allclose(alpha.run(), oracle(), rtol=1e-5)\n"
CUSTOM_OPS = "tests/single_card_tests/custom_ops/test_alpha.py"
PRECISION_FAULTS = {
    "no test": {},
    "no comparison": {CUSTOM_OPS: EXCHANGE},
    "with itself": {CUSTOM_OPS: PRECISE.replace("oracle()", "alpha.run()")},
    "another library": {CUSTOM_OPS: PRECISE.replace("alpha", "beta")},
    "no guard": {CUSTOM_OPS: PRECISE.replace("pytestmark", "mark")},
    "in the multi-card tests": {TEST: PRECISE},
}


@pytest.mark.parametrize("name", PRECISION_FAULTS)
def test_a_gated_library_without_a_precision_test(
    scratch: Any, only: Any, make_library: Make, name: str
) -> None:
    for place, text in PRECISION_FAULTS[name].items():
        scratch.write(place, text)
    library = make_library(kind="cuda_extension", requires=Requires(capability=">=9.0"))
    found: Finding = only(gated_without_precision_test, library)
    assert found.library == "alpha"
    if name in ("no comparison", "with itself"):
        assert found.place == CUSTOM_OPS


def test_a_precision_test_through_the_layer_above_counts(scratch: Any, make_library: Make) -> None:
    text = PRECISE.replace("from paddlefleet_ops import alpha", "alpha = upper.layer").replace(
        "pytestmark = pytest.mark.skipif(not paddlefleet_ops", "ready = (paddlefleet_ops"
    )
    text = text.replace(', reason="r")', " and upper.kernel is not None)\n", 1)
    text = text.replace("def test", '@unittest.skipUnless(ready, "r")\ndef test')
    scratch.write(CUSTOM_OPS, text)
    library = make_library(kind="cuda_extension", requires=Requires(capability=">=9.0"))
    assert scratch.findings(gated_without_precision_test, library) == []


def test_a_gated_library_with_a_precision_test(scratch: Any, make_library: Make) -> None:
    scratch.write(CUSTOM_OPS, PRECISE)
    gated = make_library(requires=Requires(capability=">=9.0"))
    assert scratch.findings(gated_without_precision_test, gated) == []
    by_python = make_library("other", requires=Requires(python=">=3.12"))
    exchange = make_library("more", kind="ep_comm", requires=Requires(capability=">=9.0"))
    assert scratch.findings(gated_without_precision_test, by_python, exchange) == []


# --- test-without-guard ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("def test():\n    from paddlefleet_ops import alpha\n", 2, "fails wherever"),
        (EXCHANGE.replace("is_alpha_", "is_alfa_"), 5, "guards are: is_alfa_available()"),
        (
            EXCHANGE.replace("\n\n", "\nfrom paddlefleet_ops.alpha import run\n", 1),
            3,
            "is collected",
        ),
        ("import alpha_cpp\n", 1, "fails wherever"),
        (EXCHANGE.replace("not ", ""), 5, "without a skip"),
    ],
)
@pytest.mark.parametrize("place", [TEST, CUSTOM_OPS])
def test_a_test_without_a_guard(
    scratch: Any, only: Any, make_library: Make, text: str, line: int, words: str, place: str
) -> None:
    scratch.write(place, text)
    artifacts = (
        build_utils.Artifact("alpha", "alpha"),
        build_utils.Artifact("alpha_cpp.so", "alpha_cpp.so"),
    )
    found: Finding = only(unguarded_test, make_library(artifacts=artifacts))
    assert (found.place, found.line, found.library) == (place, line, "alpha")
    assert words in found.why


def test_the_guard_is_by_the_declared_availability(
    scratch: Any, only: Any, make_library: Make
) -> None:
    """PaddleFleet's sonicmoe: the function is is_sonic_moe_available, and a hint named another."""
    library = make_library("sonic-moe", module="sonicmoe", availability_name="sonic_moe")
    scratch.write(CUSTOM_OPS, EXCHANGE.replace("alpha", "sonicmoe"))
    assert "is_sonic_moe_available()" in only(unguarded_test, library).why
    text = EXCHANGE.replace("is_alpha", "is_sonic_moe").replace("alpha", "sonicmoe")
    scratch.write(CUSTOM_OPS, text)
    assert scratch.findings(unguarded_test, library) == []


def test_a_dependency_is_there_where_its_user_is(
    scratch: Any, only: Any, make_library: Make
) -> None:
    quack = make_library("quack")
    user = make_library("user", depends_on=("quack",))
    scratch.write(CUSTOM_OPS, EXCHANGE.replace("alpha", "user") + "    import quack\n")
    assert scratch.findings(unguarded_test, quack, user) == []
    scratch.write(CUSTOM_OPS, EXCHANGE.replace("alpha", "quack") + "    import user\n")
    assert only(unguarded_test, quack, user).library == "user"


def test_a_test_that_is_no_python(only: Any, scratch: Any, make_library: Make) -> None:
    scratch.write(CUSTOM_OPS, "def test(:\n")
    assert "no Python" in only(unguarded_test, make_library()).why


def test_guarded_tests_and_files_elsewhere(scratch: Any, make_library: Make) -> None:
    scratch.write(TEST, EXCHANGE)
    scratch.write(CUSTOM_OPS, PRECISE)
    scratch.write("tests/unit/test_alpha.py", "import alpha\n")
    scratch.write("tests/single_card_tests/test_other.py", "import numpy\nimport alphabet\n")
    assert scratch.findings(unguarded_test, make_library()) == []
