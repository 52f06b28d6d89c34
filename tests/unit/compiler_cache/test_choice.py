"""Which compiler cache is taken: found, missing, broken, too old, by name and by itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ci.compiler_cache import choice
from ci.compiler_cache.choice import Facts, ToolFact, choose, probe
from ci.compiler_cache.model import NVCC_BEHIND_CCACHE, CompilerCache, NoCompilerCache
from ci.errors import ConfigError, ToolchainError

SCCACHE = ToolFact("sccache", Path("/opt/sccache"), (0, 16, 0))
CCACHE = ToolFact("ccache", Path("/opt/ccache"), (4, 7, 5))
NEITHER = Facts(
    (
        ToolFact("sccache", problem="sccache is not installed"),
        ToolFact("ccache", problem="ccache is not installed"),
    )
)


def program(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def only_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Tools are looked for in this folder only, not beside this Python."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere" / "python"))
    return tmp_path / "bin"


def facts_of(folder: Path) -> Facts:
    return probe({"PATH": str(folder)})


def test_the_tools_of_this_machine() -> None:
    """The package is a dependency of the farm: its program is beside this Python."""
    fact = probe({"PATH": "/usr/bin:/bin"}).of("sccache")
    assert fact.problem == ""
    assert fact.path == Path(sys.executable).parent / "sccache"
    assert fact.version >= (0, 16, 0)


def test_auto_prefers_sccache() -> None:
    chosen = choose("auto", Facts((SCCACHE, CCACHE)))
    assert isinstance(chosen, CompilerCache)
    assert (chosen.shown, chosen.remarks) == ("sccache 0.16.0", ())


def test_auto_takes_ccache_and_says_what_it_does_not_cache() -> None:
    chosen = choose("auto", Facts((NEITHER.of("sccache"), CCACHE)))
    assert isinstance(chosen, CompilerCache)
    assert (chosen.shown, chosen.remarks) == ("ccache 4.7.5", (NVCC_BEHIND_CCACHE,))


def test_auto_without_tools_has_the_reason() -> None:
    assert choose("auto", NEITHER) == NoCompilerCache(
        "sccache is not installed; ccache is not installed"
    )


def test_none_is_none_whatever_there_is() -> None:
    chosen = choose("none", Facts((SCCACHE, CCACHE)))
    assert isinstance(chosen, NoCompilerCache)
    assert "--compiler-cache none" in chosen.reason


@pytest.mark.parametrize("tool", ["sccache", "ccache"])
def test_by_name_it_has_to_be_there(tool: str) -> None:
    with pytest.raises(ToolchainError, match="is not installed") as raised:
        choose(tool, NEITHER)
    assert raised.value.exit_code == 3
    assert tool in raised.value.next_step


def test_an_unknown_name() -> None:
    with pytest.raises(ConfigError, match="buildcache"):
        choose("buildcache", Facts((SCCACHE, CCACHE)))


@pytest.mark.parametrize(
    ("tool", "version", "wanted"),
    [("sccache", "0.15.0", "0.16.0"), ("ccache", "4.5.1", "4.7.0"), ("ccache", "3.7.7", "4.7.0")],
)
def test_too_old(only_path: Path, tool: str, version: str, wanted: str) -> None:
    program(only_path, tool, f"echo '{tool} version {version}'")
    facts = facts_of(only_path)
    chosen = choose("auto", facts)
    assert isinstance(chosen, NoCompilerCache)
    assert f"{tool} {version}" in chosen.reason
    assert f"{wanted} is needed" in chosen.reason
    with pytest.raises(ToolchainError, match="too old"):
        choose(tool, facts)


@pytest.mark.parametrize(("tool", "version"), [("sccache", "0.16.0"), ("ccache", "4.7")])
def test_just_new_enough(only_path: Path, tool: str, version: str) -> None:
    program(only_path, tool, f"echo '{tool} {version}'; echo 'Features: 1.0.0'")
    chosen = choose("auto", facts_of(only_path))
    assert isinstance(chosen, CompilerCache)
    assert chosen.tool == tool
    assert chosen.path == only_path / tool


@pytest.mark.parametrize("body", ["exit 1", "echo nothing of use", "kill -9 $$", ":"])
def test_broken(only_path: Path, body: str) -> None:
    program(only_path, "sccache", body)
    facts = facts_of(only_path)
    chosen = choose("auto", facts)
    assert isinstance(chosen, NoCompilerCache)
    assert "does not tell its version" in chosen.reason
    with pytest.raises(ToolchainError, match="does not tell its version"):
        choose("sccache", facts)


def test_one_that_cannot_be_started(only_path: Path) -> None:
    only_path.mkdir()
    (only_path / "sccache").write_text("#!/nonexistent/interpreter\n")
    (only_path / "sccache").chmod(0o755)
    with pytest.raises(ToolchainError, match="cannot start"):
        choose("sccache", facts_of(only_path))


def test_one_that_hangs_is_given_up(only_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_PROBE_SECONDS", 0.2)
    program(only_path, "sccache", "exec sleep 60")
    fact = facts_of(only_path).of("sccache")
    assert "does not tell its version" in fact.problem
