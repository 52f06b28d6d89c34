from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename

from ci.errors import FindingError, ToolchainError
from ci.wheel import repair as repair_module
from ci.wheel.facts import WheelFacts, read_facts
from ci.wheel.repair import Repaired, repair
from tests.unit.wheel.wheels import (
    OTHER_PYTHON,
    PYTHON_TAG,
    Gcc,
    own_suffix,
    readelf,
    record_of,
    unpack,
    write_wheel,
)

USES_OUTSIDE = "int from_outside(void); int answer(void) { return 35 + from_outside(); }"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def repaired(
    raw: Path,
    out: Path,
    *,
    cuda: str = "13.0",
    excludes: tuple[str, ...] = (),
    forbidden: tuple[str, ...] = (),
    jobs: int | None = None,
) -> Repaired:
    return repair(
        raw,
        out,
        python_tag=PYTHON_TAG,
        cuda=cuda,
        declared_excludes=excludes,
        log=out.parent / "repair.log",
        forbidden_paths=forbidden,
        jobs=jobs,
    )


def refused(raw: Path, out: Path, **options: object) -> list[str]:
    """The rules that were broken; nothing is left in ``out``."""
    before = sorted(out.rglob("*")) if out.exists() else []
    with pytest.raises(FindingError) as caught:
        repaired(raw, out, **options)  # type: ignore[arg-type]
    assert (sorted(out.rglob("*")) if out.exists() else []) == before
    assert caught.value.cause
    assert caught.value.next_step
    return [line.split(":")[0] for line in caught.value.details]


def wheel_with(tmp_path: Path, files: dict[str, Path], **options: object) -> Path:
    content = {f"paddlefleet_ops/{name}": path.read_bytes() for name, path in files.items()}
    return write_wheel(tmp_path / "raw", content, **options)  # type: ignore[arg-type]


