"""A program in the place of ``docker`` or ``podman``: it says what a test wrote down, and notes its calls."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROGRAM = """#!{python} -S
import json, os, pathlib, re, sys, time
folder = pathlib.Path({folder!r})
said = " ".join(sys.argv[1:])
with (folder / "calls").open("a") as sink:
    sink.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
for rule in sorted(folder.glob("rule-*")):
    pattern, output, status, seconds, times = json.loads(rule.read_text())
    if re.search(pattern, said):
        if times is not None:
            rule.unlink() if times == 1 else rule.write_text(
                json.dumps([pattern, output, status, seconds, times - 1])
            )
        sys.stdout.write(output)
        sys.stdout.flush()
        time.sleep(seconds)
        sys.exit(status)
sys.exit("nothing was written down for: " + said)
"""

DOCKER_INFO: dict[str, object] = {
    "ServerVersion": "28.1.1", "Architecture": "x86_64", "DockerRootDir": "/", "Driver": "overlay2",
    "CgroupVersion": "2", "NCPU": 8, "MemTotal": 64 * 2**30, "OperatingSystem": "Debian GNU/Linux 12",
    "SecurityOptions": ["name=seccomp,profile=builtin", "name=cgroupns"], "Runtimes": {"runc": {}},
}  # fmt: skip
PODMAN_INFO: dict[str, object] = {
    "host": {
        "arch": "arm64", "cgroupVersion": "v2", "cpus": 4, "memTotal": 16 * 2**30,
        "security": {"rootless": True}, "serviceIsRemote": False,
    },
    "store": {"graphRoot": "/", "graphDriverName": "overlay"},
    "version": {"Version": "5.4.0"},
}  # fmt: skip
RAN: dict[str, object] = {
    "Status": "exited", "Running": False, "OOMKilled": False, "ExitCode": 0, "Error": "",
    "StartedAt": "2026-01-02T03:04:05Z",
}  # fmt: skip
NO_DAEMON = (
    "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. "
    "Is the docker daemon running?\n"
)


@dataclass(frozen=True)
class Call:
    arguments: tuple[str, ...]
    env: Mapping[str, str]

    @property
    def said(self) -> str:
        return " ".join(self.arguments)


class FakeDocker:
    """``program`` lies in a folder of its own; the first answer whose pattern fits the arguments is given."""

    def __init__(self, folder: Path, name: str = "docker") -> None:
        self.folder = folder
        self.program = folder / "bin" / name
        self.program.parent.mkdir(parents=True)
        self.program.write_text(PROGRAM.format(python=sys.executable, folder=str(folder)))
        self.program.chmod(0o755)
        self._rules = 0

    def answer(
        self, pattern: str, output: str | Mapping[str, object] = "", status: int = 0,
        *, seconds: float = 0.0, times: int | None = None,
    ) -> FakeDocker:  # fmt: skip
        text = output if isinstance(output, str) else json.dumps(output) + "\n"
        self._rules += 1
        rule = self.folder / f"rule-{self._rules:03}"
        rule.write_text(json.dumps([pattern, text, status, seconds, times]))
        return self

    def inspected(
        self, pattern: str, found: Mapping[str, object], times: int | None = None
    ) -> FakeDocker:
        """An answer as ``inspect`` gives it: a list, over many lines."""
        return self.answer(pattern, json.dumps([found], indent=4) + "\n", times=times)

    def state(self, times: int | None = None, **state: object) -> FakeDocker:
        """The state of a container that ended well, but for ``state``."""
        return self.inspected("^container inspect", {"State": {**RAN, **state}}, times)

    def facts(self, info: Mapping[str, object] = DOCKER_INFO, **changes: object) -> FakeDocker:
        """Answers to what is asked of every engine."""
        self.answer("^info ", {**info, **changes})
        self.answer("^version ", {"Client": {"Version": "28.2.2"}, "Server": {"Version": "28.1.1"}})
        self.answer("^context inspect ", "unix:///var/run/docker.sock\n")
        return self.answer("^buildx ", "no such command\n", 1)

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": str(self.program.parent), "HOME": "/home/somebody"}

    @property
    def calls(self) -> list[Call]:
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [Call(tuple(argv), env) for argv, env in map(json.loads, lines)]

    def said(self, verb: str) -> list[Call]:
        return [call for call in self.calls if call.arguments[0] == verb]


def path_of(*fakes: FakeDocker) -> dict[str, str]:
    return {"PATH": os.pathsep.join(str(fake.program.parent) for fake in fakes)}
