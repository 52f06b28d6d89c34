"""Judge, part two: rules about a wheel by itself. Every rule is a pure function from facts to findings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ci.findings import Finding
from ci.wheel.facts import Member, RecordEntry, WheelFacts
from ci.wheel.policy import Policy, bundled
from ci.wheel.tags import WheelTag

_ORIGIN = re.compile(r"\$(ORIGIN|\{ORIGIN\})(/.*)?")
_CUDA_LABEL = re.compile(r"cu\d{2,4}")
_UNHASHED = ("RECORD", "RECORD.jws", "RECORD.p7s")
_MACHINES = ("x86_64", "aarch64")


def record_findings(facts: WheelFacts) -> tuple[Finding, ...]:
    """RECORD must name every member once, with its sha256 and size, and nothing else (PEP 427, PEP 376)."""
    unhashed = {f"{facts.dist_info}/{name}" for name in _UNHASHED}
    rows = {entry.path: entry for entry in facts.record}
    members = {member.name: member for member in facts.members}
    problems = {
        "listed twice": _repeated(entry.path for entry in facts.record),
        "in the archive twice": _repeated(member.name for member in facts.members),
        "in the archive, not in RECORD": sorted(set(members) - set(rows) - unhashed),
        "in RECORD, not in the archive": sorted(set(rows) - set(members)),
    }
    found = [_record(path, why) for why, paths in problems.items() for path in paths]
    for path in sorted(set(rows) & set(members) - unhashed):
        problem = _row_problem(rows[path], members[path])
        if problem:
            found.append(_record(path, problem))
    return tuple(found)


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in sorted(Counter(names).items()) if count > 1]


def _row_problem(row: RecordEntry, member: Member) -> str:
    if row.algorithm != "sha256":
        return f"its hash is {row.algorithm or 'missing'}, not sha256"
    if row.digest != member.sha256:
        return "its sha256 is not that of the file"
    if row.size != member.size:
        return f"its size {row.size} is not {member.size}"
    return ""


def _record(path: str, why: str) -> Finding:
    return Finding("record", path, why, "write RECORD anew after the last change to the wheel")


def archive_findings(facts: WheelFacts) -> tuple[Finding, ...]:
    """Member names must stay inside the target folder; links and unreadable ELF files are refused."""
    found = [
        Finding(
            "member-name",
            member.name,
            "the path leaves the folder that is installed to",
            "rename it",
        )
        for member in facts.members
        if member.name.startswith("/") or ".." in member.name.split("/") or "\\" in member.name
    ]
    found += [
        Finding(
            "symlink",
            member.name,
            "installers write a symbolic link of a wheel out as a small text file",
            "collect the file that it points to",
        )
        for member in facts.members
        if member.is_symlink
    ]
    found += [
        Finding("broken-elf", path, f"cannot be read as ELF: {why}", "build the library again")
        for path, why in facts.broken
    ]
    return tuple(found)


def metadata_findings(facts: WheelFacts) -> tuple[Finding, ...]:
    """Name and version of the file name, of METADATA and of the ``.dist-info`` folder must be one."""
    names = facts.values(facts.metadata, "Name")
    versions = facts.values(facts.metadata, "Version")
    found = []
    if [canonicalize_name(name) for name in names] != [facts.name]:
        found.append(_metadata("METADATA", f"Name is {names}, the file name says {facts.name}"))
    if len(versions) != 1 or not _same_version(versions[0], facts.version):
        found.append(
            _metadata("METADATA", f"Version is {versions}, the file name says {facts.version}")
        )
    name, _, version = facts.dist_info.removesuffix(".dist-info").rpartition("-")
    if canonicalize_name(name) != facts.name or not _same_version(version, facts.version):
        found.append(_metadata(facts.dist_info, f"the file name says {facts.name} {facts.version}"))
    return tuple(found)


def _same_version(text: str, version: Version) -> bool:
    try:
        return Version(text) == version
    except InvalidVersion:
        return False


def _metadata(place: str, why: str) -> Finding:
    return Finding("metadata", place, why, "build the wheel again instead of renaming it")


def label_findings(facts: WheelFacts, cuda: str) -> tuple[Finding, ...]:
    """The version's local label must start with the CUDA of the cell: ``+cu130`` for ``13.0``."""
    wanted = "cu" + cuda.replace(".", "")
    label = facts.version.local or ""
    first = label.split(".")[0]
    if first == wanted:
        return ()
    shown = f"+{first}" if _CUDA_LABEL.fullmatch(first) else "no CUDA label"
    return (
        Finding(
            "label",
            facts.path.name,
            f"the version has {shown}, and the cell is CUDA {cuda}",
            f"give the version the local label +{wanted}",
        ),
    )


