"""How a home is put together: only complete ones are seen, and errors tell what to do."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.errors import InfrastructureError, ToolchainError
from ci.toolchain import assemble, clang, probe, stubs
from ci.toolchain.model import ClangFact, HostCompilerFact
from ci.toolchain.recipes import Recipe, find_recipe
from ci.toolchain.resolve import Assemble

HOST = HostCompilerFact(Path("/usr/bin/g++"), Path("/usr/bin/gcc"), "gcc", "12.2.0")
CLANG = ClangFact(Path("/usr/bin/clang++-22"), "22.1.8", "Debian clang version 22.1.8 (1)")
ENVIRON = {"PATH": "/usr/bin:/bin"}


def wanted(cuda: str = "13.0", compiler: str = "nvcc") -> Assemble:
    recipe = find_recipe(cuda, compiler)  # type: ignore[arg-type]
    assert recipe is not None
    return Assemble(recipe, HOST, CLANG if compiler == "clang" else None)


def install_small(recipe: Recipe, site: Path, cache_dir: Path, environ: Mapping[str, str]) -> None:
    """Lay the files of the packages down, small ones, as the installer does."""
    home = site / "nvidia" / "cu13"
    for name in ("bin/nvcc", "bin/ptxas", "bin/fatbinary", "lib/libcudart.so.13"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    (home / "include").mkdir()
    (home / "include" / "cuda_runtime.h").touch()
    (home / "include" / "cuda.h").write_text("typedef int CUresult;\nCUresult cuInit(int);\n")
    (site / "nvidia_cuda_nvcc-13.0.88.dist-info").mkdir()


def proven(choice: Assemble, home: Path, folder: Path, environ: Mapping[str, str]) -> str:
    folder.mkdir()
    return "13.0.88"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages of a few bytes in place of the network, and no compilation."""
    monkeypatch.setattr(assemble, "install", install_small)
    monkeypatch.setattr(assemble, "prove", proven)


def made(cache: Path, said: list[str] | None = None) -> assemble.Assembled:
    told = [] if said is None else said
    return assemble.assemble(wanted(), cache, environ=ENVIRON, progress=told.append)


@pytest.mark.usefixtures("small")
def test_a_home_is_completed_and_kept(tmp_path: Path) -> None:
    said: list[str] = []
    first = made(tmp_path, said)
    assert first.version == "13.0.88"
    assert "fetching 5 packages" in said[0]
    home = first.home
    assert home.is_relative_to(tmp_path)
    assert (home / "lib64").readlink() == Path("lib")
    assert (home / "lib" / "libcudart.so").readlink() == Path("libcudart.so.13")
    assert (home / "targets/x86_64-linux/include/cuda.h").is_file()
    assert (home / "targets/x86_64-linux/lib/libcudart.so").is_file()
    packages = home.parent / "packages"
    assert [path.name for path in packages.iterdir()] == ["nvidia_cuda_nvcc-13.0.88.dist-info"]
    again: list[str] = []
    assert made(tmp_path, again) == first
    assert again == []


@pytest.mark.usefixtures("small")
def test_only_the_home_and_its_lock_are_left(tmp_path: Path) -> None:
    place = made(tmp_path).home.parent
    left = sorted(path.name for path in (tmp_path / "toolchains").iterdir())
    assert left in ([place.name], [place.name, f"{place.name}.lock"])


@pytest.mark.usefixtures("small")
def test_a_home_that_does_not_compile_is_never_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(choice: Assemble, home: Path, folder: Path, environ: Mapping[str, str]) -> str:
        raise ToolchainError("nvcc failed")

    monkeypatch.setattr(assemble, "prove", fails)
    with pytest.raises(ToolchainError, match="nvcc failed"):
        made(tmp_path)
    assert [path.name for path in (tmp_path / "toolchains").iterdir() if path.is_dir()] == []
    monkeypatch.setattr(assemble, "prove", proven)
    assert made(tmp_path).version == "13.0.88"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("damage", ["record", "compiler", "json"])
