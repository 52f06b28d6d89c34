"""What a build may take that was never seen: enough to start with what takes long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.pipeline.libraries import MOST_SECONDS, first_guess


@pytest.fixture
def sources(tmp_path: Path) -> Callable[[str, int], Path]:
    def make(suffix: str, count: int) -> Path:
        folder = tmp_path / f"{suffix}{count}"
        (folder / "csrc").mkdir(parents=True)
        for number in range(count):
            (folder / "csrc" / f"{number}{suffix}").write_text("")
        return folder

    return make


def test_more_files_take_longer_and_device_code_longest(
    make_library: Callable[..., Any], sources: Callable[[str, int], Path]
) -> None:
    library = replace(make_library(), needs_host_compiler=True, parallel_by="nothing")
    order = [
        first_guess(library, sources(suffix, count), 4).seconds
        for suffix, count in ((".py", 50), (".cpp", 1), (".cpp", 4), (".cu", 4))
    ]
    assert order == sorted(order)
    assert len(set(order)) == 4


def test_what_cannot_be_divided_comes_before_what_can(
    make_library: Callable[..., Any], sources: Callable[[str, int], Path]
) -> None:
    folder = sources(".cpp", 8)
    alone, divided = (
        first_guess(
            replace(make_library(), needs_host_compiler=True, parallel_by=how), folder, tokens=4
        )
        for how in ("nothing", "jobserver")
    )
    assert alone.seconds > divided.seconds
    assert alone.cpu_seconds == divided.cpu_seconds


def test_sources_that_nothing_compiles_count_for_nothing_and_a_guess_has_an_end(
    make_library: Callable[..., Any], sources: Callable[[str, int], Path]
) -> None:
    pure = replace(make_library(), needs_host_compiler=False, needs_cuda_compiler=False)
    assert first_guess(pure, sources(".cpp", 9), 1) == first_guess(pure, sources(".py", 1), 1)
    huge = replace(make_library(), needs_cuda_compiler=True)
    assert first_guess(huge, sources(".cu", 400), 1).seconds == MOST_SECONDS
