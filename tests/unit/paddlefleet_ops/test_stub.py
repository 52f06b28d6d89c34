"""What a type checker knows of the installed package: mypy is asked, on folders with a wheel's content."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

import pytest

from ci.registry import build_manifest

pytest.importorskip("mypy", reason="mypy is in the dependency group `lint`")


STUBTEST = ("-m", "mypy.stubtest", "paddlefleet_ops", "--concise", "--mypy-config-file", "mypy.ini")


@pytest.fixture
def typed(site):
    """A wheel with two libraries, one with a second module, and one that was left out."""
    site.add(
        "alpha",
        {
            "alpha/__init__.py": "from alpha.sub import double as double\nfrom . import sub as sub\n",
            "alpha/sub.py": "def double(x: int) -> int:\n    return 2 * x\n",
        },
    )
    site.add(
        "sonic-moe",
        {"sonicmoe/__init__.py": "", "sonic_cpp/__init__.py": ""},
        module="sonicmoe",
        modules=["sonicmoe", "sonic_cpp"],
        availability="sonic_moe",
    )
    site.leave_out("absent", "not pinned yet")
    site.write("paddlefleet_ops/py.typed", "")
    site.write("paddlefleet_ops/__init__.pyi", build_manifest.stub_text(site.manifest()))
    return site


def checked(site, code):
    """What ``mypy --strict`` says of a user's file: ``[(line, error code)]``, and its whole output."""
    site.write("work/user.py", code)
    (site.folder / "work" / "mypy.ini").write_text(
        "[mypy]\n[mypy-paddle.*]\nignore_missing_imports = true\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--cache-dir=/dev/null",
         "user.py"],
        cwd=site.folder / "work",
        env={"MYPYPATH": str(site.folder), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )  # fmt: skip
    found = re.findall(r"(?m)^user\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout)
    return [(int(line), kind) for line, kind in found], done.stdout + done.stderr


def test_names_of_the_wheel_are_known_with_their_types(typed):
    problems, output = checked(
        typed,
        """
        import paddlefleet_ops
        import paddlefleet_ops.alpha.sub
        from paddlefleet_ops import LibraryBlockedError, alpha, sonicmoe, sonic_cpp
        from paddlefleet_ops.alpha.sub import double

        def use() -> str:
            if not (paddlefleet_ops.is_alpha_available() and paddlefleet_ops.is_absent_available()):
                return paddlefleet_ops.blocked_import_messages["paddlefleet_ops.alpha"]
            reveal_type(paddlefleet_ops.is_sonic_moe_available())
            reveal_type(paddlefleet_ops.alpha.sub.double(1) + double(2) + alpha.sub.double(3))
            reveal_type(paddlefleet_ops.libraries()[0].reasons)
            print(sonicmoe, sonic_cpp, LibraryBlockedError)
            return paddlefleet_ops.__version__
        """,
    )
    assert not problems, output
    notes = re.findall(r'Revealed type is "(?:builtins\.)?([^"]+)"', output)
    assert [note.replace("builtins.", "") for note in notes] == ["bool", "int", "tuple[str, ...]"]


def test_wrong_names_and_types_are_refused(typed):
    problems, output = checked(
        typed,
        """
        import paddlefleet_ops
        paddlefleet_ops.is_sonicmoe_available()
        paddlefleet_ops.absent
        paddlefleet_ops.quack
        from paddlefleet_ops import gamma
        count: str = paddlefleet_ops.is_alpha_available()
        paddlefleet_ops.is_alpha_available("here")
        paddlefleet_ops.alpha.sub.double("text")
        """,
    )
    assert problems == [
        (3, "attr-defined"),
        (4, "attr-defined"),
        (5, "attr-defined"),
        (6, "attr-defined"),
        (7, "assignment"),
        (8, "call-arg"),
        (9, "arg-type"),
    ], output


def test_a_star_import_brings_the_names_of_the_libraries(typed):
    problems, output = checked(
        typed,
        """
        from paddlefleet_ops import *
        reveal_type(is_alpha_available())
        alpha.sub.double(1)
        Manifest
        """,
    )
    assert problems == [(5, "name-defined")], output


def test_what_a_library_imports_by_its_own_name_is_any(typed):
    problems, output = checked(
        typed,
        "from paddlefleet_ops import alpha\nreveal_type(alpha.sub)\nreveal_type(alpha.double)\n",
    )
    assert not problems, output
    assert 'user.py:2: note: Revealed type is "types.ModuleType"' in output
    assert 'user.py:3: note: Revealed type is "Any"' in output


def test_the_stub_says_what_the_imported_package_has(typed):
    """``mypy.stubtest`` compares the stub with the module at run time, name by name."""
    typed.write("mypy.ini", "[mypy]\nignore_missing_imports = true\n")
    done = typed.python(*STUBTEST, MYPYPATH=str(typed.folder))
    assert done.returncode == 0, textwrap.indent(done.stdout + done.stderr, "  ")
    typed.write(
        "paddlefleet_ops/__init__.pyi",
        build_manifest.stub_text(typed.manifest()) + "def is_gamma_available() -> bool: ...\n",
    )
    done = typed.python(*STUBTEST, MYPYPATH=str(typed.folder))
    assert done.stdout.startswith("paddlefleet_ops.is_gamma_available is not present at runtime")
