"""What the probe says about a machine, with programs made for the test."""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
from pathlib import Path

import pytest

from ci.errors import ToolchainError
from ci.toolchain import probe
from ci.toolchain.probe import CUDA_ROOTS_VARIABLE

NVCC_SAYS = """nvcc: NVIDIA (R) Cuda compiler driver
Cuda compilation tools, release {release}, V{release}.85
"""
HERE = "{}.{}".format(*sys.version_info[:2])
TOOLS = "/usr/bin:/bin"


def program(path: Path, output: str, status: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{output}END\nexit {status}\n")
    path.chmod(0o755)
    return path


def toolkit(home: Path, release: str, extra: str = "") -> Path:
    program(home / "bin" / "nvcc", NVCC_SAYS.format(release=release) + extra)
    crt = home / "include" / "crt"
    crt.mkdir(parents=True)
    (home / "include" / "cuda_runtime.h").touch()
    (crt / "host_config.h").write_text(
        "#if __GNUC__ > 13\n#error\n#endif\n#if (__clang_major__ >= 19) || (__clang_major__ < 3)\n"
    )
    return home


def hidden(**variables: str) -> dict[str, str]:
    """An environment that shows no compiler of this machine's folders."""
    return {"PATH": TOOLS, CUDA_ROOTS_VARIABLE: ""} | variables


def test_every_place_of_nvcc_is_looked_at_in_order(tmp_path: Path) -> None:
    toolkit(tmp_path / "home", "12.6")
    toolkit(tmp_path / "path", "12.9")
    toolkit(tmp_path / "roots" / "cuda-13.0", "13.0")
    (tmp_path / "roots" / "cuda").symlink_to("cuda-13.0")
    environ = {
        "CUDA_HOME": str(tmp_path / "home"),
        "CUDA_PATH": str(tmp_path / "nowhere"),
        "PATH": f"{tmp_path / 'path' / 'bin'}:relative/bin:{TOOLS}",
        CUDA_ROOTS_VARIABLE: str(tmp_path / "roots"),
    }
    facts = list(probe.find_nvccs(environ))
    assert [(fact.origin, fact.release, fact.version) for fact in facts] == [
        ("CUDA_HOME", "12.6", "12.6.85"),
        ("CUDA_PATH", "", ""),
        ("PATH", "12.9", "12.9.85"),
        ("folder", "13.0", "13.0.85"),
    ]
    assert facts[1].problem == "there is no such file"
    assert (facts[0].newest_gcc, facts[0].newest_clang) == (13, 18)
    assert facts[0].home == tmp_path / "home"


def test_a_script_on_path_leads_to_the_real_home(tmp_path: Path) -> None:
    home = toolkit(tmp_path / "cuda", "13.0")
    told = NVCC_SAYS.format(release="13.0") + f"#$ TOP={home}/bin/..\n"
    script = program(tmp_path / "bin" / "nvcc", told)
    (fact,) = probe.find_nvccs(hidden(PATH=f"{script.parent}:{TOOLS}"))
    assert fact.home == home
    assert not fact.problem


def test_an_nvcc_without_its_folder_is_not_usable(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "nvcc", NVCC_SAYS.format(release="13.0"))
    (fact,) = probe.find_nvccs(hidden(PATH=f"{tmp_path / 'bin'}:{TOOLS}"))
    assert "cannot be found" in fact.problem


def test_an_nvcc_that_fails_keeps_the_reason(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "nvcc", "cannot load libfoo.so\n", status=127)
    (fact,) = probe.find_nvccs(hidden(PATH=f"{tmp_path / 'bin'}:{TOOLS}"))
    assert "status 127: cannot load libfoo.so" in fact.problem


def test_clang_behind_nvccs_name_is_not_taken_for_nvcc(tmp_path: Path) -> None:
    home = toolkit(tmp_path / "home", "12.6", "Device compiler: clang version 22.1.8\n")
    (fact,) = probe.find_nvccs(hidden(CUDA_HOME=str(home)))
    assert "clang behind nvcc's name" in fact.problem


def test_host_compilers_of_path_newest_last_resort(tmp_path: Path) -> None:
    for name in ("g++", "gcc"):
        program(tmp_path / name, "14.2.0\n")
    for number in (9, 13):
        program(tmp_path / f"g++-{number}", f"{number}.1.0\n")
        program(tmp_path / f"gcc-{number}", f"{number}.1.0\n")
    facts = list(probe.find_hosts({"PATH": f"{tmp_path}"} | {"LD_LIBRARY_PATH": ""}))
    assert [fact.cxx.name for fact in facts] == ["g++", "g++-13", "g++-9"]
    assert [fact.cc.name for fact in facts] == ["gcc", "gcc-13", "gcc-9"]


@pytest.mark.parametrize("variable", ["NVCC_CCBIN", "CUDAHOSTCXX", "CXX"])
def test_a_variable_chooses_the_host_compiler_alone(tmp_path: Path, variable: str) -> None:
    program(tmp_path / "g++-13", "13.1.0\n")
    program(tmp_path / "gcc-13", "13.1.0\n")
    value = f"ccache {tmp_path / 'g++-13'}" if variable == "CXX" else str(tmp_path / "g++-13")
    (fact,) = probe.find_hosts({"PATH": TOOLS, variable: value})
    assert (fact.version, fact.asked_by, fact.problem) == ("13.1.0", variable, "")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("/nowhere/g++", "there is no such program"),
        ("g++ -m32", "its value is more than the name of a compiler"),
        ("'g++", "its value cannot be read"),
    ],
)
def test_a_variable_that_names_no_compiler_is_reported(value: str, problem: str) -> None:
    (fact,) = probe.find_hosts({"PATH": TOOLS, "CXX": value})
    assert fact.problem.startswith(problem)


