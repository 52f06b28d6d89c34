"""Fixtures and the table of errors that ends a run.

What a machine lacks (a framework, a GPU) is skipped with its reason. ``--require torch,cuda`` turns
such a skip into a failure: use it where the thing must be there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import frameworks
import numpy as np
import oracle
import pytest


@dataclass
class Errors:
    """The worst errors of one operator result, over all compared cases."""

    tolerance: oracle.Tolerance
    cases: int = 0
    absolute: float = 0.0
    relative: float = 0.0
    of_tolerance: float = 0.0


@dataclass
class Comparison:
    """Compares results of one test's framework and device, and keeps the errors for the table."""

    framework: str
    device: str
    table: dict[tuple[str, str, str, str], Errors] = field(default_factory=dict)

    def check(
        self,
        result: str,
        dtype: str,
        got: np.ndarray,
        want: np.ndarray,
        tolerance: oracle.Tolerance,
    ) -> None:
        """Assert shape, NaN and infinity as in `want`, and finite values within `tolerance`."""
        assert got.shape == want.shape
        finite = np.isfinite(want)
        np.testing.assert_array_equal(got[~finite], want[~finite])
        difference = np.abs(got[finite] - want[finite])
        size = np.abs(want[finite])
        allowed = tolerance.absolute + tolerance.relative * size
        with np.errstate(all="ignore"):
            relative = difference[size > tolerance.absolute] / size[size > tolerance.absolute]
            of_tolerance = difference / allowed if tolerance.relative else difference
        key = (result, dtype, self.device, self.framework)
        errors = self.table.setdefault(key, Errors(tolerance))
        errors.cases += 1
        errors.absolute = max(errors.absolute, difference.max(initial=0.0))
        errors.relative = max(errors.relative, relative.max(initial=0.0))
        errors.of_tolerance = max(errors.of_tolerance, of_tolerance.max(initial=0.0))
        assert np.all(difference <= allowed), (
            f"{result} {dtype} on {self.device}: off by {difference.max()}, which is "
            f"{of_tolerance.max():.2f} of the tolerance"
        )

    def check_exact(self, result: str, dtype: str, got: np.ndarray, want: np.ndarray) -> None:
        """Assert the same values; NaN equals NaN."""
        self.check(result, dtype, got, want, oracle.Tolerance(0.0, 0.0))


TABLE: dict[tuple[str, str, str, str], Errors] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        default="",
        help="comma-separated: torch, paddle, cuda; what is named must be there, or tests fail",
    )


def _absent(request: pytest.FixtureRequest, what: str, reason: str) -> None:
    required = [word.strip() for word in request.config.getoption("--require").split(",")]
    if what in required:
        pytest.fail(f"--require names {what}: {reason}")
    pytest.skip(reason)


@cache
def _loaded(name: str) -> frameworks.Framework:
    return frameworks.load(name)


@pytest.fixture(params=frameworks.NAMES)
def framework(request: pytest.FixtureRequest) -> frameworks.Framework:
    if not any(frameworks.installed(name) for name in frameworks.NAMES):
        pytest.fail("neither torch nor paddle is installed: there is nothing to test with")
    if not frameworks.installed(request.param):
        _absent(request, request.param, f"{request.param} is not installed")
    return _loaded(request.param)


@pytest.fixture(params=("cpu", "cuda"))
def device(request: pytest.FixtureRequest, framework: frameworks.Framework) -> str:
    if reason := framework.why_not(request.param):
        _absent(request, request.param, reason)
    return str(request.param)


@pytest.fixture
def gpu(request: pytest.FixtureRequest, framework: frameworks.Framework) -> str:
    if reason := framework.why_not("cuda"):
        _absent(request, "cuda", reason)
    return "cuda"


@pytest.fixture(params=oracle.DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def compare(framework: frameworks.Framework, device: str) -> Comparison:
    return Comparison(framework.name, device, TABLE)


@pytest.fixture
def random(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(sum(request.node.name.encode()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not TABLE:
        return
    write = terminalreporter.write_line
    terminalreporter.section("largest errors against the float64 oracle")
    write(
        f"{'result':<22} {'dtype':<9} {'device':<6} {'framework':<9} {'cases':>5} "
        f"{'max abs':>9} {'max rel':>9} {'rtol':>9} {'atol':>9} {'used':>6}"
    )
    for (result, dtype, device, name), errors in sorted(TABLE.items()):
        used = f"{errors.of_tolerance:6.0%}" if errors.tolerance.relative else " exact"
        write(
            f"{result:<22} {dtype:<9} {device:<6} {name:<9} {errors.cases:>5} "
            f"{errors.absolute:9.2e} {errors.relative:9.2e} {errors.tolerance.relative:9.2e} "
            f"{errors.tolerance.absolute:9.2e} {used}"
        )
