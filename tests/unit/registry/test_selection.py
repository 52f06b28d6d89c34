"""Which libraries a cell holds, in which order, and why the others are left out."""

from __future__ import annotations

import socket
import subprocess
from itertools import permutations
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.errors import ConfigError
from ci.matrix.capability import Capability
from ci.matrix.model import Cell, PaddleRequirement
from ci.registry import Target, build_utils, known_names, select, target_of

Requires: Any = build_utils.Requires  # type: ignore[attr-defined]
CU130 = Target("13.0", "3.12", ("8.0", "9.0", "10.0", "10.3"))


def names(libraries: Any) -> list[str]:
    return [library.name for library in libraries]


def cell_of(cuda: str, python: str, *capabilities: str) -> Cell:
    return Cell(
        cuda=cuda,
        python=python,
        capability_set="",
        capabilities=tuple(Capability.parse(text) for text in capabilities),
        image="registry/build:any",
        paddle=PaddleRequirement("paddlepaddle-gpu", "paddlepaddle", "https://example.org/"),
    )


def reasons(selection: Any) -> dict[str, tuple[str, ...]]:
    return {item.library.name: item.reasons for item in selection.left_out}


def test_a_library_without_conditions_is_in_every_cell(make_library: Any) -> None:
    for target in (CU130, Target("12.6", "3.10", ("8.0",)), Target("12.6", "3.10", ())):
        assert names(build_utils.select_libs([make_library()], target).selected) == ["alpha"]


@pytest.mark.parametrize(
    ("condition", "target", "words"),
    [
        ({"cuda": ">=12.9"}, Target("12.6", "3.12", ("9.0",)), "needs CUDA >=12.9; found 12.6"),
        ({"python": ">=3.12"}, Target("12.6", "3.9", ("9.0",)), "needs Python >=3.12; found 3.9"),
        (
            {"capability": ">=10.0"},
            Target("12.6", "3.12", ("9.0a", "8.0")),
            "needs compute capability >=10.0; found 8.0, 9.0",
        ),
        (
            {"capability": ">=8.0"},
            Target("12.6", "3.12", ()),
            "needs compute capability >=8.0; the cell declares no capability",
        ),
    ],
)
def test_an_unmet_condition_leaves_out_and_says_what_was_found(
    make_library: Any, condition: dict[str, str], target: Target, words: str
) -> None:
    selection = build_utils.select_libs([make_library(requires=Requires(**condition))], target)
    assert not selection.selected
    assert reasons(selection) == {"alpha": (words,)}


def test_every_unmet_condition_is_told(make_library: Any) -> None:
    library = make_library(requires=Requires(cuda=">=12.9", python=">=3.12", capability=">=10.0"))
    selection = build_utils.select_libs([library], Target("12.6", "3.10", ("8.0",)))
    assert len(reasons(selection)["alpha"]) == 3


@pytest.mark.parametrize(("python", "met"), [("3.9", False), ("3.10", True), ("3.12", True)])
def test_versions_are_compared_as_numbers(make_library: Any, python: str, met: bool) -> None:
    library = make_library(requires=Requires(python=">=3.10"))
    selection = build_utils.select_libs([library], Target("13.0", python, ("9.0",)))
    assert bool(selection.selected) is met


def test_a_library_with_a_cpu_path_needs_no_capability(make_library: Any) -> None:
    library = make_library(requires=Requires(capability=">=8.0", cpu_path=True))
    assert build_utils.select_libs([library], Target("13.0", "3.12", ())).selected
    assert not build_utils.select_libs([library], Target("13.0", "3.12", ("7.5",))).selected


def test_what_depends_on_a_left_out_library_is_left_out_with_its_reason(make_library: Any) -> None:
    libraries = [
        make_library("top", depends_on=("middle",)),
        make_library("middle", depends_on=("base",)),
        make_library("base", requires=Requires(python=">=3.13")),
        make_library("other"),
    ]
    selection = build_utils.select_libs(libraries, CU130)
    assert names(selection.selected) == ["other"]
    why = reasons(selection)
    assert why["middle"] == ("depends on base, which is left out: needs Python >=3.13; found 3.12",)
    assert why["top"][0].startswith("depends on middle, which is left out: depends on base")


def test_asking_for_a_library_brings_what_it_depends_on_and_nothing_else(make_library: Any) -> None:
    libraries = [
        make_library("top", depends_on=("middle",)),
        make_library("other"),
        make_library("middle", depends_on=("base",)),
        make_library("base"),
    ]
    selection = build_utils.select_libs(libraries, CU130, ["top"])
    assert names(selection.selected) == ["base", "middle", "top"]
    assert reasons(selection) == {"other": ("not asked for",)}


