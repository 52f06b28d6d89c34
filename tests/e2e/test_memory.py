"""A build that has no memory: told as that, tried again with one compiler at a time, and then a failure."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from .conftest import Farm

pytestmark = [pytest.mark.network, pytest.mark.slow]

DECLARATION = """
from build_utils import Artifact, EcosystemLibrary
LIBRARIES = (
    EcosystemLibrary(
        name="hungry", source_rel_path="hungry", artifacts=(Artifact("hungry", "hungry"),),
        module="hungry", kind="python_dsl", hint="none", public_names=("x",), compat_scope=("hungry",),
        varies_by=frozenset(), build_requires=("setuptools>=77",), library_set="declared",
        parallel_by="MAX_JOBS",
    ),
)
"""
# Takes memory for each job until the limit that it sets itself refuses it, as compilers do.
SETUP = """
import os, resource, sys
from setuptools import setup
resource.setrlimit(resource.RLIMIT_AS, (600 * 2**20,) * 2)
try:
    blocks = [bytearray({block} * 2**20) for _ in range(int(os.environ["MAX_JOBS"]))]
except MemoryError:
    sys.exit("virtual memory exhausted: Cannot allocate memory")
setup(name="hungry", version="1", packages=["hungry"])
"""


@pytest.fixture
def options(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "hungry" / "hungry").mkdir(parents=True)
    (tmp_path / "hungry" / "hungry" / "__init__.py").write_text(f"x = {uuid4().hex!r}\n")
    (tmp_path / "declare.py").write_text(DECLARATION)
    return (
        "--cuda", "13.0", "--set", "templates", "--declare", str(tmp_path / "declare.py"), "--libs", "hungry",
        "--executor", "host", "--no-import", "--jobs", "2", "--json", "--out-dir", str(tmp_path / "dist"),
    )  # fmt: skip


def test_it_is_tried_again_with_one_job(
    farm: Farm, tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "hungry" / "setup.py").write_text(SETUP.format(block=350))
    ran = farm.run("wheel", *options)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "was killed for memory" in ran.stderr
    (task,) = [task for task in ran.document["tasks"] if task["kind"] == "library"]
    assert (task["state"], task["attempts"], task["tokens"]) == ("done", 2, 1)


def test_what_has_no_memory_alone_either_fails_with_the_reason_and_a_way_out(
    farm: Farm, tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "hungry" / "setup.py").write_text(SETUP.format(block=700))
    ran = farm.run("wheel", *options)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    details = " ".join(ran.cell["error"]["details"])
    assert "ended for memory (memory was refused: virtual memory exhausted" in details
    assert "also with one compiler at a time" in details
    (task,) = [task for task in ran.document["tasks"] if task["kind"] == "library"]
    assert (task["state"], task["attempts"]) == ("failed", 2)
