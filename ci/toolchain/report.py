"""What ``python -m ci toolchain`` shows: what was found, and what each CUDA would use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ci.errors import ToolchainError
from ci.toolchain import probe
from ci.toolchain.assemble import place_of, read_record
from ci.toolchain.model import CLANG_NOT_PUBLISHABLE, MachineFacts
from ci.toolchain.resolve import Assemble, Choice, UseNvcc, choose


def describe(
    cudas: Sequence[str],
    compiler: str,
    cache_dir: Path,
    environ: Mapping[str, str],
    pythons: Sequence[str] = (),
) -> dict[str, object]:
    """The state of this machine as JSON-ready values; fetches and makes nothing.

    ``found`` lists every candidate with the reason why it cannot be used; ``cudas`` says for each
    wanted CUDA what would be used, or has the error that a build would end with.
    """
    facts = probe.probe(environ)
    return {
        "compiler": compiler,
        "found": _found(facts),
        "cudas": [_would_use(cuda, compiler, facts, cache_dir.absolute()) for cuda in cudas],
        "pythons": [_python(wanted, environ) for wanted in pythons],
    }


def _found(facts: MachineFacts) -> list[dict[str, str]]:
    found = [
        _row("nvcc", fact.path, fact.version, fact.origin_text, fact.problem)
        for fact in facts.nvccs
    ]
    found += [
        _row(fact.family or "c++", fact.cxx, fact.version, fact.asked_by or "PATH", fact.problem)
        for fact in facts.hosts
    ]
    found += [
        _row("clang", fact.path, fact.full_version, "PATH", fact.problem) for fact in facts.clangs
    ]
    return found


def _row(tool: str, path: Path, version: str, origin: str, problem: str) -> dict[str, str]:
    return {
        "tool": tool,
        "path": str(path),
        "version": version,
        "from": origin,
        "problem": problem,
    }


def _would_use(cuda: str, compiler: str, facts: MachineFacts, cache_dir: Path) -> dict[str, object]:
    try:
        choice = choose(cuda, compiler, facts)
    except ToolchainError as error:
        return {"cuda": cuda, "usable": False, "error": error.as_dict()}
    return {"cuda": cuda, "usable": True, **_choice(choice, cache_dir)}


def _choice(choice: Choice, cache_dir: Path) -> dict[str, object]:
    host = choice.host.shown
    if isinstance(choice, UseNvcc):
        return {
            "compiler": "nvcc",
            "uses": f"nvcc {choice.nvcc.version} in {choice.nvcc.home}",
            "from": choice.nvcc.origin_text,
            "host": host,
            "ready": True,
            "publishable": True,
            "not_publishable_because": "",
        }
    return _assemble_choice(choice, host, cache_dir)


def _assemble_choice(choice: Assemble, host: str, cache_dir: Path) -> dict[str, object]:
    place = place_of(choice, cache_dir)
    ready = read_record(place) is not None
    uses = f"nvcc of CUDA {choice.recipe.cuda}"
    if choice.clang is not None:
        uses = f"clang {choice.clang.version} ({choice.clang.path}) with CUDA {choice.recipe.cuda}"
    return {
        "compiler": choice.recipe.compiler,
        "uses": uses,
        "from": f"packages, in the cache: {place}" if ready else "packages, to be fetched",
        "packages": list(choice.recipe.packages()),
        "host": host,
        "ready": ready,
        "publishable": choice.clang is None,
        "not_publishable_because": "" if choice.clang is None else CLANG_NOT_PUBLISHABLE,
    }


def _python(wanted: str, environ: Mapping[str, str]) -> dict[str, object]:
    search = probe.find_python(wanted, environ)
    return {
        "wanted": wanted,
        "path": str(search.found.path) if search.found else "",
        "version": search.found.version if search.found else "",
        "from": search.found.origin if search.found else "",
        "rejected": [
            {"path": str(fact.path), "from": fact.origin, "problem": fact.problem}
            for fact in search.rejected
        ],
    }


def rows(document: Mapping[str, object]) -> Iterator[str]:
    """The document of :func:`describe` as plain lines."""
    yield "Found on this machine"
    for row in _records(document["found"]):
        tail = f"  not usable: {row['problem']}" if row["problem"] else ""
        yield f"  {row['tool']:<6} {row['version'] or '?'}  {row['path']}  (by {row['from']}){tail}"
    if not document["found"]:
        yield "  no compiler at all"
    for row in _records(document["pythons"]):
        if row["path"]:
            yield f"  python {row['version']}  {row['path']}  (by {row['from']})"
        else:
            yield f"  python {row['wanted']}  none that can be used"
        for other in _records(row["rejected"]):
            yield f"         passed over: {other['path']}: {other['problem']}"
    yield f"What each CUDA would use (--compiler {document['compiler']})"
    for row in _records(document["cudas"]):
        yield from _cuda_rows(row)


def _cuda_rows(row: Mapping[str, object]) -> Iterator[str]:
    if not row["usable"]:
        error = row["error"]
        assert isinstance(error, Mapping)
        yield f"  {row['cuda']}  no: {error['message']}: {error['cause']}"
        yield f"        {error['next_step']}"
        return
    yield f"  {row['cuda']}  {row['uses']}, {row['from']}; host {row['host']}"
    if not row["publishable"]:
        yield f"        wheels cannot be published: {row['not_publishable_because']}"


def _records(value: object) -> list[dict[str, object]]:
    assert isinstance(value, list)
    return value
