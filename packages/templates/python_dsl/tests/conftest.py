"""Runs every test on each installed framework, against the installed package.

``--frameworks torch,paddle`` demands these frameworks: one that is missing is then an error.
Without it, the installed ones are used, and having none is an error.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

PACKAGE = "chunk_linear_attention"
DISTRIBUTIONS = {"torch": "torch", "paddle": "paddlepaddle"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--frameworks", default="", help="comma-separated: torch, paddle")


def _frameworks(config: pytest.Config) -> list[str]:
    wanted = [name for name in config.getoption("--frameworks").split(",") if name]
    unknown = sorted(set(wanted) - set(DISTRIBUTIONS))
    if unknown:
        raise pytest.UsageError(f"unknown framework {', '.join(unknown)}; use torch or paddle")
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        names = " ".join(DISTRIBUTIONS[name] for name in missing)
        raise pytest.UsageError(f"{', '.join(missing)} is not installed; run: pip install {names}")
    found = wanted or [name for name in DISTRIBUTIONS if importlib.util.find_spec(name)]
    if not found:
        raise pytest.UsageError("found no framework; run: pip install torch, or paddlepaddle")
    return found


def pytest_report_header(config: pytest.Config) -> str:
    return f"frameworks: {', '.join(_frameworks(config))}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture in ("fw", "fresh"):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, _frameworks(metafunc.config), indirect=True)


def _forget() -> dict[str, ModuleType]:
    names = [n for n in sys.modules if n == PACKAGE or n.startswith(f"{PACKAGE}.")]
    return {name: sys.modules.pop(name) for name in names}


def _guard(framework: str) -> Any:
    if framework == "torch":
        return nullcontext()
    paddle = importlib.import_module("paddle")
    return paddle.use_compat_guard(scope={PACKAGE}, silent=True)


def _load(framework: str) -> SimpleNamespace:
    """The package, freshly imported in the framework's context, with the ``torch`` that it saw."""
    _forget()
    with _guard(framework):
        library: Any = importlib.import_module(PACKAGE)
    modules = _forget()
    return SimpleNamespace(
        name=framework,
        lib=library,
        torch=library.ops.chunk.torch,
        modules=modules,
        guard=lambda: _guard(framework),
    )


_loaded = cache(_load)


def _present(framework: SimpleNamespace) -> Iterator[SimpleNamespace]:
    sys.modules.update(framework.modules)
    try:
        yield framework
    finally:
        framework.modules.update(_forget())


@pytest.fixture
def fw(request: pytest.FixtureRequest) -> Iterator[SimpleNamespace]:
    """``fw.lib``: the package. ``fw.torch``: PyTorch, or Paddle's proxy. ``fw.name``: which one."""
    yield from _present(_loaded(request.param))


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> Iterator[SimpleNamespace]:
    """Like ``fw``, but imported for this test, so that nothing has been called yet."""
    yield from _present(_load(request.param))
