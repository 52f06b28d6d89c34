from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ci.executors import passed
from ci.executors.model import Mount
from ci.executors.passed import Passed, holds_credentials, local_path, outermost, passed_through

SECRET = "hunter2secret"


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host without the files of this one: its bundle and its folder of configuration are made up."""
    monkeypatch.setattr(passed, "DEFAULT_BUNDLES", ())
    monkeypatch.setattr(passed, "SYSTEM_PIP", tmp_path / "etc" / "pip.conf")
    monkeypatch.setattr(passed, "SYSTEM_UV", tmp_path / "etc" / "uv" / "uv.toml")
    return tmp_path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return folder(tmp_path / "home" / "me")


def folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def write(path: Path, text: str = "x\n") -> Path:
    folder(path.parent)
    path.write_text(text)
    return path


def ask(home: Path, **environ: object) -> Passed:
    base = {"XDG_CONFIG_DIRS": str(home.parent.parent / "xdg")}
    return passed_through({**base, **{key: str(value) for key, value in environ.items()}}, home)


def sources(found: Passed) -> set[Path]:
    assert all(mount == Mount(mount.source, mount.source, read_only=True) for mount in found.mounts)
    return {mount.source for mount in found.mounts}


def withheld(found: Passed) -> set[str]:
    assert SECRET not in repr(found)
    return {text.partition(":")[0] for text in found.withheld}


# -- what goes in ----------------------------------------------------------------------------------


def test_certificates_that_are_named_go_in(home: Path, host: Path) -> None:
    one, two = write(host / "ca" / "one.pem"), write(host / "ca2" / "two.pem")
    found = ask(home, SSL_CERT_FILE=one, PIP_CERT=two, CURL_CA_BUNDLE=host / "none.pem")
    assert {"SSL_CERT_FILE": str(one), "PIP_CERT": str(two)}.items() <= found.env.items()
    assert "CURL_CA_BUNDLE" not in found.env
    assert sources(found) == {one, two}
    assert not found.withheld


def test_a_folder_of_certificates_brings_what_its_links_lead_to(home: Path, host: Path) -> None:
    real = write(host / "usr" / "share" / "ca" / "root.crt")
    own = write(home / "mine.crt")
    certificates = folder(host / "certs")
    bundle = write(certificates / "bundle.crt")
    (certificates / "abc.0").symlink_to(real)
    (certificates / "mine.0").symlink_to(own)
    (certificates / "dangling.0").symlink_to(host / "none")
    found = ask(home, SSL_CERT_DIR=certificates, SSL_CERT_FILE=bundle)
    assert sources(found) == {certificates, real.parent}, (
        "the bundle lies in the folder, home stays out"
    )
    assert found.env["SSL_CERT_DIR"] == str(certificates)
    assert found.env["SSL_CERT_FILE"] == str(bundle)


def test_the_hosts_own_bundle_goes_in_when_none_is_named(
    home: Path, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, named = write(host / "b" / "bundle.pem"), write(host / "n" / "named.pem")
    monkeypatch.setattr(passed, "DEFAULT_BUNDLES", (str(host / "none"), str(bundle)))
    found = ask(home)
    assert sources(found) == {bundle}
    assert {
        found.env[name] for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO")
    } == {str(bundle)}
    assert sources(ask(home, PIP_CERT=named)) == {named}


def test_indexes_timeouts_and_proxies_go_in(home: Path) -> None:
    env = {
        "PIP_INDEX_URL": "https://index.example/simple",
        "PIP_DEFAULT_TIMEOUT": "180",
        "UV_INDEX": "mine=https://index.example/simple",
        "UV_SYSTEM_CERTS": "1",
        "HTTPS_PROXY": "http://proxy.example:3128",
        "no_proxy": "localhost,10.0.0.0/8",
    }
    found = ask(home, **env)
    assert env.items() <= found.env.items()
    assert not found.withheld


def test_local_folders_go_in_at_their_own_path(home: Path, host: Path) -> None:
    names = ("wheels", "more wheels", "uv", "index", "default")
    wheels, blank, uv, index, default = (folder(host / "data" / name) for name in names)
    found = ask(
        home,
        PIP_FIND_LINKS=f"{wheels} {host / 'none'} relative https://x.example/links",
        PIP_EXTRA_INDEX_URL=blank.as_uri(),
        UV_FIND_LINKS=f"{wheels},{uv}",
        UV_INDEX=f"mine={index.as_uri()}",
        UV_DEFAULT_INDEX=default.as_uri(),
    )
    assert sources(found) == {wheels, blank, uv, index, default}
    assert str(host / "none") in found.env["PIP_FIND_LINKS"], "the value is what the host has"


def test_folders_inside_others_are_not_mounted_twice(home: Path, host: Path) -> None:
    outer = folder(host / "data" / "all")
    inner = folder(outer / "inner")
    found = ask(home, PIP_FIND_LINKS=f"{inner} {outer} {outer}")
    assert [mount.source for mount in found.mounts] == [outer]
    assert outermost([Path("/a/b"), Path("/a/bc"), Path("/a/b/c")]) == (Path("/a/b"), Path("/a/bc"))


def test_the_files_beside_an_index_come_along_and_nothing_else(home: Path, host: Path) -> None:
    page = '<a href="../../files/ab/x.whl#sha256=1">x</a> <a href="../../../outside/y.whl">y</a>'
    index = write(host / "mirror" / "simple" / "x" / "index.html", page).parents[1]
    files = write(host / "mirror" / "files" / "ab" / "x.whl").parents[1]
    write(host / "outside" / "y.whl")
    folder(host / "mirror" / "private")
    assert sources(ask(home, PIP_INDEX_URL=index.as_uri())) == {index, files}


def test_pip_finds_in_the_container_what_it_finds_here(home: Path, host: Path) -> None:
    """The files are those that pip itself names."""
    wheels = folder(host / "data" / "wheels")
    constraints, ca = write(host / "data" / "constraints.txt"), write(host / "data" / "ca.pem")
    system = write(host / "xdg" / "pip" / "pip.conf", f"[global]\nconstraint = {constraints}\n")
    user = write(
        home / ".config" / "pip" / "pip.conf",
        f"[global]\nfind-links =\n    https://x.example/links\n    {wheels}\ncert = {ca}\n",
    )
    found = ask(home)
    assert sources(found) == {system, user, constraints, ca, wheels}
    assert found.env["PIP_CONFIG_FILE"] == str(user)
    elsewhere = folder(host / "other-home")
    done = subprocess.run(
        (sys.executable, "-m", "pip", "config", "debug"),
        env={"HOME": str(elsewhere), "PATH": os.environ["PATH"], **found.env},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"{system}, exists: True" in done.stdout
    assert f"{user}, exists: True" in done.stdout
    assert f"global.cert: {ca}" in done.stdout


def test_a_config_file_that_is_named_stands_for_the_users_own(home: Path, host: Path) -> None:
    write(home / ".config" / "pip" / "pip.conf", "[global]\n")
    named = write(host / "data" / "pip.conf", "[global]\n")
    found = ask(home, PIP_CONFIG_FILE=named)
    assert sources(found) == {named}
    assert found.env["PIP_CONFIG_FILE"] == str(named)


def test_pip_that_reads_no_file_here_reads_none_there(home: Path, host: Path) -> None:
    write(home / ".config" / "pip" / "pip.conf", "[global]\n")
    found = ask(home, PIP_CONFIG_FILE=os.devnull)
    assert (found.env["PIP_CONFIG_FILE"], sources(found)) == (os.devnull, set())


def test_of_two_files_of_the_user_the_one_that_wins_goes_in(home: Path) -> None:
    old = write(home / ".pip" / "pip.conf", "[global]\n")
    new = write(home / ".config" / "pip" / "pip.conf", "[global]\n")
    found = ask(home)
    assert found.env["PIP_CONFIG_FILE"] == str(new)
    assert withheld(found) == {str(old)}


def test_uv_reads_its_file_there(home: Path, host: Path) -> None:
    wheels, index = folder(host / "data" / "wheels"), folder(host / "data" / "index")
    inner = folder(host / "data" / "inner")
    user = write(
        home / ".config" / "uv" / "uv.toml",
        f'find-links = ["{wheels}"]\n[[index]]\nname = "x"\nurl = "{index.as_uri()}"\n'
        f'[pip]\nfind-links = ["{inner}"]\n',
    )
    found = ask(home)
    assert sources(found) == {user, wheels, index, inner}
    assert found.env["UV_CONFIG_FILE"] == str(user)
    user.unlink()
    system = write(host / "xdg" / "uv" / "uv.toml", "")
    found = ask(home)
    assert sources(found) == {system}
    assert "UV_CONFIG_FILE" not in found.env


# -- what stays outside ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_CA_BUNDLE", "TWINE_PASSWORD", "TWINE_USERNAME",
     "SSH_AUTH_SOCK", "DOCKER_HOST", "HF_TOKEN", "NETRC", "HOME", "PATH", "PYPI_API_KEY", "LD_PRELOAD",
     "PIP_TARGET", "UV_PUBLISH_URL", "GIT_ASKPASS", "KUBECONFIG"],
)  # fmt: skip
def test_what_is_not_asked_for_stays_outside(home: Path, host: Path, name: str) -> None:
    found = ask(home, **{name: write(host / SECRET)})
    assert name not in found.env
    assert found.mounts == ()


@pytest.mark.parametrize(
    "name",
    ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "UV_INDEX", "UV_DEFAULT_INDEX",
     "HTTPS_PROXY", "http_proxy", "ALL_PROXY", "PIP_PROXY"],
)  # fmt: skip
@pytest.mark.parametrize(
    "value",
    [f"https://user:{SECRET}@index.example/simple", f"https://{SECRET}@index.example/simple",
     f"https://index.example/simple https://u:{SECRET}@b.example/", f"http://u:{SECRET}/x@proxy.example:1",
     f"https://index.example/simple?token={SECRET}"],
)  # fmt: skip
def test_a_value_with_credentials_is_withheld_and_named(home: Path, name: str, value: str) -> None:
    found = ask(home, **{name: value})
    assert name not in found.env
    assert withheld(found) == {name}


def test_a_proxy_without_scheme_may_hold_a_password_too(home: Path) -> None:
    found = ask(home, HTTPS_PROXY=f"user:{SECRET}@proxy.example:3128")
    assert withheld(found) == {"HTTPS_PROXY"}
    assert ask(home, HTTPS_PROXY="proxy.example:3128").env["HTTPS_PROXY"] == "proxy.example:3128"


@pytest.mark.parametrize(
    "name", ["UV_INDEX_MINE_PASSWORD", "UV_INDEX_MINE_USERNAME", "PIP_CLIENT_CERT", "UV_PUBLISH_TOKEN"]
)  # fmt: skip
def test_credentials_of_pip_and_uv_are_named(home: Path, name: str) -> None:
    found = ask(home, **{name: SECRET})
    assert name not in found.env
    assert withheld(found) == {name}


@pytest.mark.parametrize(
    "text",
    [
        f"[global]\nindex-url = https://u:{SECRET}@x.example/\n",
        f"[global]\n# was https://u:{SECRET}@x/\n",
    ],
)
def test_a_pip_file_with_credentials_is_withheld_with_what_it_names(
    home: Path, host: Path, text: str
) -> None:
    wheels = folder(host / "data" / "wheels")
    path = write(home / ".config" / "pip" / "pip.conf", f"{text}find-links = {wheels}\n")
    found = ask(home)
    assert "PIP_CONFIG_FILE" not in found.env
    assert sources(found) == set()
    assert withheld(found) == {str(path)}


def test_other_files_with_credentials_are_withheld(home: Path, host: Path) -> None:
    uv = write(home / ".config" / "uv" / "uv.toml", f'index-url = "https://u:{SECRET}@x.example"\n')
    constraints = write(host / "data" / "c.txt", f"x @ https://u:{SECRET}@x.example/x.whl\n")
    key = write(host / "data" / "ca.pem", f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n")
    found = ask(home, PIP_CONSTRAINT=constraints, SSL_CERT_FILE=key)
    assert sources(found) == set()
    assert withheld(found) == {str(uv), str(constraints), "SSL_CERT_FILE"}
    assert not {"UV_CONFIG_FILE", "SSL_CERT_FILE"} & found.env.keys()


def test_home_and_what_holds_it_are_not_mounted(home: Path) -> None:
    folder(home / ".ssh" / "wheels")
    for wide in (home, home.parent, Path("/"), Path("/etc"), home / ".ssh" / "wheels"):
        found = ask(home, PIP_FIND_LINKS=wide)
        assert sources(found) == set(), wide
        assert withheld(found) == {"PIP_FIND_LINKS"}
    linked = home / "w"
    linked.symlink_to(home)
    assert sources(ask(home, PIP_FIND_LINKS=linked)) == set()
    wheels = folder(home / "wheels")
    assert sources(ask(home, PIP_FIND_LINKS=wheels)) == {wheels}


def test_nothing_asked_for_nothing_passed(home: Path) -> None:
    found = ask(home)
    assert (found.env.keys() - {"XDG_CONFIG_DIRS"}, found.mounts, found.withheld) == (set(), (), ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://index.example/simple", False),
        ("git+ssh://git@host.example/x", False),
        ("git+https://host.example/x@v1", False),
        ("https://index.example:8443/a/b", False),
        ("username = me", True),
        ("HTTPS://U:P@x", True),
    ],
)
def test_credentials_are_told_from_addresses(text: str, expected: bool) -> None:
    assert holds_credentials(text) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [("/a/b", "/a/b"), ("file:///a%20b/", "/a b"), ("file://localhost/a", "/a"), ("x=file:///a", "/a"),
     ("file://server/a", None), ("relative", None), ("https://x/a", None), ("", None)],
)  # fmt: skip
def test_local_paths_are_told_from_addresses(value: str, expected: str | None) -> None:
    assert local_path(value) == (None if expected is None else Path(expected))
