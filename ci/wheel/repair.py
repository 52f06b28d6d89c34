"""Touch: from a raw wheel to one that can be installed elsewhere, or to findings and nothing on disk.

A repair looks (facts), judges (policy), lets auditwheel touch a slim copy, writes the result in canonical
form, looks again, judges again, and only then moves the wheel into the output folder. auditwheel itself
leaves a wheel in its output folder even when it fails, so it never sees the real one.

The slim copy holds the ELF files and ``.dist-info``, which is all that auditwheel looks at and changes; it is
not compressed. The rest of the wheel is read to be looked at, read to be compressed, written once, and read
back to be looked at again.
"""

from __future__ import annotations

import calendar
import contextlib
import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci.elf import BrokenElfError
from ci.errors import FindingError
from ci.findings import Finding, refuse
from ci.proc import Command, run, scrubbed
from ci.wheel import judge
from ci.wheel.archive import (
    Patched,
    entry_time,
    publish,
    retagged_name,
    rewrite,
    write_slim,
)
from ci.wheel.facts import WheelFacts, read_facts, read_host_elf
from ci.wheel.policy import (
    Exclude,
    Needs,
    Policy,
    cuda_major,
    judge_needs,
    load_policy,
    original_soname,
)
from ci.wheel.tags import Analysis, analyze, compute_tag, missing_tool, python_findings
from ci.wheel.zip_records import Time
from ci.wheel.zip_writer import own_cpus

_AUDITWHEEL = Path(__file__).with_name("child") / "repair.py"
_TIMEOUT = 3600.0
_KEPT_VARIABLES = (
    "AUDITWHEEL_LD_LIBRARY_PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
)


@dataclass(frozen=True)
class Repaired:
    """A repaired wheel.

    ``grafted`` has one readable line per library that auditwheel copied in, with its size in bytes.
    ``skipped_reason`` says why auditwheel was not needed, ``""`` if it ran.
    """

    path: Path
    facts_before: WheelFacts
    facts_after: WheelFacts
    excluded: tuple[Exclude, ...]
    grafted: tuple[str, ...]
    tag: str
    skipped_reason: str = ""


@dataclass(frozen=True)
class _Order:
    """What is asked of one repair."""

    python_tag: str
    cuda: str
    declared: tuple[str, ...]
    forbidden: tuple[str, ...]
    policy: Policy
    env: Mapping[str, str]
    at: Time
    log: Path
    jobs: int


def repair(
    raw: Path,
    out_dir: Path,
    *,
    python_tag: str,
    cuda: str,
    declared_excludes: tuple[str, ...],
    log: Path,
    forbidden_paths: Sequence[str] = (),
    jobs: int | None = None,
) -> Repaired:
    """Repair the wheel ``raw`` into ``out_dir`` and return what was done.

    ``python_tag`` is the cell's (``cp312``), ``cuda`` its CUDA (``13.0``), ``declared_excludes`` are patterns
    that libraries declare, ``forbidden_paths`` must not occur in any binary, and ``log`` gets auditwheel's
    output. ``jobs`` threads read and compress (default: the CPUs of this process). Equal inputs (and
    SOURCE_DATE_EPOCH) give equal bytes, whatever ``jobs`` is.

    Raises :class:`~ci.errors.FindingError` when a rule is broken before or after, or auditwheel fails;
    :class:`~ci.errors.ToolchainError` without auditwheel or patchelf. ``out_dir`` then holds what it held.
    """
    order = _Order(
        python_tag=python_tag,
        cuda=cuda,
        declared=tuple(declared_excludes),
        forbidden=tuple(forbidden_paths),
        policy=load_policy(),
        env=_environment(os.environ),
        at=entry_time(raw, os.environ),
        log=log,
        jobs=jobs or own_cpus(),
    )
    before = read_facts(raw, look_for=order.forbidden, jobs=order.jobs)
    refuse(f"{raw.name} cannot be repaired", _content_findings(before, order))
    with _staging(out_dir) as staging:
        if before.host_elfs:
            return _repair_platform(before, out_dir, staging, order)
        return _repair_pure(before, out_dir, staging, order)


def _content_findings(facts: WheelFacts, order: _Order) -> list[Finding]:
    """The rules that hold for a raw wheel as well as for a repaired one."""
    return [
        *judge.archive_findings(facts),
        *judge.record_findings(facts),
        *judge.metadata_findings(facts),
        *judge.label_findings(facts, order.cuda),
        *judge.machine_findings(facts),
        *python_findings(facts, order.python_tag),
        *judge.bundled_findings(facts, order.policy),
        *judge.build_path_findings(facts),
    ]


# --- wheels without ELF files ----------------------------------------------------------------------


