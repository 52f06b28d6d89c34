"""A ``libcudart_static.a`` for CUDA homes whose packages have the shared library only.

nvcc links the CUDA run-time library statically unless told otherwise, so that a library loads on
hosts without CUDA; the packages of CUDA 12.6 bring ``libcudart.so.12`` alone (those of 12.9 and 13
have the static one). The archive made here keeps that promise: it defines each function of the
shared library as a jump through a table, and fills the table when the library that it was linked
into is loaded, from the ``libcudart.so.12`` that the process already has (Paddle's or torch's),
that the loader finds, or that lies in the ``nvidia`` packages beside the library. Where there is
none, each function answers ``cudaErrorInsufficientDriver`` (35), as the real one does on a host
without a driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ci.errors import ToolchainError
from ci.toolchain.stubs import checked

NO_DRIVER = 35
"""``cudaErrorInsufficientDriver`` of ``driver_types.h``."""

_ANSWERS = {
    "cudaGetErrorString": "no_text",
    "cudaGetErrorName": "no_text",
    "__cudaRegisterFatBinary": "no_registration",
}

_SOURCE = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY "@LIBRARY@"
#define COUNT @COUNT@

static int no_runtime(void) { return @NO_DRIVER@; }
static const char *no_text(void) { return "the CUDA run-time library " LIBRARY " was not found"; }
static void **no_registration(void) { static void *none; return &none; }

static const char *const names[COUNT] = {
@NAMES@};
__attribute__((visibility("hidden"))) void *delayed_cudart_table[COUNT] = {
@ANSWERS@};

static void *open_beside(void) {
  static const char tail[] = "/nvidia/cuda_runtime/lib/" LIBRARY;
  char path[4096];
  Dl_info self;
  if (!dladdr((void *)names, &self) || !self.dli_fname) return 0;
  size_t length = strlen(self.dli_fname);
  if (length + sizeof tail > sizeof path) return 0;
  memcpy(path, self.dli_fname, length + 1);
  for (char *slash; (slash = strrchr(path, '/'));) {
    memcpy(slash, tail, sizeof tail);
    void *found = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (found) return found;
    *slash = 0;
  }
  return 0;
}

__attribute__((constructor(101))) static void load(void) {
  void *library = dlopen(LIBRARY, RTLD_LAZY | RTLD_LOCAL);
  if (!library) library = open_beside();
  if (!library) return;
  for (int i = 0; i < COUNT; ++i) {
    void *found = dlsym(library, names[i]);
    if (found) delayed_cudart_table[i] = found;
  }
}

@JUMPS@"""


def functions(nm_output: str) -> tuple[str, ...]:
    """The functions that ``nm -D --defined-only`` lists, sorted."""
    found = re.findall(r"^[0-9a-f]+ T ((?:__)?cuda\w+)", nm_output, re.MULTILINE)
    return tuple(sorted(set(found)))


def source(library: str, names: tuple[str, ...]) -> str:
    """C text with one jump for each of ``names``, for x86-64 ELF."""
    jumps = "".join(_jump(index, name) for index, name in enumerate(names))
    answers = "".join(f"  (void *){_ANSWERS.get(name, 'no_runtime')},\n" for name in names)
    filled = {
        "LIBRARY": library,
        "COUNT": str(len(names)),
        "NO_DRIVER": str(NO_DRIVER),
        "NAMES": "".join(f'  "{name}",\n' for name in names),
        "ANSWERS": answers,
        "JUMPS": jumps,
    }
    return re.sub("@([A-Z_]+)@", lambda match: filled[match[1]], _SOURCE)


def _jump(index: int, name: str) -> str:
    lines = (
        ".text",
        f".globl {name}",
        f".hidden {name}",
        f".type {name},@function",
        f"{name}:",
        "endbr64",
        f"jmp *delayed_cudart_table+{8 * index}(%rip)",
        f".size {name},.-{name}",
    )
    return '__asm__("' + "".join(f"{line}\\n" for line in lines) + '");\n'


def make(lib: Path, cc: Path, environ: Mapping[str, str]) -> Path:
    """Write ``libcudart_static.a`` into ``lib``, which holds ``libcudart.so.<major>``.

    Raises :class:`~ci.errors.ToolchainError` when the shared library is missing or gcc fails.
    """
    shared = next(iter(sorted(lib.glob("libcudart.so.*"))), None)
    names = functions(checked(environ, "nm", "-D", "--defined-only", str(shared))) if shared else ()
    if shared is None or not names:
        raise ToolchainError(
            "the packages of this CUDA have no usable libcudart.so",
            cause="the lock of this CUDA does not hold its run-time package",
            next_step="renew the lock in ci/toolchain/locks",
        )
    (lib / "delayed_cudart.c").write_text(source(shared.name, names), encoding="utf-8")
    options = ("-c", "-O2", "-fPIC", "-fcf-protection", "-Wall", "-Werror")
    checked(environ, str(cc), *options, "delayed_cudart.c", cwd=lib)
    checked(environ, "ar", "rcsD", "libcudart_static.a", "delayed_cudart.o", cwd=lib)
    (lib / "delayed_cudart.c").unlink()
    (lib / "delayed_cudart.o").unlink()
    return lib / "libcudart_static.a"
