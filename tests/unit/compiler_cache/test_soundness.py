"""Never an old object: what is compiled through the cache equals what the compiler alone gives."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.compiler_cache.bench import GXX, Bench, counted, session

TOOLS = ("sccache", "ccache")
ONE = '#include "only_one.h"\nint one(int x) { return value() + x; }\n'
TWO = "int two(int x) { return x * 2; }\n"
HEADER = "inline int value() { return 41; }\n"
MISS, HIT = (0, 1), (1, 0)


class Twin:
    """The same sources twice in the same folder of two roots: behind a cache, and without."""

    def __init__(self, tool: str, root: Path) -> None:
        self.session, self.warned = session(tool, root / "cache")
        self.root = root
        self.number = 0

    def compile(
        self,
        files: Mapping[str, str],
        name: str,
        *options: str,
        folder: str = "build",
        env: Mapping[str, str] = {},
        cxx: Path = GXX,
        identity: str = "compilers of the test",
    ) -> tuple[int, int]:
        """Hits and misses of one call, whose object is the one that the compiler alone gives there."""
        bench = Bench(self.root / folder, cxx=cxx, identity=identity).write(**files)
        with bench.cached(self.session) as cached:
            through = cached.compile(name, *options, env=env)
        alone = bench.compile(name, *options, env=env)
        assert through == alone
        assert self.warned == []
        return counted(cached.build.stats)


@pytest.fixture(params=TOOLS)
def twin(request: pytest.FixtureRequest, tmp_path: Path) -> Twin:
    return Twin(request.param, tmp_path)


def test_a_header_that_one_unit_includes(twin: Twin) -> None:
    files = {"one__cc": ONE, "two__cc": TWO, "only_one__h": HEADER}
    assert twin.compile(files, "one.cc") == MISS
    assert twin.compile(files, "two.cc") == MISS
    changed = files | {"only_one__h": HEADER.replace("41", "42")}
    assert twin.compile(changed, "one.cc") == MISS
    assert twin.compile(changed, "two.cc") == HIT
    assert twin.compile(files, "one.cc") == HIT


def test_a_macro(twin: Twin) -> None:
    files = {"a__cc": "int f() { return N; }\n"}
    assert twin.compile(files, "a.cc", "-DN=1") == MISS
    assert twin.compile(files, "a.cc", "-DN=2") == MISS
    assert twin.compile(files, "a.cc", "-DN=1") == HIT


def test_a_comment_that_moves_no_line(twin: Twin) -> None:
    text = "int f() { return __builtin_LINE(); }\n"
    assert twin.compile({"a__cc": text}, "a.cc", "-g") == MISS
    twin.compile({"a__cc": text.replace("\n", " // a comment\n")}, "a.cc", "-g")


@pytest.mark.parametrize("options", [("-O2",), ("-g", "-O1")])
def test_a_comment_that_moves_lines(twin: Twin, options: tuple[str, ...]) -> None:
    text = "int f() { return __builtin_LINE(); }\nint g(int x) { return x + 1; }\n"
    assert twin.compile({"a__cc": text}, "a.cc", *options) == MISS
    assert twin.compile({"a__cc": "// a comment\n\n" + text}, "a.cc", *options) == MISS


def test_the_name_of_a_file_in_the_object(twin: Twin) -> None:
    """The same text in a file of another name, which it asks for after preprocessing."""
    text = "const char *f() { return __builtin_FILE(); }\n"
    assert twin.compile({"a__cc": text}, "a.cc") == MISS
    assert twin.compile({"b__cc": text}, "b.cc") == MISS


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("-O0", "-O2"), ("-O2", "-O0")),
        (("-UN", "-DN=3"), ("-DN=3", "-UN")),
        (("-Ifirst", "-Isecond"), ("-Isecond", "-Ifirst")),
    ],
)
def test_the_order_of_options(
    twin: Twin, first: tuple[str, ...], second: tuple[str, ...], tmp_path: Path
) -> None:
    text = '#include "which.h"\n#ifndef N\n#define N 7\n#endif\nint f(int x) { return x * N + WHICH; }\n'
    for number, name in enumerate(("first", "second")):
        folder = tmp_path / "build" / "source" / name
        folder.mkdir(parents=True)
        (folder / "which.h").write_text(f"#define WHICH {number}\n")
    paths = () if first[0].startswith("-I") else ("-Ifirst",)
    assert twin.compile({"a__cc": text}, "a.cc", *paths, *first) == MISS
    assert twin.compile({"a__cc": text}, "a.cc", *paths, *second) == MISS


def compiler(folder: Path, version: int) -> tuple[Path, str]:
    """A compiler that is g++ with another constant: its program, and its identity."""
    path = folder / "g++"
    folder.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec "{GXX}" -DBUILTIN_VERSION={version} "$@"\n')
    path.chmod(0o755)
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def test_another_compiler_at_the_same_path(twin: Twin, tmp_path: Path) -> None:
    files = {"a__cc": "int f() { return BUILTIN_VERSION; }\n", "b__cc": TWO}
    cxx, identity = compiler(tmp_path / "bin", 1)
    assert twin.compile(files, "a.cc", cxx=cxx, identity=identity) == MISS
    assert twin.compile(files, "b.cc", cxx=cxx, identity=identity) == MISS
    cxx, identity = compiler(tmp_path / "bin", 2)
    assert twin.compile(files, "a.cc", cxx=cxx, identity=identity) == MISS
    assert twin.compile(files, "b.cc", cxx=cxx, identity=identity) == MISS
    cxx, identity = compiler(tmp_path / "elsewhere", 1)
    cxx.write_bytes(compiler(tmp_path / "bin", 1)[0].read_bytes())
    assert twin.compile(files, "a.cc", cxx=cxx, identity=identity) == HIT


def test_date_and_time(twin: Twin) -> None:
    files = {"a__cc": "const char *f() { return __DATE__ __TIME__; }\n"}
    early, late = {"SOURCE_DATE_EPOCH": "100000000"}, {"SOURCE_DATE_EPOCH": "1500000000"}
    assert twin.compile(files, "a.cc", env=early)[0] == 0
    assert twin.compile(files, "a.cc", env=late)[0] == 0


def test_an_include_folder_of_the_environment(twin: Twin, tmp_path: Path) -> None:
    files = {"a__cc": "#include <which.h>\nint f() { return WHICH; }\n"}
    for number, name in enumerate(("first", "second")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "which.h").write_text(f"#define WHICH {number}\n")
    for name in ("first", "second"):
        env = {"CPLUS_INCLUDE_PATH": str(tmp_path / name)}
        assert twin.compile(files, "a.cc", env=env) == MISS


# -- other folders ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [("-O2",), ("-g", "-O1")])
def test_another_folder_hits_with_the_same_object(twin: Twin, options: tuple[str, ...]) -> None:
    text = (
        '#include "only_one.h"\nint f() { return value() + __builtin_LINE(); }\n'
        "const char *g() { return __FILE__; }\nconst char *h() { return __builtin_FILE(); }\n"
    )
    files = {"a__cc": text, "only_one__h": HEADER}
    assert twin.compile(files, "a.cc", *options, folder="first") == MISS
    assert twin.compile(files, "a.cc", *options, folder="second/and longer"[:12]) == HIT


def test_a_folder_that_gets_into_the_object_is_no_hit_elsewhere(
    twin: Twin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build that ignores the options that leave its folder out."""
    monkeypatch.setattr(Bench, "maps", ())
    files = {
        "a__cc": "const char *f() { return __builtin_FILE(); }\nconst char *g() { return __FILE__; }\n"
    }
    assert twin.compile(files, "a.cc", folder="first") == MISS
    assert twin.compile(files, "a.cc", folder="second") == MISS
    assert twin.compile(files, "a.cc", folder="second") == HIT


