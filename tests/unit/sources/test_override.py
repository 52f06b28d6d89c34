"""``--source NAME=KIND:PLACE``: every accepted form, and every wrong one told at once."""

from __future__ import annotations

import pytest

from ci.errors import ConfigError
from ci.sources.override import Override, parse_override, parse_overrides

KNOWN = ("quack", "flash-linear-attention", "FlashMLA")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("quack=path:../quack", Override("quack", "path", "../quack", "")),
        ("quack=path:/a b/c@d", Override("quack", "path", "/a b/c@d", "")),
        (
            "FlashMLA=git:https://github.com/PFCCLab/FlashMLA.git@paddle",
            Override("FlashMLA", "git", "https://github.com/PFCCLab/FlashMLA.git", "paddle"),
        ),
        (
            f"quack=git:git@github.com:PFCCLab/quack.git@{COMMIT}",
            Override("quack", "git", "git@github.com:PFCCLab/quack.git", COMMIT),
        ),
        (
            "quack=git:ssh://git@host/group/quack@feature/x-1",
            Override("quack", "git", "ssh://git@host/group/quack", "feature/x-1"),
        ),
        ("quack=git:/srv/quack.git@v1.0", Override("quack", "git", "/srv/quack.git", "v1.0")),
        ("quack=git:file:///srv/q@v1", Override("quack", "git", "file:///srv/q", "v1")),
        (
            "quack=git:https://user:word@host/q.git@refs/pull/7/head",
            Override("quack", "git", "https://user:word@host/q.git", "refs/pull/7/head"),
        ),
        (
            "quack=pypi:quack-kernels==0.6.5",
            Override("quack", "pypi", "quack-kernels", "0.6.5"),
        ),
        ("quack=pypi:a==1.0rc1+x.2", Override("quack", "pypi", "a", "1.0rc1+x.2")),
    ],
)
def test_a_form_is_read(text: str, expected: Override) -> None:
    assert parse_override(text) == expected
    assert f"{expected.library}={expected.origin}" == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "quack",
        "quack=",
        "=path:x",
        "quack=path:",
        "quack=../x",
        "quack=svn:https://host/x",
        "quack:path=x",
        "a/b=path:x",
    ],
)
def test_what_is_no_form_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ConfigError, match="not of the form NAME=path:DIR, NAME=git:URL@REV"):
        parse_override(text)


@pytest.mark.parametrize(
    "place",
    [
        "https://github.com/PFCCLab/quack.git",
        "https://github.com/PFCCLab/quack.git@",
        "@main",
        "git@github.com:PFCCLab/quack.git",  # this @ is the user's
        "https://user@host/group/quack.git",
        "ssh://git@host/group/quack",
        "https://host/q@two words",
        "https://host/q@--upload-pack=x",
        "--upload-pack=x@main",
    ],
)
def test_a_git_source_without_a_revision_is_refused(place: str) -> None:
    with pytest.raises(ConfigError, match=r"name the revision: git:URL@REV"):
        parse_override(f"quack=git:{place}")


@pytest.mark.parametrize(
    "place",
    [
        "quack-kernels", "quack-kernels==", "quack-kernels>=1", "==1.0", "a==1.*", "a===1", "a==latest",
        "a==1.0 --index-url=https://example.org", "a[extra]==1", "a==1; python_version<'3'", "-r==1",
    ],
)  # fmt: skip
def test_a_package_index_source_without_one_version_is_refused(place: str) -> None:
    with pytest.raises(ConfigError, match="name the version: pypi:PROJECT==VERSION"):
        parse_override(f"quack=pypi:{place}")


def test_overrides_are_given_by_library() -> None:
    found = parse_overrides(["quack=path:a", "FlashMLA=pypi:x==1"], KNOWN)
    assert list(found) == ["quack", "FlashMLA"]
    assert found["quack"].place == "a"
    assert parse_overrides([], KNOWN) == {}


def test_every_wrong_option_is_told_at_once() -> None:
    texts = ["quak=path:a", "nonsense", "quack=git:https://host/x", "quack=path:b", "quack=path:c"]
    with pytest.raises(ConfigError, match="4 bad --source options") as refused:
        parse_overrides(texts, KNOWN)
    unknown, form, revision, twice = refused.value.details
    assert unknown == "--source quak=path:a: unknown library 'quak'; nearest: quack"
    assert form.startswith("--source nonsense: not of the form")
    assert "name the revision" in revision
    assert twice == "--source: two sources for 'quack'"
    assert refused.value.exit_code == 2


def test_a_single_wrong_option_is_the_message() -> None:
    with pytest.raises(ConfigError, match="unknown library 'zzz'") as refused:
        parse_overrides(["zzz=path:a"], KNOWN)
    assert refused.value.details == ()
    assert "nearest" not in refused.value.message


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("q=git:https://user:secret@host/q.git@main", "git:https://host/q.git@main"),
        ("q=git:https://secret@host:8443/g/q.git@v1", "git:https://host:8443/g/q.git@v1"),
        ("q=git:https://host/q.git@main", "git:https://host/q.git@main"),
        ("q=git:git@github.com:PFCCLab/q.git@main", "git:git@github.com:PFCCLab/q.git@main"),
        ("q=git:/home/me/q.git@main", "git:q.git@main"),
        ("q=git:file:///home/me/q@main", "git:q@main"),
        ("q=path:/home/me/q", "path:q"),
        ("q=pypi:quack-kernels==0.6.5", "pypi:quack-kernels==0.6.5"),
    ],
)
def test_what_is_recorded_names_no_secret_and_no_folder_of_this_machine(
    text: str, public: str
) -> None:
    assert parse_override(text).public_origin == public
