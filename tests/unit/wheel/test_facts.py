from __future__ import annotations

import hashlib
import importlib.machinery
import re
import struct
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from packaging.tags import Tag

from ci.elf import abi_suffix
from ci.errors import FindingError
from ci.wheel.facts import read_facts, read_host_elf
from tests.unit.wheel.wheels import Gcc, own_suffix, readelf, write_wheel

DYNAMIC = re.compile(r"\((\w+)\)\s+.*\[(.*)\]")


def dynamic(path: Path, tag: str) -> list[str]:
    found = DYNAMIC.findall(readelf(path, "-d"))
    return [value for name, value in found if name == tag]


@pytest.mark.parametrize("new_tags", ["--enable-new-dtags", "--disable-new-dtags"])
def test_dynamic_section_is_read_as_readelf_reads_it(gcc: Gcc, new_tags: str) -> None:
    other = gcc.fake("libcudart.so.13")
    flags = [f"-Wl,{new_tags}", "-Wl,-rpath,$ORIGIN/../x:/opt/y"]
    path = gcc.shared("libops.so", soname="libops.so.2", needs=[other], flags=flags)
    facts = read_host_elf(path)
    assert [facts.soname] == dynamic(path, "SONAME") == ["libops.so.2"]
    assert list(facts.needed) == dynamic(path, "NEEDED")
    assert "libcudart.so.13" in facts.needed
    assert ":".join(facts.runpath) == "".join(dynamic(path, "RUNPATH"))
    assert ":".join(facts.rpath) == "".join(dynamic(path, "RPATH"))
    assert facts.search_path == ("$ORIGIN/../x", "/opt/y")
    assert facts.machine == "x86_64"


def test_symbol_versions_are_those_of_readelf(gcc: Gcc) -> None:
    source = "#include <sys/random.h>\nint fill(char *p) { return getrandom(p, 1, 0); }"
    path = gcc.shared("libops.so", source)
    listed = set(re.findall(r"Name: (GLIBC_[\d.]+)", readelf(path, "-V")))
    facts = read_host_elf(path)
    assert set(facts.versions) == listed
    assert facts.highest("GLIBC") == (2, 25)
    assert facts.highest("GLIBCXX") == ()


def test_python_symbols_are_undefined_strong_and_of_the_c_api(gcc: Gcc) -> None:
    source = """
    extern int PyLong_AsLong(void *); extern void _Py_Dealloc(void *); extern int Pyramids(void);
    extern int PyGILState_Check(void) __attribute__((weak));
    int PyInit_x(void) { return Pyramids() + PyLong_AsLong(0) + (PyGILState_Check ? 1 : 0); }
    int other(void *p) { _Py_Dealloc(p); return 0; }
    """
    facts = read_host_elf(gcc.shared("x.so", source))
    assert facts.python_symbols == ("PyLong_AsLong", "_Py_Dealloc")
    assert facts.has_init
    assert facts.touches_python


def test_a_library_without_python_does_not_touch_it(gcc: Gcc) -> None:
    facts = read_host_elf(gcc.shared("libops.so"))
    assert (facts.python_symbols, facts.has_init, facts.touches_python) == ((), False, False)


def test_suffixes_of_this_python_are_known() -> None:
    own = [abi_suffix(f"m{suffix}") for suffix in importlib.machinery.EXTENSION_SUFFIXES]
    assert own[:2] == [re.sub(r"^\.(cpython-\d+t?).*", r"\1", own_suffix()), "abi3"]


@pytest.mark.parametrize(
    ("name", "abi"),
    [
        ("_C.cpython-310-x86_64-linux-gnu.so", "cpython-310"),
        ("_C.cpython-313t-x86_64-linux-gnu.so", "cpython-313t"),
        ("_C.cpython-312.so", "cpython-312"),
        ("_C.pypy310-pp73-x86_64-linux-gnu.so", "pypy310-pp73"),
        ("_C.abi3.so", "abi3"),
        ("libops.so", ""),
        ("libops.so.1", ""),
    ],
)
def test_abi_suffix(name: str, abi: str) -> None:
    assert abi_suffix(name) == abi


def test_device_code_is_seen_by_its_section(gcc: Gcc) -> None:
    source = (
        'const char code[8] __attribute__((section(".nv_fatbin"))) = "x"; int f(void) {return 1;}'
    )
    with_code = gcc.shared("libwith.so", source)
    assert ".nv_fatbin" in readelf(with_code, "-S")
    assert read_host_elf(with_code).has_device_code
    assert not read_host_elf(gcc.shared("libwithout.so")).has_device_code


def test_a_cubin_is_device_code_and_no_host_code(gcc: Gcc, tmp_path: Path) -> None:
    data = bytearray(gcc.shared("libops.so").read_bytes())
    struct.pack_into("<H", data, 18, 190)  # e_machine: EM_CUDA (elf.h)
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(data)
    assert "CUDA" in readelf(cubin, "-h")
    facts = read_facts(write_wheel(tmp_path, {"paddlefleet_ops/k.cubin": bytes(data)}))
    assert [(elf.is_host_code, elf.has_device_code) for elf in facts.elfs] == [(False, True)]
    assert facts.host_elfs == ()


