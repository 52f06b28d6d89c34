"""Asking the machine never crashes: what cannot be answered is a reason."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest


def fake_paddle(cuda="12.9", count=1, capability=(9, 0)):
    def answer(value):
        if isinstance(value, Exception):
            raise value
        return value

    return SimpleNamespace(
        version=SimpleNamespace(cuda=lambda: cuda),
        device=SimpleNamespace(
            cuda=SimpleNamespace(
                device_count=lambda: answer(count),
                get_device_capability=lambda: answer(capability),
            )
        ),
    )


def observe(part, paddle, with_capability=True):
    return part("_observe").observe(paddle, with_capability=with_capability)


def test_a_gpu_host_is_described(part):
    environment = observe(part, fake_paddle())
    assert environment.python == sys.version_info[:2]
    assert environment.cuda == (12, 9)
    assert environment.capabilities == ((9, 0),)


@pytest.mark.parametrize("text", ["False", "None", ""])
def test_a_paddle_without_cuda_has_no_cuda_and_no_device(part, text):
    environment = observe(part, fake_paddle(cuda=text, count=RuntimeError("must not be asked")))
    assert environment.cuda is None
    assert environment.capabilities == ()
    assert environment.no_gpu == "this Paddle was built without CUDA"


@pytest.mark.parametrize(
    ("paddle", "reason"),
    [
        (fake_paddle(count=0), "no CUDA device was found"),
        (
            fake_paddle(count=RuntimeError("no driver")),
            "asking the CUDA device failed: RuntimeError: no driver",
        ),
        (
            fake_paddle(capability=OSError("line one\n  CUDA error(35)\n")),
            "asking the CUDA device failed: OSError: CUDA error(35)",
        ),
        (
            fake_paddle(capability=ValueError()),
            "asking the CUDA device failed: ValueError: without a message",
        ),
    ],
)
def test_a_capability_query_that_fails_is_a_reason(part, paddle, reason):
    environment = observe(part, paddle)
    assert environment.capabilities == ()
    assert environment.no_gpu == reason
    unmet = part("_requires").Requires(capability=">=9.0").unmet(environment)
    assert unmet == (f"needs compute capability >=9.0; {reason}",)


def test_the_device_is_not_asked_without_need(part):
    paddle = fake_paddle(count=RuntimeError("must not be asked"))
    assert observe(part, paddle, with_capability=False).capabilities == ()


@pytest.mark.parametrize(
    ("value", "meaning"), [("", "raise"), ("raise", "raise"), ("block", "block")]
)
def test_the_variable_chooses_what_a_failure_does(part, monkeypatch, value, meaning):
    monkeypatch.setenv("PADDLEFLEET_OPS_ON_ERROR", value)
    assert part("_observe").on_error() == meaning


def test_another_value_of_the_variable_is_an_error(part, monkeypatch):
    monkeypatch.setenv("PADDLEFLEET_OPS_ON_ERROR", "ignore")
    with pytest.raises(ValueError, match=r"'ignore'.*raise, block"):
        part("_observe").on_error()


@pytest.mark.parametrize(
    ("argv", "is_report"),
    [
        (["python", "-m", "pkg"], True),
        (["python", "-m", "pkg", "--json"], True),
        (["python", "-mpkg"], True),
        (["python", "-X", "importtime", "-W", "error", "-m", "pkg"], True),
        (["python", "-m", "pkg.other"], False),
        (["python", "-m", "pytest", "-m", "pkg"], False),
        (["python", "script.py", "-m", "pkg"], False),
        (["python", "-c", "import pkg", "-m", "pkg"], False),
        (["python"], False),
        ([], False),
    ],
)
def test_a_report_is_told_from_other_imports(part, argv, is_report):
    assert part("_observe").is_report("pkg", argv) is is_report
