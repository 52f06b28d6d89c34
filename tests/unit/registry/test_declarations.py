"""What a declaration must not say, and that the declared libraries say what PaddleFleet's table says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from ci.registry import REPOSITORY, EcosystemLibrary, Target, build_utils

Artifact = build_utils.Artifact


def problems_of(*libraries: EcosystemLibrary) -> tuple[str, ...]:
    with pytest.raises(build_utils.RegistryError) as refused:
        build_utils.check_registry(libraries)
    problems: tuple[str, ...] = refused.value.problems
    return problems


# --- contradictions -------------------------------------------------------------------------------


def test_valid_declarations_pass(make_library: Any) -> None:
    build_utils.check_registry([make_library("alpha"), make_library("beta")])


def test_two_libraries_with_one_target_are_refused_and_both_are_named(make_library: Any) -> None:
    one = make_library("one", module="shared", availability_name="one")
    two = make_library("two", module="shared", availability_name="two")
    assert problems_of(one, two) == ("target 'shared' is declared by one and two",)


@pytest.mark.parametrize("spelling", ["alpha/", "./alpha", "alpha//."])
def test_one_target_in_two_spellings_is_one_target(make_library: Any, spelling: str) -> None:
    other = make_library(
        "other",
        artifacts=(Artifact("other", "other"), Artifact("more", spelling)),
    )
    assert problems_of(make_library("alpha"), other) == (
        "target 'alpha' is declared by alpha and other",
    )


def test_a_target_inside_another_is_refused(make_library: Any) -> None:
    other = make_library(
        "other", artifacts=(Artifact("other", "other"), Artifact("more", "alpha/kernels/more"))
    )
    (problem,) = problems_of(make_library("alpha"), other)
    assert "'alpha' of alpha" in problem
    assert "'alpha/kernels/more' of other lie one inside the other" in problem


def test_two_targets_that_give_one_import_name_are_refused(make_library: Any) -> None:
    other = make_library(
        "other", artifacts=(Artifact("other", "other"), Artifact("alpha.so", "alpha.so"))
    )
    (problem,) = problems_of(make_library("alpha"), other)
    assert "one import name, 'alpha'" in problem


def test_one_target_twice_in_one_library_is_refused(make_library: Any) -> None:
    library = make_library(artifacts=(Artifact("alpha", "alpha"), Artifact("other", "alpha")))
    assert problems_of(library) == ("target 'alpha' is declared by alpha and alpha",)


def test_two_libraries_with_one_name_are_refused(make_library: Any) -> None:
    assert "library 'alpha' is declared by alpha and alpha" in problems_of(
        make_library(), make_library(module="other")
    )


def test_two_libraries_with_one_availability_function_are_refused(make_library: Any) -> None:
    one, two = make_library("one"), make_library("two", availability_name="one")
    assert problems_of(one, two) == ("availability function 'one' is declared by one and two",)


@pytest.mark.parametrize(
    "path", ["", ".", "..", "../alpha", "alpha/../../x", "/alpha", "/", "alpha/.."]
)
@pytest.mark.parametrize("role", ["source", "target"])
def test_a_path_that_leaves_its_folder_is_refused(make_library: Any, role: str, path: str) -> None:
    artifact = Artifact(path, "more") if role == "source" else Artifact("more", path)
    library = make_library(artifacts=(Artifact("alpha", "alpha"), artifact))
    assert any(
        f"alpha: artifact {role} {path!r} is outside its folder" in problem
        for problem in problems_of(library)
    )


@pytest.mark.parametrize("target", ["_loader.py", "_loader", "__init__.py", "_requires/deep"])
def test_a_target_that_hides_a_file_of_the_package_is_refused(
    make_library: Any, target: str
) -> None:
    library = make_library(artifacts=(Artifact("alpha", "alpha"), Artifact("x", target)))
    (problem,) = problems_of(library)
    assert f"target {target!r} hides the package's own" in problem


def test_what_an_earlier_build_left_in_the_package_is_no_contradiction(
    make_library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "single.py").write_text("x = 1\n")
    monkeypatch.setattr(build_utils, "PACKAGE_SOURCE", tmp_path)
    build_utils.check_registry(
        [make_library("single", artifacts=(Artifact("single.py", "single.py"),))]
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"public_names": ()}, "no public name is declared"),
        ({"artifacts": ()}, "no artifact is declared"),
        ({"artifacts": (Artifact("x", "other"),)}, "no artifact gives its module 'alpha'"),
        ({"compat_scope": ()}, "compat scope does not hold its module 'alpha'"),
        ({"compat_scope": ("triton",)}, "compat scope does not hold its module 'alpha'"),
        ({"pin": "e9949fe"}, "pin 'e9949fe' is not a full commit"),
        ({"pin": "E" * 40}, "is not a full commit"),
        ({"pin": "main"}, "pin 'main' is not a full commit"),
        ({"pin": ""}, "pin '' is not a full commit"),
        ({"pin": "a" * 40 + "\n"}, "is not a full commit"),
    ],
)
def test_an_incomplete_declaration_is_refused(
    make_library: Any, changes: dict[str, Any], words: str
) -> None:
    assert any(
        problem.startswith("alpha: ") and words in problem
        for problem in problems_of(make_library(**changes))
    )


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "-x", "a b", "a\n"])
def test_a_name_that_could_not_name_a_folder_is_refused(make_library: Any, name: str) -> None:
    library = make_library("alpha", module="alpha")
    renamed = build_utils.EcosystemLibrary(**{**vars(library), "name": name})
    assert any(f"library name {name!r}" in problem for problem in problems_of(renamed))


def test_every_problem_of_every_library_is_told(make_library: Any) -> None:
    problems = problems_of(
        make_library("one", public_names=(), pin="x"), make_library("two", compat_scope=())
    )
    assert len(problems) == 3
    assert {problem.split(":")[0] for problem in problems} == {"one", "two"}


def test_a_set_that_is_none_is_refused_with_those_that_are() -> None:
    with pytest.raises(build_utils.RegistryError, match="'fleets'; there are: fleet, templates"):
        build_utils.get_libs("fleets")


# --- derived values -------------------------------------------------------------------------------


def test_modules_are_all_import_names_its_own_first(make_library: Any) -> None:
    library = make_library(
        "ep",
        module="hybrid_ep",
        artifacts=(
            Artifact("z.so", "a_cpp.cpython-312-x86_64-linux-gnu.so"),
            Artifact("x", "hybrid_ep"),
            Artifact("y", "extra/below"),
        ),
        compat_scope=("hybrid_ep",),
    )
    assert library.modules == ("hybrid_ep", "a_cpp", "extra")


def test_the_availability_is_the_module_unless_declared(make_library: Any) -> None:
    assert make_library("x-y").availability == "x_y"
    assert make_library("x-y", availability_name="xy").availability == "xy"


@pytest.mark.parametrize(
    ("cuda", "requirement"),
    [
        ("12.6", "nvidia-nvshmem-cu12"),
        ("12.9", "paddle-nvidia-nvshmem-cu12"),
        ("13.0", "paddle-nvidia-nvshmem-cu13"),
        ("13.2", "nvidia-nvshmem-cu13"),
    ],
)
def test_nvshmem_is_the_package_of_the_cuda_major(cuda: str, requirement: str) -> None:
    target = Target(cuda, "3.12", ("9.0",))
    values = build_utils.requirements(("pybind11>=2.13", build_utils.nvshmem), target)
    assert [Requirement(text).name for text in values] == ["pybind11", requirement]


# --- the declared libraries, against PaddleFleet's get_libs() --------------------------------------

# name: (artifacts as source -> target, include folders); rows of PaddleFleet's build_utils.py.
TABLE = {
    "DeepGEMM": (
        {"deep_gemm": "deep_gemm", "deep_gemm_cpp": "deep_gemm_cpp"},
        ("deep_gemm/include", "third-party/cutlass/include", "third-party/fmt/include"),
    ),
    "DeepEP": ({"deep_ep": "deep_ep", "deep_ep_cpp.so": "deep_ep_cpp.so"}, ("csrc",)),
    "flash-attention": ({"flash_mask": "flash_mask"}, ()),
    "FlashMLA": ({"flash_mla": "flash_mla"}, ()),
    "HybridEP": ({"deep_ep": "hybrid_ep", "hybrid_ep_cpp.so": "hybrid_ep_cpp.so"}, ()),
    "quack": ({"quack": "quack"}, ()),
    "sonic-moe": ({"sonicmoe": "sonicmoe"}, ()),
    "cudnn-frontend": ({"cudnn": "cudnn"}, ()),
    "flash-linear-attention": ({"fla": "fla"}, ()),
    "fast-hadamard-transform": None,
    "MoonEP": None,
}
FLEET = {library.name: library for library in build_utils.get_libs("fleet")}
CU126 = Target("12.6", "3.12", ("8.0", "9.0"))
CU129 = Target("12.9", "3.12", ("8.0", "9.0", "10.0", "10.3"))
CU130 = Target("13.0", "3.12", ("8.0", "9.0", "10.0", "10.3"))


def test_the_fleet_is_that_of_paddlefleet_and_of_the_guide() -> None:
    assert set(FLEET) == set(TABLE)


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row])
def test_artifacts_and_include_folders_are_those_of_the_table(name: str) -> None:
    row = TABLE[name]
    assert row is not None
    artifacts, include = row
    assert {item.source: item.target for item in FLEET[name].artifacts} == artifacts
    assert FLEET[name].include_dirs == include


@pytest.mark.parametrize("library_set", build_utils.library_sets())
def test_every_declared_library_passes_the_check(library_set: str) -> None:
    build_utils.check_registry(build_utils.get_libs(library_set))


def test_all_sets_together_pass_the_check() -> None:
    build_utils.check_registry(build_utils.all_libs())


@pytest.mark.parametrize(
    ("target", "sm90", "sm100"),
    [
        (CU126, "False", "True"),  # PaddleFleet: DISABLE_SM100 = str(CUDA <= 12.8)
        (Target("12.8", "3.12", ("9.0", "10.0")), "False", "True"),
        (CU129, "False", "False"),
        (CU130, "False", "False"),
        (Target("12.9", "3.12", ("9.0a",)), "False", "True"),  # nothing to compile SM100 for
        (Target("13.0", "3.12", ("10.0a", "10.3a")), "True", "False"),
    ],
)
def test_flash_mla_leaves_out_the_kernels_that_cell_and_cuda_cannot_have(
    target: Target, sm90: str, sm100: str
) -> None:
    assert FLEET["FlashMLA"].build_env(target) == {
        "PADDLE_CUDA_ARCH_LIST": "",
        "FLASH_MLA_DISABLE_SM90": sm90,
        "FLASH_MLA_DISABLE_SM100": sm100,
    }


@pytest.mark.parametrize("name", ["DeepEP", "MoonEP", "HybridEP"])
def test_communication_libraries_are_compiled_for_hopper_and_newer(name: str) -> None:
    assert FLEET[name].build_env(CU130)["PADDLE_CUDA_ARCH_LIST"] == "9.0;10.0;10.3"
    assert FLEET[name].build_env(CU126)["PADDLE_CUDA_ARCH_LIST"] == "9.0"


def test_hybrid_ep_is_built_for_several_nodes_and_without_deep_ep() -> None:
    environment = FLEET["HybridEP"].build_env(CU129)
    assert environment["HYBRID_EP_MULTINODE"] == "1"
    assert environment["HYBRID_EP_SKIP_DEEP_EP"] == "1"


def test_flash_attention_builds_its_fourth_generation() -> None:
    assert FLEET["flash-attention"].build_env(CU130) == {"FLASHMASK_BUILD": "fa4"}


def left_out_of(target: Target) -> set[str]:
    selection = build_utils.select_libs(tuple(FLEET.values()), target)
    return {item.library.name for item in selection.left_out}


def test_the_gates_of_the_table_hold() -> None:
    assert left_out_of(CU130) == set()
    assert left_out_of(CU129) == set()
    assert left_out_of(CU126) == {"HybridEP", "sonic-moe", "flash-attention"}
    old = Target("13.0", "3.11", CU130.capabilities)
    assert left_out_of(old) == {"quack", "sonic-moe", "cudnn-frontend"}


@pytest.mark.parametrize("library", build_utils.all_libs(), ids=lambda item: item.name)
def test_every_declaration_can_be_acted_on(library: EcosystemLibrary) -> None:
    for target in (CU126, CU129, CU130):
        for text in build_utils.requirements(
            (*library.build_requires, *library.run_requires), target
        ):
            assert Requirement(text).name
        assert all(isinstance(value, str) for value in library.build_env(target).values())
    assert f"is_{library.availability}_available()" in library.hint
    assert library.availability.isidentifier()
    assert library.module.isidentifier()
    for name in library.public_names:
        assert re.fullmatch(r"(?:[a-zA-Z_][\w.]*:)?[a-zA-Z_]\w*", name), name
    assert set(library.depends_on) <= {
        other.name for other in build_utils.get_libs(library.library_set)
    }


@pytest.mark.parametrize("library", build_utils.all_libs(), ids=lambda item: item.name)
def test_every_hook_of_a_declaration_exists(library: EcosystemLibrary) -> None:
    text = (build_utils.PACKAGE_ROOT / "build_hooks.py").read_text("utf-8")
    for name in (*library.hooks_before_build, *library.hooks_after_collect):
        assert f"\ndef {name}(" in text


@pytest.mark.parametrize("library", build_utils.get_libs("fleet"), ids=lambda item: item.name)
def test_a_library_of_the_fleet_is_a_submodule_of_an_owner_of_paddle(
    library: EcosystemLibrary,
) -> None:
    assert library.is_submodule
    assert re.fullmatch(r"https://github\.com/(PFCCLab|PaddlePaddle)/[\w.-]+\.git", library.url), (
        library.url
    )


@pytest.mark.parametrize("library", build_utils.get_libs("templates"), ids=lambda item: item.name)
def test_a_template_is_a_project_of_this_repository(library: EcosystemLibrary) -> None:
    assert not library.is_submodule
    assert library.source_dir.parent == REPOSITORY / "packages" / "templates"
    assert (library.source_dir / "pyproject.toml").exists()


def test_the_four_templates_are_of_the_four_kinds() -> None:
    kinds = [library.kind for library in build_utils.get_libs("templates")]
    assert sorted(kinds) == ["cuda_extension", "ep_comm", "header_only", "python_dsl"]
