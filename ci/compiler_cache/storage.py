"""Where a compiler cache keeps its objects, said by the tools' own variables: a folder, Redis, or S3.

Only sccache's server reads the variables, and only it gets the credentials in them: builds have a scrubbed
environment, compilers are started with the build's. (A build that runs as the same user could read the
server's environment in ``/proc``: for sources that are not trusted, give no credentials that can write.)
ccache has no server; what it connects with, every build sees. So credentials in its storage's address are
refused.

Sources: sccache, docs/{Configuration,Local,Redis,S3}.md; ccache manual, "Remote storage backends".
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from ci.errors import ConfigError

_STORAGES = ("S3", "REDIS", "LOCAL", "GCS", "AZURE", "MEMCACHED", "WEBDAV", "GHA", "OSS", "COS")
_CONNECTION = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION",
    "AWS_DEFAULT_REGION", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_PROFILE",
    "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_EC2_METADATA_DISABLED",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "http_proxy", "https_proxy", "no_proxy",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
)  # fmt: skip
_NOT_STORAGE = frozenset(
    ("SCCACHE_CONF", "SCCACHE_CACHED_CONF", "SCCACHE_SERVER_UDS", "SCCACHE_SERVER_PORT",
     "SCCACHE_START_SERVER", "SCCACHE_NO_DAEMON", "SCCACHE_IDLE_TIMEOUT", "SCCACHE_STARTUP_NOTIFY",
     "SCCACHE_LOG", "SCCACHE_ERROR_LOG", "SCCACHE_DIRECT", "SCCACHE_BASEDIRS", "SCCACHE_RECACHE",
     "SCCACHE_C_CUSTOM_CACHE_BUSTER", "SCCACHE_NO_CACHE", "SCCACHE_DIST_AUTH", "SCCACHE_ALLOW_CORE_DUMPS")
)  # fmt: skip
_ENDPOINTS = (
    "SCCACHE_REDIS", "SCCACHE_REDIS_ENDPOINT", "SCCACHE_REDIS_CLUSTER_ENDPOINTS", "SCCACHE_ENDPOINT",
    "SCCACHE_MEMCACHED", "SCCACHE_MEMCACHED_ENDPOINT", "SCCACHE_WEBDAV_ENDPOINT",
)  # fmt: skip
_PORTS = {"redis": 6379, "rediss": 6379, "http": 80, "https": 443, "tcp": 6379}
_ANSWER_SECONDS = 3.0
_CCACHE_STORAGE = ("CCACHE_DIR", "CCACHE_MAXSIZE", "CCACHE_REMOTE_STORAGE", "CCACHE_REMOTE_ONLY")


def sccache_storage(environ: Mapping[str, str], folder: Path, *, read_only: bool) -> dict[str, str]:
    """The variables of sccache's server that say where objects are: the caller's, else ``folder``.

    ``read_only``: nothing is written, wherever it is, so that builds of untrusted sources cannot leave
    objects for others.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if (name.startswith("SCCACHE_") and name not in _NOT_STORAGE) or name in _CONNECTION
    }
    kept.setdefault("SCCACHE_DIR", str(folder))
    if read_only:
        kept |= {f"SCCACHE_{storage}_RW_MODE": "READ_ONLY" for storage in _STORAGES}
    return kept


def ccache_storage(environ: Mapping[str, str], folder: Path, *, read_only: bool) -> dict[str, str]:
    """The variables of builds that say where ccache's objects are: the caller's, else ``folder``.

    Raises :class:`~ci.errors.ConfigError` when the remote storage's address has credentials in it.
    """
    kept = {name: environ[name] for name in _CCACHE_STORAGE if name in environ}
    for address in kept.get("CCACHE_REMOTE_STORAGE", "").split():
        place = urlsplit(address.partition("|")[0])
        if place.username or place.password or "bearer-token=" in address:
            raise ConfigError(
                "CCACHE_REMOTE_STORAGE has credentials in it, and every build would see them",
                cause="ccache has no server: the build's own compilers would connect to the storage",
                next_step="--compiler-cache sccache, whose server alone gets the credentials; "
                "or a storage without credentials",
            )
    kept.setdefault("CCACHE_DIR", str(folder))
    kept["CCACHE_CONFIGPATH"] = kept["CCACHE_CONFIGPATH2"] = os.devnull
    if read_only:
        kept["CCACHE_READONLY"] = "1"
    return kept


def addresses(storage: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """Hosts and ports of sccache's storages that have an address of their own; pure."""
    found: dict[tuple[str, int], None] = {}
    for name in _ENDPOINTS:
        for address in storage.get(name, "").replace(",", " ").split():
            place = urlsplit(address if "://" in address else f"//{address}")
            with contextlib.suppress(ValueError):  # a port that is none: sccache will say so
                secure = storage.get("SCCACHE_S3_USE_SSL", "").lower() in ("1", "on", "true", "yes")
                port = place.port or _PORTS.get(place.scheme, 443 if secure else 80)
                if place.hostname:
                    found[(place.hostname, port)] = None
    return tuple(found)


def silent_storage(storage: Mapping[str, str]) -> str:
    """The first address (``HOST:PORT: WHY``) that takes no connection, empty when all do. An address that is
    reached through a proxy is not asked.
    """
    if any(name.lower() in ("http_proxy", "https_proxy") for name in storage):
        return ""
    told = (_silence(host, port) for host, port in addresses(storage))
    return next((text for text in told if text), "")


def _silence(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), timeout=_ANSWER_SECONDS).close()
    except OSError as error:
        return f"{host}:{port}: {error.strerror or error}"
    return ""
