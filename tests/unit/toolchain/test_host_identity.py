"""Everything that decides what a host compiler yields is in its identity, and nothing else is."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.toolchain.host_identity import LINKED, PROGRAMS, host_digests

COMPILER = """#!/bin/sh
case "$1" in
-print-search-dirs) cat <<END
install: {root}/
programs: ={root}/programs/:/nonexistent/
libraries: =:{root}/first/:{root}/lib/
END
;;
*) cat <<END
#include "..." search starts here:
#include <...> search starts here:
 {root}/include/c++/12
 {root}/include
End of search list.
END
;;
esac
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A made-up compiler with all that belongs to one."""
    root = tmp_path / "root"
    names = [f"programs/{name}" for name in PROGRAMS] + [f"lib/{name}" for name in LINKED]
    names += ["include/c++/12/vector", "include/bits/types.h", "include/features.h"]
    for name in (*names, "include/zlib.h", "include/SDL2/SDL.h", "lib/libz.a"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{name} one")
    (root / "g++").write_text(COMPILER.format(root=root))
    (root / "g++").chmod(0o755)
    return root


@pytest.fixture
def digests(root: Path, tmp_path: Path) -> Callable[[], dict[str, str]]:
    environ = {"PATH": "/usr/bin:/bin"}
    return lambda: dict(host_digests(environ, root / "g++", tmp_path / "cache"))


@pytest.mark.parametrize(
    ("path", "named"),
    [
        *((f"programs/{name}", f"host {name}") for name in PROGRAMS),
        *((f"lib/{name}", f"host {name}") for name in LINKED),
        ("include/c++/12/vector", "host headers"),
        ("include/bits/types.h", "host headers"),
        ("include/features.h", "host headers"),
    ],
)
def test_a_change_is_seen_under_its_name(
    root: Path, digests: Callable[[], dict[str, str]], path: str, named: str
) -> None:
    before = digests()
    (root / path).write_text(f"{path} two")
    after = digests()
    assert {name for name in before if before[name] != after[name]} == {named}


def test_the_driver_counts_by_its_content(
    root: Path, digests: Callable[[], dict[str, str]]
) -> None:
    before = digests()
    assert before["host driver"] == hashlib.sha256((root / "g++").read_bytes()).hexdigest()
    with (root / "g++").open("a") as script:
        script.write("# a wrapper of another compiler\n")
    assert digests()["host driver"] != before["host driver"]


@pytest.mark.parametrize("path", ["include/zlib.h", "include/SDL2/SDL.h", "lib/libz.a"])
def test_other_packages_of_the_machine_are_not_in_it(
    root: Path, digests: Callable[[], dict[str, str]], path: str
) -> None:
    before = digests()
    (root / path).write_text("other")
    assert digests() == before


def test_the_first_folder_that_has_a_file_counts(
    root: Path, digests: Callable[[], dict[str, str]]
) -> None:
    before = digests()
    (root / "first").mkdir()
    shutil.copy(root / "lib/libgcc.a", root / "first")
    assert digests() == before
    (root / "first/libgcc.a").write_text("another")
    assert digests()["host libgcc.a"] != before["host libgcc.a"]


def test_the_place_does_not_count(root: Path, tmp_path: Path) -> None:
    """The same compiler in another folder, save for the script that names the folder."""
    other = tmp_path / "other"
    shutil.copytree(root, other)
    (other / "g++").write_text(COMPILER.format(root=other))
    (other / "g++").chmod(0o755)
    found = []
    for place in (root, other):
        digests = dict(host_digests({"PATH": "/usr/bin"}, place / "g++", tmp_path / "cache"))
        del digests["host driver"]
        found.append(digests)
    assert found[0] == found[1]


def test_the_compiler_of_this_machine_has_all_its_parts(tmp_path: Path) -> None:
    """What gcc itself says where its parts are, one by one, is what is in the identity."""
    gxx = Path("/usr/bin/g++")
    digests = dict(host_digests(os.environ, gxx, tmp_path))
    for option, names in (("-print-prog-name", PROGRAMS), ("-print-file-name", LINKED)):
        for name in names:
            argv = [str(gxx), f"{option}={name}"]
            told = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
            path = shutil.which(told)
            path = path if path is not None else told
            if not Path(path).is_file():
                assert f"host {name}" not in digests
                continue
            content = Path(path).read_bytes()
            assert digests[f"host {name}"] == hashlib.sha256(content).hexdigest(), name
    assert len(digests) > 15
    assert len(digests["host headers"]) == 64
