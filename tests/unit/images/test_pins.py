from __future__ import annotations

import json
import re
import sys
from datetime import date
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from ci.environments.lock import Lock
from ci.errors import ConfigError
from ci.images.pin_check import (
    baked_references,
    check_files,
    check_pinned,
    check_tools,
    check_uses,
    dockerfile_references,
    placed,
)
from ci.images.pin_edit import changes, edited
from ci.images.pins import (
    PINS,
    SCHEMA_FILE,
    NotPinned,
    Reference,
    load_pins,
    parse_pins,
    parse_reference,
    pinned_reference,
)
from ci.matrix.load import load
from ci.matrix.model import CudaEntry, PaddleRequirement
from ci.registry import MATRIX, REPOSITORY

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

A, B, C, D = (f"sha256:{digit * 64}" for digit in "abcd")

TEXT = f"""\
# The first lines stay.

[images.cu130-build]
reference = "docker.io/nvidia/cuda:13.0.3-devel-rockylinux8"
use = "build"  # for CUDA 13.0
cuda = "13.0"
glibc = "2.28"
digest.index = "{A}"
digest."linux/amd64" = "{B}"
# both were read on one day
source.index = "github.com/example/first"
source."linux/amd64" = "github.com/example/second"
seen = "2026-05-04"

# -- what follows is the next part's

[images.cu130-paddle]
reference = "docker.io/paddlepaddle/paddle_manylinux_devel:cuda13.0"
use = "paddle"
cuda = "13.0"

[images.old]
reference = "quay.io/pypa/manylinux_2_28_x86_64:2026.10.26-1"
use = "pythons"
glibc = "2.28"
digest.either = "{C}"
source.either = "cibuildwheel's pin file"
seen = "2026-05-04"

[images.new]
reference = "quay.io/pypa/manylinux_2_34_x86_64:2026.10.26-1"
use = "pythons"
glibc = "2.34"

[images.cu130-test]
reference = "docker.io/nvidia/cuda:13.0.3-runtime-ubuntu22.04"
use = "test"
cuda = "13.0"
glibc = "2.35"

# The end stays, too.
[tools]
ninja = "locks/farm.txt"
"""


def problems_of(old: str, new: str) -> tuple[str, ...]:
    assert old in TEXT
    with pytest.raises(ConfigError) as refused:
        parse_pins(TEXT.replace(old, new, 1))
    assert refused.value.exit_code == 2
    assert "pins --check" in refused.value.next_step
    return refused.value.details


def cuda_130(image: str = "paddlepaddle/paddle_manylinux_devel:cuda13.0") -> CudaEntry:
    return CudaEntry("13.0", image, (), PaddleRequirement("gpu", "https://example.org/", "cpu"))


# -- the committed file ---------------------------------------------------------------------------


def test_every_digest_of_the_file_is_one_and_has_a_public_source() -> None:
    """Read without the code under test: TOML parser and a pattern."""
    images = tomllib.loads(PINS.read_text("utf-8"))["images"]
    digests = [
        (name, key, value)
        for name, entry in images.items()
        for key, value in entry.get("digest", {}).items()
    ]
    assert len(digests) >= 8
    assert len({value for _, _, value in digests}) == len(digests)
    for name, key, value in digests:
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", value), (name, key)
        assert len(set(value[7:])) > 8, f"{name} {key} looks made up"
        source = images[name]["source"][key]
        commit = re.fullmatch(r"github\.com/\S+/\S+ at [0-9a-f]{40}, \S+", source)
        assert commit or re.fullmatch(r"cibuildwheel \d\S+ on PyPI, \S+", source), source
        assert date.fromisoformat(images[name]["seen"]) <= date.today()


