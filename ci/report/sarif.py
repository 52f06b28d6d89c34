"""The report of a check as SARIF 2.1.0, in the form that GitHub code scanning takes.

Sources: OASIS SARIF 2.1.0; GitHub, "SARIF support for code scanning": relative locations, a region for every
result, fingerprints that survive moved lines.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import ci
from ci.findings import Finding
from ci.integration.rule import Rule
from ci.report.check_model import CheckReport, LibraryCheck, by_place

SCHEMA_URI = "https://json.schemastore.org/sarif-2.1.0.json"
FINGERPRINT = "paddlefleetOpsCheck/v1"
_ROOT = "%SRCROOT%"
_INFORMATION = "https://github.com/PaddlePaddle/PaddleFleet"


def write_sarif(report: CheckReport, path: Path) -> None:
    """Write the report to ``path``. Its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(as_sarif(report), indent=1), "utf-8")


def as_sarif(report: CheckReport) -> dict[str, object]:
    """The report as one SARIF log with one run; findings of the baseline are suppressed results.

    Places are relative to the repository (``%SRCROOT%``), and where the sources are no part of it, to the
    root of these sources, which has the library's name. What was not checked is a notification.
    """
    rules = {rule.name: index for index, rule in enumerate(report.rules)}
    return {
        "version": "2.1.0",
        "$schema": SCHEMA_URI,
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "paddlefleet_ops check",
                        "semanticVersion": ci.__version__,
                        "informationUri": _INFORMATION,
                        "rules": [_rule(rule) for rule in report.rules],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "originalUriBaseIds": dict(_bases(report)),
                "invocations": [
                    {
                        "executionSuccessful": True,
                        "toolExecutionNotifications": list(_notifications(report)),
                    }
                ],
                "results": list(_results(report, rules)),
            }
        ],
    }


def _bases(report: CheckReport) -> Iterator[tuple[str, object]]:
    yield _ROOT, {"description": {"text": "The root of the repository."}}
    for library in report.libraries:
        if not library.in_repository:
            yield _base(library), {"description": {"text": f"The sources of {library.name}."}}


def _base(library: LibraryCheck) -> str:
    return _ROOT if library.in_repository else library.name


def _notifications(report: CheckReport) -> Iterator[dict[str, object]]:
    for library in report.libraries:
        if library.why_not:
            text = f"{library.name} was not checked: {library.why_not}. {library.next_step}"
            yield {"level": "warning", "message": {"text": text.rstrip()}}


def _rule(rule: Rule) -> dict[str, object]:
    return {
        "id": rule.name,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.guide},
        "help": {"text": rule.guide, "markdown": f"{rule.summary}.\n\n> {rule.guide}"},
        "defaultConfiguration": {"level": rule.level},
        "properties": {
            "tags": ["integration", "paddle-compat"],
            "problem.severity": "recommendation" if rule.level == "note" else rule.level,
        },
    }


def _results(report: CheckReport, rules: Mapping[str, int]) -> Iterator[dict[str, object]]:
    seen: Counter[str] = Counter()
    for library in report.libraries:
        reasons = {item.finding: item.reason for item in library.known}
        for finding in by_place((*library.findings, *reasons)):
            result = _result(finding, rules, _base(library), seen)
            if finding in reasons:
                suppression = {"kind": "external", "justification": reasons[finding]}
                result["suppressions"] = [suppression]
            yield result
    for finding in by_place(report.stale):
        yield _result(finding, rules, _ROOT, seen)


def _result(
    finding: Finding, rules: Mapping[str, int], base: str, seen: Counter[str]
) -> dict[str, object]:
    line, column = max(finding.line, 1), max(finding.column, 1)
    region = {"startLine": line, "startColumn": column, "endLine": line, "endColumn": column + 1}
    location = {"uri": quote(_bytes(finding.place)), "uriBaseId": base}
    identity = fingerprint(finding)
    seen[identity] += 1  # of findings that differ in their line only, the first is the first again
    index = {"ruleIndex": rules[finding.rule]} if finding.rule in rules else {}
    return {
        "ruleId": finding.rule,
        **index,
        "level": finding.level,
        "message": {"text": f"{finding.why.rstrip('.')}. {finding.mend.rstrip('.')}."},
        "locations": [{"physicalLocation": {"artifactLocation": location, "region": region}}],
        "partialFingerprints": {FINGERPRINT: f"{identity}:{seen[identity]}"},
    }


def fingerprint(finding: Finding) -> str:
    """What identifies a finding though its line moves: library, rule, place and subject, hashed."""
    identity = (finding.library, finding.rule, finding.place, finding.subject or finding.why)
    return hashlib.sha256(_bytes("\0".join(identity))).hexdigest()[:32]


def _bytes(text: str) -> bytes:
    """The bytes of a text that may hold a file name, whatever bytes that is made of (PEP 383)."""
    return text.encode("utf-8", "surrogateescape")
