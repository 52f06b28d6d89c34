"""The table of toolchains and its locks."""

from __future__ import annotations

import re

import pytest
from packaging.requirements import Requirement

from ci.toolchain.recipes import LOCKS, RECIPES, Recipe, assembled_versions, find_recipe

IDS = [recipe.lock for recipe in RECIPES]


@pytest.mark.parametrize("recipe", RECIPES, ids=IDS)
def test_every_package_is_pinned_and_hashed(recipe: Recipe) -> None:
    text = recipe.requirements.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) == len(recipe.packages()) > 0
    for line in lines:
        assert re.fullmatch(r"[a-z0-9-]+==[\d.]+( +--hash=sha256:[0-9a-f]{64})+ *", line), line


@pytest.mark.parametrize("recipe", RECIPES, ids=IDS)
def test_the_lock_answers_its_input(recipe: Recipe) -> None:
    source = recipe.requirements.with_suffix(".in").read_text(encoding="utf-8")
    wanted = [
        Requirement(line) for line in source.splitlines() if line and not line.startswith("#")
    ]
    pins = dict(package.split("==") for package in recipe.packages())
    assert sorted(requirement.name for requirement in wanted) == sorted(pins)
    for requirement in wanted:
        assert requirement.specifier.contains(pins[requirement.name])


@pytest.mark.parametrize("recipe", RECIPES, ids=IDS)
def test_the_compiler_in_the_lock_is_of_the_row(recipe: Recipe) -> None:
    compilers = [package for package in recipe.packages() if package.startswith("nvidia-cuda-nvcc")]
    assert any(package.partition("==")[2].startswith(recipe.cuda + ".") for package in compilers)


def test_no_lock_holds_the_address_of_an_index() -> None:
    files = [*LOCKS.glob("*.in"), *LOCKS.glob("*.txt")]
    assert len(files) == 2 * len(RECIPES)
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert "://" not in text
        assert not re.search(r"^-", text, re.MULTILINE)


def test_rows_are_found_by_cuda_and_compiler() -> None:
    recipe = find_recipe("13.0", "nvcc")
    assert recipe is not None
    assert recipe.newest_gcc == 15
    assert find_recipe("12.6", "nvcc") is None
    assert set(assembled_versions("clang")) >= {"12.6", "12.9"}
