from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from ci.errors import ToolchainError
from ci.wheel import verify as verify_module
from ci.wheel.facts import read_facts
from ci.wheel.policy import load_policy
from ci.wheel.repair import repair
from ci.wheel.verify import shown_platform, verify
from tests.unit.wheel.wheels import PYTHON_TAG, Gcc, write_wheel


def rules(wheel: Path, folder: Path, *, excluded: tuple[str, ...] = ()) -> list[str]:
    return [f.rule for f in verify(wheel, log=folder / "verify.log", excluded=excluded)]


def repaired(raw: Path, folder: Path, excludes: tuple[str, ...] = ()) -> Path:
    return repair(
        raw,
        folder / "out",
        python_tag=PYTHON_TAG,
        cuda="13.0",
        declared_excludes=excludes,
        log=folder / "repair.log",
    ).path


def test_a_repaired_pure_wheel_passes(tmp_path: Path) -> None:
    wheel = repaired(write_wheel(tmp_path, {"paddlefleet_ops/a.py": b"x = 1\n"}), tmp_path)
    assert rules(wheel, tmp_path) == []
    log = (tmp_path / "verify.log").read_text("utf-8")
    for tool in ("twine check --strict", "check_wheel_contents", "auditwheel show"):
        assert tool in log


def test_a_repaired_wheel_that_leaves_cuda_outside_and_grafts_passes(
    gcc: Gcc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = [gcc.fake("libcudart.so.13"), gcc.fake("libwidget.so.1", "int w(void) {return 1;}")]
    library = gcc.shared("libops.so", needs=needs).read_bytes()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(gcc.outside))
    wheel = repaired(write_wheel(tmp_path, {"paddlefleet_ops/libops.so": library}), tmp_path)
    assert rules(wheel, tmp_path) == []
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert rules(wheel, tmp_path) == []


def test_a_declared_exclude_has_to_be_told(gcc: Gcc, tmp_path: Path) -> None:
    library = gcc.shared("libops.so", needs=[gcc.fake("libwidget.so.1")]).read_bytes()
    raw = write_wheel(tmp_path, {"paddlefleet_ops/libops.so": library})
    wheel = repaired(raw, tmp_path, ("libwidget.so.1",))
    assert rules(wheel, tmp_path, excluded=("libwidget.so.1",)) == []
    assert rules(wheel, tmp_path) == ["platform-tag"]


def test_a_wheel_without_readme_fails_twine(tmp_path: Path) -> None:
    wheel = repaired(write_wheel(tmp_path, {}, readme=""), tmp_path)
    [finding] = verify(wheel, log=tmp_path / "verify.log")
    assert finding.rule == "twine"
    assert "`long_description` missing" in finding.why
    assert "[33m" not in finding.why


def test_bytecode_in_the_wheel_is_a_finding_with_its_place(tmp_path: Path) -> None:
    raw = write_wheel(tmp_path, {"paddlefleet_ops/__pycache__/a.cpython-312.pyc": b"x"})
    [finding] = verify(repaired(raw, tmp_path), log=tmp_path / "verify.log")
    assert (finding.rule, finding.place) == (
        "W001",
        "paddlefleet_ops/__pycache__/a.cpython-312.pyc",
    )


def test_a_module_beside_the_package_is_a_finding(tmp_path: Path) -> None:
    raw = write_wheel(tmp_path, {"stray.txt": b"x"})
    assert rules(repaired(raw, tmp_path), tmp_path) == ["W003", "W009"]


def test_a_common_name_at_the_top_is_a_finding(tmp_path: Path) -> None:
    raw = write_wheel(tmp_path, {"tests/__init__.py": b"x = 1\n"})
    assert "W005" in rules(repaired(raw, tmp_path), tmp_path)


def test_a_second_package_beside_the_package_is_a_finding(tmp_path: Path) -> None:
    raw = write_wheel(tmp_path, {"quack/__init__.py": b"x = 1\n"})
    [finding] = verify(repaired(raw, tmp_path), log=tmp_path / "verify.log")
    assert (finding.rule, finding.place) == ("W009", "quack/")