def members(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


# --- wheels without ELF files ----------------------------------------------------------------------


def test_a_pure_wheel_is_only_retagged(tmp_path: Path, out: Path) -> None:
    done = repaired(write_wheel(tmp_path, {"paddlefleet_ops/a.py": b"x = 1\n"}), out)
    assert done.path.name == f"paddlefleet_ops-0.1.0+cu130-{PYTHON_TAG}-none-any.whl"
    assert done.tag == f"{PYTHON_TAG}-none-any"
    assert "no ELF" in done.skipped_reason
    assert (done.excluded, done.grafted) == ((), ())
    folder = unpack(done.path, tmp_path / "unpacked")
    text = next(folder.glob("*.dist-info/WHEEL")).read_text("utf-8")
    assert f"Tag: {PYTHON_TAG}-none-any\n" in text
    assert text.count("Tag:") == 1
    assert "Root-Is-Purelib: true" in text
    assert "Generator: tests" in text


def test_a_pure_wheel_called_platform_becomes_any(tmp_path: Path, out: Path) -> None:
    raw = write_wheel(tmp_path, {}, tag=f"{PYTHON_TAG}-{PYTHON_TAG}-linux_x86_64")
    assert repaired(raw, out).tag == f"{PYTHON_TAG}-none-any"


def test_a_declared_exclude_is_stale_in_a_pure_wheel(tmp_path: Path, out: Path) -> None:
    assert refused(write_wheel(tmp_path, {}), out, excludes=("libnuma.so.1",)) == ["stale-exclude"]


# --- excludes and grafting -------------------------------------------------------------------------


def test_frameworks_and_cuda_are_not_grafted(
    gcc: Gcc, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = [gcc.fake(n) for n in ("libpaddle.so", "libcudart.so.13", "libcuda.so.1")]
    raw = wheel_with(tmp_path, {f"_C{own_suffix()}": gcc.shared("_C.so", needs=outside)})
    monkeypatch.setenv("LD_LIBRARY_PATH", str(gcc.outside))
    done = repaired(raw, out)
    assert {e.pattern for e in done.excluded} == {
        "libpaddle.so*",
        "libcudart.so*",
        "libcuda.so*",
    }
    assert done.grafted == ()
    assert not [name for name in members(done.path) if ".libs/" in name]
    assert sorted(members(done.path)) == sorted(members(raw))
    assert done.tag.startswith(f"{PYTHON_TAG}-{PYTHON_TAG}-manylinux")


def test_without_the_excludes_auditwheel_grafts_them(
    gcc: Gcc, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault that the excludes prevent is real: this is what auditwheel does by itself."""
    library = gcc.shared("libops.so", USES_OUTSIDE, needs=[gcc.fake("libcudart.so.13")])
    raw = wheel_with(tmp_path, {"libops.so": library})
    monkeypatch.setenv("LD_LIBRARY_PATH", str(gcc.outside))
    empty = repair_module.Needs((), (), {})
    monkeypatch.setattr(repair_module, "_needs", lambda *_: empty)
    assert "bundled" in refused(raw, out)


def test_another_library_is_grafted_reported_and_works(
    gcc: Gcc, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = wheel_with(
        tmp_path,
        {"libops.so": gcc.shared("libops.so", USES_OUTSIDE, needs=[gcc.fake("libwidget.so.1")])},
    )
    monkeypatch.setenv("LD_LIBRARY_PATH", str(gcc.outside))
    done = repaired(raw, out)
    [line] = done.grafted
    assert line.startswith("paddlefleet_ops.libs/libwidget-")
    assert "bytes, needed by paddlefleet_ops/libops.so" in line
    folder = unpack(done.path, tmp_path / "unpacked")
    library = folder / "paddlefleet_ops" / "libops.so"
    assert "$ORIGIN/../paddlefleet_ops.libs" in readelf(library, "-d")
    monkeypatch.delenv("LD_LIBRARY_PATH")
    code = f"import ctypes; print(ctypes.CDLL({str(library)!r}).answer())"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "42"


def test_a_grafted_file_behind_a_link_is_reported_with_its_user(
    gcc: Gcc, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = gcc.shared("outside/libwidget.so.1.2.3", soname="libwidget.so.1")
    (gcc.outside / "libwidget.so.1").symlink_to(real.name)
    raw = wheel_with(tmp_path, {"libops.so": gcc.shared("libops.so", needs=[real])})
    monkeypatch.setenv("LD_LIBRARY_PATH", str(gcc.outside))
    [line] = repaired(raw, out).grafted
    assert ".so.1.2.3 (" in line
    assert "needed by paddlefleet_ops/libops.so" in line


def test_the_driver_behind_a_grafted_library_stays_outside(
    gcc: Gcc, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = gcc.fake("libcuda.so.1", "int driver(void) { return 1; }")
    widget = gcc.shared(
        "outside/libwidget.so.1",
        "int from_outside(void) { return 7; }",
        soname="libwidget.so.1",
        needs=[driver],
    )
    raw = wheel_with(tmp_path, {"libops.so": gcc.shared("libops.so", USES_OUTSIDE, needs=[widget])})
    monkeypatch.setenv("LD_LIBRARY_PATH", str(gcc.outside))
    done = repaired(raw, out)
    assert [e.pattern for e in done.excluded] == ["libcuda.so*"]
    assert len(done.grafted) == 1
    assert not [name for name in members(done.path) if "libcuda" in name]


def test_cuda_12_in_a_cuda_13_wheel_is_refused(gcc: Gcc, tmp_path: Path, out: Path) -> None:
    library = gcc.shared("libops.so", needs=[gcc.fake("libcudart.so.12")])
    assert refused(wheel_with(tmp_path, {"libops.so": library}), out) == ["foreign-cuda"]
    raw = wheel_with(tmp_path, {"libops.so": library}, version="0.1.0+cu126")
    assert repaired(raw, out, cuda="12.6").excluded[0].matched == ("libcudart.so.12",)


def test_a_declared_exclude_is_used_or_refused(gcc: Gcc, tmp_path: Path, out: Path) -> None:
    library = gcc.shared("libops.so", needs=[gcc.fake("libwidget.so.1")])
    raw = wheel_with(tmp_path, {"libops.so": library})
    assert refused(raw, out, excludes=("libwidget.so.1", "libgadget.so.2")) == ["stale-exclude"]
    done = repaired(raw, out, excludes=("libwidget.so.*",))
    assert [(e.pattern, e.matched) for e in done.excluded] == [
        ("libwidget.so.*", ("libwidget.so.1",))
    ]


def test_a_library_that_is_nowhere_is_named_with_its_user(
    gcc: Gcc, tmp_path: Path, out: Path
) -> None:
    raw = wheel_with(
        tmp_path, {"libops.so": gcc.shared("libops.so", needs=[gcc.fake("libwidget.so.1")])}
    )
    with pytest.raises(FindingError) as caught:
        repaired(raw, out)
    [line] = caught.value.details
    assert line.startswith("missing-library: paddlefleet_ops/libops.so: it needs libwidget.so.1")
    assert not out.exists()


@pytest.mark.parametrize("name", ["libcudart.so.13", "libcudart-0a1b2c3d.so.13", "libpaddle.so"])
def test_a_forbidden_library_in_the_raw_wheel_is_refused(
    gcc: Gcc, tmp_path: Path, out: Path, name: str
) -> None:
    assert refused(wheel_with(tmp_path, {name: gcc.fake("libx.so")}), out) == ["bundled"]


# --- failures leave nothing ------------------------------------------------------------------------


def test_a_failed_repair_leaves_nothing_though_auditwheel_leaves_a_wheel(
    gcc: Gcc, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = gcc.shared("libops.so", needs=[gcc.fake("libwidget.so.1")])
    raw = wheel_with(tmp_path, {"libops.so": library}, tag="py3-none-linux_x86_64")
    # What auditwheel does by itself: it fails, and there is a wheel.
    plain = tmp_path / "plain"
    command = [sys.executable, "-m", "auditwheel", "repair", "-w", str(plain), str(raw)]
    env = dict(repair_module._environment({"PATH": "/usr/bin:/bin"}))
    failed = subprocess.run(command, env=env, capture_output=True, check=False)
    assert failed.returncode != 0
    assert list(plain.glob("*.whl"))
    # With the early check for missing libraries out of the way, the farm gets there as well.
    monkeypatch.setattr(repair_module, "_missing", lambda plan, needs: [])
    out.mkdir()
    (out / "older.whl").write_bytes(b"stays")
    with pytest.raises(FindingError, match="auditwheel could not repair") as caught:
        repaired(raw, out)
    assert [path.name for path in out.iterdir()] == ["older.whl"]
    assert any("libwidget.so.1" in line for line in caught.value.details)
    assert "libwidget.so.1" in (tmp_path / "repair.log").read_text("utf-8")


def test_an_older_wheel_stays_when_the_new_one_is_refused(
    gcc: Gcc, tmp_path: Path, out: Path
) -> None:
    good = wheel_with(tmp_path, {"libops.so": gcc.shared("libops.so")})
    path = repaired(good, out).path
    content = path.read_bytes()
    flags = ["-Wl,-rpath,/opt/cuda/lib64"]
    bad = wheel_with(tmp_path, {"libops.so": gcc.shared("libops.so", flags=flags)})
    assert refused(bad, out) == ["search-path"]
    assert path.read_bytes() == content


def test_an_interrupt_leaves_nothing(
    gcc: Gcc, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(repair_module, "_run_auditwheel", interrupted)
    raw = wheel_with(tmp_path, {"libops.so": gcc.shared("libops.so")})
    with pytest.raises(KeyboardInterrupt):
        repaired(raw, out)
    assert not out.exists()


def test_without_patchelf_the_tool_is_named(
    gcc: Gcc, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair_module, "_environment", lambda environ: {"PATH": str(tmp_path)})
    raw = wheel_with(tmp_path, {"libops.so": gcc.shared("libops.so")})
    with pytest.raises(ToolchainError, match="patchelf is not installed"):
        repaired(raw, out)
    assert not out.exists()


def test_a_member_that_gets_lost_on_the_way_is_noticed(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = repair_module.rewrite
    shorter = write_wheel(tmp_path / "shorter", {})

    def forgetful(source: Path, destination: Path, **options: object) -> None:
        plain(shorter, destination, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(repair_module, "rewrite", forgetful)
    raw = write_wheel(tmp_path, {"paddlefleet_ops/a.py": b"x = 1\n"})
    assert refused(raw, out) == ["lost"]


def test_instructions_beyond_the_baseline_are_refused_with_the_reason(
    gcc: Gcc, tmp_path: Path, out: Path
) -> None:
    library = gcc.shared("libops.so", flags=["-Wl,-z,x86-64-v3"])
    assert "x86-64-v3" in readelf(library, "-n")
    with pytest.raises(FindingError) as caught:
        repaired(wheel_with(tmp_path, {"libops.so": library}), out)
    assert "instructions beyond the baseline" in caught.value.cause
    assert not out.exists()


# --- rules about the content -----------------------------------------------------------------------


def test_an_extension_of_another_python_is_refused(gcc: Gcc, tmp_path: Path, out: Path) -> None:
    files = {
        f"_C{own_suffix()}": gcc.shared("a.so"),
        f"_D{own_suffix(OTHER_PYTHON)}": gcc.shared("b.so"),
    }
    assert refused(wheel_with(tmp_path, files), out) == ["foreign-python"]


@pytest.mark.parametrize("rpath", ["/opt/cuda/lib64", "$ORIGIN:/opt/x", "lib", "", "$ORIGINAL/x"])
@pytest.mark.parametrize("dtags", ["--enable-new-dtags", "--disable-new-dtags"])
def test_only_search_paths_below_origin_are_allowed(
    gcc: Gcc, tmp_path: Path, out: Path, rpath: str, dtags: str
) -> None:
    flags = [f"-Wl,{dtags}", f"-Wl,-rpath,$ORIGIN/a:{rpath}:$ORIGIN/b"]
    library = gcc.shared("libops.so", flags=flags)
    assert "search-path" in refused(wheel_with(tmp_path, {"libops.so": library}), out)


def test_a_search_path_below_origin_stays(gcc: Gcc, tmp_path: Path, out: Path) -> None:
    flags = ["-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN/../nvidia/cu13/lib:${ORIGIN}"]
    done = repaired(wheel_with(tmp_path, {"libops.so": gcc.shared("libops.so", flags=flags)}), out)
    assert done.facts_after.elfs[0].runpath == ("$ORIGIN/../nvidia/cu13/lib", "${ORIGIN}")


def test_a_build_path_in_a_binary_is_refused(gcc: Gcc, tmp_path: Path, out: Path) -> None:
    source = 'const char *where(void) { return "/build/tree/src/op.cu"; }'
    raw = wheel_with(tmp_path, {"libops.so": gcc.shared("libops.so", source)})
    assert refused(raw, out, forbidden=("/build/tree", "/other")) == ["build-path"]
    assert repaired(raw, out, forbidden=("/other",)).path.exists()


@pytest.mark.parametrize("version", ["0.1.0", "0.1.0+cu126", "0.1.0+dirty"])
def test_the_label_must_be_the_cuda_of_the_cell(tmp_path: Path, out: Path, version: str) -> None:
    assert refused(write_wheel(tmp_path, {}, version=version), out) == ["label"]


def test_more_segments_of_the_label_are_fine(tmp_path: Path, out: Path) -> None:
    raw = write_wheel(tmp_path, {}, version="0.1.0.dev1+cu130.templates.dirty")
    name, version, _, _ = parse_wheel_filename(repaired(raw, out).path.name)
    assert (name, str(version)) == ("paddlefleet-ops", "0.1.0.dev1+cu130.templates.dirty")


def test_a_record_that_lies_is_refused(tmp_path: Path, out: Path) -> None:
    record = record_of({"paddlefleet_ops/__init__.py": b"other"}, "x.dist-info")
    assert set(refused(write_wheel(tmp_path, {}, record=record), out)) == {"record"}


def test_a_symbolic_link_is_refused(tmp_path: Path, out: Path) -> None:
    name = "paddlefleet_ops/link.so"
    raw = write_wheel(tmp_path, {name: b"target.so"}, modes={name: 0o120777})
    assert refused(raw, out) == ["symlink"]


@pytest.mark.parametrize("name", ["../evil.py", "/etc/evil.py", "paddlefleet_ops/../../evil.py"])
def test_a_path_that_leaves_the_target_is_refused(tmp_path: Path, out: Path, name: str) -> None:
    assert refused(write_wheel(tmp_path, {name: b""}), out) == ["member-name"]


def test_two_machines_in_one_wheel_are_refused(gcc: Gcc, tmp_path: Path, out: Path) -> None:
    other = bytearray(gcc.shared("libarm.so").read_bytes())
    other[18:20] = (183).to_bytes(2, "little")  # e_machine: EM_AARCH64 (elf.h)
    (tmp_path / "libarm.so").write_bytes(other)
    files = {"a.so": gcc.shared("a.so"), "b.so": gcc.shared("b.so"), "c.so": tmp_path / "libarm.so"}
    assert refused(wheel_with(tmp_path, files), out) == ["machine"]


# --- the result ------------------------------------------------------------------------------------


def test_the_tag_of_the_content_is_in_the_name_and_in_wheel(
    gcc: Gcc, tmp_path: Path, out: Path
) -> None:
    source = "#include <sys/random.h>\nint fill(char *p) { return getrandom(p, 1, 0); }"
    done = repaired(wheel_with(tmp_path, {"libops.so": gcc.shared("libops.so", source)}), out)
    assert done.tag == f"{PYTHON_TAG}-none-manylinux_2_26_x86_64"
    assert done.path.name.endswith(f"-{done.tag}.whl")
    assert done.facts_after.tags == done.facts_after.wheel_tags
    text = next(unpack(done.path, tmp_path / "u").glob("*.dist-info/WHEEL")).read_text("utf-8")
    assert "Root-Is-Purelib: false" in text
    show = [sys.executable, "-m", "auditwheel", "show", str(done.path)]
    shown = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    assert "manylinux_2_26_x86_64" in shown.replace("\n", " ")


def test_equal_input_gives_equal_bytes(
    gcc: Gcc, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = [gcc.fake("libwidget.so.1"), gcc.fake("libgadget.so.2", "int g(void) {return 1;}")]
    library = gcc.shared("libops.so", USES_OUTSIDE, needs=outside)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(gcc.outside))
    raw = wheel_with(tmp_path, {"libops.so": library, "tool.py": library})
    first = repaired(raw, out)
    second = repaired(raw, tmp_path / "again")
    assert len(first.grafted) == 2
    assert first.path.name == second.path.name
    assert first.path.read_bytes() == second.path.read_bytes()


def test_threads_do_not_change_a_byte(
    gcc: Gcc, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = gcc.shared("libops.so", USES_OUTSIDE, needs=[gcc.fake("libwidget.so.1")])
    monkeypatch.setenv("LD_LIBRARY_PATH", str(gcc.outside))
    table = tmp_path / "table.txt"
    table.write_text("".join(f"row {number}\n" for number in range(100_000)), "ascii")
    raw = wheel_with(tmp_path, {"libops.so": library, "table.txt": table})
    wheels = [repaired(raw, tmp_path / str(jobs), jobs=jobs).path for jobs in (1, 2, 4)]
    assert len({wheel.read_bytes() for wheel in wheels}) == 1


def test_auditwheel_gets_only_what_it_looks_at_and_nothing_is_compressed_twice(
    gcc: Gcc, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, int] = {}
    plain = repair_module._run_auditwheel

    def watched(prepared: Path, *rest: object) -> Path:
        patched = plain(prepared, *rest)  # type: ignore[arg-type]
        for wheel in (prepared, patched):
            assert wheel.stat().st_size < 100_000
            with zipfile.ZipFile(wheel) as archive:
                seen.update({info.filename: info.compress_type for info in archive.infolist()})
        return patched

    monkeypatch.setattr(repair_module, "_run_auditwheel", watched)
    table = tmp_path / "table.txt"
    table.write_bytes(b"x" * 1_000_000)
    files = {"libops.so": gcc.shared("libops.so"), "table.txt": table}
    done = repaired(wheel_with(tmp_path, files), out)
    assert "paddlefleet_ops/libops.so" in seen
    assert not [name for name in seen if name.endswith((".txt", ".py"))]
    assert "paddlefleet_ops/table.txt" in members(done.path)


@pytest.mark.slow
def test_auditwheel_does_not_hold_a_library_in_memory(gcc: Gcc, tmp_path: Path, out: Path) -> None:
    source = '__asm__(".section .nv_fatbin,\\"a\\"\\n.zero 200000000\\n.text");'
    library = gcc.shared("libops.so", source)
    raw = wheel_with(tmp_path, {"libops.so": library})
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from ci.wheel.repair import repair\n"
        "from tests.unit.wheel.wheels import own_peak\n"
        f"repair(Path(sys.argv[1]), Path(sys.argv[2]), python_tag={PYTHON_TAG!r}, cuda='13.0',\n"
        "    declared_excludes=(), log=Path(sys.argv[2]).with_name('repair.log'))\n"
        "print(own_peak(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(raw), str(out)], capture_output=True, text=True, check=True
    )
    assert library.stat().st_size > 190 << 20
    assert max(map(int, done.stdout.split())) < 120


def test_a_wheel_is_looked_at_before_and_after_and_no_more(
    gcc: Gcc, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Path] = []
    plain = repair_module.read_facts

    def watched(path: Path, **options: object) -> WheelFacts:
        looked.append(path)
        return plain(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(repair_module, "read_facts", watched)
    raw = wheel_with(tmp_path, {"libops.so": gcc.shared("libops.so")})
    done = repaired(raw, out)
    assert len(looked) == 2
    assert looked[0] == raw
    assert done.facts_after == read_facts(done.path)


def test_other_content_than_in_the_raw_wheel_is_noticed(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = repair_module.rewrite
    other = write_wheel(tmp_path / "other", {"paddlefleet_ops/a.py": b"x = 2\n"})

    def swapped(source: Path, destination: Path, **options: object) -> None:
        plain(other, destination, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(repair_module, "rewrite", swapped)
    raw = write_wheel(tmp_path, {"paddlefleet_ops/a.py": b"x = 1\n"})
    assert refused(raw, out) == ["changed"]


def test_the_order_in_the_raw_wheel_does_not_matter(tmp_path: Path, out: Path) -> None:
    files = {"paddlefleet_ops/b.py": b"b = 1\n", "paddlefleet_ops/a.py": b"a = 1\n"}
    first = repaired(write_wheel(tmp_path / "1", files), out)
    reordered = write_wheel(tmp_path / "2", dict(reversed(files.items())))
    second = repaired(reordered, tmp_path / "again")
    assert first.path.read_bytes() == second.path.read_bytes()


def test_source_date_epoch_is_the_time_of_every_member(
    gcc: Gcc, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = wheel_with(tmp_path, {"libops.so": gcc.shared("libops.so")})
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000001")
    with zipfile.ZipFile(repaired(raw, out).path) as archive:
        times = {info.date_time for info in archive.infolist()}
    assert times == {(2023, 11, 14, 22, 13, 20)}


def test_record_is_the_last_member_and_modes_are_two(gcc: Gcc, tmp_path: Path, out: Path) -> None:
    name = "paddlefleet_ops/libops.so"
    files = {name: gcc.shared("libops.so").read_bytes()}
    raw = write_wheel(tmp_path, files, modes={name: 0o100775})
    with zipfile.ZipFile(repaired(raw, out).path) as archive:
        infos = archive.infolist()
    assert infos[-1].filename.endswith(".dist-info/RECORD")
    assert {i.filename: oct(i.external_attr >> 16) for i in infos}[name] == "0o100755"
    assert {oct(i.external_attr >> 16) for i in infos} == {"0o100755", "0o100644"}


def test_the_wheel_installs_and_imports_from_elsewhere(
    gcc: Gcc, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = repaired(wheel_with(tmp_path, {"libops.so": gcc.shared("libops.so")}), out)
    target = tmp_path / "site"
    install = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--offline",
        "--no-deps",
        "--no-config",
    ]
    install += ["--python", sys.executable, "--target", str(target), str(done.path)]
    ended = subprocess.run(install, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    code = "import paddlefleet_ops as p; print(p.__file__, p.name)"
    monkeypatch.setenv("PYTHONPATH", str(target))
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert loaded.stdout.split() == [str(target / "paddlefleet_ops/__init__.py"), "paddlefleet_ops"]


def test_settings_of_auditwheel_from_outside_have_no_effect(
    gcc: Gcc, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUDITWHEEL_PLAT", "manylinux_2_35_x86_64")
    raw = wheel_with(tmp_path, {"libops.so": gcc.shared("libops.so")})
    assert "manylinux_2_5_x86_64" in repaired(raw, out).tag