def test_digests_of_manylinux_are_those_of_cibuildwheels_own_pin_file() -> None:
    resources = pytest.importorskip("cibuildwheel", reason="needs Python 3.11").__path__[0]
    text = (Path(resources) / "resources" / "pinned_docker_images.cfg").read_text("utf-8")
    theirs = dict(re.findall(r"quay\.io/(pypa/\w+)@(sha256:\w+)  # \S+", text))
    tags = dict(re.findall(r"quay\.io/(pypa/\w+)@sha256:\w+  # (\S+)", text))
    ours = [pin for pin in load_pins().images if pin.use == "pythons"]
    assert ours
    for pin in ours:
        reference = parse_reference(pin.reference)
        if tags[reference.repository] == reference.tag:
            assert theirs[reference.repository] in pin.digests.values()


def test_the_file_fits_the_matrix_the_dockerfiles_and_the_locks() -> None:
    pins = load_pins()
    assert [*check_uses(pins, load(MATRIX).cudas)] == []
    assert [*check_files(pins, PINS.parent)] == []
    assert [*check_tools(pins, REPOSITORY)] == []


def test_every_cuda_of_the_matrix_has_a_base_with_cpythons_that_it_can_run() -> None:
    pins = load_pins()
    for entry in load(MATRIX).cudas:
        base = pins.find("build", entry.version)
        assert base is not None
        source = pins.pythons_for(base)
        assert source is not None
        assert float(source.glibc[2:]) <= float(base.glibc[2:])


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(json.loads(SCHEMA_FILE.read_text("utf-8")))


# -- strict loading -------------------------------------------------------------------------------


def test_a_file_without_faults_becomes_values() -> None:
    pins = parse_pins(TEXT)
    build = pins.images[0]
    assert (build.name, build.use, build.cuda, build.glibc) == (
        "cu130-build", "build", "13.0", "2.28",
    )  # fmt: skip
    assert (build.index_digest, build.platforms) == (A, {"linux/amd64": B})
    assert build.sources["linux/amd64"] == "github.com/example/second"
    assert build.seen == date(2026, 5, 4)
    assert pins.tools == {"ninja": "locks/farm.txt"}
    assert pins.find("test", "13.0") is pins.images[4]
    assert pins.find("test", "12.6") is None
    assert pins.find("pythons", glibc="2.34") is pins.images[3]


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ('use = "build"', 'usee = "build"', 5, "did you mean 'use'?"),
        ('use = "build"', 'use = "bulid"', 5, "build, paddle, pythons or test"),
        ("digest.index =", "digest.indx =", 8, "did you mean 'index'?"),
        (A, A[:-1], 8, "64 digits"),
        (A, A.upper(), 8, "64 digits"),
        (f'"{A}"', f'"{A}\\n"', 8, "no SHA-256 digest"),
        (A, "sha512:" + "a" * 64, 8, "64 digits"),
        (f'"{B}"', f'"{A}"', 8, "differ"),
        ('source.index = "github.com/example/first"\n', "", 8, "has no source"),
        ('digest.index = "' + A + '"\n', "", 10, "there is no digest.index"),
        ('seen = "2026-05-04"\n', "", 3, "is missing"),
        ('seen = "2026-05-04"', 'seen = "2026-02-30"', 13, "no day"),
        ("docker.io/nvidia", "nvidia", 4, "REGISTRY/NAME:TAG"),
        (":13.0.3-devel-rockylinux8", ":latest", 4, "latest"),
        (":13.0.3-devel-rockylinux8", "", 4, "REGISTRY/NAME:TAG"),
        (":13.0.3-devel-rockylinux8", f":13.0.3@{A}", 4, "without a digest"),
        (
            "13.0.3-runtime-ubuntu22.04",
            "13.0.3-devel-rockylinux8",
            36,
            "images.cu130-build already",
        ),
        ('use = "test"', 'use = "build"', 37, "'build of 13.0' is images.cu130-build already"),
        ('cuda = "13.0"\nglibc = "2.28"', 'glibc = "2.28"', 3, "for one CUDA"),
        ('use = "pythons"\nglibc = "2.28"', 'use = "pythons"', 22, "glibc is as new"),
        ('digest.either = "', f'digest.index = "{D}"\ndigest.either = "', 26, "no source"),
        ("[tools]", "[toolz]", None, "is missing"),
    ],
)
def test_a_fault_is_told_with_its_line_and_what_is_right(
    old: str, new: str, line: int | None, said: str
) -> None:
    found = problems_of(old, new)
    start = f"pins.toml:{line}: " if line else "pins.toml"
    assert any(text.startswith(start) and said in text for text in found), found


