#!/bin/sh
# install-packages.sh build|test: bring in what the image lacks, with dnf, yum or apt, and check it.
#
# Nothing is downloaded where all is there. GCC_TOOLSET (13, 14, ...) names the gcc of Red Hat's
# "gcc-toolset" to use where the distribution's own gcc is too old.
set -eu

role=$1
oldest_gcc=11

have() { command -v "$1" >/dev/null 2>&1; }
fail() { echo "error: $*" >&2; exit 1; }
gcc_major() { if have g++; then g++ -dumpversion | cut -d. -f1; else echo 0; fi; }

manager() {
    for name in dnf yum apt-get; do
        if have "$name"; then echo "$name"; return; fi
    done
    fail "no dnf, yum or apt-get in this base, and $missing is missing; use a base that has it"
}

install() {
    missing="$*"
    program=$(manager)
    echo "installing with $program: $missing"
    case $program in
        apt-get)
            apt-get update
            DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
            rm -rf /var/lib/apt/lists/*
            ;;
        *)
            "$program" install -y --setopt=install_weak_deps=0 --setopt=tsflags=nodocs "$@"
            "$program" clean all
            ;;
    esac
}

# Adds $2 (rpm) or $3 (deb) to the wanted packages unless the program $1 is there.
want() {
    if have "$1"; then return; fi
    if have apt-get; then wanted="$wanted $3"; else wanted="$wanted $2"; fi
}

toolset() {
    if [ -z "${GCC_TOOLSET:-}" ]; then return; fi
    folder=/opt/rh/gcc-toolset-$GCC_TOOLSET/root/usr
    if [ ! -x "$folder/bin/g++" ]; then
        install "gcc-toolset-$GCC_TOOLSET-gcc-c++" "gcc-toolset-$GCC_TOOLSET-binutils"
    fi
    [ -x "$folder/bin/g++" ] || fail "gcc-toolset-$GCC_TOOLSET was installed, but $folder/bin/g++ is not there"
    ln -sfn "$folder" /opt/compiler
    PATH=/opt/compiler/bin:$PATH
}

# NCCL comes with CUDA's own package sources, which a plain distribution does not have.
nccl() {
    if ldconfig -p | grep -q 'libnccl\.so\.2'; then return; fi
    if have apt-get; then return; fi
    if "$(manager)" list --available libnccl >/dev/null 2>&1; then install libnccl; fi
}

wanted=
want git git git
want make make make
want file file file
want xz xz xz-utils
want zip zip zip
want unzip unzip unzip
if [ "$role" = test ]; then want tini tini tini; fi
if [ -z "${GCC_TOOLSET:-}" ]; then
    want gcc gcc gcc
    want g++ gcc-c++ g++
fi
if [ "$wanted" = " tini" ] && ! have apt-get; then
    install epel-release
fi
if [ -n "$wanted" ]; then
    # shellcheck disable=SC2086  # a list of words
    install $wanted
fi
toolset
if [ "$role" = test ]; then nccl; fi

major=$(gcc_major)
if [ "$major" -lt $oldest_gcc ]; then
    fail "g++ $major is too old, the farm's libraries need $oldest_gcc or newer;" \
        "set --build-arg GCC_TOOLSET=13, or use a base with a newer gcc"
fi
for program in git gcc make; do
    have "$program" || fail "$program is still missing after the installation"
done
echo "compilers are complete: g++ $(g++ -dumpfullversion -dumpversion), $(make --version | head -1)"
