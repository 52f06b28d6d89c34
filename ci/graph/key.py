"""The key of a step: the hash of every named input, and of nothing else.

Values that only schedule (jobs, threads, temporary paths) are never inputs. Inputs keep their names, so
that two keys can be compared and the one input that changed can be named.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.registry import EcosystemLibrary, Target, build_steps

KEY_SCHEMA = 1


@dataclass(frozen=True)
class Key:
    """Named inputs of a step. Equal inputs give an equal digest, in whatever order they were named."""

    inputs: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, inputs: Mapping[str, str]) -> Key:
        """The key of ``inputs``."""
        return cls(tuple(sorted(inputs.items())))

    @property
    def digest(self) -> str:
        """SHA-256 over schema, names and values, 64 hexadecimal digits."""
        text = json.dumps([KEY_SCHEMA, self.inputs], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def difference(self, other: Key) -> dict[str, tuple[str | None, str | None]]:
        """The inputs that differ: name to the value here and there (``None`` where it is not one)."""
        mine, theirs = dict(self.inputs), dict(other.inputs)
        return {
            name: (mine.get(name), theirs.get(name))
            for name in sorted(mine.keys() | theirs.keys())
            if mine.get(name) != theirs.get(name)
        }


def library_key(
    library: EcosystemLibrary,
    target: Target,
    *,
    tree: str,
    build_requires: tuple[str, ...],
    toolchain_identity: str,
    interpreter_identity: str,
) -> Key:
    """The key of a library's build: only the axes that its declaration says it varies by.

    ``tree`` is the hash of its sources, ``build_requires`` its build requirements as locked,
    ``toolchain_identity`` what it is compiled with, which counts only for a library that is compiled.
    """
    inputs = {
        "library": library.name,
        "source tree": tree,
        "artifacts": repr(tuple((item.source, item.target) for item in library.artifacts)),
        "ignored": repr(sorted(library.ignored)),
        "build requirements": " ".join(build_requires),
        "environment": json.dumps(library.build_env(target), sort_keys=True),
        "include folders": " ".join(library.include_dirs),
        "hooks before build": " ".join(library.hooks_before_build),
        "hooks after collect": " ".join(library.hooks_after_collect),
        "build code": _code_hash(bool(library.hooks_before_build or library.hooks_after_collect)),
    }
    if library.needs_cuda_compiler or library.needs_host_compiler:
        inputs["toolchain"] = toolchain_identity
    if "python" in library.varies_by:
        inputs["python"] = interpreter_identity
    if "cuda" in library.varies_by:
        inputs["cuda"] = target.cuda
    if "capability" in library.varies_by:
        inputs["capabilities"] = " ".join(library.capabilities(target))
    return Key.of(inputs)


def _code_hash(with_hooks: bool) -> str:
    steps = Path(build_steps.__file__)
    files = [steps, steps.with_name("build_hooks.py")] if with_hooks else [steps]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
