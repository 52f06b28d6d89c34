"""The main path on this host, judged by other tools: wheel, auditwheel, cuobjdump, pip, uv."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from ci.toolchain import find_python

from .conftest import Farm, Ran, call

pytestmark = [pytest.mark.network, pytest.mark.slow]

CAPABILITIES = {"sm_80", "sm_90", "sm_100", "sm_103"}


def manifest_of(wheel: Path) -> dict[str, object]:
    with zipfile.ZipFile(wheel) as archive:
        found: dict[str, object] = json.loads(archive.read("paddlefleet_ops/_manifest.json"))
        return found


def test_every_library_of_the_set_is_built_and_loaded(templates_run: Ran) -> None:
    rows = {row["library"]: row for row in templates_run.cell["libraries"]}
    assert set(rows) == {
        "expert-placement",
        "fused-norm",
        "ep-exchange",
        "chunk-linear-attention",
    }
    assert {row["status"] for row in rows.values()} <= {"built", "cached"}
    assert {row["imported"] for row in rows.values()} == {"loaded"}
    assert templates_run.cell["import_passed"] > len(rows)
    assert templates_run.cell["import_failed"] == 0


def test_the_version_says_cuda_and_that_these_are_the_templates(templates_wheel: Path) -> None:
    name, version, _, _ = parse_wheel_filename(templates_wheel.name)
    assert name == "paddlefleet-ops"
    assert version.local is not None
    assert version.local.split(".")[0] == "cu130"
    assert "templates" in version.local.split(".")


def test_a_wheel_of_templates_cannot_be_uploaded_by_accident(templates_wheel: Path) -> None:
    with zipfile.ZipFile(templates_wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    assert "Classifier: Private :: Do Not Upload" in text.splitlines()
    assert manifest_of(templates_wheel)["publishable"] is False


def test_wheel_unpack_accepts_the_record(templates_wheel: Path, tmp_path: Path) -> None:
    call([sys.executable, "-m", "wheel", "unpack", str(templates_wheel), "-d", str(tmp_path)])
    assert list(tmp_path.rglob("libfused_norm.so"))


def test_auditwheel_agrees_with_the_tag(templates_wheel: Path) -> None:
    shown = call([sys.executable, "-m", "auditwheel", "show", str(templates_wheel)])
    _, _, _, tags = parse_wheel_filename(templates_wheel.name)
    platforms = {tag.platform for tag in tags}
    (computed,) = re.findall(r'constrains the platform tag to "([^"]+)"', shown.replace("\n", " "))
    assert computed in platforms


def test_cuobjdump_sees_just_the_capabilities_of_the_cell(
    templates_wheel: Path, tmp_path: Path
) -> None:
    call([sys.executable, "-m", "wheel", "unpack", str(templates_wheel), "-d", str(tmp_path)])
    (library,) = tmp_path.rglob("libfused_norm.so")
    tool = cuobjdump()
    elf = call([tool, "--list-elf", str(library)])
    assert set(re.findall(r"\.(sm_\w+)\.cubin", elf)) == CAPABILITIES
    ptx = subprocess.run(
        [tool, "--list-ptx", str(library)], capture_output=True, text=True, check=False
    )
    assert "PTX file" not in ptx.stdout


def cuobjdump() -> str:
    """The cuobjdump of the package index: NVIDIA's own reader of device code."""
    from importlib.metadata import files

    found = [path for path in files("nvidia-cuda-cuobjdump") or () if path.name == "cuobjdump"]
    (path,) = found
    tool = Path(str(path.locate()))
    tool.chmod(0o755)
    return str(tool)


@pytest.mark.parametrize("python", ["3.10", "3.13"])
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_pip_and_uv_install_the_wheel_of_oldest_and_newest_python(
    python: str, installer: str, templates_wheel_for: Callable[[str], Path], tmp_path: Path
) -> None:
    found = find_python(python).found
    if found is None:
        pytest.skip(f"this host has no Python {python}")
    wheel = str(templates_wheel_for(python))
    target = tmp_path / "installed"
    if installer == "pip":
        call([str(found.path), "-m", "pip", "install", "--no-deps", "--target", str(target), wheel])
    else:
        call([
            sys.executable, "-m", "uv", "pip", "install", "--no-deps", "--python", str(found.path),
            "--target", str(target), wheel,
        ])  # fmt: skip
    (metadata,) = target.glob("paddlefleet_ops-*.dist-info")
    assert Version(metadata.name.split("-")[1].removesuffix(".dist"))
    assert (target / "paddlefleet_ops" / "fused_norm" / "libfused_norm.so").exists()


def test_a_second_run_builds_nothing(farm: Farm, templates_run: Ran, tmp_path: Path) -> None:
    ran = farm.run(
        "wheel", "--cuda", "13.0", "--set", "templates", "--json",
        "--out-dir", str(tmp_path),
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert {row["status"] for row in ran.cell["libraries"]} == {"cached"}
    first, second = Path(templates_run.cell["wheel"]), Path(ran.cell["wheel"])
    assert first.name == second.name
    assert sha256(first.read_bytes()).hexdigest() == sha256(second.read_bytes()).hexdigest()
