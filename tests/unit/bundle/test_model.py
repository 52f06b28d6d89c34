"""The record of a bundle: equal bundles give equal texts, and what it names stays inside the folder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.bundle.model import (
    Bundle,
    BundledCommit,
    BundledFile,
    BundledImage,
    read_bundle,
    sha256_of,
)
from ci.errors import ConfigError

HEX = "ab" * 32
COMMIT = "12" * 20
BUNDLE = Bundle(
    commit=COMMIT,
    cells=("cu130-cp312", "cu130-cp310"),
    libraries=("fused-norm",),
    pythons=("3.10", "3.12"),
    files=(BundledFile("wheels/b.whl", 2, HEX), BundledFile("locks/a.txt", 1, HEX)),
    images=(BundledImage("images/x.tar", f"sha256:{HEX}", "paddlefleet-farm/build:cu130"),),
    commits=(
        BundledCommit("sources/L/00.pack", "L", "packages/third_party/L", COMMIT, "https://x/l"),
    ),
    tools={"python": "3.12.1", "git": "2.39.5"},
)


def written(folder: Path, **changes: Any) -> Path:
    document = {**json.loads(BUNDLE.text()), **changes}
    (folder / "bundle.json").write_text(json.dumps(document), "utf-8")
    return folder


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "bundle.json").write_text(BUNDLE.text(), "utf-8")
    assert read_bundle(tmp_path).text() == BUNDLE.text()
    assert read_bundle(tmp_path).commits == BUNDLE.commits


def test_the_order_in_which_files_were_found_does_not_count() -> None:
    other = replace(
        BUNDLE,
        files=BUNDLE.files[::-1],
        cells=BUNDLE.cells[::-1],
        tools=dict(reversed(BUNDLE.tools.items())),
    )
    assert other.text() == BUNDLE.text()


def test_a_file_is_hashed_whole(tmp_path: Path) -> None:
    content = bytes(range(256)) * 9000  # more than one piece
    (tmp_path / "x").write_bytes(content)
    assert sha256_of(tmp_path / "x") == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "wheels/../../x", "a/.git/config", "", "a\\b"]
)
def test_a_path_that_leaves_the_bundle_is_refused(tmp_path: Path, path: str) -> None:
    written(tmp_path, files=[{"path": path, "size": 1, "sha256": HEX}])
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        read_bundle(tmp_path)
    assert "leaves the bundle" in caught.value.cause


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("commit", "--upload-pack=x"),
        ("commit", "abc"),
        ("files", [{"path": "a", "size": "1", "sha256": HEX}]),
        ("files", [{"path": "a", "size": 1, "sha256": HEX[:-1]}]),
        ("files", {"a": 1}),
        ("cells", "cu130"),
        ("images", [{"path": "a", "id": f"sha256:{HEX}", "ref": "--all", "repo_digests": []}]),
        ("images", [{"path": "a", "id": "latest", "ref": "a:b", "repo_digests": []}]),
        ("commits", [{"path": "a", "library": "L", "place": "/x", "commit": COMMIT, "url": ""}]),
        ("tools", []),
    ],
)
def test_a_field_of_another_form_is_refused(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_bundle(written(tmp_path, **{field: value}))


def test_another_format_names_the_farm_that_reads_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has format 2") as caught:
        read_bundle(written(tmp_path, format=2))
    assert "git clone" in caught.value.next_step


def test_a_folder_without_a_record_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a bundle"):
        read_bundle(tmp_path)


@pytest.mark.parametrize(
    ("ref", "label"),
    [("paddlefleet-farm/build:cu130", "cu130"), ("host:5000/x/test:cu126-cp312", "cu126")],
)
def test_the_cuda_of_an_image_is_in_its_name(ref: str, label: str) -> None:
    assert BundledImage("images/x.tar", f"sha256:{HEX}", ref).cuda_label == label
