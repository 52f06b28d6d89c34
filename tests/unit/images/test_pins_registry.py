"""The registry client and the verb, against a small registry that speaks the OCI distribution API."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from ci.cli import run_verb
from ci.errors import ConfigError, FindingError, InfrastructureError
from ci.images import registry_api
from ci.images.pin_check import ask_registries, judge
from ci.images.pins import parse_pins, parse_reference
from ci.images.registry_api import Answer, Registry

INDEX = "application/vnd.oci.image.index.v1+json"
LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
NAME = "nvidia/cuda"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass
class Fault:
    """An answer to give instead of the true one, as often as ``times``."""

    status: int
    times: int = 1
    path: str = "/v2/"
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class OciRegistry:
    """What a registry holds, and what it was asked."""

    host: str
    documents: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    repositories: tuple[str, ...] = (NAME,)
    elsewhere: str = ""
    """Where blobs are redirected to, as registries with a content network do."""

    def put(self, kind: str, content: bytes) -> str:
        digest = digest_of(content)
        self.documents[digest] = (kind, content)
        return digest

    def image(self, architecture: str, salt: str = "") -> str:
        config = json.dumps({"os": "linux", "architecture": architecture, "salt": salt}).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"digest": self.put("application/vnd.oci.image.config.v1+json", config)},
            "layers": [],
        }
        return self.put(MANIFEST, json.dumps(manifest).encode())

    def index(self, salt: str = "", kind: str = INDEX) -> dict[str, str]:
        """An index as buildx makes it: two platforms that matter, one that does not, an attestation."""
        images = {name: self.image(name, salt) for name in ("amd64", "arm64", "ppc64le")}
        platforms = [("linux", name, digest) for name, digest in images.items()]
        platforms.append(("unknown", "unknown", self.image("unknown", salt)))
        entries = [
            {"digest": digest, "platform": {"os": system, "architecture": name}}
            for system, name, digest in platforms
        ]
        content = {"schemaVersion": 2, "mediaType": kind, "manifests": entries}
        digest = self.put(kind, json.dumps(content).encode())
        return {
            "index": digest,
            "linux/amd64": images["amd64"],
            "linux/arm64": images["arm64"],
        }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: OciRegistry

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def log_message(self, *arguments: Any) -> None:
        pass

    def send(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer(self) -> None:
        registry, url = self.registry, urlsplit(self.path)
        given = self.headers.get("Authorization", "")
        registry.asked.append((self.command, self.path, given))
        for fault in registry.faults:
            if fault.times and self.path.startswith(fault.path):
                fault.times -= 1
                return self.send(fault.status, fault.headers, fault.body)
        if url.path == "/token":
            return self.token(parse_qs(url.query))
        found = re.fullmatch(r"/v2/(.+)/(manifests|blobs)/([^/]+)", url.path)
        assert found is not None, self.path
        return self.content(*found.groups(), given)

    def token(self, query: dict[str, list[str]]) -> None:
        assert query["service"] == ["the registry"]
        token = {"token": f"anonymous for {query['scope'][0]}"}
        self.send(200, {"Content-Type": "application/json"}, json.dumps(token).encode())

    def content(self, repository: str, what: str, named: str, given: str) -> None:
        registry, scope = self.registry, f"repository:{repository}:pull"
        if given != f"Bearer anonymous for {scope}":
            realm = f'realm="http://{registry.host}/token",service="the registry",scope="{scope}"'
            return self.send(401, {"WWW-Authenticate": f"Bearer {realm}"}, b"{}")
        if repository not in registry.repositories:
            return self.send(
                401,
                {
                    "WWW-Authenticate": f'Bearer realm="http://{registry.host}/token",service="the registry"'
                },
            )
        if what == "blobs" and registry.elsewhere:
            return self.send(307, {"Location": f"{registry.elsewhere}/{named}"})
        digest = registry.tags.get(named, named)
        if digest not in registry.documents:
            return self.send(404, {}, b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}')
        kind, body = registry.documents[digest]
        accepted = self.headers.get("Accept", "").split(", ")
        assert what == "blobs" or kind in accepted, "a registry would convert or refuse it"
        return self.send(200, {"Content-Type": kind, "Docker-Content-Digest": digest}, body)


class Blobs(BaseHTTPRequestHandler):
    """A content network: knows no tokens, and remembers whether it was given one."""

    registry: OciRegistry

    def do_GET(self) -> None:
        self.registry.asked.append(("CDN", self.path, self.headers.get("Authorization", "")))
        body = self.registry.documents[self.path[1:]][1]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


def serving(handler: type[BaseHTTPRequestHandler]) -> tuple[ThreadingHTTPServer, str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server, f"127.0.0.1:{server.server_port}"


@pytest.fixture
def registry() -> Iterator[OciRegistry]:
    held = OciRegistry("")
    server, held.host = serving(type("Bound", (Handler,), {"registry": held}))
    network, address = serving(type("BoundBlobs", (Blobs,), {"registry": held}))
    held.elsewhere = f"http://{address}"
    yield held
    for one in (server, network):
        one.shutdown()
        one.server_close()


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def client(registry: OciRegistry, pauses: list[float]) -> Registry:
    return Registry(registry.host, pauses.append)


def reference(registry: OciRegistry, tag: str = "13.0.3", name: str = NAME) -> Any:
    return parse_reference(f"{registry.host}/{name}:{tag}")


# -- the client -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [INDEX, LIST])
def test_a_tag_means_an_index_and_the_images_of_our_platforms(
    registry: OciRegistry, client: Registry, kind: str
) -> None:
    true = registry.index(kind=kind)
    registry.tags["13.0.3"] = true["index"]
    assert client.ask(reference(registry), tuple(true.values())) == Answer(true)
    tokens = [path for _, path, _ in registry.asked if path.startswith("/token")]
    assert len(tokens) == 1
    assert all("scope=repository%3Anvidia%2Fcuda%3Apull" in path for path in tokens)
    assert [method for method, path, _ in registry.asked if "13.0.3" in path] == ["HEAD", "HEAD"]


def test_a_tag_of_one_image_is_of_the_platform_that_its_configuration_says(
    registry: OciRegistry, client: Registry
) -> None:
    registry.tags["13.0.3"] = digest = registry.image("arm64")
    assert client.ask(reference(registry)) == Answer({"linux/arm64": digest})


def test_a_token_is_not_sent_on_to_where_blobs_are(registry: OciRegistry, client: Registry) -> None:
    registry.tags["13.0.3"] = registry.image("amd64")
    client.ask(reference(registry))
    (given,) = [given for method, _, given in registry.asked if method == "CDN"]
    assert given == ""


def test_an_unknown_tag_means_nothing_and_gone_digests_are_told(
    registry: OciRegistry, client: Registry
) -> None:
    there, gone = registry.image("amd64"), digest_of(b"collected")
    assert client.ask(reference(registry), (there, gone)) == Answer({}, frozenset({gone}))


def test_a_repository_that_nobody_may_see_is_refused_not_unreachable(
    registry: OciRegistry, client: Registry, pauses: list[float]
) -> None:
    answer = client.ask(reference(registry, name="secret/cuda"))
    assert "wants an account for secret/cuda (401)" in answer.refused
    assert pauses == []


def test_a_throttled_request_is_made_again_after_the_pause_that_is_asked_for(
    registry: OciRegistry, client: Registry, pauses: list[float]
) -> None:
    registry.tags["13.0.3"] = registry.index()["index"]
    registry.faults = [
        Fault(429, headers={"Retry-After": "7"}),
        Fault(503),
        Fault(429, headers={"Retry-After": "9999"}),
    ]
    assert client.ask(reference(registry)).found["index"] == registry.tags["13.0.3"]
    assert pauses == [7.0, 2.0, 30.0]


@pytest.mark.parametrize(("status", "said"), [(429, "throttles (429)"), (502, "status 502")])
def test_pauses_grow_and_end(
    registry: OciRegistry, client: Registry, pauses: list[float], status: int, said: str
) -> None:
    registry.faults = [Fault(status, times=99)]
    with pytest.raises(InfrastructureError, match=re.escape(said)) as raised:
        client.ask(reference(registry))
    assert raised.value.exit_code == 4
    assert pauses == [1.0, 2.0, 4.0]
    assert len(registry.asked) == 4
    assert ("without an account" in raised.value.cause) == (status == 429)


def test_no_server_is_infrastructure(pauses: list[float]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(InfrastructureError, match="refused") as raised:
        Registry(f"127.0.0.1:{port}", pauses.append).ask(parse_reference(f"127.0.0.1:{port}/x:1"))
    assert raised.value.exit_code == 4
    assert pauses == [1.0, 2.0, 4.0]


def test_a_server_that_hangs_up_is_infrastructure(pauses: list[float]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def hang_up() -> None:
            for _ in range(4):
                listening.accept()[0].close()

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        with pytest.raises(InfrastructureError, match="4 attempts"):
            Registry(f"127.0.0.1:{port}", pauses.append).ask(
                parse_reference(f"127.0.0.1:{port}/x:1")
            )
        thread.join(5)


def _forged(registry: OciRegistry) -> None:
    digest = registry.index()["index"]
    registry.tags["13.0.3"] = digest
    registry.documents[digest] = (INDEX, b'{"manifests": []}')


def _no_digest(registry: OciRegistry) -> None:
    registry.faults = [Fault(200)]


def _login_page(registry: OciRegistry) -> None:
    digest = registry.put(INDEX, b"<html>")
    registry.tags["13.0.3"] = digest


def _foreign_type(registry: OciRegistry) -> None:
    registry.tags["13.0.3"] = registry.put(MANIFEST, b'{"mediaType": "application/x"}')


def _no_configuration(registry: OciRegistry) -> None:
    content = json.dumps({"mediaType": MANIFEST, "config": {"digest": "sha256:../../x"}})
    registry.tags["13.0.3"] = registry.put(MANIFEST, content.encode())


def _no_token(registry: OciRegistry) -> None:
    registry.faults = [Fault(200, path="/token", body=b"[]")]


def _huge(registry: OciRegistry) -> None:
    registry.tags["13.0.3"] = registry.put(INDEX, b" " * (4 * 2**20) + b"{}")


def _token_elsewhere(registry: OciRegistry) -> None:
    challenge = 'Bearer realm="file:///etc/passwd",service="x"'
    registry.faults = [Fault(401, headers={"WWW-Authenticate": challenge})]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (_forged, "other bytes"),
        (_no_digest, "not told"),
        (_login_page, "no JSON"),
        (_foreign_type, "application/x"),
        (_no_configuration, "without configuration"),
        (_no_token, "no anonymous token"),
        (_huge, "other bytes"),
        (_token_elsewhere, "not https"),
    ],
)
def test_an_answer_that_is_no_registrys_is_refused(
    registry: OciRegistry, client: Registry, fault: Any, said: str
) -> None:
    fault(registry)
    with pytest.raises(InfrastructureError, match=re.escape(said)) as raised:
        client.ask(reference(registry))
    assert raised.value.exit_code == 4
    assert raised.value.next_step


def test_a_registry_of_the_network_is_asked_over_https_and_gives_no_plain_realm() -> None:
    assert Registry("docker.io")._base == "https://registry-1.docker.io"
    assert Registry("quay.io")._base == "https://quay.io"
    assert Registry("127.0.0.1.example.org")._base.startswith("https://")
    assert Registry("localhost:5000")._base == "http://localhost:5000"
    with pytest.raises(InfrastructureError, match="not https"):
        Registry("quay.io")._token('Bearer realm="http://quay.io/token"', "x")


# -- judging --------------------------------------------------------------------------------------

PINS = """\
# The images of the test.
[images.build]
reference = "HOST/nvidia/cuda:13.0.3"
use = "build"
cuda = "13.0"
glibc = "2.28"
digest.index = "{index}"
digest."linux/amd64" = "{linux/amd64}"
source.index = "github.com/example/first"
source."linux/amd64" = "github.com/example/first"
seen = "2026-05-04"

