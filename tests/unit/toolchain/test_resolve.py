"""What a cell would use, decided from made-up machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.errors import ConfigError, ToolchainError
from ci.toolchain.model import ClangFact, HostCompilerFact, MachineFacts, NvccFact
from ci.toolchain.resolve import Assemble, UseNvcc, choose


def nvcc(release: str, origin: str = "PATH", problem: str = "", gcc: int = 15) -> NvccFact:
    home = Path("/toolkits") / release
    return NvccFact(
        path=home / "bin" / "nvcc",
        home=home,
        origin=origin,  # type: ignore[arg-type]
        origin_text=origin,
        release=release,
        version=f"{release}.77",
        newest_gcc=gcc,
        newest_clang=20,
        problem=problem,
    )


def gcc(version: str, asked_by: str = "", problem: str = "") -> HostCompilerFact:
    major = version.split(".")[0]
    return HostCompilerFact(
        Path(f"/usr/bin/g++-{major}"),
        Path(f"/usr/bin/gcc-{major}"),
        "gcc",
        version,
        asked_by,
        problem,
    )


def clang(version: str) -> ClangFact:
    return ClangFact(Path(f"/usr/bin/clang++-{version.split('.')[0]}"), version, f"clang {version}")


GCC12 = gcc("12.2.0")


def test_an_installed_nvcc_of_the_cell_is_used() -> None:
    facts = MachineFacts(nvccs=(nvcc("12.6"),), hosts=(GCC12,))
    choice = choose("12.6", "auto", facts)
    assert isinstance(choice, UseNvcc)
    assert (choice.nvcc.version, choice.host) == ("12.6.77", GCC12)


def test_the_first_matching_nvcc_wins_and_others_are_passed_over() -> None:
    facts = MachineFacts(
        nvccs=(
            nvcc("12.9", "CUDA_HOME"),
            nvcc("13.0", "PATH", problem="its --version is not nvcc's"),
            nvcc("13.0", "folder"),
        ),
        hosts=(GCC12,),
    )
    choice = choose("13.0", "nvcc", facts)
    assert isinstance(choice, UseNvcc)
    assert choice.nvcc.origin == "folder"


@pytest.mark.parametrize("installed", ["12.9", "13.1", "13.2", "3.0"])
def test_another_version_is_never_taken_for_the_cell(installed: str) -> None:
    choice = choose("13.0", "auto", MachineFacts(nvccs=(nvcc(installed),), hosts=(GCC12,)))
    assert isinstance(choice, Assemble)
    assert choice.recipe.cuda == "13.0"
    assert choice.clang is None


def test_without_any_nvcc_cuda_13_is_put_together() -> None:
    choice = choose("13.2", "auto", MachineFacts(hosts=(GCC12,)))
    assert isinstance(choice, Assemble)
    assert "nvidia-cuda-nvcc==13.2.86" in choice.recipe.packages()


@pytest.mark.parametrize("cuda", ["12.6", "12.9"])
@pytest.mark.parametrize("compiler", ["auto", "nvcc"])
def test_cuda_12_without_nvcc_is_refused_with_three_ways(cuda: str, compiler: str) -> None:
    facts = MachineFacts(nvccs=(nvcc("13.0"),), hosts=(GCC12,), clangs=(clang("22.1.8"),))
    with pytest.raises(ToolchainError) as caught:
        choose(cuda, compiler, facts)
    error = caught.value
    assert error.exit_code == 3
    for way in (f"(1) install the CUDA {cuda} toolkit", "(2) --compiler clang", "(3) --executor"):
        assert way in error.next_step
    assert "cannot be published" in error.next_step
    assert any("/toolkits/13.0/bin/nvcc" in line and "13.0.77" in line for line in error.details)


def test_a_cuda_without_clang_packages_is_refused_with_two_ways() -> None:
    with pytest.raises(ToolchainError) as caught:
        choose("12.4", "auto", MachineFacts(hosts=(GCC12,)))
    assert "one of these 2 ways" in caught.value.next_step
    assert "clang" not in caught.value.next_step


@pytest.mark.parametrize("cuda", ["12.6", "12.9", "13.0"])
def test_clang_is_used_when_asked_for(cuda: str) -> None:
    facts = MachineFacts(
        nvccs=(nvcc(cuda),), hosts=(GCC12,), clangs=(clang("23.0.0"), clang("22.1.8"))
    )
    choice = choose(cuda, "clang", facts)
    assert isinstance(choice, Assemble)
    assert choice.clang == clang("23.0.0")
    assert choice.recipe.compiler == "clang"


@pytest.mark.parametrize("found", [(), (clang("14.0.6"),), (clang("21.1.7"), clang("19.1.0"))])
def test_an_old_clang_is_refused_with_the_packages_to_install(found: tuple[ClangFact, ...]) -> None:
    with pytest.raises(ToolchainError) as caught:
        choose("12.6", "clang", MachineFacts(hosts=(GCC12,), clangs=found))
    assert caught.value.exit_code == 3
    assert caught.value.next_step == "apt-get install clang-22 clang-tools-22"
    for fact in found:
        assert str(fact.path) in caught.value.cause
        assert fact.version in caught.value.cause


def test_clang_for_a_cuda_that_it_does_not_serve_is_refused() -> None:
    facts = MachineFacts(hosts=(GCC12,), clangs=(clang("22.1.8"),))
    with pytest.raises(ToolchainError, match=r"clang cannot be used for CUDA 13\.2"):
        choose("13.2", "clang", facts)


def test_a_compiler_by_another_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown compiler 'hipcc'"):
        choose("13.0", "hipcc", MachineFacts())


def test_a_too_new_gcc_is_passed_over_for_an_older_one() -> None:
    facts = MachineFacts(nvccs=(nvcc("12.6", gcc=13),), hosts=(gcc("14.2.0"), gcc("13.2.0")))
    assert choose("12.6", "auto", facts).host.version == "13.2.0"


def test_a_gcc_that_a_variable_asks_for_is_never_replaced() -> None:
    hosts = (gcc("14.2.0", asked_by="CXX"), gcc("13.2.0"))
    with pytest.raises(ToolchainError) as caught:
        choose("12.6", "auto", MachineFacts(nvccs=(nvcc("12.6", gcc=13),), hosts=hosts))
    assert "CXX asks for gcc 14.2.0" in caught.value.message
    assert "accepts gcc 13 at most" in caught.value.cause
    assert caught.value.next_step == "unset CXX, or set it to g++-13"


def test_gcc_16_is_too_new_for_the_assembled_nvcc() -> None:
    with pytest.raises(ToolchainError) as caught:
        choose("13.0", "auto", MachineFacts(hosts=(gcc("16.1.0"),)))
    assert caught.value.next_step == "apt-get install g++-15"
    assert "gcc 15 at most" in caught.value.cause


def test_no_host_compiler_at_all_is_refused() -> None:
    with pytest.raises(ToolchainError, match=r"no C\+\+ compiler for CUDA 13\.0"):
        choose("13.0", "auto", MachineFacts())


def test_clang_takes_any_gcc_but_no_clang_as_host() -> None:
    as_host = HostCompilerFact(Path("/b/clang++"), Path("/b/clang"), "clang", "22.1.8")
    facts = MachineFacts(hosts=(as_host, gcc("16.1.0")), clangs=(clang("22.1.8"),))
    assert choose("12.6", "clang", facts).host.version == "16.1.0"


def test_an_installed_nvcc_accepts_the_clang_of_its_own_headers() -> None:
    as_host = HostCompilerFact(Path("/b/clang++"), Path("/b/clang"), "clang", "20.1.0")
    assert choose("13.0", "auto", MachineFacts((nvcc("13.0"),), (as_host,))).host == as_host
    newer = HostCompilerFact(Path("/b/clang++"), Path("/b/clang"), "clang", "21.1.0")
    with pytest.raises(ToolchainError, match=r"no C\+\+ compiler"):
        choose("13.0", "auto", MachineFacts((nvcc("13.0"),), (newer,)))


def test_packages_are_not_put_together_on_another_machine_type() -> None:
    facts = MachineFacts(hosts=(GCC12,), machine="aarch64")
    with pytest.raises(ToolchainError, match="put together on aarch64"):
        choose("13.0", "auto", facts)
