"""SARIF: what OASIS demands of a log, and what GitHub needs to show a result in the diff.

Oracles: GitHub, "SARIF support for code scanning" (tables of required properties, limits of texts); OASIS
SARIF 2.1.0, sections on URI base ids, suppressions and fingerprints; RFC 3986.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import pytest

from ci.findings import Finding, Level
from ci.integration.baseline import BASELINE_RULES
from ci.integration.rules import STATIC_RULES
from ci.report.check_model import CheckReport, KnownFinding, LibraryCheck
from ci.report.sarif import FINGERPRINT, as_sarif, fingerprint, write_sarif

RULES = (*(item.RULE for item in STATIC_RULES), *BASELINE_RULES)
SHOWN_CHARACTERS = 1024  # of a description, on GitHub


def finding(place: str = "quack/x.py", line: int = 7, **values: Any) -> Finding:
    fields = {
        "rule": "lazy-torch-import", "why": "it is late", "mend": "hoist it", "column": 5,
        "library": "quack", "subject": "quack.x:f:torch", **values,
    }  # fmt: skip
    return Finding(place=place, line=line, **fields)


def report(*libraries: LibraryCheck, stale: tuple[Finding, ...] = ()) -> CheckReport:
    return CheckReport(libraries, RULES, stale)


def of_library(*findings: Finding, **values: Any) -> LibraryCheck:
    return LibraryCheck("quack", "submodule quack", 3, findings, **values)


def run_of(value: CheckReport) -> dict[str, Any]:
    log = json.loads(json.dumps(as_sarif(value)))
    check_log(log)
    return log["runs"][0]  # type: ignore[no-any-return]


def check_log(log: dict[str, Any]) -> None:
    """The required properties of GitHub's tables, and what the standard says of those that are used."""
    assert set(log) == {"version", "$schema", "runs"}
    assert log["version"] == "2.1.0"
    assert re.fullmatch(r"https://\S+sarif\S*2\.1\.0\S*\.json", log["$schema"])
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", driver["semanticVersion"])
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(set(ids)) == len(ids)
    for rule in driver["rules"]:
        check_rule(rule)
    for result in run["results"]:
        check_result(result, ids, run["originalUriBaseIds"])


def check_rule(rule: dict[str, Any]) -> None:
    for name in ("shortDescription", "fullDescription"):
        assert 0 < len(rule[name]["text"]) <= SHOWN_CHARACTERS
    assert 0 < len(rule["name"]) <= 255
    assert rule["help"]["text"]
    assert rule["help"]["markdown"]
    assert rule["defaultConfiguration"]["level"] in ("error", "warning", "note")
    assert rule["properties"]["tags"]
    assert rule["properties"]["problem.severity"] in ("error", "warning", "recommendation")


def check_result(result: dict[str, Any], ids: list[str], bases: dict[str, Any]) -> None:
    if "ruleIndex" in result:
        assert ids[result["ruleIndex"]] == result["ruleId"]
    assert result["level"] in ("error", "warning", "note")
    assert result["message"]["text"]
    (location,) = result["locations"]
    artifact = location["physicalLocation"]["artifactLocation"]
    assert artifact["uriBaseId"] in bases
    parts = urlsplit(artifact["uri"])
    assert (parts.scheme, parts.netloc, parts.query, parts.fragment) == ("", "", "", "")
    assert re.fullmatch(r"(?!/)(?:[A-Za-z0-9._~!$&'()*+,;=@/-]|%[0-9A-F]{2})+", artifact["uri"])
    region = location["physicalLocation"]["region"]
    assert set(region) == {"startLine", "startColumn", "endLine", "endColumn"}
    assert min(region.values()) >= 1
    assert (region["startLine"], region["startColumn"]) < (region["endLine"], region["endColumn"])
    assert all(result["partialFingerprints"].values())


def test_a_finding_is_a_result_of_its_rule_at_its_place() -> None:
    run = run_of(report(of_library(finding())))
    (result,) = run["results"]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "lazy-torch-import"
    assert result["message"]["text"] == "it is late. hoist it."
    assert result["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "quack/x.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 7, "startColumn": 5, "endLine": 7, "endColumn": 6},
    }


