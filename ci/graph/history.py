"""What tasks used in earlier runs, and the inputs that their last key was made of.

One small JSON file for each name, replaced atomically, so that several farms may share the folder on any
disk: a reader sees the file before or after, never between. Two farms that write one name at the same
moment lose one observation of the two, which a median does not miss. A file that cannot be read counts as
no history, and the next observation replaces it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ci.graph.model import Expected, Usage

SCHEMA = 1
KEPT = 10
GIB = 1024**3

# Guesses for what was never seen: seconds, CPU seconds, peak bytes. They only have to put long work before
# short work, and to keep a first run from filling the memory: one nvcc of flash-attention took 2.7 GiB.
GUESSES = {
    "prepare": Expected(20.0, 10.0, GIB // 2),
    "build": Expected(300.0, 300.0, 2 * GIB),
    "library": Expected(300.0, 300.0, 2 * GIB),
    "wheel": Expected(30.0, 25.0, GIB // 4),
    "import": Expected(60.0, 45.0, GIB),
    "cell": Expected(600.0, 600.0, 4 * GIB),
}
UNKNOWN = Expected(10.0, 10.0, GIB // 4)


def guess(kind: str) -> Expected:
    """What a task of ``kind`` may use, when nobody has seen it yet."""
    return GUESSES.get(kind, UNKNOWN)


@dataclass(frozen=True)
class Observation:
    """One run of a task. ``result`` is ``done``, ``failed`` or ``killed`` (for memory), ``at`` seconds since
    the epoch.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    tokens: int
    result: str
    at: float

    @classmethod
    def of(cls, usage: Usage, *, tokens: int, result: str, at: float) -> Observation:
        """What ``usage`` says."""
        return cls(usage.seconds, usage.cpu_seconds, usage.peak_bytes, tokens, result, at)


@dataclass(frozen=True)
class LastKey:
    """The key that a name had last: its digest and its named inputs."""

    digest: str
    inputs: Mapping[str, str]


@dataclass(frozen=True)
class _Record:
    observations: tuple[Observation, ...] = ()
    key: LastKey | None = None


class History:
    """The history in ``root``, which is made when something is written."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        """The file of ``name``: a readable part, and a hash that keeps names apart."""
        plain = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[:60]
        return self.root / f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"

    def expected(self, name: str) -> Expected | None:
        """What ``name`` will use; ``None`` when it has never been seen to its end.

        Time is the median of the runs that succeeded, which one slow machine does not move; memory the
        largest of all kept runs, failed and killed ones too, because too little memory costs a build.
        """
        seen = self._read(name).observations
        good = [item for item in seen if item.result == "done"]
        if not good:
            return None
        return Expected(
            seconds=statistics.median(item.seconds for item in good),
            cpu_seconds=statistics.median(item.cpu_seconds for item in good),
            peak_bytes=max(item.peak_bytes for item in seen),
            runs=len(good),
        )

    def observations(self, name: str) -> tuple[Observation, ...]:
        """The kept runs of ``name``, oldest first."""
        return self._read(name).observations

    def observe(
        self,
        name: str,
        observation: Observation,
        digest: str = "",
        inputs: Mapping[str, str] | None = None,
    ) -> None:
        """Keep ``observation``; with ``digest``, also the key that it was made with.

        A disk that refuses is not an error: a run does not depend on what the next one will expect.
        """
        old = self._read(name)
        key = LastKey(digest, dict(inputs or {})) if digest else old.key
        self._write(name, _Record((*old.observations, observation)[-KEPT:], key))

    def keyed(self, name: str, digest: str, inputs: Mapping[str, str]) -> None:
        """Keep the key of ``name``: what the next run compares with."""
        old = self._read(name)
        key = LastKey(digest, dict(inputs))
        if old.key != key:
            self._write(name, _Record(old.observations, key))

    def last_key(self, name: str) -> LastKey | None:
        """The key that ``name`` had last."""
        return self._read(name).key

    def last_inputs(self, name: str) -> Mapping[str, str] | None:
        """The named inputs of the last key."""
        key = self.last_key(name)
        return None if key is None else key.inputs

    def _read(self, name: str) -> _Record:
        try:
            values = json.loads(self.path(name).read_text("utf-8"))
            if values["schema"] != SCHEMA or values["name"] != name:
                return _Record()
            return _Record(
                tuple(_observation(item) for item in values["observations"][-KEPT:]),
                _key(values["key"]),
            )
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return _Record()

    def _write(self, name: str, record: _Record) -> None:
        path = self.path(name)
        values = {
            "schema": SCHEMA,
            "name": name,
            "observations": [asdict(item) for item in record.observations],
            "key": None
            if record.key is None
            else {"digest": record.key.digest, "inputs": dict(record.key.inputs)},
        }
        partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(values, indent=1, sort_keys=True) + "\n", "utf-8")
            os.replace(partial, path)
        except OSError:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def _observation(values: Mapping[str, object]) -> Observation:
    numbers = {name: _number(values[name]) for name in ("seconds", "cpu_seconds", "at")}
    return Observation(
        seconds=numbers["seconds"],
        cpu_seconds=numbers["cpu_seconds"],
        peak_bytes=int(_number(values["peak_bytes"])),
        tokens=int(_number(values["tokens"])),
        result=str(values["result"]),
        at=numbers["at"],
    )


def _number(value: object) -> float:
    """A number that is finite and not negative; a file may hold anything."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**60:
        raise ValueError(f"not a quantity: {value!r}")
    return float(value)


def _key(values: Mapping[str, object] | None) -> LastKey | None:
    if values is None:
        return None
    inputs = values["inputs"]
    if not isinstance(inputs, dict):
        raise TypeError("inputs are no mapping")
    return LastKey(str(values["digest"]), {str(name): str(text) for name, text in inputs.items()})
