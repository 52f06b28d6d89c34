"""Eight small C++ and Python libraries of known, mixed cost, to build a cell from.

Their cost is in translation units, each with ``<regex>`` and its own templates, about two seconds of a
compiler. Two compile side by side by ninja, which joins a GNU Make jobserver that ``MAKEFLAGS`` names; four
compile one unit after the other by setuptools, the longest of them six; two are Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Mixed:
    """A library to write: its translation units, and how its build goes through them. One that is not
    ``rich`` costs next to nothing to compile.
    """

    name: str
    units: int
    by: Literal["ninja", "setuptools", "python"]
    rich: bool = True

    @property
    def module(self) -> str:
        """Its import name."""
        return self.name.replace("-", "_")


LIBRARIES = (
    Mixed("small-serial", 1, "setuptools"),
    Mixed("pure-one", 0, "python"),
    Mixed("wide-ninja", 8, "ninja"),
    Mixed("middle-serial", 3, "setuptools"),
    Mixed("pure-two", 0, "python"),
    Mixed("broad-ninja", 4, "ninja"),
    Mixed("other-serial", 1, "setuptools"),
    Mixed("long-serial", 6, "setuptools"),
)
"""In an order that is bad for a loop that takes them as they come: the longest is the last."""

PYPROJECT = """[build-system]
requires = ["setuptools>=77"{ninja}]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "1.0"

[tool.setuptools]
packages = ["{module}"]
"""
UNIT = """#include <algorithm>
#include <functional>
#include <map>
#include <regex>
#include <string>
#include <vector>

namespace {{
template <int N> struct Table {{
  std::map<std::string, std::function<long(long)>> rows;
  Table() {{
    const std::string stem = "{module}{number}";
    for (int i = 0; i < N; ++i) rows[stem + std::to_string(i)] = [i](long x) {{ return x * N + i; }};
  }}
  long sum(long x) const {{
    std::vector<long> found;
    for (const auto& row : rows) found.push_back(row.second(x));
    std::sort(found.begin(), found.end(), [](long a, long b) {{ return a % (N + 1) < b % (N + 1); }});
    return found.empty() ? 0 : found.back() + Table<N - 1>().sum(x);
  }}
}};
template <> struct Table<0> {{ long sum(long x) const {{ return x; }} }};
}}  // namespace

long unit_{number}(const char* text) {{
  std::regex pattern("{module}_([a-z]+)-([0-9]{{1,4}})?(x|y|z)*");
  std::cmatch match;
  return Table<6>().sum(std::regex_match(text, match, pattern) ? long(match.size()) : {number});
}}
"""
POOR_UNIT = "long unit_{number}(const char*) {{ return {number}; }}  // {module}\n"
MAIN = """#define PY_SSIZE_T_CLEAN
#include <Python.h>
{declared}
static PyObject* run(PyObject*, PyObject*) {{ return PyLong_FromLong({calls}); }}
static PyMethodDef methods[] = {{{{"run", run, METH_NOARGS, ""}}, {{nullptr, nullptr, 0, nullptr}}}};
static PyModuleDef module = {{PyModuleDef_HEAD_INIT, "_core", "", -1, methods}};
PyMODINIT_FUNC PyInit__core() {{ return PyModule_Create(&module); }}
"""
SETUP = """import os
import subprocess
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = sorted(str(path) for path in Path("csrc").glob("*.cpp"))
FLAGS = ["-std=c++17", "-O2", "-g0", "-fvisibility=hidden"]


class Serial(build_ext):
    def build_extensions(self):
        for name in ("linker_so", "linker_so_cxx"):
            command = getattr(self.compiler, name, None)
            if command:  # no run path of the Python that builds
                kept = [word for word in command if not word.startswith(("-Wl,-rpath", "-Wl,/"))]
                setattr(self.compiler, name, kept)
        super().build_extensions()


