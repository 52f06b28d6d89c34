"""The recipe of the air-gapped base, its definition, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ci.errors import ConfigError, InfrastructureError, ToolchainError
from ci.executors.model import LABEL
from ci.images import airgapped
from ci.images.airgapped import Base, import_argv, load_recipe, require_debootstrap
from ci.images.pythons import PythonBuild

BUILD = PythonBuild("3.12", "3.12.1", Path("/own"), "digest")
UTILITY = PythonBuild("3.9", "3.9.18", Path("/older"), "digest")


def base(**changes: object) -> Base:
    return replace(Base(load_recipe("bookworm", with_clang=False), (BUILD, UTILITY)), **changes)


@pytest.mark.parametrize("suite", ["bullseye", "bookworm", "trixie"])
def test_each_suite_has_a_compiler_and_the_libraries_of_cpython(suite: str) -> None:
    recipe = load_recipe(suite, with_clang=False)
    assert {"g++", "git", "make", "tini", "ca-certificates"} <= set(recipe.packages)
    for stem in ("libssl", "libffi", "libsqlite3", "liblzma", "libreadline"):
        assert [name for name in recipe.packages if name.startswith(stem)], stem
    assert list(recipe.packages) == sorted(set(recipe.packages))


def test_an_unknown_suite_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="sid") as caught:
        load_recipe("sid", with_clang=False)
    assert "bookworm" in caught.value.cause


def test_clang_is_refused_where_the_suite_has_none() -> None:
    assert load_recipe("bookworm", with_clang=True).extra_packages
    with pytest.raises(ConfigError, match="no clang"):
        load_recipe("trixie", with_clang=True)


def test_a_recipe_that_is_not_toml_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "airgapped.toml"
    path.write_text("packages = [")
    with pytest.raises(ConfigError, match=r"airgapped\.toml"):
        load_recipe("bookworm", with_clang=False, path=path)


def test_the_definition_names_packages_and_pythons_but_no_mirror() -> None:
    first = base()
    other_mirror = replace(first.recipe, mirror="http://mirror.example/debian")
    more_packages = replace(first.recipe, packages=(*first.recipe.packages, "vim"))
    other_build = replace(BUILD, digest="another")
    assert base(recipe=other_mirror).definition == first.definition
    assert base(recipe=more_packages).definition != first.definition
    assert base(builds=(other_build, UTILITY)).definition != first.definition


def test_with_clang_it_is_another_image() -> None:
    assert base().ref == "paddlefleet-farm/base:bookworm"
    clang = base(recipe=load_recipe("bookworm", with_clang=True))
    assert clang.ref == "paddlefleet-farm/base:bookworm-clang"
    assert clang.definition != base().definition


def test_labels_say_which_pythons_run_there_without_the_utility_one() -> None:
    argv = import_argv(base(), "docker", Path("root.tar"), (BUILD, UTILITY))
    assert argv[:2] == ("docker", "import")
    assert argv[-2:] == ("root.tar", base().ref)
    assert f'LABEL {LABEL}pythons="3.12"' in argv
    assert f'LABEL {LABEL}definition="{base().definition}"' in argv


def test_without_debootstrap_the_error_has_the_command_to_install_it() -> None:
    with pytest.raises(ToolchainError) as caught:
        require_debootstrap(0, None)
    assert caught.value.exit_code == 3
    assert "apt-get install debootstrap" in caught.value.next_step


def test_without_root_the_error_says_so() -> None:
    with pytest.raises(ToolchainError, match="root") as caught:
        require_debootstrap(1000, "/usr/sbin/debootstrap")
    assert caught.value.next_step.startswith("sudo python -m ci images")
    require_debootstrap(0, "/usr/sbin/debootstrap")


def test_the_mirror_is_that_of_this_host_s_apt(tmp_path: Path) -> None:
    apt = tmp_path / "apt-get"
    apt.write_text(
        '#!/bin/sh\n[ "$4" = "Codename: bookworm" ] && echo http://mirror.example/debian\n'
    )
    apt.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert airgapped.mirror_of("bookworm", "http://x", environ) == "http://mirror.example/debian"
    assert airgapped.mirror_of("trixie", "http://x", environ) == "http://x"
    assert airgapped.mirror_of("bookworm", "http://x", {"PATH": "/nowhere"}) == "http://x"


def test_a_full_disk_is_told_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(airgapped, "NEEDED_BYTES", 1 << 60)
    with (
        pytest.raises(InfrastructureError, match="not enough disk space"),
        airgapped._scratch(tmp_path),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_trimming_takes_out_what_tells_of_this_host(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in (
        "etc/resolv.conf",
        "etc/apt/sources.list",
        "var/log/dpkg.log",
        "usr/share/doc/a/b",
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("of this host")
    airgapped._trim(load_recipe("bookworm", with_clang=False), root)
    left = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert left == {"etc/apt/sources.list"}
    assert (root / "etc/apt/sources.list").read_text() == (
        "deb http://deb.debian.org/debian bookworm main\n"
    )
