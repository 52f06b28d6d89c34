"""A toolchain as a value: its identity and its environment."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from ci.toolchain.model import Toolchain

BASE = Toolchain(
    cuda="13.0",
    compiler="nvcc",
    cuda_home=Path("/toolkits/13.0"),
    version="13.0.88",
    origin="CUDA_HOME",
    origin_text="installed in /toolkits/13.0, found by CUDA_HOME=/toolkits/13.0",
    cc=Path("/usr/bin/gcc"),
    cxx=Path("/usr/bin/g++"),
    cxx_version="gcc 12.2.0",
    ptxas_version="13.0.88",
    publishable=True,
    not_publishable_because="",
    digests=(("bin/nvcc", "aa"), ("bin/ptxas", "bb")),
    library_path=(Path("/toolkits/13.0/lib64/stubs"), Path("/toolkits/13.0/lib64")),
)


def test_the_place_is_not_part_of_the_identity() -> None:
    moved = dataclasses.replace(
        BASE,
        cuda_home=Path("/cache/home"),
        origin="cache",
        origin_text="put together",
        cxx=Path("/opt/bin/g++"),
        cc=Path("/opt/bin/gcc"),
        library_path=(),
        digests=tuple(reversed(BASE.digests)),
    )
    assert moved.identity() == BASE.identity()
    assert "/" not in BASE.identity().replace("bin/", "")


def test_versions_and_content_are_part_of_the_identity() -> None:
    others = [
        dataclasses.replace(BASE, cuda="13.1"),
        dataclasses.replace(BASE, compiler="clang"),
        dataclasses.replace(BASE, version="13.0.48"),
        dataclasses.replace(BASE, cxx_version="gcc 13.2.0"),
        dataclasses.replace(BASE, ptxas_version="13.0.48"),
        dataclasses.replace(BASE, digests=(("bin/nvcc", "aa"), ("bin/ptxas", "cc"))),
    ]
    assert len({BASE.identity(), *(other.identity() for other in others)}) == 1 + len(others)


def test_the_environment_names_one_compiler_everywhere() -> None:
    environment = BASE.environment()
    for name in ("CUDA_HOME", "CUDA_PATH", "CUDAToolkit_ROOT", "CUDA_TOOLKIT_ROOT_DIR"):
        assert environment[name] == "/toolkits/13.0"
    assert environment["CUDACXX"] == "/toolkits/13.0/bin/nvcc"
    assert environment["NVCC_CCBIN"] == environment["CXX"] == environment["CUDAHOSTCXX"]
    assert environment["CC"] == "/usr/bin/gcc"
    assert environment["LIBRARY_PATH"] == "/toolkits/13.0/lib64/stubs:/toolkits/13.0/lib64"
    assert BASE.path_entries() == (Path("/toolkits/13.0/bin"),)


def test_the_record_is_json() -> None:
    told = json.loads(json.dumps(BASE.as_dict()))
    assert told["version"] == "13.0.88"
    assert told["publishable"] is True
    assert "bin/nvcc sha256:aa" in told["identity"]


def test_what_has_no_device_code_is_built_by_the_host_compiler_alone() -> None:
    host = (("host driver", "cc"), ("host cc1plus", "dd"))
    here = dataclasses.replace(BASE, digests=BASE.digests + host)
    other_cuda = dataclasses.replace(
        here, cuda="12.9", compiler="clang", version="22", digests=host
    )
    assert here.host.identity() == other_cuda.host.identity()
    assert "cuda" not in here.host.identity()
    assert here.host.environment() == {"CC": "/usr/bin/gcc", "CXX": "/usr/bin/g++"}
    newer = dataclasses.replace(here, cxx_version="gcc 13.2.0")
    assert newer.host.identity() != here.host.identity()
    rebuilt = dataclasses.replace(here, digests=(("host driver", "ee"),))
    assert rebuilt.host.identity() != here.host.identity()
