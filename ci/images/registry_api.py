"""A container registry, asked what a tag means, through the OCI distribution API.

Only questions, never a layer: ``HEAD`` of a manifest by tag or digest, and ``GET`` of an index or manifest
(a few kilobytes). Tokens are anonymous ones, from where the registry's own ``WWW-Authenticate`` says
(distribution "Token Authentication Specification"); a token is not sent on to where a registry redirects.
Whatever is read by digest must have that digest.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.client import HTTPException
from typing import Any

from ci.errors import InfrastructureError
from ci.images.pins import INDEX, PLATFORMS, Reference, is_digest

INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_ACCEPT = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))
_ATTEMPTS = 4
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
_SECONDS = 30.0
_LARGEST = 4 * 2**20
"""Bytes of a manifest: registries need not take larger ones (OCI distribution specification)."""

_PASSING = (429, 500, 502, 503, 504)
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Answer:
    """What a registry says of an image.

    ``found`` is what the tag means now: ``index`` and platforms to digests, empty when there is no such tag.
    ``gone`` are those of the digests asked for that it no longer has; ``refused`` is its reason when it lets
    nobody without an account see the image.
    """

    found: Mapping[str, str] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()
    refused: str = ""


@dataclass(frozen=True)
class _Reply:
    status: int
    headers: Message
    body: bytes

    @property
    def kind(self) -> str:
        return self.headers.get_content_type()


class Registry:
    """One registry. ``sleep`` waits the seconds it is given; tokens are kept for as long as this lives."""

    def __init__(self, host: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self.host = host
        self._base = _address(host)
        self._sleep = sleep
        self._tokens: dict[str, str] = {}

    def ask(self, reference: Reference, digests: tuple[str, ...] = ()) -> Answer:
        """What ``reference`` means now, and which of ``digests`` are gone.

        Raises :class:`~ci.errors.InfrastructureError` when the registry does not answer, answers something
        else than its protocol says, or still throttles after a few pauses.
        """
        repository = reference.repository
        head = self._manifest("HEAD", repository, reference.tag)
        if head.status in (401, 403):
            return Answer(refused=f"{self.host} wants an account for {repository} ({head.status})")
        found = {} if head.status == 404 else self._meaning(repository, self._digest(head))
        missing = [digest for digest in digests if digest not in found.values()]
        gone = {
            digest
            for digest in missing
            if self._manifest("HEAD", repository, digest).status in (404, 410)
        }
        return Answer(found, frozenset(gone))

    def _digest(self, head: _Reply) -> str:
        digest = head.headers.get("Docker-Content-Digest", "")
        if head.status != 200 or not is_digest(digest):
            raise self._odd(f"status {head.status}, digest {digest or 'not told'}")
        return digest

    def _meaning(self, repository: str, digest: str) -> dict[str, str]:
        """What a manifest or an index is made of: key to digest."""
        kind, manifest = self._document("manifests", repository, digest)
        if kind in INDEX_TYPES:
            return {INDEX: digest, **_listed(manifest)}
        if kind not in MANIFEST_TYPES:
            raise self._odd(f"a manifest of type {kind}")
        config = manifest.get("config")
        named = config.get("digest") if isinstance(config, dict) else None
        if not isinstance(named, str) or not is_digest(named):
            raise self._odd("a manifest without configuration")
        _, image = self._document("blobs", repository, named)
        return {f"{image.get('os')}/{image.get('architecture')}": digest}

    def _document(self, what: str, repository: str, digest: str) -> tuple[str, dict[str, Any]]:
        """A JSON document by digest; its bytes must have that digest."""
        reply = self._request("GET", f"/v2/{repository}/{what}/{digest}", repository)
        if reply.status != 200:
            raise self._odd(f"status {reply.status} for {digest}")
        if f"sha256:{hashlib.sha256(reply.body).hexdigest()}" != digest:
            raise self._odd(f"other bytes than those of {digest}")
        try:
            document = json.loads(reply.body)
        except ValueError as error:
            raise self._odd(f"no JSON for {digest}") from error
        if not isinstance(document, dict):
            raise self._odd(f"no object for {digest}")
        media = document.get("mediaType")
        return media if isinstance(media, str) else reply.kind, document

    def _manifest(self, method: str, repository: str, named: str) -> _Reply:
        return self._request(method, f"/v2/{repository}/manifests/{named}", repository)

    def _request(self, method: str, path: str, repository: str) -> _Reply:
        """A request with the token that the registry asks for."""
        url = f"{self._base}{path}"
        reply = self._patient(method, url, self._tokens.get(repository, ""))
        challenge = reply.headers.get("WWW-Authenticate", "")
        if reply.status != 401 or not challenge.lower().startswith("bearer "):
            return reply
        self._tokens[repository] = self._token(challenge, repository)
        return self._patient(method, url, self._tokens[repository])

    def _token(self, challenge: str, repository: str) -> str:
        told = {key.lower(): value for key, value in re.findall(r'(\w+)="([^"]*)"', challenge)}
        realm = told.get("realm", "")
        if not realm.startswith(("https://", "http://" if _is_loopback(self.host) else "https://")):
            raise self._odd(f"a token from {realm or 'nowhere'}, which is not https")
        asked = {"scope": told.get("scope") or f"repository:{repository}:pull"}
        if "service" in told:
            asked["service"] = told["service"]
        reply = self._patient("GET", f"{realm}?{urllib.parse.urlencode(asked)}", "")
        try:
            document = json.loads(reply.body)
            token = document.get("token") or document.get("access_token")
        except (ValueError, AttributeError):
            token = None
        if reply.status != 200 or not isinstance(token, str):
            raise self._odd(f"no anonymous token (status {reply.status} of {realm})")
        return token

    def _patient(self, method: str, url: str, token: str) -> _Reply:
        """Ask again, after growing pauses, what is throttled or does not answer."""
        why = ""
        for attempt in range(_ATTEMPTS):
            try:
                reply = _once(method, url, token)
            except (OSError, HTTPException) as error:  # URLError, timeouts, resets, half answers
                why, asked_for = str(getattr(error, "reason", "") or error) or repr(error), 0.0
            else:
                if reply.status not in _PASSING:
                    return reply
                why, asked_for = _said(reply), _retry_after(reply)
            if attempt + 1 < _ATTEMPTS:
                self._sleep(min(_LONGEST_PAUSE, max(asked_for, _FIRST_PAUSE * 2**attempt)))
        raise InfrastructureError(
            f"{self.host} does not answer: {why} ({_ATTEMPTS} attempts)",
            cause="no network, a proxy in between, or a limit on requests without an account"
            if "429" in why
            else "there is no network, or the registry is down",
            next_step="the same command again later, or on a host that reaches the registry",
        )

    def _odd(self, what: str) -> InfrastructureError:
        return InfrastructureError(
            f"{self.host} answers with {what}",
            cause="something between here and the registry answers in its place, or it has a fault",
            next_step=f"curl -sI {self._base}/v2/",
        )


def _address(host: str) -> str:
    """Docker Hub's registry has another name than its images; loopback registries speak plain HTTP."""
    if host == "docker.io":
        return "https://registry-1.docker.io"
    return f"{'http' if _is_loopback(host) else 'https'}://{host}"


