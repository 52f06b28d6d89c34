"""Programs called ``ninja`` and ``make`` that come first on a build's PATH, so that both use the jobserver.

Build scripts start ``ninja -j 16`` or ``make -j16``, and a number there makes both ignore the jobserver that
``MAKEFLAGS`` names. The shim leaves the number out and starts the real program. It also helps those that
cannot join by themselves:

- ninja before 1.13 knows no jobserver: it runs ``$MAX_JOBS`` jobs, and the shim says so on stderr.
- GNU make before 4.4 knows no FIFO: the shim opens it on two descriptors and names those, in the older form.
  What make starts then sees descriptors that it may not have, so the shims find the FIFO again in
  ``PADDLEFLEET_JOBSERVER``.

nvcc is a client by itself since CUDA 13.0, when it is told to (:func:`nvcc_flags`).

Sources: GNU Make manual, "POSIX Jobserver Interaction" and NEWS of 4.4; ninja manual, "GNU Jobserver
support"; ninja's and make's own option tables.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

FIRST_NINJA = (1, 13)  # with the FIFO jobserver
FIRST_MAKE = (4, 4)
FIRST_NVCC = (13, 0)

# Every shim: `real` is the program behind it, `fifo` the jobserver's FIFO or empty. Folders of shims that
# were passed already are left out, or two of them on one PATH would start each other for ever.
_COMMON = r"""#!/bin/sh
# Starts the next @NAME@ on PATH, as a client of the jobserver in MAKEFLAGS. Written by the farm.
set -u
name=@NAME@
folder=${0%/*}
PADDLEFLEET_SHIMS=${PADDLEFLEET_SHIMS:+$PADDLEFLEET_SHIMS:}$folder
export PADDLEFLEET_SHIMS

find_real() {
    IFS=:
    for place in $PATH; do
        [ -f "$place/$name" ] && [ -x "$place/$name" ] || continue
        for shim in $PADDLEFLEET_SHIMS; do
            [ "$place" -ef "$shim" ] && continue 2
        done
        real=$place/$name
        return 0
    done
    echo "$name (shim of the farm): there is no $name on PATH: $PATH" >&2
    exit 127
}

# at_least MAJOR MINOR VERSION
at_least() {
    rest=${3#*.}
    major=${3%%.*} minor=${rest%%[!0-9]*}
    case $major in '' | *[!0-9]*) return 1 ;; esac
    [ "$major" -gt "$1" ] || { [ "$major" -eq "$1" ] && [ "${minor:-0}" -ge "$2" ]; }
}

# The jobserver: in the words of a new make, or by name beneath an old one, which only tells descriptors.
find_fifo() {
    fifo=
    for word in ${MAKEFLAGS-}; do
        case $word in
        --jobserver-auth=fifo:*) fifo=${word#--jobserver-auth=fifo:} ;;
        --jobserver-auth=*) fifo=${PADDLEFLEET_JOBSERVER-} ;;
        esac
    done
    [ -p "$fifo" ] || fifo=
}

# auth VALUE: MAKEFLAGS with this jobserver in the place of the one it names.
auth() {
    flags=
    for word in ${MAKEFLAGS-}; do
        case $word in --jobserver-auth=*) word=--jobserver-auth=$1 ;; esac
        flags="$flags $word"
    done
    MAKEFLAGS=$flags
    export MAKEFLAGS
}

find_real
unset IFS
find_fifo
[ -n "$fifo" ] || exec "$real" "$@"
"""

_NINJA = r"""
case ${1-} in --version | -t*) exec "$real" "$@" ;; esac

version=$("$real" --version) || exec "$real" "$@"
if at_least @MAJOR@ @MINOR@ "$version"; then
    auth "fifo:$fifo"
    jobs=
else
    jobs=${MAX_JOBS:-1}
    echo "ninja (shim of the farm): $real is $version; before @MAJOR@.@MINOR@ it cannot share cores with" \
        "other builds, and runs $jobs jobs" >&2
fi

left=$# tool=
while [ "$left" -gt 0 ]; do
    word=$1
    shift
    left=$((left - 1))
    case $tool$word in
    -j)
        if [ "$left" -gt 0 ]; then shift; left=$((left - 1)); fi
        ;;
    -j*) ;;
    -[nv]j*) set -- "$@" "${word%%j*}" ;;
    -[Cfkldw])
        set -- "$@" "$word"
        if [ "$left" -gt 0 ]; then word=$1; shift; left=$((left - 1)); set -- "$@" "$word"; fi
        ;;
    -t* | --) set -- "$@" "$word"; tool="behind " ;;
    *) set -- "$@" "$word" ;;
    esac
done
[ -z "$jobs" ] || set -- -j "$jobs" "$@"
exec "$real" "$@"
"""

_MAKE = r"""
version=$("$real" --version 2>/dev/null | sed -n '1s/^GNU Make //p')
[ -n "$version" ] || exec "$real" "$@" # another make: it knows no jobserver

left=$# rest=
while [ "$left" -gt 0 ]; do
    word=$1
    shift
    left=$((left - 1))
    case $rest$word in
    -j | --jobs)
        case ${1-} in
        [0-9]*) if [ "$left" -gt 0 ]; then shift; left=$((left - 1)); fi ;;
        esac
        ;;
    -j[0-9]* | --jobs=*) ;;
    -[bBdeikmnpqrRsStvw]j | -[bBdeikmnpqrRsStvw]j[0-9]*) set -- "$@" "${word%%j*}" ;;
    -[CfIoW])
        set -- "$@" "$word"
        if [ "$left" -gt 0 ]; then word=$1; shift; left=$((left - 1)); set -- "$@" "$word"; fi
        ;;
    --) set -- "$@" "$word"; rest="behind " ;;
    *) set -- "$@" "$word" ;;
    esac
done

if at_least @MAJOR@ @MINOR@ "$version"; then
    auth "fifo:$fifo"
else
    PADDLEFLEET_JOBSERVER=$fifo
    export PADDLEFLEET_JOBSERVER
    # Reading and writing: opening for one of them would wait for the other end. Two descriptors, because
    # make wants two; it takes any numbers, and a shell can only name those below 10.
    exec 8<>"$fifo" 9<>"$fifo"
    auth 8,9
fi
exec "$real" "$@"
"""


def shim_scripts() -> dict[str, str]:
    """The scripts by name: the same text on every machine."""
    return {
        "gmake": _script("gmake", _MAKE, FIRST_MAKE),
        "make": _script("make", _MAKE, FIRST_MAKE),
        "ninja": _script("ninja", _NINJA, FIRST_NINJA),
    }


def _script(name: str, own: str, first: tuple[int, int]) -> str:
    text = (_COMMON + own).replace("@NAME@", name)
    return text.replace("@MAJOR@", str(first[0])).replace("@MINOR@", str(first[1]))


def write_shims(folder: Path) -> Path:
    """Write the shims to ``folder`` and return it: what is to come first on PATH.

    Files that are right are left alone; others are replaced at once, so several farms may share a folder,
    and a build may use it meanwhile. Raises :class:`OSError` when the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in shim_scripts().items():
        path = folder / name
        if _is(path, text):
            continue
        partial = folder / f".{name}.{secrets.token_hex(6)}"
        partial.write_text(text, "utf-8")
        partial.chmod(0o755)
        os.replace(partial, path)
    return folder


def nvcc_flags(
    version: tuple[int, int], jobserver: Path | None, threads: int = 1
) -> tuple[str, ...]:
    """What makes nvcc's own threads take tokens; for ``NVCC_PREPEND_FLAGS``, so that a build's own win.

    ``threads`` is the most that one nvcc may use at once (architectures, in the main); each beyond the first
    takes a token while it runs, and waits while there is none. Without a jobserver, and before CUDA 13.0,
    which brought the option, there are no flags: threads could not be shared, and a build keeps its own.
    Measured with nvcc 13.0.88: device code is the same with and without; ``--split-compile`` changes it, so
    it is never a scheduling value.
    """
    if jobserver is None or version < FIRST_NVCC:
        return ()
    return ("--jobserver", f"--threads={threads}") if threads > 1 else ("--jobserver",)


def _is(path: Path, text: str) -> bool:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return os.access(path, os.X_OK) and path.read_text("utf-8") == text
    return False
