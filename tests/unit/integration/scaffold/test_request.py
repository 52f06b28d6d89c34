"""What is wrong with a request is told before anything is fetched, all of it at once."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pytest

from ci.integration.scaffold.arguments import integrate_options, request_of
from ci.integration.scaffold.registry_file import kinds
from ci.integration.scaffold.request import Exercise, IntegrateRequest, request_problems

GOOD = IntegrateRequest(name="axpy", kind="cuda_extension", url="https://example.org/axpy.git")


def test_a_good_request_has_no_problem() -> None:
    assert request_problems(GOOD, kinds()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "a/b"}, "library name 'a/b'"),
        ({"name": ""}, "library name ''"),
        ({"name": "-rf"}, "library name '-rf'"),
        ({"kind": "cuda"}, "unknown kind 'cuda'; there are: header_only, cuda_extension"),
        ({"url": ""}, "--url"),
        ({"url": "https://user:secret@example.org/a.git"}, "credential helper"),
        ({"module": "a-b"}, "--module 'a-b'"),
        ({"availability": "1x"}, "--availability '1x'"),
        ({"scope": ("a", "b c")}, "--scope 'b c'"),
        ({"public_names": ("f()",)}, "--public-name 'f()'"),
        ({"artifacts": (("a", ""),)}, "--artifact a:"),
        ({"requires_cuda": "12.9 or so"}, "--requires-cuda"),
        ({"requires_python": ">=3.x"}, "--requires-python"),
        ({"requires_capability": "sm_90"}, "--requires-capability"),
        ({"build_requires": ("ninja >= ",)}, "--build-requires"),
        ({"run_requires": ("a b",)}, "--run-requires"),
        ({"hint": "two\nlines"}, "--hint"),
        ({"hint": "x" * 91}, "--hint"),
        ({"wrapper": "/etc/x.py"}, "--wrapper"),
        ({"wrapper": "../x.py"}, "--wrapper"),
        ({"wrapper": "src/x"}, "--wrapper"),
        ({"exercises": (Exercise("scale"),)}, None),
        ({"exercises": (Exercise("=1"),)}, "--exercise '=1'"),
        ({"exercises": (Exercise("f=1, ("),)}, "--exercise 'f=1, ('"),
        ({"exercises": (Exercise("f=1) or g(2"),)}, "--exercise 'f=1) or g(2'"),
        ({"exercises": (Exercise("f=1"), Exercise("f=2"))}, "f is exercised twice"),
    ],
)
def test_each_wrong_value_is_named(changes: dict[str, object], words: str | None) -> None:
    problems = request_problems(replace(GOOD, **changes), kinds())  # type: ignore[arg-type]
    assert len(problems) == (words is not None)
    assert all(words is not None and words in problem for problem in problems)


def test_all_problems_come_at_once() -> None:
    bad = replace(GOOD, name="a b", kind="x", module="1", requires_cuda="?", hint="\n")
    assert len(request_problems(bad, kinds())) == 5


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("https://example.org/a.git", False),
        ("ssh://git@example.org/a.git", False),
        ("git@example.org:group/a.git", False),
        ("/srv/git/a", True),
        ("../a", True),
        ("file:///srv/git/a", True),
    ],
)
def test_a_folder_is_told_from_an_address(url: str, local: bool) -> None:
    assert replace(GOOD, url=url).is_local is local


def test_an_exercise_is_a_name_its_arguments_and_the_shapes_of_its_result() -> None:
    exercise = Exercise("fla.ops:chunk=paddle.ones([2, 3]), axis=[0, 1] -> [2, 3], [4]")
    assert exercise.name == "fla.ops:chunk"
    assert exercise.arguments == "paddle.ones([2, 3]), axis=[0, 1]"
    assert exercise.shapes == ((2, 3), (4,))
    assert exercise.label == "fla_ops_chunk"
    assert [keyword.arg for keyword in exercise.call.keywords] == ["axis"]


def test_arguments_that_end_like_a_shape_are_arguments() -> None:
    assert Exercise("f=[1, 2]").shapes == ()
    assert Exercise("f=[1, 2]").arguments == "[1, 2]"
    assert Exercise("f=1.0 -> []").shapes == ((),)


def test_the_command_line_gives_the_request() -> None:
    parser = argparse.ArgumentParser()
    integrate_options(parser)
    arguments = parser.parse_args(
        [
            "axpy", "--kind", "cuda_extension", "--url", "u", "--rev", "v1", "--module", "m",
            "--artifact", "a", "--artifact", "b:c", "--public-name", "f", "--public-name", "g",
            "--scope", "triton", "--requires-capability", ">=9.0", "--build-requires", "ninja",
            "--run-requires", "einops", "--availability", "w", "--hint", "h",
            "--exercise", "f=1 -> [2]", "--wrapper", "w.py", "--nested", "all", "--cpu-path",
        ]
    )  # fmt: skip
    assert request_of(arguments) == IntegrateRequest(
        name="axpy",
        kind="cuda_extension",
        url="u",
        revision="v1",
        module="m",
        artifacts=(("a", "a"), ("b", "c")),
        public_names=("f", "g"),
        scope=("triton",),
        requires_capability=">=9.0",
        cpu_path=True,
        build_requires=("ninja",),
        run_requires=("einops",),
        availability="w",
        hint="h",
        exercises=(Exercise("f=1 -> [2]"),),
        wrapper="w.py",
        nested=(),
    )


def test_nested_submodules_are_none_unless_they_are_named() -> None:
    parser = argparse.ArgumentParser()
    integrate_options(parser)
    given = ["axpy", "--kind", "k", "--url", "u"]
    assert request_of(parser.parse_args(given)).nested is None
    assert request_of(parser.parse_args([*given, "--nested", "csrc/x"])).nested == ("csrc/x",)
