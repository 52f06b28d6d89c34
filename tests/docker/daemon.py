"""A Docker daemon for tests: its own containerd, folders and socket, beside whatever else runs here.

It has a bridge of its own, since with ``--bridge=none`` dockerd removes ``docker0``, which another daemon
uses. It touches neither iptables nor IP forwarding, so containers that need a network take the host's.
Nothing is shared with another daemon of the machine: what a test kills, fills or configures here is this
daemon's alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = ("docker", "dockerd", "containerd", "containerd-shim-runc-v2", "runc", "ip")
CAP_SYS_ADMIN = 21  # linux/capability.h
SECONDS_TO_START = 60.0
SECONDS_TO_END = 20.0
LONGEST_ROOT = 70
"""Bytes of the root folder's path: a socket's path has at most 107 (``sun_path`` of unix(7))."""

OPTIONS = (
    "--iptables=false",
    "--ip-forward=false",
    "--ip-masq=false",
    "--userland-proxy=false",
)
CONTAINERD = """version = 2
disabled_plugins = ["io.containerd.grpc.v1.cri"]
"""


class DaemonError(Exception):
    """The daemon did not start; the message holds the end of its log."""


def missing() -> tuple[str, ...]:
    """What this host lacks to run a daemon, each as a reason; empty when a daemon can start."""
    reasons = [f"{name} is not on PATH" for name in PROGRAMS if shutil.which(name) is None]
    if os.geteuid() != 0:
        reasons.append("the tests do not run as root")
    elif not _may_mount():
        reasons.append("the capability CAP_SYS_ADMIN is missing (an unprivileged container?)")
    return tuple(reasons)


def _ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True, capture_output=True)


def _may_mount() -> bool:
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> CAP_SYS_ADMIN & 1)
    return False


@dataclass(eq=False)
class Daemon:
    """A daemon below ``root``. :meth:`start` makes one; :meth:`stop` leaves nothing of it."""

    root: Path
    options: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    _dockerd: subprocess.Popen[bytes] | None = None
    _containerd: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, root: Path, *, path: Sequence[Path] = (), options: Sequence[str] = ()) -> Daemon:
        """A daemon that answers. ``root`` is a short path outside the project; ``path`` are folders in
        front of its ``PATH`` (a runtime hook), ``options`` more options of ``dockerd``.

        Raises :class:`DaemonError` when it ends or does not answer within a minute.
        """
        if len(os.fsencode(root)) > LONGEST_ROOT:
            raise ValueError(
                f"{root} is longer than {LONGEST_ROOT} bytes: sockets below it have no name"
            )
        entries = [str(entry) for entry in path] + [os.environ.get("PATH", os.defpath)]
        env = dict(os.environ) | {"PATH": os.pathsep.join(entries)}
        daemon = cls(root, tuple(options), env)
        root.mkdir(parents=True, exist_ok=True)
        try:
            daemon.restart()
        except BaseException:
            daemon.stop()
            raise
        return daemon

    @property
    def url(self) -> str:
        """What ``DOCKER_HOST`` takes."""
        return f"unix://{self.root / 'docker.sock'}"

    @property
    def pid(self) -> int:
        """The process id of ``dockerd``. Raises :class:`RuntimeError` when it does not run."""
        if self._dockerd is None:
            raise RuntimeError("this daemon does not run")
        return self._dockerd.pid

    @property
    def bridge(self) -> str:
        """The name of its network interface; at most 15 bytes (IFNAMSIZ of Linux's net/if.h)."""
        return f"farm{zlib.crc32(os.fsencode(self.root)):08x}"

    @property
    def _has_bridge(self) -> bool:
        return Path("/sys/class/net", self.bridge).exists()

    @property
    def log(self) -> Path:
        return self.root / "dockerd.log"

    def docker(self, *arguments: str, check: bool = True) -> str:
        """What ``docker ARGUMENTS`` prints, against this daemon."""
        done = subprocess.run(
            ("docker", "--host", self.url, *arguments),
            env=_plain_environment(), capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(f"docker {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def kill(self) -> None:
        """SIGKILL to ``dockerd``; its containers run on, as when the engine crashes."""
        if self._dockerd is not None:
            self._dockerd.kill()
            self._dockerd.wait()
            self._dockerd = None

    def restart(self) -> None:
        """``dockerd`` again, with the same folders and the same socket; waits until it answers."""
        self._end_dockerd()
        (self.root / "dockerd.pid").unlink(missing_ok=True)
        if not self._has_bridge:
            _ip("link", "add", self.bridge, "type", "bridge")
        if self._containerd is None or self._containerd.poll() is not None:
            self._start_containerd()
        self._dockerd = self._spawn(
            "dockerd",
            "--config-file", str(self._write("daemon.json", "{}")),
            "--data-root", str(self.root / "data"),
            "--exec-root", str(self.root / "exec"),
            "--pidfile", str(self.root / "dockerd.pid"),
            "--containerd", str(self.root / "containerd.sock"),
            "--host", self.url,
            "--bridge", self.bridge,
            *OPTIONS,
            *self.options,
        )  # fmt: skip
        self._wait_for("dockerd", self._dockerd, self._answers)

    def stop(self) -> None:
        """End the daemon, its containers and shims, and remove its mounts and folders; again is fine."""
        self._remove_containers()
        self._end_dockerd()
        _end(self._containerd)
        self._containerd = None
        self._end_shims()
        for mount in mounts_below(self.root):
            subprocess.run(("umount", "--lazy", str(mount)), check=False, capture_output=True)
        if self._has_bridge:
            _ip("link", "delete", self.bridge)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.root)

    def _remove_containers(self) -> None:
        if self._dockerd is None or self._dockerd.poll() is not None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            names = self.docker("ps", "--all", "--quiet", check=False).split()
            if names:
                self.docker("rm", "--force", "--volumes", *names, check=False)

    def _start_containerd(self) -> None:
        self._containerd = self._spawn(
            "containerd",
            "--config", str(self._write("containerd.toml", CONTAINERD)),
            "--root", str(self.root / "containerd"),
            "--state", str(self.root / "state"),
            "--address", str(self.root / "containerd.sock"),
        )  # fmt: skip
        self._wait_for("containerd", self._containerd, (self.root / "containerd.sock").is_socket)

    def _write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.write_text(text, "utf-8")
        return path

    def _spawn(self, *argv: str) -> subprocess.Popen[bytes]:
        """A process that ends with this one, and that an interrupt of the terminal does not reach."""
        tie = ("setpriv", "--pdeathsig", "TERM", "--") if shutil.which("setpriv") else ()
        with (self.root / f"{argv[0]}.log").open("ab") as sink:
            return subprocess.Popen(
                (*tie, *argv), env=dict(self.env), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def _wait_for(
        self, name: str, process: subprocess.Popen[bytes], ready: Callable[[], bool]
    ) -> None:
        deadline = time.monotonic() + SECONDS_TO_START
        while not ready():
            if process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            tail = (self.root / f"{name}.log").read_text("utf-8", "replace").splitlines()[-20:]
            state = "does not answer" if process.poll() is None else f"ended: {process.poll()}"
            raise DaemonError("\n".join((f"{name} {state}; the end of its log:", *tail)))

    def _answers(self) -> bool:
        done = subprocess.run(
            ("docker", "--host", self.url, "version", "--format", "{{.Server.Version}}"),
            env=_plain_environment(), capture_output=True, check=False,
        )  # fmt: skip
        return done.returncode == 0

    def _end_dockerd(self) -> None:
        _end(self._dockerd)
        self._dockerd = None

    def _end_shims(self) -> None:
        """Shims outlive containerd, and a killed daemon's containers theirs; all name our socket."""
        for pid in self._shims():
            for child in (*_descendants(pid), pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)

    def _shims(self) -> tuple[int, ...]:
        address = os.fsencode(self.root / "containerd.sock")
        return tuple(pid for pid, argv in _processes() if address in argv and b"shim" in argv[0])


def _plain_environment() -> dict[str, str]:
    """Without what turns the client to another daemon."""
    names = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
    return {name: value for name, value in os.environ.items() if name not in names}


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is None:
        return
    process.terminate()
    try:
        process.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _processes() -> Iterator[tuple[int, list[bytes]]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                yield int(folder.name), (folder / "cmdline").read_bytes().split(b"\0")


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split():
            found += [*_descendants(int(child)), int(child)]
    return found


def mounts_below(root: Path) -> tuple[Path, ...]:
    """The mount points below ``root``, the innermost first."""
    points = []
    for line in Path("/proc/self/mountinfo").read_text("utf-8").splitlines():
        point = Path(line.split()[4].replace("\\040", " "))
        if root in point.parents:
            points.append(point)
    return tuple(reversed(points))


def main() -> int:
    """As a program: 0 when a daemon starts here and answers, else 1 with the reasons."""
    reasons = missing()
    if not reasons:
        try:
            Daemon.start(Path(tempfile.mkdtemp(prefix="farm-docker-"))).stop()
        except (DaemonError, OSError, subprocess.CalledProcessError) as error:
            reasons = (str(error),)
    print("containers can be tested here" if not reasons else "\n".join(reasons))
    return 1 if reasons else 0


if __name__ == "__main__":
    sys.exit(main())
