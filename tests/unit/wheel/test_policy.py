from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from ci.errors import ConfigError, FindingError
from ci.wheel.facts import WheelFacts, read_facts
from ci.wheel.policy import (
    bundled,
    cuda_major,
    excludes,
    judge_needs,
    load_policy,
    original_soname,
)
from tests.unit.wheel.wheels import Gcc, write_wheel

# Read from the file lists of NVIDIA's wheels: CUDA 12.9 (…-cu12) and 13.0.
SHIPPED = {
    12: [
        "libcudart.so.12",
        "libcublas.so.12",
        "libcublasLt.so.12",
        "libcufft.so.11",
        "libcurand.so.10",
        "libcusolver.so.11",
        "libcusparse.so.12",
        "libnvrtc.so.12",
        "libnvrtc-builtins.so.12.9",
        "libnvJitLink.so.12",
        "libcupti.so.12",
        "libnvfatbin.so.12",
        "libcufile.so.0",
        "libnccl.so.2",
        "libcudnn.so.9",
        "libcudnn_ops.so.9",
        "libnvshmem_host.so.3",
        "libcusparseLt.so.0",
        "libnvtx3interop.so.1",
    ],
    13: [
        "libcudart.so.13",
        "libcublas.so.13",
        "libcublasLt.so.13",
        "libcufft.so.12",
        "libcurand.so.10",
        "libcusolver.so.12",
        "libcusparse.so.12",
        "libnvrtc.so.13",
        "libnvrtc-builtins.so.13.0",
        "libnvJitLink.so.13",
        "libcupti.so.13",
        "libnvfatbin.so.13",
        "libcufile.so.0",
        "libnccl.so.2",
        "libcudnn.so.9",
        "libcudnn_ops.so.9",
        "libnvshmem_host.so.3",
        "libcusparseLt.so.0",
        "libnvtx3interop.so.1",
    ],
}
FRAMEWORKS = [
    "libpaddle.so",
    "libphi.so",
    "libphi_core.so",
    "libphi_gpu.so",
    "libcommon.so",
    "libtorch.so",
    "libtorch_cpu.so",
    "libtorch_python.so",
    "libc10.so",
    "libc10_cuda.so",
    "libtvm_ffi.so",
]
OTHERS = [
    "libz.so.1",
    "libc.so.6",
    "libstdc++.so.6",
    "libnuma.so.1",
    "libtorch_c_dlpack_addon_torch28-cuda.so",  # torch-c-dlpack-ext
    "libcudnn_frontend_helper.a",
]
DRIVER = ["libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvcuvid.so.1"]


def needing(gcc: Gcc, folder: Path, *sonames: str) -> WheelFacts:
    library = gcc.shared("libops.so", needs=[gcc.fake(name) for name in sonames])
    return read_facts(write_wheel(folder, {"paddlefleet_ops/libops.so": library.read_bytes()}))


@pytest.mark.parametrize("major", [12, 13])
def test_every_library_of_a_cuda_release_is_kept_outside_and_fits_it(major: int) -> None:
    policy = load_policy()
    for soname in SHIPPED[major]:
        kept = policy.find(soname)
        assert kept is not None, soname
        assert kept.fits(soname, major), soname


@pytest.mark.parametrize("major", [12, 13])
def test_what_only_the_other_cuda_ships_does_not_fit(major: int) -> None:
    policy = load_policy()
    foreign = set(SHIPPED[25 - major]) - set(SHIPPED[major])
    assert len(foreign) >= 9
    for soname in foreign:
        kept = policy.find(soname)
        assert kept is not None
        assert not kept.fits(soname, major), soname


@pytest.mark.parametrize("soname", FRAMEWORKS + DRIVER)
def test_frameworks_and_the_driver_are_kept_outside_of_every_cuda(soname: str) -> None:
    kept = load_policy().find(soname)
    assert kept is not None
    assert kept.fits(soname, 12)
    assert kept.fits(soname, 13)


@pytest.mark.parametrize("soname", OTHERS)
def test_other_libraries_are_not_of_the_policy(soname: str) -> None:
    assert load_policy().find(soname) is None


def test_names_in_the_policy_belong_to_one_library() -> None:
    policy = load_policy()
    for kept in policy.libraries:
        for names in kept.cuda.values():
            for name in names:
                assert [k.name for k in policy.libraries if k.match(name)] == [kept.name], name


def test_excludes_are_derived_from_what_the_wheel_needs(gcc: Gcc, tmp_path: Path) -> None:
    facts = needing(gcc, tmp_path, "libcudart.so.13", "libpaddle.so", "libnuma.so.1")
    found = excludes(facts, 13, ("libnuma.so.*",))
    assert {e.pattern: e.matched for e in found} == {
        "libcudart.so*": ("libcudart.so.13",),
        "libpaddle.so*": ("libpaddle.so",),
        "libnuma.so.*": ("libnuma.so.1",),
    }
    assert all(e.why for e in found)


