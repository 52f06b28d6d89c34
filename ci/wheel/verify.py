"""Gates on a finished wheel by tools that are not ours: twine, check-wheel-contents, ``auditwheel show``.

``auditwheel show`` takes no excludes, so a wheel that rightly leaves CUDA outside is ``linux_x86_64`` to it.
Its JSON still says, for each policy, what stands in the way; striking out what the policy keeps outside gives
the tag that it would show. That is the second opinion on the tag of the file name.

``auditwheel show`` unpacks all of a wheel to look at its ELF files. It gets a slim copy under the same file
name: the ELF files as they are in the finished wheel, and ``.dist-info``. Of other members it would only
learn that they are no ELF files, by their first four bytes (``ELFFile`` of pyelftools), as the farm does.
twine and check-wheel-contents get the finished wheel itself.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ci.findings import Finding
from ci.proc import Command, Completed, run
from ci.wheel import judge
from ci.wheel.archive import write_slim
from ci.wheel.facts import WheelFacts, read_facts
from ci.wheel.policy import Policy, load_policy
from ci.wheel.tags import missing_tool
from ci.wheel.zip_writer import own_cpus

_TIMEOUT = 1800.0
_ANY_TIME = (1980, 1, 1, 0, 0, 0)
_GLIBC = re.compile(r"manylinux_(\d+)_(\d+)_")
_COLOUR = re.compile(r"\x1b?\[[0-9;]*m")
_CHECK = re.compile(r"^.*: (?P<code>W\d{3}): (?P<text>.*)$")


def verify(
    wheel: Path,
    *,
    log: Path,
    excluded: Sequence[str] = (),
    policy: Policy | None = None,
    facts: WheelFacts | None = None,
    jobs: int | None = None,
) -> tuple[Finding, ...]:
    """Run all gates on ``wheel`` and return their findings; ``log`` gets the output of the tools.

    ``excluded`` are patterns that stay outside besides those of the policy: the declared excludes. ``facts``
    are those of this very file, if the caller has just read them (:class:`~ci.wheel.repair.Repaired`); else
    they are read. The tools run side by side, at most ``jobs`` (default: the CPUs of this process).
    Raises :class:`~ci.errors.ToolchainError` when one of the tools is not installed.
    """
    policy, jobs = policy or load_policy(), jobs or own_cpus()
    if facts is None or facts.path != wheel:
        facts = read_facts(wheel, jobs=jobs)
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".verify-", dir=wheel.parent) as scratch:
        twine, contents, show = _run_tools(facts, policy, jobs, Path(scratch))
    _write_log(log, (twine, contents, show))
    return (
        *judge.record_findings(facts),
        *judge.metadata_findings(facts),
        *twine_findings(wheel.name, twine),
        *contents_findings(wheel.name, contents, policy),
        *show_findings(facts, show, (*policy.patterns, *excluded)),
    )


def _run_tools(
    facts: WheelFacts, policy: Policy, jobs: int, scratch: Path
) -> tuple[Completed, Completed, Completed]:
    """twine, check-wheel-contents and ``auditwheel show``, in this order."""
    wheel = facts.path
    ignored = [check.code for check in policy.ignored_checks if not check.paths]
    slim = scratch / wheel.name
    write_slim(wheel, slim, [elf.path for elf in facts.elfs], at=_ANY_TIME)
    with ThreadPoolExecutor(max(1, min(jobs, 3)), "gate") as pool:
        show = pool.submit(
            _tool,
            "auditwheel",
            *("auditwheel", "show", "--json", "--allow-pure-python-wheel"),
            # No search path: else the symbols of a CUDA library that is on this host would count.
            *("--ldpaths=", str(slim)),
            env={"TMPDIR": str(scratch)},
        )
        twine = pool.submit(_tool, "twine", "twine", "check", "--strict", "--", str(wheel))
        contents = pool.submit(
            _tool,
            "check-wheel-contents",
            *("check_wheel_contents", "--no-config", f"--ignore={','.join(ignored)}", str(wheel)),
        )
        return twine.result(), contents.result(), show.result()


def _tool(
    name: str, module: str, *arguments: str, env: Mapping[str, str] | None = None
) -> Completed:
    argv = (sys.executable, "-m", module, *arguments)
    kept = {name: os.environ[name] for name in os.environ if not _misleads(name)}
    kept |= {"NO_COLOR": "1", "COLUMNS": "200", "PYTHONWARNINGS": "ignore", **(env or {})}
    done = run(Command(argv, env=kept, timeout=_TIMEOUT, label=name))
    if not done.ok and f"No module named {module}" in done.output:
        raise missing_tool(name)
    return done


def _misleads(variable: str) -> bool:
    return variable.startswith("AUDITWHEEL_") or variable == "LD_LIBRARY_PATH"


def _write_log(log: Path, runs: Sequence[Completed]) -> None:
    parts = [f"$ {done.command.shown}\n{done.output}[status {done.returncode}]\n" for done in runs]
    log.write_text("\n".join(parts), "utf-8")


def twine_findings(wheel: str, done: Completed) -> tuple[Finding, ...]:
    """``twine check --strict`` ends with status 0, or its reasons are findings."""
    if done.ok:
        return ()
    lines = [_COLOUR.sub("", line).strip() for line in done.output.splitlines()]
    reasons = [line for line in lines if line and not line.startswith("Checking ")]
    why = " ".join(reasons) or f"status {done.returncode}"
    return (
        Finding("twine", wheel, why, "correct the [project] table or the README of the package"),
    )


def contents_findings(wheel: str, done: Completed, policy: Policy) -> tuple[Finding, ...]:
    """One finding for each check of check-wheel-contents that failed, without what the policy ignores."""
    if done.ok:
        return ()
    failed = _failed_checks(done.output.splitlines())
    if not failed:
        why = done.output.strip() or f"status {done.returncode}"
        return (_contents(wheel, "check-wheel-contents", why, ()),)
    found = []
    for code, text, paths in failed:
        ignored = [p for check in policy.ignored_checks if check.code == code for p in check.paths]
        left = _remaining(paths, ignored)
        if left or not paths:
            found.append(_contents(wheel, code, text, left))
    return tuple(found)


def _failed_checks(lines: Sequence[str]) -> list[tuple[str, str, list[str]]]:
    """Code, text and paths of each failed check; its paths stand below it, indented."""
    failed: list[tuple[str, str, list[str]]] = []
    for line in lines:
        match = _CHECK.match(line)
        if match is not None:
            failed.append((match["code"], match["text"].rstrip(":"), []))
        elif failed and line.startswith("  "):
            failed[-1][2].append(line.strip())
    return failed


def _contents(wheel: str, code: str, text: str, paths: Sequence[str]) -> Finding:
    place = ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
    mend = "correct the artifacts of the library, or ignore the check with a reason in policy.toml"
    return Finding(code, place or wheel, text, mend)


def show_findings(
    facts: WheelFacts, done: Completed, outside: Sequence[str]
) -> tuple[Finding, ...]:
    """``auditwheel show`` must agree with the platform tag once ``outside`` is struck out."""
    answer = _answer(done)
    if answer is None:
        why = " ".join(done.tail(3)) or f"status {done.returncode}"
        return (_disagrees(facts, f"auditwheel show failed: {why}"),)
    platforms = {tag.platform for tag in facts.tags}
    shown = shown_platform(answer, outside)
    if shown in platforms:
        return ()
    return (
        _disagrees(
            facts,
            f"the file name says {', '.join(sorted(platforms))}, auditwheel show says {shown}"
            + _in_the_way(answer, outside),
        ),
    )


def _disagrees(facts: WheelFacts, why: str) -> Finding:
    return Finding(
        "platform-tag", facts.path.name, why, "repair the wheel; do not retag it by hand"
    )


def _answer(done: Completed) -> dict[str, Any] | None:
    """The JSON object among the output lines: log lines of auditwheel may stand before it."""
    text = done.output[done.output.find("{") :]
    try:
        answer, _ = json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError:
        return None
    return answer if done.ok and isinstance(answer, dict) and "error" not in answer else None


def shown_platform(answer: Mapping[str, Any], outside: Sequence[str]) -> str:
    """The platform tag of ``auditwheel show --json``, as if ``outside`` were not needed.

    Of the policies that are not stricter than the needed symbol versions, and that only what is in
    ``outside`` stands in the way of, it is the one with the oldest glibc.
    """
    if answer["pure"]:
        return "any"
    overall: str = answer["overall_tag"]
    if (
        not overall.startswith("linux")
        or answer["pyfpe"]
        or answer["ucs2"]
        or answer["unsupported_isa"]
    ):
        return overall
    floor = _glibc(answer["sym_tag"])
    fitting = [
        name
        for name, entry in answer["policy_upgrades"].items()
        if floor
        and _glibc(name) >= floor
        and not entry.get("blacklisted_symbols")
        and not _remaining(entry.get("libs_to_eliminate", ()), outside)
    ]
    return min(fitting, key=_glibc, default=overall)


def _glibc(platform: str) -> tuple[int, ...]:
    """(2, 17) of ``manylinux_2_17_x86_64``; ``()`` for a tag without a glibc version."""
    match = _GLIBC.match(platform)
    return (int(match[1]), int(match[2])) if match else ()


def _remaining(names: Sequence[str], outside: Sequence[str]) -> list[str]:
    return [name for name in names if not any(fnmatchcase(name, pattern) for pattern in outside)]


def _in_the_way(answer: Mapping[str, Any], outside: Sequence[str]) -> str:
    names = _remaining(sorted(answer.get("external_libs", {})), outside)
    return f"; it needs {', '.join(names)} from outside" if names else ""
