"""From a declaration and an override to hashed sources; git against local repositories."""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import tarfile
import urllib.error
import urllib.request
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ci.errors import ConfigError, InfrastructureError
from ci.registry import build_manifest, build_utils
from ci.sources import resolve
from ci.sources.override import Override, parse_override
from ci.sources.resolve import ResolvedSource, resolve_sources


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def fetched(make_library: Any, cache: Path) -> Any:
    """Resolves one override of a library that has no sources of its own."""

    def fetch(place: str) -> ResolvedSource:
        override = parse_override(f"alpha={place}")
        return resolve_sources([make_library()], {"alpha": override}, cache, _silent)["alpha"]

    return fetch


def _silent(_: str) -> None:
    return None


def content(source: ResolvedSource, name: str) -> str:
    return (source.folder / name).read_text("utf-8")


# --- what is declared -----------------------------------------------------------------------------


def test_a_template_is_hashed_and_not_pinned(tmp_path: Path) -> None:
    library = build_utils.get_libs("templates")[0]
    source = resolve_sources([library], {}, tmp_path, _silent)[library.name]
    assert (source.kind, source.pinned) == ("template", False)
    assert source.origin == f"packages/templates/{library.source_dir.name}"
    assert source.tree == build_manifest.tree_hash(library.source_dir)


