"""The key of a step: the hash of every named input, and of nothing else.

Values that only schedule (jobs, threads, temporary paths) are never inputs. Inputs keep their names, so
that two keys can be compared and the one input that changed can be named; a value with several parts has
a part in each line, so that only the lines that changed are shown.

What of order counts: the order inside one value (the flags of a variable, the entries of a path), the
order of include folders (the first one wins) and of hooks (they run in that order). What does not: the
order in which variables, artifacts, requirements, ignored patterns and capabilities were declared.

What is no input, because it is the same for every build: the time (``SOURCE_DATE_EPOCH`` is a constant of
``build_steps.py``, whose text is an input), the folders (mapped away by that file), the user's environment.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from ci.registry import EcosystemLibrary, Target, build_steps

KEY_SCHEMA = 2
_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True)
class Key:
    """Named inputs of a step. Equal inputs give an equal digest, in whatever order they were named."""

    inputs: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, inputs: Mapping[str, str]) -> Key:
        """The key of ``inputs``."""
        return cls(tuple(sorted(inputs.items())))

    @cached_property
    def digest(self) -> str:
        """SHA-256 over schema, names and values, 64 hexadecimal digits."""
        return hashlib.sha256(_encode([KEY_SCHEMA, self.inputs]).encode()).hexdigest()

    def difference(self, other: Key) -> dict[str, tuple[str | None, str | None]]:
        """The inputs that differ: name to the value here and there (``None`` where it is not one)."""
        mine, theirs = dict(self.inputs), dict(other.inputs)
        return {
            name: (mine.get(name), theirs.get(name))
            for name in sorted(mine.keys() | theirs.keys())
            if mine.get(name) != theirs.get(name)
        }


def changed_lines(old: str | None, new: str | None) -> tuple[str, str]:
    """The lines of two values of one input that differ: those that went, and those that came.

    ``None`` (it was no input) has no lines. Lines that only moved count as changed, as order may matter.
    """
    before, after = (text.split("\n") if text is not None else [] for text in (old, new))
    went: list[str] = []
    came: list[str] = []
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, start, end, start_new, end_new in matcher.get_opcodes():
        if tag != "equal":
            went += before[start:end]
            came += after[start_new:end_new]
    return "\n".join(went), "\n".join(came)


def library_key(
    library: EcosystemLibrary,
    target: Target,
    *,
    tree: str,
    build_requires: Iterable[str],
    toolchain_identity: str,
    interpreter_identity: str,
) -> Key:
    """The key of a library's build: only the axes that its declaration says it varies by.

    ``tree`` is the hash of its sources. ``build_requires`` are its build requirements, and everything that
    they need, as locked (``name==version``): what else other libraries have in the same environment is not
    an input, so a library declares what it uses. ``toolchain_identity`` is what it is compiled with, which
    counts only for a library that is compiled, as does the machine. ``interpreter_identity`` is the Python
    of its environment as exactly as its extension modules depend on it.
    """
    inputs = {
        "library": library.name,
        "source tree": tree,
        "artifacts": _lines(f"{item.source} -> {item.target}" for item in library.artifacts),
        "ignored": _lines(library.ignored),
        "build requirements": _lines(build_requires),
        "environment": _encode_lines(library.build_env(target)),
        "include folders": "\n".join(library.include_dirs),
        "hooks before build": "\n".join(library.hooks_before_build),
        "hooks after collect": "\n".join(library.hooks_after_collect),
        "build code": _code_hash(bool(library.hooks_before_build or library.hooks_after_collect)),
    }
    if library.needs_cuda_compiler or library.needs_host_compiler:
        inputs["toolchain"] = toolchain_identity
        inputs["machine"] = platform.machine()
    if "python" in library.varies_by:
        inputs["python"] = interpreter_identity
    if "cuda" in library.varies_by:
        inputs["cuda"] = target.cuda
    if "capability" in library.varies_by:
        inputs["capabilities"] = " ".join(sorted(library.capabilities(target)))
    return Key.of(inputs)


def _encode_lines(values: Mapping[str, str]) -> str:
    """A variable in each line, as JSON: a value with a line break stays in its line."""
    return "\n".join(f"{name}={_encode(value)}" for name, value in sorted(values.items()))


def _lines(values: Iterable[str]) -> str:
    return "\n".join(sorted(set(values)))


def _code_hash(with_hooks: bool) -> str:
    """The code that builds: ``build_steps.py``, and for a library with hooks all of ``build_hooks.py``,
    because a hook may use anything of its module.
    """
    steps = build_steps.__file__
    hooks = os.path.join(os.path.dirname(steps), "build_hooks.py")  # noqa: PTH118, PTH120 - hot
    files = (steps, hooks) if with_hooks else (steps,)
    stats = map(os.stat, files)
    return _hash_of_files(
        files,
        tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for stat in stats),
    )


@lru_cache(maxsize=16)
def _hash_of_files(files: tuple[str, ...], _stats: tuple[tuple[int, ...], ...]) -> str:
    """Read once for as long as the files stay as they are."""
    digests = [hashlib.sha256(Path(name).read_bytes()).digest() for name in files]
    return hashlib.sha256(b"".join(digests)).hexdigest()