def test_all_faults_are_told_at_once() -> None:
    text = TEXT.replace(A, "sha256:1").replace('use = "test"', 'use = "tests"')
    with pytest.raises(ConfigError, match="2 problems") as refused:
        parse_pins(text)
    assert len(refused.value.details) == 2


def test_either_is_settled_by_the_index() -> None:
    old = 'source.either = "cibuildwheel\'s pin file"'
    new = f'{old}\ndigest.index = "{D}"\nsource.index = "github.com/example/third"'
    assert "settled" in problems_of(old, new)[0]


def test_a_file_that_is_absent_or_no_toml_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_pins(tmp_path / "pins.toml")
    with pytest.raises(ConfigError, match="not valid TOML"):
        parse_pins("[images")


# -- references -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("debian", ("docker.io", "library/debian", "latest")),
        ("nvidia/cuda:13.0.3", ("docker.io", "nvidia/cuda", "13.0.3")),
        (f"nvidia/cuda:13.0.3@{A}", ("docker.io", "nvidia/cuda", "13.0.3")),
        ("quay.io/pypa/x:1", ("quay.io", "pypa/x", "1")),
        ("localhost:5000/x", ("localhost:5000", "x", "latest")),
        ("localhost/x/y:2", ("localhost", "x/y", "2")),
    ],
)
def test_a_short_reference_means_what_docker_takes_it_for(
    text: str, parts: tuple[str, str, str]
) -> None:
    assert parse_reference(text) == Reference(*parts)


def test_a_reference_is_found_however_it_is_spelled() -> None:
    pins = parse_pins(TEXT)
    assert pins.by_reference("nvidia/cuda:13.0.3-devel-rockylinux8") is pins.images[0]
    assert pins.by_reference("nvidia/cuda:13.0.3") is None


def test_a_pinned_reference_names_the_platform_before_the_index_before_either() -> None:
    build, paddle, pythons = parse_pins(TEXT).images[:3]
    assert pinned_reference(build, "x86_64") == f"{build.reference}@{B}"
    assert pinned_reference(build, "aarch64") == f"{build.reference}@{A}"
    assert pinned_reference(pythons, "x86_64") == f"{pythons.reference}@{C}"
    foreign = pinned_reference(pythons, "aarch64")
    assert isinstance(foreign, NotPinned)
    assert "linux/arm64" in foreign.reason
    absent = pinned_reference(paddle, "x86_64")
    assert isinstance(absent, NotPinned)
    assert "python -m ci pins --update cu130-paddle" in absent.mend
    assert f"docker buildx imagetools inspect {paddle.reference}" in absent.mend
    assert isinstance(pinned_reference(build, "riscv64"), NotPinned)


def test_cpythons_are_the_newest_that_the_bases_glibc_runs() -> None:
    pins = parse_pins(TEXT)
    build, _, old, new, test = pins.images
    assert pins.pythons_for(build) is old
    assert pins.pythons_for(test) is new


# -- checks without a network ---------------------------------------------------------------------


def test_what_the_matrix_needs_is_there_and_what_nothing_needs_is_not() -> None:
    pins = parse_pins(TEXT)
    assert [*check_uses(pins, [cuda_130()])] == []
    more = [
        *check_uses(pins, [cuda_130(), CudaEntry("12.6", "x/y:1", (), cuda_130().paddle)]),
    ]
    assert [item.rule for item in more] == ["image-not-in-pins"] * 3
    assert "x/y:1" in " ".join(item.why for item in more)
    other = [*check_uses(pins, [cuda_130("paddlepaddle/other:cuda13.0")])]
    assert [item.rule for item in other] == ["image-not-in-pins", "image-unused"]
    none = placed([*check_uses(pins, [])], TEXT)
    assert [(item.rule, item.line) for item in none] == [
        ("image-unused", 3), ("image-unused", 17), ("image-unused", 35),
    ]  # fmt: skip


