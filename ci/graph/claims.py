"""What a declaration claims of its artifacts, against what they show.

``varies_by`` decides how often a library is built: what does not vary by Python is built once for every
Python. A wrong claim would put one cell's artifact into another's wheel, where it fails at import or, worse,
later. So the artifacts of a build are looked at before the result is stored, and a wrong claim fails the
build. The other way round, a dependence that nothing shows only costs builds, and is told in a note.

Sources: PEP 3149 and PEP 384 (names and stable ABI of extension modules), NVIDIA's *CUDA Compatibility*
(a driver serves older CUDAs; a library of the toolkit does not serve another major).
"""

from __future__ import annotations

import filecmp
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci.findings import Finding, Level
from ci.graph.evidence import Evidence, read_evidence
from ci.registry import EcosystemLibrary, Target, build_utils

_STABLE_ABIS = ("abi3", "abi3t")
_ONE_PYTHON = re.compile(r"(?:^|[.\-_/])(?:(?:cpython-|cp|pypy)3\d+(?![0-9])|python3\.\d+/)")
_PYTHON_FOLDER = re.compile(r"(?:^|/)(?:python|pypy)\d\.\d+(?:/|$)")
_LIBPYTHON = re.compile(r"lib(?:python\d\.\d+|pypy\d\.\d+)")
_ONE_CUDA = re.compile(r"(?<![a-z])cu(?:da)?[-_.]?1\d(?:[._]?\d)?(?![0-9])", re.IGNORECASE)
_SHOWN = 3

# Points of the matrix to compare a declaration's environment at; any others would do.
_OTHER_PYTHONS = ("3.10", "3.11", "3.12", "3.13")
_OTHER_CUDAS = ("12.6", "12.8", "12.9", "13.0", "13.2")
_OTHER_CAPABILITIES = (("8.0",), ("9.0",), ("9.0a", "10.0"), ("10.0f",), ("8.0", "9.0", "12.0+PTX"))


@dataclass(frozen=True)
class ClaimRule:
    """A rule: its stable name, what it says, and the level of its findings."""

    name: str
    says: str
    level: Level = "error"


_RULES = {
    rule.name: rule
    for rule in (
        ClaimRule(
            "claim-python-name",
            "without python in varies_by no artifact is named or laid out for one Python: cpython-312, "
            "pypy310, cp312, a folder python3.12, byte code",
        ),
        ClaimRule(
            "claim-python-symbols",
            "without python in varies_by no artifact takes symbols of the interpreter or is an extension "
            "module, unless its name has the stable ABI's tag (abi3: PEP 384)",
        ),
        ClaimRule(
            "claim-python-link",
            "without python in varies_by no artifact is linked with libpython3.X (libpython3.so is that of "
            "the stable ABI)",
        ),
        ClaimRule(
            "claim-python-path",
            "without python in varies_by no search path (RPATH, RUNPATH) leads into a folder of one Python",
        ),
        ClaimRule(
            "claim-cuda-link",
            "without cuda in varies_by no artifact is linked with a library of a CUDA toolkit, has CUDA's "
            "run time linked in, or opens such a library by the name of a single CUDA major",
        ),
        ClaimRule(
            "claim-cuda-device-code",
            "without cuda in varies_by there is no device code: another CUDA's compiler makes other code",
        ),
        ClaimRule(
            "claim-cuda-name",
            "without cuda in varies_by no compiled artifact has a CUDA version in its name",
        ),
        ClaimRule(
            "claim-environment",
            "what a declaration gives its build (environment, build requirements) does not change along an "
            "axis that is not in varies_by",
        ),
        ClaimRule(
            "claim-cuda-compiler",
            "device code needs needs_cuda_compiler: without it no key names the compiler that made it",
        ),
        ClaimRule(
            "claim-host-compiler",
            "compiled code needs needs_host_compiler or needs_cuda_compiler, for the same reason",
        ),
        ClaimRule(
            "claim-machine",
            "compiled code is for the machine that it is built on",
        ),
        ClaimRule("claim-unreadable", "every compiled artifact can be read"),
        ClaimRule(
            "claim-capability-architectures",
            "without capability in varies_by the architectures of device code are the sources' own choice; "
            "where they are just the cell's list, nobody can tell",
            "note",
        ),
        ClaimRule(
            "claim-python-unused",
            "python in varies_by costs a build for each Python; something should need it",
            "note",
        ),
        ClaimRule(
            "claim-cuda-unused",
            "cuda in varies_by costs a build for each CUDA; something should need it",
            "note",
        ),
        ClaimRule(
            "claim-capability-unused",
            "capability in varies_by costs a build for each capability set; there should be device code",
            "note",
        ),
        ClaimRule(
            "claim-compiler-unused",
            "a library that needs a compiler yields something compiled",
            "note",
        ),
    )
}


