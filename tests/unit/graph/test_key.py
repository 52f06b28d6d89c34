"""What a key names, and what it must not."""

from __future__ import annotations

import string
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.graph import key as key_module
from ci.graph.key import Key, changed_lines, library_key
from ci.registry import EcosystemLibrary, Target, build_utils

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
CELLS = [
    Target(cuda, python, capabilities)
    for (cuda, capabilities), python in product(
        [("12.6", ("8.0", "9.0")), ("12.9", ("8.0", "9.0", "10.0")), ("13.0", ("9.0a",))], PYTHONS
    )
]
TEXTS = st.text(string.printable, max_size=8)
INPUTS = st.dictionaries(TEXTS, TEXTS, max_size=6)
TEMPLATES = {library.kind: library for library in build_utils.get_libs("templates")}


def key_of(library: EcosystemLibrary, target: Target, **changes: Any) -> Key:
    given_inputs: dict[str, Any] = {
        "tree": "sha256:aa",
        "build_requires": ("setuptools==80",),
        "toolchain_identity": f"nvcc {target.cuda}",
        "interpreter_identity": f"cpython {target.python}",
    }
    return library_key(library, target, **{**given_inputs, **changes})


def digests(library: EcosystemLibrary) -> dict[Target, str]:
    return {target: key_of(library, target).digest for target in CELLS}


def test_a_pure_library_is_built_once_for_the_whole_matrix() -> None:
    for library in (TEMPLATES["python_dsl"], TEMPLATES["ep_comm"]):
        assert len(set(digests(library).values())) == 1


def test_a_pybind11_library_is_built_once_for_each_python() -> None:
    found = {
        (target.python): key_of(
            TEMPLATES["header_only"], target, toolchain_identity="gcc 12"
        ).digest
        for target in CELLS
    }
    assert len(set(found.values())) == len(PYTHONS)
    same_python = {
        key_of(TEMPLATES["header_only"], target, toolchain_identity="gcc 12").digest
        for target in CELLS
        if target.python == "3.12"
    }
    assert len(same_python) == 1


def test_a_cuda_library_bound_by_dlpack_is_built_once_for_each_cuda_and_capability_set() -> None:
    found = digests(TEMPLATES["cuda_extension"])
    assert len(set(found.values())) == len({(t.cuda, t.capabilities) for t in CELLS})
    for one, other in product(CELLS, CELLS):
        same = (one.cuda, one.capabilities) == (other.cuda, other.capabilities)
        assert (found[one] == found[other]) is same


def test_a_cuda_library_differs_by_capability_set_at_one_cuda() -> None:
    library = TEMPLATES["cuda_extension"]
    sets = [("9.0",), ("9.0a",), ("8.0", "9.0"), ("9.0+PTX",)]
    assert len({key_of(library, Target("13.0", "3.12", item)).digest for item in sets}) == len(sets)


def test_capabilities_that_a_library_does_not_compile_for_are_not_in_its_key(
    make_library: Any,
) -> None:
    library = make_library(
        kind="cuda_extension",
        varies_by=frozenset({"capability"}),
        requires=build_utils.Requires(capability=">=9.0"),
        extra_env={"PADDLE_CUDA_ARCH_LIST": build_utils.arch_list},
        needs_cuda_compiler=True,
    )
    wide, narrow = Target("13.0", "3.12", ("8.0", "9.0")), Target("13.0", "3.12", ("9.0",))
    assert key_of(library, wide) == key_of(library, narrow)


@pytest.mark.parametrize("library", build_utils.all_libs(), ids=lambda item: item.name)
def test_every_library_varies_just_by_what_it_declares(library: EcosystemLibrary) -> None:
    """A change along an axis that is not declared must not change the key of what is built."""
    base = Target("13.0", "3.12", ("9.0", "10.0"))
    same: dict[str, Any] = {"toolchain_identity": "one", "interpreter_identity": "one"}
    if "python" not in library.varies_by:
        other = replace(base, python="3.13")
        assert key_of(library, base, **same) == key_of(
            library, other, **{**same, "interpreter_identity": "two"}
        )
    else:
        assert key_of(library, base, **same) != key_of(
            library, base, **{**same, "interpreter_identity": "two"}
        )
    if "cuda" not in library.varies_by:
        assert key_of(library, base, **same) == key_of(library, replace(base, cuda="13.2"), **same)
    else:
        assert key_of(library, base, **same) != key_of(library, replace(base, cuda="13.2"), **same)
    other = replace(base, capabilities=("9.0", "10.0", "10.3"))
    if "capability" not in library.varies_by:
        assert key_of(library, base, **same) == key_of(library, other, **same)
    else:
        assert key_of(library, base, **same) != key_of(library, other, **same)