def test_a_grafted_library_without_a_version_and_one_loaded_by_path_pass(
    gcc: Gcc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = gcc.shared("libops.so", needs=[gcc.fake("libwidget.so")]).read_bytes()
    files = {"paddlefleet_ops/moe/libops-cu13.so": library}
    monkeypatch.setenv("LD_LIBRARY_PATH", str(gcc.outside))
    assert rules(repaired(write_wheel(tmp_path, files), tmp_path), tmp_path) == []


def test_a_module_that_cannot_be_imported_is_a_finding(tmp_path: Path) -> None:
    raw = write_wheel(tmp_path, {"paddlefleet_ops/flash-attention/ops.py": b"x = 1\n"})
    [finding] = verify(repaired(raw, tmp_path), log=tmp_path / "verify.log")
    assert (finding.rule, finding.place) == ("W004", "paddlefleet_ops/flash-attention/ops.py")


def test_a_tag_below_the_content_is_a_finding(gcc: Gcc, tmp_path: Path) -> None:
    source = "#include <sys/random.h>\nint fill(char *p) { return getrandom(p, 1, 0); }"
    files = {"paddlefleet_ops/libops.so": gcc.shared("libops.so", source).read_bytes()}
    wheel = write_wheel(tmp_path, files, tag=f"{PYTHON_TAG}-none-manylinux_2_17_x86_64")
    [finding] = verify(wheel, log=tmp_path / "verify.log")
    assert finding.rule == "platform-tag"
    assert "manylinux_2_26_x86_64" in finding.why


def test_a_wrong_tag_is_found_with_the_facts_at_hand_and_one_job(gcc: Gcc, tmp_path: Path) -> None:
    source = "#include <sys/random.h>\nint fill(char *p) { return getrandom(p, 1, 0); }"
    files = {"paddlefleet_ops/libops.so": gcc.shared("libops.so", source).read_bytes()}
    wheel = write_wheel(tmp_path, files, tag=f"{PYTHON_TAG}-none-manylinux_2_17_x86_64")
    found = verify(wheel, log=tmp_path / "verify.log", facts=read_facts(wheel), jobs=1)
    assert [finding.rule for finding in found] == ["platform-tag"]


def test_facts_of_another_file_are_not_believed(tmp_path: Path) -> None:
    good = write_wheel(tmp_path / "good", {})
    bad = write_wheel(tmp_path / "bad", {}, record=b"paddlefleet_ops/__init__.py,,\n")
    found = verify(bad, log=tmp_path / "verify.log", facts=read_facts(good))
    assert "record" in [finding.rule for finding in found]


def test_data_does_not_go_through_auditwheel_show(
    gcc: Gcc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: dict[str, int] = {}
    plain = verify_module._tool

    def watched(name: str, module: str, *arguments: str, **options: object) -> object:
        sizes[name] = Path(arguments[-1]).stat().st_size
        return plain(name, module, *arguments, **options)  # type: ignore[arg-type]

    noise = random.Random(1).randbytes(1_000_000)
    files = {
        "paddlefleet_ops/libops.so": gcc.shared("libops.so").read_bytes(),
        "paddlefleet_ops/noise.bin": noise,
    }
    wheel = repaired(write_wheel(tmp_path, files), tmp_path)
    monkeypatch.setattr(verify_module, "_tool", watched)
    assert rules(wheel, tmp_path / "logs") == []
    assert sizes["auditwheel"] < 100_000
    assert min(sizes["twine"], sizes["check-wheel-contents"]) > 1_000_000
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["verify.log"]


def test_an_abi_tag_in_wheel_does_not_hide_a_bad_record(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, {}, record=b"paddlefleet_ops/__init__.py,,\n")
    assert "record" in rules(wheel, tmp_path)


def test_a_missing_tool_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = verify_module._tool

    def renamed(name: str, module: str, *arguments: str, **options: object) -> object:
        module = "no_such_module" if module == "twine" else module
        return plain(name, module, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(verify_module, "_tool", renamed)
    with pytest.raises(ToolchainError, match="twine is not installed"):
        verify(write_wheel(tmp_path, {}), log=tmp_path / "verify.log")


def answer(**changes: object) -> dict[str, object]:
    upgrades = {
        "manylinux_2_34_x86_64": {"libs_to_eliminate": ["libcudart.so.13"]},
        "manylinux_2_28_x86_64": {"libs_to_eliminate": ["libcudart.so.13"]},
        "manylinux_2_17_x86_64": {"libs_to_eliminate": ["libcudart.so.13"]},
    }
    return {
        "pure": False,
        "overall_tag": "linux_x86_64",
        "sym_tag": "manylinux_2_28_x86_64",
        "pyfpe": False,
        "ucs2": False,
        "unsupported_isa": False,
        "policy_upgrades": upgrades,
        **changes,
    }


def test_the_platform_of_show_is_bounded_by_symbols_and_by_what_is_outside() -> None:
    assert shown_platform(answer(), ("libcudart.so*",)) == "manylinux_2_28_x86_64"
    assert shown_platform(answer(), ()) == "linux_x86_64"
    assert shown_platform(answer(unsupported_isa=True), ("libcudart.so*",)) == "linux_x86_64"
    assert shown_platform(answer(sym_tag="linux_x86_64"), ("libcudart.so*",)) == "linux_x86_64"
    assert shown_platform({"pure": True}, ()) == "any"
    blocked = json.loads(json.dumps(answer()))
    blocked["policy_upgrades"]["manylinux_2_28_x86_64"]["blacklisted_symbols"] = {
        "libz.so.1": ["x"]
    }
    assert shown_platform(blocked, ("libcudart.so*",)) == "manylinux_2_34_x86_64"


def test_every_ignored_check_has_a_reason() -> None:
    checks = load_policy().ignored_checks
    assert {check.code for check in checks} >= {"W002", "W009", "W010"}
    assert all(len(check.reason) > 30 for check in checks)