def claims_rules() -> tuple[ClaimRule, ...]:
    """Every rule, for the documentation."""
    return tuple(_RULES.values())


def check_claims(
    library: EcosystemLibrary,
    target: Target,
    files: Mapping[str, Path],
    *,
    source: Path | None = None,
) -> tuple[Finding, ...]:
    """Where the declaration of ``library`` and its artifacts contradict each other; all of it at once.

    ``files`` are the artifacts of its build for ``target``: path in the package to file. ``source`` is the
    folder that it was built from: what was carried over from there unchanged was not made by this build,
    so no compiler and no CUDA of this build is in it. Findings of the level ``note`` are no faults.
    """
    shown = [read_evidence(name, files[name]) for name in sorted(files)]
    carried = frozenset(
        item.path for item in shown if item.is_binary and _is_carried(files[item.path], source)
    )
    made = [item for item in shown if item.path not in carried]
    found = [*_unreadable(shown), *_other_machine(shown)]
    if "python" not in library.varies_by:
        found += [*_python_names(shown), *_python_symbols(shown), *_python_places(shown)]
    if "cuda" not in library.varies_by:
        found += [*_cuda_links(shown), *_cuda_device_code(made), *_cuda_names(made)]
    found += _environment(library, target)
    found += _compilers(library, made)
    found += _architectures(library, target, made)
    found += _unused(library, target, shown, made)
    return tuple(replace(item, library=library.name) for item in found)


def _finding(rule: str, place: str, why: str, mend: str, subject: str = "") -> Finding:
    return Finding(rule, place, why, mend, level=_RULES[rule].level, subject=subject)


def _list(items: Sequence[str]) -> str:
    """``a, b, c and 4 more``."""
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more


def _vary(axis: str) -> str:
    return f'add "{axis}" to varies_by of its declaration'


def _is_carried(path: Path, source: Path | None) -> bool:
    if source is None:
        return False
    return any(
        found.is_file() and filecmp.cmp(found, path, shallow=False)
        for found in source.rglob(path.name)
    )


# --- of every library -----------------------------------------------------------------------------


def _unreadable(shown: Iterable[Evidence]) -> Iterator[Finding]:
    for item in shown:
        if item.problem:
            yield _finding(
                "claim-unreadable",
                item.path,
                f"nothing can be told of it: {item.problem}",
                "see what its build did to it (strip, a packer, a full disk), and build again",
            )


def _other_machine(shown: Iterable[Evidence]) -> Iterator[Finding]:
    here = platform.machine()
    for item in shown:
        if item.machine and item.machine != here:
            yield _finding(
                "claim-machine",
                item.path,
                f"it is code for {item.machine}, and this build is one for {here}",
                "build it here instead of taking a file of another machine, or leave it out by ignored",
                item.machine,
            )


# --- python ---------------------------------------------------------------------------------------


