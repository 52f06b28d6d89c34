from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ci.findings import Finding
from ci.wheel import judge
from ci.wheel.facts import RecordEntry, WheelFacts, read_facts
from ci.wheel.tags import WheelTag
from tests.unit.wheel.wheels import write_wheel

PURE = WheelTag("cp312", "none", "any")


@pytest.fixture
def facts(tmp_path: Path) -> WheelFacts:
    return read_facts(write_wheel(tmp_path, {"paddlefleet_ops/a.py": b"x"}, tag="cp312-none-any"))


def lines(findings: tuple[Finding, ...]) -> str:
    return "\n".join(finding.text for finding in findings)


def test_a_good_wheel_has_no_findings(facts: WheelFacts) -> None:
    assert judge.record_findings(facts) == ()
    assert judge.metadata_findings(facts) == ()
    assert judge.tag_findings(facts, PURE) == ()
    assert judge.label_findings(facts, "13.0") == ()


def with_row(facts: WheelFacts, **changes: object) -> WheelFacts:
    rows = [
        replace(row, **changes) if row.path == "paddlefleet_ops/a.py" else row  # type: ignore[arg-type]
        for row in facts.record
    ]
    return replace(facts, record=tuple(rows))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"algorithm": ""}, "its hash is missing, not sha256"),
        ({"algorithm": "md5"}, "its hash is md5, not sha256"),
        ({"digest": "0" * 64}, "its sha256 is not that of the file"),
        ({"size": 2}, "its size 2 is not 1"),
        ({"size": None}, "its size None is not 1"),
        ({"path": "gone.py"}, "gone.py: in RECORD, not in the archive"),
        ({"path": "gone.py"}, "paddlefleet_ops/a.py: in the archive, not in RECORD"),
    ],
)
def test_each_way_in_which_record_can_lie(
    facts: WheelFacts, changes: dict[str, object], why: str
) -> None:
    assert why in lines(judge.record_findings(with_row(facts, **changes)))


def test_what_is_listed_or_stored_twice_is_found(facts: WheelFacts) -> None:
    row = RecordEntry("paddlefleet_ops/a.py", "sha256", facts.members[1].sha256, 1)
    twice = replace(facts, record=(*facts.record, row), members=(*facts.members, facts.members[0]))
    text = lines(judge.record_findings(twice))
    assert "paddlefleet_ops/a.py: listed twice" in text
    assert f"{facts.members[0].name}: in the archive twice" in text


@pytest.mark.parametrize(
    ("field", "value"), [("Name", "other-ops"), ("Version", "0.1.1+cu130"), ("Version", "?")]
)
def test_metadata_must_say_what_the_file_name_says(
    facts: WheelFacts, field: str, value: str
) -> None:
    metadata = tuple((k, value if k == field else v) for k, v in facts.metadata)
    [finding] = judge.metadata_findings(replace(facts, metadata=metadata))
    assert (finding.rule, finding.place) == ("metadata", "METADATA")
    assert f"{field} is ('{value}',)" in finding.why


def test_the_dist_info_folder_must_be_that_of_the_wheel(facts: WheelFacts) -> None:
    [finding] = judge.metadata_findings(
        replace(facts, dist_info="paddlefleet_ops-0.1.1+cu130.dist-info")
    )
    assert finding.place == "paddlefleet_ops-0.1.1+cu130.dist-info"


@pytest.mark.parametrize("name", ["paddlefleet_ops", "PaddleFleet-Ops", "paddlefleet.ops"])
def test_names_compare_as_pep_503_says(facts: WheelFacts, name: str) -> None:
    metadata = tuple((k, name if k == "Name" else v) for k, v in facts.metadata)
    assert judge.metadata_findings(replace(facts, metadata=metadata)) == ()


def test_the_tag_of_wheel_must_be_that_of_the_file_name(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, {}, tag="cp312-none-any", wheel_tag="py3-none-any")
    [finding] = judge.tag_findings(read_facts(wheel), PURE)
    assert finding.place.endswith("/WHEEL")
    assert "py3-none-any, and the content is cp312-none-any" in finding.why


def test_the_tag_of_the_file_name_must_be_that_of_the_content(facts: WheelFacts) -> None:
    computed = WheelTag("cp312", "cp312", "any")
    places = [f.place for f in judge.tag_findings(facts, computed)]
    assert places == ["the file name", f"{facts.dist_info}/WHEEL"]


def test_a_platform_wheel_must_not_be_marked_pure(facts: WheelFacts) -> None:
    tags = WheelTag("cp312", "none", "manylinux_2_28_x86_64")
    fields = tuple((k, str(t)) if k == "Tag" else (k, v) for k, v in facts.wheel for t in [tags])
    text = lines(judge.tag_findings(replace(facts, tags=tags.expanded, wheel=fields), tags))
    assert "Root-Is-Purelib is True" in text
    assert text.count("\n") == 0