def test_cpythons_that_no_base_can_run_are_unused() -> None:
    text = TEXT.replace('glibc = "2.34"', 'glibc = "2.40"')
    (found,) = check_uses(parse_pins(text), [cuda_130()])
    assert (found.rule, found.subject) == ("image-unused", "images new")


def test_an_image_without_digest_is_a_warning_with_the_command() -> None:
    found = [*check_pinned(parse_pins(TEXT))]
    assert [(item.subject, item.level) for item in found] == [
        ("images cu130-paddle", "warning"),
        ("images new", "warning"),
        ("images cu130-test", "warning"),
    ]
    assert "--update cu130-paddle" in found[0].mend


DOCKERFILE = """\
ARG BASE=nvidia/cuda:13.0.3-devel-rockylinux8
ARG PYTHONS=${BASE}
ARG VARIANT
# FROM quay.io/commented/out:1
FROM ${BASE} AS base
FROM --platform=linux/amd64 \\
    quay.io/pypa/manylinux_2_28_x86_64:2026.10.26-1 AS pythons
FROM $VARIANT AS free
FROM base AS final
FROM scratch
COPY --from=pythons /opt/python /opt/python
"""


def test_a_dockerfile_starts_from_images_arguments_and_its_own_stages() -> None:
    assert dockerfile_references(DOCKERFILE) == (
        "nvidia/cuda:13.0.3-devel-rockylinux8",
        "quay.io/pypa/manylinux_2_28_x86_64:2026.10.26-1",
    )


def test_a_bake_file_names_images_in_its_values() -> None:
    text = f"""\
    # "quay.io/commented/out:1"
    target "build-cu130" {{
      tags = ["paddlefleet-farm/build:cu130"]
      args = {{ BASE = "docker.io/nvidia/cuda:13.0.3-devel-rockylinux8@{A}" }}
      contexts = {{ pythons = "docker-image://quay.io/pypa/manylinux_2_28_x86_64:1" }}
      dockerfile = "docker/build.Dockerfile"
    }}
    """
    assert baked_references(text) == (
        "docker.io/nvidia/cuda:13.0.3-devel-rockylinux8",
        "quay.io/pypa/manylinux_2_28_x86_64:1",
    )


def test_an_image_that_a_file_names_must_be_in_the_pins(tmp_path: Path) -> None:
    (tmp_path / "build.Dockerfile").write_text(DOCKERFILE, "utf-8")
    (tmp_path / "docker-bake.hcl").write_text('x = "docker.io/some/image:1"', "utf-8")
    (tmp_path / "notes.md").write_text("FROM some/other:1", "utf-8")
    assert [(item.place, item.subject) for item in check_files(parse_pins(TEXT), tmp_path)] == [
        ("docker/docker-bake.hcl", "docker.io/some/image:1")
    ]
    without = parse_pins(TEXT.replace("manylinux_2_28_x86_64", "manylinux_2_27_x86_64"))
    assert len([*check_files(without, tmp_path)]) == 2


def test_a_tool_is_in_its_lock_with_a_hash(tmp_path: Path) -> None:
    pins = parse_pins(TEXT)
    lock = tmp_path / "locks" / "farm.txt"
    assert "absent" in next(check_tools(pins, tmp_path)).why
    lock.parent.mkdir()
    texts = {
        "meson==1.13.2 \\\n    --hash=" + A + "\n": "does not pin it",
        "ninja==1.13.2\nmeson==1 \\\n    --hash=" + A + "\n": "without a hash",
    }
    for text, why in texts.items():
        lock.write_text(text, "utf-8")
        assert Lock(text).pins
        assert why in next(check_tools(pins, tmp_path)).why
    lock.write_text("ninja==1.13.2 \\\n    --hash=" + A + "\n", "utf-8")
    assert [*check_tools(pins, tmp_path)] == []