def test_a_damaged_home_is_made_again(tmp_path: Path, damage: str) -> None:
    place = made(tmp_path).home.parent
    if damage == "record":
        (place / assemble.RECORD).unlink()
    elif damage == "compiler":
        (place / "cuda" / "bin" / "nvcc").unlink()
    else:
        (place / assemble.RECORD).write_text('{"version":')
    assert assemble.read_record(place) is None
    said: list[str] = []
    made(tmp_path, said)
    assert said
    assert assemble.read_record(place) is not None


@pytest.mark.usefixtures("small")
def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    place = assemble.place_of(wanted(), tmp_path)
    left = place.parent / f".{place.name}.killed"
    (left / "cuda").mkdir(parents=True)
    made(tmp_path)
    assert not left.exists()


@pytest.mark.usefixtures("small")
def test_a_cache_that_cannot_be_written_is_infrastructure(tmp_path: Path) -> None:
    (tmp_path / "toolchains").write_text("a file where the folder should be")
    with pytest.raises(InfrastructureError, match="cannot write the toolchain") as caught:
        made(tmp_path)
    assert caught.value.exit_code == 4


def test_the_name_of_a_home_holds_all_that_it_is_made_from() -> None:
    base = wanted("12.6", "clang")
    assert base.clang is not None
    newer = dataclasses.replace(base.clang, full_version="Debian clang version 22.1.9 (1)")
    others = [wanted("12.9", "clang"), dataclasses.replace(base, clang=newer), wanted()]
    keys = [assemble.home_key(choice) for choice in (base, *others)]
    assert len(set(keys)) == len(keys)
    assert keys[0].startswith("cuda-12.6-clang-")
    other_host = dataclasses.replace(HOST, version="13.1.0", cxx=Path("/usr/bin/g++-13"))
    assert assemble.home_key(dataclasses.replace(base, host=other_host)) == keys[0]


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        ("error: Failed to fetch: `X`\n Caused by: error sending request", "cannot be reached"),
        ("error: Hash mismatch for `nvidia-nvvm`", "hash is not in the lock"),
        ("error: something else", "last lines of uv"),
    ],
)
def test_a_failed_installation_says_why(tmp_path: Path, output: str, cause: str) -> None:
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\nexit 2\n")
    uv.chmod(0o755)
    recipe = wanted().recipe
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "find_uv", lambda environ: uv)
        with pytest.raises(InfrastructureError) as caught:
            assemble.install(recipe, tmp_path / "site", tmp_path, ENVIRON)
    assert cause in caught.value.cause
    assert caught.value.next_step
    assert caught.value.details[-1] in output


def test_without_uv_the_next_step_is_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "find_uv", lambda environ: None)
    with pytest.raises(ToolchainError, match="uv is not installed") as caught:
        assemble.install(wanted().recipe, tmp_path / "site", tmp_path, ENVIRON)
    assert caught.value.next_step.endswith("-m pip install uv")


def test_the_drivers_names_are_those_after_the_preprocessor() -> None:
    text = (
        "typedef int CUresult; CUresult cuInit(unsigned f);\nextern CUresult\n cuMemAlloc_v2 (int);"
    )
    assert stubs.driver_functions(text) == ("cuInit", "cuMemAlloc_v2")


def test_the_drivers_stub_links_and_has_the_drivers_name(tmp_path: Path) -> None:
    (tmp_path / "cuda.h").write_text(
        "typedef int CUresult;\n#define cuMemFree cuMemFree_v2\nCUresult cuMemFree(void *);\n"
    )
    stub = stubs.make_driver_stub(tmp_path / "stubs", tmp_path, HOST.cc, ENVIRON)
    assert [path.name for path in stub.parent.iterdir()] == ["libcuda.so"]
    main = tmp_path / "main.c"
    main.write_text("int cuMemFree_v2(void); int main(void) { return cuMemFree_v2(); }\n")
    program = tmp_path / "main"
    subprocess.run(["gcc", str(main), f"-L{stub.parent}", "-lcuda", "-o", str(program)], check=True)
    dynamic = subprocess.run(
        ["readelf", "-d", str(program)], check=True, capture_output=True, text=True
    )
    assert "[libcuda.so.1]" in dynamic.stdout
    (stub.parent / "libcuda.so.1").symlink_to("libcuda.so")
    ran = subprocess.run([str(program)], env={"LD_LIBRARY_PATH": str(stub.parent)}, check=False)
    assert ran.returncode == stubs.STUB_LIBRARY