def test_clangs_are_listed_newest_first(tmp_path: Path) -> None:
    program(tmp_path / "clang++", "Debian clang version 14.0.6\nTarget: x\n")
    program(tmp_path / "clang++-22", "Debian clang version 22.1.8 (1~deb12u1)\nTarget: x\n")
    program(tmp_path / "clang++-23", "what?\n")
    facts = list(probe.find_clangs({"PATH": f"{tmp_path}:{TOOLS}"}))
    mine = [fact for fact in facts if fact.path.parent == tmp_path]
    assert [fact.version for fact in mine] == ["22.1.8", "14.0.6", ""]
    assert mine[0].full_version == "Debian clang version 22.1.8 (1~deb12u1)"
    assert mine[2].problem == "its --version is not clang's"


def test_digests_are_of_content(tmp_path: Path) -> None:
    for home in (tmp_path / "one", tmp_path / "two"):
        toolkit(home, "13.0")
        (home / "include" / "cuda_runtime_api.h").write_text("#define CUDART_VERSION  13000\n")
    first = dict(probe.cuda_digests(tmp_path / "one"))
    assert first == dict(probe.cuda_digests(tmp_path / "two"))
    content = (tmp_path / "one" / "bin" / "nvcc").read_bytes()
    assert first["bin/nvcc"] == hashlib.sha256(content).hexdigest()
    assert first["CUDART_VERSION"] == hashlib.sha256(b"13000").hexdigest()
    (tmp_path / "two" / "bin" / "nvcc").write_bytes(content + b"# other\n")
    assert dict(probe.cuda_digests(tmp_path / "two"))["bin/nvcc"] != first["bin/nvcc"]


# -- Python --------------------------------------------------------------------------------------


def python_that_says(path: Path, **changes: object) -> Path:
    told: dict[str, object] = {
        "implementation": "CPython",
        "version": "3.99",
        "full": "3.99.1",
        "has_venv": True,
        "header": True,
        "include": "/inc",
        "free_threaded": False,
        "flags": "ab" * 32,
    }
    return program(path, json.dumps(told | changes) + "\n")


def test_this_interpreter_is_found_for_its_own_version() -> None:
    search = probe.find_python(HERE)
    assert search.found is not None
    assert search.found.version.startswith(HERE + ".")
    names = (
        "OPT",
        "CFLAGS",
        "CCSHARED",
        "LDSHARED",
        "LDCXXSHARED",
        "LDFLAGS",
        "EXT_SUFFIX",
        "MULTIARCH",
    )
    flags = json.dumps([sysconfig.get_config_var(name) for name in names])
    assert search.found.flags == hashlib.sha256(flags.encode()).hexdigest()
    assert probe.require_python(HERE) == search.found.path


def test_a_refusing_shim_is_passed_over_for_pyenvs_newest(tmp_path: Path) -> None:
    shim = program(tmp_path / "shims" / "python3.99", "pyenv: python3.99: no such version\n", 127)
    for version in ("3.99.2", "3.99.10"):
        python_that_says(tmp_path / "versions" / version / "bin" / "python3.99", full=version)
    environ = {"PATH": f"{shim.parent}:{TOOLS}", "PYENV_ROOT": str(tmp_path)}
    search = probe.find_python("3.99", environ)
    assert search.found is not None
    assert (search.found.version, search.found.origin) == ("3.99.10", "pyenv")
    assert search.rejected[0].path == shim
    assert "no such version" in search.rejected[0].problem


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"implementation": "PyPy"}, "it is PyPy, not CPython"),
        ({"version": "3.9", "full": "3.9.1"}, "it is Python 3.9.1"),
        ({"has_venv": False}, "it has no venv module"),
        ({"header": False}, "there is no Python.h in /inc"),
        ({"free_threaded": True}, "it is a free-threaded build"),
    ],
)
def test_an_unusable_python_is_refused_with_the_reason(
    tmp_path: Path, changes: dict[str, object], problem: str
) -> None:
    python = python_that_says(tmp_path / "python3.99", **changes)
    environ = {"PATH": f"{tmp_path}:{TOOLS}"}
    search = probe.find_python("3.99", environ)
    assert search.found is None
    assert next(fact for fact in search.rejected if fact.path == python).problem.startswith(problem)
    with pytest.raises(ToolchainError, match=r"no usable Python 3\.99") as caught:
        probe.require_python("3.99", environ)
    assert "pyenv install 3.99" in caught.value.next_step
    assert any(problem in line for line in caught.value.details)