def test_what_is_asked_for_may_be_any_iterable(make_library: Any) -> None:
    libraries = [make_library("alpha"), make_library("beta")]
    once = (name for name in ["beta"])
    assert names(build_utils.select_libs(libraries, CU130, once).selected) == ["beta"]


def test_a_name_that_is_not_declared_is_refused(make_library: Any) -> None:
    with pytest.raises(build_utils.RegistryError) as refused:
        build_utils.select_libs([make_library()], CU130, ["zeta", "alpha", "eta"])
    assert refused.value.problems == ("unknown library: eta", "unknown library: zeta")


def test_a_dependency_is_loaded_first_however_the_libraries_are_declared(make_library: Any) -> None:
    declared = [
        make_library("a", depends_on=("c",)),
        make_library("b"),
        make_library("c", depends_on=("d",)),
        make_library("d"),
    ]
    for order in permutations(declared):
        loaded = names(build_utils.load_order(order))
        assert sorted(loaded) == ["a", "b", "c", "d"]
        assert loaded.index("d") < loaded.index("c") < loaded.index("a")


def test_independent_libraries_keep_the_order_of_their_declaration(make_library: Any) -> None:
    declared = [make_library(name) for name in ("zeta", "alpha", "mu")]
    assert names(build_utils.load_order(declared)) == ["zeta", "alpha", "mu"]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20))
def test_load_order_is_a_topological_order_of_any_acyclic_graph(
    edges: list[tuple[int, int]],
) -> None:
    needs: dict[int, set[int]] = {node: set() for node in range(8)}
    for one, other in edges:
        if one != other:
            needs[max(one, other)].add(min(one, other))
    libraries = [
        build_utils.EcosystemLibrary(
            name=str(node),
            source_rel_path="x",
            artifacts=(),
            module="x",
            kind="python_dsl",
            hint="",
            public_names=(),
            compat_scope=(),
            varies_by=frozenset(),
            depends_on=tuple(str(other) for other in needs[node]),
        )
        for node in reversed(range(8))
    ]
    position = {name: index for index, name in enumerate(names(build_utils.load_order(libraries)))}
    assert len(position) == 8
    assert all(
        position[str(other)] < position[str(node)] for node in needs for other in needs[node]
    )


@pytest.mark.parametrize(
    ("edges", "shown"),
    [
        ({"a": ("a",)}, "a -> a"),
        ({"a": ("b",), "b": ("a",)}, "a -> b -> a"),
        ({"a": ("b",), "b": ("c",), "c": ("b",)}, "a -> b -> c -> b"),
    ],
)
def test_a_cycle_of_dependencies_is_refused_and_shown(
    make_library: Any, edges: dict[str, tuple[str, ...]], shown: str
) -> None:
    libraries = [make_library(name, depends_on=edge) for name, edge in edges.items()]
    with pytest.raises(build_utils.RegistryError, match="dependency cycle: ") as refused:
        build_utils.load_order(libraries)
    assert refused.value.problems == (f"dependency cycle: {shown}",)
    with pytest.raises(build_utils.RegistryError):
        build_utils.check_registry(libraries)


def test_a_dependency_that_is_not_declared_is_refused(make_library: Any) -> None:
    with pytest.raises(build_utils.RegistryError, match="alpha depends on gone, which is not"):
        build_utils.load_order([make_library(depends_on=("gone",))])


# --- capabilities ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("", ("8.0", "9.0a", "10.0f", "10.3+PTX", "12.0")),
        (">=9.0", ("9.0a", "10.0f", "10.3+PTX", "12.0")),
        (">=9.0,<10.0", ("9.0a",)),
        (">=10.0", ("10.0f", "10.3+PTX", "12.0")),
        ("==10.3", ("10.3+PTX",)),
    ],
)
def test_a_library_is_compiled_for_just_the_capabilities_that_meet_its_condition(
    make_library: Any, condition: str, expected: tuple[str, ...]
) -> None:
    library = make_library(requires=Requires(capability=condition))
    target = Target("13.0", "3.12", ("8.0", "9.0a", "10.0f", "10.3+PTX", "12.0"))
    assert library.capabilities(target) == expected


