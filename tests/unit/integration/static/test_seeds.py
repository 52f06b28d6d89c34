"""The seeded faults are found, each where it is, and nothing else is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ci.integration.rules import STATIC_RULES
from tests.unit.integration.static.corpus import Seed, found_in, shown
from tests.unit.integration.static.seeds_exceptions import EXCEPTIONS
from tests.unit.integration.static.seeds_init import INIT
from tests.unit.integration.static.seeds_late import LATE
from tests.unit.integration.static.seeds_state import STATE

SEEDS = (*LATE, *INIT, *EXCEPTIONS, *STATE)
NAMES = {item.RULE.name for item in STATIC_RULES}


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.name)
def test_a_seed_has_its_findings_and_no_other(seed: Seed, tmp_path: Path) -> None:
    found = found_in(seed, tmp_path)
    assert shown(found) == seed.findings, "\n".join(item.text for item in found)


@pytest.mark.parametrize("seed", [seed for seed in SEEDS if seed.findings], ids=lambda s: s.name)
def test_a_finding_says_what_and_what_to_do(seed: Seed, tmp_path: Path) -> None:
    """Texts stand alone, name the rule of the guide, and do not move with the lines."""
    found = found_in(seed, tmp_path / "as it is")
    lines = {place: "# one more line\n" + text for place, text in seed.files.items()}
    moved = Seed(seed.name, "", raw={p: t.encode() for p, t in lines.items()} | dict(seed.raw),
                 packages=seed.packages, options=seed.options)  # fmt: skip
    again = found_in(moved, tmp_path / "moved")
    for item in found:
        assert all((item.why, item.mend, item.subject))
        assert item.library == "library"
        assert "\n" not in item.text
        assert str(tmp_path) not in item.text
    places = {(item.rule, item.place, item.subject) for item in found}
    assert places == {(item.rule, item.place, item.subject) for item in again}


@pytest.mark.parametrize(
    "source",
    [
        b"import torch\nNAME = 'caf\xe9'\n",  # no UTF-8
        b"x = " + b"(" * 2000 + b")" * 2000,
        b"x = " + b"-" * 200_000 + b"1",
        b"import torch\0",
    ],
    ids=["latin-1 without a cookie", "parentheses", "signs", "null byte"],
)
def test_a_file_that_this_interpreter_cannot_parse_is_one_finding(
    source: bytes, tmp_path: Path
) -> None:
    """Which line Python names, if any, differs between its versions."""
    found = found_in(Seed("", "", raw={"pkg/__init__.py": b"", "pkg/a.py": source}), tmp_path)
    assert [(item.rule, item.place) for item in found] == [("unreadable-source", "pkg/a.py")]


def test_links_that_lead_nowhere_or_in_circles_do_no_harm(tmp_path: Path) -> None:
    seed = Seed("", "== pkg/__init__.py\nimport torch\n== pkg/sub/__init__.py\n")
    seed.write(tmp_path)
    (tmp_path / "pkg" / "sub" / "again").symlink_to(tmp_path / "pkg", target_is_directory=True)
    (tmp_path / "pkg" / "self").symlink_to(tmp_path / "pkg" / "self")
    (tmp_path / "tests").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "pkg" / "gone.py").symlink_to(tmp_path / "nowhere.py")
    found = found_in(seed, tmp_path)
    assert [(item.rule, item.place) for item in found] == [("unreadable-source", "pkg/gone.py")]


def test_every_rule_has_at_least_three_seeds_and_names_are_unique() -> None:
    rules = Counter(rule for seed in SEEDS for rule in {item[0] for item in seed.findings})
    assert set(rules) == NAMES
    assert min(rules.values()) >= 3, rules.most_common()[-5:]
    assert max(Counter(seed.name for seed in SEEDS).values()) == 1