# -- edits ----------------------------------------------------------------------------------------

DAY = date(2026, 12, 2)


def test_an_edit_replaces_the_digests_of_one_image_and_keeps_every_other_line() -> None:
    found = {"index": A, "linux/amd64": D, "linux/arm64": C}
    text = edited(TEXT, "cu130-build", found, "the registry", DAY)
    pin = parse_pins(text).images[0]
    assert dict(pin.digests) == found
    assert dict(pin.sources) == {
        "index": "github.com/example/first",
        "linux/amd64": "the registry",
        "linux/arm64": "the registry",
    }
    assert pin.seen == DAY
    own = re.compile(r"(?:digest|source)\.|seen")
    old_lines, new_lines = TEXT.splitlines(), text.splitlines()
    start, end = old_lines.index("[images.cu130-build]"), old_lines.index('seen = "2026-05-04"')
    kept = [line for line in old_lines[start : end + 1] if not own.match(line)]
    assert new_lines[: start + len(kept)] == [*old_lines[:start], *kept]
    assert new_lines[-len(old_lines[end + 1 :]) :] == old_lines[end + 1 :]
    assert len(new_lines) == len(old_lines) + 2  # one more digest, one more source


@pytest.mark.parametrize("name", ["cu130-paddle", "new", "cu130-test"])
def test_an_image_without_digests_gets_them_in_its_own_table(name: str) -> None:
    text = edited(TEXT, name, {"index": D}, "the registry", DAY)
    after = {pin.name: pin for pin in parse_pins(text).images}
    before = {pin.name: pin for pin in parse_pins(TEXT).images}
    assert dict(after[name].digests) == {"index": D}
    assert {**after, name: before[name]} == before
    removed = text.replace(f'digest.index = "{D}"\nsource.index = "the registry"\n', "", 1)
    assert removed.replace(f'seen = "{DAY}"\n', "", 1) == TEXT


def test_a_digest_of_unsaid_kind_keeps_its_source_when_it_is_settled() -> None:
    text = edited(TEXT, "old", {"index": D, "linux/amd64": C}, "the registry", DAY)
    pin = parse_pins(text).images[2]
    assert dict(pin.sources) == {"index": "the registry", "linux/amd64": "cibuildwheel's pin file"}


def test_the_committed_file_can_be_edited_for_every_image() -> None:
    text = PINS.read_text("utf-8")
    for pin in load_pins().images:
        text = edited(text, pin.name, {"linux/amd64": D}, "the registry", DAY)
    assert all(pin.platforms == {"linux/amd64": D} for pin in parse_pins(text).images)
    comments = [line for line in PINS.read_text("utf-8").splitlines() if line.startswith("#")]
    assert [line for line in text.splitlines() if line.startswith("#")] == comments


def test_a_table_that_is_written_otherwise_is_refused_not_mangled() -> None:
    text = TEXT.replace(
        f'digest.either = "{C}"\nsource.either = "cibuildwheel\'s pin file"\n', ""
    ).replace(
        "[images.new]",
        f'[images.old.digest]\neither = "{C}"\n[images.old.source]\neither = "the pin file"\n[images.new]',
    )
    assert parse_pins(text).images[2].digests == {"either": C}
    with pytest.raises(ConfigError, match="line by line"):
        edited(text, "old", {"index": D}, "the registry", DAY)


def test_changes_are_told_old_to_new() -> None:
    build, paddle = parse_pins(TEXT).images[:2]
    assert [item.text for item in changes(build, {"index": A, "linux/amd64": D})] == [
        f"cu130-build linux/amd64: {B} -> {D}"
    ]
    assert [item.text for item in changes(build, {"index": A})] == [
        f"cu130-build linux/amd64: {B} -> absent"
    ]
    assert [item.text for item in changes(paddle, {"index": A})] == [
        f"cu130-paddle index: absent -> {A}"
    ]
    assert changes(build, build.digests) == ()
