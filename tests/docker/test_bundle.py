"""Images in a bundle, with a real engine: saved, removed, loaded again, and refused when changed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ci.bundle.images import archive_problem, entry_of, load_image, save_image
from ci.bundle.model import BundledImage
from ci.errors import FindingError
from ci.executors.engine import find_engine
from ci.executors.model import Engine

REF = "farm-tests/bundled:1"


def docker(host: str, *arguments: str) -> str:
    done = subprocess.run(
        ("docker", "--host", host, *arguments), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def engine(docker_host: str, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    return find_engine("docker", os.environ)


@pytest.fixture
def item(
    docker_host: str, engine: Engine, import_tiny: Callable[..., str], tmp_path: Path
) -> BundledImage:
    """A tiny image in a bundle, and not in the engine any more."""
    import_tiny(docker_host, REF, {"a.b": "first"})
    image = engine.image(REF)
    assert image is not None
    item = entry_of(image)
    save_image(engine.facts, item, tmp_path)
    docker(docker_host, "rmi", "--force", REF)
    assert engine.image(REF) is None
    return item


@pytest.fixture(autouse=True)
def _removed(docker_host: str) -> object:
    yield
    subprocess.run(
        ("docker", "--host", docker_host, "rmi", "--force", REF), capture_output=True, check=False
    )


def test_an_image_comes_back_as_it_was(
    docker_host: str, engine: Engine, item: BundledImage, tmp_path: Path
) -> None:
    assert archive_problem(tmp_path / item.path, item.id) == ""
    assert load_image(engine, item, tmp_path).id == item.id
    assert docker(docker_host, "inspect", "--format", "{{.Id}}", REF) == item.id
    assert docker(docker_host, "run", "--rm", "--network", "none", REF, "id", "-u") == "0"


def test_another_image_of_that_name_is_replaced(
    docker_host: str,
    engine: Engine,
    item: BundledImage,
    tmp_path: Path,
    import_tiny: Callable[..., str],
) -> None:
    import_tiny(docker_host, REF, {"a.b": "second"})
    assert load_image(engine, item, tmp_path).id == item.id
    assert (
        docker(docker_host, "inspect", "--format", '{{index .Config.Labels "a.b"}}', REF) == "first"
    )


def test_a_changed_layer_never_reaches_the_engine(
    engine: Engine, item: BundledImage, tmp_path: Path
) -> None:
    archive = tmp_path / item.path
    content = bytearray(archive.read_bytes())
    content[content.index(b"root:x:0:0")] ^= 1
    archive.write_bytes(content)
    assert "is not sha256:" in archive_problem(archive, item.id)
    with pytest.raises(FindingError, match="is not the image"):
        load_image(engine, item, tmp_path)
    assert engine.image(REF) is None


def test_the_archive_of_another_image_is_refused(
    docker_host: str,
    engine: Engine,
    item: BundledImage,
    tmp_path: Path,
    import_tiny: Callable[..., str],
) -> None:
    import_tiny(docker_host, REF, {"a.b": "second"})
    other = engine.image(REF)
    assert other is not None
    shutil.copy(save_image(engine.facts, entry_of(other), tmp_path), tmp_path / item.path)
    docker(docker_host, "rmi", "--force", REF)
    with pytest.raises(FindingError, match="is not the image"):
        load_image(engine, item, tmp_path)
    assert load_image(engine, replace(entry_of(other), path=item.path), tmp_path).id == other.id
