"""The import suite: the wheel, in a fresh environment that cannot see the source tree.

``tests/single_card_tests/custom_ops/test_ops_import.py`` is copied to an empty folder and run there by
the environment's own pytest. Its exit status decides; the report that it writes only says which
library a result belongs to. A run that executed nothing is red.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.environments.lock import IMPORT_BASE, lock_for
from ci.environments.venv import Environment, frozen, install_wheel, make_environment
from ci.errors import SuiteError
from ci.executors.base import Executor
from ci.proc import Command, Completed, scrubbed
from ci.registry import REPOSITORY

SUITE = REPOSITORY / "tests" / "single_card_tests"
SUITE_FILE = "custom_ops/test_ops_import.py"
SUITE_TIMEOUT_SECONDS = 1800.0


@dataclass(frozen=True)
class LibraryState:
    """What the loader said of one library: ``loaded``, ``blocked`` or ``failed``, and why."""

    name: str
    state: str
    reasons: tuple[str, ...]
    in_wheel: bool = True


@dataclass(frozen=True)
class TestFailure:
    """A test case that failed. ``library`` is what the case is about, empty for the whole package."""

    test: str
    library: str
    message: str


@dataclass(frozen=True)
class ImportResult:
    """What came of the suite in one environment: counts of test cases, the loader's own table."""

    passed: int
    failed: int
    skipped: int
    seconds: float
    states: tuple[LibraryState, ...]
    failures: tuple[TestFailure, ...]
    skip_reasons: tuple[str, ...]
    packages: tuple[str, ...]
    log: Path

    @property
    def ok(self) -> bool:
        """True when something was executed, nothing failed and nothing was skipped."""
        return self.passed > 0 and self.failed == 0 and self.skipped == 0

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, each thing once: libraries that failed to load, other failures, skips."""
        failed = {state.name: state for state in self.states if state.state == "failed"}
        lines = [
            f"{name} failed to load: {' '.join(state.reasons)}" for name, state in failed.items()
        ]
        lines += [
            f"{failure.test}: {failure.message}"
            for failure in self.failures
            if failure.library not in failed
        ]
        lines += [f"skipped: {reason}" for reason in self.skip_reasons]
        if not self.passed:
            lines.append("nothing was executed")
        return tuple(lines)


def run_import_suite(
    wheel: Path,
    *,
    interpreter: Path,
    python: str,
    run_requires: Sequence[str],
    paddle: str,
    executor: Executor,
    cache_dir: Path,
    work: Path,
    log: Path,
) -> ImportResult:
    """Install ``wheel`` beside ``paddle`` in a new environment below ``work`` and run the suite.

    Raises :class:`~ci.errors.SuiteError` when the suite could not run at all; a failing test is in the
    result.
    """
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    lock = lock_for((*IMPORT_BASE, paddle, *run_requires), python, "import", cache_dir)
    environment = make_environment(lock, interpreter, work / "environment")
    install_wheel(environment, wheel)
    folder = work / "suite"
    shutil.copytree(SUITE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    report = work / "junit.xml"
    done = executor.run(_suite_command(environment, folder, report), log)
    states = _loader_table(environment, executor, folder, log.with_name("loader.json"))
    packages = frozen(environment)
    shutil.rmtree(environment.folder, ignore_errors=True)
    return _result(done, report, states, packages, log)


def _suite_command(environment: Environment, folder: Path, report: Path) -> Command:
    return Command(
        argv=(
            str(environment.python), *_safe_path(environment), "-m", "pytest", SUITE_FILE,
            "-p", "no:cacheprovider", "-o", "junit_family=xunit2", f"--junitxml={report}", "-rA",
            "--tb=short",
        ),
        cwd=folder,
        env=_clean_environment(environment, folder),
        timeout=SUITE_TIMEOUT_SECONDS,
        label="import suite",
    )  # fmt: skip


def _safe_path(environment: Environment) -> tuple[str, ...]:
    """``-P`` keeps the working folder off ``sys.path``; it exists from Python 3.11 on."""
    return () if any(environment.folder.glob("lib/python3.10")) else ("-P",)


def _clean_environment(environment: Environment, folder: Path) -> dict[str, str]:
    return scrubbed(
        os.environ,
        ("LANG", "LC_ALL", "CUDA_VISIBLE_DEVICES"),
        PATH=os.pathsep.join((str(environment.folder / "bin"), "/usr/bin", "/bin")),
        HOME=str(folder),
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONNOUSERSITE="1",
    )


def _loader_table(
    environment: Environment, executor: Executor, folder: Path, log: Path
) -> tuple[LibraryState, ...]:
    """What ``python -m paddlefleet_ops --json`` says, in a process of its own."""
    command = Command(
        argv=(str(environment.python), "-m", "paddlefleet_ops", "--json"),
        cwd=folder,
        env=_clean_environment(environment, folder),
        timeout=SUITE_TIMEOUT_SECONDS,
    )
    done = executor.run(command, log)
    start = done.output.find("\n{")
    try:
        document = json.JSONDecoder().raw_decode(done.output[start + 1 :])[0]
        return tuple(
            LibraryState(
                str(row["name"]), str(row["state"]), tuple(row["reasons"]), bool(row["in_wheel"])
            )
            for row in document["libraries"]
        )
    except (ValueError, KeyError, TypeError) as error:
        raise SuiteError(
            "the wheel's own table of libraries cannot be read",
            cause=f"python -m paddlefleet_ops --json: {error}",
            next_step=f"read {log}",
            details=done.tail(20),
        ) from error


def _result(
    done: Completed,
    report: Path,
    states: tuple[LibraryState, ...],
    packages: tuple[str, ...],
    log: Path,
) -> ImportResult:
    # The report is pytest's own, written a moment ago.
    cases = list(ET.parse(report).iter("testcase")) if report.exists() else []  # noqa: S314
    failed = [
        case for case in cases if any(case.find(tag) is not None for tag in ("failure", "error"))
    ]
    skipped = [case for case in cases if case.find("skipped") is not None]
    if done.timed_out or (not done.ok and not failed):
        raise SuiteError(
            "the import suite did not run to its end",
            cause="it timed out"
            if done.timed_out
            else f"pytest ended with status {done.returncode}",
            next_step=f"read {log}",
            details=done.tail(30),
        )
    return ImportResult(
        passed=len(cases) - len(failed) - len(skipped),
        failed=len(failed),
        skipped=len(skipped),
        seconds=done.seconds,
        states=states,
        failures=tuple(_failure(case) for case in failed),
        skip_reasons=tuple(_message(case) for case in skipped),
        packages=packages,
        log=log,
    )


def _failure(case: ET.Element) -> TestFailure:
    name = case.get("name") or "?"
    match = re.fullmatch(r"\w+\[(.+)\]", name)
    return TestFailure(name, match.group(1) if match else "", _message(case))


def _message(case: ET.Element) -> str:
    for tag in ("failure", "error", "skipped"):
        found = case.find(tag)
        if found is not None:
            return (found.get("message") or "").strip()
    return ""
