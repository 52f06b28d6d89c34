"""What of this host goes into a container: certificates, proxies, package indexes. Never a secret.

Only what is named here goes in, so nothing else can: no SSH agent, no home folder, no engine's socket, no
token. Of what is named, a value or a file with credentials in it stays outside and is told of by its name.
Everything is mounted read-only, at the path that it has here.
"""

from __future__ import annotations

import configparser
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ci.executors.model import Mount

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CERTIFICATE_FILES = (
    "SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
)  # fmt: skip
CERTIFICATE_FOLDERS = ("SSL_CERT_DIR", "GIT_SSL_CAPATH")
DEFAULT_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # Alpine
)
"""Where distributions keep the certificates that they trust, as one file (Go's crypto/x509 has the list)."""

SYSTEM_PIP = Path("/etc/pip.conf")
SYSTEM_UV = Path("/etc/uv/uv.toml")
PROXIES = tuple(
    spelled
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    for spelled in (name, name.upper())
)
PLAIN = (
    "PIP_DEFAULT_TIMEOUT", "PIP_DISABLE_PIP_VERSION_CHECK", "PIP_NO_INDEX", "PIP_PREFER_BINARY",
    "PIP_PROXY", "PIP_RETRIES", "PIP_TIMEOUT", "PIP_TRUSTED_HOST",
    "UV_HTTP_RETRIES", "UV_HTTP_TIMEOUT", "UV_INDEX_STRATEGY", "UV_INSECURE_HOST", "UV_NATIVE_TLS",
    "UV_NO_INDEX", "UV_OFFLINE", "UV_REQUEST_TIMEOUT", "UV_SYSTEM_CERTS",
)  # fmt: skip
PLACES = (
    "PIP_CONSTRAINT", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_INDEX_URL",
    "UV_BUILD_CONSTRAINT", "UV_CONSTRAINT", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS",
    "UV_INDEX", "UV_INDEX_URL", "UV_OVERRIDE",
)  # fmt: skip
"""Variables of pip and uv whose values may name files and folders of this host."""

