"""Looks at the image that it runs in and prints what it sees as JSON. Judges nothing.

Only the standard library: the file is handed over as text, because the image does not hold the farm.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

TOOLS = (
    "auditwheel",
    "g++",
    "gcc",
    "git",
    "make",
    "ninja",
    "patchelf",
    "pyproject-build",
    "sccache",
    "uv",
)
# In gcc's own --version the distribution's number stands before it.
QUESTIONS = dict.fromkeys(("g++", "gcc"), ("-dumpfullversion", "-dumpversion"))
# Where pip and uv look for their configuration (their documentation, "Configuration").
CONFIGURATIONS = (
    "/etc/pip.conf",
    "/etc/xdg/pip/*",
    "/etc/uv/*",
    "/etc/xdg/uv/*",
    "/root/.pip/*",
    "/root/.config/pip/*",
    "/root/.config/uv/*",
    "/home/*/.pip/*",
    "/home/*/.config/pip/*",
    "/home/*/.config/uv/*",
    "/opt/python/*/pip.conf",
    "/opt/farm/pip.conf",
    "/opt/test/pip.conf",
    "/root/.netrc",
    "/root/.docker/*",
    "/root/.ssh/*",
    "/home/*/.netrc",
    "/home/*/.ssh/*",
    "/etc/apt/auth.conf",
    "/etc/apt/auth.conf.d/*",
    "/etc/apt/apt.conf.d/*proxy*",
)
# Where a distribution takes further CA certificates from (update-ca-certificates(8), update-ca-trust(8)).
EXTRA_CERTIFICATES = (
    "/usr/local/share/ca-certificates/*",
    "/etc/pki/ca-trust/source/anchors/*",
    "/usr/share/pki/ca-trust-source/anchors/*",
)
QUESTION = """
import json, sys, sysconfig
told = {"version": sys.version.split()[0], "header": sysconfig.get_paths()["include"], "missing": []}
wanted = "setuptools build wheel packaging pip ssl sqlite3 ctypes venv bz2 lzma"
for name in wanted.split():
    try:
        __import__(name)
    except ImportError as error:
        told["missing"].append(f"{name}: {error}")
print(json.dumps(told))
"""
WRITABLE = ("/project", "/tmp", "/home/farm")  # noqa: S108
FOLDERS = ("/usr", "/opt/_internal", "/opt/farm", "/opt/test", "/var")


def answer(*argv: str) -> tuple[str, str]:
    """What a program prints, and why it could not be asked."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return "", str(error)
    if done.returncode:
        return "", (done.stderr or done.stdout).strip()[-500:]
    return done.stdout or done.stderr, ""


def tools() -> dict[str, dict[str, str]]:
    """What each tool says of its version."""
    found = {}
    for name in TOOLS:
        said, problem = answer(name, *QUESTIONS.get(name, ("--version",)))
        found[name] = {
            "said": said.strip().splitlines()[0] if said.strip() else "",
            "problem": problem,
        }
    return found


def pythons() -> dict[str, object]:
    """Each CPython below ``/opt/python``: its version, and the modules that it cannot import."""
    found: dict[str, object] = {}
    for folder in sorted(Path("/opt/python").glob("*")):
        said, problem = answer(str(folder / "bin" / "python"), "-I", "-c", QUESTION)
        told = json.loads(said) if said and not problem else {"problem": problem}
        if "header" in told:
            told["header"] = Path(told["header"], "Python.h").is_file()
        found[folder.name] = told
    return found


def test_environment() -> dict[str, str]:
    """Versions in the environment of a test image; empty where there is none."""
    if not Path("/opt/test/bin/python").exists():
        return {}
    said, problem = answer("/opt/test/bin/python", "-m", "pip", "list", "--format", "freeze")
    if problem:
        return {"problem": problem}
    return dict(line.split("==", 1) for line in said.splitlines() if "==" in line)


def bundled_certificates() -> list[int]:
    """How many certificates Debian's bundle has, and how many its configuration takes; empty elsewhere."""
    try:
        bundle = Path("/etc/ssl/certs/ca-certificates.crt").read_text(encoding="ascii")
        lines = Path("/etc/ca-certificates.conf").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    taken = sum(1 for line in lines if line.strip() and line[0] not in "#!")
    return [bundle.count("BEGIN CERTIFICATE"), taken]


def size(folder: str) -> int:
    """Bytes of the files below ``folder``, links not followed."""
    total = 0
    for parent, _, names in os.walk(folder):
        total += sum(Path(parent, name).lstat().st_size for name in names)
    return total


def there(patterns: Iterable[str]) -> list[str]:
    """The files that absolute patterns name."""
    return [str(path) for item in patterns for path in sorted(Path("/").glob(item.lstrip("/")))]


def main() -> None:
    """Print everything."""
    seen = {
        "schema": 1,
        "farm_python": sys.version.split()[0],
        "uid": os.getuid(),
        "tools": tools(),
        "pythons": pythons(),
        "test": test_environment(),
        "configurations": there(CONFIGURATIONS),
        "extra_certificates": there(EXTRA_CERTIFICATES),
        "bundled_certificates": bundled_certificates(),
        "writable": [path for path in WRITABLE if os.access(path, os.W_OK)],
        "sizes": {folder: size(folder) for folder in FOLDERS if Path(folder).is_dir()},
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