def test_a_wheel_that_needs_nothing_excludes_nothing(gcc: Gcc, tmp_path: Path) -> None:
    assert excludes(needing(gcc, tmp_path), 13, ()) == ()


def test_cuda_12_run_time_in_a_cuda_13_wheel_is_a_finding(gcc: Gcc, tmp_path: Path) -> None:
    facts = needing(gcc, tmp_path, "libcudart.so.12")
    with pytest.raises(FindingError) as caught:
        excludes(facts, 13, ())
    assert "needs libcudart.so.12 of CUDA 12, and the wheel is for CUDA 13" in str(
        caught.value.details
    )
    assert excludes(facts, 12, ())[0].matched == ("libcudart.so.12",)


def test_a_declared_exclude_that_matches_nothing_is_a_finding(gcc: Gcc, tmp_path: Path) -> None:
    facts = needing(gcc, tmp_path, "libcudart.so.13")
    with pytest.raises(FindingError) as caught:
        excludes(facts, 13, ("libcudart.so.13", "libibverb.so.*"))
    assert len(caught.value.details) == 1
    assert caught.value.details[0].startswith("stale-exclude: libibverb.so.*")


def test_what_is_left_over_is_reported_with_its_users(gcc: Gcc, tmp_path: Path) -> None:
    facts = needing(gcc, tmp_path, "libcudart.so.13", "libnuma.so.1")
    needs = judge_needs(facts, 13, (), load_policy(), allowed=frozenset({"libc.so.6"}))
    assert needs.outside == {"libnuma.so.1": ("paddlefleet_ops/libops.so",)}


def test_a_need_of_a_grafted_library_is_excluded_too(gcc: Gcc, tmp_path: Path) -> None:
    facts = needing(gcc, tmp_path, "libnuma.so.1")
    needs = judge_needs(
        facts, 13, (), load_policy(), grafted_needs={"libcuda.so.1": ("libnuma.so.1",)}
    )
    assert [e.pattern for e in needs.excludes] == ["libcuda.so*"]


@pytest.mark.parametrize(
    ("name", "soname"),
    [
        ("libcudart-1a2b3c4d.so.12", "libcudart.so.12"),
        ("libcudart-1a2b3c4d.so.12.9.79", "libcudart.so.12.9.79"),
        ("libz.so.1", "libz.so.1"),
        ("libnvidia-ml.so.1", "libnvidia-ml.so.1"),
    ],
)
def test_original_soname_of_a_grafted_name(name: str, soname: str) -> None:
    assert original_soname(name) == soname


@pytest.mark.parametrize("name", ["libcudart.so.12", "libcudart-1a2b3c4d.so.12", "libpaddle.so"])
def test_a_library_of_the_policy_inside_the_wheel_is_found(
    gcc: Gcc, tmp_path: Path, name: str
) -> None:
    data = gcc.fake("libinnocent.so").read_bytes()
    facts = read_facts(write_wheel(tmp_path, {f"paddlefleet_ops.libs/{name}": data}))
    assert [path for path, _ in bundled(facts, load_policy())] == [f"paddlefleet_ops.libs/{name}"]


def test_a_renamed_library_is_found_by_its_soname(gcc: Gcc, tmp_path: Path) -> None:
    data = gcc.fake("libcudart.so.13").read_bytes()
    facts = read_facts(write_wheel(tmp_path, {"paddlefleet_ops/runtime.so": data}))
    assert [kept.name for _, kept in bundled(facts, load_policy())] == ["cudart"]


@pytest.mark.parametrize(("text", "major"), [("13.0", 13), ("12.6", 12)])
def test_cuda_major(text: str, major: int) -> None:
    assert cuda_major(text) == major


@pytest.mark.parametrize("text", ["cu130", "13", "", "13.0.1"])
def test_what_is_no_cuda_version_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a CUDA version"):
        cuda_major(text)


def test_all_problems_of_a_policy_file_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(
        '[[library]]\nname = "a"\npattern = ["x"]\ncuda.twelve = ["y"]\n[[ignored_check]]\ncode = "W1"\n'
        "[other]\n",
        "utf-8",
    )
    with pytest.raises(ConfigError) as caught:
        load_policy(path)
    text = "\n".join(caught.value.details)
    for part in ("unknown table 'other'", "'pattern'", "patterns is missing", "'twelve'", "W1"):
        assert part in text


def test_patterns_are_matched_as_auditwheel_matches_them() -> None:
    assert fnmatchcase("libcudart.so.13", "libcudart.so*")
    assert "from fnmatch import fnmatch" in _lddtree_source()


def _lddtree_source() -> str:
    import auditwheel.lddtree

    return Path(auditwheel.lddtree.__file__).read_text("utf-8")