_SECRET_NAME = re.compile(
    r"^(PIP|UV)_.*(TOKEN|PASSWORD|USERNAME|SECRET|KEY|CLIENT_CERT|CREDENTIAL)", re.IGNORECASE
)
_CREDENTIALS = re.compile(
    r"""
    ://[^\s/?\#"']*@                                    # user@ or user:password@ in a URL
    | ://[^\s/@"']+:[^\s@"'/]*[/][^\s@"']*@             # a password with an unescaped slash
    | [?&](access_?token|token|api_?key|password|secret|sig(nature)?|auth)=
    | ^\s*(password|username|token|api[-_]?key)\s*[=:]  # a setting of a configuration file
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----
    """,
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
_BARE_USER = re.compile(r"^[^\s/@]+:[^\s@]*@|^[^\s/@:]+@")
_SSH_USER = re.compile(r"\bssh://[A-Za-z0-9._-]+@")
_SOCKET = Path("/var/run/docker.sock")
_SYSTEM_FOLDERS = frozenset(
    Path("/", name)
    for name in (
        "bin", "boot", "dev", "etc", "home", "lib", "opt", "proc", "root", "run", "srv", "sys", "tmp",
        "usr", "var",
    )
)  # fmt: skip
_SECRET_FOLDERS = (".aws", ".docker", ".gnupg", ".netrc", ".ssh")
_MOST_TARGETS = 16
_MOST_PAGES = 16
_LINK = re.compile(r"""href=["']([^"']+)["']""", re.IGNORECASE)


@dataclass(frozen=True)
class Passed:
    """What goes into a container. ``withheld`` names what does not, with the reason, without its value."""

    env: Mapping[str, str]
    mounts: tuple[Mount, ...]
    withheld: tuple[str, ...] = ()


@dataclass
class _Gathering:
    """What was decided so far. ``home`` is the caller's home folder, which stays outside."""

    home: Path
    env: dict[str, str] = field(default_factory=dict)
    paths: list[Path] = field(default_factory=list)
    withheld: list[str] = field(default_factory=list)

    def withhold(self, name: str | Path, why: str) -> None:
        self.withheld.append(f"{name}: {why}")

    def mount(self, path: Path, named_by: str | Path) -> bool:
        """Note ``path`` for mounting; false when it is not there, or holds what must stay outside."""
        if not path.is_absolute() or not path.exists():
            return False
        if _too_wide(path, self.home):
            self.withhold(named_by, f"{path} holds more than packages (home, or the whole system)")
            return False
        self.paths.append(path)
        return True


def passed_through(environ: Mapping[str, str], home: Path) -> Passed:
    """What a container gets of the host whose environment is ``environ`` and whose user lives in ``home``.

    Files that are named and not there are skipped, with the variable that names them.
    """
    found = _Gathering(home)
    _certificates(found, environ)
    for name in (*PROXIES, *PLAIN):
        _variable(found, name, environ.get(name, ""))
    for name in PLACES:
        value = environ.get(name, "")
        if _variable(found, name, value):
            _places(found, name, re.split(r"[\s,]+", value))
    _pip_files(found, environ)
    _uv_files(found, environ)
    _default_bundle(found)
    for name in sorted(environ):
        if _SECRET_NAME.match(name) and environ[name]:
            found.withhold(name, "is a credential")
    mounts = tuple(Mount(path, path) for path in outermost(found.paths))
    return Passed(found.env, mounts, tuple(dict.fromkeys(found.withheld)))


def holds_credentials(text: str) -> bool:
    """True when ``text`` (a value or a whole file) has a password, a token or a private key in it.

    ``ssh://git@host`` is none. In doubt the answer is true.
    """
    return _CREDENTIALS.search(_SSH_USER.sub("ssh://", text)) is not None


def outermost(paths: Iterable[Path]) -> tuple[Path, ...]:
    """``paths`` sorted, each once, without those that lie below another one."""
    chosen: list[Path] = []
    for path in sorted(set(paths)):
        if not any(path.is_relative_to(other) for other in chosen):
            chosen.append(path)
    return tuple(chosen)


def _variable(found: _Gathering, name: str, value: str) -> bool:
    """Pass the variable; false when it is empty or holds credentials."""
    if not value:
        return False
    bare = name.lower().endswith("_proxy") and _BARE_USER.search(value)
    if bare or holds_credentials(value):
        found.withhold(name, "holds credentials")
        return False
    found.env[name] = value
    return True


# -- certificates ----------------------------------------------------------------------------------


def _certificates(found: _Gathering, environ: Mapping[str, str]) -> None:
    for name in CERTIFICATE_FILES:
        path = Path(environ.get(name, ""))
        if path.is_file() and _harmless(found, path, name) and found.mount(path, name):
            found.env[name] = str(path)
    for name in CERTIFICATE_FOLDERS:
        folders = [Path(part) for part in environ.get(name, "").split(os.pathsep) if part]
        there = [path for path in folders if path.is_dir() and found.mount(path, name)]
        if there:
            found.env[name] = os.pathsep.join(map(str, there))
        for folder in there:
            _link_targets(found, folder, name)


def _link_targets(found: _Gathering, folder: Path, name: str | Path) -> None:
    """A folder of certificates is full of links; the folders that they lead to come along."""
    links = (entry for entry in sorted(folder.iterdir()) if entry.is_symlink())
    targets = {Path(os.path.realpath(link)) for link in links}
    parents = outermost(path.parent for path in targets if path.is_file())
    for parent in parents[:_MOST_TARGETS]:
        if not parent.is_relative_to(found.home):
            found.mount(parent, name)


def _default_bundle(found: _Gathering) -> None:
    """The certificates that this host trusts, when no variable names others."""
    if any(name in found.env for name in (*CERTIFICATE_FILES, *CERTIFICATE_FOLDERS)):
        return
    bundle = next((Path(text) for text in DEFAULT_BUNDLES if Path(text).is_file()), None)
    if bundle is None or not found.mount(bundle, "certificates"):
        return
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"):
        found.env[name] = str(bundle)


def _harmless(found: _Gathering, path: Path, named_by: str | Path) -> bool:
    """False for a file that cannot be read here, or with credentials in it."""
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        found.withhold(named_by, f"{path} cannot be read")
        return False
    if holds_credentials(text):
        found.withhold(
            named_by, f"{path} holds credentials" if path != named_by else "holds credentials"
        )
        return False
    return True


# -- pip and uv ------------------------------------------------------------------------------------


def _pip_files(found: _Gathering, environ: Mapping[str, str]) -> None:
    """The files that pip reads (pip documentation, "Configuration"), in rising order of weight."""
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        found.env["PIP_CONFIG_FILE"] = named
        return
    folders = _config_folders(environ)
    for path in [*(folder / "pip" / "pip.conf" for folder in folders), SYSTEM_PIP]:
        _pip_file(found, path)
    if len(folders) > 1 or environ.get("XDG_CONFIG_DIRS"):
        found.env["XDG_CONFIG_DIRS"] = os.pathsep.join(map(str, folders))
    home = found.home
    users = [home / ".pip" / "pip.conf", _config_home(environ, home) / "pip" / "pip.conf"]
    # With PIP_CONFIG_FILE set, pip leaves the user's own files out, here and there.
    candidates = [Path(named)] if named and Path(named).exists() else users
    readable = [path for path in candidates if _pip_file(found, path)]
    for path in readable[:-1]:
        found.withhold(path, f"pip in the container reads one file of the user: {readable[-1]}")
    if readable:
        found.env["PIP_CONFIG_FILE"] = str(readable[-1])


def _pip_file(found: _Gathering, path: Path) -> bool:
    if not path.is_file() or not _harmless(found, path, path) or not found.mount(path, path):
        return False
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(path.read_text("utf-8", "replace"))
    except configparser.Error:
        return True
    for section in parser.sections():
        for key, value in parser.items(section):
            if key.replace("_", "-") in _PIP_PLACES:
                _places(found, path, value.split())
    return True


_PIP_PLACES = frozenset({"cert", "constraint", "extra-index-url", "find-links", "index-url"})


def _uv_files(found: _Gathering, environ: Mapping[str, str]) -> None:
    """The user's and the system's file, or just the one that uv is told of (uv, "Configuration")."""
    named = environ.get("UV_CONFIG_FILE", "")
    user = Path(named) if named else _config_home(environ, found.home) / "uv" / "uv.toml"
    if _uv_file(found, user):
        found.env["UV_CONFIG_FILE"] = str(user)
        return
    for path in [
        *(folder / "uv" / "uv.toml" for folder in _config_folders(environ)),
        SYSTEM_UV,
    ]:
        if _uv_file(found, path):
            return


def _uv_file(found: _Gathering, path: Path) -> bool:
    if not path.is_file() or not _harmless(found, path, path) or not found.mount(path, path):
        return False
    try:
        document = tomllib.loads(path.read_text("utf-8", "replace"))
    except tomllib.TOMLDecodeError:
        return True
    _places(found, path, _uv_places(document))
    return True


def _uv_places(document: Mapping[str, object]) -> Iterator[str]:
    """Every text below a key that may name a place: ``find-links``, ``index`` with its ``url``, ``pip`` …"""
    for key, value in document.items():
        if key in ("find-links", "index-url", "extra-index-url", "url", "index", "pip"):
            yield from _texts(value)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, Mapping):
        yield from _uv_places(value)