def _repair_pure(before: WheelFacts, out_dir: Path, staging: Path, order: _Order) -> Repaired:
    needs = judge_needs(before, cuda_major(order.cuda), order.declared, order.policy)
    refuse(f"{before.path.name} cannot be repaired", needs.findings)
    tag = str(compute_tag(before, order.python_tag, ("any",)))
    final = _rewritten(before.path, staging, tag, None, order)
    reason = "no ELF file in the wheel: auditwheel has nothing to do"
    order.log.parent.mkdir(parents=True, exist_ok=True)
    order.log.write_text(f"{before.path.name}: {reason}; tag {tag}\n", "utf-8")
    return _finish(before, final, out_dir, needs, ("any",), order, reason)


# --- wheels with ELF files -------------------------------------------------------------------------


def _repair_platform(before: WheelFacts, out_dir: Path, staging: Path, order: _Order) -> Repaired:
    _check_tools(order.env)
    provisional = compute_tag(before, order.python_tag, (f"linux_{before.host_elfs[0].machine}",))
    slim = _folder(staging, "slim") / retagged_name(before.path.name, str(provisional))
    elfs = [elf.path for elf in before.elfs]
    given = write_slim(before.path, slim, elfs, at=order.at, tag=str(provisional))
    needs = _needs(before, slim, order)
    patched = _run_auditwheel(slim, _folder(staging, "patched"), needs, order)
    tag = "-".join(patched.name.removesuffix(".whl").rsplit("-", 3)[1:])
    patterns = [exclude.pattern for exclude in needs.excludes]
    analysis = analyze(patched, patterns, graft=False, env=order.env)
    refuse(f"{patched.name} is not portable", _portability_findings(patched, analysis))
    final = _rewritten(before.path, staging, tag, Patched(patched, given), order)
    return _finish(before, final, out_dir, needs, analysis.platforms, order, "")


def _needs(before: WheelFacts, slim: Path, order: _Order) -> Needs:
    """What stays outside and what gets grafted, before auditwheel touches anything."""
    plan = analyze(slim, [*order.policy.patterns, *order.declared], graft=True, env=order.env)
    needs = judge_needs(
        before,
        cuda_major(order.cuda),
        order.declared,
        order.policy,
        allowed=plan.allowed,
        grafted_needs=_needs_of_grafted(plan),
    )
    findings = [*needs.findings, *_missing(plan, needs), *_portability_findings(before.path, plan)]
    refuse(f"{before.path.name} cannot be repaired", findings)
    return needs


def _needs_of_grafted(plan: Analysis) -> dict[str, tuple[str, ...]]:
    """DT_NEEDED of the libraries on this host that auditwheel is going to copy into the wheel."""
    users: dict[str, list[str]] = {}
    for soname, path in plan.external.items():
        if path is None:
            continue
        try:
            needed = read_host_elf(Path(path)).needed
        except (BrokenElfError, OSError):
            continue
        for name in needed:
            users.setdefault(name, []).append(soname)
    return {name: tuple(users[name]) for name in sorted(users)}


def _missing(plan: Analysis, needs: Needs) -> list[Finding]:
    return [
        Finding(
            "missing-library",
            ", ".join(needs.outside.get(soname, ("?",))),
            f"it needs {soname}, which is neither in the wheel nor on this host",
            f"install the library that brings {soname}, or declare the exclude {soname!r} and the "
            "requirement that provides it at run time",
        )
        for soname, path in plan.external.items()
        if path is None and soname in needs.outside
    ]


def _portability_findings(wheel: Path, analysis: Analysis) -> list[Finding]:
    mend = "build in an image with an older glibc and for the baseline of the architecture"
    found = [Finding("portability", wheel.name, note, mend) for note in analysis.notes]
    if not found and not analysis.is_manylinux:
        tag = ".".join(analysis.platforms)
        found.append(Finding("portability", wheel.name, f"only the tag {tag} fits", mend))
    return found


def _run_auditwheel(prepared: Path, folder: Path, needs: Needs, order: _Order) -> Path:
    excludes = [part for e in needs.excludes for part in ("--exclude", e.pattern)]
    argv = (
        *(sys.executable, str(_AUDITWHEEL), "repair", "--plat", "auto"),
        *("--zip-compression-level", "0", "--wheel-dir", str(folder)),
        *excludes,
        str(prepared),
    )
    env = {
        **order.env,
        "SOURCE_DATE_EPOCH": str(calendar.timegm((*order.at, 0, 0, 0))),
        "TMPDIR": str(_folder(folder.parent, "temporary")),
    }
    done = run(Command(argv, env=env, timeout=_TIMEOUT, label="auditwheel repair"), log=order.log)
    wheels = sorted(folder.glob("*.whl"))
    if done.ok and len(wheels) == 1:
        return wheels[0]
    status = "timed out" if done.timed_out else f"ended with status {done.returncode}"
    raise FindingError(
        f"auditwheel could not repair {prepared.name}",
        cause=f"auditwheel {status} and left {len(wheels)} wheel(s)",
        next_step=f"read {order.log}",
        details=done.tail(20),
    )


