"""Archives of images, made here by the book: an id is the hash of content, so no label can fake it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from ci.bundle.images import archive_ids, archive_problem, entry_of, load_image, save_image
from ci.errors import FindingError, InfrastructureError
from ci.executors.model import EngineFacts, ImageFacts

REF = "paddlefleet-farm/build:cu130"


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def layer(name: str) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(name)
        tar.addfile(entry, io.BytesIO(name.encode()))
    return sink.getvalue()


def pack(path: Path, members: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return path


LAYERS = (layer("etc/a"), layer("etc/b"))
CONFIG = json.dumps(
    {"rootfs": {"type": "layers", "diff_ids": [digest(item) for item in LAYERS]}}
).encode()
IDENTITY = digest(CONFIG)
MEMBERS = {
    "1/layer.tar": LAYERS[0],
    "2/layer.tar": LAYERS[1],
    "config.json": CONFIG,
    "manifest.json": json.dumps(
        [{"Config": "config.json", "RepoTags": [REF], "Layers": ["1/layer.tar", "2/layer.tar"]}]
    ).encode(),
}


def test_the_id_is_the_hash_of_the_configuration(tmp_path: Path) -> None:
    archive = pack(tmp_path / "x.tar", MEMBERS)
    assert archive_ids(archive) == (IDENTITY,)
    assert archive_problem(archive, IDENTITY) == ""


def test_another_image_is_told(tmp_path: Path) -> None:
    archive = pack(tmp_path / "x.tar", MEMBERS)
    other = digest(b"another")
    assert archive_problem(archive, other) == f"it holds {IDENTITY}, not {other}"


def test_an_equal_layer_may_be_a_link(tmp_path: Path) -> None:
    config = json.dumps({"rootfs": {"diff_ids": [digest(LAYERS[0])] * 2}}).encode()
    members = {**MEMBERS, "config.json": config}
    del members["2/layer.tar"]
    archive = pack(tmp_path / "x.tar", members, {"2/layer.tar": "../1/layer.tar"})
    assert archive_ids(archive) == (digest(config),)


def test_a_compressed_layer_counts_by_its_content(tmp_path: Path) -> None:
    archive = pack(tmp_path / "x.tar", {**MEMBERS, "1/layer.tar": gzip.compress(LAYERS[0])})
    assert archive_ids(archive) == (IDENTITY,)


def test_the_manifest_of_an_oci_layout_is_an_id_too(tmp_path: Path) -> None:
    manifest = b'{"schemaVersion": 2}'
    blob = f"blobs/{digest(manifest).replace(':', '/')}"
    index = json.dumps({"manifests": [{"digest": digest(manifest)}]}).encode()
    archive = pack(tmp_path / "x.tar", {**MEMBERS, blob: manifest, "index.json": index})
    assert archive_ids(archive) == (IDENTITY, digest(manifest))
    pack(archive, {**MEMBERS, blob: manifest + b" ", "index.json": index})
    assert "its manifest is not" in archive_problem(archive, IDENTITY)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"2/layer.tar": layer("etc/c")}, "its layer 2/layer.tar is not"),
        ({"config.json": CONFIG + b" "}, "it holds"),
        ({"config.json": b'{"rootfs": {"diff_ids": []}}'}, "2 layers, its configuration names 0"),
        ({"manifest.json": b"[]"}, "it holds no image"),
        ({"manifest.json": b"{"}, "no archive of an image"),
        ({"manifest.json": b"[7]"}, "no archive of an image"),
    ],
)
def test_a_changed_archive_is_told(tmp_path: Path, changes: dict[str, bytes], told: str) -> None:
    assert told in archive_problem(pack(tmp_path / "x.tar", {**MEMBERS, **changes}), IDENTITY)


@pytest.mark.parametrize("kept", [0, 100, 4000])
def test_a_cut_archive_is_told(tmp_path: Path, kept: int) -> None:
    archive = pack(tmp_path / "x.tar", MEMBERS)
    archive.write_bytes(archive.read_bytes()[:kept])
    assert "no archive of an image" in archive_problem(archive, IDENTITY)


# -- saving and loading ----------------------------------------------------------------------------


class FakeEngine:
    """An engine whose program is a script: ``save`` copies an archive, ``load`` says what was loaded."""

    def __init__(self, folder: Path, archive: Path, *, status: int = 0) -> None:
        self.program = folder / "engine"
        self.calls = folder / "calls"
        self.program.write_text(
            f'#!/bin/sh\necho "$@" >>{self.calls}\n'
            f"[ {status} = 0 ] || {{ echo no space left; exit {status}; }}\n"
            f'if [ "$1" = save ]; then while [ "$1" != --output ]; do shift; done; cp {archive} "$2"; fi\n'
        )
        self.program.chmod(0o755)
        self.images: list[ImageFacts | None] = []
        self.facts = EngineFacts(
            "docker", self.program, "28", "28", False, "x86_64", None, "overlay2", "2", 2, 1 << 30
        )

    def image(self, ref: str) -> ImageFacts | None:
        return self.images.pop(0)


def facts(identity: str) -> ImageFacts:
    return ImageFacts(REF, identity, "x86_64", 1)


ITEM = entry_of(facts(IDENTITY))


def test_an_image_is_named_by_its_id() -> None:
    assert ITEM.path == f"images/{IDENTITY.removeprefix('sha256:')}.tar"


def test_an_image_is_saved_once(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path, pack(tmp_path / "saved.tar", MEMBERS))
    target = save_image(engine.facts, ITEM, tmp_path / "b")
    assert archive_ids(target) == (IDENTITY,)
    save_image(engine.facts, ITEM, tmp_path / "b")
    assert len(engine.calls.read_text().splitlines()) == 1
    target.write_bytes(target.read_bytes()[:5000])
    save_image(engine.facts, ITEM, tmp_path / "b")
    assert len(engine.calls.read_text().splitlines()) == 2
    assert archive_problem(target, IDENTITY) == ""


def test_a_saved_image_that_is_another_one_is_refused(tmp_path: Path) -> None:
    engine = FakeEngine(
        tmp_path, pack(tmp_path / "saved.tar", {**MEMBERS, "config.json": CONFIG + b" "})
    )
    with pytest.raises(InfrastructureError, match="does not save"):
        save_image(engine.facts, ITEM, tmp_path / "b")
    assert [path.name for path in (tmp_path / "b" / "images").iterdir()] == []


def test_an_engine_that_cannot_save_is_told(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path, tmp_path, status=1)
    with pytest.raises(InfrastructureError) as caught:
        save_image(engine.facts, ITEM, tmp_path / "b")
    assert caught.value.cause == "no space left"


def in_bundle(tmp_path: Path, members: dict[str, bytes]) -> Path:
    (tmp_path / "b" / "images").mkdir(parents=True)
    return pack(tmp_path / "b" / ITEM.path, members)


def test_an_image_that_is_there_is_not_loaded(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path, in_bundle(tmp_path, MEMBERS))
    engine.images = [facts(IDENTITY)]
    assert load_image(engine, ITEM, tmp_path / "b").id == IDENTITY  # type: ignore[arg-type]
    assert not engine.calls.exists()


def test_another_image_of_that_name_is_replaced(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path, in_bundle(tmp_path, MEMBERS))
    engine.images = [facts(digest(b"older")), facts(IDENTITY)]
    assert load_image(engine, ITEM, tmp_path / "b").id == IDENTITY  # type: ignore[arg-type]
    assert engine.calls.read_text().startswith("load --input")


@pytest.mark.parametrize("loaded", [None, facts(digest(b"another"))])
def test_an_engine_that_loads_another_image_is_told(
    tmp_path: Path, loaded: ImageFacts | None
) -> None:
    engine = FakeEngine(tmp_path, in_bundle(tmp_path, MEMBERS))
    engine.images = [None, loaded]
    with pytest.raises(FindingError, match="is not the image"):
        load_image(engine, ITEM, tmp_path / "b")  # type: ignore[arg-type]


def test_a_tampered_archive_never_reaches_the_engine(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path, in_bundle(tmp_path, {**MEMBERS, "2/layer.tar": layer("etc/c")}))
    with pytest.raises(FindingError, match="is not the image"):
        load_image(engine, ITEM, tmp_path / "b")  # type: ignore[arg-type]
    assert not engine.calls.exists()


def test_an_engine_that_refuses_an_archive_is_told(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path, in_bundle(tmp_path, MEMBERS), status=1)
    engine.images = [None]
    with pytest.raises(InfrastructureError, match="does not load"):
        load_image(engine, ITEM, tmp_path / "b")  # type: ignore[arg-type]
