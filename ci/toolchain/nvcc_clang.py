"""``nvcc`` for CUDA homes whose device code is compiled by clang.

Copied into such a home as ``bin/nvcc_clang.py`` and started by ``bin/nvcc``; standard library only.
It takes nvcc's options (NVIDIA's manual "CUDA Compiler Driver NVCC", section "Command Option
Description"), compiles ``.cu`` files with clang and other sources with the host compiler, and links
with the host compiler, as nvcc does. An option either has the effect that it has in nvcc, or cannot
change what is produced (:data:`NO_EFFECT` says which and why), or is refused by name.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CONFIG = "nvcc_clang.json"


class RefusedError(Exception):
    """The command line asks for something that is unknown, or that clang cannot do."""


@dataclass(frozen=True)
class Config:
    """What this home is. ``default_arch`` is what nvcc of this CUDA compiles for unasked."""

    home: Path
    cuda: str
    version: str
    clang: str
    clang_version: str
    default_arch: str


# -- the options -----------------------------------------------------------------------------------

# name in the manual: its short names. Each may be written with one dash or two.
FLAGS: dict[str, tuple[str, ...]] = {
    "compile": ("c",),
    "shared": (),
    "link": (),
    "lib": (),
    "ptx": (),
    "cubin": (),
    "preprocess": ("E",),
    "generate-dependencies": ("M",),
    "generate-nonsystem-dependencies": ("MM",),
    "generate-dependencies-with-compile": ("MD",),
    "generate-nonsystem-dependencies-with-compile": ("MMD",),
    "generate-dependency-targets": ("MP",),
    "debug": ("g",),
    "device-debug": ("G",),
    "generate-line-info": ("lineinfo",),
    "use_fast_math": (),
    "no-exceptions": ("noeh",),
    "disable-warnings": ("w",),
    "verbose": ("v",),
    "dryrun": (),
    "resource-usage": ("res-usage",),
    "no-compress": (),
    "forward-unknown-to-host-compiler": (),
    "forward-unknown-to-host-linker": (),
    "forward-unknown-opts": (),
    "version": ("V",),
    "help": ("h",),
}
VALUES: dict[str, tuple[str, ...]] = {
    "output-file": ("o",),
    "compiler-bindir": ("ccbin",),
    "cudart": (),
    "std": (),
    "x": (),
    "optimize": ("O",),
    "machine": ("m",),
    "gpu-architecture": ("arch",),
    "generate-code": ("gencode",),
    "relocatable-device-code": ("rdc",),
    "maxrregcount": (),
    "ftz": (),
    "prec-div": (),
    "prec-sqrt": (),
    "fmad": (),
    "default-stream": (),
    "dependency-output": ("MF",),
    "dependency-target-name": ("MT",),
    "output-directory": ("odir",),
    "compress-mode": (),
    "ftemplate-depth": (),
    "ftemplate-backtrace-limit": (),
    "static-global-template-stub": (),
}
LISTS: dict[str, tuple[str, ...]] = {
    "library": ("l",),
    "define-macro": ("D",),
    "undefine-macro": ("U",),
    "include-path": ("I",),
    "system-include": ("isystem",),
    "library-path": ("L",),
    "pre-include": ("include",),
    "compiler-options": ("Xcompiler",),
    "linker-options": ("Xlinker",),
    "archive-options": ("Xarchive",),
    "ptxas-options": ("Xptxas",),
    "Xfatbin": (),
    "Xcudafe": (),
    "gpu-code": ("code",),
    "Werror": (),
    "options-file": ("optf",),
}
JOINED = ("isystem", "O", "D", "U", "I", "L", "l", "m", "t")
"""Short names whose value may follow without a space."""

NO_EFFECT: dict[str, str] = {
    "expt-relaxed-constexpr": "clang lets device code call constexpr functions anyway",
    "expt-extended-lambda": "clang takes __device__ lambdas anyway",
    "extended-lambda": "clang takes __device__ lambdas anyway",
    "m64": "the only size there is",
    "keep": "intermediate files are not the result",
    "save-temps": "intermediate files are not the result",
    "objdir-as-tempdir": "places intermediate files",
    "clean-targets": "there are no intermediate files",
    "no-device-link": "there is never a device link",
    "nodlink": "there is never a device link",
    "jobserver": "scheduling only",
    "restrict": "permits optimisations",
    "extra-device-vectorization": "permits optimisations",
    "allow-unsupported-compiler": "the host compiler is not checked",
    "display-error-number": "form of messages",
    "err-no": "form of messages",
    "no-display-error-number": "form of messages",
    "no-err-no": "form of messages",
    "Wno-deprecated-gpu-targets": "warning of nvcc alone",
    "Wno-deprecated-declarations": "warning of nvcc's front end alone",
    "Wext-lambda-captures-this": "warning of nvcc alone",
    "Wreorder": "warning of nvcc alone",
    "Wdefault-stream-launch": "warning of nvcc alone",
    "Wmissing-launch-bounds": "warning of nvcc alone",
}
NO_EFFECT_VALUES: dict[str, str] = {
    "threads": "scheduling only",
    "t": "scheduling only",
    "split-compile": "scheduling only",
    "keep-dir": "intermediate files are not the result",
    "nvlink-options": "there is never a device link",
    "Xnvlink": "there is never a device link",
    "cudadevrt": "there is never a device link",
    "brief-diagnostics": "form of messages",
    "brief-diag": "form of messages",
    "diag-suppress": "numbers of nvcc's own front end",
    "diag-warn": "numbers of nvcc's own front end",
    "frandom-seed": "names come out the same every time anyway",
}
_RELOCATABLE = (
    *("device-c", "dc", "device-w", "dw", "device-link", "dlink"),
    *("extensible-whole-program", "ewp", "dlink-time-opt", "dlto", "lto", "ltoir", "gen-opt-lto"),
)
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        _RELOCATABLE,
        "clang makes no relocatable device code here; each .cu file must be complete in itself",
    ),
    "fatbin": "clang puts device code straight into the object file; use -c, -cubin or -ptx",
    "optix-ir": "clang cannot make OptiX IR",
    "run": "compile and run in two steps",
    "sanitize": "clang cannot instrument device code",
}


WERROR = (
    "all-warnings",
    "cross-execution-space-call",
    "default-stream-launch",
    "deprecated-declarations",
    "ext-lambda-captures-this",
    "missing-launch-bounds",
    "reorder",
)
"""Values of ``-Werror``. Only the first concerns clang: the others are warnings of nvcc alone."""


def _long_names() -> dict[str, tuple[str, str]]:
    """From every spelling to (name in the manual, kind)."""
    table: dict[str, tuple[str, str]] = {}
    for kind, options in (("flag", FLAGS), ("value", VALUES), ("list", LISTS)):
        for name, short in options.items():
            for spelling in (name, *short):
                table[spelling] = (name, kind)
    return table


_NAMES = _long_names()


@dataclass
class Options:
    """The command line, sorted: flags, last single values, lists, and the files to work on."""

    flags: set[str] = field(default_factory=set)
    values: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)
    gencodes: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        """The values of a list option."""
        return self.lists.get(name, [])


def parse(arguments: Sequence[str]) -> Options:
    """Sort a command line by nvcc's rules. Raises :class:`RefusedError`."""
    options = Options()
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            options.inputs.append(word)
            continue
        _option(word, rest, options)
    if options.unknown and not _forwards(options):
        raise RefusedError(f"Unknown option '{options.unknown[0]}'")
    return options


