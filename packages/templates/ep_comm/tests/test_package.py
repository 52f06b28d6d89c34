"""The package as it is installed, and the rules of eager import."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "ep_exchange"


def setuptools_is_too_old() -> bool:
    try:
        return Version(importlib.metadata.version("setuptools")) < Version("77")
    except importlib.metadata.PackageNotFoundError:
        return True


@pytest.mark.skipif(setuptools_is_too_old(), reason="needs setuptools>=77 in this environment")
def test_install_into_a_folder_yields_the_package_and_its_metadata_only(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    for name in ("pyproject.toml", "MANIFEST.in", "README.md"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    files = sorted(path.name for path in PACKAGE.iterdir() if path.is_file())
    (source / "src" / "ep_exchange").mkdir(parents=True)
    for name in files:
        (source / "src" / "ep_exchange" / name).write_bytes((PACKAGE / name).read_bytes())
    options = ["--no-deps", "--no-build-isolation", "--no-compile", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", ".", "--target", str(target), *options],
        cwd=source,
        check=True,
    )
    assert sorted(path.name for path in target.iterdir()) == [
        "ep_exchange",
        "ep_exchange-0.1.0.dist-info",
    ]
    assert sorted(path.name for path in (target / "ep_exchange").iterdir()) == files


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.name)
def test_imports_are_at_the_top(path: Path) -> None:
    """An import inside a function would run after the guard closed, and find another torch."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = (ast.Import, ast.ImportFrom)
    top = {id(node) for node in tree.body if isinstance(node, imports)}
    everywhere = {id(node) for node in ast.walk(tree) if isinstance(node, imports)}
    assert top == everywhere
    assert top


def test_import_loads_every_module_and_leaves_no_proxy_behind(framework: str) -> None:
    names = sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__")
    code = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
import frameworks
frameworks.load({framework!r}).library()
missing = [name for name in {names} if "ep_exchange." + name not in sys.modules]
assert not missing, missing
assert sys.modules["ep_exchange._collectives"].torch.__name__ == "torch"
assert ("torch" in sys.modules) == ({framework!r} == "torch")
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
