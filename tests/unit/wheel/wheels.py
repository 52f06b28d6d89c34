"""Tiny wheels and shared libraries for the tests: written with zipfile and gcc, not with the farm."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PYTHON_TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"
OTHER_PYTHON = "cp310" if PYTHON_TAG != "cp310" else "cp311"
MACHINE = "x86_64"
README = "Operators.\n"


def own_suffix(python_tag: str = PYTHON_TAG) -> str:
    """The suffix of an extension module of that Python."""
    return f".cpython-{python_tag.removeprefix('cp')}-{MACHINE}-linux-gnu.so"


def metadata(version: str, *, readme: str = README) -> bytes:
    head = (
        f"Metadata-Version: 2.1\nName: paddlefleet-ops\nVersion: {version}\nSummary: operators\n"
        "Description-Content-Type: text/markdown\n"
    )
    return (f"{head}\n{readme}" if readme else head).encode()


def record_of(files: Mapping[str, bytes], dist_info: str) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.writerow((name, f"sha256={digest}", len(data)))
    rows.writerow((f"{dist_info}/RECORD", "", ""))
    return text.getvalue().encode()


def write_wheel(
    folder: Path,
    files: Mapping[str, bytes],
    *,
    version: str = "0.1.0+cu130",
    tag: str = "py3-none-any",
    wheel_tag: str = "",
    readme: str = README,
    record: bytes | None = None,
    modes: Mapping[str, int] | None = None,
    at: tuple[int, int, int, int, int, int] = (2026, 12, 2, 8, 0, 0),
) -> Path:
    """Write a wheel of ``files`` into ``folder``; everything that may be wrong can be given."""
    dist_info = f"paddlefleet_ops-{version}.dist-info"
    purelib = "true" if tag.endswith("any") else "false"
    content = {
        "paddlefleet_ops/__init__.py": b"name = 'paddlefleet_ops'\n",
        **files,
        f"{dist_info}/METADATA": metadata(version, readme=readme),
        f"{dist_info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: {purelib}\n"
            f"Tag: {wheel_tag or tag}\n"
        ).encode(),
    }
    content[f"{dist_info}/RECORD"] = record or record_of(content, dist_info)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"paddlefleet_ops-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            info = zipfile.ZipInfo(name, at)
            info.external_attr = (modes or {}).get(name, 0o100644) << 16
            archive.writestr(info, data)
    return path


def own_peak() -> int:
    """The most MiB that were resident in this process. ``ru_maxrss`` would begin with those of the parent."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM:"))


@dataclass(frozen=True)
class Gcc:
    """Compiles small shared libraries below one folder."""

    folder: Path

    def shared(
        self,
        name: str,
        source: str = "int answer(void) { return 42; }",
        *,
        soname: str = "",
        needs: Sequence[Path] = (),
        flags: Sequence[str] = (),
    ) -> Path:
        """``name`` with DT_NEEDED entries for the SONAMEs of the libraries ``needs``."""
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        code = target.with_name(f"{target.name}.c")
        code.write_text(source, "utf-8")
        link = [f"-Wl,-soname,{soname}"] if soname else []
        link += ["-Wl,--no-as-needed", *(str(path) for path in needs)]
        command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(target), str(code), *flags, *link]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder)
        return target

    def fake(self, soname: str, source: str = "int from_outside(void) { return 7; }") -> Path:
        """A library whose file name is its SONAME."""
        return self.shared(f"outside/{soname}", source, soname=soname)

    @property
    def outside(self) -> Path:
        """The folder of the fake libraries, for LD_LIBRARY_PATH."""
        return self.folder / "outside"


def readelf(path: Path, *options: str) -> str:
    """The output of binutils' readelf, which shares no code with pyelftools."""
    done = subprocess.run(
        ["readelf", "-W", *options, str(path)], check=True, capture_output=True, text=True
    )
    return done.stdout


def unpack(wheel: Path, folder: Path) -> Path:
    """Unpack with ``wheel unpack``, which checks every row of RECORD, and return the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "wheel", "unpack", "--dest", str(folder), str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.iterdir())