def _forwards(options: Options) -> bool:
    return bool(
        options.flags
        & {
            "forward-unknown-to-host-compiler",
            "forward-unknown-to-host-linker",
            "forward-unknown-opts",
        }
    )


def _option(word: str, rest: list[str], options: Options) -> None:
    bare = word.lstrip("-")
    name, equals, value = bare.partition("=")
    if bare in REFUSED or name in REFUSED:
        raise RefusedError(f"Option '{word}' cannot be used: {REFUSED.get(bare, REFUSED[name])}")
    if bare in NO_EFFECT:
        return
    if name in NO_EFFECT_VALUES:
        _ = equals or _next(word, rest)
        return
    if name in _NAMES:
        _known(word, name, value if equals else None, rest, options)
        return
    joined = _joined(bare) if not word.startswith("--") else None
    if joined is None:
        options.unknown.append(word)
    elif joined[0] not in NO_EFFECT_VALUES:
        _store(_NAMES[joined[0]], joined[1], options, rest)


def _joined(bare: str) -> tuple[str, str] | None:
    """``O3`` as (``O``, ``3``); None when no short name fits."""
    for short in JOINED:
        if bare.startswith(short) and len(bare) > len(short):
            value = bare[len(short) :]
            if short in ("O", "m", "t") and not value.isdigit():
                continue
            return short, value
    return None