def test_every_rule_is_described_with_the_guide_sentence_behind_it() -> None:
    described = run_of(report())["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in described] == [rule.name for rule in RULES]
    for rule, shown in zip(RULES, described, strict=True):
        assert shown["fullDescription"]["text"] == rule.guide
        assert rule.guide in shown["help"]["markdown"]
        assert shown["defaultConfiguration"]["level"] == rule.level


@pytest.mark.parametrize("level", ["error", "warning", "note"])
def test_a_finding_keeps_its_own_level(level: Level) -> None:
    assert run_of(report(of_library(finding(level=level))))["results"][0]["level"] == level


def test_an_empty_report_has_no_results_and_all_rules() -> None:
    run = run_of(report())
    assert run["results"] == []
    assert len(run["tool"]["driver"]["rules"]) == len(RULES)


def test_a_rule_that_nobody_described_is_named_all_the_same() -> None:
    (result,) = run_of(report(of_library(finding(rule="new-rule"))))["results"]
    assert result["ruleId"] == "new-rule"
    assert "ruleIndex" not in result


@pytest.mark.parametrize(
    "place",
    [
        "a b/c.py",
        "a#b?c.py",
        "100%/x.py",
        "%41.py",
        "c:d.py",
        "模块/naïve.py",
        "a[b]\\c.py",
        "x/\udcff.py",
    ],
)
def test_places_are_percent_encoded_and_come_back(place: str) -> None:
    (result,) = run_of(report(of_library(finding(place))))["results"]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert unquote_to_bytes(uri).decode("utf-8", "surrogateescape") == place


def test_a_finding_without_a_line_is_shown_at_the_head_of_its_file() -> None:
    (result,) = run_of(report(of_library(finding(line=0, column=0))))["results"]
    region = result["locations"][0]["physicalLocation"]["region"]
    assert (region["startLine"], region["startColumn"]) == (1, 1)


def test_places_of_other_sources_are_not_taken_for_files_of_the_repository() -> None:
    run = run_of(report(of_library(finding(), in_repository=False)))
    location = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert location == {"uri": "quack/x.py", "uriBaseId": "quack"}
    # A base without a place of its own: no path of this machine is told (SARIF 2.1.0, 3.14.14).
    assert all(set(base) == {"description"} for base in run["originalUriBaseIds"].values())


def test_known_findings_are_suppressed_with_their_reason_and_no_others() -> None:
    known = KnownFinding(finding("quack/old.py"), "upstream has it so")
    run = run_of(report(of_library(finding(), known=(known,)), stale=(finding("b.toml"),)))
    shown = {
        item["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]: item.get(
            "suppressions"
        )
        for item in run["results"]
    }
    assert shown == {
        "quack/old.py": [{"kind": "external", "justification": "upstream has it so"}],
        "quack/x.py": None,
        "b.toml": None,
    }


def test_what_was_not_checked_is_a_notification() -> None:
    gone = LibraryCheck("fla", "submodule", why_not="not checked out", next_step="git submodule x")
    (invocation,) = run_of(report(gone, of_library()))["invocations"]
    assert invocation["executionSuccessful"] is True
    (told,) = invocation["toolExecutionNotifications"]
    assert told["message"]["text"] == "fla was not checked: not checked out. git submodule x"


# -- identity --------------------------------------------------------------------------------------


def prints(value: CheckReport) -> list[str]:
    return [item["partialFingerprints"][FINGERPRINT] for item in run_of(value)["results"]]


def test_a_fingerprint_survives_moved_lines_and_other_words() -> None:
    moved = replace(finding(), line=90, column=1, why="said in another way", level="warning")
    assert prints(report(of_library(finding()))) == prints(report(of_library(moved)))


@pytest.mark.parametrize(
    "change",
    [
        {"rule": "scope-incomplete"},
        {"place": "quack/y.py"},
        {"subject": "quack.x:g:torch"},
        {"library": "fla"},
    ],
)
def test_a_fingerprint_tells_findings_apart(change: dict[str, str]) -> None:
    assert fingerprint(replace(finding(), **change)) != fingerprint(finding())  # type: ignore[arg-type]


def test_findings_that_differ_in_their_line_only_have_fingerprints_of_their_own() -> None:
    both = prints(report(of_library(finding(line=9), finding(line=3))))
    assert len(set(both)) == 2
    assert both == prints(report(of_library(finding(line=30), finding(line=90))))


def test_a_thousand_findings_in_one_order(tmp_path: Path) -> None:
    found = [finding(f"quack/m{n % 50}.py", n, subject=f"s{n}") for n in range(1000)]
    first = as_sarif(report(of_library(*found)))
    assert len(set(prints(report(of_library(*found))))) == 1000
    for seed in range(3):
        shuffled = random.Random(seed).sample(found, len(found))
        assert as_sarif(report(of_library(*shuffled))) == first
    path = tmp_path / "deep" / "check.sarif"
    write_sarif(report(of_library(*found, finding(why="\udcff 模块"))), path)
    check_log(json.loads(path.read_text("utf-8")))