class Ninja(build_ext):
    def build_extension(self, ext):
        work = Path(self.build_temp)
        work.mkdir(parents=True, exist_ok=True)
        target = Path(self.get_ext_fullpath(ext.name)).absolute()
        target.parent.mkdir(parents=True, exist_ok=True)
        include = "-I" + sysconfig.get_paths()["include"]
        flags = " ".join([*FLAGS, "-fPIC", include, os.environ.get("CPPFLAGS", "")])
        cxx = os.environ.get("CXX", "g++")
        objects = [f"{Path(source).stem}.o" for source in SOURCES]
        lines = ["rule compile", f"  command = {cxx} {flags} -c $in -o $out"]
        lines += ["rule link", f"  command = {cxx} -shared -s $in -o $out"]
        lines += [f"build {o}: compile {Path(s).absolute()}" for o, s in zip(objects, SOURCES)]
        lines += [f"build {target}: link {' '.join(objects)}", ""]
        (work / "build.ninja").write_text("\\n".join(lines))
        subprocess.run(["ninja", "-C", str(work)], check=True)


setup(
    ext_modules=[
        Extension(
            "@MODULE@._core", SOURCES, language="c++", extra_compile_args=FLAGS, extra_link_args=["-s"]
        )
    ],
    cmdclass={"build_ext": @CLASS@},
)
"""
DECLARATION = '''"""Written by benchmarks/mixed_libraries.py."""

from build_utils import Artifact, EcosystemLibrary

LIBRARIES = tuple(
    EcosystemLibrary(
        name=name,
        source_rel_path=name,
        artifacts=(Artifact(module, module),),
        module=module,
        kind="header_only" if by != "python" else "python_dsl",
        hint="it is of a benchmark",
        public_names=("run",),
        compat_scope=(module,),
        varies_by=frozenset({{"python"}} if by != "python" else ()),
        build_requires=("setuptools>=77", *(("ninja>=1.13",) if by == "ninja" else ())),
        needs_host_compiler=by != "python",
        parallel_by={{"ninja": "jobserver", "setuptools": "nothing", "python": "nothing"}}[by],
        library_set="declared",
    )
    for name, module, by in {rows!r}
)
'''


def write_all(folder: Path, libraries: tuple[Mixed, ...] = LIBRARIES) -> Path:
    """Write the sources below ``folder``; returns the declaration file for ``--declare``."""
    for library in libraries:
        _write(folder / library.name, library)
    rows = [(library.name, library.module, library.by) for library in libraries]
    declaration = folder / "declare.py"
    declaration.write_text(DECLARATION.format(rows=rows), "utf-8")
    return declaration


def _write(folder: Path, library: Mixed) -> None:
    package = folder / library.module
    package.mkdir(parents=True)
    ninja = ', "ninja>=1.13"' if library.by == "ninja" else ""
    text = PYPROJECT.format(name=library.name, module=library.module, ninja=ninja)
    (folder / "pyproject.toml").write_text(text, "utf-8")
    if library.by == "python":
        (package / "__init__.py").write_text("def run():\n    return 1\n", "utf-8")
        return
    (package / "__init__.py").write_text("from ._core import run  # noqa: F401\n", "utf-8")
    sources = folder / "csrc"
    sources.mkdir()
    numbers = range(library.units)
    for number in numbers:
        unit = (UNIT if library.rich else POOR_UNIT).format(module=library.module, number=number)
        (sources / f"unit_{number}.cpp").write_text(unit, "utf-8")
    declared = "\n".join(f"long unit_{number}(const char*);" for number in numbers)
    calls = " + ".join(f'unit_{number}("text")' for number in numbers)
    (sources / "main.cpp").write_text(MAIN.format(declared=declared, calls=calls), "utf-8")
    chosen = "Ninja" if library.by == "ninja" else "Serial"
    setup = SETUP.replace("@MODULE@", library.module).replace("@CLASS@", chosen)
    (folder / "setup.py").write_text(setup, "utf-8")