def test_capabilities_count_also_where_the_environment_does_not_name_them(
    make_library: Any,
) -> None:
    library = make_library(varies_by=frozenset({"capability"}), needs_cuda_compiler=True)
    one, other = Target("13.0", "3.12", ("9.0",)), Target("13.0", "3.12", ("9.0a",))
    assert set(key_of(library, one).difference(key_of(library, other))) == {"capabilities"}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"tree": "sha256:bb"}, {"source tree"}),
        ({"build_requires": ("setuptools==81",)}, {"build requirements"}),
        ({"toolchain_identity": "clang 22"}, {"toolchain"}),
    ],
)
def test_the_input_that_changed_is_named(changed: dict[str, Any], named: set[str]) -> None:
    library, target = TEMPLATES["cuda_extension"], CELLS[0]
    assert set(key_of(library, target).difference(key_of(library, target, **changed))) == named


@pytest.mark.parametrize(
    "change",
    [
        {"artifacts": (build_utils.Artifact("x", "alpha"),)},
        {"ignored": {"bin/*": "why"}},
        {"include_dirs": ("csrc",)},
        {"extra_env": {"A": "1"}},
        {"hooks_before_build": ("h",)},
        {"hooks_after_collect": ("h",)},
    ],
)
def test_what_a_declaration_says_of_the_build_is_in_the_key(
    make_library: Any, change: dict[str, Any]
) -> None:
    target = CELLS[0]
    assert key_of(make_library(), target) != key_of(make_library(**change), target)


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("include_dirs", ("a", "b"), ("b", "a")),
        ("hooks_before_build", ("h", "g"), ("g", "h")),
        ("extra_env", {"CFLAGS": "-O2 -g"}, {"CFLAGS": "-g -O2"}),
    ],
)
def test_the_order_that_a_compiler_or_a_hook_sees_is_in_the_key(
    make_library: Any, name: str, one: object, other: object
) -> None:
    keys = {key_of(make_library(**{name: value}), CELLS[0]).digest for value in (one, other)}
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("extra_env", {"A": "1", "B": "2"}, {"B": "2", "A": "1"}),
        ("ignored", {"a": "why", "b": "why"}, {"b": "why", "a": "why"}),
        (
            "artifacts",
            (build_utils.Artifact("a", "alpha"), build_utils.Artifact("b", "beta")),
            (build_utils.Artifact("b", "beta"), build_utils.Artifact("a", "alpha")),
        ),
    ],
)
def test_the_order_of_a_declaration_is_not_in_the_key(
    make_library: Any, name: str, one: object, other: object
) -> None:
    assert key_of(make_library(**{name: one}), CELLS[0]) == key_of(
        make_library(**{name: other}), CELLS[0]
    )


def test_the_order_of_locked_requirements_and_capabilities_is_not_in_the_key(
    make_library: Any,
) -> None:
    library = make_library(varies_by=frozenset({"capability"}), needs_cuda_compiler=True)
    one = key_of(library, Target("13.0", "3.12", ("9.0", "10.0")), build_requires=("a==1", "b==2"))
    other = key_of(
        library, Target("13.0", "3.12", ("10.0", "9.0")), build_requires=("b==2", "a==1")
    )
    assert one == other


def test_values_that_hold_a_line_break_are_not_taken_for_two(make_library: Any) -> None:
    one = make_library(extra_env={"A": '1",\n"B": "2'})
    other = make_library(extra_env={"A": "1", "B": "2"})
    assert key_of(one, CELLS[0]) != key_of(other, CELLS[0])


