from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import packaging.tags
import pytest

from ci.errors import FindingError
from ci.wheel.facts import WheelFacts, read_facts
from ci.wheel.tags import analyze, compute_tag, python_findings
from tests.unit.wheel.wheels import Gcc, own_suffix, write_wheel

CALLS_PYTHON = "extern int PyLong_AsLong(void *); int f(void *p) { return PyLong_AsLong(p); }"


def facts_of(gcc: Gcc, folder: Path, names: dict[str, str]) -> WheelFacts:
    files = {
        f"paddlefleet_ops/{name}": gcc.shared(name, source).read_bytes()
        for name, source in names.items()
    }
    return read_facts(write_wheel(folder, files))


def test_without_elf_files_it_is_any(gcc: Gcc, tmp_path: Path) -> None:
    facts = facts_of(gcc, tmp_path, {})
    assert str(compute_tag(facts, "cp312", ("any",))) == "cp312-none-any"


def test_a_library_that_does_not_touch_python_has_no_abi(gcc: Gcc, tmp_path: Path) -> None:
    facts = facts_of(gcc, tmp_path, {"libops.so": "int f(void) { return 1; }"})
    tag = compute_tag(facts, "cp312", ("manylinux_2_17_x86_64", "manylinux2014_x86_64"))
    assert str(tag) == "cp312-none-manylinux2014_x86_64.manylinux_2_17_x86_64"


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("_C.cpython-312-x86_64-linux-gnu.so", "int f(void) { return 1; }"),
        ("_C.so", CALLS_PYTHON),
        ("_C.abi3.so", CALLS_PYTHON),
        ("_C.so", "int PyInit__C(void) { return 0; }"),
    ],
)
def test_what_touches_python_binds_the_abi(
    gcc: Gcc, tmp_path: Path, name: str, source: str
) -> None:
    facts = facts_of(gcc, tmp_path, {"libops.so": "int f(void) { return 1; }", name: source})
    tag = compute_tag(facts, "cp312", ("manylinux_2_28_x86_64",))
    assert str(tag) == "cp312-cp312-manylinux_2_28_x86_64"


@pytest.mark.parametrize("tag", ["cp312-none-any", "cp312-none-manylinux_2_28_x86_64"])
def test_a_tag_without_abi_is_still_for_one_python(tag: str) -> None:
    def supported(minor: int) -> set[packaging.tags.Tag]:
        platforms = ["manylinux_2_28_x86_64"]
        version = (3, minor)
        own = packaging.tags.cpython_tags(version, platforms=platforms)
        rest = packaging.tags.compatible_tags(version, f"cp3{minor}", platforms)
        return {*own, *rest}

    wanted = packaging.tags.parse_tag(tag)
    assert wanted <= supported(12)
    assert not wanted & (supported(11) | supported(13))


@pytest.mark.parametrize("suffix", ["cpython-310", "cpython-312t", "pypy310-pp73"])
def test_an_extension_of_another_python_is_found(gcc: Gcc, tmp_path: Path, suffix: str) -> None:
    name = f"_C.{suffix}-x86_64-linux-gnu.so"
    facts = facts_of(gcc, tmp_path, {name: "int f(void) { return 1; }", "a.abi3.so": CALLS_PYTHON})
    found = python_findings(facts, "cp312")
    assert [(f.rule, f.place) for f in found] == [("foreign-python", f"paddlefleet_ops/{name}")]
    assert suffix in found[0].why


def test_extensions_of_the_own_python_are_fine(gcc: Gcc, tmp_path: Path) -> None:
    name = "_C" + own_suffix("cp312")
    facts = facts_of(gcc, tmp_path, {name: CALLS_PYTHON, "_D.abi3.so": CALLS_PYTHON})
    assert python_findings(facts, "cp312") == ()


@pytest.mark.parametrize(
    ("source", "oldest"),
    [
        ("int f(void) { return 1; }", "manylinux_2_5_x86_64"),
        (
            "#include <sys/random.h>\nint f(char *p) { return getrandom(p, 1, 0); }",
            "manylinux_2_26_x86_64",  # getrandom is GLIBC_2.25, and there is no manylinux_2_25 policy
        ),
    ],
)
def test_the_platform_follows_from_the_symbols(
    gcc: Gcc, tmp_path: Path, source: str, oldest: str
) -> None:
    facts = facts_of(gcc, tmp_path, {"libops.so": source})
    analysis = analyze(facts.path, (), graft=False)
    assert analysis.platforms[0] == oldest
    assert analysis.is_manylinux


def test_the_analysis_names_what_is_needed_from_outside(gcc: Gcc, tmp_path: Path) -> None:
    cuda = gcc.fake("libcudart.so.13")
    library = gcc.shared("libops.so", needs=[cuda]).read_bytes()
    wheel = write_wheel(tmp_path, {"paddlefleet_ops/libops.so": library})
    analysis = analyze(wheel, (), graft=False)
    assert "libcudart.so.13" in analysis.external
    assert not analysis.is_manylinux
    assert "it needs libraries from outside" in analysis.notes
    assert analyze(wheel, ("libcudart.so.*",), graft=False).is_manylinux


def test_a_wheel_without_elf_files_is_any_to_the_analysis(tmp_path: Path) -> None:
    assert analyze(write_wheel(tmp_path, {}), (), graft=True).platforms == ("any",)


def test_a_wheel_that_cannot_be_read_is_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "paddlefleet_ops-1-py3-none-any.whl"
    path.write_bytes(b"no zip")
    with pytest.raises(FindingError, match="cannot analyse"):
        analyze(path, (), graft=False)


def test_the_expanded_tag_has_one_entry_per_platform(gcc: Gcc, tmp_path: Path) -> None:
    facts = facts_of(gcc, tmp_path, {"libops.so": "int f(void) { return 1; }"})
    tag = compute_tag(facts, "cp312", ("manylinux_2_17_x86_64", "manylinux2014_x86_64"))
    assert {t.platform for t in tag.expanded} == {"manylinux_2_17_x86_64", "manylinux2014_x86_64"}
    assert replace(tag, platform="any").expanded == packaging.tags.parse_tag("cp312-none-any")