def test_the_build_environment_sees_the_narrowed_capabilities(make_library: Any) -> None:
    library = make_library(
        requires=Requires(capability=">=9.0"),
        extra_env={"PADDLE_CUDA_ARCH_LIST": build_utils.arch_list, "FIXED": "1"},
    )
    assert library.build_env(CU130) == {"PADDLE_CUDA_ARCH_LIST": "9.0;10.0;10.3", "FIXED": "1"}


@pytest.mark.parametrize(
    ("text", "value"),
    [("8.0", (8, 0)), ("9.0a", (9, 0)), ("10.0f", (10, 0)), ("12.1+PTX", (12, 1)), ("10.3a+PTX", (10, 3))],
)  # fmt: skip
def test_a_capability_is_read_by_its_numbers(text: str, value: tuple[int, int]) -> None:
    assert build_utils.compute_capability(text) == value


@pytest.mark.parametrize(
    "text", ["", "9", "90", "sm_90", "9.0b", "9.0+ptx", "9.0\n", " 9.0", "9.x"]
)
def test_what_is_no_capability_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a capability"):
        build_utils.compute_capability(text)


@pytest.mark.parametrize(
    ("cuda", "expected"), [("12.6", "True"), ("12.8", "True"), ("12.9", "False"), ("13.0", "False")]
)
def test_cuda_at_most_compares_versions(cuda: str, expected: str) -> None:
    assert build_utils.cuda_at_most("12.8")(Target(cuda, "3.12", ())) == expected


# --- no effect ------------------------------------------------------------------------------------


def test_listing_and_selecting_start_no_process_and_open_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("the machine was asked")

    for owner, name in ((subprocess, "run"), (subprocess, "Popen"), (socket, "socket")):
        monkeypatch.setattr(owner, name, refuse)
    for library_set in build_utils.library_sets():
        libraries = build_utils.get_libs(library_set)
        build_utils.check_registry(libraries)
        selection = build_utils.select_libs(libraries, CU130)
        assert len(selection.selected) + len(selection.left_out) == len(libraries)


# --- what the farm adds ---------------------------------------------------------------------------


def test_a_cell_asks_for_its_capabilities_as_they_were_declared() -> None:
    cell = cell_of("12.9", "3.11", "9.0a", "10.0f+PTX")
    assert target_of(cell) == Target("12.9", "3.11", ("9.0a", "10.0f+PTX"))


def test_unknown_names_are_told_all_at_once_with_the_nearest(make_library: Any) -> None:
    libraries = [make_library("quack"), make_library("sonic-moe")]
    with pytest.raises(ConfigError) as refused:
        known_names(libraries, ["quak", "quack", "sonicmoe"])
    assert refused.value.details == (
        "unknown library 'quak'; nearest: quack",
        "unknown library 'sonicmoe'; nearest: sonic-moe",
    )
    assert "quack, sonic-moe" in refused.value.cause
    with pytest.raises(ConfigError, match="unknown library 'quak'; nearest: quack"):
        known_names(libraries, ["quak"])


def test_select_takes_an_iterator_of_names(make_library: Any) -> None:
    libraries = [make_library("alpha"), make_library("beta")]
    cell = cell_of("13.0", "3.12", "9.0")
    assert names(select(libraries, cell, iter(["beta"])).selected) == ["beta"]


def test_a_library_without_a_pin_is_left_out_and_what_needs_it_too(make_library: Any) -> None:
    libraries = [
        make_library("pinned", pin="a" * 40),
        make_library("loose"),
        make_library("user", pin="b" * 40, depends_on=("loose",)),
        make_library("template", source_rel_path="../templates/x"),
    ]
    unpinned = build_utils.without_sources(libraries)
    assert unpinned == ("loose",)
    target = Target("13.0", "3.12", ("9.0",))
    selection = build_utils.select_libs(libraries, target, None, unpinned)
    assert names(selection.selected) == ["pinned", "template"]
    told = {item.library.name: "; ".join(item.reasons) for item in selection.left_out}
    assert "not pinned yet" in told["loose"]
    assert "depends on loose, which is left out: not pinned yet" in told["user"]


def test_a_library_without_a_pin_can_be_asked_for_or_given_a_source(make_library: Any) -> None:
    libraries = [make_library("loose"), make_library("other", pin="a" * 40)]
    assert build_utils.without_sources(libraries, ["loose"]) == ()
    target = Target("13.0", "3.12", ("9.0",))
    selection = build_utils.select_libs(libraries, target, ["loose"], ("loose",))
    assert names(selection.selected) == ["loose"]
