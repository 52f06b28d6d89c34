"""The report of a check as SARIF 2.1.0, in the form that GitHub code scanning takes.

Sources: OASIS SARIF 2.1.0; GitHub, "SARIF support for code scanning": relative locations, a region for every
result, fingerprints that survive moved lines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from ci.findings import Finding
from ci.integration.rule import Rule
from ci.report.check_model import CheckReport

SCHEMA_URI = "https://json.schemastore.org/sarif-2.1.0.json"
FINGERPRINT = "paddlefleetOpsCheck/v1"
_INFORMATION = "https://github.com/PaddlePaddle/PaddleFleet"


def write_sarif(report: CheckReport, path: Path) -> None:
    """Write the report to ``path``. Its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(as_sarif(report), indent=1, ensure_ascii=False), "utf-8")


def as_sarif(report: CheckReport) -> dict[str, object]:
    """The report as one SARIF log with one run; findings of the baseline are suppressed results."""
    rules = {rule.name: index for index, rule in enumerate(report.rules)}
    return {
        "version": "2.1.0",
        "$schema": SCHEMA_URI,
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "paddlefleet_ops check",
                        "informationUri": _INFORMATION,
                        "rules": [_rule(rule) for rule in report.rules],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "originalUriBaseIds": {
                    "%SRCROOT%": {"description": {"text": "The root of the repository."}}
                },
                "results": list(_results(report, rules)),
            }
        ],
    }


def _rule(rule: Rule) -> dict[str, object]:
    return {
        "id": rule.name,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.guide},
        "help": {"text": rule.guide},
        "defaultConfiguration": {"level": rule.level},
        "properties": {"tags": ["integration"]},
    }


def _results(report: CheckReport, rules: Mapping[str, int]) -> Iterator[dict[str, object]]:
    for library in report.libraries:
        for finding in library.findings:
            yield _result(finding, rules)
        for known in library.known:
            suppression = {"kind": "external", "justification": known.reason}
            yield {**_result(known.finding, rules), "suppressions": [suppression]}
    for finding in report.stale:
        yield _result(finding, rules)


def _result(finding: Finding, rules: Mapping[str, int]) -> dict[str, object]:
    region = {"startLine": max(finding.line, 1)}
    if finding.column:
        region["startColumn"] = finding.column
    location = {"uri": quote(finding.place), "uriBaseId": "%SRCROOT%"}
    index = {"ruleIndex": rules[finding.rule]} if finding.rule in rules else {}
    return {
        "ruleId": finding.rule,
        **index,
        "level": finding.level,
        "message": {"text": f"{finding.why}. {finding.mend}."},
        "locations": [{"physicalLocation": {"artifactLocation": location, "region": region}}],
        "partialFingerprints": {FINGERPRINT: fingerprint(finding)},
    }


def fingerprint(finding: Finding) -> str:
    """What identifies a finding though its line moves: library, rule, place and subject, hashed."""
    identity = (finding.library, finding.rule, finding.place, finding.subject or finding.why)
    return hashlib.sha256("\0".join(identity).encode()).hexdigest()[:32]