def _python_names(shown: Sequence[Evidence]) -> Iterator[Finding]:
    named = [item.path for item in shown if _ONE_PYTHON.search(item.path)]
    byte_code = [item.path for item in shown if item.kind == "byte code"]
    if named:
        yield _finding(
            "claim-python-name",
            named[0],
            f"named for one Python, which no other will load: {_list(named)}",
            f"{_vary('python')}, or build it for the stable ABI (abi3)",
            named[0],
        )
    rest = [name for name in byte_code if name not in named]
    if rest:
        yield _finding(
            "claim-python-name",
            rest[0],
            f"byte code is of the Python that wrote it: {_list(rest)}",
            f"leave it out (ignored), or {_vary('python')}",
            rest[0],
        )


def _python_symbols(shown: Iterable[Evidence]) -> Iterator[Finding]:
    for item in shown:
        if item.abi in _STABLE_ABIS or not (item.python_symbols or item.has_init):
            continue
        taken = _list(item.python_symbols) or "a module's PyInit function"
        yield _finding(
            "claim-python-symbols",
            item.path,
            f"it is bound to the Python that it was compiled for: {taken}",
            f"{_vary('python')}, or build it for the stable ABI and name it so (.abi3.so)",
            item.path,
        )


def _python_places(shown: Iterable[Evidence]) -> Iterator[Finding]:
    for item in shown:
        for soname in filter(_LIBPYTHON.match, item.needed):
            yield _finding(
                "claim-python-link",
                item.path,
                f"it is linked with {soname}, the library of one Python",
                f"do not link an extension module with libpython, or {_vary('python')}",
                soname,
            )
        for entry in filter(_PYTHON_FOLDER.search, item.search_path):
            yield _finding(
                "claim-python-path",
                item.path,
                f"it looks for libraries in a folder of one Python: {entry}",
                f"make the path relative ($ORIGIN/...), or {_vary('python')}",
                entry,
            )


# --- cuda -----------------------------------------------------------------------------------------


def _cuda_links(shown: Iterable[Evidence]) -> Iterator[Finding]:
    for item in shown:
        for soname in item.cuda_libraries:
            yield _finding(
                "claim-cuda-link",
                item.path,
                f"it is linked with {soname}, which another CUDA may not have",
                _vary("cuda"),
                soname,
            )
        if item.static_runtime and not item.has_device_code:
            yield _finding(
                "claim-cuda-link",
                item.path,
                "the run time of one CUDA is linked into it (libcudart_static.a)",
                _vary("cuda"),
                "libcudart_static.a",
            )
        for soname in _of_one_major(item.names):
            yield _finding(
                "claim-cuda-link",
                item.path,
                f"it names {soname}, the library of a single CUDA major",
                f"{_vary('cuda')}, or let it look for the other majors' names too",
                soname,
            )


def _of_one_major(names: Sequence[str]) -> list[str]:
    """Those of which no second version is named: a file that names two chooses when it runs."""
    stems = [name.partition(".so.")[0] for name in names]
    return [name for name, stem in zip(names, stems, strict=True) if stems.count(stem) == 1]


def _cuda_device_code(made: Iterable[Evidence]) -> Iterator[Finding]:
    for item in made:
        if item.has_device_code:
            yield _finding(
                "claim-cuda-device-code",
                item.path,
                f"it has device code{_for(item.architectures)}, made by the compiler of one CUDA",
                _vary("cuda"),
                item.path,
            )


def _for(architectures: Iterable[int]) -> str:
    text = ", ".join(f"sm_{number}" for number in sorted(architectures))
    return f" for {text}" if text else ""


def _cuda_names(made: Iterable[Evidence]) -> Iterator[Finding]:
    named = [item.path for item in made if item.is_binary and _ONE_CUDA.search(item.path)]
    if named:
        yield _finding(
            "claim-cuda-name",
            named[0],
            f"named for one CUDA: {_list(named)}",
            f"{_vary('cuda')}, or take the version out of the name",
            named[0],
        )


# --- what the declaration gives its build -----------------------------------------------------------