# -- clang's home --------------------------------------------------------------------------------


def test_the_launcher_survives_moves_links_and_an_empty_environment(tmp_path: Path) -> None:
    home = tmp_path / "first"
    home.mkdir()
    (home / "nvcc_clang.py").write_text("import sys; print(sys.argv[1:], sys.flags.isolated)\n")
    (home / "nvcc").write_text(clang.launcher(os.path.realpath("/usr/bin/python3")))
    (home / "nvcc").chmod(0o755)
    home = home.rename(tmp_path / "with space")
    (tmp_path / "link").symlink_to(home / "nvcc")
    for path in (home / "nvcc", tmp_path / "link"):
        ran = subprocess.run(
            [str(path), "a b", "c"], env=ENVIRON, capture_output=True, text=True, check=True
        )
        assert ran.stdout == "['a b', 'c'] 1\n"


def test_the_launcher_takes_another_python_when_its_own_is_gone(tmp_path: Path) -> None:
    (tmp_path / "nvcc_clang.py").write_text("print('ran')\n")
    (tmp_path / "nvcc").write_text(clang.launcher("/nowhere/python3"))
    (tmp_path / "nvcc").chmod(0o755)
    command = ["/bin/sh", str(tmp_path / "nvcc")]
    ran = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, check=True)
    assert ran.stdout == "ran\n"
    empty = {"PATH": str(tmp_path)}
    failed = subprocess.run(command, env=empty, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "/nowhere/python3 is gone" in failed.stderr


def test_a_home_for_clang_is_laid_out_from_the_packages(tmp_path: Path) -> None:
    packages = tmp_path / "nvidia"
    for name in (
        "cuda_runtime/include/cuda.h",
        "cuda_runtime/include/__init__.py",
        "cuda_runtime/lib/libcudart.so.12",
        "cuda_cccl/include/cub/cub.cuh",
        "curand/include/curand_mtgp32_kernel.h",
        "curand/lib/libcurand.so.10",
        "cuda_nvcc/include/crt/host_config.h",
        "cuda_nvcc/nvvm/libdevice/libdevice.10.bc",
        "cuda_nvcc/bin/ptxas",
        "cu13/bin/fatbinary",
        "cu13/bin/nvcc",
    ):
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).touch()
    home = tmp_path / "home"
    clang.lay_out("12.6", packages, home)
    files = sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())
    assert files == [
        "bin/fatbinary",
        "bin/ptxas",
        "include/crt/host_config.h",
        "include/cub/cub.cuh",
        "include/cuda.h",
        "include/curand_mtgp32_kernel.h",
        "lib/libcudart.so.12",
        "nvvm/libdevice/libdevice.10.bc",
    ]


@pytest.mark.parametrize(
    ("cuda", "version"), [("12.6", "12.6.85"), ("12.9", "12.9.86"), ("13.0", "13.0.88")]
)
def test_the_version_is_that_of_the_cudas_own_ptxas(cuda: str, version: str) -> None:
    assert clang.compiler_version(wanted(cuda, "clang").recipe) == version


def test_the_record_is_readable(tmp_path: Path, small: None) -> None:
    place = made(tmp_path).home.parent
    record = json.loads((place / assemble.RECORD).read_text())
    assert "nvidia-cuda-nvcc==13.0.88" in record["packages"]
    assert str(tmp_path) not in json.dumps(record)