def _known(word: str, name: str, value: str | None, rest: list[str], options: Options) -> None:
    entry = _NAMES[name]
    if entry[1] == "flag":
        if value is not None:
            raise RefusedError(f"Option '{word}' takes no value")
        options.flags.add(entry[0])
        return
    _store(entry, _next(word, rest) if value is None else value, options, rest)


def _next(word: str, rest: list[str]) -> str:
    if not rest:
        raise RefusedError(f"Option '{word}' needs a value")
    return rest.pop(0)


def _store(entry: tuple[str, str], value: str, options: Options, rest: list[str]) -> None:
    name, kind = entry
    if name == "generate-code":
        options.gencodes.append(value)
    elif name == "options-file":
        for path in _split(value):
            rest[:0] = shlex.split(Path(path).read_text(encoding="utf-8"), comments=False)
    elif kind == "list":
        options.lists.setdefault(name, []).extend(_split(value))
    else:
        options.values[name] = value


def _split(value: str) -> list[str]:
    r"""A list value: commas part it, ``\,`` is a comma."""
    parts = re.split(r"(?<!\\),", value)
    return [part.replace("\\,", ",") for part in parts if part]


# -- device targets --------------------------------------------------------------------------------

_GENCODE = re.compile(r"arch=(?P<arch>[\w]+)(?:,code=(?P<code>.+))?$")
_ARCH = re.compile(r"(?P<kind>sm|compute)_(?P<number>\d+)(?P<suffix>[a-z]?)$")


@dataclass(frozen=True)
class Targets:
    """Device targets as clang takes them: ``sm_90a`` to compile, and those whose PTX goes along."""

    binaries: tuple[str, ...]
    ptx: tuple[str, ...]


def targets(options: Options, default_arch: str) -> Targets:
    """The device targets that the command line asks for. Raises :class:`RefusedError`."""
    binaries: list[str] = []
    ptx: list[str] = []
    for virtual, codes in _asked_targets(options, default_arch):
        wanted = _number(virtual, "compute")
        for code in codes:
            kind, number = _code(code)
            if number != wanted:
                raise RefusedError(
                    f"code={code} from arch={virtual} cannot be made: clang compiles "
                    f"sm_{number} from its own compute_{number}"
                )
            (binaries if kind == "sm" else ptx).append(f"sm_{number}")
    alone = [arch for arch in ptx if arch not in binaries]
    if alone:
        raise RefusedError(
            f"PTX of {alone[0].replace('sm_', 'compute_')} without code for {alone[0]} cannot be "
            f"made: clang embeds PTX beside the binary; ask for code={alone[0]} too"
        )
    return Targets(tuple(dict.fromkeys(binaries)), tuple(dict.fromkeys(ptx)))


def _asked_targets(options: Options, default_arch: str) -> Iterator[tuple[str, list[str]]]:
    for text in options.gencodes:
        match = _GENCODE.match(text.strip("'\""))
        if match is None:
            raise RefusedError(f"cannot read -gencode '{text}'")
        codes = (match["code"] or match["arch"]).strip("[]'\"")
        yield match["arch"], [code.strip("\"' ") for code in codes.split(",")]
    arch = options.values.get("gpu-architecture")
    if arch is None and options.gencodes:
        return
    codes_asked = options.all("gpu-code")
    arch = arch or default_arch
    virtual = arch.replace("sm_", "compute_")
    if codes_asked:
        if arch != virtual:
            raise RefusedError(f"Value of -arch option ('{arch}') must be a virtual architecture")
        yield virtual, [code.strip("[]") for code in codes_asked]
    elif arch.startswith("sm_") and arch.endswith("a"):
        raise RefusedError(
            f"-arch={arch} cannot be honoured: nvcc also embeds PTX of {virtual[:-1]} for it, and "
            f"clang cannot; use -gencode arch={virtual},code={arch}"
        )
    elif arch.startswith("sm_"):
        yield virtual, [arch, virtual]  # the manual: -arch=sm_80 also keeps that PTX
    else:
        yield virtual, [arch]


