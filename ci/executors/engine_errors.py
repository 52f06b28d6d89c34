"""What the engine's program says when something fails, as data: which words mean what, and what to do.

``docker`` and ``podman`` end with status 1 or 125 for nearly everything, so their words decide. The tables
are looked through in order and the first entry that fits is taken; each knows the words of docker 20.10
to 28 and of podman 4 and 5, as their programs print them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ci.errors import ConfigError, FarmError, InfrastructureError, ToolchainError

SHOWN_LINES = 8


@dataclass(frozen=True)
class Trouble:
    """Words of an engine and what they mean. ``{engine}`` in ``next_step`` is docker or podman.

    ``passing`` is true for what may be gone after a pause, so that trying again makes sense.
    """

    kind: str
    words: str
    error: type[FarmError]
    cause: str
    next_step: str
    passing: bool = False

    def fits(self, text: str) -> bool:
        """True when ``text`` holds these words, in any case of letters."""
        return re.search(self.words, text, re.IGNORECASE) is not None


DISK_FULL = Trouble(
    "disk",
    r"no space left on device|disk quota exceeded|not enough (free )?space",
    InfrastructureError,
    "the disk with the engine's data is full",
    "{engine} system df shows what takes the space; {engine} system prune frees what nobody uses",
)
PERMISSION = Trouble(
    "permission",
    r"permission denied while trying to connect"
    r"|dial unix \S+: connect: permission denied|connect: permission denied",
    InfrastructureError,
    "this user may not use the engine's socket",
    'sudo usermod -aG docker "$USER", then log in again; or use podman, which needs no group',
)
CONTEXT = Trouble(
    "context",
    r"unable to resolve docker endpoint|context \S+ ?(not found|does not exist)|context not found",
    InfrastructureError,
    "DOCKER_CONTEXT, or the context that was chosen, names an engine that is not configured",
    "docker context ls, then docker context use default (and unset DOCKER_CONTEXT)",
)
API_VERSION = Trouble(
    "api version",
    r"client version \S+ is too (new|old)|client is newer than server|client is older than server",
    InfrastructureError,
    "client and daemon are too far apart in age",
    "docker version shows both; DOCKER_API_VERSION=… makes a newer client speak the daemon's version",
)
TLS = Trouble(
    "tls",
    r"x509: |tls: |server gave HTTP response to HTTPS client|HTTP request to an HTTPS server",
    InfrastructureError,
    "the other side shows a certificate that this side does not trust, or speaks no TLS",
    "{engine} info; check the certificates of the registry or of DOCKER_HOST (DOCKER_CERT_PATH)",
)
DOWN = Trouble(
    "down",
    r"cannot connect to the docker daemon|is the docker daemon running"
    r"|failed to connect to the docker api|error during connect|cannot connect to podman"
    r"|unable to connect to podman|connect: connection refused"
    r"|connect: no such file or directory|cannot connect to \S+\.sock|no route to host",
    InfrastructureError,
    "the daemon does not run, or DOCKER_HOST names another place",
    "sudo systemctl start docker; echo $DOCKER_HOST (unset it for the engine of this machine)",
)
LOST = Trouble(
    "lost",
    r"unexpected EOF|error waiting for container|connection reset by peer|broken pipe"
    r"|use of closed network connection|: EOF\s*$|conmon .*(exited|died)",
    InfrastructureError,
    "the engine went away while the container ran: it was stopped, restarted or killed",
    "systemctl status docker (journalctl -u docker says why), then run again: what is left is removed",
)
NO_CONTAINER = Trouble(
    "no container",
    r"no such container|no such object|no container with (name or )?ID",
    InfrastructureError,
    "something else removed it: `{engine} rm`, `{engine} system prune`, or a clean-up job",
    "run again; {engine} events --since 10m shows who removed what",
)
NO_IMAGE = Trouble(
    "no image",
    r"no such image|image not known|unable to find image|no such object",
    ToolchainError,
    "it was removed, or never built on this engine",
    "nox -s images",
)

PROBE = (PERMISSION, CONTEXT, API_VERSION, TLS, DOWN, LOST, DISK_FULL)
"""An engine is asked what it is."""

_HOST = r"(toomanyrequests|too many requests|\b429\b|rate limit)"

PULL = (
    DISK_FULL,
    PERMISSION,
    CONTEXT,
    Trouble(
        "architecture",
        r"no matching manifest for|no image found in (manifest list|image index) for"
        r"|does not match the (specified|expected) platform|no child with platform",
        InfrastructureError,
        "the registry has this image for other architectures only",
        "name an image of this architecture with --image, or run the farm on a machine of the other one",
    ),
    Trouble(
        "throttled",
        _HOST,
        InfrastructureError,
        "the registry limits how often this address may pull",
        "wait, or log in for a higher limit: {engine} login",
        passing=True,
    ),
    Trouble(
        "denied",
        r"pull access denied|\bdenied:|unauthorized|authentication required|403 forbidden"
        r"|no basic auth credentials|insufficient_scope",
        InfrastructureError,
        "the registry wants a login, or this login may not read the image",
        "{engine} login REGISTRY, then run again; check the image's name for a typing error",
    ),
    Trouble(
        "unknown",
        r"manifest unknown|manifest for .+ not found|name unknown|repository .+ not found"
        r"|reading manifest .+ not found|: not found\s*$|invalid reference format",
        InfrastructureError,
        "the registry has no such image, tag or digest",
        "check the name given with --image",
    ),
    Trouble(
        "server",
        r"\b50[0234]\b|internal server error|bad gateway|service unavailable|gateway time-?out",
        InfrastructureError,
        "the registry has trouble of its own",
        "run again later; another registry can be named with --image",
        passing=True,
    ),
    Trouble(
        "timeout",
        r"i/o timeout|TLS handshake timeout|context deadline exceeded|Client\.Timeout"
        r"|request canceled while waiting|connection timed out",
        InfrastructureError,
        "the registry did not answer in time: network, proxy or firewall",
        "{engine} pull by hand; the daemon's own proxy settings count, not this shell's",
        passing=True,
    ),
    Trouble(
        "reset",
        r"connection reset by peer|unexpected EOF|: EOF\s*$|broken pipe|http2: .*closed"
        r"|temporary failure in name resolution|server misbehaving|TLS: bad record",
        InfrastructureError,
        "the connection to the registry broke",
        "{engine} pull by hand; the daemon's own proxy settings count, not this shell's",
        passing=True,
    ),
    Trouble(
        "name resolution",
        r"no such host",
        InfrastructureError,
        "this machine cannot look up the registry: no network, or one without the outside",
        "nox -s images builds images without a registry; a bundle brings them from another machine",
    ),
    TLS,
    DOWN,
)
"""An image is fetched."""

OPEN_FILES = Trouble(
    "open files",
    r"setting rlimit|rlimit type 7|RLIMIT_NOFILE|setrlimit|ulimit .*nofile",
    InfrastructureError,
    "the engine wants more open files for a container than this machine allows it",
    "start the engine with a higher limit (LimitNOFILE= of its service)",
)

CREATE = (
    DISK_FULL,
    OPEN_FILES,
    PERMISSION,
    CONTEXT,
    NO_IMAGE,
    Trouble(
        "limits",
        r"range of CPUs is from|minimum memory limit|CPU cfs|nanocpus can not be set"
        r"|invalid argument .+ for \"(--cpus|-m|--memory)",
        ConfigError,
        "the engine cannot give what --cpus or --memory say",
        "choose a limit within what `{engine} info` shows as CPUs and Total Memory",
    ),
    Trouble(
        "network",
        r"network \S+ not found|unable to find network|network not found|no such network",
        ConfigError,
        "--network names one that this engine does not have",
        "{engine} network ls",
    ),
    Trouble(
        "bridge",
        r"failed to create endpoint|could not find bridge|failed to (set up|setup) network"
        r"|netavark|iptables",
        InfrastructureError,
        "the engine's own network on this machine is broken (interface or firewall rules were removed)",
        "restart the engine (sudo systemctl restart docker), or use --network host",
    ),
    Trouble(
        "mount",
        r"bind source path does not exist|mounts denied|statfs .+: no such file|error mounting"
        r"|error while creating mount source path|invalid mount config",
        InfrastructureError,
        "the engine does not see a folder of this machine: it runs elsewhere, or in a virtual machine that "
        "shares other folders",
        "{engine} context ls or echo $DOCKER_HOST; use an engine of this machine",
    ),
    Trouble(
        "other machine's program",
        r"exec format error",
        ToolchainError,
        "the image is for another architecture than this machine",
        "nox -s images, on this machine",
    ),
    Trouble(
        "no program",
        r"executable file .*not found|exec: .+no such file or directory|command that was not found"
        r"|exec: .+permission denied|: is a directory: unknown|exec .+ failed: |failed to exec pid1",
        ToolchainError,
        "the image does not hold that program, or it may not be executed there",
        "nox -s images -- --verify; the log names the program",
    ),
    LOST,
    NO_CONTAINER,
    TLS,
    DOWN,
)
"""A container is made and started, its program not yet."""

GONE = (DISK_FULL, PERMISSION, DOWN, LOST, TLS, CONTEXT)
"""The engine is asked about what it runs."""

_INIT_SAYS = re.compile(
    r"^\[FATAL tini \(\d+\)\] exec .+ failed: .+$|^ERROR \(catatonit:\d+\): failed to exec"
)
"""The first process (``--init``) when it cannot start the program: docker's is tini, podman's catatonit."""


def trouble_of(text: str, table: Iterable[Trouble]) -> Trouble | None:
    """The first entry of ``table`` whose words are in ``text``."""
    return next((trouble for trouble in table if trouble.fits(text)), None)


def engine_error(message: str, text: str, table: Iterable[Trouble], engine: str) -> FarmError:
    """The error for a call that failed saying ``text``; infrastructure when no entry knows the words."""
    details = [line for line in text.splitlines() if line.strip()][-SHOWN_LINES:]
    trouble = trouble_of(text, table)
    if trouble is None:
        return InfrastructureError(
            message,
            cause=f"{engine} refused, in words that the farm does not know",
            next_step=f"read what it said, and try it by hand; {engine} info shows its state",
            details=details,
        )
    return trouble.error(
        message,
        cause=trouble.cause.format(engine=engine),
        next_step=trouble.next_step.format(engine=engine),
        details=details,
    )


def said_by_init(output: str) -> str:
    """The line of the container's first process that says that the program could not be started, or ''."""
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1] if lines and _INIT_SAYS.match(lines[-1]) else ""