def _places(found: _Gathering, named_by: str | Path, values: Iterable[str]) -> None:
    """Mount what of ``values`` is on this host: absolute paths and ``file://`` addresses."""
    for value in values:
        path = local_path(value)
        if path is None or not path.exists():
            continue
        if path.is_file() and not _harmless(found, path, path):
            continue
        if found.mount(path, named_by):
            for folder in _linked_folders(path):
                found.mount(folder, named_by)
            if path.is_dir():
                _link_targets(found, path, named_by)


def _linked_folders(index: Path) -> tuple[Path, ...]:
    """The folders beside ``index`` that its pages link to: a mirror often keeps its files there (PEP 503).

    A few pages are read; those of one mirror are alike. What lies elsewhere is not followed: a page says
    what it wants.
    """
    pages = [] if index.is_file() else sorted(index.glob("*/index.html"))[:_MOST_PAGES]
    found: set[Path] = set()
    for page in pages:
        for link in _LINK.findall(page.read_text("utf-8", "replace")):
            target = Path(os.path.normpath(page.parent / unquote(link.partition("#")[0])))
            if target.is_relative_to(index.parent) and not target.is_relative_to(index):
                found.add(index.parent / target.relative_to(index.parent).parts[0])
    return tuple(sorted(path for path in found if path.is_dir()))


def local_path(value: str) -> Path | None:
    """The absolute path that a setting names: ``/x``, ``file:///x``, or uv's ``name=file:///x``."""
    named = re.match(r"[A-Za-z0-9._-]+=(.+)", value)
    text = named.group(1) if named else value
    if text.startswith("file:"):
        parts = urlsplit(text)
        text = unquote(parts.path) if parts.netloc in ("", "localhost") else ""
    return Path(os.path.normpath(text)) if text.startswith("/") else None


def _config_home(environ: Mapping[str, str], home: Path) -> Path:
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config")


def _config_folders(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The system's folders of configuration (XDG Base Directory Specification)."""
    text = environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    return tuple(Path(part) for part in text.split(os.pathsep) if part)


def _too_wide(path: Path, home: Path) -> bool:
    """True for a whole system folder, the home folder or what holds it, an engine's socket, keys of SSH."""
    real = Path(os.path.realpath(path))
    inside = [Path(os.path.realpath(item)) for item in (home, _SOCKET)]
    secret = [Path(os.path.realpath(home / name)) for name in _SECRET_FOLDERS]
    return (
        real in _SYSTEM_FOLDERS
        or any(item.is_relative_to(real) for item in inside)
        or any(real.is_relative_to(item) for item in secret)
    )
