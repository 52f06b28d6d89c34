"""The order of a check: subjects → sources read → static rules → registry rules → run time → baseline."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Literal

from ci.errors import ConfigError, raise_together
from ci.findings import Finding
from ci.integration.analysis import Analysis
from ci.integration.baseline import BASELINE_RULES, Known, apply, read_baseline, render
from ci.integration.imports import told_apart
from ci.integration.kept_exceptions import documented
from ci.integration.rule import Rule
from ci.integration.rules import STATIC_RULES, name_collision, static_findings
from ci.integration.subject import Subject, check_text, resolve_subjects, tree_of
from ci.matrix.load import load
from ci.matrix.schema import suggest
from ci.registry import (
    MATRIX,
    PACKAGE_ROOT,
    REPOSITORY,
    EcosystemLibrary,
    build_utils,
    libraries_of,
)
from ci.report.check_model import CheckReport, KnownFinding, LibraryCheck
from ci.report.progress import Narrator
from ci.sources.override import parse_overrides

BASELINE = PACKAGE_ROOT / "check_baseline.toml"
WHEEL = "the wheel"  # what the registry rules say of no single library


@dataclass(frozen=True)
class CheckRequest:
    """What the command line asks for. ``run_time``: ``can`` runs it where possible, ``must`` fails where
    it cannot run, ``no`` only reads. ``library_set`` is empty for every set.
    """

    cache_dir: Path
    subjects: tuple[str, ...] = ()
    library_set: str = ""
    declarations: tuple[Path, ...] = ()
    sources: tuple[str, ...] = ()
    run_time: Literal["can", "must", "no"] = "can"
    online: bool = False
    python: str = ""
    exercises: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    baseline: Path | None = None
    jobs: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))


@dataclass
class _Checked:
    """What is known of one subject so far."""

    subject: Subject
    analysis: Analysis | None = None
    findings: list[Finding] = field(default_factory=list)
    ran: dict[str, Rule] = field(default_factory=dict)
    run_time: str = ""
    not_exercised: tuple[str, ...] = ()


# The syntax trees of the last check. Taking a million nodes apart costs a tenth of a second, and mostly the
# process ends after a check (`ci/__main__.py` leaves without tidying up).
_last_read: list[Analysis] = []


def run_check(request: CheckRequest, narrator: Narrator) -> CheckReport:
    """Check every subject. What is found is in the report; what cannot be asked at all is raised.

    Raises :class:`~ci.errors.ConfigError` with all that is wrong with the request (unknown subjects or
    rules, a baseline that cannot be read), for sources that are not there, and for a rule that is asked for
    and could not be applied; with ``run_time="must"`` the error that kept the run-time part from running.
    """
    started = time.monotonic()
    libraries = _libraries(request)
    asked = _asked(request, libraries)
    _refuse_request(request, libraries, asked)
    overrides = parse_overrides(request.sources, [library.name for library in libraries])
    subjects = resolve_subjects(request.subjects, asked, overrides, request.cache_dir)
    _refuse_nothing(subjects, asked=bool(request.subjects))
    checked = _read_all(subjects, libraries, narrator)
    _last_read[:] = [item.analysis for item in checked if item.analysis is not None]
    _compare(checked)
    if any(_is_declared(item) for item in checked):
        checked += _registry(request, checked, libraries)
    why_not = _without_run_time(request)
    if why_not:
        for item in checked:
            item.run_time = why_not
    else:
        _run_time(request, checked, narrator)
    _refuse_unapplied(request, checked)
    return _report(request, checked, time.monotonic() - started)


def _libraries(request: CheckRequest) -> tuple[EcosystemLibrary, ...]:
    """Every declared library, whatever set is asked for: they are what names can collide with."""
    found: dict[str, EcosystemLibrary] = {}
    for library_set in build_utils.library_sets():
        for library in libraries_of(library_set, request.declarations):
            found[library.name] = library
    return tuple(found.values())


def _asked(
    request: CheckRequest, libraries: Sequence[EcosystemLibrary]
) -> tuple[EcosystemLibrary, ...]:
    """The libraries that a text may name, or that are checked when none is given."""
    if not request.library_set:
        return tuple(libraries)
    wanted = {item.name for item in libraries_of(request.library_set, request.declarations)}
    return tuple(item for item in libraries if item.name in wanted)


def all_rules() -> Mapping[str, Rule]:
    """Every rule that a check may apply, by name."""
    from ci.integration.registry_rules import REGISTRY_RULES
    from ci.pipeline.run_time import RUN_TIME_RULES

    static, registry = (item.RULE for item in STATIC_RULES), (item.RULE for item in REGISTRY_RULES)
    rules = (*static, *registry, *RUN_TIME_RULES, *BASELINE_RULES)
    return {rule.name: rule for rule in rules}


def _check_rule_names(request: CheckRequest) -> None:
    if not request.rules:
        return
    known = all_rules()
    unknown = [name for name in request.rules if name not in known]
    if unknown:
        near = [f"unknown rule {name!r}; {suggest(name, list(known))}" for name in unknown]
        raise ConfigError(
            near[0] if len(near) == 1 else f"{len(near)} unknown rules",
            cause="--rules takes names of rules, separated by commas",
            next_step="python -m ci check --list-rules",
            details=near if len(near) > 1 else (),
        )


def _refuse_request(
    request: CheckRequest,
    libraries: Sequence[EcosystemLibrary],
    asked: Sequence[EcosystemLibrary],
) -> None:
    """Raise what is wrong with the request, all at once, before anything is fetched or run."""
    raise_together(
        lambda: _check_rule_names(request),
        *(partial(check_text, text, asked) for text in request.subjects),
        lambda: _check_sources(request, libraries, asked),
        lambda: _check_python(request.python),
        lambda: _exercises(request.exercises),
        lambda: _baseline(request, libraries, asked),
    )


def _check_python(python: str) -> None:
    known = load(MATRIX).pythons if python else ()
    if python and python not in known:
        raise ConfigError(
            f"Python {python} is not in the matrix; {suggest(python, list(known))}",
            cause=f"matrix.toml declares {', '.join(known)}",
            next_step="python -m ci matrix",
        )


def _check_sources(
    request: CheckRequest,
    libraries: Sequence[EcosystemLibrary],
    asked: Sequence[EcosystemLibrary],
) -> None:
    """A source of a library that is not checked is a mistake, and would go unnoticed."""
    overrides = parse_overrides(request.sources, [library.name for library in libraries])
    checked = request.subjects or [library.name for library in asked]
    unused = [name for name in overrides if name not in checked]
    if unused:
        raise ConfigError(
            f"--source for {', '.join(unused)}, which is not checked",
            cause=f"what is checked: {', '.join(checked)}",
            next_step=f"python -m ci check {unused[0]} --source …",
        )


def _baseline(
    request: CheckRequest,
    libraries: Sequence[EcosystemLibrary],
    asked: Sequence[EcosystemLibrary],
) -> None:
    """Read the baseline. An entry of a rule or of a library that there is not would never be missed.

    Only the committed file is about declared libraries alone; and rules are asked for their names only
    when more than the static ones are applied, because the others take a while to import.
    """
    path = request.baseline or BASELINE
    declared = not request.subjects or {*request.subjects} & {library.name for library in asked}
    rules = all_rules() if declared or request.run_time != "no" else ()
    known = () if request.baseline else (WHEEL, *(library.name for library in libraries))
    read_baseline(path, rules=rules, libraries=known)


def _is_declared(item: _Checked) -> bool:
    return item.subject.library is not None and not item.subject.borrowed


def _read_all(
    subjects: Sequence[Subject], libraries: Sequence[EcosystemLibrary], narrator: Narrator
) -> list[_Checked]:
    checked = []
    taken: dict[str, str] = {}  # by those before, where no declaration says so
    for subject in subjects:
        item = _read(subject, libraries, taken, narrator)
        checked.append(item)
        if item.analysis is not None and subject.library is None:
            taken |= dict.fromkeys(item.analysis.tree.packages, subject.name)
    return checked


def _read(
    subject: Subject,
    libraries: Sequence[EcosystemLibrary],
    taken: Mapping[str, str],
    narrator: Narrator,
) -> _Checked:
    checked = _Checked(subject)
    if subject.why_not:
        return checked
    narrator.begin(subject.name, "reading the sources")
    checked.analysis = Analysis(tree_of(subject, libraries, taken))
    checked.findings += static_findings(checked.analysis)
    checked.ran |= {rule.RULE.name: rule.RULE for rule in STATIC_RULES}
    narrator.end(subject.name, f"{len(checked.analysis.tree.modules)} modules read")
    return checked


def _refuse_nothing(subjects: Sequence[Subject], *, asked: bool) -> None:
    """Nothing to read is red: a check that was asked for by name, or one that finds nothing at all."""
    absent = [subject for subject in subjects if subject.why_not]
    if (asked and absent) or len(absent) == len(subjects):
        raise ConfigError(
            f"the sources of {', '.join(subject.name for subject in absent)} are not there",
            cause=absent[0].why_not if absent else "no library is declared",
            next_step=absent[0].next_step if absent else "nox -s integrate -- --help",
            details=[f"{item.name}: {item.why_not}; {item.next_step}" for item in absent],
        )


def _compare(checked: Sequence[_Checked]) -> None:
    """What only shows between libraries."""
    analyses = {item.subject.name: item.analysis for item in checked if item.analysis is not None}
    by_name = {item.subject.name: item for item in checked}
    for finding in name_collision.between([*analyses.values()]) if len(analyses) > 1 else ():
        by_name[finding.library].findings.append(finding)


def _registry(
    request: CheckRequest, checked: Sequence[_Checked], libraries: Sequence[EcosystemLibrary]
) -> list[_Checked]:
    """Apply the registry rules to every set that a checked library is of.

    Findings go to their library; those of no single one come back as an entry of their own.
    """
    from ci.integration.registry_rules import (
        REGISTRY_RULES,
        not_pinned,
        registry_findings,
        submodule,
    )
    from ci.integration.registry_rules.facts import gather

    wheel = _Checked(Subject(WHEEL, "all its libraries together", PACKAGE_ROOT))
    by_name = {item.subject.name: item for item in checked if _is_declared(item)}
    for item in (wheel, *by_name.values()):
        item.ran |= {rule.RULE.name: rule.RULE for rule in REGISTRY_RULES}
        if item.subject.override:  # where other sources are read, nothing is said of the submodule
            del item.ran[submodule.RULE.name], item.ran[not_pinned.RULE.name]
    sets = dict.fromkeys(library.library_set for library in libraries if library.name in by_name)
    for library_set in sets:
        facts = gather(
            [library for library in libraries if library.library_set == library_set],
            {name: item.subject.folder for name, item in by_name.items() if item.subject.override},
            analyses={n: item.analysis for n, item in by_name.items() if item.analysis},
            declarations=request.declarations,
            online=request.online,
            cache_dir=request.cache_dir,
        )
        for finding in registry_findings(facts):
            if not finding.library:
                wheel.findings.append(replace(finding, library=WHEEL))
            elif finding.library in by_name:
                item = by_name[finding.library]
                # That its sources are not here is said of the library as a whole, and is no fault of it.
                if item.analysis or finding.rule != submodule.RULE.name:
                    item.findings.append(finding)
    return [wheel] if wheel.findings else []


def _run_time(request: CheckRequest, checked: Sequence[_Checked], narrator: Narrator) -> None:
    from ci.pipeline.run_time import RUN_TIME_RULES, RunTimeRequest, run_subject

    asked = RunTimeRequest(
        cache_dir=request.cache_dir,
        python=request.python,
        declarations=request.declarations,
        exercises=_exercises(request.exercises),
        jobs=request.jobs,
    )
    for item in checked:
        if item.analysis is None:
            continue
        result = run_subject(item.subject, item.analysis, asked, narrator)
        if result.error is not None and request.run_time == "must":
            raise result.error
        item.findings += result.findings
        item.run_time, item.not_exercised = result.why_not, result.not_exercised
        if not result.why_not:
            item.ran |= {rule.name: rule for rule in RUN_TIME_RULES}


def _without_run_time(request: CheckRequest) -> str:
    """Why the run-time part is not to run; empty when it is."""
    if request.run_time == "no":
        return "left out (--static)"
    if request.run_time == "must" or not request.rules:
        return ""
    from ci.pipeline.run_time import RUN_TIME_RULES

    wanted = {rule.name for rule in RUN_TIME_RULES} & {*request.rules}
    return "" if wanted else "left out (none of its rules is asked for)"


def _refuse_unapplied(request: CheckRequest, checked: Sequence[_Checked]) -> None:
    """A rule that was asked for and looked at nothing must not look like one that found nothing."""
    applied = {name for one in checked for name in one.ran}
    judged = {rule.name for rule in BASELINE_RULES} if applied & {*request.rules} else set()
    idle = [name for name in request.rules if name not in applied | judged]
    if idle:
        run_time = "; ".join(dict.fromkeys(one.run_time for one in checked if one.run_time))
        raise ConfigError(
            f"{', '.join(idle)} could not be applied",
            cause="rules of the registry need a declared library, those of the baseline another rule"
            + (f"; the run-time part: {run_time}" if run_time else ""),
            next_step="leave the rule, --static, or the place of the sources out",
        )


def _exercises(texts: Sequence[str]) -> Mapping[str, str]:
    """``NAME=ARGUMENTS`` by name. Raises :class:`~ci.errors.ConfigError` for anything else."""
    found = {}
    for text in texts:
        name, equals, arguments = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(
                f"--exercise {text!r} is not of the form NAME=ARGUMENTS",
                cause="arguments are Python, as in muladd=paddle.ones([3]), paddle.ones([3]), 2.0",
                next_step="python -m ci check --help",
            )
        found[name.strip()] = arguments.strip()
    return found


def _report(request: CheckRequest, checked: Sequence[_Checked], seconds: float) -> CheckReport:
    ran = {
        one.subject.name: {
            name: rule for name, rule in one.ran.items() if name in (request.rules or one.ran)
        }
        for one in checked
    }
    path = request.baseline or BASELINE
    applied = apply(
        [item for one in checked for item in one.findings if item.rule in ran[one.subject.name]],
        read_baseline(path),
        place=_place(path),
        ran=ran,
        today=date.today(),
    )
    libraries = tuple(_library_check(one, applied.left, applied.known) for one in checked)
    rules = {name: rule for found in ran.values() for name, rule in found.items()}
    report = CheckReport(libraries, (*rules.values(), *BASELINE_RULES), applied.faults, seconds)
    return replace(report, next_command=_next_command(request, report))


def _place(path: Path) -> str:
    inside = path.resolve().is_relative_to(REPOSITORY)
    return path.resolve().relative_to(REPOSITORY).as_posix() if inside else path.name


def _library_check(
    one: _Checked, left: Sequence[Finding], known: Sequence[tuple[Finding, Known]]
) -> LibraryCheck:
    name = one.subject.name
    return LibraryCheck(
        name=name,
        source=one.subject.origin,
        modules=len([*one.analysis.tree.own()]) if one.analysis else 0,
        findings=tuple(sorted(item for item in left if item.library == name)),
        known=tuple(
            KnownFinding(item, entry.reason)
            for item, entry in sorted(known, key=lambda pair: pair[0])
            if item.library == name
        ),
        told_apart=_told_apart(one.analysis) if one.analysis else {},
        notes=one.subject.notes,
        why_not=one.subject.why_not,
        next_step=one.subject.next_step,
        run_time=one.run_time,
        not_exercised=one.not_exercised,
        in_repository=one.subject.in_repository,
    )


def _told_apart(analysis: Analysis) -> Mapping[str, int]:
    imports = [item for module in analysis.tree.own() for item in module.imports]
    kept = sum(item.kind == "kept" for item in documented(analysis))
    counts = {
        **told_apart(imports),
        "test files": len(analysis.tree.tests),
        "documented exceptions": kept,
    }
    return {word: count for word, count in counts.items() if count}


def _next_command(request: CheckRequest, report: CheckReport) -> str:
    if not report.failing:
        return ""
    first = report.failing[0]
    if first.rule in {rule.name for rule in BASELINE_RULES}:
        return f"correct {first.place}:{first.line}"
    subjects = f" {shlex.join(request.subjects)}" if request.subjects else ""
    return f"mend the sources in the library's fork, then: nox -s check --{subjects}"


def write_baseline(request: CheckRequest, report: CheckReport) -> Path:
    """Append what is left of the findings to the baseline, for reasons to be written; returns the file."""
    path = request.baseline or BASELINE
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.read_text("utf-8") if path.exists() else ""
    left = [item for item in report.failing if item.rule not in {r.name for r in BASELINE_RULES}]
    path.write_text(text + render(left), "utf-8")
    return path
