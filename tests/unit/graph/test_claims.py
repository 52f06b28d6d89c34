"""Claims of a declaration, judged on real files: each rule fails where it must, and stays silent elsewhere.

What the files are is told by gcc, ``nm``, ``readelf`` and ``cuobjdump``, none of which the rules use.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ci.findings import Finding
from ci.graph.claims import check_claims, claims_rules
from ci.graph.evidence import Evidence, read_evidence
from ci.registry import EcosystemLibrary, Target, build_utils
from tests.unit.wheel.wheels import Gcc, readelf

TARGET = Target("13.0", "3.12", ("8.0", "9.0"))
PLAIN = "int answer(void) { return 42; }"
EXTENSION = "#include <Python.h>\nPyObject *PyInit_x(void) { Py_INCREF(Py_None); return PyLong_FromLong(1); }"
INCLUDE = f"-I{sysconfig.get_paths()['include']}"
ALL_AXES = frozenset({"python", "cuda", "capability"})

Check = Callable[..., list[Finding]]


@pytest.fixture
def gcc(tmp_path: Path) -> Gcc:
    (tmp_path / "gcc").mkdir()
    return Gcc(tmp_path / "gcc")


@pytest.fixture
def check(make_library: Callable[..., EcosystemLibrary]) -> Check:
    """The findings of a C++ library that claims to vary by nothing; keyword arguments change that."""

    def run(
        files: Mapping[str, Path], *, source: Path | None = None, **changes: Any
    ) -> list[Finding]:
        library = make_library(**{"needs_host_compiler": True, **changes})
        found = list(check_claims(library, TARGET, files, source=source))
        assert all(item.library == library.name for item in found)
        assert all(item.why and item.mend and item.place for item in found)
        return found

    return run


def rules(found: list[Finding]) -> set[str]:
    return {item.rule for item in found}


def undefined(path: Path) -> set[str]:
    """The undefined symbols of the dynamic symbol table, as binutils see them."""
    done = subprocess.run(["nm", "-D", "-u", str(path)], check=True, capture_output=True, text=True)
    return {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}


def needed(path: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.*)\]", readelf(path, "-d"))


def fatbin(*architectures: int) -> bytes:
    """A fat binary with an empty entry for each architecture."""
    entries = b"".join(
        struct.pack("<HHIQ", 2, 0x101, 64, 0) + struct.pack("<IIII", 0, 0, 0, number) + bytes(32)
        for number in architectures
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


def with_device_code(gcc: Gcc, name: str, *architectures: int, more: str = "") -> Path:
    data = gcc.folder / "fat.bin"
    data.write_bytes(fatbin(*architectures))
    section = (
        f'__asm__(".section .nv_fatbin,\\"a\\"\\n.balign 8\\n.incbin \\"{data}\\"\\n.previous");'
    )
    return gcc.shared(name, f"{section}\n{PLAIN}\n{more}")


# --- nothing to find --------------------------------------------------------------------------------


def test_a_plain_library_varies_by_nothing_but_the_machine(gcc: Gcc, check: Check) -> None:
    assert check({"alpha/libplain.so": gcc.shared("libplain.so")}) == []


def test_a_pure_library_needs_no_compiler(check: Check, tmp_path: Path) -> None:
    names = ("alpha/__init__.py", "alpha/cu12_paths.py", "alpha/py.typed", "alpha/data/kernel.cu")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("import python312\n")
    assert check({name: tmp_path / name for name in names}, needs_host_compiler=False) == []


# --- python -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "alpha/_core.cpython-312-x86_64-linux-gnu.so",
        "alpha/_core.pypy310-pp73-x86_64-linux-gnu.so",
        "alpha/_core.cp312.so",
        "alpha/lib/python3.12/x.so",
    ],
)
def test_a_file_for_one_python_is_found_by_its_name(gcc: Gcc, check: Check, name: str) -> None:
    file = gcc.shared("x.so")
    found = check({name: file})
    assert rules(found) == {"claim-python-name"}
    assert '"python"' in found[0].mend
    assert check({name: file}, varies_by=frozenset({"python"})) == []


def test_byte_code_is_of_one_python(check: Check, tmp_path: Path) -> None:
    (tmp_path / "a.pyc").write_bytes(b"\0")
    found = check({"alpha/a.pyc": tmp_path / "a.pyc"}, needs_host_compiler=False)
    assert rules(found) == {"claim-python-name"}


def test_an_extension_module_without_a_tag_is_found_by_its_symbols(gcc: Gcc, check: Check) -> None:
    file = gcc.shared("core.so", EXTENSION, flags=[INCLUDE])
    assert {"PyLong_FromLong", "_Py_NoneStruct"} <= undefined(file)
    (found,) = check({"alpha/core.so": file})
    assert found.rule == "claim-python-symbols"
    assert "PyLong_FromLong" in found.why
    assert check({"alpha/core.so": file}, varies_by=frozenset({"python"})) == []


def test_the_stable_abi_serves_every_python(gcc: Gcc, check: Check) -> None:
    file = gcc.shared("core.abi3.so", EXTENSION, flags=[INCLUDE, "-DPy_LIMITED_API=0x030A0000"])
    assert "PyLong_FromLong" in undefined(file)
    assert check({"alpha/core.abi3.so": file}) == []
    assert rules(check({"alpha/core.abi3.so": file}, varies_by=frozenset({"python"}))) == {
        "claim-python-unused"
    }


def test_symbols_that_may_be_missing_bind_to_no_python(gcc: Gcc, check: Check) -> None:
    file = gcc.shared(
        "w.so", "int Py_IsInitialized(void) __attribute__((weak)); void *f = Py_IsInitialized;"
    )
    assert "Py_IsInitialized" in undefined(file)
    assert check({"alpha/w.so": file}) == []


def test_an_object_file_is_looked_at_too(gcc: Gcc, check: Check, tmp_path: Path) -> None:
    code = tmp_path / "x.c"
    code.write_text(EXTENSION)
    subprocess.run(["gcc", "-c", INCLUDE, "-fPIC", "x.c"], cwd=tmp_path, check=True)
    subprocess.run(["ar", "rcs", "libx.a", "x.o"], cwd=tmp_path, check=True)
    for name in ("x.o", "libx.a"):
        assert rules(check({f"alpha/{name}": tmp_path / name})) == {"claim-python-symbols"}


def test_a_link_with_the_library_of_one_python(gcc: Gcc, check: Check) -> None:
    of_one, stable = gcc.fake("libpython3.12.so.1.0"), gcc.fake("libpython3.so")
    bound = gcc.shared("a.so", needs=[of_one])
    assert "libpython3.12.so.1.0" in needed(bound)
    assert rules(check({"alpha/a.so": bound})) == {"claim-python-link"}
    assert check({"alpha/a.so": gcc.shared("b.so", needs=[stable])}) == []


def test_a_search_path_into_one_python(gcc: Gcc, check: Check) -> None:
    for flag in ("-Wl,--enable-new-dtags", "-Wl,--disable-new-dtags"):
        entry = "/opt/env/lib/python3.12/site-packages/x"
        file = gcc.shared("a.so", flags=[flag, f"-Wl,-rpath,$ORIGIN/..:{entry}"])
        (found,) = check({"alpha/a.so": file})
        assert (found.rule, found.subject) == ("claim-python-path", entry)
    assert (
        check({"alpha/a.so": gcc.shared("b.so", flags=["-Wl,-rpath,/opt/pythonista/3.12"])}) == []
    )


# --- cuda -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "soname",
    [
        "libcudart.so.13", "libcublas.so.12", "libcublasLt.so.13", "libnvrtc.so.12", "libcudnn.so.9",
        "libcudnn_ops.so.9", "libnvJitLink.so.13", "libnccl.so.2", "libnvshmem_host.so.3",
    ],
)  # fmt: skip
def test_a_link_with_a_library_of_cuda(gcc: Gcc, check: Check, soname: str) -> None:
    file = gcc.shared("a.so", needs=[gcc.fake(soname)])
    assert soname in needed(file)
    (found,) = check({"alpha/a.so": file})
    assert (found.rule, found.subject) == ("claim-cuda-link", soname)
    assert check({"alpha/a.so": file}, varies_by=frozenset({"cuda"})) == []


@pytest.mark.parametrize(
    "soname", ["libcuda.so.1", "libnvidia-ml.so.1", "libcurl.so.4", "libcups.so.2"]
)
def test_the_driver_and_strangers_are_of_no_cuda(gcc: Gcc, check: Check, soname: str) -> None:
    assert check({"alpha/a.so": gcc.shared("a.so", needs=[gcc.fake(soname)])}) == []


def test_a_library_of_one_major_that_is_opened_by_name(gcc: Gcc, check: Check) -> None:
    one = gcc.shared("a.so", 'const char *name(void) { return "libcublas.so.13"; }')
    (found,) = check({"alpha/a.so": one})
    assert (found.rule, found.subject) == ("claim-cuda-link", "libcublas.so.13")
    both = gcc.shared("b.so", 'const char *n[] = {"libcublas.so.12", "libcublas.so.13"};')
    assert check({"alpha/b.so": both}) == []
    stem = gcc.shared("c.so", 'const char *n[] = {"libcublas.so", "libcuda.so.1"};')
    assert check({"alpha/c.so": stem}) == []


def test_device_code_is_of_one_cuda(gcc: Gcc, check: Check) -> None:
    file = with_device_code(gcc, "a.so", 90, 100)
    assert ".nv_fatbin" in readelf(file, "-S")
    found = check({"alpha/a.so": file}, needs_host_compiler=False, needs_cuda_compiler=True)
    assert rules(found) == {"claim-cuda-device-code"}
    assert "sm_90, sm_100" in found[0].why
    compiled = {"needs_host_compiler": False, "needs_cuda_compiler": True}
    assert check({"alpha/a.so": file}, varies_by=frozenset({"cuda"}), **compiled) == []


def test_a_file_of_device_code_on_its_own(check: Check, tmp_path: Path) -> None:
    texts = {"k.ptx": b".version 8.8\n.target sm_90a\n", "k.fatbin": fatbin(80, 120)}
    expected = {"k.ptx": {90}, "k.fatbin": {80, 120}}
    for name, content in texts.items():
        (tmp_path / name).write_bytes(content)
        assert read_evidence(name, tmp_path / name).architectures == expected[name]
        found = check({f"alpha/{name}": tmp_path / name}, needs_host_compiler=False)
        assert rules(found) == {"claim-cuda-device-code", "claim-cuda-compiler"}


def test_what_came_with_the_sources_was_made_by_no_compiler_of_this_build(
    gcc: Gcc, check: Check, tmp_path: Path
) -> None:
    source = tmp_path / "source" / "prebuilt"
    source.mkdir(parents=True)
    for name, content in {"k.ptx": b".target sm_90\n", "k.cubin": b"other"}.items():
        (tmp_path / name).write_bytes(b".target sm_90\n")
        (source / name).write_bytes(content)
    shutil.copy(gcc.shared("libplain.so"), source)
    files = {"alpha/k.ptx": tmp_path / "k.ptx", "alpha/libplain.so": source / "libplain.so"}
    assert check(files, needs_host_compiler=False, source=source.parent) == []
    changed = check({"alpha/k.cubin": tmp_path / "k.cubin"}, source=source.parent)
    assert "claim-cuda-compiler" in rules(changed)


def test_a_name_with_a_version_of_cuda(gcc: Gcc, check: Check) -> None:
    file = gcc.shared("a.so")
    for name in ("libops_cu130.so", "libops-cuda12.so", "cu13/libops.so", "ops_cuda-13.0.so"):
        assert rules(check({f"alpha/{name}": file})) == {"claim-cuda-name"}
    for name in ("libcutlass.so", "libops_cu.so", "libops_acu13.so", "sm90/libops.so"):
        assert check({f"alpha/{name}": file}) == []


# --- what the build is told, and what it is compiled with -------------------------------------------


@pytest.mark.parametrize(
    ("axis", "changes"),
    [
        ("capability", {"extra_env": {"PADDLE_CUDA_ARCH_LIST": build_utils.arch_list}}),
        ("cuda", {"extra_env": {"OLD": build_utils.cuda_at_most("12.8")}}),
        ("cuda", {"build_requires": (build_utils.nvshmem,)}),
        ("python", {"extra_env": {"PYTHON_NAME": lambda target: target.python}}),
    ],
)
def test_an_axis_that_the_build_is_told_of(
    gcc: Gcc, check: Check, axis: Any, changes: dict[str, Any]
) -> None:
    files = {"alpha/a.so": gcc.shared("a.so")}
    (found,) = check(files, **changes)
    assert (found.rule, found.subject) == ("claim-environment", axis)
    varies: dict[str, Any] = {"varies_by": frozenset({axis})}
    assert not [item for item in check(files, **changes, **varies) if item.level == "error"]


def test_compiled_code_needs_a_compiler(gcc: Gcc, check: Check) -> None:
    plain, device = gcc.shared("a.so"), with_device_code(gcc, "b.so", 80)
    assert rules(check({"alpha/a.so": plain}, needs_host_compiler=False)) == {"claim-host-compiler"}
    found = check({"alpha/b.so": device}, varies_by=frozenset({"cuda"}))
    assert rules(found) == {"claim-cuda-compiler"}


def test_code_of_another_machine(gcc: Gcc, check: Check) -> None:
    content = bytearray(gcc.shared("a.so").read_bytes())
    content[18:20] = struct.pack("<H", 183)  # e_machine: EM_AARCH64
    file = gcc.folder / "b.so"
    file.write_bytes(content)
    assert "AArch64" in readelf(file, "-h")
    assert rules(check({"alpha/b.so": file})) == {"claim-machine"}


def test_what_cannot_be_read_proves_nothing(gcc: Gcc, check: Check) -> None:
    whole = gcc.shared("a.so").read_bytes()
    cut = gcc.folder / "cut.so"
    cut.write_bytes(whole[: len(whole) // 2])
    assert "claim-unreadable" in rules(check({"alpha/cut.so": cut}))
    headless = bytearray(whole)
    headless[40:48] = bytes(8)  # e_shoff
    headless[58:64] = bytes(6)  # e_shentsize, e_shnum, e_shstrndx
    cut.write_bytes(headless)
    assert rules(check({"alpha/cut.so": cut})) == {"claim-unreadable"}


# --- notes ------------------------------------------------------------------------------------------


def test_a_dependence_that_nothing_shows_is_a_note(gcc: Gcc, check: Check) -> None:
    found = check({"alpha/a.so": gcc.shared("a.so")}, varies_by=ALL_AXES)
    assert rules(found) == {"claim-python-unused", "claim-cuda-unused", "claim-capability-unused"}
    assert {item.level for item in found} == {"note"}


def test_an_axis_that_the_environment_follows_is_needed(gcc: Gcc, check: Check) -> None:
    told: dict[str, Any] = {"extra_env": {"PADDLE_CUDA_ARCH_LIST": build_utils.arch_list}}
    found = check({"alpha/a.so": gcc.shared("a.so")}, varies_by=ALL_AXES, **told)
    assert "claim-capability-unused" not in rules(found)


def test_a_compiler_that_compiled_nothing_is_a_note(check: Check, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    (found,) = check({"alpha/a.py": tmp_path / "a.py"})
    assert (found.rule, found.level) == ("claim-compiler-unused", "note")


def test_architectures_that_are_those_of_the_cell_are_a_note(gcc: Gcc, check: Check) -> None:
    cuda: dict[str, Any] = {"varies_by": frozenset({"cuda"}), "needs_cuda_compiler": True}
    (found,) = check({"alpha/a.so": with_device_code(gcc, "a.so", 80, 90)}, **cuda)
    assert (found.rule, found.level) == ("claim-capability-architectures", "note")
    assert check({"alpha/a.so": with_device_code(gcc, "b.so", 90, 100)}, **cuda) == []


# --- as a whole -------------------------------------------------------------------------------------


def test_everything_is_told_at_once(gcc: Gcc, check: Check) -> None:
    extension = gcc.shared("a.so", EXTENSION, flags=[INCLUDE], needs=[gcc.fake("libcudart.so.13")])
    files = {
        "alpha/a.cpython-312-x86_64-linux-gnu.so": extension,
        "alpha/b_cu130.so": with_device_code(gcc, "b.so", 90),
    }
    found = check(files, needs_host_compiler=False)
    assert rules(found) == {
        "claim-python-name", "claim-python-symbols", "claim-cuda-link", "claim-cuda-name",
        "claim-cuda-device-code", "claim-cuda-compiler", "claim-host-compiler",
    }  # fmt: skip


def test_every_rule_is_documented_once() -> None:
    names = [rule.name for rule in claims_rules()]
    assert len(names) == len(set(names)) == 17
    text = Path(__file__).read_text("utf-8")
    assert [name for name in names if name not in text] == []


def test_the_run_time_linked_in_is_seen(gcc: Gcc, check: Check) -> None:
    """The text is that of libcudart_static.a; a real one is looked at in the test of a real compiler."""
    file = gcc.shared("a.so", 'const char *name(void) { return "/cudart.shm.%x.%x.%llx"; }')
    (found,) = check({"alpha/a.so": file})
    assert (found.rule, found.subject) == ("claim-cuda-link", "libcudart_static.a")


def test_a_kind_of_file_is_told_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_text("no library at all")
    assert read_evidence("a.so", tmp_path / "a.so") == Evidence("a.so")
