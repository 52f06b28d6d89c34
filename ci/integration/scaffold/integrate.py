"""Integrating a library: clone, infer, plan, apply, check; and nothing of it is left when a stage fails."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from ci.errors import ConfigError
from ci.findings import Finding, refuse
from ci.integration.scaffold.checkout import Checkout, call_git
from ci.integration.scaffold.clone import clone
from ci.integration.scaffold.declaration import DEFAULT_HINTS, declaration_text
from ci.integration.scaffold.files import (
    MULTI_CARD_GPUS,
    derived_paths,
    multi_card_test,
    precision_test,
    rendered_files,
)
from ci.integration.scaffold.infer import Facts, Note, infer
from ci.integration.scaffold.journal import Journal
from ci.integration.scaffold.registry_file import PACKAGE, REGISTRY, Registry, kinds
from ci.integration.scaffold.request import IntegrateRequest, request_problems
from ci.integration.scaffold.table import with_entry
from ci.integration.test_table import TABLE
from ci.registry import REPOSITORY, EcosystemLibrary, build_utils

Check = Callable[[str], Sequence[Finding]]
Progress = Callable[[str], None]
DERIVED = (".gitmodules", ".gitignore")


@dataclass(frozen=True)
class Plan:
    """What will be written where. ``files`` are texts by path, relative to the repository."""

    library: EcosystemLibrary
    commit: str
    files: Mapping[str, str]
    notes: tuple[Note, ...]
    next_steps: tuple[str, ...]

    @property
    def submodule(self) -> str:
        """The path of the submodule, relative to the repository; git names it so as well."""
        return f"{PACKAGE}/{self.library.submodule_path}"


@dataclass(frozen=True)
class Integrated:
    """What was done, and what the check found."""

    plan: Plan
    findings: tuple[Finding, ...]

    @property
    def failing(self) -> tuple[Finding, ...]:
        """The findings that fail a check."""
        return failing(self.findings)


def failing(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Errors and warnings; a note fails nothing."""
    return tuple(item for item in findings if item.level != "note")


def integrate(
    request: IntegrateRequest,
    check: Check,
    *,
    repository: Path = REPOSITORY,
    progress: Progress = lambda _: None,
) -> Integrated:
    """Add a library to the checkout ``repository``: submodule, declaration, derived files, tests.

    ``check`` is asked for findings about the new library when everything is in place; it has to read
    the registry of ``repository`` anew. ``progress`` is told every step before it begins. Raises
    :class:`~ci.errors.ConfigError` with every problem of the request at once,
    :class:`~ci.errors.FindingError` when the check fails and the request does not ``keep``, and
    :class:`~ci.errors.InfrastructureError` when git fails. After any exception, an interrupt included,
    the checkout is what it was.
    """
    checkout = Checkout(repository.resolve())
    with Journal(checkout) as journal:
        plan = _planned(request, checkout, journal, progress)
        _note_places(plan, checkout, journal)
        _apply(plan, checkout, journal, progress)
        progress("checking")
        result = Integrated(plan, tuple(check(request.name)))
        if not request.keep:
            refuse(
                f"{request.name} is not integrated: {len(result.failing)} findings",
                result.failing,
                next_step="mend the library's sources, or look at it in place with --keep",
            )
        progress("done")
    return result


# --- plan -----------------------------------------------------------------------------------------


def _planned(
    request: IntegrateRequest, checkout: Checkout, journal: Journal, progress: Progress
) -> Plan:
    progress("looking at the checkout")
    registry = Registry.read(checkout.repository)
    problems = request_problems(request, kinds())
    problems += _checkout_problems(request, checkout)
    progress(f"cloning {request.url}")
    cloned = clone(request, journal.scratch / "clone")
    problems += cloned.problems
    if not cloned.commit:
        raise refused(request.name, [*problems, *_taken(request, None, registry)])
    progress("reading the sources")
    facts = infer(request, cloned.folder, registry.libraries)
    problems += [*facts.problems, *_taken(request, facts, registry)]
    if problems:
        raise refused(request.name, problems)
    return plan_of(request, facts, cloned.commit, registry, checkout.repository)


def plan_of(
    request: IntegrateRequest, facts: Facts, commit: str, registry: Registry, repository: Path
) -> Plan:
    """What will be written; reads the files that are changed, and writes nothing.

    Raises :class:`~ci.errors.ConfigError` when the declaration contradicts others, or when a file
    that would be made is there.
    """
    text = registry.with_declaration(declaration_text(request, facts, commit))
    declared = Registry.of(text, registry.path)
    library = declared.find(request.name)
    if library is None:
        raise refused(request.name, ["its declaration does not reach the registry"])
    files = rendered_files(library, request.exercises, request.wrapper)
    problems = list(declared.problems)
    problems += [
        f"{path} is there already: remove it, or name it otherwise"
        for path in files
        if (repository / path).exists()
    ]
    if problems:
        raise refused(request.name, problems)
    test = multi_card_test(library)
    if test:
        table = repository / TABLE
        old = table.read_text("utf-8") if table.is_file() else None
        files[TABLE] = with_entry(old, test, MULTI_CARD_GPUS)
    return Plan(
        library=library,
        commit=commit,
        files={REGISTRY: text, **files},
        notes=(*facts.notes, *_default_notes(request, facts)),
        next_steps=tuple(_next_steps(request, library, registry)),
    )


