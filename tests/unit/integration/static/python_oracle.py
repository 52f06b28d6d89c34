"""Python itself as the oracle: a child process that imports packages and says what happened.

It imports from a stand-in for torch that is on its path, so that nothing heavy is loaded. Requests and
answers are lines of JSON; a package has a name of its own in each request.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_CHILD = """
import importlib, json, sys
sys.dont_write_bytecode = True
for line in sys.stdin:
    request = json.loads(line)
    sys.path.insert(0, request["path"])
    importlib.invalidate_caches()
    answer = {"error": "", "message": ""}
    try:
        for name in request["names"]:
            importlib.import_module(name)
    except Exception as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    tops = {name.partition(".")[0] for name in request["names"]}
    mine = [name for name in sys.modules if name.partition(".")[0] in tops]
    answer["modules"] = sorted(name for name in mine if getattr(sys.modules[name], "__file__", None))
    answer["torch"] = sorted(name for name in sys.modules if name.partition(".")[0] == "torch")
    for name in [*mine, *answer["torch"]]:
        del sys.modules[name]
    sys.path.remove(request["path"])
    print(json.dumps(answer), flush=True)
"""


@dataclass(frozen=True)
class Imported:
    """What importing did: the error, if any, and the modules that were there afterwards."""

    error: str
    message: str
    modules: frozenset[str]
    torch: frozenset[str]

    @property
    def is_circular(self) -> bool:
        """True for an error that Python blames on a cycle."""
        return "partially initialized" in self.message


class Python:
    """The child process. Close it when done."""

    def __init__(self, folder: Path) -> None:
        for place in ("torch/__init__.py", "torch/nn/__init__.py", "torch/nn/functional.py"):
            path = folder / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
        self._child = subprocess.Popen(
            [sys.executable, "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            text=True,
        )

    def imports(self, path: Path, *names: str) -> Imported:
        """Import ``names`` one after the other with ``path`` on the search path."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps({"path": str(path), "names": names}) + "\n")
        self._child.stdin.flush()
        answer = json.loads(self._child.stdout.readline())
        return Imported(
            answer["error"],
            answer["message"],
            frozenset(answer["modules"]),
            frozenset(answer["torch"]),
        )

    def close(self) -> None:
        """End the child."""
        self._child.communicate(timeout=20)
