from __future__ import annotations

import pytest

from ci.errors import ConfigError
from ci.matrix.capability import (
    Capability,
    check,
    check_all,
    gencode,
    join,
    nearest,
    parse_list,
)


@pytest.mark.parametrize("text", ["8.0", "9.0", "9.0a", "10.0f", "12.1a", "9.0+PTX", "9.0a+PTX"])
def test_a_capability_is_written_as_it_was_read(text: str) -> None:
    assert str(Capability.parse(text)) == text


def test_parts_of_a_capability() -> None:
    capability = Capability.parse("10.3a+PTX")
    assert capability == Capability(10, 3, "a", ptx=True)
    assert capability.cc == (10, 3)
    assert capability.sm == "sm_103a"
    assert capability.name == "10.3a"


def test_order_is_by_number_then_plain_specific_family() -> None:
    texts = ["8.0", "9.0", "9.0a", "10.0", "10.0a", "10.0f", "10.3", "12.0"]
    assert sorted(map(Capability.parse, reversed(texts))) == [Capability.parse(t) for t in texts]


def test_a_target_letter_that_nvidia_does_not_have_cannot_be_constructed() -> None:
    with pytest.raises(ValueError, match="'b'"):
        Capability(9, 0, "b")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9.0", ("arch=compute_90,code=sm_90",)),
        ("9.0a", ("arch=compute_90a,code=sm_90a",)),
        ("10.0f", ("arch=compute_100f,code=sm_100f",)),
        ("9.0+PTX", ("arch=compute_90,code=sm_90", "arch=compute_90,code=compute_90")),
        ("9.0a+PTX", ("arch=compute_90a,code=sm_90a", "arch=compute_90,code=compute_90")),
    ],
)
def test_gencode_has_ptx_only_if_asked_for(text: str, expected: tuple[str, ...]) -> None:
    assert Capability.parse(text).gencode() == expected


def test_gencode_of_a_list_keeps_every_capability_and_no_flag_twice() -> None:
    assert gencode(parse_list("10.0;10.0a;9.0+PTX;9.0a+PTX")) == (
        "arch=compute_90,code=sm_90",
        "arch=compute_90,code=compute_90",
        "arch=compute_90a,code=sm_90a",
        "arch=compute_100,code=sm_100",
        "arch=compute_100a,code=sm_100a",
    )


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("9.9", "nearest: 10.0, 10.0a, 10.0f"),
        ("10.0x", "nearest: 10.0, 10.0a, 10.0f"),
        ("9.0A", "nearest: 9.0a, 9.0"),
        ("sm_90a", "nearest: 9.0a, 9.0"),
        ("90", "nearest: 9.0, 9.0a"),
        ("10", "nearest: 10.0, 10.0a, 10.0f"),
        ("9.0+ptx", "nearest: 9.0, 9.0a"),
        ("9.0f", "nearest: 9.0, 9.0a"),
        ("8.9a", "nearest: 8.9, "),
        ("abc", "valid: 5.0, 5.2"),
        ("", "valid: 5.0, 5.2"),
        ("09.0", "nearest: 9.0, 9.0a"),
    ],
)
def test_an_unknown_capability_is_refused_with_the_nearest_ones(text: str, offered: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Capability.parse(text)
    assert offered in refused.value.message
    assert refused.value.cause
    assert refused.value.next_step


def test_a_target_that_does_not_exist_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"family targets begin at 10\.0f"):
        Capability.parse("9.0f")
    with pytest.raises(ConfigError, match=r"architecture-specific targets begin at 9\.0a"):
        Capability.parse("8.9a")


@pytest.mark.parametrize("text", ["8.0;9.0a", "8.0,9.0a", "8.0 9.0a", " 9.0a ; 8.0 ", "9.0a,8.0;"])
def test_a_list_is_read_with_any_separator_and_sorted(text: str) -> None:
    assert join(parse_list(text)) == "8.0;9.0a"


def test_plain_and_specific_of_one_number_are_two_capabilities() -> None:
    assert join(parse_list("10.0a;10.0")) == "10.0;10.0a"


@pytest.mark.parametrize("text", ["9.0;9.0", "9.0;8.0;9.0+PTX"])
def test_one_capability_twice_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"9\.0 is there 2 times"):
        parse_list(text)


@pytest.mark.parametrize("text", ["10.0;10.0f", "10.0f 9.0 10.0+PTX"])
def test_plain_and_family_of_one_number_are_refused_as_nvcc_does(text: str) -> None:
    with pytest.raises(ConfigError, match=r"10\.0 and 10\.0f exclude each other"):
        parse_list(text)


def test_family_of_another_number_is_no_conflict() -> None:
    assert join(parse_list("10.0a;10.0f;10.3")) == "10.0a;10.0f;10.3"


@pytest.mark.parametrize("text", ["", " ", ";"])
def test_an_empty_list_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="no capability"):
        parse_list(text)


def test_all_problems_of_a_list_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_list("9.9;abc;8.0;8.0")
    assert [line.split()[0] for line in refused.value.details] == ["no", "'abc'", "8.0"]


@pytest.mark.parametrize(
    ("capability", "cuda", "reason"),
    [
        ("10.3", "12.6", "10.3 needs CUDA 12.9 or newer; CUDA 12.6 knows 5.0, "),
        ("10.3", "12.6", "nearest: 9.0, 9.0a"),
        ("10.3a", "12.6", "nearest: 9.0a, 9.0"),
        ("10.0f", "12.8", "10.0f needs CUDA 12.9 or newer"),
        ("12.0", "12.6", "12.0 needs CUDA 12.8 or newer"),
        ("11.0", "12.9", "11.0 needs CUDA 13.0 or newer"),
        ("7.0", "13.0", "7.0 was removed in CUDA 13.0"),
        ("7.0", "13.2", "7.0 was removed in CUDA 13.0"),
        ("7.0", "13.0", "nearest: 7.5, 8.0"),
        ("10.1", "13.0", "10.1 is called 11.0 since CUDA 13.0"),
        ("10.1a", "13.0", "10.1a is called 11.0a since CUDA 13.0"),
        ("10.1", "12.6", "10.1 exists in CUDA 12.8 to 12.9 only"),
        ("9.0", "14.7", "add a row to ci/matrix/toolkits.py"),
    ],
)
def test_what_a_toolkit_lacks_is_refused_with_the_reason(
    capability: str, cuda: str, reason: str
) -> None:
    assert reason in str(check(Capability.parse(capability), cuda))


@pytest.mark.parametrize(
    ("capability", "cuda"),
    [("9.0a", "12.6"), ("10.0", "12.8"), ("10.3", "12.9"), ("10.0f", "12.9"), ("7.0", "12.9")],
)
def test_what_a_toolkit_has_is_accepted_with_and_without_ptx(capability: str, cuda: str) -> None:
    assert check(Capability.parse(capability), cuda) is None
    assert check(Capability.parse(capability + "+PTX"), cuda) is None


def test_the_short_reason_names_every_capability_that_is_lacking() -> None:
    capabilities = parse_list("9.0;10.0;10.3")
    assert check_all(capabilities, "12.9") is None
    assert check_all(capabilities, "12.6") == (
        "10.0 needs CUDA 12.8 or newer; 10.3 needs CUDA 12.9 or newer"
    )
    assert "ci/matrix/toolkits.py" in str(check_all(capabilities, "14.7"))


def test_nearest_prefers_the_asked_target_among_equal_numbers() -> None:
    assert nearest("9.0a", ("8.0", "9.0", "9.0a"), count=2) == ("9.0a", "9.0")