def refused(name: str, problems: Sequence[str]) -> ConfigError:
    """The error that tells every problem of a request."""
    return ConfigError(
        f"{name}: {problems[0]}" if len(problems) == 1 else f"{name}: {len(problems)} problems",
        cause="nothing was changed",
        next_step="python -m ci integrate --help",
        details=problems if len(problems) > 1 else (),
    )


def _checkout_problems(request: IntegrateRequest, checkout: Checkout) -> Iterator[str]:
    if checkout.git("rev-parse", "--show-toplevel") != str(checkout.repository):
        yield f"{checkout.repository} is not the top folder of a git checkout"
        return
    touched = [REGISTRY, *DERIVED, *([TABLE] if request.kind == "ep_comm" else [])]
    for path in checkout.changed(*touched):
        yield f"{path} has changes that are not committed: commit them, or put them away"
    stale = checkout.stale()
    if stale:
        yield f"the derived files are not up to date ({stale}); first: python -m ci sync"
    path = f"{PACKAGE}/{request.submodule_path}"
    git_dir = checkout.in_git_dir(f"modules/{path}")
    if (checkout.repository / path).exists() or checkout.gitlink(path):
        yield f"{path} is there already; nox -s remove -- {request.name}"
    elif git_dir.exists():
        yield f"{git_dir} is left from a removed submodule of that name; delete that folder"


def _taken(request: IntegrateRequest, facts: Facts | None, registry: Registry) -> Iterator[str]:
    """Names that another declaration has already."""
    libraries = registry.libraries
    for library in libraries:
        if canonicalize_name(library.name) == canonicalize_name(request.name):
            yield f"library {request.name!r} is declared already, as {library.name}"
    module = request.module or (facts.module if facts else "")
    artifacts = request.artifacts or (facts.artifacts if facts else ())
    availability = request.availability or module
    for library in libraries:
        if module in library.modules:
            yield f"module {module!r} is given by {library.name} already; choose with --module"
        if availability == library.availability:
            yield f"is_{availability}_available() is that of {library.name}; use --availability"
        taken = {artifact.target for artifact in library.artifacts}
        for _, target in artifacts:
            if target in taken:
                yield f"target {target!r} is that of {library.name}; rename it with --artifact"


def _default_notes(request: IntegrateRequest, facts: Facts) -> Iterator[Note]:
    if not request.hint:
        yield Note("hint", DEFAULT_HINTS[request.kind], f"default of kind {request.kind}")
    if not (request.requires_cuda or request.requires_python or request.requires_capability):
        yield Note("requires", "nothing", "default: it is built and loaded everywhere")
    if facts.nested and request.nested is None:
        yield Note("nested submodules", "none", f".gitmodules has {', '.join(facts.nested)}")


def _next_steps(
    request: IntegrateRequest, library: EcosystemLibrary, registry: Registry
) -> Iterator[str]:
    target = build_utils.Target("13.0", "3.12", ("9.0",))
    known = {
        text
        for other in registry.libraries
        for text in build_utils.requirements(other.build_requires, target)
    }
    if not set(build_utils.requirements(library.build_requires, target)) <= known:
        yield "python -m ci lock    # its build requirements are new"
    if request.is_local:
        yield f"change its url in {REGISTRY}, then sync: nobody else can fetch {library.url}"
    if precision_test(library):
        yield f"write the oracles of {precision_test(library)}: it fails until then"
    if multi_card_test(library):
        yield f"write ROUND_TRIP of {multi_card_test(library)}: it fails until then"
    if not request.exercises:
        yield f"add calls to {derived_paths(library)[0]}: without --exercise it checks names only"
    yield f"nox -s wheel-cu130 -- --libs {library.name}"


# --- apply ----------------------------------------------------------------------------------------


def _note_places(plan: Plan, checkout: Checkout, journal: Journal) -> None:
    for path in (*DERIVED, *plan.files):
        journal.note_file(checkout.repository / path)
    journal.note_file(checkout.in_git_dir("config"))
    journal.note_folder(checkout.in_git_dir(f"modules/{plan.submodule}"))
    journal.note_folder(checkout.repository / plan.submodule)
    journal.note_gitlink(plan.submodule)


def _apply(plan: Plan, checkout: Checkout, journal: Journal, progress: Progress) -> None:
    folder = checkout.repository / plan.submodule
    progress(f"placing {plan.submodule}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(journal.scratch / "clone", folder)
    for path, text in plan.files.items():
        progress(f"writing {path}")
        file = checkout.repository / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    progress("writing the derived files")
    checkout.sync()
    progress("recording the submodule")
    checkout.git("submodule", "--quiet", "init", "--", plan.submodule)
    checkout.git("submodule", "--quiet", "absorbgitdirs", "--", plan.submodule)
    if call_git("rev-parse", "HEAD", cwd=folder) != plan.commit:
        raise refused(plan.library.name, [f"{plan.submodule} is not at {plan.commit}"])