def _environment(library: EcosystemLibrary, target: Target) -> Iterator[Finding]:
    others = {
        "python": [replace(target, python=text) for text in _OTHER_PYTHONS],
        "cuda": [replace(target, cuda=text) for text in _OTHER_CUDAS],
        "capability": [replace(target, capabilities=item) for item in _OTHER_CAPABILITIES],
    }
    for axis, targets in others.items():
        if axis in library.varies_by:
            continue
        names = sorted({name for other in targets for name in _changed(library, target, other)})
        if names:
            yield _finding(
                "claim-environment",
                f"varies_by of {library.name}",
                f"its build is told of the {axis}: {_list(names)} changes with it",
                f"{_vary(axis)}, or give these a fixed value",
                axis,
            )


def _changed(library: EcosystemLibrary, one: Target, other: Target) -> list[str]:
    mine, theirs = library.build_env(one), library.build_env(other)
    names = [name for name in mine if mine[name] != theirs[name]]
    requires = library.build_requires
    if build_utils.requirements(requires, one) != build_utils.requirements(requires, other):
        names.append("build_requires")
    return names


def _compilers(library: EcosystemLibrary, made: Iterable[Evidence]) -> Iterator[Finding]:
    for item in made:
        if item.has_device_code and not library.needs_cuda_compiler:
            yield _finding(
                "claim-cuda-compiler",
                item.path,
                "it has device code, and the declaration asks for no CUDA compiler: a change of nvcc "
                "would not build it again",
                "set needs_cuda_compiler=True",
                item.path,
            )
        elif item.kind == "host code" and not (
            library.needs_host_compiler or library.needs_cuda_compiler
        ):
            yield _finding(
                "claim-host-compiler",
                item.path,
                "it is compiled code, and the declaration asks for no compiler: a change of the compiler "
                "would not build it again",
                "set needs_host_compiler=True",
                item.path,
            )


def _architectures(
    library: EcosystemLibrary, target: Target, made: Iterable[Evidence]
) -> Iterator[Finding]:
    if "capability" in library.varies_by:
        return
    pairs = (build_utils.compute_capability(text) for text in library.capabilities(target))
    wanted = {major * 10 + minor for major, minor in pairs}
    for item in made:
        if wanted and item.architectures == wanted:
            yield _finding(
                "claim-capability-architectures",
                item.path,
                f"its device code is{_for(wanted)}, just the capabilities of this cell",
                f"if they come from the cell, {_vary('capability')}; if its sources name them, all is well",
                item.path,
            )


# --- a dependence that nothing shows ----------------------------------------------------------------


def _unused(
    library: EcosystemLibrary,
    target: Target,
    shown: Sequence[Evidence],
    made: Sequence[Evidence],
) -> Iterator[Finding]:
    place = f"varies_by of {library.name}"
    told = {item.subject for item in _environment(replace(library, varies_by=frozenset()), target)}
    wasteful = {
        "python": not any(True for check in _PYTHON_CHECKS for _ in check(shown)),
        "cuda": not any(True for check in _CUDA_CHECKS for _ in check(shown)),
        "capability": not any(item.has_device_code for item in made),
    }
    cost = {"python": "Python", "cuda": "CUDA", "capability": "capability set"}
    for axis in sorted(library.varies_by - told):
        if wasteful[axis]:
            yield _finding(
                f"claim-{axis}-unused",
                place,
                f"built once for each {cost[axis]}, although nothing in it depends on that",
                f'without "{axis}" in varies_by one build serves every {cost[axis]}',
                axis,
            )
    needs = "needs_cuda_compiler" if library.needs_cuda_compiler else "needs_host_compiler"
    if not any(item.is_binary for item in made) and getattr(library, needs):
        yield _finding(
            "claim-compiler-unused",
            f"{needs} of {library.name}",
            "nothing that it yields was compiled",
            f"without {needs} a change of the compiler does not build it again",
            needs,
        )


_PYTHON_CHECKS = (_python_names, _python_symbols, _python_places)
_CUDA_CHECKS = (_cuda_links, _cuda_device_code, _cuda_names)