def test_the_machine_is_in_the_key_of_what_is_compiled_alone(
    make_library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, pure = make_library(needs_host_compiler=True), make_library()
    before = [key_of(library, CELLS[0]) for library in (compiled, pure)]
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert set(key_of(compiled, CELLS[0]).difference(before[0])) == {"machine"}
    assert key_of(pure, CELLS[0]) == before[1]


def test_the_moment_of_a_hook_is_in_the_key(make_library: Any) -> None:
    before = make_library(hooks_before_build=("h",))
    after = make_library(hooks_after_collect=("h",))
    assert key_of(before, CELLS[0]) != key_of(after, CELLS[0])


def test_what_only_the_loader_reads_is_not_in_the_key(make_library: Any) -> None:
    changed = make_library(
        hint="other",
        public_names=("other",),
        compat_scope=("alpha", "triton"),
        preload=("tvm_ffi",),
    )
    assert key_of(make_library(), CELLS[0]) == key_of(changed, CELLS[0])


def test_hook_code_is_in_the_key_of_those_that_use_hooks(
    make_library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("build_steps.py", "build_hooks.py"):
        (tmp_path / name).write_text("one")

    class Steps:
        __file__ = str(tmp_path / "build_steps.py")

    monkeypatch.setattr(key_module, "build_steps", Steps)
    plain, hooked = make_library(), make_library(hooks_before_build=("h",))
    before = [key_of(library, CELLS[0]) for library in (plain, hooked)]
    (tmp_path / "build_hooks.py").write_text("three")
    assert key_of(plain, CELLS[0]) == before[0]
    assert set(key_of(hooked, CELLS[0]).difference(before[1])) == {"build code"}
    (tmp_path / "build_steps.py").write_text("three")
    assert set(key_of(plain, CELLS[0]).difference(before[0])) == {"build code"}


@pytest.mark.parametrize("library", build_utils.all_libs(), ids=lambda item: item.name)
def test_no_key_names_a_folder_or_a_number_of_jobs(library: EcosystemLibrary) -> None:
    inputs = dict(key_of(library, CELLS[-1]).inputs)
    text = " ".join(f"{name}={value}" for name, value in inputs.items())
    assert str(build_utils.PACKAGE_ROOT) not in text
    assert "MAX_JOBS" not in text
    assert "HOME" not in text


# --- the value itself -----------------------------------------------------------------------------


@given(INPUTS, st.randoms())
def test_the_order_of_the_inputs_does_not_matter(inputs: dict[str, str], random: Any) -> None:
    shuffled = list(inputs.items())
    random.shuffle(shuffled)
    assert Key.of(inputs).digest == Key.of(dict(shuffled)).digest


@given(INPUTS, INPUTS)
def test_two_keys_are_equal_just_when_nothing_differs(
    one: dict[str, str], other: dict[str, str]
) -> None:
    left, right = Key.of(one), Key.of(other)
    assert (left.digest == right.digest) == (one == other)
    difference = left.difference(right)
    assert (not difference) == (one == other)
    for name, (mine, theirs) in difference.items():
        assert (mine, theirs) == (one.get(name), other.get(name))
    assert {name: (b, a) for name, (a, b) in difference.items()} == right.difference(left)


def test_a_digest_does_not_change_unseen() -> None:
    """A new form makes every stored result stale, and has to be meant: KEY_SCHEMA is there for it."""
    # printf '[2,[["a","1"],["b","2"]]]' | sha256sum
    assert (
        Key.of({"b": "2", "a": "1"}).digest
        == "9f6b9a8941feed65a8621b214177a1822b84613e58abb2a516460458f55aa875"
    )


@given(TEXTS | st.none(), TEXTS | st.none())
def test_changed_lines_are_those_that_one_side_alone_has(old: str | None, new: str | None) -> None:
    went, came = changed_lines(old, new)
    assert (old == new) <= (went == came == "")
    if (old or "") != (new or ""):
        assert went != came
    for part, whole in ((went, old), (came, new)):
        assert not part or set(part.split("\n")) <= set((whole or "").split("\n"))


def test_of_a_long_value_only_the_changed_lines_are_shown() -> None:
    old = "\n".join(["compiler nvcc 13.0.88", *(f"file{n} sha256:{n:064d}" for n in range(40))])
    new = old.replace("nvcc 13.0.88", "nvcc 13.0.99").replace("file7 ", "file77 ")
    went, came = changed_lines(old, new)
    assert went == f"compiler nvcc 13.0.88\nfile7 sha256:{7:064d}"
    assert came == f"compiler nvcc 13.0.99\nfile77 sha256:{7:064d}"
    assert changed_lines("a\nb", "b\na") != ("", "")
    assert changed_lines(None, "a\nb") == ("", "a\nb")
    assert changed_lines("a\nb", None) == ("a\nb", "")