def test_a_map_to_another_name_is_no_hit(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"a__cc": "const char *f() { return __builtin_FILE(); }\n"}
    assert twin.compile(files, "a.cc") == MISS
    source = twin.root / "build" / "source"
    monkeypatch.setattr(Bench, "maps", (f"-ffile-prefix-map={source}=elsewhere",))
    assert twin.compile(files, "a.cc") == MISS


def test_a_header_that_differs_in_the_other_folder(twin: Twin) -> None:
    files = {"a__cc": '#include "only_one.h"\nint f() { return value(); }\n', "only_one__h": HEADER}
    assert twin.compile(files, "a.cc", folder="first") == MISS
    changed = files | {"only_one__h": HEADER.replace("41", "43")}
    assert twin.compile(changed, "a.cc", folder="second") == MISS


def test_headers_of_the_environment_are_found_from_anywhere(twin: Twin) -> None:
    include = sysconfig.get_path("include")
    if not include.startswith(sys.prefix):
        pybind = Path(sys.prefix).rglob("pybind11/include")
        include = str(next(pybind))
    files = {"a__cc": "int f() { return 5; }\n"}
    assert twin.compile(files, "a.cc", f"-I{include}", folder="first") == MISS
    assert twin.compile(files, "a.cc", f"-I{include}", folder="second") == HIT


def test_preprocessing_that_the_build_asks_for_is_as_without(twin: Twin, tmp_path: Path) -> None:
    """``-E -P`` of a build gives what the compiler gives; the cache's own ``-P`` is another thing."""
    bench = Bench(tmp_path / "build").write(a__cc="// one\nint f();\n\n\nint g();\n")
    for options in (("-E",), ("-E", "-P"), ("-E", "-dM"), ("--version",), ("-print-prog-name=as",)):
        argv = (*options, *(() if options[0].startswith("--") else (str(bench.source / "a.cc"),)))
        with bench.cached(twin.session) as cached:
            environment = {"PATH": "/usr/bin:/bin", **cached.build.environment}
            through = subprocess.run(
                (cached.build.environment["CXX"], *argv),
                env=environment,
                capture_output=True,
                check=True,
            )
        alone = subprocess.run((str(GXX), *argv), capture_output=True, check=True)
        assert through.stdout == alone.stdout


def test_a_wrong_source_fails_with_the_compilers_words(twin: Twin, tmp_path: Path) -> None:
    bench = Bench(tmp_path / "build").write(a__cc="int f( { return 1; }\n")
    with bench.cached(twin.session) as cached:
        argv = (cached.build.environment["CXX"], "-c", *bench.maps, str(bench.source / "a.cc"))
        environment = {"PATH": "/usr/bin:/bin", **cached.build.environment}
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, cwd=tmp_path, check=False
        )
    assert done.returncode == 1
    assert f"{bench.source / 'a.cc'}:1:" in done.stderr
    assert cached.build.stats.hits == 0