def test_facts_of_a_wheel(gcc: Gcc, tmp_path: Path) -> None:
    library = gcc.shared("libops.so", needs=[gcc.fake("libcudart.so.13")]).read_bytes()
    wheel = write_wheel(
        tmp_path, {"paddlefleet_ops/libops.so": library}, version="0.1.0.dev1+cu130.dirty"
    )
    facts = read_facts(wheel)
    assert (facts.name, str(facts.version)) == ("paddlefleet-ops", "0.1.0.dev1+cu130.dirty")
    assert facts.tags == facts.wheel_tags == {Tag("py3", "none", "any")}
    assert facts.root_is_purelib
    member = next(m for m in facts.members if m.name.endswith("libops.so"))
    assert (member.size, member.sha256) == (len(library), hashlib.sha256(library).hexdigest())
    row = next(r for r in facts.record if r.path == member.name)
    assert (row.algorithm, row.digest, row.size) == ("sha256", member.sha256, member.size)
    assert facts.external_needs["libcudart.so.13"] == ("paddlefleet_ops/libops.so",)
    assert facts.values(facts.metadata, "summary") == ("operators",)


def test_a_need_that_the_wheel_satisfies_is_not_external(gcc: Gcc, tmp_path: Path) -> None:
    helper = gcc.fake("libhelper.so.1")
    user = gcc.shared("libuser.so", needs=[helper])
    files = {"paddlefleet_ops/libuser.so": user, "paddlefleet_ops/lib/helper-1.so": helper}
    facts = read_facts(write_wheel(tmp_path, {n: p.read_bytes() for n, p in files.items()}))
    assert "libhelper.so.1" not in facts.external_needs


@pytest.mark.parametrize("offset", [0, (1 << 20) - 5, (1 << 20), (2 << 20) - 1])
def test_a_string_is_found_wherever_it_stands(gcc: Gcc, tmp_path: Path, offset: int) -> None:
    library = gcc.shared("libops.so").read_bytes()
    filler = bytearray(3 << 20)
    place = offset if offset >= len(library) else len(library)
    filler[place : place + 12] = b"/build/tree1"
    data = library + bytes(filler[len(library) :])
    wheel = write_wheel(tmp_path, {"paddlefleet_ops/libops.so": data})
    facts = read_facts(wheel, look_for=("/build/tree1", "/build/tree2", ""))
    assert facts.elfs[0].strings == ("/build/tree1",)


def test_a_cut_off_elf_file_is_broken_and_named(gcc: Gcc, tmp_path: Path) -> None:
    data = gcc.shared("libops.so").read_bytes()[:200]
    facts = read_facts(write_wheel(tmp_path, {"paddlefleet_ops/libops.so": data}))
    assert [path for path, _ in facts.broken] == ["paddlefleet_ops/libops.so"]


@pytest.mark.parametrize("name", ["x.whl", "paddlefleet_ops-0.1.0-py3-none-any.whl"])
def test_what_is_no_wheel_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"not a zip")
    with pytest.raises(FindingError, match="is not a wheel") as caught:
        read_facts(path)
    assert caught.value.cause
    assert "zipfile" in caught.value.next_step


def test_threads_do_not_change_the_facts_and_every_member_is_read_once(
    gcc: Gcc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = gcc.shared("libops.so").read_bytes()
    files = {f"paddlefleet_ops/{number}.bin": bytes([number]) * 70_000 for number in range(30)}
    files |= {f"paddlefleet_ops/lib{number}.so": library for number in range(5)}
    wheel = write_wheel(tmp_path, files)
    opened: Counter[str] = Counter()
    plain = zipfile.ZipFile.open

    def counted(self: zipfile.ZipFile, name: zipfile.ZipInfo | str, *rest: Any) -> Any:
        opened[name if isinstance(name, str) else name.filename] += 1
        return plain(self, name, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(zipfile.ZipFile, "open", counted)
        one = read_facts(wheel, jobs=1)
    assert {opened[name] for name in files} == {1}
    assert read_facts(wheel, jobs=8) == one
    assert [member.name for member in one.members][1 : len(files) + 1] == list(files)
    assert len(one.elfs) == 5


@pytest.mark.parametrize("jobs", [1, 4])
def test_a_member_that_cannot_be_inflated_is_named(tmp_path: Path, jobs: int) -> None:
    wheel = write_wheel(tmp_path, {"paddlefleet_ops/a.txt": b"some text " * 5000})
    with zipfile.ZipFile(wheel) as archive:
        info = archive.getinfo("paddlefleet_ops/a.txt")
    data = bytearray(wheel.read_bytes())
    start = info.header_offset + 30 + len(info.filename)
    data[start : start + 40] = b"\xff" * 40
    wheel.write_bytes(data)
    with pytest.raises(FindingError, match="is not a wheel"):
        read_facts(wheel, jobs=jobs)