def _is_loopback(host: str) -> bool:
    return re.sub(r":\d+\Z", "", host) in _LOOPBACK


def _listed(index: Mapping[str, Any]) -> dict[str, str]:
    """The digests of the platforms that the farm knows, of an index; attestations are of no platform."""
    found: dict[str, str] = {}
    entries = index.get("manifests")
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or not isinstance(entry.get("platform"), dict):
            continue
        platform = f"{entry['platform'].get('os')}/{entry['platform'].get('architecture')}"
        digest = entry.get("digest")
        if platform in PLATFORMS.values() and isinstance(digest, str) and is_digest(digest):
            found.setdefault(platform, digest)
    return found


def _once(method: str, url: str, token: str) -> _Reply:
    request = urllib.request.Request(url, method=method, headers={"Accept": _ACCEPT})  # noqa: S310
    if token:  # not sent on to where a redirect leads
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as reply:  # noqa: S310
            return _Reply(reply.status, reply.headers, reply.read(_LARGEST))
    except urllib.error.HTTPError as error:
        with error:
            return _Reply(error.code, error.headers, error.read(_LARGEST))


def _said(reply: _Reply) -> str:
    return "it throttles (429)" if reply.status == 429 else f"status {reply.status}"


def _retry_after(reply: _Reply) -> float:
    text = reply.headers.get("Retry-After", "")
    return float(text) if text.isdigit() else 0.0