def _number(arch: str, kind: str) -> str:
    match = _ARCH.match(arch)
    if match is None or match["kind"] != kind:
        raise RefusedError(f"'{arch}' is not a {kind}_<number>, and clang takes no other target")
    return match["number"] + match["suffix"]


def _code(code: str) -> tuple[str, str]:
    match = _ARCH.match(code)
    if match is None:
        raise RefusedError(f"target '{code}' cannot be made by clang")
    if match["suffix"] == "f":
        raise RefusedError(
            f"target '{code}' is family-specific, which clang does not know; "
            f"use '{code[:-1]}' or '{code[:-1]}a', or NVIDIA's nvcc"
        )
    return match["kind"], match["number"] + match["suffix"]


# -- commands --------------------------------------------------------------------------------------

_CU = (".cu",)
_HOST = (".cpp", ".cc", ".cxx", ".C", ".c++", ".c")
_LINKABLE = re.compile(r"\.(o|obj|a|so(\.\d+)*)$")


@dataclass(frozen=True)
class Host:
    """The host compiler, and the folder of its gcc installation (for clang), if it is a gcc."""

    cxx: str
    gcc_folder: str = ""


def commands(
    options: Options, config: Config, host: Host, scratch: Path
) -> Iterator[tuple[str, ...]]:
    """What to run, in order. ``scratch`` takes the objects of a compile-and-link command."""
    _refuse_values(options)
    if not options.inputs:
        raise RefusedError("No input files specified; use option --help for more information")
    phase = _phase(options)
    if phase not in ("link", "lib"):
        if "output-file" in options.values and len(options.inputs) > 1 and phase != "deps":
            raise RefusedError("A single input file is required with an output file")
        for source in options.inputs:
            yield compile_command(options, config, host, source, _output(options, source, phase))
        return
    objects = []
    for number, source in enumerate(options.inputs):
        if _LINKABLE.search(source):
            objects.append(source)
            continue
        target = str(scratch / f"{number}-{Path(source).stem}.o")
        objects.append(target)
        yield compile_command(options, config, host, source, target)
    yield _archive(options, objects) if phase == "lib" else _link(options, config, host, objects)


def _refuse_values(options: Options) -> None:
    """Values that clang cannot honour."""
    values = options.values
    if values.get("relocatable-device-code", "false") not in ("false", "no"):
        raise RefusedError(f"Option '-rdc' cannot be used: {REFUSED['dc']}")
    if values.get("machine", "64") not in ("64", "x86_64"):
        raise RefusedError(f"machine '{values['machine']}' cannot be used: 64 bits only")
    if values.get("static-global-template-stub", "false") != "false":
        raise RefusedError("Option '-static-global-template-stub=true' cannot be used with clang")
    for word in options.all("Werror"):
        if word not in WERROR:
            raise RefusedError(f"Value '{word}' of option '-Werror' is not known")
    for word in options.all("Xcudafe"):
        if not word.lstrip("-").startswith(("diag_suppress", "diag_warn", "display_error_number")):
            raise RefusedError(f"Option '-Xcudafe {word}' cannot be used: clang has no cudafe++")


def _phase(options: Options) -> str:
    for flag, phase in (
        ("generate-dependencies", "deps"),
        ("generate-nonsystem-dependencies", "deps"),
        ("preprocess", "preprocess"),
        ("ptx", "ptx"),
        ("cubin", "cubin"),
        ("compile", "compile"),
        ("lib", "lib"),
    ):
        if flag in options.flags:
            return phase
    return "link"


_SUFFIX = {"ptx": ".ptx", "cubin": ".cubin", "compile": ".o"}


def _output(options: Options, source: str, phase: str) -> str:
    named = options.values.get("output-file", "")
    if named or phase not in _SUFFIX:
        return named
    folder = Path(options.values.get("output-directory", "."))
    return str(folder / (Path(source).stem + _SUFFIX[phase]))


