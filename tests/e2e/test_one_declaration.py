"""Removing a declaration removes the library everywhere, with no other edit."""

from __future__ import annotations

import ast
import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from .conftest import REPOSITORY, Farm, call

pytestmark = [pytest.mark.network, pytest.mark.slow]

REMOVED = "fused-norm"


def copy_of_checkout(target: Path) -> Path:
    """The committed and uncommitted files of this checkout as a repository of its own."""
    listed = call(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=REPOSITORY)
    for name in filter(None, listed.split("\0")):
        source = REPOSITORY / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(source.read_bytes())
            (target / name).chmod(source.stat().st_mode)
    for arguments in (
        ("init", "-q"),
        ("add", "-A", "-f"),
        ("-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-m", "copy"),
    ):
        call(["git", *arguments], cwd=target)
    return target


def remove_declaration(registry: Path, name: str) -> None:
    """Cut the ``EcosystemLibrary(name=…)`` call out of the file; nothing else is touched."""
    text = registry.read_text("utf-8")
    (node,) = (
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "EcosystemLibrary"
        and any(
            keyword.arg == "name"
            and isinstance(keyword.value, ast.Constant)
            and keyword.value.value == name
            for keyword in node.keywords
        )
    )
    lines = text.splitlines(keepends=True)
    assert node.end_lineno is not None
    registry.write_text("".join(lines[: node.lineno - 1] + lines[node.end_lineno :]), "utf-8")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = copy_of_checkout(tmp_path_factory.mktemp("checkout"))
    remove_declaration(copy / "packages" / "paddlefleet_ops" / "build_utils.py", REMOVED)
    return copy


def test_wheel_loader_requirements_and_import_suite_lose_it(
    checkout: Path, cache_dir: Path, tmp_path: Path
) -> None:
    ran = Farm(checkout, cache_dir).run(
        "wheel", "--cuda", "13.0", "--set", "templates", "--json", "--out-dir", str(tmp_path)
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    names = {row["library"]: row["imported"] for row in ran.cell["libraries"]}
    assert names == {
        "expert-placement": "loaded",
        "ep-exchange": "loaded",
        "chunk-linear-attention": "loaded",
    }
    with zipfile.ZipFile(ran.cell["wheel"]) as archive:
        members = archive.namelist()
        manifest = json.loads(archive.read("paddlefleet_ops/_manifest.json"))
        (metadata,) = (name for name in members if name.endswith(".dist-info/METADATA"))
        requirements = archive.read(metadata).decode()
    assert not [name for name in members if "fused_norm" in name]
    assert REMOVED not in {item["name"] for item in manifest["libraries"] + manifest["left_out"]}
    assert "apache-tvm-ffi" not in requirements
    log = (tmp_path / "logs" / ran.cell["cell"] / "import.log").read_text()
    assert "expert-placement" in log
    assert REMOVED not in log


def test_the_ignored_folder_goes_with_it(checkout: Path, cache_dir: Path) -> None:
    folder = "packages/paddlefleet_ops/src/paddlefleet_ops/fused_norm"
    farm = Farm(checkout, cache_dir)
    assert farm.run("sync", "--check").returncode == 1
    assert farm.run("sync").returncode == 0
    ignored = subprocess.run(
        ["git", "check-ignore", "-q", "--no-index", folder], cwd=checkout, check=False
    )
    assert ignored.returncode == 1
    kept = folder.replace("fused_norm", "ep_exchange")
    call(["git", "check-ignore", "-q", "--no-index", kept], cwd=checkout)
