"""What the tasks of a run share: values that one makes and others wait for."""

from __future__ import annotations

import threading

import pytest

from ci.errors import ToolchainError
from ci.pipeline.run import Once


def test_a_value_is_made_once_by_whoever_asks_first() -> None:
    once, made = Once(), []

    def make() -> str:
        made.append("value")
        return "value"

    barrier, got = threading.Barrier(8), []

    def ask() -> None:
        barrier.wait()
        got.append(once.get("name", make))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == ["value"] * 8
    assert made == ["value"]
    assert once.made("name") == "value"
    assert once.made("other") is None


def test_an_error_is_that_of_all_who_ask() -> None:
    once, tried = Once(), []

    def fail() -> str:
        tried.append(1)
        raise ToolchainError("no compiler")

    for _ in range(2):
        with pytest.raises(ToolchainError, match="no compiler"):
            once.get("name", fail)
    assert tried == [1]


def test_values_of_other_names_do_not_wait() -> None:
    once, inside = Once(), threading.Event()

    def slow() -> str:
        assert inside.wait(20)
        return "slow"

    thread = threading.Thread(target=lambda: once.get("slow", slow))
    thread.start()
    assert once.get("quick", lambda: "quick") == "quick"
    inside.set()
    thread.join()