def _language(options: Options, source: str) -> str:
    language = options.values.get("x", "")
    if language:
        if language not in ("cu", "c++", "c"):
            raise RefusedError(f"language '{language}' of -x is not cu, c++ or c")
        return language
    suffix = Path(source).suffix
    if suffix in _CU:
        return "cu"
    if suffix in _HOST:
        return "c" if suffix == ".c" else "c++"
    raise RefusedError(f"Don't know what to do with '{source}'")


def compile_command(
    options: Options, config: Config, host: Host, source: str, output: str
) -> tuple[str, ...]:
    """The command that compiles one source, of CUDA or of the host."""
    language = _language(options, source)
    if language == "cu":
        if any(word.startswith("-fopenmp") for word in _host_words(options)):
            raise RefusedError(f"'{source}': OpenMP of clang cannot be linked with that of gcc")
        head = (config.clang, *_device_part(options, config, host))
    else:
        if _phase(options) in ("ptx", "cubin"):
            raise RefusedError(f"'{source}' has no device code to make")
        head = (host.cxx, "-x", language, *_host_words(options), *_host_level(options))
        head += (*_shared_part(options), f"-I{config.home / 'include'}")
    words = [*head, *_what(options, language), source]
    return (*words, "-o", output) if output else tuple(words)


def _what(options: Options, language: str) -> list[str]:
    phase = _phase(options)
    once = ["--cuda-host-only"] if language == "cu" else []
    if phase == "deps":
        return [*once, "-M" if "generate-dependencies" in options.flags else "-MM"]
    if phase == "preprocess":
        return [*once, "-E"]
    if phase == "ptx":
        return ["--cuda-device-only", "-S"]
    if phase == "cubin":
        return ["--cuda-device-only", "-c"]
    return ["-c"]


def _device_part(options: Options, config: Config, host: Host) -> Iterator[str]:
    """The options of clang for a ``.cu`` file."""
    yield from ("-x", "cuda", f"--cuda-path={config.home}", "--no-offload-new-driver")
    yield from ("-fuse-cuid=none", "-Wno-unknown-cuda-version", "-Wno-unknown-warning-option")
    if host.gcc_folder:
        yield f"--gcc-install-dir={host.gcc_folder}"
    asked = targets(options, config.default_arch)
    if _phase(options) in ("ptx", "cubin") and len(asked.binaries) != 1:
        raise RefusedError("-ptx and -cubin need exactly one target")
    yield "--no-cuda-include-ptx=all"
    yield from (f"--cuda-include-ptx={arch}" for arch in asked.ptx)
    yield from (f"--cuda-gpu-arch={arch}" for arch in asked.binaries)
    yield from _version_macros(config)
    yield from _specific_macros(config, asked.binaries)
    yield from _arch("device", list(_device_words(options)))
    yield from _ptxas_words(options)
    yield from _fatbinary_words(options)
    yield from _arch("host", [*_host_level(options), *_host_words(options)])
    yield from _shared_part(options)
    if (config.home / "include" / "cccl").is_dir():
        yield from ("-isystem", str(config.home / "include" / "cccl"))


def _version_macros(config: Config) -> Iterator[str]:
    """What nvcc tells the preprocessor about itself, and clang does not; libraries choose by it."""
    parts = [*config.version.split("."), "0", "0"]
    for index, name in enumerate(("MAJOR", "MINOR", "BUILD")):
        yield f"-D__CUDACC_VER_{name}__={parts[index]}"


def _specific_macros(config: Config, binaries: Sequence[str]) -> Iterator[str]:
    """The macros of an ``a`` target since CUDA 12.9: headers open its instructions by them."""
    if tuple(map(int, config.cuda.split("."))) < (12, 9):
        return
    for arch in binaries:
        if arch.endswith("a"):
            for name in ("SPECIFIC", "FAMILY_SPECIFIC"):
                yield f"-Xarch_{arch}"
                yield f"-D__CUDA_ARCH_{name}__={arch[3:-1]}0"


def _arch(side: str, words: Sequence[str]) -> Iterator[str]:
    """``words`` for one side only; ``-Xarch_…`` takes one word, so pairs go to both sides."""
    for index, word in enumerate(words):
        paired = index + 1 < len(words) and not words[index + 1].startswith("-")
        if word.startswith("-") and not paired:
            yield f"-Xarch_{side}"
        yield word