def machine_findings(facts: WheelFacts) -> tuple[Finding, ...]:
    """All host ELF files must be for one machine, and for one that wheels are built for."""
    machines: dict[str, list[str]] = {}
    for elf in facts.host_elfs:
        machines.setdefault(elf.machine, []).append(elf.path)
    common = max(machines, key=lambda name: len(machines[name]), default="")
    return tuple(
        Finding(
            "machine",
            path,
            f"it is for {machine}"
            + (f", other files are for {common}" if machine != common else ""),
            "build the library on the machine of the cell",
        )
        for machine, paths in sorted(machines.items())
        if machine != common or machine not in _MACHINES
        for path in paths
    )


def bundled_findings(facts: WheelFacts, policy: Policy) -> tuple[Finding, ...]:
    """No library of the policy may be inside, under its own name or as ``libcudart-1a2b3c4d.so.12``."""
    return tuple(
        Finding(
            "bundled",
            path,
            f"{kept.name} must not be in a wheel: {kept.why}",
            f"leave it out of the library's artifacts; it is provided by {kept.provider}",
        )
        for path, kept in bundled(facts, policy)
    )


def search_path_findings(facts: WheelFacts) -> tuple[Finding, ...]:
    """Every RPATH and RUNPATH entry must be relative to ``$ORIGIN`` (ld.so(8), "Dynamic string tokens")."""
    return tuple(
        Finding(
            "search-path",
            elf.path,
            f"its {'RPATH' if entry in elf.rpath else 'RUNPATH'} has "
            f"{entry!r}, which is another folder, or none, on the user's machine",
            "link with -Wl,-rpath,'$ORIGIN/…', or declare an added rpath for this library",
        )
        for elf in facts.host_elfs
        for entry in elf.search_path
        if not _ORIGIN.fullmatch(entry)
    )


def build_path_findings(facts: WheelFacts) -> tuple[Finding, ...]:
    """No ELF file may contain a forbidden path (the facts were read with ``look_for``)."""
    return tuple(
        Finding(
            "build-path",
            elf.path,
            f"it contains the build path {text}",
            "compile with -ffile-prefix-map=OLD=NEW (nvcc: -Xcompiler), or drop debug information",
        )
        for elf in facts.elfs
        for text in elf.strings
    )


def tag_findings(facts: WheelFacts, computed: WheelTag) -> tuple[Finding, ...]:
    """File name, WHEEL file and content must agree on the tags, as sets; and on what is pure."""
    found = []
    if facts.tags != computed.expanded:
        found.append(_tag("the file name", facts.tags, computed))
    if facts.wheel_tags != computed.expanded:
        found.append(_tag(f"{facts.dist_info}/WHEEL", facts.wheel_tags, computed))
    if facts.root_is_purelib != (computed.platform == "any"):
        found.append(
            Finding(
                "tag",
                f"{facts.dist_info}/WHEEL",
                f"Root-Is-Purelib is {facts.root_is_purelib}, and the platform is {computed.platform}",
                "let the farm repair the wheel; do not retag it by hand",
            )
        )
    return tuple(found)


def _tag(place: str, tags: Iterable[object], computed: WheelTag) -> Finding:
    shown = ", ".join(sorted(str(tag) for tag in tags)) or "no tag"
    return Finding(
        "tag",
        place,
        f"it says {shown}, and the content is {computed}",
        "let the farm repair the wheel; do not retag it by hand",
    )