# --- both ------------------------------------------------------------------------------------------


def _finish(
    before: WheelFacts,
    final: Path,
    out_dir: Path,
    needs: Needs,
    platforms: tuple[str, ...],
    order: _Order,
    skipped_reason: str,
) -> Repaired:
    """Look again at what is on disk now, judge again, publish. A move changes no byte of it."""
    after = read_facts(final, look_for=order.forbidden, jobs=order.jobs)
    tag = compute_tag(after, order.python_tag, platforms)
    findings = [
        *_content_findings(after, order),
        *judge.search_path_findings(after),
        *judge.tag_findings(after, tag),
        *_lost(before, after),
        *_changed(before, after),
    ]
    refuse(f"{final.name} was repaired, and is still not right", findings)
    path = publish(final, out_dir)
    return Repaired(
        path=path,
        facts_before=before,
        facts_after=replace(after, path=path),
        excluded=needs.excludes,
        grafted=_grafted(before, after, needs),
        tag=str(tag),
        skipped_reason=skipped_reason,
    )


def _lost(before: WheelFacts, after: WheelFacts) -> list[Finding]:
    """Nothing but signatures of RECORD may get lost on the way."""
    signatures = {f"{before.dist_info}/RECORD.jws", f"{before.dist_info}/RECORD.p7s"}
    gone = {m.name for m in before.members} - {m.name for m in after.members} - signatures
    return [
        Finding(
            "lost", name, "it was in the raw wheel and is not in the repaired one", "report this"
        )
        for name in sorted(gone)
    ]


def _changed(before: WheelFacts, after: WheelFacts) -> list[Finding]:
    """Only ELF files, by auditwheel, and ``.dist-info`` may have other content than in the raw wheel."""
    elfs = {elf.path for elf in before.elfs}
    old = {member.name: member.sha256 for member in before.members}
    return [
        Finding("changed", m.name, "its content is not that of the raw wheel", "report this")
        for m in after.members
        if m.name not in elfs
        and not m.name.startswith(f"{before.dist_info}/")
        and old.get(m.name, m.sha256) != m.sha256
    ]


def _grafted(before: WheelFacts, after: WheelFacts, needs: Needs) -> tuple[str, ...]:
    old = {member.name for member in before.members}
    lines = []
    for elf in after.host_elfs:
        if elf.path in old:
            continue
        users = ", ".join(_users(original_soname(elf.name), needs)) or "another grafted library"
        lines.append(f"{elf.path} ({elf.size} bytes, needed by {users})")
    return tuple(sorted(lines))


def _users(name: str, needs: Needs) -> tuple[str, ...]:
    """Who needs the file ``name``, which may be ``libffi.so.8.1.2`` where libffi.so.8 is needed."""
    matching = [soname for soname in needs.outside if f"{name}.".startswith(f"{soname}.")]
    return needs.outside[max(matching, key=len)] if matching else ()


def _rewritten(
    source: Path, staging: Path, tag: str, patched: Patched | None, order: _Order
) -> Path:
    target = _folder(staging, "final") / retagged_name(source.name, tag)
    rewrite(source, target, tag=tag, at=order.at, patched=patched, jobs=order.jobs)
    return target


def _folder(parent: Path, name: str) -> Path:
    path = parent / name
    path.mkdir(exist_ok=True)
    return path


@contextlib.contextmanager
def _staging(out_dir: Path) -> Iterator[Path]:
    """A folder inside ``out_dir``, so that publishing is one rename; it is gone afterwards."""
    existed = out_dir.exists()
    out_dir.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".repair-", dir=out_dir))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if not existed:
            with contextlib.suppress(OSError):  # it holds a wheel now, or another repair's folder
                out_dir.rmdir()


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of auditwheel: the farm's own scripts first, and no AUDITWHEEL_PLAT from outside."""
    scripts = sysconfig.get_path("scripts")
    path = os.pathsep.join((scripts, environ.get("PATH", os.defpath)))
    return scrubbed(environ, _KEPT_VARIABLES, PATH=path, PYTHONDONTWRITEBYTECODE="1")


def _check_tools(env: Mapping[str, str]) -> None:
    if importlib.util.find_spec("auditwheel") is None:
        raise missing_tool("auditwheel")
    if shutil.which("patchelf", path=env["PATH"]) is None:
        raise missing_tool("patchelf")