def _device_words(options: Options) -> Iterator[str]:
    """Options for device code only. nvcc compiles it at level 3 whatever ``-O`` says."""
    values = options.values
    fast = "true" if "use_fast_math" in options.flags else ""
    if "device-debug" in options.flags:
        yield from ("-O0", "-g", "--cuda-noopt-device-debug")
    else:
        yield "-O3"
    if "generate-line-info" in options.flags and "device-debug" not in options.flags:
        yield "-gline-directives-only"
    if values.get("ftz", fast) == "true":
        yield "-fgpu-flush-denormals-to-zero"
    if fast:
        yield "-fgpu-approx-transcendentals"
    yield "-ffp-contract=" + ("off" if values.get("fmad") == "false" else "fast")
    for name, llvm in (("prec-div", "nvptx-prec-divf32"), ("prec-sqrt", "nvptx-prec-sqrtf32")):
        if values.get(name, "false" if fast else "true") == "false":
            yield f"-mllvm=-{llvm}=0"


def _ptxas_words(options: Options) -> Iterator[str]:
    words = list(options.all("ptxas-options"))
    if "resource-usage" in options.flags:
        words.append("-v")
    if "maxrregcount" in options.values:
        words.append(f"--maxrregcount={options.values['maxrregcount']}")
    for word in words:
        for part in shlex.split(word):
            yield from ("-Xcuda-ptxas", part)


def _fatbinary_words(options: Options) -> Iterator[str]:
    """How device code is packed. The default is what drivers of CUDA 12 unpack too."""
    words = [part for word in options.all("Xfatbin") for part in shlex.split(word)]
    mode = options.values.get("compress-mode", "")
    if "no-compress" in options.flags:
        mode = "none"
    if mode or not any("compress" in word for word in words):
        words.append(f"--compress-mode={mode or 'speed'}")
    for word in words:
        yield from ("-Xcuda-fatbinary", word)


def _host_level(options: Options) -> list[str]:
    words = []
    if "optimize" in options.values:
        words.append(f"-O{options.values['optimize']}")
    if "debug" in options.flags:
        words.append("-g")
    return words


def _host_words(options: Options) -> list[str]:
    """Options that the host compiler alone sees."""
    words = [part for word in options.all("compiler-options") for part in shlex.split(word)]
    if options.flags & {"forward-unknown-to-host-compiler", "forward-unknown-opts"}:
        words += options.unknown
    if "no-exceptions" in options.flags:
        words.append("-fno-exceptions")
    return words


def _shared_part(options: Options) -> Iterator[str]:
    """Options that gcc and clang spell alike, for both sides."""
    values, flags = options.values, options.flags
    yield from (f"-D{word}" for word in options.all("define-macro"))
    yield from (f"-U{word}" for word in options.all("undefine-macro"))
    if values.get("default-stream") == "per-thread":
        yield "-DCUDA_API_PER_THREAD_DEFAULT_STREAM=1"
    yield from _pairs("-include", options.all("pre-include"))
    yield from (f"-I{word}" for word in options.all("include-path"))
    yield from _pairs("-isystem", options.all("system-include"))
    if "std" in values:
        yield f"-std={values['std']}"
    for name in ("ftemplate-depth", "ftemplate-backtrace-limit"):
        if name in values:
            yield f"-{name}={values[name]}"
    if "disable-warnings" in flags:
        yield "-w"
    if "all-warnings" in options.all("Werror"):
        yield "-Werror"
    yield from _dependency_words(options)


def _dependency_words(options: Options) -> Iterator[str]:
    if "generate-dependencies-with-compile" in options.flags:
        yield "-MD"
    if "generate-nonsystem-dependencies-with-compile" in options.flags:
        yield "-MMD"
    if "generate-dependency-targets" in options.flags:
        yield "-MP"
    for name, short in (("dependency-output", "-MF"), ("dependency-target-name", "-MT")):
        if name in options.values:
            yield from (short, options.values[name])


def _pairs(option: str, words: Iterable[str]) -> Iterator[str]:
    for word in words:
        yield from (option, word)