def test_a_declared_library_outside_the_checkout_leaves_no_path_in_its_record(
    make_library: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "trial"
    folder.mkdir()
    library = make_library(source_rel_path=str(folder))
    source = resolve_sources([library], {}, tmp_path, _silent)["alpha"]
    assert (source.kind, source.pinned, source.origin) == ("declared", False, "trial")
    assert str(tmp_path) not in json.dumps(asdict(source.record()))


def test_a_declared_folder_that_is_missing_is_told(make_library: Any, tmp_path: Path) -> None:
    library = make_library(source_rel_path=str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match="the source folder of alpha does not exist"):
        resolve_sources([library], {}, tmp_path, _silent)


def test_only_a_submodule_at_its_pin_counts_as_pinned(
    make_library: Any, tmp_path: Path, commit_files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_utils, "PACKAGE_ROOT", tmp_path)
    pin = commit_files(tmp_path / "third_party" / "alpha", {"setup.py": ""})
    library = make_library(pin=pin, url="https://example.org/alpha.git")
    source = resolve_sources([library], {}, tmp_path, _silent)["alpha"]
    assert (source.kind, source.revision, source.pinned) == ("submodule", pin, True)
    assert source.origin == "https://example.org/alpha.git"
    (tmp_path / "third_party" / "alpha" / "setup.py").write_text("edited")
    with pytest.raises(ConfigError, match="not there as pinned"):
        resolve_sources([library], {}, tmp_path, _silent)


def test_an_override_stands_in_for_a_submodule_that_is_not_there(
    make_library: Any, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "setup.py").write_text("")
    libraries = [make_library("alpha", pin="a" * 40), make_library("beta", pin=None)]
    override = Override("alpha", "path", str(tmp_path / "here"), "")
    with pytest.raises(ConfigError, match="the sources of beta are not there"):
        resolve_sources(libraries, {"alpha": override}, tmp_path, _silent)
    found = resolve_sources(libraries[:1], {"alpha": override}, tmp_path, _silent)
    assert not found["alpha"].pinned


# --- path -----------------------------------------------------------------------------------------


def test_a_path_is_used_in_place_and_recorded_by_its_last_name(
    fetched: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work" / "alpha"
    folder.mkdir(parents=True)
    (folder / "setup.py").write_text("setup()")
    monkeypatch.chdir(folder)
    for place in (str(folder), "."):
        source = fetched(f"path:{place}")
        assert source.folder == folder
        assert source.record() == build_manifest.SourceRecord(
            "path", "path:alpha", "", build_manifest.tree_hash(folder), False
        )


def test_a_path_that_is_no_folder_is_a_configuration_error(fetched: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("gone", "file"):
        with pytest.raises(ConfigError, match="no such folder"):
            fetched(f"path:{tmp_path / name}")


# --- git ------------------------------------------------------------------------------------------


@pytest.fixture
def origin(tmp_path: Path, git: Any, commit_files: Any) -> Path:
    """A bare repository, as a server has it, beside the working copy ``upstream`` that pushes to it."""
    upstream, bare = tmp_path / "upstream", tmp_path / "origin.git"
    commit_files(upstream, {"setup.py": "one"})
    git("clone", "--quiet", "--bare", str(upstream), str(bare))
    git("remote", "add", "origin", str(bare), cwd=upstream)
    return bare


@pytest.fixture
def push(tmp_path: Path, git: Any, commit_files: Any, origin: Path) -> Any:
    def change(text: str, *refs: str) -> str:
        commit: str = commit_files(tmp_path / "upstream", {"setup.py": text})
        git("push", "--quiet", "--force", "origin", *(refs or ("main",)), cwd=tmp_path / "upstream")
        return commit

    return change


def test_a_branch_is_followed_when_it_moves(fetched: Any, origin: Path, push: Any) -> None:
    first = fetched(f"git:{origin}@main")
    assert content(first, "setup.py") == "one"
    commit = push("two")
    second = fetched(f"git:{origin}@main")
    assert content(second, "setup.py") == "two"
    assert second.revision == commit
    assert second.tree != first.tree
    assert not second.pinned


def test_a_branch_that_was_rewritten_is_followed(
    fetched: Any, origin: Path, push: Any, git: Any, tmp_path: Path
) -> None:
    push("two")
    fetched(f"git:{origin}@main")
    git("reset", "--quiet", "--hard", "HEAD~1", cwd=tmp_path / "upstream")
    commit = push("other two")
    assert fetched(f"git:{origin}@main").revision == commit


def test_a_branch_with_a_slash_and_a_branch_that_is_gone(
    fetched: Any, origin: Path, push: Any, git: Any
) -> None:
    push("feature", "main:feature/x")
    assert content(fetched(f"git:{origin}@feature/x"), "setup.py") == "feature"
    git("branch", "--delete", "--force", "feature/x", cwd=origin)
    with pytest.raises(InfrastructureError, match="git checkout failed"):
        fetched(f"git:{origin}@feature/x")


def test_a_tag_is_taken_and_a_moved_tag_is_followed(
    fetched: Any, origin: Path, push: Any, git: Any, tmp_path: Path
) -> None:
    upstream = tmp_path / "upstream"
    git("tag", "-a", "-m", "x", "v1", cwd=upstream)
    push("two", "main", "v1")
    first = fetched(f"git:{origin}@v1")
    assert content(first, "setup.py") == "one"
    assert len(first.revision) == 40
    git("tag", "-f", "-a", "-m", "x", "v1", cwd=upstream)
    push("three", "main", "v1")
    assert content(fetched(f"git:{origin}@v1"), "setup.py") == "two"


def test_a_full_commit_that_is_there_needs_no_network(
    fetched: Any, origin: Path, push: Any, git: Any
) -> None:
    commit = git("rev-parse", "main", cwd=origin)
    push("two")
    assert fetched(f"git:{origin}@{commit}").revision == commit
    origin.rename(origin.with_name("unplugged.git"))
    again = fetched(f"git:{origin}@{commit}")
    assert content(again, "setup.py") == "one"
    with pytest.raises(InfrastructureError, match="git clone failed"):
        fetched(f"git:{origin}@main")


def test_an_edit_in_the_cache_does_not_last(fetched: Any, origin: Path) -> None:
    first = fetched(f"git:{origin}@main")
    (first.folder / "setup.py").write_text("edited")
    (first.folder / "more").mkdir()
    (first.folder / "more" / "x").write_text("x")
    again = fetched(f"git:{origin}@main")
    assert again.tree == first.tree
    assert content(again, "setup.py") == "one"


def test_nested_submodules_come_along_and_follow(
    fetched: Any, tmp_path: Path, git: Any, commit_files: Any, origin: Path, push: Any
) -> None:
    upstream, leaf, inner = (tmp_path / name for name in ("upstream", "leaf", "inner"))
    commit_files(leaf, {"leaf.h": "1"})
    commit_files(inner, {"inner.h": "1"})
    git("submodule", "--quiet", "add", str(leaf), "deep/leaf", cwd=inner)
    commit_files(inner, {})
    git("submodule", "--quiet", "add", str(inner), "third-party/inner", cwd=upstream)
    push("with nested")
    source = fetched(f"git:{origin}@main")
    assert content(source, "third-party/inner/deep/leaf/leaf.h") == "1"

    moved = tmp_path / "inner-moved"
    inner.rename(moved)
    commit_files(moved, {"inner.h": "2"})
    nested = upstream / "third-party" / "inner"
    git("submodule", "set-url", "third-party/inner", str(moved), cwd=upstream)
    git("pull", "--quiet", str(moved), "main", cwd=nested)
    push("nested moved")
    assert content(fetched(f"git:{origin}@main"), "third-party/inner/inner.h") == "2"


def test_a_failed_clone_leaves_nothing(fetched: Any, origin: Path, cache: Path) -> None:
    with pytest.raises(InfrastructureError) as refused:
        fetched(f"git:{origin}@no-such-branch")
    assert "no-such-branch" in refused.value.cause
    assert refused.value.exit_code == 4
    assert [path for path in (cache / "sources" / "git").iterdir() if path.is_dir()] == []


def test_a_record_of_a_git_source_names_no_folder_of_this_machine(
    fetched: Any, origin: Path, tmp_path: Path
) -> None:
    record = fetched(f"git:{origin}@main").record()
    assert record.origin == "git:origin.git@main"
    assert str(tmp_path) not in json.dumps(asdict(record))


def test_what_a_git_hook_exports_does_not_lead_elsewhere(
    fetched: Any, origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "upstream" / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "upstream"))
    for _ in range(2):
        assert content(fetched(f"git:{origin}@main"), "setup.py") == "one"


# --- package index --------------------------------------------------------------------------------


def sdist(files: dict[str, str]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return raw.getvalue()


def pure_wheel(files: dict[str, str]) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return raw.getvalue()


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An index that offers one file, and answers with ``body`` for it (a text raises)."""

    def offer(name: str, genuine: bytes, body: bytes | Exception | None = None) -> None:
        digest = hashlib.sha256(genuine).hexdigest()
        monkeypatch.setattr(
            resolve, "_release_file", lambda _: (f"https://example.org/files/{name}", digest)
        )

        def urlopen(url: str, timeout: float) -> io.BytesIO:
            assert url.endswith(name)
            if isinstance(body, Exception):
                raise body
            return io.BytesIO(genuine if body is None else body)

        monkeypatch.setattr(urllib.request, "urlopen", urlopen)

    return offer


def test_a_source_distribution_is_unpacked_to_its_project(fetched: Any, index: Any) -> None:
    index("a-1.0.tar.gz", sdist({"a-1.0/setup.py": "setup()", "a-1.0/a/__init__.py": ""}))
    source = fetched("pypi:a==1.0")
    assert content(source, "setup.py") == "setup()"
    assert (source.kind, source.origin, source.revision) == ("pypi", "pypi:a==1.0", "1.0")
    assert not source.pinned


def test_what_was_fetched_once_is_not_fetched_again(fetched: Any, index: Any) -> None:
    index("a-1.0.tar.gz", sdist({"a-1.0/setup.py": "setup()"}))
    first = fetched("pypi:a==1.0")
    index("a-1.0.tar.gz", b"", urllib.error.URLError("offline"))
    assert fetched("pypi:a==1.0") == first


def test_a_pure_wheel_becomes_a_project(fetched: Any, index: Any) -> None:
    files = {
        "a/__init__.py": "", "a/data/x.json": "{}", "single.py": "", "a/sub/__init__.py": "",
        "a_b-1.0.dist-info/METADATA": "Name: a-b\nVersion: 1.0\n",
    }  # fmt: skip
    index("a_b-1.0-py3-none-any.whl", pure_wheel(files))
    source = fetched("pypi:a-b==1.0")
    project = resolve.tomllib.loads(content(source, "pyproject.toml"))
    assert project["project"] == {"name": "a_b", "version": "1.0"}
    assert project["tool"]["setuptools"]["packages"] == ["a", "a.sub"]
    assert project["tool"]["setuptools"]["py-modules"] == ["single"]
    assert (source.folder / "a" / "data" / "x.json").exists()
    assert not list(source.folder.glob("*.dist-info"))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"something else", "is damaged"),
        (b"", "is damaged"),
        (urllib.error.URLError("no route"), "cannot download"),
        (TimeoutError("slow"), "cannot download"),
        (http.client.IncompleteRead(b"half", 100), "cannot download"),
        (ConnectionResetError("reset"), "cannot download"),
    ],
)
def test_a_download_that_is_not_the_release_is_infrastructure_and_leaves_nothing(
    fetched: Any, index: Any, cache: Path, body: bytes | Exception, words: str
) -> None:
    index("a-1.0.tar.gz", sdist({"a-1.0/setup.py": ""}), body)
    with pytest.raises(InfrastructureError, match=words) as refused:
        fetched("pypi:a==1.0")
    assert refused.value.exit_code == 4
    assert refused.value.next_step
    assert [path for path in (cache / "sources" / "pypi").iterdir() if path.is_dir()] == []


def test_an_archive_that_leaves_its_folder_is_refused(
    fetched: Any, index: Any, cache: Path
) -> None:
    index("a-1.0.tar.gz", sdist({"a-1.0/setup.py": "", "../outside": "x"}))
    with pytest.raises(InfrastructureError, match="cannot be unpacked"):
        fetched("pypi:a==1.0")
    assert not list(cache.rglob("outside"))


def test_an_archive_that_is_none_is_refused(fetched: Any, index: Any) -> None:
    index("a-1.0.tar.gz", b"no archive at all")
    with pytest.raises(InfrastructureError, match="cannot be unpacked"):
        fetched("pypi:a==1.0")


@pytest.mark.network
def test_a_real_release_is_fetched_with_its_hash(fetched: Any) -> None:
    source = fetched("pypi:torch-dct==0.1.6")
    assert (source.folder / "torch_dct").is_dir()
    assert (source.folder / "setup.py").exists() or (source.folder / "pyproject.toml").exists()


@pytest.mark.network
@pytest.mark.parametrize("place", ["torch-dct==9.9", "torch-dct-never-released==1.0"])
def test_a_release_that_does_not_exist_is_a_configuration_error(fetched: Any, place: str) -> None:
    with pytest.raises(ConfigError, match="there is no torch-dct") as refused:
        fetched(f"pypi:{place}")
    assert "pip index versions" in refused.value.next_step