[images.pythons]
reference = "HOST/nvidia/cuda:manylinux"
use = "pythons"
glibc = "2.28"
digest.either = "{either}"
source.either = "github.com/example/second"
seen = "2026-05-04"

[images.paddle]
reference = "HOST/nvidia/cuda:paddle"  # not pinned yet
use = "paddle"
cuda = "13.0"

[images.test]
reference = "HOST/nvidia/cuda:runtime"
use = "test"
cuda = "13.0"

# The tools of the test.
[tools]
"""

MATRIX = """\
pythons = ["3.12"]
[paddle]
gpu = "paddlepaddle-gpu>=3.3"
cpu = "paddlepaddle==3.3.1"
[[cuda]]
version = "13.0"
image = "HOST/nvidia/cuda:paddle"
capabilities = ["9.0"]
paddle_index = "https://example.org/packages/cu130/"
[tiers.pr]
about = "one cell"
"""


@dataclass
class Farm:
    """A pins file whose images are in a registry that runs."""

    path: Path
    registry: OciRegistry
    build: dict[str, str]
    either: str

    @property
    def text(self) -> str:
        return self.path.read_text("utf-8")

    def rules(self) -> list[tuple[str, str, str]]:
        pins = parse_pins(self.text)
        asked = ask_registries([pin for pin in pins.images if pin.digests])
        assert not asked.silent
        found = [
            item
            for pin in pins.images
            if pin.name in asked.answers
            for item in judge(pin, asked.answers[pin.name])
        ]
        return [(item.rule, item.subject.removeprefix("images "), item.level) for item in found]


@pytest.fixture
def farm(registry: OciRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Farm:
    build, either = registry.index("build"), registry.image("amd64", "pythons")
    for tag, digest in (
        ("13.0.3", build["index"]),
        ("manylinux", either),
        ("paddle", registry.index("paddle")["index"]),
        ("runtime", registry.index("runtime")["index"]),
    ):
        registry.tags[tag] = digest
    text = PINS.replace("HOST", registry.host)
    for key, digest in {**build, "either": either}.items():
        text = text.replace(f"{{{key}}}", digest)
    path = tmp_path / "docker" / "pins.toml"
    path.parent.mkdir()
    path.write_text(text, "utf-8")
    matrix = tmp_path / "matrix.toml"
    matrix.write_text(MATRIX.replace("HOST", registry.host), "utf-8")
    monkeypatch.setattr("ci.images.pins.PINS", path)
    monkeypatch.setattr("ci.cli.pins.MATRIX", matrix)
    monkeypatch.setattr("ci.cli.pins.REPOSITORY", tmp_path)
    monkeypatch.setattr(registry_api, "_FIRST_PAUSE", 0.0)
    return Farm(path, registry, build, either)


def test_digests_that_hold_are_no_finding_and_one_of_unsaid_kind_is_told(farm: Farm) -> None:
    assert farm.rules() == [("unsettled", "pythons", "note")]


def test_a_tag_that_moved_is_a_finding_while_its_old_digests_are_still_there(farm: Farm) -> None:
    farm.registry.tags["13.0.3"] = farm.registry.index("rebuilt")["index"]
    farm.registry.tags["manylinux"] = farm.registry.image("amd64", "rebuilt")
    assert farm.rules() == [
        ("tag-moved", "build", "error"),
        ("tag-moved", "build", "error"),
        ("tag-moved", "pythons", "error"),
    ]


def test_a_digest_that_was_collected_is_a_finding_of_its_own(farm: Farm) -> None:
    farm.registry.tags["manylinux"] = farm.registry.image("amd64", "rebuilt")
    del farm.registry.documents[farm.either]
    assert farm.rules() == [("digest-gone", "pythons", "error"), ("tag-moved", "pythons", "error")]


def test_a_tag_that_is_gone_is_told_though_its_digest_is_there(farm: Farm) -> None:
    del farm.registry.tags["manylinux"]
    assert farm.rules() == [("tag-gone", "pythons", "error")]


def test_an_image_that_became_private_is_told(farm: Farm) -> None:
    farm.registry.repositories = ()
    assert farm.rules() == [
        ("image-refused", "build", "error"),
        ("image-refused", "pythons", "error"),
    ]


def test_an_amd64_digest_for_another_platform_is_no_hit(farm: Farm) -> None:
    text = farm.text.replace(farm.build["linux/amd64"], farm.build["linux/arm64"])
    farm.path.write_text(text, "utf-8")
    assert ("tag-moved", "build", "error") in farm.rules()


def test_a_dead_registry_is_not_asked_for_each_of_its_images(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm.registry.faults = [Fault(500, times=999)]
    asked = ask_registries(parse_pins(farm.text).images)
    assert sorted(asked.silent) == ["build", "paddle", "pythons", "test"]
    assert len(farm.registry.asked) == 4


# -- the verb -------------------------------------------------------------------------------------


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    status = run_verb(["pins", *arguments, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_check_asks_nobody_and_lists_what_is_unpinned(
    farm: Farm, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb(["pins", "--check"]) == 0
    out = capsys.readouterr().out
    assert "docker/pins.toml:21: warning unpinned: paddle" in out
    assert "python -m ci pins --update paddle" in out
    assert "2 of 4 images are pinned; no finding that fails" in out
    assert farm.registry.asked == []
    assert run_verb(["pins", "--check", "--strict"]) == 1


def test_check_online_says_what_moved_and_fails(
    farm: Farm, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_json(capsys, "--check", "--online")[0] == 0
    farm.registry.tags["13.0.3"] = new = farm.registry.index("rebuilt")["index"]
    status, document = run_json(capsys, "--check", "--online")
    assert status == 1
    moved = [item for item in document["findings"] if item["rule"] == "tag-moved"]
    assert [item["line"] for item in moved] == [2, 2]
    assert f"index {farm.build['index']} -> index {new}" in moved[0]["why"]
    assert "--update build" in moved[0]["mend"]


def test_check_online_of_a_registry_that_does_not_answer_is_infrastructure(
    farm: Farm, capsys: pytest.CaptureFixture[str]
) -> None:
    farm.registry.faults = [Fault(429, times=999)]
    with pytest.raises(InfrastructureError, match="throttles") as raised:
        run_json(capsys, "--check", "--online")
    assert raised.value.exit_code == 4
    assert len(raised.value.details) == 2
    assert sorted(json.loads(capsys.readouterr().out)["silent"]) == ["build", "pythons"]


def test_check_names_a_pin_that_the_matrix_needs(farm: Farm) -> None:
    farm.path.write_text(farm.text.replace('cuda = "13.0"', 'cuda = "12.9"'), "utf-8")
    assert run_verb(["pins"]) == 1


def test_update_pins_everything_and_the_next_check_agrees(
    farm: Farm, capsys: pytest.CaptureFixture[str]
) -> None:
    comments = [line for line in farm.text.splitlines() if "#" in line]
    farm.registry.tags["13.0.3"] = new = farm.registry.index("rebuilt")["index"]
    assert run_verb(["pins", "--update"]) == 0
    out = capsys.readouterr().out
    assert f"build index\n  - {farm.build['index']}\n  + {new}\n" in out
    assert f"pythons linux/amd64\n  - absent\n  + {farm.either}\n" in out
    pins = {pin.name: pin for pin in parse_pins(farm.text).images}
    assert pins["build"].index_digest == new
    assert pins["pythons"].digests == {"linux/amd64": farm.either}
    assert pins["pythons"].sources == {"linux/amd64": "github.com/example/second"}
    assert [*pins["paddle"].digests] == ["index", "linux/amd64", "linux/arm64"]
    assert "asked for the tag" in pins["paddle"].sources["index"]
    assert [line for line in farm.text.splitlines() if "#" in line] == comments
    assert run_verb(["pins", "--check", "--online", "--strict"]) == 0
    text = farm.text
    capsys.readouterr()
    assert run_json(capsys, "--update") == (0, {"schema": 1, "changes": [], "silent": {}})
    assert farm.text == text
    assert [path.name for path in farm.path.parent.iterdir()] == ["pins.toml"]


def test_update_of_one_image_leaves_the_others(
    farm: Farm, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {pin.name: pin for pin in parse_pins(farm.text).images}
    status, document = run_json(capsys, "--update", "test")
    assert status == 0
    assert {change["name"] for change in document["changes"]} == {"test"}
    after = {pin.name: pin for pin in parse_pins(farm.text).images}
    assert after["test"].index_digest == farm.registry.tags["runtime"]
    assert {**after, "test": before["test"]} == before


def test_update_of_an_unknown_name_suggests_the_known_one(farm: Farm) -> None:
    with pytest.raises(ConfigError, match="did you mean 'pythons'"):
        run_verb(["pins", "--update", "python"])


def test_update_writes_what_it_learned_before_it_tells_of_a_tag_that_is_gone(farm: Farm) -> None:
    del farm.registry.tags["runtime"]
    with pytest.raises(FindingError) as raised:
        run_verb(["pins", "--update"])
    assert [line.split(":")[0] for line in raised.value.details] == ["test"]
    assert parse_pins(farm.text).find("paddle", "13.0").digests  # type: ignore[union-attr]


def test_update_leaves_the_file_when_no_registry_answers(farm: Farm) -> None:
    text = farm.text
    farm.registry.faults = [Fault(500, times=999)]
    with pytest.raises(InfrastructureError):
        run_verb(["pins", "--update"])
    assert farm.text == text


def test_update_takes_no_option_of_check(farm: Farm) -> None:
    with pytest.raises(ConfigError, match="neither"):
        run_verb(["pins", "--update", "--online"])