def _link(options: Options, config: Config, host: Host, objects: Sequence[str]) -> tuple[str, ...]:
    words = [host.cxx, *_host_level(options), *_host_words(options)]
    if options.flags & {"forward-unknown-to-host-linker"}:
        words += options.unknown
    if "shared" in options.flags:
        words.append("-shared")
    words += ["-o", options.values.get("output-file", "a.out"), *objects]
    words += _pairs("-Xlinker", options.all("linker-options"))
    words += [f"-L{word}" for word in options.all("library-path")]
    words += [f"-l{word}" for word in options.all("library")]
    words += [f"-L{config.home / 'lib64' / 'stubs'}", f"-L{config.home / 'lib64'}"]
    kind = options.values.get("cudart", "static")
    if kind not in ("static", "shared", "none"):
        raise RefusedError(f"-cudart '{kind}' is not static, shared or none")
    library = {"static": ["-lcudart_static"], "shared": ["-lcudart"], "none": []}[kind]
    return (*words, *library, "-lrt", "-lpthread", "-ldl")


def _archive(options: Options, objects: Sequence[str]) -> tuple[str, ...]:
    target = options.values.get("output-file", "a.a")
    return ("ar", "rcsD", *options.all("archive-options"), target, *objects)


# -- running ---------------------------------------------------------------------------------------


def version_text(config: Config) -> str:
    """What ``--version`` prints: nvcc's line that tools read, and the truth about the compiler."""
    return (
        f"nvcc: compiler driver of CUDA {config.cuda}, with device code by clang\n"
        f"Device compiler: {config.clang_version}\n"
        f"Cuda compilation tools, release {config.cuda}, V{config.version}\n"
    )


def find_host(options: Options, environ: Mapping[str, str]) -> Host:
    """The host compiler: ``-ccbin``, ``NVCC_CCBIN``, else ``g++`` on PATH, as in nvcc."""
    cxx = options.values.get("compiler-bindir") or environ.get("NVCC_CCBIN") or "g++"
    if Path(cxx).is_dir():
        cxx = str(Path(cxx) / "g++")
    try:
        answer = subprocess.run(
            (cxx, "-print-libgcc-file-name"), capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise RefusedError(f"host compiler '{cxx}' cannot be run: {error.strerror}") from error
    library = Path(answer.stdout.strip())
    folder = str(library.parent) if answer.returncode == 0 and library.is_absolute() else ""
    return Host(cxx, folder)


def read_config(folder: Path) -> Config:
    """The record beside this program."""
    told = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    return Config(home=folder.parent, **told)


def _with_environment(arguments: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    before = shlex.split(environ.get("NVCC_PREPEND_FLAGS", ""))
    after = shlex.split(environ.get("NVCC_APPEND_FLAGS", ""))
    return [*before, *arguments, *after]


def main(arguments: Sequence[str], environ: Mapping[str, str], config: Config) -> int:
    """Run the command line; the answer is the exit status."""
    options = parse(_with_environment(arguments, environ))
    if "version" in options.flags:
        sys.stdout.write(version_text(config))
        return 0
    if "help" in options.flags:
        names = sorted([*FLAGS, *VALUES, *LISTS, *NO_EFFECT, *NO_EFFECT_VALUES])
        sys.stdout.write(version_text(config) + "".join(f"  --{name}\n" for name in names))
        return 0
    shown = bool(options.flags & {"verbose", "dryrun"})
    with tempfile.TemporaryDirectory(prefix="nvcc-clang-") as scratch:
        host = find_host(options, environ)
        for command in list(commands(options, config, host, Path(scratch))):
            if shown:
                sys.stderr.write(f"#$ {shlex.join(command)}\n")
            if "dryrun" in options.flags:
                continue
            status = _call(command)
            if status:
                return status
    return 0


def _call(command: Sequence[str]) -> int:
    try:
        status = subprocess.call(command)
    except OSError as error:
        raise RefusedError(f"'{command[0]}' cannot be run: {error.strerror}") from error
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:], os.environ, read_config(Path(__file__).resolve().parent)))
    except (RefusedError, OSError, ValueError) as error:
        sys.stderr.write(f"nvcc (clang) fatal   : {error}\n")
        sys.exit(1)
